//! The results as a file for programs: nccl-tests' JSON, version 3.

use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::machine::Place;
use super::options::{Average, Options, Step};
use super::sweep::{Cell, Row, Summary, Verdict};
use super::{Test, timestamp};

/// A run that has ended.
pub(super) struct Run<'a> {
    pub(super) test: Test,
    pub(super) options: &'a Options,
    pub(super) places: &'a [Place],
    pub(super) begun: SystemTime,
    pub(super) rows: &'a [Row],
    pub(super) summary: &'a Summary,
}

impl Run<'_> {
    pub(super) fn to_text(&self) -> String {
        let summary = self.summary;
        let whole = json!({
            "version": 3,
            "start_time": timestamp::utc(self.begun),
            "args": std::env::args().collect::<Vec<_>>(),
            "env": environment(),
            "nccl_version": format!("annulus {}", env!("CARGO_PKG_VERSION")),
            "config": self.config(),
            "devices": self.devices(),
            "results": self.rows.iter().map(|row| self.result(row)).collect::<Vec<_>>(),
            "out_of_bounds": { "count": summary.wrong, "okay": summary.wrong == 0 },
            "average_bus_bandwidth": {
                "bandwidth": summary.mean_bus_bandwidth(),
                "okay": summary.is_fast_enough().unwrap_or(true),
            },
            "errors": match summary.verdict() {
                Verdict::Good => vec![],
                Verdict::Bad => vec![json!("results are wrong or too slow")],
            },
            "end_time": timestamp::utc(SystemTime::now()),
        });
        format!("{whole:#}\n")
    }

    fn config(&self) -> Value {
        let options = self.options;
        let (step_bytes, step_factor) = match options.step {
            Step::Bytes(bytes) => (bytes, 1),
            Step::Factor(factor) => (0, factor),
        };
        json!({
            "collective": self.test.program(),
            "nthreads": if options.threads { self.places.len() } else { 1 },
            "ngpus": 1,
            "minimum_bytes": options.min_bytes,
            "maximum_bytes": options.max_bytes,
            "step_bytes": step_bytes,
            "step_factor": step_factor,
            "warmup_iterations": options.warmup,
            "iterations": options.iterations,
            "aggregated_iterations": options.aggregate,
            "run_cycles": options.cycles,
            "validation": options.check,
            "unalign": options.unalign,
            "average": match options.average {
                Average::Rank0 => "rank 0",
                Average::Mean => "average",
                Average::Least => "minimum",
                Average::Most => "maximum",
            },
            "graph": 0,
        })
    }

    fn devices(&self) -> Vec<Value> {
        let device = |(rank, place): (usize, &Place)| {
            json!({
                "rank": rank,
                "group": 0,
                "pid": place.pid,
                "hostname": place.host,
                "device": 0,
                "device_hex": "cpu",
                "device_info": place.cpu,
            })
        };
        self.places.iter().enumerate().map(device).collect()
    }

    fn result(&self, row: &Row) -> Value {
        let mut result = Map::new();
        let mut add = |name: &str, value: Value| result.insert(name.to_owned(), value);
        add("size", row.size.into());
        add("count", row.count.into());
        add("type", row.number.name().into());
        add("redop", row.operator.name().into());
        add("root", row.root.map_or(-1, |root| root as i64).into());
        add("out_of_place", cell(&row.out_of_place));
        add("in_place", row.in_place.as_ref().map_or(Value::Null, cell));
        add("actual_iterations", self.options.iterations.into());
        add("experiment_name", self.test.program().into());
        for (name, cell) in
            [("out_of_place", Some(&row.out_of_place)), ("in_place", row.in_place.as_ref())]
        {
            if let Some(times) = cell.and_then(|cell| cell.outcome.per_iteration.as_ref()) {
                let statistics = json!({
                    "min": times.min,
                    "max": times.max,
                    "avg": times.mean,
                    "p50": times.p50,
                    "p95": times.p95,
                    "p99": times.p99,
                    "stdev": times.deviation,
                    "cv": times.variation(),
                    "times_us": times.samples,
                });
                add(&format!("{name}_per_iter"), statistics);
            }
        }
        Value::Object(result)
    }
}

fn cell(cell: &Cell) -> Value {
    json!({
        "time": cell.outcome.time,
        "alg_bw": cell.algorithm_bandwidth,
        "bus_bw": cell.bus_bandwidth,
        "nwrong": cell.outcome.wrong,
    })
}

/// What may have shaped the run. Secrets stay out.
fn environment() -> Vec<String> {
    let relevant = |name: &str| {
        (name.starts_with("ANNULUS_") || name.starts_with("NCCL_")) && !name.contains("SECRET")
    };
    let mut variables: Vec<_> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
        .filter(|(name, _)| relevant(name))
        .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
        .collect();
    variables.sort();
    variables
}
