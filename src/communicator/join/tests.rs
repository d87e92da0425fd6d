//! Ledgers of several ranks in a simulated job, under any order of events; and a rank whose root is lost.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use annulus_plan::{Fingerprint, Rank};
use annulus_transports::secret::Secret;
use proptest::prelude::*;

use super::super::peers::Peers;
use super::super::shrink::Survivor;
use super::super::split::{Child, Request};
use super::board::{Board, Joining, Task};
use super::ledger::{Arrival, Ledger, Next, Numbered};
use crate::Error;
use crate::bootstrap::{Hop, Status};
use crate::health::Health;

/// A collective of the simulated job.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Nobody is through before all have begun.
    WaitsForAll,
    /// All but the root wait for the root, which waits for nobody.
    FromRoot(Rank),
    /// Nobody waits.
    Empty,
}

/// Up to the first join and from one to the next: the calls, and how many of them each rank makes before it joins.
#[derive(Clone, Debug)]
struct Epoch {
    calls: Vec<Kind>,
    made: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
enum News {
    Joined(Rank, Arrival),
    Announced(Numbered),
}

struct Simulated {
    ledger: Ledger,
    /// Calls made or answered.
    sequence: u64,
    /// The call under way.
    within: Option<u64>,
    joined: bool,
    /// What was relayed to this rank and has not arrived.
    mail: VecDeque<News>,
    outcomes: Vec<(Vec<Rank>, u64)>,
}

struct Job {
    epochs: Vec<Epoch>,
    /// The sequence number after which each epoch begins.
    bases: Vec<u64>,
    ranks: Vec<Simulated>,
    joins: u64,
}

fn numbered(sequence: u64) -> Numbered {
    Numbered { sequence, call: Fingerprint::default().at(sequence) }
}

impl Job {
    fn new(world: usize, epochs: Vec<Epoch>) -> Self {
        let mut bases = vec![0];
        for epoch in &epochs {
            let most = epoch.made.iter().max().copied().unwrap_or(0);
            bases.push(bases[bases.len() - 1] + most as u64);
        }
        let rank = |rank| Simulated {
            ledger: Ledger::new(rank, world),
            sequence: 0,
            within: None,
            joined: false,
            mail: VecDeque::new(),
            outcomes: Vec::new(),
        };
        Self { epochs, bases, ranks: (0..world).map(rank).collect(), joins: 0 }
    }

    fn kind(&self, sequence: u64) -> Kind {
        let epoch = self.bases.iter().rposition(|&base| base < sequence).expect("from 1");
        self.epochs[epoch].calls[(sequence - self.bases[epoch] - 1) as usize]
    }

    /// What the root does with what a rank says. A rank hears its own joins again, but not its announcements.
    fn relay(&mut self, from: Rank, news: Vec<News>) {
        for mut news in news {
            if let News::Joined(_, arrival) = &mut news {
                arrival.order = self.joins;
                self.joins += 1;
            }
            for (to, rank) in self.ranks.iter_mut().enumerate() {
                if to != from || matches!(news, News::Joined(..)) {
                    rank.mail.push_back(news);
                }
            }
        }
    }

    fn announce(&mut self, from: Rank, calls: Vec<Numbered>) {
        self.relay(from, calls.into_iter().map(News::Announced).collect());
    }

    /// Whether `rank` may end the call that it is in.
    fn can_end(&self, rank: Rank, sequence: u64) -> bool {
        let has_begun =
            |other: &Simulated| other.sequence >= sequence || other.within == Some(sequence);
        match self.kind(sequence) {
            Kind::WaitsForAll => self.ranks.iter().all(has_begun),
            Kind::FromRoot(root) => root == rank || has_begun(&self.ranks[root]),
            Kind::Empty => true,
        }
    }

    /// Delivers a piece of news to `rank`; false: there is none.
    fn deliver(&mut self, rank: Rank) -> bool {
        let Simulated { ledger, mail, .. } = &mut self.ranks[rank];
        match mail.pop_front() {
            Some(News::Joined(who, arrival)) => ledger.arrive(who, arrival),
            Some(News::Announced(call)) => ledger.hear(call),
            None => return false,
        }
        true
    }

