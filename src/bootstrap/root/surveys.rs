//! Relays a rank's question what the others do, and their answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::bootstrap::survey::Status;

/// A question so old is over.
const LIFE: Duration = Duration::from_secs(2);
/// Most questions at a time, each of another communicator.
const MAX_SURVEYS: usize = 64;

/// By the communicators' tags.
#[derive(Default)]
pub(super) struct Surveys {
    open: HashMap<u64, Survey>,
}

struct Survey {
    begun: Instant,
    askers: BTreeSet<u32>,
    answers: BTreeMap<u32, Status>,
}

/// What follows from a question.
pub(super) enum Asked {
    /// All need to be asked.
    First,
    /// Somebody else has asked: these have answered so far, and the others will.
    Joined(Vec<(u32, Status)>),
    /// Too many ask at a time.
    Refused,
}

impl Surveys {
    pub(super) fn ask(&mut self, tag: u64, asker: u32, now: Instant) -> Asked {
        self.open.retain(|_, survey| now - survey.begun < LIFE);
        if let Some(survey) = self.open.get_mut(&tag) {
            survey.askers.insert(asker);
            let answers = survey.answers.iter();
            return Asked::Joined(answers.map(|(rank, status)| (*rank, status.clone())).collect());
        }
        if self.open.len() == MAX_SURVEYS {
            return Asked::Refused;
        }
        let (askers, answers) = (BTreeSet::from([asker]), BTreeMap::new());
        self.open.insert(tag, Survey { begun: now, askers, answers });
        Asked::First
    }

    /// Who wants to know what `rank` has answered.
    pub(super) fn answer(&mut self, tag: u64, rank: u32, status: &Status) -> Vec<u32> {
        let Some(survey) = self.open.get_mut(&tag) else { return Vec::new() };
        survey.answers.insert(rank, status.clone());
        survey.askers.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_askers_join_and_old_questions_end() {
        let (mut surveys, now) = (Surveys::default(), Instant::now());
        assert!(matches!(surveys.ask(7, 0, now), Asked::First));
        assert_eq!(surveys.answer(7, 2, &Status::new(1, 1)), [0]);
        let Asked::Joined(answers) = surveys.ask(7, 1, now) else { panic!("it is open") };
        assert_eq!(answers, [(2, Status::new(1, 1))]);
        assert_eq!(surveys.answer(7, 3, &Status::new(1, 1)), [0, 1]);
        assert!(surveys.answer(8, 3, &Status::new(1, 1)).is_empty());
        assert!(matches!(surveys.ask(7, 1, now + LIFE), Asked::First));
        for tag in 0..100 {
            surveys.ask(100 + tag, 0, now + LIFE);
        }
        assert!(matches!(surveys.ask(300, 0, now + LIFE), Asked::Refused));
    }
}
