//! The table that is printed, and what it says.

use std::collections::BTreeMap;
use std::fmt;

use annulus_rig::Sample;

use crate::mode::Mode;
use crate::options::{Cache, Options, Scenario};
use crate::peer::Peer;

/// The samples of one scenario.
pub(crate) struct Table {
    title: String,
    peers: Vec<Peer>,
    sizes: Vec<usize>,
    /// Nanoseconds by size and mode, for each of `peers`.
    cells: BTreeMap<(usize, Mode), Vec<Vec<u64>>>,
    taken: usize,
    dropped: usize,
}

/// How many samples a median needs.
const ENOUGH: usize = 3;

impl Table {
    pub(crate) fn new(options: &Options, scenario: &Scenario, peers: &[Peer]) -> Self {
        let buffers = if options.alloc { "Communicator::alloc" } else { "private" };
        let between = match options.cache {
            Cache::Untouched => "buffers untouched between operations",
            Cache::Rewritten => "input rewritten and output read before each operation",
        };
        let title = format!(
            "{scenario}: float32 sum, {buffers} buffers, {between}\n\
             median µs of the slowest rank, {} rounds; best / ours: of the libraries' best",
            options.rounds()
        );
        Self {
            title,
            peers: peers.to_vec(),
            sizes: options.sizes(scenario),
            cells: BTreeMap::new(),
            taken: 0,
            dropped: 0,
        }
    }

    /// Adds what one launch of `peer` measured.
    pub(crate) fn add(&mut self, peer: Peer, samples: Vec<(usize, Sample)>) {
        let Some(column) = self.peers.iter().position(|&known| known == peer) else { return };
        for (bytes, sample) in samples {
            self.taken += 1;
            let Some(mode) = Mode::of(&sample) else {
                self.dropped += 1;
                continue;
            };
            let columns = self.peers.len();
            let row = self.cells.entry((bytes, mode)).or_insert_with(|| vec![Vec::new(); columns]);
            row[column].push(sample.nanos);
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let of_size = |&bytes: &usize| {
            let rows = self.rows().filter(|row| row.bytes == bytes);
            let ratios = rows.filter(|row| row.complete).filter_map(|row| row.ratio);
            ratios.map(Verdict::of_ratio).reduce(Verdict::and).unwrap_or(Verdict::Undecided)
        };
        self.sizes.iter().map(of_size).fold(Verdict::Faster, Verdict::and)
    }

    fn rows(&self) -> impl Iterator<Item = Row> {
        self.cells.iter().map(|(&(bytes, mode), cells)| self.row(bytes, mode, cells))
    }

    fn row(&self, bytes: usize, mode: Mode, cells: &[Vec<u64>]) -> Row {
        let medians: Vec<_> = cells.iter().map(|cell| median(cell)).collect();
        let of = |wanted: fn(Peer) -> bool| {
            let all = self.peers.iter().zip(&medians);
            all.filter(move |(peer, _)| wanted(**peer)).map(|(_, &median)| median)
        };
        let ours = of(Peer::is_ours).next().flatten();
        let rivals = || of(Peer::is_rival);
        let best = rivals().flatten().min();
        Row {
            bytes,
            mode,
            ratio: ours.zip(best).map(|(ours, best)| best as f64 / ours.max(1) as f64),
            complete: rivals().all(|median| median.is_some()),
            medians,
            samples: cells.iter().map(Vec::len).collect(),
        }
    }
}

struct Row {
    bytes: usize,
    mode: Mode,
    medians: Vec<Option<u64>>,
    /// The best rival's time over ours.
    ratio: Option<f64>,
    /// Whether every rival has a median here.
    complete: bool,
    samples: Vec<usize>,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        write!(f, "{:>9}  {:<6}", "size", "cores")?;
        self.peers.iter().try_for_each(|peer| write!(f, " {:>10}", peer.name()))?;
        writeln!(f, " {:>12}  samples", "best / ours")?;
        let mut partial = false;
        for row in self.rows() {
            let Row { bytes, mode, medians, ratio, complete, samples } = row;
            if medians.iter().all(Option::is_none) {
                continue;
            }
            write!(f, "{:>9}  {mode:<6}", size(bytes))?;
            for nanos in medians {
                write!(f, " {:>10}", nanos.map_or_else(|| "-".to_owned(), micros))?;
            }
            let sign = if complete { ' ' } else { '?' };
            partial |= ratio.is_some() && !complete;
            let ratio = ratio.map_or_else(|| "- ".to_owned(), |ratio| format!("{ratio:.2}{sign}"));
            let samples: Vec<_> = samples.iter().map(usize::to_string).collect();
            writeln!(f, " {ratio:>12}  {}", samples.join("/"))?;
        }
        if partial {
            writeln!(f, "?: a library has under {ENOUGH} samples with such cores")?;
        }
        if self.dropped > 0 {
            let Self { dropped, taken, .. } = self;
            writeln!(f, "dropped {dropped} of {taken} samples: the cores moved, or were busy")?;
        }
        Ok(())
    }
}