    /// Lets `rank` do one thing; false: it can do nothing.
    fn step(&mut self, rank: Rank) -> bool {
        let this = &mut self.ranks[rank];
        let epoch = this.outcomes.len();
        if let Some(sequence) = this.within {
            let mut moved = false;
            if !this.joined {
                let news = this.ledger.witness(Some(numbered(sequence))).expect("remembered");
                moved = !news.is_empty();
                self.announce(rank, news);
            }
            if !self.can_end(rank, sequence) {
                return moved;
            }
            let waited_for_all = matches!(self.kind(sequence), Kind::WaitsForAll);
            let this = &mut self.ranks[rank];
            (this.sequence, this.within) = (sequence, None);
            if waited_for_all {
                this.ledger.forget();
            } else if !this.joined {
                this.ledger.remember(numbered(sequence));
            }
            return true;
        }
        if this.joined {
            match this.ledger.next(this.sequence).expect("remembered") {
                Next::Wait => return false,
                Next::Announce(calls) => self.announce(rank, calls),
                Next::Answer(call) => {
                    assert_eq!(call, numbered(this.sequence + 1));
                    this.within = Some(call.sequence);
                }
                Next::Over { order, sequence } => {
                    assert_eq!(this.sequence, sequence, "all answered");
                    this.joined = false;
                    this.outcomes.push((order, sequence));
                }
            }
            return true;
        }
        let Some(plan) = self.epochs.get(epoch) else { return false };
        if this.sequence < self.bases[epoch] + plan.made[rank] as u64 {
            let call = numbered(this.sequence + 1);
            this.within = Some(call.sequence);
            let news = this.ledger.witness(Some(call)).expect("remembered");
            self.announce(rank, news);
        } else {
            let calls = this.ledger.witness(None).expect("remembered");
            this.ledger.join();
            this.joined = true;
            let (epoch, sequence) = (this.ledger.epoch(), this.sequence);
            self.announce(rank, calls);
            self.relay(rank, vec![News::Joined(rank, Arrival { epoch, sequence, order: 0 })]);
        }
        true
    }
}

/// Epochs of calls; a root is one that makes the call itself.
fn epochs(world: usize) -> impl Strategy<Value = Vec<Epoch>> {
    let epoch = (
        prop::collection::vec((0_u8..3, any::<prop::sample::Index>()), 8),
        prop::collection::vec(0_usize..=8, world),
    )
        .prop_map(move |(kinds, made)| {
            let calls = kinds.iter().enumerate().map(|(index, (kind, root))| {
                let makers: Vec<Rank> = (0..world).filter(|&rank| made[rank] > index).collect();
                match kind {
                    1 if !makers.is_empty() => Kind::FromRoot(*root.get(&makers)),
                    2 => Kind::Empty,
                    _ => Kind::WaitsForAll,
                }
            });
            Epoch { calls: calls.collect(), made }
        });
    prop::collection::vec(epoch, 1..=3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn all_ranks_end_alike_in_any_order_of_events(
        (world, epochs) in (1_usize..=5).prop_flat_map(|world| (Just(world), epochs(world))),
        seed in any::<u64>(),
    ) {
        let mut job = Job::new(world, epochs.clone());
        let mut random = seed | 1;
        let mut draw = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 33) as usize % below
        };
        // Some ranks are slow, and so is their mail.
        let pace: Vec<usize> = (0..2 * world).map(|_| 1 + draw(8)).collect();
        let mut idle = 0;
        while idle < 2000 {
            let actor = draw(2 * world);
            if draw(pace[actor]) > 0 {
                continue;
            }
            let moved = if actor < world { job.step(actor) } else { job.deliver(actor - world) };
            idle = if moved { 0 } else { idle + 1 };
        }
        let first = &job.ranks[0].outcomes;
        prop_assert_eq!(first.len(), epochs.len(), "rank 0 is stuck");
        for (rank, simulated) in job.ranks.iter().enumerate() {
            prop_assert_eq!(&simulated.outcomes, first, "rank {}", rank);
            prop_assert!(!simulated.ledger.is_active());
        }
        for (index, (order, sequence)) in first.iter().enumerate() {
            prop_assert_eq!(*sequence, job.bases[index + 1]);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..world).collect::<Vec<_>>());
        }
    }
}

#[test]
fn says_so_when_a_rank_joins_before_calls_that_nobody_remembers() {
    let mut ledger = Ledger::new(0, 2);
    for sequence in 1..=5000 {
        ledger.remember(numbered(sequence));
    }
    ledger.arrive(1, Arrival { epoch: 0, sequence: 10, order: 0 });
    let forgotten = ledger.witness(Some(numbered(5001))).expect_err("too far ahead");
    assert_eq!((forgotten.rank, forgotten.sequence), (1, 10));
}

