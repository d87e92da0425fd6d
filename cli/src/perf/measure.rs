//! One row: fill, warm up, time, check, and agree with the other ranks about the outcome.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use annulus::{Allocation, Communicator, Rank, ReduceOp};

use super::machine;
use super::number::{Exact, Operator};
use super::options::{Average, Blocking, Options};
use super::statistics::Statistics;
use super::{Failure, Test};

/// What one rank needs to measure rows of one element type.
pub(super) struct Bench<'a, T> {
    test: Test,
    options: &'a Options,
    comm: &'a Communicator,
    source: Buffer<T>,
    target: Buffer<T>,
}

/// What a row is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) operator: Operator,
    pub(super) root: Rank,
    /// The collective's count.
    pub(super) count: usize,
}

/// Separate buffers, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    OutOfPlace,
    InPlace,
}

/// What came out, the same on every rank.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Microseconds for one operation.
    pub(super) time: f64,
    /// Wrong elements of all ranks, if they were checked.
    pub(super) wrong: Option<u64>,
    /// Microseconds of single iterations, if they were timed.
    pub(super) per_iteration: Option<Statistics>,
}

impl<'a, T: Exact> Bench<'a, T> {
    /// Allocates for calls of up to `count`, as do `neighbours` ranks on this host, this one included.
    pub(super) fn new(
        test: Test,
        options: &'a Options,
        comm: &'a Communicator,
        count: usize,
        neighbours: usize,
    ) -> Result<Self, Failure> {
        let (input, output) = test.lengths(count, comm.world_size());
        let [input, output] = [input, output].map(|length| length.saturating_add(options.unalign));
        let elements = input.saturating_add(output).saturating_mul(neighbours);
        let needed = elements.saturating_mul(size_of::<T>()) as u64;
        machine::ensure_memory(comm, needed)?;
        let allocate = |length: usize| {
            if options.register {
                return Ok(Buffer::Shared(comm.alloc(length)?));
            }
            let mut memory = Vec::new();
            if memory.try_reserve_exact(length).is_err() {
                return Err(Failure::Memory { needed, lacking: needed });
            }
            memory.resize(length, T::of(UNTOUCHED));
            Ok(Buffer::Private(memory))
        };
        Ok(Self { test, options, comm, source: allocate(input)?, target: allocate(output)? })
    }

    /// Measures one form of a row.
    pub(super) fn measure(&mut self, case: Case, form: Form) -> Result<Outcome, Failure> {
        self.fill(case, form);
        for _ in 0..self.options.warmup {
            self.call(case, form)?;
        }
        let (time, samples) = self.time(case, form)?;
        let time = self.agree(&mut [time])?[0];
        let per_iteration = match samples {
            Some(mut samples) => {
                Statistics::of(self.agree(&mut samples)?.split_off(self.options.skip))
            }
            None => None,
        };
        let wrong = (self.options.check > 0).then(|| self.check(case, form)).transpose()?;
        Ok(Outcome { time, wrong, per_iteration })
    }

    /// This rank's microseconds for one operation, and for each iteration.
    fn time(&mut self, case: Case, form: Form) -> Result<(f64, Option<Vec<f64>>), Failure> {
        let Options { iterations, aggregate, blocking, per_iteration, .. } = *self.options;
        let mut samples = Vec::with_capacity(if per_iteration { iterations } else { 0 });
        let microseconds = |from: Instant| from.elapsed().as_secs_f64() * 1e6;
        if blocking != Blocking::Never {
            self.comm.barrier()?;
        }
        let begun = Instant::now();
        for _ in 0..iterations {
            let lap = per_iteration.then(Instant::now);
            for _ in 0..aggregate {
                self.call(case, form)?;
            }
            if blocking == Blocking::Each {
                self.comm.barrier()?;
            }
            samples.extend(lap.map(|lap| microseconds(lap) / aggregate as f64));
        }
        let time = microseconds(begun) / (iterations * aggregate) as f64;
        Ok((time, per_iteration.then_some(samples)))
    }

