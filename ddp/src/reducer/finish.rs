//! The end of a backward pass.

use std::time::{Duration, Instant};

use annulus::ReduceOp;

use super::arrangement::whole;
use super::progress::{Generation, Progress, Window, lock};
use super::status::Status;
use super::{Averaging, Reducer, Unused};
use crate::error::Complaint;
use crate::report::{NonFinite, RankTimes};
use crate::{Error, StepReport, agreement};

/// How many parameters a complaint names.
const NAMED: usize = 8;

impl Reducer {
    pub(super) fn finish_pass(&self, problem: Option<&str>) -> Result<StepReport, Error> {
        let shared = &*self.shared;
        let backward_ended = Instant::now();
        let mut progress = shared.progress();
        progress.check()?;
        let pass = progress.pass.ok_or(Error::NotBegun)?;
        if let Some(problem) = problem {
            progress.complain(problem.to_owned());
        } else if !pass.synchronises {
            progress.pass = None;
            progress.window.passes += 1;
            return Ok(accumulated(&progress, backward_ended));
        }
        let generation = shared.generation();
        let missing = self.complete_buckets(&generation, &mut progress);
        self.judge_missing(&missing, &mut progress);
        let mut progress = shared.complete(progress);
        progress.check()?;
        let status = Status {
            alive: true,
            complains: progress.complaint.is_some(),
            has_unused: !missing.is_empty(),
            step: progress.step,
            passes: progress.window.passes + 1,
            samples: progress.window.samples,
            local: backward_ended.saturating_duration_since(progress.since),
            input: progress.input,
            non_finite: progress.non_finite,
        };
        let complaint = progress.complaint.take();
        let mut arrivals = std::mem::take(&mut progress.arrivals);
        drop(progress);
        let outcome = self.settle(status, &missing, complaint.as_deref()).and_then(|settled| {
            arrivals.extend(&missing);
            self.agree_on_order(&settled.0, whole(arrivals, &generation))?;
            Ok(settled)
        });
        let mut progress = shared.progress();
        let report = match outcome {
            Ok((statuses, unused)) => {
                let mut arrangement = lock(&self.arrangement);
                arrangement.without.clone_from(&unused);
                arrangement.joined = statuses.iter().position(|status| !status.alive);
                drop(arrangement);
                Ok(self.report(&progress, &statuses, backward_ended, unused))
            }
            Err(error) => {
                if let Error::Communication(_) = error {
                    shared.fail(&mut progress, error.clone());
                }
                Err(error)
            }
        };
        progress.end_step();
        report
    }

    /// Puts zeros where nothing has come, so that this rank keeps the others' buckets waiting no longer; says for
    /// which parameters.
    fn complete_buckets(&self, generation: &Generation, progress: &mut Progress) -> Vec<usize> {
        let mut missing = Vec::new();
        for (index, bucket) in generation.buckets.iter().enumerate() {
            if !progress.ready[index] {
                lock(bucket).complete(&generation.layout.buckets[index], &mut missing);
                progress.ready[index] = true;
            } else if let Some(unused) = &lock(&self.arrangement).unused {
                let members = &generation.layout.buckets[index].members;
                let known = members.iter().map(|member| member.parameter);
                missing.extend(known.filter(|parameter| unused.contains(parameter)));
            }
        }
        missing.sort_unstable();
        missing
    }

    /// Whether parameters may be without a gradient.
    fn judge_missing(&self, missing: &[usize], progress: &mut Progress) {
        let names = |indices: &[usize]| self.shared.model.names(indices, NAMED);
        match self.shared.options.unused {
            Unused::Refuse if !missing.is_empty() => progress.complain(format!(
                "no gradient came for {}: if that is meant, construct the reducer with unused: zero",
                names(missing)
            )),
            Unused::Refuse | Unused::Zero => {}
            Unused::Static => {
                let arrangement = lock(&self.arrangement);
                let Some(known) = &arrangement.unused else { return };
                let new: Vec<usize> = missing.iter().copied().filter(|p| !known.contains(p)).collect();
                if !new.is_empty() {
                    progress.complain(format!(
                        "your training graph has changed in this iteration: no gradient came for {}, which had one in the first step (unused: static)",
                        names(&new)
                    ));
                }
            }
        }
    }

    /// Comes to the same verdict on every rank: all ranks' statuses and the parameters without any gradient, or why
    /// the step is void.
    fn settle(
        &self,
        status: Status,
        missing: &[usize],
        complaint: Option<&str>,
    ) -> Result<(Vec<Status>, Vec<usize>), Error> {
        let shared = &*self.shared;
        let step = status.step;
        let statuses = status.exchange(&shared.comm)?;
        if statuses.iter().any(|status| status.complains) {
            let complaints = agreement::exchange(&shared.comm, complaint)?;
            return Err(Error::Step { step, complaints });
        }
        let complaints = self.out_of_step(&statuses);
        if !complaints.is_empty() {
            return Err(Error::Step { step, complaints });
        }
        if shared.options.unused == Unused::Refuse
            || !statuses.iter().any(|status| status.has_unused)
        {
            self.remember_static(Vec::new());
            return Ok((statuses, Vec::new()));
        }
        // How many ranks have a gradient, for each parameter.
        let mut users = vec![1_u32; shared.model.parameters.len()];
        for &parameter in missing {
            users[parameter] = 0;
        }
        shared.comm.all_reduce(&mut users, ReduceOp::Sum)?;
        let alive = statuses.iter().filter(|status| status.alive).count() as u32;
        let unused: Vec<usize> =
            (0..users.len()).filter(|&parameter| users[parameter] == 0).collect();
        if shared.options.unused == Unused::Static {
            let differs = |parameter: &usize| users[*parameter] != 0 && users[*parameter] != alive;
            let differing: Vec<usize> = (0..users.len()).filter(differs).collect();
            if !differing.is_empty() {
                let here: Vec<usize> =
                    differing.into_iter().filter(|p| missing.contains(p)).collect();
                let complaint = (!here.is_empty()).then(|| {
                    let names = shared.model.names(&here, NAMED);
                    format!("does not use {names}, but other ranks do: with unused: static all ranks use the same parameters")
                });
                let complaints = agreement::exchange(&shared.comm, complaint.as_deref())?;
                return Err(Error::Step { step, complaints });
            }
            self.remember_static(unused.clone());
        }
        Ok((statuses, unused))
    }

