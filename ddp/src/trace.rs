//! Steps on a time line, for `chrome://tracing` and Perfetto.

use std::fs;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use annulus::Communicator;
use serde_json::{Value, json};

use crate::{Error, StepReport, agreement};

/// One rank's steps in the Chrome trace format: backward passes on one line, bucket reductions on another.
///
/// Times are those of the host's clock, so that the events of several ranks can be put into one file.
#[derive(Debug)]
pub struct Trace {
    rank: usize,
    events: Vec<Value>,
    /// One moment by both clocks.
    instant: Instant,
    microseconds: f64,
}

impl Trace {
    /// An empty trace of `rank`.
    pub fn new(rank: usize) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = |line: u64, name: &str| json!({"ph": "M", "pid": rank, "tid": line, "name": "thread_name", "args": {"name": name}});
        let process = json!({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": format!("rank {rank}")}});
        let events = vec![process, name(0, "training"), name(1, "buckets")];
        Self {
            rank,
            events,
            instant: Instant::now(),
            microseconds: since_epoch.as_secs_f64() * 1e6,
        }
    }

    /// Adds a step.
    pub fn add(&mut self, report: &StepReport) {
        let step = report.step;
        self.event(
            0,
            &format!("step {step}: compute"),
            report.begun,
            report.backward_ended,
            json!({
                "input_us": report.input.as_secs_f64() * 1e6,
                "reducer_us": report.reducer.as_secs_f64() * 1e6,
            }),
        );
        for span in &report.spans {
            let name = format!("step {step}: bucket {}", span.bucket);
            self.event(1, &name, span.start, span.end, json!({}));
        }
        if report.synchronised {
            let end = report.backward_ended + report.exposed;
            self.event(
                0,
                &format!("step {step}: exposed communication"),
                report.backward_ended,
                end,
                json!({
                    "waiting_us": report.waiting.as_secs_f64() * 1e6,
                    "slowest_rank": report.slowest,
                    "sent_bytes": report.sent_bytes,
                }),
            );
        }
    }

    /// The trace as JSON.
    pub fn to_json(&self) -> String {
        whole(&self.events)
    }

    /// Writes the trace to a file.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        fs::write(path, self.to_json()).map_err(|error| Error::file(path, error))
    }

    /// Writes all ranks' steps to one file, on the first rank that has not joined, so that they can be compared on one time line. Blocks;
    /// all ranks must call it. Those that have [joined](crate::Reducer::join) are left out.
    ///
    /// # Errors
    /// [`Error::File`] on every rank, if that rank cannot write it; [`Error::Communication`].
    pub fn write_together(&self, comm: &Communicator, path: &Path) -> Result<(), Error> {
        let events = Value::from(self.events.as_slice()).to_string().into_bytes();
        let mut lengths = vec![0; comm.world_size()];
        comm.all_gather_into(&[events.len() as u64], &mut lengths)?;
        let longest = lengths.iter().max().map_or(0, |&longest| longest as usize);
        let mut mine = events;
        mine.resize(longest, 0);
        let writer = agreement::first_present(comm)?;
        let writes = comm.rank() == writer;
        let mut all = vec![0; if writes { longest * comm.world_size() } else { 0 }];
        comm.gather_into(&mine, writes.then_some(&mut all[..]), writer)?;
        let write = || {
            let mut events: Vec<Value> = Vec::new();
            let parts = lengths.iter().zip(all.chunks_exact(longest));
            for (length, part) in parts.filter(|(length, _)| **length > 0) {
                let part = serde_json::from_slice(&part[..*length as usize]);
                events.extend::<Vec<Value>>(part.map_err(|error| Error::file(path, error))?);
            }
            fs::write(path, whole(&events)).map_err(|error| Error::file(path, error))
        };
        let outcome = if writes { write() } else { Ok(()) };
        agreement::together(comm, outcome, |complaints| Error::refused(path, &complaints))
    }

    fn event(&mut self, line: u64, name: &str, start: Instant, end: Instant, args: Value) {
        let at = match start.checked_duration_since(self.instant) {
            Some(later) => self.microseconds + later.as_secs_f64() * 1e6,
            None => self.microseconds - self.instant.duration_since(start).as_secs_f64() * 1e6,
        };
        let duration = end.saturating_duration_since(start).as_secs_f64() * 1e6;
        self.events.push(json!({
            "ph": "X", "pid": self.rank, "tid": line, "name": name, "ts": at, "dur": duration, "args": args,
        }));
    }
}

fn whole(events: &[Value]) -> String {
    json!({"traceEvents": events, "displayTimeUnit": "ms"}).to_string()
}