    /// Makes one time of all ranks' times, as `-a` asks.
    fn agree(&self, times: &mut [f64]) -> Result<Vec<f64>, Failure> {
        match self.options.average {
            Average::Rank0 => self.comm.broadcast(times, 0)?,
            Average::Mean => self.comm.all_reduce(times, ReduceOp::Avg)?,
            Average::Least => self.comm.all_reduce(times, ReduceOp::Min)?,
            Average::Most => self.comm.all_reduce(times, ReduceOp::Max)?,
        }
        Ok(times.to_vec())
    }

    /// The wrong elements of all ranks after fresh calls on fresh data.
    fn check(&mut self, case: Case, form: Form) -> Result<u64, Failure> {
        let mut wrong = 0;
        for _ in 0..self.options.check {
            self.fill(case, form);
            self.call(case, form)?;
            wrong += self.wrong(case, form) as u64;
        }
        let mut wrong = [wrong];
        self.comm.all_reduce(&mut wrong, ReduceOp::Sum)?;
        Ok(wrong[0])
    }

    fn call(&mut self, case: Case, form: Form) -> Result<(), annulus::Error> {
        let Case { operator, root, count } = case;
        let (input, output) = self.test.lengths(count, self.comm.world_size());
        let (test, comm, first) = (self.test, self.comm, self.options.unalign);
        match form {
            Form::OutOfPlace => {
                let source = &self.source[first..first + input];
                let target = &mut self.target[first..first + output];
                test.call(comm, operator, root, source, target)
            }
            Form::InPlace => {
                let length = input.max(output);
                let buffer = &mut self.longer(case)[first..first + length];
                test.call_in_place(comm, operator, root, count, buffer)
            }
        }
    }

    /// The buffer for calls in place.
    fn longer(&mut self, case: Case) -> &mut [T] {
        let (input, output) = self.test.lengths(case.count, self.comm.world_size());
        if input > output { &mut self.source } else { &mut self.target }
    }

    /// Writes the input, and over everything else what is no result.
    fn fill(&mut self, case: Case, form: Form) {
        let Case { operator, root, count } = case;
        let (rank, world) = (self.comm.rank(), self.comm.world_size());
        let (test, first) = (self.test, self.options.unalign);
        let (input, output) = test.lengths(count, world);
        match form {
            Form::OutOfPlace => {
                test.fill(operator, world, rank, &mut self.source[first..first + input]);
                self.target[first..first + output].fill(T::of(UNTOUCHED));
            }
            Form::InPlace => {
                let (own, _) = test.places(count, world, rank, root);
                let buffer = &mut self.longer(case)[first..first + input.max(output)];
                buffer.fill(T::of(UNTOUCHED));
                test.fill(operator, world, rank, &mut buffer[own]);
            }
        }
    }

    /// This rank's wrong elements.
    fn wrong(&mut self, case: Case, form: Form) -> usize {
        let Case { operator, root, count } = case;
        let (rank, world) = (self.comm.rank(), self.comm.world_size());
        let (test, first) = (self.test, self.options.unalign);
        let (input, output) = test.lengths(count, world);
        let result = match form {
            Form::OutOfPlace => &self.target[first..first + output],
            Form::InPlace => {
                let (_, place) = test.places(count, world, rank, root);
                &self.longer(case)[first..first + input.max(output)][place]
            }
        };
        test.wrong(operator, world, rank, root, count, result)
    }
}

/// A value that no result has, and that every type holds exactly.
const UNTOUCHED: i64 = 12;

enum Buffer<T> {
    Private(Vec<T>),
    Shared(Allocation<T>),
}

impl<T: Exact> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Private(memory) => memory,
            Self::Shared(memory) => memory,
        }
    }
}

impl<T: Exact> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Private(memory) => memory,
            Self::Shared(memory) => memory,
        }
    }
}