    fn remember_static(&self, unused: Vec<usize>) {
        if self.shared.options.unused == Unused::Static {
            lock(&self.arrangement).unused.get_or_insert(unused);
        }
    }

    /// Ranks that are elsewhere than the first one: in another step, or after another number of passes. All ranks come
    /// to the same result.
    fn out_of_step(&self, statuses: &[Status]) -> Vec<Complaint> {
        let place = |status: &Status| match self.shared.options.averaging {
            Averaging::Ranks => (status.step, status.passes),
            Averaging::Samples => (status.step, 0),
        };
        let Some(first) = statuses.iter().position(|status| status.alive) else {
            return Vec::new();
        };
        let (expected, live) =
            (&statuses[first], statuses.iter().enumerate().filter(|(_, s)| s.alive));
        live.filter(|(_, status)| place(status) != place(expected))
            .map(|(rank, status)| Complaint {
                rank,
                message: format!(
                    "is in step {} after {} backward passes, rank {first} in step {} after {}: all ranks must accumulate and reduce in the same passes",
                    status.step, status.passes, expected.step, expected.passes
                ),
            })
            .collect()
    }

    fn report(
        &self,
        progress: &Progress,
        statuses: &[Status],
        backward_ended: Instant,
        unused: Vec<usize>,
    ) -> StepReport {
        let times = |status: &Status| RankTimes {
            compute: status.local.saturating_sub(status.input),
            input: status.input,
            joined: !status.alive,
        };
        let rank = self.shared.comm.rank();
        let slowest =
            (0..statuses.len()).max_by_key(|&rank| (statuses[rank].local, usize::MAX - rank));
        let slowest = slowest.unwrap_or(rank);
        let exposed = backward_ended.elapsed();
        let late = statuses[slowest].local.saturating_sub(statuses[rank].local);
        let hidden = progress
            .spans
            .iter()
            .map(|span| span.end.min(backward_ended).saturating_duration_since(span.start));
        let broken =
            || statuses.iter().enumerate().filter_map(|(rank, s)| Some((rank, s.non_finite?)));
        let own = broken().find(|(_, broken)| broken.own);
        let non_finite = own.or_else(|| broken().next()).and_then(|(rank, broken)| {
            let parameter = self.shared.model.parameters.get(broken.parameter)?.name.clone();
            Some(NonFinite { rank: broken.own.then_some(rank), parameter })
        });
        StepReport {
            step: progress.step,
            synchronised: true,
            samples: statuses.iter().map(|status| status.samples).sum(),
            compute: times(&statuses[rank]).compute,
            input: statuses[rank].input,
            hidden: hidden.sum(),
            exposed,
            waiting: late.min(exposed),
            reducer: progress.own,
            copying: progress.copying,
            copied_bytes: progress.copied_bytes,
            sent_bytes: progress.sent_bytes,
            slowest,
            ranks: statuses.iter().map(times).collect(),
            non_finite,
            checked: self.shared.options.check_finite,
            unused,
            spans: progress.spans.clone(),
            begun: progress.since,
            backward_ended,
        }
    }
}

impl Progress {
    /// Whatever came of it, the step is over.
    fn end_step(&mut self) {
        self.step += 1;
        self.pass = None;
        self.window = Window::default();
        self.complaint = None;
        self.non_finite = None;
        self.sent_bytes = 0;
        self.own = Duration::ZERO;
        self.copying = Duration::ZERO;
        self.copied_bytes = 0;
        self.input = Duration::ZERO;
        self.since = Instant::now();
    }
}

/// The report of a pass that did not communicate.
fn accumulated(progress: &Progress, backward_ended: Instant) -> StepReport {
    let local = backward_ended.saturating_duration_since(progress.since);
    StepReport {
        step: progress.step,
        synchronised: false,
        samples: progress.window.samples,
        compute: local.saturating_sub(progress.input),
        input: progress.input,
        hidden: Duration::ZERO,
        exposed: Duration::ZERO,
        waiting: Duration::ZERO,
        reducer: progress.own,
        copying: progress.copying,
        copied_bytes: progress.copied_bytes,
        sent_bytes: 0,
        slowest: 0,
        ranks: Vec::new(),
        non_finite: None,
        checked: false,
        unused: Vec::new(),
        spans: Vec::new(),
        begun: progress.since,
        backward_ended,
    }
}
