//! The proof of a call: runs the plans of all ranks symbolically and says what is wrong with them.
//!
//! [`verify`] proves for the plans of one collective, [`verify_exchange`] for those of an
//! [`Exchange`], that
//!
//! * **provenance**: each output element holds what the call promises; a reduction holds each
//!   rank's contribution exactly once, in one order that is the same on every rank that holds it, and is
//!   finished exactly once, at its last combination; a contribution is read through [`Buffer::Input`](crate::Buffer::Input),
//!   and nothing else is; no undefined byte is read;
//! * **progress**: no lane waits for ever. Lanes are sequential and links bounded, which makes
//!   the plans a Kahn network: whether it comes to its end does not depend on the schedule, so
//!   one schedule decides;
//! * **links**: each is written by one lane and read by one lane, and carries what the reader expects;
//! * **bounds**: spans lie within their buffers, on element boundaries, and no input is written;
//! * **order**: any two accesses of the same bytes by different lanes, one of them a write, are
//!   ordered by messages. Waiting for room in a link does not count as order. Where a plan allows
//!   references ([`Plan::by_reference`]), the bytes of a `Send` count as read until they are received.
//!
//! Order is proved for pieces of [`Plan::chunk_bytes`]; a link that cuts finer keeps it unless two
//! lanes share bytes of one chunk.
//!
//! ```
//! use annulus_plan::verifier::{Fault, Limits, verify};
//! use annulus_plan::{Buffer, Collective, DataType, Instruction, Lane, LinkId, Plan, Span};
//!
//! let call = Collective::broadcast(2, DataType::U8, 0, 8).expect("valid");
//! let span = |buffer| Span { buffer, offset: 0, bytes: 8 };
//! let link = |peer| LinkId { peer, index: 0 };
//! let plan = |rank, instructions| Plan {
//!     rank,
//!     world: 2,
//!     lanes: vec![Lane { channel: 0, instructions }],
//!     scratch_bytes: 0,
//!     chunk_bytes: 64,
//!     by_reference: true,
//! };
//! let root = vec![
//!     Instruction::Copy { src: span(Buffer::Input), dst: span(Buffer::Output) },
//!     Instruction::Send { to: link(1), src: span(Buffer::Input) },
//! ];
//! let leaf = vec![Instruction::Recv { from: link(0), dst: span(Buffer::Output) }];
//! let plans = [plan(0, root.clone()), plan(1, leaf)];
//! assert!(verify(&call, &plans, &Limits::default()).is_ok());
//!
//! // The leaf forgets to receive.
//! let plans = [plan(0, root), plan(1, vec![])];
//! assert!(matches!(
//!     verify(&call, &plans, &Limits::default()),
//!     Err(Fault::Unreceived { .. })
//! ));
//! ```

mod contents;
mod fault;
mod layout;
mod memory;
mod order;
mod progress;
mod structure;
mod value;

pub use fault::{Blocked, Fault, Link, Place, Wait};

use crate::{Collective, CollectiveKind, Exchange, MIN_LINK_CHUNKS, Plan};
use layout::Layout;
use progress::Run;
use structure::Program;

/// What the proof may assume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many pieces of [`Plan::chunk_bytes`] a link holds that nobody has received; a piece counts in full
    /// however short it is. Plans must make do with [`MIN_LINK_CHUNKS`], unless they cut shorter than the
    /// chunk that their links are made for.
    pub link_chunks: usize,
    /// Whether executors hand out references where a plan allows it ([`Plan::by_reference`]). When
    /// false, that claim is not checked.
    pub references: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { link_chunks: MIN_LINK_CHUNKS, references: true }
    }
}

/// What was proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Messages between ranks.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Pairs of accesses to the same memory that only messages order.
    pub orderings: usize,
}

/// Proves the plans of all ranks, `plans[r]` of rank r, for `call`. If `call` is in place, it is on every rank.
///
/// # Errors
/// The first [`Fault`] found.
pub fn verify(call: &Collective, plans: &[Plan], limits: &Limits) -> Result<Report, Fault> {
    verify_each(&vec![*call; call.world()], plans, limits)
}

/// The same where ranks differ in whether they are in place: `calls[r]` is rank r's call.
///
/// # Errors
/// The first [`Fault`] found; [`Fault::Calls`] if the calls differ in anything else.
pub fn verify_each(calls: &[Collective], plans: &[Plan], limits: &Limits) -> Result<Report, Fault> {
    let Some(call) = calls.first() else {
        return Err(Fault::World { plans: plans.len(), world: 0 });
    };
    let same = |other: &Collective| other.with_in_place(false) == call.with_in_place(false);
    if let Some(rank) = calls.iter().position(|other| !same(other)) {
        return Err(Fault::Calls { rank, call: calls[rank].to_string(), first: call.to_string() });
    }
    if calls.len() != call.world() {
        return Err(Fault::World { plans: calls.len(), world: call.world() });
    }
    let layouts: Vec<Layout> = calls
        .iter()
        .zip(plans)
        .enumerate()
        .map(|(rank, (call, plan))| Layout::of_collective(call, rank, plan.scratch_bytes))
        .collect();
    let rules = Rules {
        unit: call.dtype().size(),
        world: call.world(),
        reduces: call.kind().reduces(),
        empty_messages: call.kind() == CollectiveKind::Barrier,
    };
    let run = prove(&rules, &layouts, plans, limits)?;
    match call.kind() {
        CollectiveKind::Barrier => run.history.everybody_hears_of_everybody(call.world())?,
        _ => contents::check_collective(calls, &layouts, &run)?,
    }
    Ok(run.report())
}

/// Proves the plans of all ranks, `plans[r]` of rank r, for groups of sends and receives or an all-to-all-v:
/// `exchanges[r]` is rank r's. A rank's buffers do not overlap.
///
/// # Errors
/// The first [`Fault`] found; [`Fault::Unpaired`] if a send has no receive of its length, or the reverse.
pub fn verify_exchange(
    exchanges: &[Exchange],
    plans: &[Plan],
    limits: &Limits,
) -> Result<Report, Fault> {
    let world = exchanges.len();
    for (position, exchange) in exchanges.iter().enumerate() {
        if exchange.rank() != position || exchange.world() != world {
            let (rank, world) = (exchange.rank(), exchange.world());
            return Err(Fault::Header { position, rank, world });
        }
    }
    let arrivals = contents::arrivals(exchanges)?;
    let layouts: Vec<Layout> = exchanges
        .iter()
        .zip(plans)
        .map(|(exchange, plan)| Layout::of_exchange(exchange, plan.scratch_bytes))
        .collect();
    let rules = Rules { unit: 1, world, reduces: false, empty_messages: false };
    let run = prove(&rules, &layouts, plans, limits)?;
    contents::check_exchange(&arrivals, &layouts, &run)?;
    Ok(run.report())
}

/// What the kind of call allows its plans.
struct Rules {
    /// Element size in bytes.
    unit: usize,
    world: usize,
    reduces: bool,
    empty_messages: bool,
}

/// Everything but the final contents.
fn prove(rules: &Rules, layouts: &[Layout], plans: &[Plan], limits: &Limits) -> Result<Run, Fault> {
    let program = Program::check(rules, layouts, plans)?;
    let run = Run::to_the_end(program, layouts, rules, limits)?;
    run.check_order(layouts)?;
    Ok(run)
}
