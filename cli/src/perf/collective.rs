//! The collectives that are measured: what each moves, how it is called, and what must come out.

use annulus::{Communicator, Error, Rank};

use super::number::{Exact, Operator, input, reduced};

/// Which benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// `all_reduce_perf`
    AllReduce,
    /// `all_gather_perf`
    AllGather,
    /// `reduce_scatter_perf`
    ReduceScatter,
    /// `broadcast_perf`
    Broadcast,
    /// `reduce_perf`
    Reduce,
    /// `alltoall_perf`
    AllToAll,
    /// `sendrecv_perf`: each rank to the next.
    SendRecv,
    /// `gather_perf`
    Gather,
    /// `scatter_perf`
    Scatter,
}

impl Test {
    /// Name of the program.
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce_perf",
            Self::AllGather => "all_gather_perf",
            Self::ReduceScatter => "reduce_scatter_perf",
            Self::Broadcast => "broadcast_perf",
            Self::Reduce => "reduce_perf",
            Self::AllToAll => "alltoall_perf",
            Self::SendRecv => "sendrecv_perf",
            Self::Gather => "gather_perf",
            Self::Scatter => "scatter_perf",
        }
    }

    /// Name of the collective.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "all-to-all",
            Self::SendRecv => "send and receive",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
        }
    }

    pub(super) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    pub(super) fn rooted(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Whether there is an in-place form.
    pub(super) fn works_in_place(self) -> bool {
        !matches!(self, Self::AllToAll | Self::SendRecv)
    }

    /// Whether the size of a row is that of all ranks' parts together.
    fn divides(self) -> bool {
        matches!(
            self,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Gather | Self::Scatter
        )
    }

    /// The collective's count for a row of `bytes` bytes: as in nccl-tests, parts are whole multiples of 16 bytes.
    pub(super) fn count(self, bytes: usize, element: usize, world: usize) -> usize {
        let elements = bytes / element;
        if !self.divides() {
            return elements;
        }
        let grain = 16 / element;
        elements / world / grain * grain
    }

    /// The size column: bytes of the larger side.
    pub(super) fn size(self, count: usize, element: usize, world: usize) -> usize {
        count * element * if self.divides() { world } else { 1 }
    }

    /// Bus bandwidth over algorithm bandwidth, as nccl-tests defines it.
    pub(super) fn bus_factor(self, world: usize) -> f64 {
        let n = world as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::Broadcast | Self::Reduce | Self::SendRecv => 1.0,
            _ => (n - 1.0) / n,
        }
    }

    /// Elements of `rank`'s input and output.
    pub(super) fn lengths(self, count: usize, world: usize) -> (usize, usize) {
        match self {
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendRecv => (count, count),
            Self::AllGather | Self::Gather => (count, count * world),
            Self::ReduceScatter | Self::Scatter => (count * world, count),
            Self::AllToAll => (count * world, count * world),
        }
    }

    /// Bytes that all ranks of one host together must at least read and write: every input once, every
    /// output once.
    pub(super) fn traffic(self, count: usize, element: usize, world: usize) -> usize {
        let whole = count * element;
        match self {
            Self::AllReduce | Self::SendRecv => 2 * world * whole,
            Self::Broadcast | Self::Reduce => (world + 1) * whole,
            Self::AllGather | Self::ReduceScatter => (world + world * world) * whole,
            Self::AllToAll => 2 * world * world * whole,
            Self::Gather | Self::Scatter => 2 * world * whole,
        }
    }

    /// How `traffic` follows from the size column `N` and the number of ranks `n`, for people.
    pub(super) fn traffic_formula(self) -> &'static str {
        match self {
            Self::AllReduce | Self::SendRecv => "2 n N",
            Self::Broadcast | Self::Reduce => "(n + 1) N",
            Self::AllGather | Self::ReduceScatter => "(n + 1) N",
            Self::AllToAll => "2 n N",
            Self::Gather | Self::Scatter => "2 N",
        }
    }

    /// Calls the collective with separate buffers.
    pub(super) fn call<T: Exact>(
        self,
        comm: &Communicator,
        operator: Operator,
        root: Rank,
        source: &[T],
        target: &mut [T],
    ) -> Result<(), Error> {
        let (rank, world) = (comm.rank(), comm.world_size());
        let op = operator.op(rank, T::DATA_TYPE);
        let at_root = rank == root;
        match self {
            Self::AllReduce => comm.all_reduce_into(source, target, op),
            Self::AllGather => comm.all_gather_into(source, target),
            Self::ReduceScatter => comm.reduce_scatter_into(source, target, op),
            Self::Broadcast => comm.broadcast_into(at_root.then_some(source), target, root),
            Self::Reduce => comm.reduce_into(source, at_root.then_some(target), op, root),
            Self::AllToAll => comm.all_to_all_into(source, target),
            Self::SendRecv => comm.group(|group| {
                group.send(source, (rank + 1) % world)?;
                group.recv(target, (rank + world - 1) % world)
            }),
            Self::Gather => comm.gather_into(source, at_root.then_some(target), root),
            Self::Scatter => comm.scatter_into(at_root.then_some(source), target, root),
        }
    }

    /// Calls the in-place form. `buffer` has the length of the longer side.
    pub(super) fn call_in_place<T: Exact>(
        self,
        comm: &Communicator,
        operator: Operator,
        root: Rank,
        count: usize,
        buffer: &mut [T],
    ) -> Result<(), Error> {
        let op = operator.op(comm.rank(), T::DATA_TYPE);
        let at_root = comm.rank() == root;
        match self {
            Self::AllReduce => comm.all_reduce(buffer, op),
            Self::AllGather => comm.all_gather(buffer),
            Self::ReduceScatter => comm.reduce_scatter(buffer, op),
            Self::Broadcast => comm.broadcast(buffer, root),
            Self::Reduce => comm.reduce(buffer, op, root),
            Self::Gather if at_root => comm.gather(buffer, root),
            Self::Gather => comm.gather(&mut buffer[..count], root),
            Self::Scatter if at_root => comm.scatter(buffer, root),
            Self::Scatter => comm.scatter(&mut buffer[..count], root),
            Self::AllToAll | Self::SendRecv => unreachable!("there is no in-place form"),
        }
    }

    /// Fills `rank`'s input.
    pub(super) fn fill<T: Exact>(
        self,
        operator: Operator,
        world: usize,
        rank: Rank,
        source: &mut [T],
    ) {
        for (index, element) in source.iter_mut().enumerate() {
            *element = input(operator, world, rank, index);
        }
    }

    /// Where in the in-place buffer `rank`'s input lies, and where its output.
    pub(super) fn places(
        self,
        count: usize,
        world: usize,
        rank: Rank,
        root: Rank,
    ) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (input, output) = self.lengths(count, world);
        let part = rank * count..(rank + 1) * count;
        match self {
            Self::AllGather => (part, 0..output),
            Self::ReduceScatter => (0..input, part),
            Self::Gather if rank == root => (part, 0..output),
            Self::Gather => (0..count, 0..output),
            Self::Scatter if rank == root => (0..input, part),
            Self::Scatter => (0..input, 0..count),
            _ => (0..input, 0..output),
        }
    }

    /// The number of elements of `rank`'s output that are not what they must be.
    pub(super) fn wrong<T: Exact>(
        self,
        operator: Operator,
        world: usize,
        rank: Rank,
        root: Rank,
        count: usize,
        target: &[T],
    ) -> usize {
        if matches!(self, Self::Reduce | Self::Gather) && rank != root {
            return 0;
        }
        let given = |from: Rank, index: usize| input::<T>(operator, world, from, index);
        let expected = |index: usize| match self {
            Self::AllReduce | Self::Reduce => reduced(operator, world, index),
            Self::ReduceScatter => reduced(operator, world, rank * count + index),
            Self::AllGather | Self::Gather => given(index / count, index % count),
            Self::Broadcast => given(root, index),
            Self::Scatter => given(root, rank * count + index),
            Self::AllToAll => given(index / count, rank * count + index % count),
            Self::SendRecv => given((rank + world - 1) % world, index),
        };
        target.iter().enumerate().filter(|&(index, &got)| !got.same(expected(index))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORLD: usize = 3;
    const COUNT: usize = 40;

    /// Every rank's input, as `fill` makes it.
    fn inputs(test: Test, operator: Operator) -> Vec<Vec<f32>> {
        let (length, _) = test.lengths(COUNT, WORLD);
        let fill = |rank| {
            let mut input = vec![0.0; length];
            test.fill(operator, WORLD, rank, &mut input);
            input
        };
        (0..WORLD).map(fill).collect()
    }

    #[test]
    fn every_wrong_element_is_counted() {
        let wrong = |test: Test, operator, rank, output: &[f32]| {
            test.wrong(operator, WORLD, rank, 1, COUNT, output)
        };
        let sums: Vec<f32> = {
            let inputs = inputs(Test::AllReduce, Operator::Sum);
            (0..COUNT).map(|index| inputs.iter().map(|input| input[index]).sum()).collect()
        };
        let parts: Vec<f32> = {
            let inputs = inputs(Test::AllToAll, Operator::None);
            inputs.iter().flat_map(|input| input[2 * COUNT..].to_vec()).collect()
        };
        let given = inputs(Test::Broadcast, Operator::None);
        for (test, operator, right) in [
            (Test::AllReduce, Operator::Sum, sums),
            (Test::AllToAll, Operator::None, parts),
            (Test::Broadcast, Operator::None, given[1].clone()),
            (Test::SendRecv, Operator::None, given[1].clone()),
            (Test::AllGather, Operator::None, given.concat()),
        ] {
            assert_eq!(wrong(test, operator, 2, &right), 0, "{test:?}");
            let mut spoiled = right;
            for at in [0, 17, COUNT - 1] {
                spoiled[at] += 1.0;
            }
            assert_eq!(wrong(test, operator, 2, &spoiled), 3, "{test:?}");
        }
        assert_eq!(
            wrong(Test::Reduce, Operator::Sum, 0, &[-1.0; COUNT]),
            0,
            "only the root has a result"
        );
    }

    #[test]
    fn parts_are_whole_multiples_of_16_bytes() {
        assert_eq!(Test::AllReduce.count(100, 4, 3), 25);
        assert_eq!(Test::AllGather.count(1000, 4, 3), 80);
        assert_eq!(Test::AllGather.size(80, 4, 3), 960);
        assert_eq!(Test::AllToAll.count(8, 4, 3), 0);
        assert_eq!(Test::AllReduce.traffic(1 << 20, 4, 2), 4 * (4 << 20), "4 N for two ranks");
    }
}
