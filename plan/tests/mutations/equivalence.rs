//! Why a mutant does the same as the plans that it comes from.

use std::fmt;

use annulus_plan::verifier::Place;
use annulus_plan::{Buffer, Collective, Instruction, Plan, Rank, Span};

use crate::memory::{Bytes, bytes, reads, spans, write};
use crate::{SEEDS, oracle};

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Reordered,
    OrderedByMessages,
    Repeated,
    RepeatedMessage,
    SameBytes,
    ReadsACopy,
    OtherOrder,
    DeadStore,
    ClaimsLess,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reordered => {
                "the same instructions; every link is used in the same order, and none that share bytes \
                 have changed their order"
            }
            Self::OrderedByMessages => {
                "the same instructions; every link is used in the same order, and those that share bytes run \
                 in the same order, which messages force, in every schedule tried"
            }
            Self::RepeatedMessage => "a message repeated at the end: in every schedule tried, nothing has written its bytes at either end since",
            Self::SameBytes => "spans that name the same bytes through another buffer: in place, or none at all",
            Self::ReadsACopy => "a send from where the same bytes were copied from, or to",
            Self::OtherOrder => {
                "two contributions added to the same bytes in the other order, where all ranks that get the result \
                 get this one"
            }
            Self::DeadStore => {
                "a value kept, or not, where nobody reads it: garbage there changes no result in any schedule tried"
            }
            Self::Repeated => "a local instruction done twice that does not read what it writes",
            Self::ClaimsLess => "a rank that only ever copies what it sends",
        })
    }
}

/// Right plans, and the order in which their instructions ran in each schedule tried.
pub(crate) struct Original<'a> {
    call: &'a Collective,
    plans: &'a [Plan],
    orders: Vec<Vec<Place>>,
}

impl<'a> Original<'a> {
    pub(crate) fn new(call: &'a Collective, plans: &'a [Plan]) -> Result<Self, String> {
        let orders = SEEDS.map(|seed| oracle::run(call, plans, seed, None));
        Ok(Self { call, plans, orders: orders.collect::<Result<_, _>>()? })
    }

    /// The class of `mutant`, if it is known to do the same.
    pub(crate) fn class(&self, mutant: &[Plan]) -> Option<Class> {
        let changed: Vec<Rank> =
            (0..mutant.len()).filter(|&rank| self.plans[rank] != mutant[rank]).collect();
        let all = |is: &dyn Fn(&Plan, &Plan) -> bool| {
            changed.iter().all(|&rank| is(&self.plans[rank], &mutant[rank]))
        };
        let call = self.call;
        if all(&claims_less) {
            Some(Class::ClaimsLess)
        } else if all(&|plan, mutant| {
            repeated(plan, mutant, &|it| is_idempotent(call, plan.rank, it))
        }) {
            Some(Class::Repeated)
        } else if all(&|plan, mutant| repeated_message(plan, mutant).is_some()) {
            if changed.iter().all(|&rank| self.nothing_since(rank, mutant)) {
                Some(Class::RepeatedMessage)
            } else {
                self.repeated_for_nobody(mutant).then_some(Class::DeadStore)
            }
        } else if all(&|plan, mutant| same_bytes(call, plan, mutant)) {
            Some(Class::SameBytes)
        } else if all(&|plan, mutant| reordered(call, plan, mutant)) {
            Some(Class::Reordered)
        } else if all(&|plan, mutant| reads_a_copy(call, plan, mutant)) {
            Some(Class::ReadsACopy)
        } else if all(&other_order) {
            Some(Class::OtherOrder)
        } else if let [rank] = changed[..] {
            if self.dead_store(rank, mutant) {
                Some(Class::DeadStore)
            } else if self.ordered_by_messages(rank, mutant) {
                Some(Class::OrderedByMessages)
            } else {
                None
            }
        } else {
            None
        }
    }

    /// One instruction keeps what it sends elsewhere or not at all, and garbage in both places does no harm.
    fn dead_store(&self, rank: Rank, mutant: &[Plan]) -> bool {
        let forget = |mut plan: Plan| {
            for it in plan.lanes.iter_mut().flat_map(|lane| &mut lane.instructions) {
                if let Instruction::RecvReduceSend { dst, .. } = it {
                    *dst = None;
                }
            }
            plan
        };
        let (old, new) = (&self.plans[rank], &mutant[rank]);
        let differs = places(old).into_iter().find(|it| !places(new).contains(it));
        let Some((_, (lane, instruction), _)) = differs else { return false };
        let place = Some(Place { rank, lane, instruction });
        let harmless = |plans| {
            SEEDS.into_iter().all(|seed| oracle::run(self.call, plans, seed, place).is_ok())
        };
        forget(old.clone()) == forget(new.clone()) && harmless(self.plans) && harmless(mutant)
    }

