//! PowerSGD (Vogels et al., 2019): matrices travel as products of thin ones.

use std::collections::HashMap;

use annulus::{Communicator, DataType, ReduceOp};

use super::{AllReduce, Hook, all_reduce_traffic};
use crate::{Error, GradientBucket};

/// Averages each matrix of gradients as the product of two matrices of low rank, by one step of power iteration from where
/// the last step ended; what the product lacks is added to the gradients of the next step.
///
/// Gradients of more than two dimensions count as matrices whose rows are the first one. Those that would not become
/// smaller, and those of other types than f32, are averaged as they are.
pub struct PowerSgd {
    settings: PowerSgdSettings,
    /// Steps so far.
    steps: u64,
    generation: u64,
    states: HashMap<usize, State>,
}

/// How [`PowerSgd`] compresses.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerSgdSettings {
    /// The rank of the products. 1.
    pub rank: usize,
    /// The first step, from 0, in which gradients are compressed: before, they are averaged as they are. 10. At least 1,
    /// since buckets are put together anew after the first step.
    pub start: u64,
    /// A matrix is compressed if that makes it so many times smaller. 2.
    pub least_compression: f64,
    /// Seed of the first matrices. 0.
    pub seed: u64,
}

/// What is remembered of a bucket.
struct State {
    matrices: Vec<Matrix>,
    /// What the products lacked in the last step, at the gradients' places.
    errors: Vec<f32>,
}

/// A compressed member of a bucket.
struct Matrix {
    start: usize,
    rows: usize,
    columns: usize,
    rank: usize,
    /// columns x rank, row by row: where the next iteration starts.
    q: Vec<f32>,
}

impl Default for PowerSgdSettings {
    fn default() -> Self {
        Self { rank: 1, start: 10, least_compression: 2.0, seed: 0 }
    }
}

impl PowerSgd {
    /// Compresses as `settings` say.
    ///
    /// # Errors
    /// [`Error::Setting`] for a rank or a start of 0, or a compression that is not a number.
    pub fn new(settings: PowerSgdSettings) -> Result<Self, Error> {
        let refuse =
            |setting, problem: &str| Err(Error::Setting { setting, problem: problem.to_owned() });
        if settings.rank == 0 {
            return refuse("rank", "is 0: a product of rank 0 is nothing");
        }
        if settings.start == 0 {
            return refuse(
                "start",
                "is 0, but buckets are put together anew after step 0: use 1 or more",
            );
        }
        if settings.least_compression.is_nan() {
            return refuse("least_compression", "is not a number");
        }
        Ok(Self { settings, steps: 0, generation: 0, states: HashMap::new() })
    }
}

impl Hook for PowerSgd {
    fn name(&self) -> String {
        format!("{:?}", self.settings)
    }

    fn reduce(
        &mut self,
        mut bucket: GradientBucket<'_>,
        comm: &Communicator,
    ) -> Result<u64, Error> {
        let step = self.steps;
        if bucket.is_last() {
            self.steps += 1;
        }
        if step < self.settings.start || bucket.dtype() != DataType::F32 {
            return AllReduce.reduce(bucket, comm);
        }
        if self.generation != bucket.generation() {
            self.generation = bucket.generation();
            self.states.clear();
        }
        let index = bucket.index();
        if !self.states.contains_key(&index) {
            self.states.insert(index, State::new(&mut bucket, &self.settings));
        }
        let state = self.states.get_mut(&index).expect("it was just put there");
        let world = comm.world_size();
        let values = bucket.values::<f32>();
        for (value, error) in values.iter_mut().zip(&state.errors) {
            *value += error;
        }
        // What is not compressed, in one message, followed by the left matrices.
        let mut message = state.uncompressed(values);
        let plain = message.len();
        for matrix in &state.matrices {
            message.extend(matrix.left(values));
        }
        comm.all_reduce(&mut message, ReduceOp::Avg)?;
        let mut traffic = all_reduce_traffic(size_of_val(&message[..]), world);
        let mut left = message.split_off(plain);
        let mut rest = left.as_mut_slice();
        let mut right = Vec::new();
        for matrix in &state.matrices {
            let (p, others) = rest.split_at_mut(matrix.rows * matrix.rank);
            orthonormalize(p, matrix.rank);
            right.extend(matrix.right(values, p));
            rest = others;
        }
        comm.all_reduce(&mut right, ReduceOp::Avg)?;
        traffic += all_reduce_traffic(size_of_val(&right[..]), world);
        state.set_uncompressed(values, &message);
        let (mut p, mut q) = (left.as_slice(), right.as_slice());
        for matrix in &mut state.matrices {
            let (this_p, other_p) = p.split_at(matrix.rows * matrix.rank);
            let (this_q, other_q) = q.split_at(matrix.columns * matrix.rank);
            matrix.q.copy_from_slice(this_q);
            matrix.multiply(values, this_p, &mut state.errors);
            (p, q) = (other_p, other_q);
        }
        Ok(traffic)
    }

