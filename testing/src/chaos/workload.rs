//! Calls that follow from a seed, with results that are known exactly.

use annulus::{Communicator, Element, Error, ReduceOp};

use super::random::Random;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    Failed(#[from] Error),
    /// The one thing that must never happen.
    #[error("{call} of {count} elements: element {index} is {got}, not {expected}")]
    Wrong { call: &'static str, count: usize, index: usize, got: String, expected: String },
}

/// The numbers of an element type that hold every result here exactly.
trait Number: Element + From<u8> + PartialEq + std::fmt::Debug {}
impl<T: Element + From<u8> + PartialEq + std::fmt::Debug> Number for T {}

/// Makes the `step`-th call of `seed`, the same on all ranks of `comm`.
pub(super) fn step(comm: &Communicator, seed: u64, step: u64) -> Result<(), StepError> {
    let mut random = Random::new(seed, step + 1);
    if comm.world_size() > 1 && random.chance(12) {
        // Ranks of equal parity, counted from either end.
        let key = if random.chance(2) { comm.rank() as i64 } else { -(comm.rank() as i64) };
        let color = (comm.rank() % 2) as u32;
        let part = comm.split(Some(color), key)?;
        let part = part.as_ref().unwrap_or(comm);
        for _ in 0..random.between(1, 3) {
            call(part, &mut random.clone())?;
            random.next();
        }
        return Ok(());
    }
    call(comm, &mut random)
}

fn call(comm: &Communicator, random: &mut Random) -> Result<(), StepError> {
    match random.below(5) {
        0 => call_of::<u8>(comm, random),
        1 => call_of::<i32>(comm, random),
        2 => call_of::<i64>(comm, random),
        3 => call_of::<f32>(comm, random),
        _ => call_of::<f64>(comm, random),
    }
}

/// What rank `rank` contributes: small enough that sums of eight ranks fit into a byte.
fn value<T: Number>(rank: usize, index: usize, salt: usize) -> T {
    T::from(((rank * 31 + index * 7 + salt) % 16) as u8)
}

fn contribution<T: Number>(rank: usize, count: usize, salt: usize) -> Vec<T> {
    (0..count).map(|index| value(rank, index, salt)).collect()
}

/// The reduction of all ranks' contributions at `index`.
fn reduced<T: Number>(world: usize, index: usize, salt: usize, op: ReduceOp) -> T {
    let all = (0..world).map(|rank| ((rank * 31 + index * 7 + salt) % 16) as u8);
    T::from(match op {
        ReduceOp::Max => all.max().unwrap_or(0),
        ReduceOp::Min => all.min().unwrap_or(0),
        _ => all.sum(),
    })
}

fn check<T: Number>(
    call: &'static str,
    got: &[T],
    expected: impl Fn(usize) -> T,
) -> Result<(), StepError> {
    for (index, element) in got.iter().enumerate() {
        let expected = expected(index);
        if *element != expected {
            let (got_text, expected) = (format!("{element:?}"), format!("{expected:?}"));
            return Err(StepError::Wrong {
                call,
                count: got.len(),
                index,
                got: got_text,
                expected,
            });
        }
    }
    Ok(())
}

fn call_of<T: Number>(comm: &Communicator, random: &mut Random) -> Result<(), StepError> {
    let (rank, world) = (comm.rank(), comm.world_size());
    let count = if random.chance(25) { 60_000 } else { random.size(14) };
    let (root, salt) = (random.below(world), random.below(16));
    let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][random.below(3)];
    let mine = || contribution::<T>(rank, count, salt);
    let zero = || vec![T::from(0); count];
    match random.below(12) {
        0 => {
            let mut buffer = mine();
            comm.all_reduce(&mut buffer, op)?;
            check("all-reduce", &buffer, |index| reduced(world, index, salt, op))
        }
        1 => {
            let mut output = zero();
            comm.all_reduce_into(&mine(), &mut output, op)?;
            check("all-reduce out of place", &output, |index| reduced(world, index, salt, op))
        }
        2 => {
            let mut buffer = mine();
            comm.broadcast(&mut buffer, root)?;
            check("broadcast", &buffer, |index| value(root, index, salt))
        }
        3 => {
            let mut buffer = mine();
            comm.reduce(&mut buffer, op, root)?;
            let expected = |index| match rank == root {
                true => reduced(world, index, salt, op),
                false => value(rank, index, salt),
            };
            check("reduce", &buffer, expected)
        }
        4 => {
            let mut output = vec![T::from(0); count * world];
            comm.all_gather_into(&mine(), &mut output)?;
            check("all-gather", &output, |at| value(at / count, at % count, salt))
        }
        5 => {
            let mut output = zero();
            let input = contribution::<T>(rank, count * world, salt);
            comm.reduce_scatter_into(&input, &mut output, op)?;
            check("reduce-scatter", &output, |at| reduced(world, rank * count + at, salt, op))
        }
        6 => {
            let mut output = vec![T::from(0); count * world];
            let input = contribution::<T>(rank, count * world, salt);
            comm.all_to_all_into(&input, &mut output)?;
            let expected = |at: usize| value(at / count, rank * count + at % count, salt);
            check("all-to-all", &output, expected)
        }
        7 => {
            let mut output = vec![T::from(0); count * world];
            let given = (rank == root).then_some(&mut output[..]);
            comm.gather_into(&mine(), given, root)?;
            let expected = |at: usize| match rank == root {
                true => value(at / count, at % count, salt),
                false => T::from(0),
            };
            check("gather", &output, expected)
        }
        8 => {
            let input = contribution::<T>(root, count * world, salt);
            let mut output = zero();
            comm.scatter_into((rank == root).then_some(&input[..]), &mut output, root)?;
            check("scatter", &output, |at| value(root, rank * count + at, salt))
        }
        9 => {
            let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
            let (input, mut output) = (mine(), zero());
            comm.group(|group| {
                group.send(&input, next)?;
                group.recv(&mut output, previous)
            })?;
            check("send and receive", &output, |index| value(previous, index, salt))
        }
        10 => {
            let (mut first, mut second) = (mine(), mine());
            comm.scope(|scope| {
                let reducing = scope.all_reduce_async(&mut first, op)?;
                scope.broadcast_async(&mut second, root)?.wait()?;
                reducing.wait().map(drop)
            })??;
            check("queued all-reduce", &first, |index| reduced(world, index, salt, op))?;
            check("queued broadcast", &second, |index| value(root, index, salt))
        }
        _ => {
            let mut memory = comm.alloc::<T>(count)?;
            memory.copy_from_slice(&mine());
            comm.all_reduce(&mut memory, op)?;
            check("all-reduce in shared memory", &memory, |at| reduced(world, at, salt, op))
        }
    }
}
