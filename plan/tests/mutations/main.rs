//! Seeded faults: the verifier must refuse every mutant of a right plan that is not equivalent to it.
//!
//! Each subject is the plans of all ranks for one small call. Every place is mutated in every way that
//! [`mutant`] knows. A mutant that the verifier accepts survives; it must belong to one of the classes of
//! [`equivalence`], each of which says why it does the same, and it must give the right result in [`oracle`], which
//! runs it on numbers in random schedules. The test prints the survivors: `cargo test --test mutations -- --nocapture`.

mod equivalence;
mod memory;
mod mutant;
mod oracle;

use std::collections::BTreeMap;

use annulus_plan::algorithms::{Algorithm, Choice, Protocol, build};
use annulus_plan::verifier::{Limits, verify};
use annulus_plan::{Collective, CollectiveKind, DataType, Plan, ReduceOp};

use equivalence::{Class, Original};
use mutant::Kind;

/// Size of an element of every subject, in bytes.
const UNIT: usize = 1;

/// Schedules that the oracle tries.
const SEEDS: std::ops::Range<u64> = 0..8;

struct Subject {
    name: String,
    call: Collective,
    plans: Vec<Plan>,
}

/// Every algorithm with every collective that it knows, in and out of place, on a few ranks.
fn subjects() -> Vec<Subject> {
    let mut subjects = Vec::new();
    for algorithm in Algorithm::ALL {
        for kind in CollectiveKind::ALL.into_iter().filter(|kind| algorithm.supports(*kind)) {
            for (world, channels, in_place) in [(2, 1, false), (3, 2, true), (5, 1, false)] {
                // More than one chunk for each rank where the algorithm takes it.
                let bytes = match (algorithm, kind) {
                    (Algorithm::OneShot, CollectiveKind::AllReduce) => 60,
                    (_, CollectiveKind::AllReduce) => 70 * world * channels,
                    _ => 70 * channels,
                };
                let Some(call) = collective(kind, world, world - 1, bytes) else { continue };
                let in_place = in_place && kind != CollectiveKind::AllToAll;
                let call = call.with_in_place(in_place);
                let choice =
                    Choice { algorithm, protocol: Protocol::Simple, channels, chunk_bytes: 64 };
                let plans = (0..world).map(|rank| build(&call, &choice, rank).expect("has a plan"));
                let place = if in_place { " in place" } else { "" };
                let name = format!("{algorithm} {call} on {world} ranks{place}");
                subjects.push(Subject { name, call, plans: plans.collect() });
            }
        }
    }
    subjects
}

fn collective(kind: CollectiveKind, world: usize, root: usize, count: usize) -> Option<Collective> {
    let (dtype, op) = (DataType::U8, ReduceOp::Sum);
    let call = match kind {
        CollectiveKind::AllReduce => Collective::all_reduce(world, dtype, op, count),
        CollectiveKind::Reduce => Collective::reduce(world, dtype, op, root, count),
        CollectiveKind::Broadcast => Collective::broadcast(world, dtype, root, count),
        CollectiveKind::AllGather => Collective::all_gather(world, dtype, count),
        CollectiveKind::ReduceScatter => Collective::reduce_scatter(world, dtype, op, count),
        CollectiveKind::AllToAll => Collective::all_to_all(world, dtype, count),
        CollectiveKind::Gather => Collective::gather(world, dtype, root, count),
        CollectiveKind::Scatter => Collective::scatter(world, dtype, root, count),
        CollectiveKind::Barrier => Ok(Collective::barrier(world)),
        CollectiveKind::AllToAllV | CollectiveKind::PointToPoint => return None,
    };
    Some(call.expect("valid"))
}

/// How many mutants of a kind there were, and what became of them.
#[derive(Default)]
struct Tally {
    mutants: usize,
    survivors: BTreeMap<Class, usize>,
}

#[test]
fn every_seeded_fault_is_found() {
    let mut tallies: BTreeMap<Kind, Tally> = BTreeMap::new();
    let mut missed = Vec::new();
    for Subject { name, call, plans } in subjects() {
        let proof = verify(&call, &plans, &Limits::default());
        assert!(proof.is_ok(), "{name}: {}", proof.unwrap_err());
        let original = Original::new(&call, &plans).unwrap_or_else(|it| panic!("{name}: {it}"));
        mutant::each(&plans, |kind, place, mutant| {
            let tally = tallies.entry(kind).or_default();
            tally.mutants += 1;
            if verify(&call, mutant, &Limits::default()).is_err() {
                return;
            }
            match original.class(mutant) {
                Some(class) => *tally.survivors.entry(class).or_default() += 1,
                None => missed.push(format!("{name}: {kind:?} at {place}")),
            }
            for seed in SEEDS {
                if let Err(wrong) = oracle::run(&call, mutant, seed, None) {
                    panic!(
                        "{name}: {kind:?} at {place} was accepted, but with seed {seed} {wrong}"
                    );
                }
            }
        });
    }
    println!("{:>16} {:>8} {:>9}  why they are right", "mutation", "mutants", "survivors");
    for (kind, Tally { mutants, survivors }) in &tallies {
        let kind = format!("{kind:?}");
        println!("{kind:>16} {mutants:>8} {:>9}", survivors.values().sum::<usize>());
        for (class, count) in survivors {
            println!("{:>36}  {class}", count);
        }
    }
    assert!(
        missed.is_empty(),
        "{} mutants are wrong or not known to be right:\n{}",
        missed.len(),
        missed[..missed.len().min(60)].join("\n")
    );
    let all = Kind::ALL.iter().all(|kind| tallies.contains_key(kind));
    assert!(all, "some kind of mutation was never tried");
}

#[test]
fn the_oracle_knows_right_from_wrong() {
    let call = Collective::all_reduce(3, DataType::U8, ReduceOp::Sum, 420).expect("valid");
    let (algorithm, protocol) = (Algorithm::TwoShot, Protocol::Simple);
    let choice = Choice { algorithm, protocol, channels: 1, chunk_bytes: 64 };
    let plans: Vec<Plan> =
        (0..3).map(|rank| build(&call, &choice, rank).expect("has a plan")).collect();
    let mut wrong = 0;
    mutant::each(&plans, |kind, place, mutant| {
        if matches!(kind, Kind::Drop | Kind::DropMessage | Kind::ShortenMessage | Kind::Weaken) {
            let found =
                SEEDS.into_iter().any(|seed| oracle::run(&call, mutant, seed, None).is_err());
            assert!(found, "{kind:?} at {place}");
            wrong += 1;
        }
    });
    assert!(wrong > 50, "only {wrong} mutants");
}