    /// In every schedule tried, whatever writes the bytes of a repeated message does so before the message
    /// first comes.
    fn nothing_since(&self, rank: Rank, mutant: &[Plan]) -> bool {
        let plan = &self.plans[rank];
        let Some((lane, instruction)) = repeated_message(plan, &mutant[rank]) else { return false };
        let first = Place { rank, lane, instruction };
        let touched = |it: &Instruction| write(it).or_else(|| reads(it).first().copied());
        let address = |span| bytes(self.call, rank, span);
        let Some(span) = touched(&plan.lanes[lane].instructions[instruction]) else { return false };
        let writers: Vec<Place> = places(plan)
            .into_iter()
            .filter(|(_, _, it)| write(it).is_some_and(|it| address(it).overlaps(address(span))))
            .map(|(_, (lane, instruction), _)| Place { rank, lane, instruction })
            .filter(|place| *place != first)
            .collect();
        self.orders.iter().all(|order| {
            let at = |place: &Place| order.iter().position(|it| it == place);
            writers.iter().all(|writer| at(writer) < at(&first))
        })
    }

    /// Garbage in place of the repeated message does no harm.
    fn repeated_for_nobody(&self, mutant: &[Plan]) -> bool {
        let repeats = self.plans.iter().zip(mutant).filter_map(|(plan, mutant)| {
            let (lane, _) = repeated_message(plan, mutant)?;
            let last = mutant.lanes[lane].instructions.len() - 1;
            let place = Place { rank: mutant.rank, lane, instruction: last };
            mutant.lanes[lane].instructions[last].from().map(|_| place)
        });
        let mut repeats = repeats.collect::<Vec<_>>().into_iter();
        let harmless = |place| {
            SEEDS.into_iter().all(|seed| oracle::run(self.call, mutant, seed, Some(place)).is_ok())
        };
        repeats.len() == 1 && repeats.all(harmless)
    }

    /// The same instructions; those that depend on each other run in the same order in every schedule.
    fn ordered_by_messages(&self, rank: Rank, mutant: &[Plan]) -> bool {
        let (old, new) = (places(&self.plans[rank]), places(&mutant[rank]));
        if !same_instructions(&old, &new) {
            return false;
        }
        let ranks = |order: &[Place], places: &[Located]| -> Vec<Option<usize>> {
            let at = |it: &Located| {
                order
                    .iter()
                    .position(|place| place.rank == rank && (place.lane, place.instruction) == it.1)
            };
            places.iter().map(at).collect()
        };
        SEEDS.zip(&self.orders).all(|(seed, order)| {
            let Ok(after) = oracle::run(self.call, mutant, seed, None) else { return false };
            let (before, after) = (ranks(order, &old), ranks(&after, &new));
            let kept = |one: usize, other: usize| {
                before[one].cmp(&before[other]) == after[one].cmp(&after[other])
                    || !depend(self.call, rank, &old[one].2, &old[other].2)
            };
            (0..old.len()).all(|one| (0..one).all(|other| kept(one, other)))
        })
    }
}

fn claims_less(plan: &Plan, mutant: &Plan) -> bool {
    *mutant == Plan { by_reference: false, ..plan.clone() }
}

/// One instruction, which `may`, is done twice in a row.
fn repeated(plan: &Plan, mutant: &Plan, may: &dyn Fn(&Instruction) -> bool) -> bool {
    let mut lanes = plan.lanes.iter().zip(&mutant.lanes).enumerate();
    let Some((lane, (old, new))) = lanes.find(|(_, (old, new))| old != new) else { return false };
    let (old, new) = (&old.instructions, &new.instructions);
    if new.len() != old.len() + 1 {
        return false;
    }
    // The first difference follows the repeated instruction.
    let at = old.iter().zip(new).position(|(old, new)| old != new).unwrap_or(old.len());
    let mut back = mutant.clone();
    let again = back.lanes[lane].instructions.remove(at);
    back == *plan && at.checked_sub(1).is_some_and(|before| old[before] == again) && may(&again)
}

fn is_idempotent(call: &Collective, rank: Rank, instruction: &Instruction) -> bool {
    let local = instruction.from().is_none() && instruction.to().is_none();
    let unread = write(instruction).is_some_and(|dst| {
        let dst = bytes(call, rank, dst);
        reads(instruction).iter().all(|&src| !bytes(call, rank, src).overlaps(dst))
    });
    local && unread
}

/// The lane, and the place there, of a message that is repeated at the end of the lane.
fn repeated_message(plan: &Plan, mutant: &Plan) -> Option<(usize, usize)> {
    let lane = plan.lanes.iter().zip(&mutant.lanes).position(|(old, new)| old != new)?;
    let mut back = mutant.clone();
    let again = back.lanes[lane].instructions.pop()?;
    let first = plan.lanes[lane].instructions.iter().position(|it| *it == again)?;
    let message = matches!(again, Instruction::Send { .. } | Instruction::Recv { .. });
    (message && back == *plan).then_some((lane, first))
}

