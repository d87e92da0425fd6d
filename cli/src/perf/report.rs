//! What rank 0 prints: nccl-tests' lines.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::time::SystemTime;

use annulus::Communicator;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::machine::{MemoryUse, Place};
use super::options::{Options, Step};
use super::sweep::{Cell, Row, Summary};
use super::{Failure, Test, json, plot, timestamp};

/// The release of nccl-tests whose format this is.
const FORMAT: &str = "2.19.6";

/// The lines so far, and where they go.
pub(super) struct Report<'a> {
    test: Test,
    options: &'a Options,
    world: usize,
    places: Vec<Place>,
    begun: SystemTime,
    progress: ProgressBar,
    /// For an output file that is not JSON.
    text: String,
}

impl<'a> Report<'a> {
    /// Prints everything above the first row. `rows` is how many there will be, if there is an end.
    pub(super) fn begin(
        test: Test,
        options: &'a Options,
        comm: &Communicator,
        places: &[Place],
        rows: Option<usize>,
    ) -> Result<Self, Failure> {
        let mut report = Self {
            test,
            options,
            world: comm.world_size(),
            places: places.to_vec(),
            begun: SystemTime::now(),
            progress: progress(rows),
            text: String::new(),
        };
        let header = report.header(comm);
        report.print(&header)?;
        Ok(report)
    }

    /// Prints a row.
    pub(super) fn row(&mut self, row: &Row) -> Result<(), Failure> {
        let root = row.root.map_or(-1, |root| root as i64);
        let (size, count) = (row.size, row.count);
        let (number, operator) = (row.number.name(), row.operator.name());
        let mut line = format!("{size:12}  {count:12}  {number:>8}  {operator:>6}  {root:>6}");
        self.cell(&mut line, Some(&row.out_of_place));
        self.cell(&mut line, row.in_place.as_ref());
        if self.options.timestamps {
            let _ = write!(line, "  {}", timestamp::utc(row.ended));
        }
        line.push('\n');
        self.progress.inc(1);
        self.print(&line)
    }

    /// Prints everything below the last row, and writes the files.
    pub(super) fn end(
        mut self,
        rows: &[Row],
        summary: &Summary,
        memory: Option<&[MemoryUse]>,
        copied: Option<f64>,
    ) -> Result<(), Failure> {
        self.progress.finish_and_clear();
        let mut lines = String::new();
        if let Some(copied) = copied {
            limits(&mut lines, self.test, self.world, rows, copied);
        }
        for (rank, used) in memory.unwrap_or_default().iter().enumerate() {
            let (resident, peak) = (mebibytes(used.resident), mebibytes(used.peak));
            let _ =
                writeln!(lines, "# Rank {rank:2} memory: {resident:.1} MiB, at most {peak:.1} MiB");
        }
        let verdict = if summary.wrong == 0 { "OK" } else { "FAILED" };
        let fast = match summary.is_fast_enough() {
            None => "",
            Some(true) => " OK",
            Some(false) => " FAILED",
        };
        let _ = writeln!(lines, "# Out of bounds values : {} {verdict}", summary.wrong);
        let mean = general(summary.mean_bus_bandwidth());
        let _ = writeln!(lines, "# Avg bus bandwidth    : {mean}{fast}\n#");
        let _ = writeln!(lines, "# Collective test concluded: {}", self.test.program());
        self.print(&lines)?;
        let options = self.options;
        if let Some(path) = &options.output {
            let text = if path.to_ascii_lowercase().ends_with(".json") {
                let run = json::Run {
                    test: self.test,
                    options,
                    places: &self.places,
                    begun: self.begun,
                    rows,
                    summary,
                };
                run.to_text()
            } else {
                std::mem::take(&mut self.text)
            };
            write_file(path, &text)?;
        }
        if let Some(path) = &options.plot {
            write_file(path, &plot::svg(self.test, self.world, rows))?;
        }
        Ok(())
    }

    fn header(&self, comm: &Communicator) -> String {
        let (options, version) = (self.options, env!("CARGO_PKG_VERSION"));
        let (step, kind) = match options.step {
            Step::Bytes(bytes) => (bytes, "bytes"),
            Step::Factor(factor) => (factor, "factor"),
        };
        let threads = if options.threads { self.world } else { 1 };
        let mut lines =
            format!("# annulus {version}, in the format of nccl-tests version {FORMAT}\n");
        let _ = writeln!(lines, "# Collective test starting: {}", self.test.program());
        let _ = writeln!(
            lines,
            "# nThread {threads} nGpus 1 minBytes {} maxBytes {} step: {step}({kind}) warmup iters: {} iters: {} \
             agg iters: {} validation: {} graph: 0 unalign: {}\n#\n# Using devices",
            options.min_bytes,
            options.max_bytes,
            options.warmup,
            options.iterations,
            options.aggregate,
            options.check,
            options.unalign
        );
        for (rank, place) in self.places.iter().enumerate() {
            let Place { pid, host, cpu, .. } = place;
            let _ = writeln!(
                lines,
                "#  Rank {rank:2} Group  0 Pid {pid:6} on {host:>10} device  0 [cpu] {cpu}, reached by {}",
                comm.transport(rank)
            );
        }
        lines.push_str("#\n");
        let extra = if options.per_iteration { PER_ITERATION_HEADS } else { ["", ""] };
        let stamp = if options.timestamps {
            ["            timestamp", "                (UTC)"]
        } else {
            ["", ""]
        };
        let gap = extra[0].len();
        let _ = writeln!(lines, "# {:55}{:^32}{:gap$}{:^32}", "", "out-of-place", "", "in-place");
        let heads = ["     time   algbw   busbw  #wrong", "     (us)  (GB/s)  (GB/s)        "];
        let keys = [
            "        size         count      type   redop    root",
            "         (B)    (elements)                          ",
        ];
        for line in 0..2 {
            let (head, extra) = (heads[line], extra[line]);
            let _ = writeln!(lines, "# {}{head}{extra}{head}{extra}{}", &keys[line], stamp[line]);
        }
        lines
    }

