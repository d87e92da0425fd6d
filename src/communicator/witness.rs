//! Finds out why a rank makes no progress: ranks in different calls, and ranks that wait for each other in a circle.
//!
//! Ranks that disagree mostly find out by the first message. Where neither sends, both wait. So a rank that has made no progress
//! for 20 ms, or longer in large worlds, tells those that it waits for which call it is in and what it needs of them, and again after twice
//! that time, four times, and so on. Each rank's **witness** hears such words also while its rank is busy elsewhere, and concludes from what its rank
//! has recorded:
//!
//! * *Different calls:* its own collective of the same number was another one.
//! * *A circle:* it is stuck itself and has not begun what is needed of it; and one of those that need it directly or through others is
//!   one that it needs. As long as a rank is stuck it begins nothing, so that none of them can ever go on.
//!
//! Neither can be said of a rank that is late, slow, opens links (which no call of its peers is needed for), or has sent what is still on its way. A rank that cannot conclude anything, but is
//! stuck, passes the word on to those that it needs itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use annulus_plan::{CollectiveKind, Direction, Fingerprint, Rank};

use super::Shared;
use crate::Error;
use crate::bootstrap::{ANY_COUNT, Hop, MAX_HOPS, Need, Status};
use crate::error::Stuck;
use crate::flight::{Page, same_call};
use crate::monitor::{Blockage, Observer, Wait};

/// A rank that makes no progress for so long speaks up: for each rank of its world, so that the root, by way of which all words
/// go, has as many to forward in a second however many ranks wait for a late one.
const FIRST_WORD_PER_RANK: Duration = Duration::from_micros(1250);
/// The limits of that.
const EARLIEST_WORD: Duration = Duration::from_millis(20);
const LATEST_WORD: Duration = Duration::from_secs(2);
/// It repeats itself at longer and longer intervals up to this one.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);
/// How long a survey waits for answers.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Most ranks that one rank tells, and that it remembers words of.
const MAX_TOLD: usize = 8;
const MAX_HEARD: usize = 64;
/// Most words of others that one rank passes on in [`EARLIEST_WORD`]. There are as many chains as paths through the ranks that are
/// stuck, which may be more than anybody can carry; who drops some hears them again.
const MAX_PASSED: usize = 64;

/// One rank's part in this.
pub(super) struct Witness {
    rank: Rank,
    page: Arc<Page>,
    /// Set once there is a communicator to speak for.
    shared: OnceLock<Weak<Shared>>,
    /// When it speaks first, in nanoseconds without progress.
    first_word: u64,
    /// When to speak next.
    next_word: AtomicU64,
    state: Mutex<State>,
    /// Another rank has answered a survey.
    answer: Condvar,
}

#[derive(Default)]
struct State {
    /// What the rank is stuck in.
    blocked: Option<Blocked>,
    /// The latest word of each rank that needs this one.
    heard: HashMap<Rank, Vec<Hop>>,
    /// Messages so far to and from each peer, outside collectives. The peer counts the same.
    counted: Counts,
    /// The number of the last all-to-all-v, and how many elements the messages have that it sends to whom.
    all_to_all_v: (u64, HashMap<Rank, Vec<u64>>),
    /// To a survey, by rank.
    answers: HashMap<Rank, Status>,
    /// Words of others that were passed on since when.
    passed: (usize, Option<Instant>),
}

impl State {
    /// How many of `wanted` words may be passed on now.
    fn allow(&mut self, wanted: usize, now: Instant) -> usize {
        let (passed, since) = &mut self.passed;
        if since.is_none_or(|since| now.saturating_duration_since(since) >= EARLIEST_WORD) {
            (*passed, *since) = (0, Some(now));
        }
        let allowed = wanted.min(MAX_PASSED - *passed);
        *passed += allowed;
        allowed
    }
}

/// Sent and received messages, by peer. Looked up at each message, so no hashing.
#[derive(Default)]
struct Counts(Vec<[u64; 2]>);

