//! Ranks that have run out of input: see [`Communicator::join`].

mod board;
mod ledger;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use annulus_plan::{Collective, Rank};

pub(super) use board::{Board, Joining};
pub(super) use ledger::{Arrival, Numbered};

use super::engine::{Engine, Operation};
use super::queue::Work;
use super::{Communicator, Shared};
use crate::Error;
use crate::reduce;
use crate::scratch::Scratch;
use board::Task;

/// What became of a [`Communicator::join`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Joined {
    /// The rank that joined last, the same on all ranks: it has seen the most input, so that its model is the one to
    /// [broadcast](Communicator::broadcast).
    pub last: Rank,
    /// All ranks, in the order in which they joined, the same on all.
    pub order: Vec<Rank>,
    /// How many collectives of the others this rank answered.
    pub answered: u64,
}

impl Communicator {
    /// Says that this rank has run out of input, and answers the collectives of the others with the identity element of their
    /// operation until all ranks have joined. Then it returns, on all ranks.
    ///
    /// So ranks with unequal numbers of batches finish together, and nobody waits in an all-reduce for one that has ended:
    ///
    /// ```
    /// use annulus::{Communicator, ReduceOp};
    ///
    /// let ranks = Communicator::local(3)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &ranks {
    ///         threads.spawn(move || {
    ///             // Rank 0 has one batch, rank 1 has two, rank 2 three.
    ///             let mut steps = Vec::new();
    ///             for _ in 0..=comm.rank() {
    ///                 let mut sum = [1.0_f32];
    ///                 comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    ///                 steps.push(sum[0]);
    ///             }
    ///             assert_eq!(steps, [3.0, 2.0, 1.0][..=comm.rank()]);
    ///             let joined = comm.join()?;
    ///             assert_eq!(joined.last, 2);
    ///             // The communicator goes on as before.
    ///             let mut model = [comm.rank() as f32];
    ///             comm.broadcast(&mut model, joined.last)?;
    ///             assert_eq!(model, [2.0]);
    ///             Ok::<_, annulus::Error>(())
    ///         });
    ///     }
    /// });
    /// # Ok::<(), annulus::Error>(())
    /// ```
    ///
    /// What the ranks that have joined contribute:
    ///
    /// | call | contribution |
    /// |---|---|
    /// | sum, avg, premul-sum | 0; an average still divides by the number of all ranks |
    /// | prod | 1 |
    /// | min, max | the type's greatest and least value; for floats a NaN, which loses against every number |
    /// | all-gather, gather, all-to-all | zeros |
    /// | broadcast, scatter, reduce to it | nothing; what it receives is dropped |
    ///
    /// A joined rank cannot be the root of a broadcast or a scatter, nor take part in sends, receives, all-to-all-v and
    /// splits: these return [`Error::RankJoined`] to whoever calls them, and break the communicator on all ranks.
    ///
    /// Calls that were queued before run first. Blocks without a deadline, asleep, as long as the others are there:
    /// [`Config::timeout`](crate::Config::timeout) bounds each collective that this rank answers, but not the time until the next
    /// one begins. Another thread's calls on this communicator wait until all ranks have joined.
    ///
    /// # Errors
    /// Those that break the communicator, among them [`Error::RankLost`] when a rank is lost, or leaves without having
    /// joined; [`Error::CutOff`] when the root's process, which passes on who has joined, ends after this rank has.
    pub fn join(&self) -> Result<Joined, Error> {
        if self.queue.is_empty() {
            return self.engine().join(&self.shared);
        }
        let joined = Arc::new(OnceLock::new());
        // SAFETY: it has no memory of the caller's.
        unsafe { self.queue.push(Work::Join(joined.clone())) }.wait()?;
        Ok(joined.get().expect("it was set before the work ended").clone())
    }
}

/// What an engine needs to answer for a rank that has joined.
#[derive(Default)]
pub(super) struct Answers {
    /// Identity elements.
    input: Scratch,
    /// What is in `input`: the element, and for how many bytes.
    filled: Option<([u8; 8], usize, usize)>,
    output: Scratch,
    /// Whether the call under way is another rank's.
    pub(super) answering: bool,
}

impl Answers {
    /// At least `bytes` bytes of elements like the first `size` bytes of `element`.
    fn identities(
        &mut self,
        element: [u8; 8],
        size: usize,
        bytes: usize,
        rank: Rank,
    ) -> Result<*const u8, Error> {
        let input = self.input.at_least(bytes, rank)?;
        match self.filled {
            Some((of, of_size, filled)) if (of, of_size) == (element, size) && filled >= bytes => {}
            _ => {
                for offset in (0..bytes).step_by(size) {
                    // SAFETY: the memory is `bytes` long, a multiple of the size, and nobody else's.
                    unsafe { input.add(offset).copy_from(element.as_ptr(), size) };
                }
                self.filled = Some((element, size, bytes));
            }
        }
        Ok(input)
    }
}

impl Engine {
    /// See [`Communicator::join`].
    pub(super) fn join(&mut self, shared: &Shared) -> Result<Joined, Error> {
        if shared.health.is_broken() {
            return Err(self.broken(shared));
        }
        if shared.world == 1 {
            return Ok(Joined { last: 0, order: vec![0], answered: 0 });
        }
        let joining = &shared.joining;
        joining.join(self.sequence)?;
        let mut answered = 0;
        loop {
            match joining.wait(self.sequence) {
                Ok(Task::Answer(call)) => {
                    self.answer(shared, call)?;
                    answered += 1;
                }
                Ok(Task::Over { order, sequence }) => {
                    self.sequence = sequence;
                    self.unsynchronised = false;
                    let last = *order.last().expect("a communicator has ranks");
                    return Ok(Joined { last, order, answered });
                }
                Err(_) => return Err(self.broken(shared)),
            }
        }
    }

    /// Takes part in another rank's call with nothing to contribute.
    fn answer(&mut self, shared: &Shared, call: Numbered) -> Result<(), Error> {
        if let Some(error) = shared.joining.refuse(call) {
            return Err(shared.joining.break_with(error));
        }
        let Numbered { sequence, call } = call;
        let Some(collective) = Collective::from_fingerprint(call, shared.world) else {
            let what = format!("{} is a call that", call.describe());
            let remedy = "run the same version on all ranks";
            let error = Error::RankJoined { rank: shared.rank, joined: shared.rank, what, remedy };
            return Err(shared.joining.break_with(error));
        };
        let dtype = collective.dtype();
        let element = collective.op().map_or([0; 8], |op| reduce::identity(op, dtype));
        let (rank, size) = (shared.rank, dtype.size());
        let (input, output) = (collective.input_bytes(rank), collective.output_bytes(rank));
        let memory = self.answers.identities(element, size, input, rank).and_then(|input| {
            let output = self.answers.output.at_least(output, rank)?;
            Ok((input, output))
        });
        // The others are in the call, and would wait for this rank.
        let (input, output) = memory.map_err(|error| shared.break_with(error))?;
        self.sequence = sequence - 1;
        self.answers.answering = true;
        // SAFETY: the memory is this engine's own, and as large as the call says.
        let outcome = unsafe {
            self.run(shared, &Operation { call: collective, factor: None, input, output })
        };
        self.answers.answering = false;
        // Its buffers are not the user's, nor has it his factor.
        self.last = None;
        outcome
    }
}
