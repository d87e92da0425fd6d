//! Whether what the ranks say is what must come of a scenario.

use super::cast::Outcome;
use super::scenario::{Fault, Scenario};

/// What is known of one rank's process in the end.
#[derive(Clone, Debug)]
pub(super) struct Testimony {
    pub(super) outcome: Outcome,
    /// It had nothing left to do but the last barrier.
    pub(super) was_final: bool,
    /// It brought its fault about.
    pub(super) struck: bool,
    /// In how large communicators it went on.
    pub(super) went_on: Vec<usize>,
    /// Why it could not.
    pub(super) stuck: Option<String>,
    /// It has let go of everything.
    pub(super) clean: bool,
    /// It was killed, or ended by itself in good order.
    pub(super) exited_well: bool,
    /// The harness killed it.
    pub(super) killed: bool,
}

/// What is wrong, if anything is.
pub(super) fn judge(scenario: &Scenario, ranks: &[Testimony]) -> Result<(), String> {
    for (rank, testimony) in ranks.iter().enumerate() {
        if let Outcome::Wrong(what) = &testimony.outcome {
            return Err(format!("rank {rank} got a wrong result: {what}"));
        }
        if let Some(why) = &testimony.stuck {
            return Err(format!("rank {rank} cannot go on: {why}"));
        }
        if !testimony.killed && !testimony.exited_well {
            return Err(format!("rank {rank} did not end in good order"));
        }
        if !testimony.killed && !testimony.clean {
            return Err(format!("rank {rank} holds on to descriptors or threads"));
        }
    }
    match &scenario.fault {
        Fault::None | Fault::Pause(..) | Fault::Slow(_) | Fault::Delay(_) | Fault::Flap(..) => {
            all(ranks, |outcome| matches!(outcome, Outcome::Ended), "succeeds")
        }
        Fault::Abort(_) | Fault::Mismatch(_) if !ranks.iter().any(|rank| rank.struck) => {
            all(ranks, |outcome| matches!(outcome, Outcome::Ended), "succeeds")
        }
        Fault::Abort(_) => all(ranks, |outcome| failed_with(outcome, &["aborted"]), "is aborted"),
        Fault::Mismatch(_) => {
            let told = |outcome: &_| failed_with(outcome, &["mismatch", "reported"]);
            all(ranks, told, "is told of the mismatch")
        }
        Fault::Kill(_) | Fault::Stop(_) | Fault::Panic(_) | Fault::Partition(_) => {
            survivors_agree(scenario, ranks)
        }
    }
}

fn failed_with(outcome: &Outcome, kinds: &[&str]) -> bool {
    matches!(outcome, Outcome::Failed { kind, .. } if kinds.contains(&kind.as_str()))
}

fn all(ranks: &[Testimony], right: impl Fn(&Outcome) -> bool, what: &str) -> Result<(), String> {
    match ranks.iter().position(|testimony| !right(&testimony.outcome)) {
        Some(rank) => Err(format!("each rank {what}, but rank {rank}: {:?}", ranks[rank].outcome)),
        None => Ok(()),
    }
}

/// All who are not lost name the same lost ranks.
fn survivors_agree(scenario: &Scenario, ranks: &[Testimony]) -> Result<(), String> {
    let lost = scenario.lost();
    // One that had done its part may be missed by nobody, or by some: a barrier does not end everywhere at once.
    let late = lost.iter().any(|&rank| ranks[rank].was_final);
    // With the root's process goes what ties the others together: they know of it, and perhaps of more.
    let rootless = lost.contains(&0);
    let mut sizes = Vec::new();
    if scenario.shrinks() {
        sizes.push(scenario.left());
    }
    if scenario.grows() {
        sizes.push(scenario.left() + 1);
    }
    // Whoever comes last has come in after the loss.
    for (rank, testimony) in ranks.iter().enumerate().filter(|(rank, _)| !lost.contains(rank)) {
        let expected = if rank < scenario.world { &sizes[..] } else { &sizes[1..] };
        if testimony.went_on != expected {
            let went_on = &testimony.went_on;
            return Err(format!("rank {rank} should go on among {expected:?}, not {went_on:?}"));
        }
    }
    for (rank, testimony) in ranks.iter().enumerate().take(scenario.world) {
        let must_fail = !lost.contains(&rank);
        match &testimony.outcome {
            Outcome::Ended if late => {}
            Outcome::Failed { kind, lost: named, .. } if must_fail => {
                let only_lost = named.iter().all(|rank| lost.contains(rank));
                let all_lost = lost.iter().all(|rank| named.contains(rank));
                let agrees = only_lost && (all_lost || (late || rootless) && !named.is_empty());
                if kind != "lost" || !agrees {
                    let outcome = &testimony.outcome;
                    return Err(format!("rank {rank} should lose {lost:?}: {outcome:?}"));
                }
            }
            Outcome::Failed { .. } | Outcome::Panicked if !must_fail => {}
            // Killed before it could say anything.
            Outcome::Silent if testimony.killed => {}
            outcome => return Err(format!("rank {rank} should lose {lost:?}: {outcome:?}")),
        }
    }
    Ok(())
}
