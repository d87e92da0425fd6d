//! Compares the candidates for a class of calls.

use crate::algorithms::{Algorithm, Choice, Protocol};
use crate::topology::Topology;
use crate::{Collective, CollectiveKind};

use super::candidates::{
    channels, fitted, largest_chunk, must_fit_one_chunk, objection, smaller_chunks,
};
use super::class::Class;
use super::cost::{Cost, Unknown};
use super::overrides::Restriction;
use super::{Candidate, Overrides, Verdict};

/// How many of the best get a second look with other chunks and channels. Each look at thousands of
/// ranks takes a good part of a second.
const fn second_looks(world: usize) -> usize {
    match world {
        0..=64 => 2,
        65..=512 => 1,
        _ => 0,
    }
}

/// Predictions that differ by less than this factor are equal.
const TOLERANCE: f64 = 1.05;

/// Between equal times the first wins: the fewest steps, then the least waiting for neighbours.
const BY_PREFERENCE: [Algorithm; Algorithm::ALL.len()] = [
    Algorithm::OneShot,
    Algorithm::TwoShot,
    Algorithm::HalvingDoubling,
    Algorithm::Ring,
    Algorithm::Tree,
    Algorithm::Pairwise,
    Algorithm::Dissemination,
];

/// The outcome of a comparison.
pub(super) struct Survey {
    /// One is chosen, unless nothing can be built.
    pub(super) candidates: Vec<Candidate>,
    pub(super) notes: Vec<String>,
}

impl Survey {
    pub(super) fn new(class: Class, topology: &Topology, overrides: &Overrides) -> Self {
        let mut survey = Self { candidates: Vec::new(), notes: Vec::new() };
        let call = match class.call(class.bytes()) {
            Ok(call) => call,
            Err(error) => {
                survey.notes.push(error.to_string());
                return survey;
            }
        };
        let open = survey.offers(&call, topology, overrides);
        let timed = survey.timed(open, class, &call, topology, overrides);
        if !timed.is_empty() {
            survey.decide(timed);
            return survey;
        }

        survey.note_ignored(overrides, call.kind());
        let relaxed = overrides.without_selections();
        survey.candidates.clear();
        let open = survey.offers(&call, topology, &relaxed);
        let timed = survey.timed(open, class, &call, topology, &relaxed);
        survey.decide(timed);
        survey
    }

    /// The choice of the class; chunks are still to be fitted to the call.
    pub(super) fn choice(&self) -> Choice {
        let is_chosen =
            |candidate: &&Candidate| matches!(candidate.verdict, Verdict::Chosen { .. });
        let chosen = self.candidates.iter().find(is_chosen);
        chosen.and_then(|candidate| candidate.choice).unwrap_or(LAST_RESORT)
    }

    fn note_ignored(&mut self, overrides: &Overrides, kind: CollectiveKind) {
        let unsupported = self.candidates.iter().find_map(|candidate| match &candidate.verdict {
            Verdict::Unsupported { reason } if candidate.choice.is_some() => {
                Some(format!(" ({}: {reason})", candidate.algorithm))
            }
            _ => None,
        });
        let why = unsupported.unwrap_or_default();
        let algorithms = overrides.algorithms(kind).map(|restriction| &restriction.origin);
        let protocols = overrides.protocols(kind).map(|restriction| &restriction.origin);
        for origin in [algorithms, protocols].into_iter().flatten() {
            self.notes.push(format!("{origin} leaves nothing for this {kind} and is ignored{why}"));
        }
    }

    /// One choice for each algorithm and protocol that knows the collective and that the overrides allow.
    fn offers(
        &mut self,
        call: &Collective,
        topology: &Topology,
        overrides: &Overrides,
    ) -> Vec<Choice> {
        let kind = call.kind();
        let mut open = Vec::new();
        for algorithm in BY_PREFERENCE {
            if !algorithm.supports(kind) {
                let reason = "it does not know this collective".to_owned();
                self.rule_out(algorithm, None, Verdict::Unsupported { reason });
                continue;
            }
            if let Some(by) = forbidden(overrides.algorithms(kind), algorithm) {
                self.rule_out(algorithm, None, Verdict::Excluded { by });
                continue;
            }
            for protocol in [Protocol::Simple, Protocol::LowLatency] {
                match forbidden(overrides.protocols(kind), protocol) {
                    Some(by) => self.rule_out(algorithm, Some(protocol), Verdict::Excluded { by }),
                    None => open.push(offer(algorithm, protocol, call, topology, overrides)),
                }
            }
        }
        open
    }