/// What the comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Faster,
    /// Some size could not be compared, as its samples are of unlike cores.
    Undecided,
    Slower,
}

impl Verdict {
    pub(crate) fn and(self, other: Self) -> Self {
        self.max(other)
    }

    fn of_ratio(ratio: f64) -> Self {
        if ratio < 1.0 { Self::Slower } else { Self::Faster }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Faster => {
                "Annulus is as fast as the best of the others, or faster, at every size."
            }
            Self::Undecided => "Some sizes could not be compared: run more rounds.",
            Self::Slower => "Annulus is slower than the best of the others at some size.",
        })
    }
}

fn median(nanos: &[u64]) -> Option<u64> {
    let mut sorted = nanos.to_vec();
    sorted.sort_unstable();
    (sorted.len() >= ENOUGH).then(|| sorted[sorted.len() / 2])
}

fn micros(nanos: u64) -> String {
    let micros = nanos as f64 / 1e3;
    let digits = match micros {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{micros:.digits$}")
}

fn size(bytes: usize) -> String {
    match bytes {
        ..1024 => format!("{bytes} B"),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(peers: &[Peer]) -> Table {
        Table {
            title: "title".to_owned(),
            peers: peers.to_vec(),
            sizes: vec![8],
            cells: BTreeMap::new(),
            taken: 0,
            dropped: 0,
        }
    }

    fn samples(one_way: u64, nanos: u64) -> Vec<(usize, Sample)> {
        vec![(8, Sample { one_way: [one_way; 2], nanos }); ENOUGH]
    }

    #[test]
    fn only_like_cores_are_compared() {
        let mut table = table(&[Peer::Annulus, Peer::OpenMpi]);
        table.add(Peer::Annulus, samples(50, 100));
        table.add(Peer::OpenMpi, samples(200, 400));
        assert_eq!(table.verdict(), Verdict::Undecided);
        table.add(Peer::OpenMpi, samples(50, 90));
        assert_eq!(table.verdict(), Verdict::Slower);
        assert!(table.to_string().contains(" 0.90 "), "{table}");
    }

    #[test]
    fn the_best_rival_counts_and_a_socket_is_none() {
        let mut table = table(&[Peer::Annulus, Peer::OpenMpi, Peer::Mpich, Peer::Socket]);
        table.add(Peer::Annulus, samples(50, 100));
        table.add(Peer::OpenMpi, samples(50, 200));
        table.add(Peer::Socket, samples(50, 10));
        assert_eq!(table.verdict(), Verdict::Undecided, "MPICH is missing");
        assert!(table.to_string().contains(" 2.00?"), "{table}");
        table.add(Peer::Mpich, samples(50, 150));
        assert_eq!(table.verdict(), Verdict::Faster);
        assert!(table.to_string().contains(" 1.50 "), "{table}");
    }

    #[test]
    fn samples_of_moving_cores_are_dropped() {
        let mut table = table(&[Peer::Annulus]);
        table.add(Peer::Annulus, vec![(8, Sample { one_way: [50, 200], nanos: 1 })]);
        assert!(table.to_string().contains("dropped 1 of 1"), "{table}");
    }

    #[test]
    fn times_have_three_digits() {
        assert_eq!(micros(94), "0.09");
        assert_eq!(micros(30_640), "30.6");
        assert_eq!(micros(76_800_123), "76800");
    }
}
