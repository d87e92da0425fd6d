//! Where the time of a step went.

use std::fmt;
use std::time::{Duration, Instant};

use annulus::Rank;

/// One step, as one rank saw it. What concerns other ranks is in [`ranks`](Self::ranks).
#[derive(Clone, Debug)]
pub struct StepReport {
    /// The step, from 0.
    pub step: u64,
    /// Whether gradients were reduced: not so in a pass that only accumulates, which has no communication to report.
    pub synchronised: bool,
    /// Samples of all ranks, as far as they were given.
    pub samples: u64,
    /// From the end of the last step to the end of this one's backward pass, without waiting for input.
    pub compute: Duration,
    /// Waiting for input, as told by [`Reducer::time_input`](crate::Reducer::time_input).
    pub input: Duration,
    /// Bucket reductions that ran while the backward pass went on.
    pub hidden: Duration,
    /// From the end of the backward pass until the gradients were there.
    pub exposed: Duration,
    /// The part of `exposed` by which the slowest rank came later than this one.
    pub waiting: Duration,
    /// The reducer's own work on the thread of the backward pass: copying gradients into buckets, and bookkeeping.
    pub reducer: Duration,
    /// The part of `reducer` that is copying.
    pub copying: Duration,
    /// Bytes of gradients that were copied into buckets, rather than [written there](crate::Reducer::ready_with).
    pub copied_bytes: u64,
    /// Bytes that this rank sent, at the least, for the reductions.
    pub sent_bytes: u64,
    /// The rank that took longest to come to the end of its backward pass.
    pub slowest: Rank,
    /// Every rank's times, by rank.
    pub ranks: Vec<RankTimes>,
    /// The first gradient that was not finite, if that is [checked](crate::Options::check_finite): its rank and its
    /// parameter. The same on every rank.
    pub non_finite: Option<NonFinite>,
    /// Whether gradients were checked for that.
    pub checked: bool,
    /// Parameters without a gradient on any rank, by index.
    pub unused: Vec<usize>,
    pub(crate) spans: Vec<Span>,
    pub(crate) begun: Instant,
    pub(crate) backward_ended: Instant,
}

/// One rank's times in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankTimes {
    /// As [`StepReport::compute`].
    pub compute: Duration,
    /// As [`StepReport::input`].
    pub input: Duration,
    /// Whether the rank took no part, because it has run out of input and [joined](crate::Reducer::join).
    pub joined: bool,
}

/// A gradient with an infinite or undefined element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFinite {
    /// The first rank whose own gradient it is; `None` if all ranks' were finite, and only their sum is not.
    pub rank: Option<Rank>,
    /// The parameter's name.
    pub parameter: String,
}

/// One bucket's reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) bucket: usize,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

impl StepReport {
    /// The whole step: from the end of the last one to the gradients.
    pub fn total(&self) -> Duration {
        self.compute + self.input + self.exposed
    }

    /// The share of communication that ran behind the backward pass; 1 if there was none at all.
    pub fn hidden_share(&self) -> f64 {
        let all = self.hidden + self.exposed;
        if all.is_zero() { 1.0 } else { self.hidden.as_secs_f64() / all.as_secs_f64() }
    }

    /// `T1 / (W x TW)`, where `alone` is the time of the same global step on one rank.
    pub fn scaling_efficiency(&self, alone: Duration) -> f64 {
        alone.as_secs_f64() / (self.ranks.len() as f64 * self.total().as_secs_f64())
    }
}

impl fmt::Display for StepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, compute, input, exposed, hidden, waiting, slowest, sent_bytes, .. } = self;
        write!(
            f,
            "step {step}: compute {compute:.1?}, input {input:.1?}, communication exposed {exposed:.1?} \
             ({waiting:.1?} of it waiting for rank {slowest}) and hidden {hidden:.1?}, {sent_bytes} bytes sent"
        )
    }
}

/// Sums over many steps.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Number of steps.
    pub steps: u64,
    /// Sum of [`StepReport::compute`].
    pub compute: Duration,
    /// Sum of [`StepReport::input`].
    pub input: Duration,
    /// Sum of [`StepReport::hidden`].
    pub hidden: Duration,
    /// Sum of [`StepReport::exposed`].
    pub exposed: Duration,
    /// Sum of [`StepReport::waiting`].
    pub waiting: Duration,
    /// Sum of [`StepReport::reducer`].
    pub reducer: Duration,
    /// Sum of [`StepReport::sent_bytes`].
    pub sent_bytes: u64,
    /// For each rank, in how many steps it was the slowest.
    pub slowest: Vec<u64>,
}

impl Totals {
    /// Adds one step.
    pub fn add(&mut self, report: &StepReport) {
        self.steps += 1;
        self.compute += report.compute;
        self.input += report.input;
        self.hidden += report.hidden;
        self.exposed += report.exposed;
        self.waiting += report.waiting;
        self.reducer += report.reducer;
        self.sent_bytes += report.sent_bytes;
        if report.synchronised {
            self.slowest.resize(report.ranks.len().max(self.slowest.len()), 0);
            self.slowest[report.slowest] += 1;
        }
    }

    /// The share of communication that ran behind the backward pass; 1 if there was none at all.
    pub fn hidden_share(&self) -> f64 {
        let all = self.hidden + self.exposed;
        if all.is_zero() { 1.0 } else { self.hidden.as_secs_f64() / all.as_secs_f64() }
    }
}