    fn cell(&self, line: &mut String, cell: Option<&Cell>) {
        let Some(cell) = cell else {
            let _ = write!(line, "  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
            if self.options.per_iteration {
                let _ = write!(line, "  {:>7}  {:>7}  {:>7}  {:>6}", "N/A", "N/A", "N/A", "N/A");
            }
            return;
        };
        let Cell { outcome, algorithm_bandwidth, bus_bandwidth } = cell;
        let wrong = outcome.wrong.map_or_else(|| "N/A".to_owned(), |wrong| general(wrong as f64));
        let time = microseconds(outcome.time);
        let _ = write!(
            line,
            "  {time:>7}  {algorithm_bandwidth:>6.2}  {bus_bandwidth:>6.2}  {wrong:>6}"
        );
        if let Some(times) = &outcome.per_iteration {
            let [min, max, p99] = [times.min, times.max, times.p99].map(microseconds);
            let _ = write!(line, "  {min:>7}  {max:>7}  {p99:>7}  {:>6.1}", times.variation());
        }
    }

    fn print(&mut self, lines: &str) -> Result<(), Failure> {
        if self.options.output.is_some() {
            self.text.push_str(lines);
        }
        let write = || {
            let mut out = io::stdout().lock();
            out.write_all(lines.as_bytes())?;
            out.flush()
        };
        self.progress
            .suspend(write)
            .map_err(|source| Failure::Output { what: "the table".to_owned(), source })
    }
}

const PER_ITERATION_HEADS: [&str; 2] =
    ["    i_min    i_max    i_p99   i_cv%", "     (us)     (us)     (us)     (%)"];

/// How far each large row is from the time in which memory alone could carry it.
fn limits(lines: &mut String, test: Test, world: usize, rows: &[Row], copied: f64) {
    let _ = writeln!(
        lines,
        "#\n# Memory: {world} ranks that copy at once read and write {:.1} GB/s together. The limit below is the time for \
         {} bytes of traffic, N being the size and n = {world}: every input read once and every output written once.",
        copied / 1e9,
        test.traffic_formula(),
    );
    lines.push_str("# (Buffers that fit in the caches are not bound by it.)\n");
    for row in rows.iter().filter(|row| row.size >= super::sweep::LARGE) {
        let traffic = test.traffic(row.count, row.number.dtype().size(), world);
        let limit = traffic as f64 / copied * 1e6;
        let reached = |cell: &Cell| format!("{:.2}", limit / cell.outcome.time);
        let in_place = row.in_place.as_ref().map_or("N/A".to_owned(), reached);
        let _ = writeln!(
            lines,
            "# limit {:>12} B {:>8} {:>6}: {:>7} us, reached out of place {}, in place {in_place}",
            row.size,
            row.number.name(),
            row.operator.name(),
            microseconds(limit),
            reached(&row.out_of_place),
        );
    }
    lines.push_str("#\n");
}

fn progress(rows: Option<usize>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = match rows {
        Some(rows) => ProgressBar::new(rows as u64),
        None => ProgressBar::no_length(),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} rows, {eta} left") {
        bar.set_style(style);
    }
    bar
}

fn write_file(path: &str, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|source| Failure::Output { what: path.to_owned(), source })
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// At most seven characters, as precise as they allow.
fn microseconds(time: f64) -> String {
    let digits = match time {
        time if time >= 10_000.0 => 0,
        time if time >= 100.0 => 1,
        _ => 2,
    };
    format!("{time:.digits$}")
}

/// A number as C's `%g` prints it.
fn general(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return format!("{number}");
    }
    let scientific = format!("{number:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        trim(&format!("{number:.0$}", (5 - exponent).max(0) as usize))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_like_those_of_c() {
        for (number, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (123.4, "123.4"),
            (0.123_456_78, "0.123457"),
            (0.000_012_345, "1.2345e-05"),
            (999_999.5, "1e+06"),
            (12_345_678.0, "1.23457e+07"),
            (100_000.0, "100000"),
        ] {
            assert_eq!(general(number), text, "{number}");
        }
    }

    #[test]
    fn times_fit_their_column() {
        let texts = [0.1, 99.994, 100.0, 9999.94, 10_000.0, 1_234_567.0].map(microseconds);
        assert_eq!(texts, ["0.10", "99.99", "100.0", "9999.9", "10000", "1234567"]);
    }
}