impl Counts {
    fn add(&mut self, direction: Direction, peer: Rank) -> u64 {
        if self.0.len() <= peer {
            self.0.resize(peer + 1, [0; 2]);
        }
        let number = &mut self.0[peer][direction as usize];
        *number += 1;
        *number
    }

    fn get(&self, direction: Direction, peer: Rank) -> u64 {
        self.0.get(peer).map_or(0, |counts| counts[direction as usize])
    }
}

struct Blocked {
    operation: u64,
    collectives: u64,
    call: Fingerprint,
    needs: Vec<(Rank, Need)>,
}

/// What follows from a word.
enum Verdict {
    Nothing,
    /// These need to know.
    Ask(Vec<(Rank, Vec<Hop>)>),
    Mismatch {
        peer: Rank,
        ours: Fingerprint,
        theirs: Fingerprint,
    },
    Deadlock(Vec<Hop>),
}

impl Witness {
    /// That of `rank` of `world` ranks of the communicator `tag`, with a page to record in; none in a world of one.
    pub(super) fn of(rank: Rank, world: usize, tag: u32) -> Option<Arc<Self>> {
        let page = Page::new(rank, world, tag)?;
        let first_word = first_word(world).as_nanos() as u64;
        Some(Arc::new(Self {
            rank,
            page,
            shared: OnceLock::new(),
            first_word,
            next_word: AtomicU64::new(first_word),
            state: Mutex::default(),
            answer: Condvar::new(),
        }))
    }

    /// Where its rank records what it does.
    pub(super) fn page(&self) -> &Arc<Page> {
        &self.page
    }

    /// From now on it speaks for the communicator.
    pub(super) fn speak_for(&self, shared: &Arc<Shared>) {
        let _ = self.shared.set(Arc::downgrade(shared));
    }

    /// Counts a message of a group of sends and receives; returns its number.
    pub(super) fn count(&self, direction: Direction, peer: Rank) -> u64 {
        self.state().counted.add(direction, peer)
    }

    /// How many messages have been counted.
    pub(super) fn counted(&self, direction: Direction, peer: Rank) -> u64 {
        self.state().counted.get(direction, peer)
    }

    /// Notes how many elements the messages have that all-to-all-v number `sequence` sends to whom.
    pub(super) fn all_to_all_v(&self, sequence: u64, sends: HashMap<Rank, Vec<u64>>) {
        self.state().all_to_all_v = (sequence, sends);
    }

    /// What its rank does.
    pub(super) fn status(&self) -> Option<Status> {
        let record = self.page.record()?;
        let mut status = Status::new(record.collectives, record.completed);
        status.current =
            record.current().map(|operation| (operation.last_call(), operation.pending_for));
        status.last_completed = record.last_completed();
        (status.refused, status.error) = (record.refused, record.error);
        Some(status)
    }

    /// Tells those that have asked.
    pub(super) fn tell(&self) {
        if let (Some(shared), Some(status)) =
            (self.shared.get().and_then(Weak::upgrade), self.status())
        {
            shared.peers.answer(status);
        }
    }

    /// Another rank has answered.
    pub(super) fn answered(&self, rank: Rank, status: Status) {
        self.state().answers.insert(rank, status);
        self.answer.notify_all();
    }