    /// Predicted times of those that are worth it, then of variations of the best.
    fn timed(
        &mut self,
        open: Vec<Choice>,
        class: Class,
        call: &Collective,
        topology: &Topology,
        overrides: &Overrides,
    ) -> Vec<(Choice, f64)> {
        let regime = Cost::regime(topology, call);
        let cost = Cost::new(class, &regime);
        let mut timed = Vec::new();
        let (worthwhile, doubtful): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|choice| objection(choice, call, topology).is_none());
        for choice in worthwhile {
            self.time(&cost, choice, &mut timed);
        }
        for choice in doubtful {
            match objection(&choice, call, topology).filter(|_| !timed.is_empty()) {
                Some(reason) => self.skip(choice, Verdict::Skipped { reason }),
                None => self.time(&cost, choice, &mut timed),
            }
        }
        let channels = channels(topology, overrides);
        let mut best = timed.clone();
        best.sort_by(|a, b| a.1.total_cmp(&b.1));
        for (best, _) in best.into_iter().take(second_looks(call.world())) {
            for chunk_bytes in smaller_chunks(&best, overrides) {
                self.time(&cost, Choice { chunk_bytes, ..best }, &mut timed);
            }
            for &channels in &channels[1..] {
                let more = fitted(Choice { channels, ..best }, call, topology, overrides);
                self.time(&cost, more, &mut timed);
            }
        }
        timed
    }

    fn time(&mut self, cost: &Cost<'_>, choice: Choice, timed: &mut Vec<(Choice, f64)>) {
        match cost.seconds(&choice) {
            Ok(seconds) => timed.push((choice, seconds)),
            Err(Unknown::Unsupported(reason)) => self.skip(choice, Verdict::Unsupported { reason }),
            Err(Unknown::Unpredicted(reason)) => self.skip(choice, Verdict::Skipped { reason }),
        }
    }

    /// The chosen one first, then by time. `timed` is in the order of preference, for each algorithm and protocol.
    fn decide(&mut self, mut timed: Vec<(Choice, f64)>) {
        let least = timed.iter().map(|&(_, seconds)| seconds).fold(f64::INFINITY, f64::min);
        let equal = |&(_, seconds): &(Choice, f64)| seconds <= least * TOLERANCE;
        let preference = |&&(choice, _): &&(Choice, f64)| {
            BY_PREFERENCE.iter().position(|&algorithm| algorithm == choice.algorithm)
        };
        let Some(&(chosen, seconds)) =
            timed.iter().filter(|timed| equal(timed)).min_by_key(preference)
        else {
            // Better a choice without a prediction than none.
            let is_skipped = |candidate: &&mut Candidate| {
                candidate.choice.is_some() && matches!(candidate.verdict, Verdict::Skipped { .. })
            };
            let skipped = self.candidates.iter_mut().find(is_skipped);
            if let Some(candidate) = skipped {
                candidate.verdict = Verdict::Chosen { seconds: None };
            }
            return;
        };
        timed.retain(|&(choice, _)| choice != chosen);
        timed.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut ordered =
            vec![Candidate::of_choice(chosen, Verdict::Chosen { seconds: Some(seconds) })];
        ordered.extend(timed.into_iter().map(|timed| {
            let (choice, other) = timed;
            let verdict = match equal(&timed) {
                true => Verdict::Equal { seconds: other },
                false => Verdict::Slower { seconds: other, by: other - seconds },
            };
            Candidate::of_choice(choice, verdict)
        }));
        self.candidates.splice(0..0, ordered);
    }

    fn skip(&mut self, choice: Choice, verdict: Verdict) {
        self.candidates.push(Candidate::of_choice(choice, verdict));
    }

    fn rule_out(&mut self, algorithm: Algorithm, protocol: Option<Protocol>, verdict: Verdict) {
        self.candidates.push(Candidate { algorithm, protocol, choice: None, verdict });
    }
}

/// Who forbids this one, if anybody does.
fn forbidden<T: PartialEq>(restriction: Option<&Restriction<T>>, one: T) -> Option<String> {
    let restriction = restriction.filter(|restriction| !restriction.allowed.contains(&one))?;
    Some(restriction.origin.clone())
}

/// For collectives that no algorithm knows; there are none.
const LAST_RESORT: Choice = Choice {
    algorithm: Algorithm::OneShot,
    protocol: Protocol::Simple,
    channels: 1,
    chunk_bytes: 64 << 10,
};

/// The first choice for an algorithm and protocol: the fewest channels, the largest chunk that pays.
fn offer(
    algorithm: Algorithm,
    protocol: Protocol,
    call: &Collective,
    topology: &Topology,
    overrides: &Overrides,
) -> Choice {
    let preferred = match call.kind() {
        CollectiveKind::AllReduce if must_fit_one_chunk(algorithm, call.kind()) => {
            topology.max_chunk_bytes()
        }
        _ => topology.slowest_link().chunk_for(call.bytes()),
    };
    let chunk_bytes = largest_chunk(preferred, topology, overrides);
    let channels = channels(topology, overrides)[0];
    let choice = Choice { algorithm, protocol, channels, chunk_bytes };
    fitted(choice, call, topology, overrides)
}
