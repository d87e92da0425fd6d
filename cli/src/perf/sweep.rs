//! All rows of one run, and what is concluded from them.

use std::time::SystemTime;

use annulus::Communicator;

use super::machine::{self, Place};
use super::measure::{Bench, Case, Form, Outcome};
use super::number::{Exact, Number, Operator, with_type};
use super::options::{Options, Roots};
use super::report::Report;
use super::{Failure, Test, limit};

/// Whether the results are what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    Bad,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// In bytes.
    pub(super) size: usize,
    pub(super) count: usize,
    pub(super) number: Number,
    pub(super) operator: Operator,
    pub(super) root: Option<usize>,
    pub(super) out_of_place: Cell,
    /// `None` where there is no such form.
    pub(super) in_place: Option<Cell>,
    pub(super) ended: SystemTime,
}

/// One half of a row.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) outcome: Outcome,
    /// Size over time, in GB/s.
    pub(super) algorithm_bandwidth: f64,
    /// The same in terms of what the busiest link carries.
    pub(super) bus_bandwidth: f64,
}

/// What the rows amount to.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    bus_bandwidths: f64,
    cells: usize,
    /// Measurements with wrong elements.
    pub(super) wrong: usize,
    /// The least that the mean bus bandwidth may be, in GB/s, before the tolerance: `NCCL_TESTS_MIN_BW`.
    pub(super) required: Option<f64>,
}

/// The mean may be this much of what is required.
const TOLERANCE: f64 = 0.9;

/// From this size, in bytes, a row is compared with the speed of memory.
pub(super) const LARGE: usize = 1 << 20;

/// Measures everything that `options` asks for. All ranks call it; rank 0 prints, and its verdict counts.
pub(super) fn run(test: Test, options: &Options, comm: &Communicator) -> Result<Verdict, Failure> {
    let world = comm.world_size();
    match options.root {
        Roots::One(root) if root >= world => return Err(Failure::Root { root, world }),
        _ => {}
    }
    let places = machine::places(comm)?;
    let mut sweep = Sweep {
        test,
        options,
        comm,
        report: None,
        places: &places,
        summary: Summary { required: required()?, ..Summary::default() },
        rows: Vec::new(),
    };
    if comm.rank() == 0 {
        sweep.report = Some(Report::begin(test, options, comm, &places, sweep.length())?);
    }
    for &number in &options.numbers {
        with_type!(number, T => sweep.rows_of_type::<T>(number)?);
    }
    sweep.finish()
}

struct Sweep<'a> {
    test: Test,
    options: &'a Options,
    comm: &'a Communicator,
    /// On rank 0.
    report: Option<Report<'a>>,
    places: &'a [Place],
    summary: Summary,
    /// Nothing if there is no end of them.
    rows: Vec<Row>,
}