    /// Asks all ranks what they do, and waits for their answers, for about a second, or until the communicator breaks.
    pub(super) fn survey(&self, shared: &Shared) -> HashMap<Rank, Status> {
        self.state().answers.clear();
        let mut answers: HashMap<Rank, Status> = shared.peers.survey().into_iter().collect();
        answers.extend(self.status().map(|status| (self.rank, status)));
        let deadline = Instant::now() + ANSWER_TIME;
        let mut state = self.state();
        loop {
            answers.extend(state.answers.drain());
            let missing = (0..shared.world)
                .any(|rank| !answers.contains_key(&rank) && !shared.health.has_departed(rank));
            let left = deadline.saturating_duration_since(Instant::now());
            if !missing || left.is_zero() || shared.health.is_broken() {
                return answers;
            }
            let slice = left.min(Duration::from_millis(20));
            let waited = self.answer.wait_timeout(state, slice);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Hears a word from another rank. Does not block, and runs on any thread.
    pub(super) fn hear(&self, chain: Vec<Hop>) {
        let Some(shared) = self.shared.get().and_then(Weak::upgrade) else { return };
        let Some(&last) = chain.last() else { return };
        if last.peer != self.rank || chain.iter().any(|hop| hop.rank >= shared.world) {
            return;
        }
        let verdict = {
            let mut state = self.state();
            let verdict = self.judge(&state, &chain, &shared);
            if state.heard.len() < MAX_HEARD || state.heard.contains_key(&last.rank) {
                state.heard.insert(last.rank, chain);
            }
            verdict
        };
        self.act(&shared, verdict);
    }

    fn judge(&self, state: &State, chain: &[Hop], shared: &Shared) -> Verdict {
        let Some(last) = chain.last() else { return Verdict::Nothing };
        if let Some(mismatch) = chain.iter().find_map(|hop| self.compare(state, hop, shared)) {
            return mismatch;
        }
        let blocked = match &state.blocked {
            Some(blocked) if blocked.operation == self.page.started() => blocked,
            _ => return Verdict::Nothing,
        };
        let counted = |direction| state.counted.get(direction, last.rank);
        let begun = match last.need {
            Need::Collective { .. } => blocked.collectives >= last.collectives,
            // The numbers travel modulo 2^32.
            Need::Send { number } => !is_behind(counted(Direction::Send), number),
            Need::Receive { number } => !is_behind(counted(Direction::Receive), number),
        };
        if begun {
            return Verdict::Nothing;
        }
        if let Some(start) = chain.iter().position(|hop| hop.rank == self.rank) {
            return match chain[start].operation == blocked.operation {
                true => Verdict::Deadlock(chain[start..].to_vec()),
                false => Verdict::Nothing,
            };
        }
        let hop = |peer, need| Hop {
            rank: self.rank,
            operation: blocked.operation,
            collectives: blocked.collectives,
            call: blocked.call,
            peer,
            need,
        };
        let needed = |other: &Hop| {
            needs_to_come(blocked.call, self.rank, other.rank)
                && other.collectives < blocked.collectives
        };
        if let Some(start) = chain.iter().position(needed) {
            let mut cycle = chain[start..].to_vec();
            cycle.push(hop(chain[start].rank, Need::Collective { count: 0 }));
            return Verdict::Deadlock(cycle);
        }
        if chain.len() >= MAX_HOPS {
            return Verdict::Nothing;
        }
        let words = blocked.needs.iter().map(|&(peer, need)| {
            let mut word = chain.to_vec();
            word.push(hop(peer, need));
            (peer, word)
        });
        Verdict::Ask(words.collect())
    }

    /// Whether a rank that is stuck in a collective made another call than this one in the same place.
    fn compare(&self, state: &State, hop: &Hop, shared: &Shared) -> Option<Verdict> {
        if !is_collective(hop.call) {
            return None;
        }
        let theirs = Fingerprint { tag: shared.tag, ..hop.call };
        let ours = self.page.collective(hop.collectives)?;
        let (peer, sequence) = (hop.rank, hop.collectives);
        if !same_call(ours, theirs) {
            return Some(Verdict::Mismatch { peer, ours, theirs });
        }
        let (last, sends) = &state.all_to_all_v;
        if let Need::Collective { count } = hop.need
            && hop.peer == self.rank
            && is_kind(ours, CollectiveKind::AllToAllV)
            && *last == sequence
            && count != ANY_COUNT
        {
            let sent = sends.get(&peer).map_or(&[][..], Vec::as_slice);
            let with = |count: u64| Fingerprint { call: ours.call & 0xffff | count << 16, ..ours };
            return (!sent.contains(&count)).then(|| Verdict::Mismatch {
                peer,
                ours: with(sent.iter().sum()),
                theirs: with(count),
            });
        }
        None
    }

    fn act(&self, shared: &Shared, verdict: Verdict) {
        let rank = self.rank;
        match verdict {
            Verdict::Nothing => {}
            Verdict::Ask(words) => {
                let allowed = self.state().allow(words.len(), Instant::now());
                for (peer, word) in words.into_iter().take(allowed) {
                    shared.peers.stalled(peer, word);
                }
            }
            Verdict::Mismatch { peer, ours, theirs } => {
                let (ours, theirs) = (ours.describe(), theirs.describe());
                shared.break_unasked(Error::Mismatch { rank, peer, ours, theirs });
            }
            Verdict::Deadlock(cycle) => {
                shared.break_unasked(Error::Deadlock { rank, cycle: stuck(&cycle) });
            }
        }
    }

    /// This rank is stuck: tells whom it needs, and looks once more at what it has heard.
    fn speak(&self, wait: &mut Wait<'_>) {
        let Some(shared) = self.shared.get().and_then(Weak::upgrade) else { return };
        let blockages = wait.blockages();
        self.page.waits_for(&wait.blocked_on());
        let (call, operation) = (wait.fingerprint, self.page.started());
        let collectives = self.page.collectives();
        let needs: Vec<(Rank, Need)> = blockages
            .iter()
            .filter(|blockage| blockage.peer != self.rank)
            .map(|blockage| (blockage.peer, need(call, blockage)))
            .take(MAX_TOLD)
            .collect();
        let hop = |&(peer, need)| Hop { rank: self.rank, operation, collectives, call, peer, need };
        let words: Vec<(Rank, Vec<Hop>)> =
            needs.iter().map(|need| (need.0, vec![hop(need)])).collect();
        let verdicts: Vec<Verdict> = {
            let mut state = self.state();
            state.blocked = Some(Blocked { operation, collectives, call, needs });
            let state = &*state;
            state.heard.values().map(|chain| self.judge(state, chain, &shared)).collect()
        };
        for (peer, word) in words {
            shared.peers.stalled(peer, word);
        }
        verdicts.into_iter().for_each(|verdict| self.act(&shared, verdict));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Its rank's executor tells it of waits.
pub(super) struct OnWait(pub(super) Arc<Witness>);

impl Observer for OnWait {
    fn waiting(&self, wait: &mut Wait<'_>) {
        let witness = &*self.0;
        witness.page.waits();
        let quiet = wait.quiet.as_nanos() as u64;
        let due = witness.next_word.load(Ordering::Relaxed);
        if quiet >= due {
            let pause = due.min(LONGEST_SILENCE.as_nanos() as u64);
            witness.next_word.store(quiet + pause, Ordering::Relaxed);
            witness.speak(wait);
        }
    }

    fn resumed(&self) {
        let first = self.0.first_word;
        if self.0.next_word.swap(first, Ordering::Relaxed) != first {
            self.0.state().blocked = None;
        }
    }
}

fn first_word(world: usize) -> Duration {
    let world = u32::try_from(world).unwrap_or(u32::MAX);
    FIRST_WORD_PER_RANK.saturating_mul(world).clamp(EARLIEST_WORD, LATEST_WORD)
}

/// Ranks of a circle, for messages.
pub(super) fn stuck(cycle: &[Hop]) -> Vec<Stuck> {
    cycle
        .iter()
        .map(|hop| Stuck { rank: hop.rank, call: hop.call.describe(), waits_for: hop.peer })
        .collect()
}

/// The reverse, as far as others need to know.
pub(super) fn hops(cycle: &[Stuck]) -> Vec<Hop> {
    let hop = |&Stuck { rank, call, waits_for }: &Stuck| Hop {
        rank,
        operation: 0,
        collectives: 0,
        call: call.fingerprint(),
        peer: waits_for,
        need: Need::Collective { count: 0 },
    };
    cycle.iter().map(hop).collect()
}

fn need(call: Fingerprint, blockage: &Blockage) -> Need {
    let (count, number) = blockage.message.unwrap_or_default();
    match blockage.direction {
        Direction::Receive if is_collective(call) => Need::Collective { count },
        // What the other is to take, which says nothing of what it sends.
        Direction::Send if is_collective(call) => Need::Collective { count: ANY_COUNT },
        Direction::Receive => Need::Send { number },
        Direction::Send => Need::Receive { number },
    }
}

fn is_kind(call: Fingerprint, kind: CollectiveKind) -> bool {
    (call.call >> 8) as u8 == kind as u8
}

pub(super) fn is_collective(call: Fingerprint) -> bool {
    !is_kind(call, CollectiveKind::PointToPoint)
}

/// Whether `rank` cannot end `call` before `other` has come to it, whatever the algorithm.
fn needs_to_come(call: Fingerprint, rank: Rank, other: Rank) -> bool {
    use CollectiveKind::{
        AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    let root = (call.order >> 8 & 0xff_ffff) as Rank;
    match CollectiveKind::from_code((call.call >> 8) as u8) {
        Some(AllReduce | AllGather | ReduceScatter | AllToAll | Barrier) => true,
        Some(Reduce | Gather) => rank == root,
        Some(Broadcast | Scatter) => rank != root && other == root,
        _ => false,
    }
}

/// Whether fewer than `number` messages have been counted; numbers travel modulo 2^32.
fn is_behind(counted: u64, number: u32) -> bool {
    (counted as u32).wrapping_sub(number) >= 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_around() {
        assert!(is_behind(0, 1));
        assert!(!is_behind(1, 1));
        assert!(!is_behind(5, 1));
        assert!(is_behind(u64::from(u32::MAX), 3));
        assert!(!is_behind((1 << 32) + 3, 3));
    }

    #[test]
    fn large_worlds_are_patient() {
        let words_per_second = |world: usize| world as f64 / first_word(world).as_secs_f64();
        assert_eq!((first_word(2), first_word(16)), (EARLIEST_WORD, EARLIEST_WORD));
        assert!((1..=1600).all(|world| words_per_second(world) <= 801.0));
        assert_eq!(first_word(usize::MAX), LATEST_WORD);
    }

    #[test]
    fn words_are_passed_on_in_moderation() {
        let (mut state, now) = (State::default(), Instant::now());
        assert_eq!(state.allow(MAX_PASSED - 1, now), MAX_PASSED - 1);
        assert_eq!((state.allow(5, now), state.allow(5, now)), (1, 0));
        assert_eq!(state.allow(1000, now + EARLIEST_WORD), MAX_PASSED);
    }

    #[test]
    fn to_take_a_message_is_not_to_send_one() {
        let all_to_all_v = CollectiveKind::AllToAllV;
        let dtype = annulus_plan::DataType::F32;
        let call = Fingerprint::from_parts(all_to_all_v, dtype, None, None, 0, 1, 1);
        let of = |direction| need(call, &Blockage { peer: 1, direction, message: Some((5, 1)) });
        assert_eq!(of(Direction::Receive), Need::Collective { count: 5 });
        assert_eq!(of(Direction::Send), Need::Collective { count: ANY_COUNT });
    }

    #[test]
    fn who_must_come_follows_from_the_call() {
        let call = |kind, root| {
            Fingerprint::from_parts(kind, annulus_plan::DataType::F32, None, root, 8, 1, 1)
        };
        let barrier = call(CollectiveKind::Barrier, None);
        assert!(needs_to_come(barrier, 0, 3));
        let reduce = call(CollectiveKind::Reduce, Some(2));
        assert!(needs_to_come(reduce, 2, 0) && !needs_to_come(reduce, 0, 2));
        let broadcast = call(CollectiveKind::Broadcast, Some(2));
        assert!(needs_to_come(broadcast, 0, 2));
        assert!(!needs_to_come(broadcast, 0, 1) && !needs_to_come(broadcast, 2, 0));
        assert!(!needs_to_come(call(CollectiveKind::PointToPoint, None), 0, 1));
    }
}