    fn resume(&mut self, step: u64) {
        self.steps = step;
        self.states.clear();
    }
}

impl State {
    fn new(bucket: &mut GradientBucket<'_>, settings: &PowerSgdSettings) -> Self {
        let matrices = bucket.members().iter().filter_map(|member| {
            let (&rows, columns) = bucket.shape(member).split_first()?;
            let columns: usize = columns.iter().product();
            let rank = settings.rank.min(rows).min(columns);
            let compressed = ((rows + columns) * rank) as f64 * settings.least_compression;
            let pays = rank > 0 && compressed < (rows * columns) as f64;
            let seed =
                settings.seed.wrapping_mul(0x9e37_79b9).wrapping_add(member.parameter as u64);
            pays.then(|| Matrix {
                start: member.range.start,
                rows,
                columns,
                rank,
                q: noise(seed, columns * rank),
            })
        });
        let matrices = matrices.collect();
        let count = bucket.values::<f32>().len();
        Self { matrices, errors: vec![0.0; count] }
    }

    /// The ranges between the matrices. Members lie one after another.
    fn gaps(&self, end: usize) -> Vec<std::ops::Range<usize>> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for matrix in &self.matrices {
            gaps.push(at..matrix.start);
            at = matrix.start + matrix.rows * matrix.columns;
        }
        gaps.push(at..end);
        gaps
    }

    fn uncompressed(&self, values: &[f32]) -> Vec<f32> {
        self.gaps(values.len()).into_iter().flat_map(|gap| &values[gap]).copied().collect()
    }

    fn set_uncompressed(&self, values: &mut [f32], from: &[f32]) {
        let mut from = from;
        for gap in self.gaps(values.len()) {
            let (these, others) = from.split_at(gap.len());
            values[gap].copy_from_slice(these);
            from = others;
        }
    }
}

impl Matrix {
    /// M Q, rows x rank.
    fn left(&self, values: &[f32]) -> Vec<f32> {
        let mut p = vec![0.0; self.rows * self.rank];
        for (row, p) in self.rows_of(values).zip(p.chunks_exact_mut(self.rank)) {
            for (value, q) in row.iter().zip(self.q.chunks_exact(self.rank)) {
                for (p, q) in p.iter_mut().zip(q) {
                    *p += value * q;
                }
            }
        }
        p
    }

    /// The transpose of M, times P: columns x rank.
    fn right(&self, values: &[f32], p: &[f32]) -> Vec<f32> {
        let mut q = vec![0.0; self.columns * self.rank];
        for (row, p) in self.rows_of(values).zip(p.chunks_exact(self.rank)) {
            for (value, q) in row.iter().zip(q.chunks_exact_mut(self.rank)) {
                for (q, p) in q.iter_mut().zip(p) {
                    *q += value * p;
                }
            }
        }
        q
    }

    /// Replaces M by P times the transpose of Q, and notes what that lacks.
    fn multiply(&self, values: &mut [f32], p: &[f32], errors: &mut [f32]) {
        let range = self.start..self.start + self.rows * self.columns;
        let rows = values[range.clone()].chunks_exact_mut(self.columns);
        let errors = errors[range].chunks_exact_mut(self.columns);
        for ((row, errors), p) in rows.zip(errors).zip(p.chunks_exact(self.rank)) {
            for ((value, error), q) in
                row.iter_mut().zip(errors).zip(self.q.chunks_exact(self.rank))
            {
                let product: f32 = p.iter().zip(q).map(|(p, q)| p * q).sum();
                *error = *value - product;
                *value = product;
            }
        }
    }

    fn rows_of<'a>(&self, values: &'a [f32]) -> impl Iterator<Item = &'a [f32]> + use<'a> {
        values[self.start..self.start + self.rows * self.columns].chunks_exact(self.columns)
    }
}

/// Makes the columns of a matrix of `rank` columns orthogonal and of length 1, by Gram and Schmidt's method. The same input
/// gives the same bits, so that ranks stay equal.
fn orthonormalize(matrix: &mut [f32], rank: usize) {
    let dot = |matrix: &[f32], a: usize, b: usize| -> f64 {
        matrix.chunks_exact(rank).map(|row| f64::from(row[a]) * f64::from(row[b])).sum()
    };
    for column in 0..rank {
        for before in 0..column {
            let shared = dot(matrix, before, column) as f32;
            for row in matrix.chunks_exact_mut(rank) {
                row[column] -= shared * row[before];
            }
        }
        let length = dot(matrix, column, column).sqrt();
        // A column of zeros stays one.
        let factor = if length > 1e-20 { (1.0 / length) as f32 } else { 0.0 };
        for row in matrix.chunks_exact_mut(rank) {
            row[column] *= factor;
        }
    }
}

/// Numbers between -1 and 1 that follow from the seed (SplitMix64).
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    (0..count).map(|_| (next() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0).collect()
}