impl Sweep<'_> {
    /// How many rows there will be; `None` if they go on for ever.
    fn length(&self) -> Option<usize> {
        let (options, roots) = (self.options, self.roots().len());
        let kinds = options.numbers.len() * options.operators.len() * roots;
        (options.cycles > 0).then(|| options.sizes().count() * kinds * options.cycles)
    }

    fn roots(&self) -> Vec<Option<usize>> {
        match self.options.root {
            _ if !self.test.rooted() => vec![None],
            Roots::One(root) => vec![Some(root)],
            Roots::All => (0..self.comm.world_size()).map(Some).collect(),
        }
    }

    fn rows_of_type<T: Exact>(&mut self, number: Number) -> Result<(), Failure> {
        let (test, options, world) = (self.test, self.options, self.comm.world_size());
        let count = |bytes| test.count(bytes, size_of::<T>(), world);
        let most = options.sizes().map(count).max().unwrap_or(0);
        let neighbours = machine::neighbours(self.places, self.comm.rank());
        let mut bench = Bench::<T>::new(test, options, self.comm, most, neighbours)?;
        for &operator in &options.operators {
            for root in self.roots() {
                let mut cycle = 0;
                while options.cycles == 0 || cycle < options.cycles {
                    cycle += 1;
                    for bytes in options.sizes() {
                        let case = Case { operator, root: root.unwrap_or(0), count: count(bytes) };
                        let row = self.row(&mut bench, case, number, root)?;
                        self.summary.add(&row);
                        if let Some(report) = &mut self.report {
                            report.row(&row)?;
                        }
                        if options.cycles > 0 {
                            self.rows.push(row);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn row<T: Exact>(
        &self,
        bench: &mut Bench<'_, T>,
        case: Case,
        number: Number,
        root: Option<usize>,
    ) -> Result<Row, Failure> {
        let world = self.comm.world_size();
        let size = self.test.size(case.count, size_of::<T>(), world);
        let factor = self.test.bus_factor(world);
        let mut cell = |form| -> Result<Cell, Failure> {
            let outcome = bench.measure(case, form)?;
            // Bytes per microsecond are MB/s.
            let rate = size as f64 / outcome.time.max(f64::MIN_POSITIVE) / 1e3;
            Ok(Cell { outcome, algorithm_bandwidth: rate, bus_bandwidth: rate * factor })
        };
        let out_of_place = cell(Form::OutOfPlace)?;
        let in_place = self.test.works_in_place().then(|| cell(Form::InPlace)).transpose()?;
        Ok(Row {
            size,
            count: case.count,
            number,
            operator: case.operator,
            root,
            out_of_place,
            in_place,
            ended: SystemTime::now(),
        })
    }

    fn finish(mut self) -> Result<Verdict, Failure> {
        let memory = self.options.memory.then(|| machine::memory(self.comm)).transpose()?;
        let large: Vec<&Row> = self.rows.iter().filter(|row| row.size >= LARGE).collect();
        let copied = if !large.is_empty() && machine::one_host(self.places) {
            Some(limit::copy_bandwidth(self.comm)?)
        } else {
            None
        };
        let verdict = self.summary.verdict();
        if let Some(report) = self.report.take() {
            report.end(&self.rows, &self.summary, memory.as_deref(), copied)?;
        }
        // A rank that leaves early could take those that still write with it.
        self.comm.barrier()?;
        Ok(if self.comm.rank() == 0 { verdict } else { Verdict::Good })
    }
}

impl Row {
    /// The halves that there are.
    pub(super) fn cells(&self) -> impl Iterator<Item = &Cell> {
        std::iter::once(&self.out_of_place).chain(&self.in_place)
    }
}

impl Summary {
    fn add(&mut self, row: &Row) {
        for cell in row.cells() {
            self.bus_bandwidths += cell.bus_bandwidth;
            self.cells += 1;
            self.wrong += usize::from(cell.outcome.wrong.is_some_and(|wrong| wrong > 0));
        }
    }

    /// In GB/s.
    pub(super) fn mean_bus_bandwidth(&self) -> f64 {
        self.bus_bandwidths / self.cells.max(1) as f64
    }

    /// Whether the mean is what is required, if anything is.
    pub(super) fn is_fast_enough(&self) -> Option<bool> {
        self.required.map(|required| self.mean_bus_bandwidth() >= TOLERANCE * required)
    }

    pub(super) fn verdict(&self) -> Verdict {
        if self.wrong == 0 && self.is_fast_enough() != Some(false) {
            Verdict::Good
        } else {
            Verdict::Bad
        }
    }
}

fn required() -> Result<Option<f64>, Failure> {
    let Some(value) = std::env::var_os("NCCL_TESTS_MIN_BW") else { return Ok(None) };
    let value = value.to_string_lossy().into_owned();
    match value.trim().parse::<f64>() {
        Ok(rate) if rate.is_finite() => Ok(Some(rate)),
        _ => Err(Failure::Required { value }),
    }
}
