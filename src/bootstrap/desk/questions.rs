//! A rank asks the root with whom to go on, and the next root if that one is lost.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::{Desk, RootState};
use crate::bootstrap::agreement::{Answer, Ask, Outcome, RankSet};
use crate::bootstrap::reactor::lock;
use crate::bootstrap::settlement::Settlement;
use crate::bootstrap::wire::{FrameKind, frame};

/// How long the root's last word may be under way.
const GRACE: Duration = Duration::from_secs(2);

/// What this rank asks the root.
pub(super) struct Question {
    tag: u64,
    round: u32,
    exclude: RankSet,
}

/// Why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bootstrap) enum Unanswered {
    /// The others have given this rank up.
    Expelled,
    /// No root is left to ask, and none takes over.
    Nobody,
    /// The root did not answer before the deadline.
    Silent,
}

impl Desk {
    /// See [`Control::agree`](crate::bootstrap::control::Control::agree).
    pub(in crate::bootstrap) fn agree(
        &self,
        tag: u64,
        round: u32,
        members: RankSet,
        exclude: RankSet,
        deadline: Instant,
    ) -> Result<Outcome, Unanswered> {
        let mut state = lock(&self.state);
        let number = state.next_number;
        state.next_number = number.wrapping_add(1);
        state.asked.insert(number, Question { tag, round, exclude: exclude.clone() });
        let mut asked_in = None;
        let outcome = loop {
            if let Some(outcome) = state.answers.remove(&number) {
                break Ok(outcome);
            }
            if state.expelled {
                break Err(Unanswered::Expelled);
            }
            let left = (deadline + GRACE).saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(Unanswered::Silent);
            }
            match state.root {
                RootState::There if asked_in != Some(state.epoch) => {
                    let patience = deadline.saturating_duration_since(Instant::now());
                    let (members, exclude) = (members.clone(), exclude.clone());
                    let ask = Ask { tag, number, round, patience, members, exclude };
                    state.connection.send(frame(FrameKind::Ask, &ask.encode()).into());
                    asked_in = Some(state.epoch);
                }
                RootState::There | RootState::Missing | RootState::Coming { .. } => {}
                RootState::Retired(_) => {
                    self.replace_retired(state);
                    state = lock(&self.state);
                    continue;
                }
                RootState::Nobody => break Err(Unanswered::Nobody),
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        state.asked.remove(&number);
        outcome
    }

    pub(super) fn answered(&self, Answer { number, outcome }: Answer) {
        let mut state = lock(&self.state);
        if let Some(Question { tag, round, exclude }) = state.asked.remove(&number) {
            if let Outcome::Agreed { nonce, survivors } = &outcome {
                let (nonce, survivors) = (*nonce, survivors.clone());
                let settlement = Settlement { tag, round, nonce, survivors, exclude };
                // Nobody but the root tells it.
                let _ = state.settlements.learn(self.roster.rank, settlement);
            }
            state.answers.insert(number, outcome);
        }
        drop(state);
        self.changed.notify_all();
    }
}