/// One instruction reads its bytes from where a copy before it in its lane took them, or brought them; nothing
/// else writes them.
fn reads_a_copy(call: &Collective, plan: &Plan, mutant: &Plan) -> bool {
    let mut lanes = plan.lanes.iter().zip(&mutant.lanes);
    let Some((old, new)) = lanes.find(|(old, new)| old != new) else { return false };
    let mut pairs = old.instructions.iter().zip(&new.instructions);
    let Some(at) = pairs.position(|(old, new)| old != new) else { return false };
    let mut back = new.clone();
    let [Instruction::Send { to, src: one }, Instruction::Send { to: same, src: other }] =
        [old, new].map(|lane| lane.instructions[at])
    else {
        return false;
    };
    back.instructions[at] = old.instructions[at];
    let changed = mutant.lanes.iter().zip(&plan.lanes).filter(|(new, old)| new != old).count();
    let address = |span| bytes(call, plan.rank, span);
    let copies = |it: &Instruction| {
        let Instruction::Copy { src, dst } = *it else { return false };
        let (src, dst) = (address(src), address(dst));
        let distance = |from: Bytes, span| address(span).start.wrapping_sub(from.start);
        let names = |one, other| {
            src.holds(address(one))
                && dst.holds(address(other))
                && distance(src, one) == distance(dst, other)
        };
        names(one, other) || names(other, one)
    };
    let writers = plan.lanes.iter().flat_map(|lane| &lane.instructions).filter(|it| {
        let dst = write(it).map(address);
        dst.is_some_and(|dst| dst.overlaps(address(one)) || dst.overlaps(address(other)))
    });
    back == *old
        && to == same
        && changed == 1
        && old.instructions[..at].iter().any(copies)
        && writers.count() == 1
}

/// The plans are equal once every span is named by its memory.
fn same_bytes(call: &Collective, plan: &Plan, mutant: &Plan) -> bool {
    let named = |plan: &Plan| {
        let mut named = plan.clone();
        for it in named.lanes.iter_mut().flat_map(|lane| &mut lane.instructions) {
            for span in spans(it) {
                let Bytes { region, start, end } = bytes(call, plan.rank, *span);
                // No bytes are no bytes, wherever.
                let (region, start, end) =
                    if start == end { (0, 0, 0) } else { (region, start, end) };
                *span = Span { buffer: Buffer::Member(region), offset: start, bytes: end - start };
            }
        }
        named
    };
    named(plan) == named(mutant)
}

/// Two neighbours that both add something to the same bytes have changed places.
fn other_order(plan: &Plan, mutant: &Plan) -> bool {
    let mut lanes = plan.lanes.iter().zip(&mutant.lanes).enumerate();
    let Some((lane, (old, new))) = lanes.find(|(_, (old, new))| old != new) else { return false };
    let mut pairs = old.instructions.iter().zip(&new.instructions);
    let Some(at) = pairs.position(|(old, new)| old != new) else { return false };
    let [one, other, ..] = old.instructions[at..] else { return false };
    let adds = |it| match it {
        Instruction::RecvReduce { with, dst, finish: false, .. } if with == dst => Some(dst),
        Instruction::Reduce { a, dst, finish: false, .. } if a == dst => Some(dst),
        _ => None,
    };
    let mut back = mutant.clone();
    let list = &mut back.lanes[lane].instructions;
    if let [one, other, ..] = &mut list[at..] {
        std::mem::swap(one, other);
    }
    back == *plan && adds(one).is_some() && adds(one) == adds(other)
}

/// An instruction as text, to sort by, and its lane and place there.
type Located = (String, (usize, usize), Instruction);

fn same_instructions(old: &[Located], new: &[Located]) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| old.0 == new.0)
}

/// Where the instructions are, equal ones in the order of their places.
fn places(plan: &Plan) -> Vec<Located> {
    let lanes = plan.lanes.iter().enumerate();
    let all = lanes.flat_map(|(lane, it)| {
        let numbered = it.instructions.iter().enumerate();
        numbered.map(move |(at, it)| (format!("{it:?}"), (lane, at), *it))
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
    all
}

fn reordered(call: &Collective, plan: &Plan, mutant: &Plan) -> bool {
    let (old, new) = (places(plan), places(mutant));
    let relation = |one: (usize, usize), other: (usize, usize)| {
        (one.0 == other.0).then(|| one.1.cmp(&other.1))
    };
    let kept = |one: usize, other: usize| {
        relation(old[one].1, old[other].1) == relation(new[one].1, new[other].1)
            || !depend(call, plan.rank, &old[one].2, &old[other].2)
    };
    same_instructions(&old, &new)
        && (0..old.len()).all(|one| (0..one).all(|other| kept(one, other)))
        && Plan { lanes: Vec::new(), ..plan.clone() }
            == Plan { lanes: Vec::new(), ..mutant.clone() }
}

/// Whether the order of two instructions of a rank matters: they use one end of one link, or one
/// writes what the other touches.
fn depend(call: &Collective, rank: Rank, one: &Instruction, other: &Instruction) -> bool {
    let link = one.from().is_some() && one.from() == other.from()
        || one.to().is_some() && one.to() == other.to();
    let writes = |one: &Instruction, other: &Instruction| {
        write(one).is_some_and(|dst| {
            let dst = bytes(call, rank, dst);
            let touched = reads(other).into_iter().chain(write(other));
            touched.into_iter().any(|span| bytes(call, rank, span).overlaps(dst))
        })
    };
    link || writes(one, other) || writes(other, one)
}