#[test]
fn what_makes_no_sense_is_ignored() {
    let mut ledger = Ledger::new(0, 2);
    ledger.arrive(2, Arrival { epoch: 0, sequence: 0, order: 0 });
    ledger.arrive(1, Arrival { epoch: 7, sequence: 0, order: 0 });
    assert!(!ledger.is_active());
    ledger.arrive(1, Arrival { epoch: 0, sequence: 3, order: 1 });
    ledger.arrive(1, Arrival { epoch: 0, sequence: 9, order: 2 });
    assert!(ledger.has_joined(1) && !ledger.has_joined(0));
    assert_eq!(ledger.widen(2), 2);
    let mut late = Ledger::new(0, 2);
    late.arrive(1, Arrival { epoch: 0, sequence: (7 << 32) - 1, order: 1 });
    assert_eq!(late.widen(4), (7 << 32) + 4);
}

/// Peers that are told, and say nothing.
#[derive(Default)]
struct Mute {
    errors: Mutex<Vec<String>>,
    announced: Mutex<Vec<u64>>,
}

impl Peers for Mute {
    fn report(&self, error: &Error) {
        self.errors.lock().expect("no panic").push(error.to_string());
    }
    fn depart(&self, _: Rank) {}
    fn whereabouts(&self, _: Rank) -> (String, u32) {
        ("here".into(), 1)
    }
    fn inquire(&self, _: Rank) -> bool {
        false
    }
    fn stalled(&self, _: Rank, _: Vec<Hop>) {}
    fn join(&self, _: Rank, _: u64, _: u64) {}
    fn announce(&self, call: Numbered) {
        self.announced.lock().expect("no panic").push(call.sequence);
    }
    fn survey(&self) -> Vec<(Rank, Status)> {
        Vec::new()
    }
    fn answer(&self, _: Status) {}
    fn split(&self, _: &Request) -> Result<Child, Error> {
        Err(Error::Aborted { rank: 0 })
    }
    fn secret(&self) -> Option<&Secret> {
        None
    }
    fn shrink(&self, _: Rank, _: &[Rank], _: &[Rank]) -> Result<Survivor, Error> {
        Err(Error::Aborted { rank: 0 })
    }
}

/// Who brings the news looks when they come, and finds nothing of a call that is still under way.
#[test]
fn a_call_that_began_before_a_join_is_told_of_at_its_end() {
    let (peers, health) = (Arc::new(Mute::default()), Arc::new(Health::new(2)));
    let board = Arc::new(Board::new(0, 2));
    let joining = Joining { rank: 0, board: board.clone(), peers: peers.clone(), health };
    joining.remember(numbered(1));
    board.arrive(1, Arrival { epoch: 0, sequence: 1, order: 0 });
    joining.look().expect("it is sound");
    assert!(peers.announced.lock().expect("no panic").is_empty());
    joining.remember(numbered(2));
    assert_eq!(*peers.announced.lock().expect("no panic"), [2]);
}

/// Two roots number joins, each from 0: of no epoch does a rank hear from both.
#[test]
fn a_join_is_lost_with_its_root_and_the_next_one_is_not() {
    let (rank, peers) = (1, Arc::new(Mute::default()));
    let (board, health) = (Arc::new(Board::new(rank, 2)), Arc::new(Health::new(2)));
    let joining = Joining { rank, board: board.clone(), peers: peers.clone(), health };
    let arrives = |epoch, orders: [u64; 2]| {
        for (rank, order) in orders.into_iter().enumerate() {
            board.arrive(rank, Arrival { epoch, sequence: 5, order });
        }
    };
    // Rank 0 has joined, and is the one that is cut off.
    board.arrive(0, Arrival { epoch: 0, sequence: 5, order: 7 });
    board.root_lost();
    joining.join(5).expect("it is sound");
    arrives(0, [0, 8]);
    // All have joined at the old root: what it said is complete.
    board.root_lost();
    let over = joining.wait(5);
    assert!(matches!(&over, Ok(Task::Over { order, .. }) if order[..] == [0, 1]));
    // Those who join at the new root do so undisturbed.
    joining.join(5).expect("it is sound");
    arrives(1, [1, 0]);
    let over = joining.wait(5);
    assert!(matches!(&over, Ok(Task::Over { order, .. }) if order[..] == [1, 0]));
    // Rank 0 may have joined, and this one hears no more of that.
    joining.join(5).expect("it is sound");
    board.root_lost();
    assert!(matches!(joining.wait(5), Err(Error::CutOff { rank: 1 })));
    assert_eq!(*peers.errors.lock().expect("no panic"), [Error::CutOff { rank }.to_string()]);
}

#[test]
fn nobody_joins_without_a_root() {
    let (board, health) = (Arc::new(Board::new(0, 2)), Arc::new(Health::new(2)));
    let joining =
        Joining { rank: 0, board: board.clone(), peers: Arc::new(Mute::default()), health };
    board.cut_off();
    joining.join(5).expect("it is sound");
    assert!(matches!(joining.wait(5), Err(Error::CutOff { rank: 0 })));
}
