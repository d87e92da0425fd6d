//! Which choices are worth comparing, and how a choice is cut to a call's size.

use crate::algorithms::{Algorithm, Choice, Protocol};
use crate::topology::Topology;
use crate::{Collective, CollectiveKind};

use super::Overrides;

/// Calls of more bytes gain nothing from the low-latency protocol on any link.
const LARGEST_LOW_LATENCY: usize = 64 << 10;

/// A one-shot message goes in one piece, which the receiver reduces only when it is whole: measured over loopback, two-shot with
/// chunks is faster from here on.
const LARGEST_WHOLE_MESSAGE: usize = 256 << 10;

/// Where ranks take turns on cores, two-shot's many messages each cost a turn. From so many bytes over all ranks on, tree and ring
/// are faster: measured on two cores, 4 ranks at 256 KiB 90 µs against 137, 8 ranks at 32 KiB 67 against 115; but 4
/// ranks at 32 KiB 46 against 31.
const LARGEST_CROWDED_EXCHANGE: usize = 256 << 10;

/// With more ranks it is slower at any size: 8 ranks at 4 KiB 44 µs against 62.
const MOST_CROWDED_RANKS: usize = 5;

/// With that many ranks one-shot too is only for the smallest calls: 8 ranks at 512 bytes 27 µs against 42 of tree, at 2 KiB 49
/// against 44.
const LARGEST_CROWDED_ONE_SHOT: usize = 1 << 10;

/// More links than this take too much memory and too long to set up, unless nothing else does it.
const MOST_DIRECT_RANKS: usize = 64;

/// Chunks are not refined below this.
const SMALLEST_CHUNK: usize = 4 << 10;

/// Into how many equal parts an algorithm cuts a channel's share before it cuts chunks.
pub(super) fn parts(algorithm: Algorithm, kind: CollectiveKind, world: usize) -> usize {
    match (algorithm, kind) {
        (Algorithm::Ring | Algorithm::TwoShot, CollectiveKind::AllReduce) => world.max(1),
        (Algorithm::TwoShot, CollectiveKind::Broadcast) => world.saturating_sub(1).max(1),
        (Algorithm::Tree, _) | (Algorithm::HalvingDoubling, CollectiveKind::AllReduce) => 2,
        _ => 1,
    }
}

/// The choice with a chunk that is no larger than the call's messages.
pub(super) fn fitted(
    choice: Choice,
    call: &Collective,
    topology: &Topology,
    overrides: &Overrides,
) -> Choice {
    let parts = parts(choice.algorithm, call.kind(), call.world());
    let lines = call.bytes().div_ceil(64).max(1);
    let message = lines.div_ceil(choice.channels).div_ceil(parts) * 64;
    if must_fit_one_chunk(choice.algorithm, call.kind()) {
        let largest = largest_chunk(topology.max_chunk_bytes(), topology, overrides);
        return Choice { chunk_bytes: message.min(largest), ..choice };
    }
    if overrides.chunk.is_some() {
        return choice;
    }
    let pays = topology.slowest_link().chunk_for(call.bytes()).max(64);
    Choice { chunk_bytes: choice.chunk_bytes.min(message).min(pays), ..choice }
}

/// One-shot all-reduce sends before it receives: a link must take the whole message.
pub(super) fn must_fit_one_chunk(algorithm: Algorithm, kind: CollectiveKind) -> bool {
    (algorithm, kind) == (Algorithm::OneShot, CollectiveKind::AllReduce)
}

/// The chunk that was asked for, or else `preferred`, as far as the links take it.
pub(super) fn largest_chunk(preferred: usize, topology: &Topology, overrides: &Overrides) -> usize {
    let asked = overrides.chunk.as_ref().map_or(preferred, |chunk| chunk.bytes);
    (asked / 64).max(1).saturating_mul(64).min(topology.max_chunk_bytes())
}

/// Why a choice is not worth its simulation, as long as there are others.
pub(super) fn objection(choice: &Choice, call: &Collective, topology: &Topology) -> Option<String> {
    let Choice { algorithm, protocol, .. } = *choice;
    let small_pieces_pay = topology.slowest_link().gains_from_small_pieces();
    let low_latency = protocol == Protocol::LowLatency;
    if low_latency && call.bytes() > LARGEST_LOW_LATENCY {
        return Some(format!("low-latency is for calls of up to {LARGEST_LOW_LATENCY} bytes"));
    }
    if low_latency && !small_pieces_pay {
        return Some("each small piece would be a system call on these links".to_owned());
    }
    if must_fit_one_chunk(algorithm, call.kind())
        && !low_latency
        && (small_pieces_pay || call.bytes() > LARGEST_WHOLE_MESSAGE)
    {
        return Some("two-shot moves as much in large pieces and reduces less".to_owned());
    }
    let bytes_of_all = call.bytes().saturating_mul(call.world());
    if (algorithm, call.kind()) == (Algorithm::TwoShot, CollectiveKind::AllReduce)
        && topology.is_crowded()
        && (call.world() > MOST_CROWDED_RANKS || bytes_of_all >= LARGEST_CROWDED_EXCHANGE)
    {
        return Some("ranks take turns on cores, and each of its messages costs a turn".to_owned());
    }
    if (algorithm, call.kind()) == (Algorithm::OneShot, CollectiveKind::AllReduce)
        && topology.is_crowded()
        && call.world() > MOST_CROWDED_RANKS
        && call.bytes() > LARGEST_CROWDED_ONE_SHOT
    {
        return Some("ranks take turns on cores, and each of its messages costs a turn".to_owned());
    }
    let direct = matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot);
    if direct && call.world() > MOST_DIRECT_RANKS {
        return Some(format!("it opens {} links for each rank", call.world() - 1));
    }
    None
}

/// How many channels to compare. More than one pays where one link does not fill what lies
/// between hosts.
pub(super) fn channels(topology: &Topology, overrides: &Overrides) -> Vec<usize> {
    let network = topology.network();
    let crosses = topology.hosts().len() > 1 && network.stream_bandwidth < network.bandwidth;
    let candidates: &[usize] = if crosses { &[1, 2, 4, 8] } else { &[1] };
    let Some(allowed) = &overrides.channels else { return candidates.to_vec() };
    let within = candidates.iter().copied().filter(|n| (allowed.least..=allowed.most).contains(n));
    let within: Vec<_> = within.collect();
    if within.is_empty() { vec![allowed.least] } else { within }
}

/// Smaller chunks than a choice has, for a second look at the best.
pub(super) fn smaller_chunks(choice: &Choice, overrides: &Overrides) -> Vec<usize> {
    if choice.protocol == Protocol::LowLatency || overrides.chunk.is_some() {
        return Vec::new();
    }
    let halves = [2, 4, 8].map(|part| choice.chunk_bytes / part / 64 * 64);
    halves.into_iter().filter(|&chunk| chunk >= SMALLEST_CHUNK).collect()
}
