//! Losses and counts over all ranks.

use annulus::Communicator;

use crate::Error;

/// Numbers of this rank, to be combined over all ranks by one call.
///
/// What was added can only be read after [`all_reduce`](Self::all_reduce): one rank's loss cannot be mistaken for the
/// job's. Each entry has a total and a weight, so that a mean is one over samples whatever number of them each rank
/// had.
///
/// ```
/// # use annulus::Communicator;
/// use annulus_ddp::Metrics;
///
/// # let ranks = Communicator::local(2)?;
/// # std::thread::scope(|threads| for comm in &ranks { threads.spawn(move || {
/// let mut metrics = Metrics::new();
/// let (loss, samples) = if comm.rank() == 0 { (1.0, 30.0) } else { (2.0, 10.0) };
/// metrics.add_mean("loss", loss, samples);
/// let reduced = metrics.all_reduce(comm).expect("two ranks");
/// assert_eq!(reduced.mean("loss"), Some(1.25));
/// assert_eq!(reduced.weight("loss"), Some(40.0));
/// # }); });
/// # Ok::<(), annulus::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    entries: Vec<(String, Entry)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    total: f64,
    weight: f64,
    smallest: f64,
    largest: f64,
}

/// What all ranks' [`Metrics`] say together; the same on every rank.
#[derive(Clone, Debug)]
pub struct ReducedMetrics {
    names: Vec<String>,
    combined: Vec<Entry>,
    /// For each rank, its entries.
    ranks: Vec<Vec<Entry>>,
}

impl Metrics {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the mean `value` of `samples` samples, such as a batch's loss.
    ///
    /// Every rank must use the same names in the same order, a rank without samples too: by 0 of them.
    pub fn add_mean(&mut self, name: &str, value: f64, samples: f64) {
        // The mean over no samples is NaN, and means nothing.
        let total = if samples == 0.0 { 0.0 } else { value * samples };
        self.add(name, Entry { total, weight: samples, ..Entry::of(value, samples != 0.0) });
    }

    /// Adds `value` to a sum, such as the number of right answers.
    pub fn add_sum(&mut self, name: &str, value: f64) {
        self.add(name, Entry { total: value, weight: 1.0, ..Entry::of(value, true) });
    }

    fn add(&mut self, name: &str, new: Entry) {
        match self.entries.iter_mut().find(|(known, _)| known == name) {
            Some((_, entry)) => entry.combine(&new),
            None => self.entries.push((name.to_owned(), new)),
        }
    }

    /// Combines all ranks' metrics, in rank order, in one call. Blocks; all ranks must call it.
    ///
    /// Over the [reducer's communicator](crate::Reducer::communicator), ranks that have [joined](crate::Reducer::join) are left
    /// out.
    ///
    /// # Errors
    /// [`Error::Metrics`] on every rank, when the names differ; [`Error::Communication`].
    pub fn all_reduce(self, comm: &Communicator) -> Result<ReducedMetrics, Error> {
        // The names' hash and their number travel with the numbers, in a header whose length does not depend on them.
        let names: Vec<&str> = self.entries.iter().map(|(name, _)| name.as_str()).collect();
        let hash = blake3::hash(names.join("\0").as_bytes());
        let hash = u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("eight bytes"));
        // Not 0, so that it tells a rank without metrics from one that has joined.
        let hash = hash | 1;
        let mut mine = vec![hash, names.len() as u64];
        mine.extend(self.entries.iter().flat_map(|(_, entry)| entry.bits()));
        // Messages of one size, so that ranks which differ in names find out rather than fail to communicate.
        let width = mine.len().max(2 + 4 * FEW).next_multiple_of(2 + 4 * FEW);
        mine.resize(width, 0);
        let mut all = vec![0; width * comm.world_size()];
        comm.all_gather_into(&mine, &mut all)?;
        let records: Vec<&[u64]> = all.chunks_exact(width).collect();
        let present = |record: &&[u64]| record[0] != 0;
        let first = records.iter().copied().find(present).unwrap_or(&mine);
        let differs = |record: &&[u64]| present(record) && record[..2] != first[..2];
        if let Some(rank) = records.iter().position(differs) {
            return Err(Error::Metrics {
                rank,
                count: records[rank][1] as usize,
                expected: first[1] as usize,
                ours: names.join(", "),
            });
        }
        let ranks: Vec<Vec<Entry>> = records
            .iter()
            .map(|record| {
                let entries = record[2..].chunks_exact(4).take(names.len());
                if present(record) { entries.map(Entry::from_bits).collect() } else { Vec::new() }
            })
            .collect();
        let mut combined = vec![Entry::NOTHING; names.len()];
        for rank in &ranks {
            for (entry, other) in combined.iter_mut().zip(rank) {
                entry.combine(other);
            }
        }
        let names = self.entries.into_iter().map(|(name, _)| name).collect();
        Ok(ReducedMetrics { names, combined, ranks })
    }
}

/// Up to so many entries, messages have one size.
const FEW: usize = 16;

impl Entry {
    const NOTHING: Self =
        Self { total: 0.0, weight: 0.0, smallest: f64::INFINITY, largest: f64::NEG_INFINITY };

    fn of(value: f64, counts: bool) -> Self {
        if counts {
            Self { smallest: value, largest: value, ..Self::NOTHING }
        } else {
            Self::NOTHING
        }
    }

    fn combine(&mut self, other: &Self) {
        self.total += other.total;
        self.weight += other.weight;
        self.smallest = self.smallest.min(other.smallest);
        self.largest = self.largest.max(other.largest);
    }

    fn bits(&self) -> [u64; 4] {
        [self.total, self.weight, self.smallest, self.largest].map(f64::to_bits)
    }

    fn from_bits(bits: &[u64]) -> Self {
        let [total, weight, smallest, largest] = [0, 1, 2, 3].map(|i| f64::from_bits(bits[i]));
        Self { total, weight, smallest, largest }
    }
}

impl ReducedMetrics {
    /// The sum over all ranks; `None` if there is no such name.
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.find(name).map(|at| self.combined[at].total)
    }

    /// The mean over all ranks' samples; NaN if there were none.
    pub fn mean(&self, name: &str) -> Option<f64> {
        self.find(name).map(|at| self.combined[at].total / self.combined[at].weight)
    }

    /// The number of all ranks' samples, or of what was added to a sum.
    pub fn weight(&self, name: &str) -> Option<f64> {
        self.find(name).map(|at| self.combined[at].weight)
    }

    /// The smallest value that was added on any rank.
    pub fn min(&self, name: &str) -> Option<f64> {
        self.find(name).map(|at| self.combined[at].smallest)
    }

    /// The largest value that was added on any rank.
    pub fn max(&self, name: &str) -> Option<f64> {
        self.find(name).map(|at| self.combined[at].largest)
    }

    /// One rank's mean, to see which rank stands out; `None` of one that has joined.
    pub fn mean_of_rank(&self, name: &str, rank: usize) -> Option<f64> {
        let entry = self.ranks.get(rank)?.get(self.find(name)?)?;
        Some(entry.total / entry.weight)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }
}
