//! What a run was like, as one line of text from the process that trained to the one that prints the table.

use std::time::Duration;

/// One run: a mode and a number of ranks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) mode: String,
    pub(crate) ranks: usize,
    pub(crate) loss: f64,
    pub(crate) accuracy: f64,
    pub(crate) step: Duration,
    pub(crate) compute: Duration,
    pub(crate) exposed: Duration,
    pub(crate) hidden: Duration,
    pub(crate) waiting: Duration,
    /// Bytes that all ranks send per step.
    pub(crate) traffic: f64,
    /// Bytes of resident memory of all processes, at their peak.
    pub(crate) memory: f64,
    pub(crate) weights: String,
}

const MARK: &str = "outcome: ";

impl Outcome {
    pub(crate) fn print(&self) {
        let seconds = [self.step, self.compute, self.exposed, self.hidden, self.waiting];
        let seconds = seconds.map(|time| time.as_secs_f64().to_string()).join(" ");
        let Self { mode, ranks, loss, accuracy, traffic, memory, weights, .. } = self;
        println!("{MARK}{mode} {ranks} {loss} {accuracy} {seconds} {traffic} {memory} {weights}");
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.strip_prefix(MARK)?.split(' ').collect();
        let number = |at: usize| words.get(at)?.parse::<f64>().ok();
        let time = |at: usize| Some(Duration::from_secs_f64(number(at)?.max(0.0)));
        Some(Self {
            mode: (*words.first()?).to_owned(),
            ranks: words.get(1)?.parse().ok()?,
            loss: number(2)?,
            accuracy: number(3)?,
            step: time(4)?,
            compute: time(5)?,
            exposed: time(6)?,
            hidden: time(7)?,
            waiting: time(8)?,
            traffic: number(9)?,
            memory: number(10)?,
            weights: (*words.get(11)?).to_owned(),
        })
    }
}

/// The peak of this process's resident memory, in bytes.
pub(crate) fn peak_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kibibytes.unwrap_or(0.0) * 1024.0
}

pub(crate) fn print_table(outcomes: &[Outcome]) {
    println!();
    println!(
        "| mode | ranks | test loss | accuracy | step | scaling efficiency | exposed | hidden share | traffic per step | peak memory | weights |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for outcome in outcomes {
        let alone = outcomes.iter().find(|other| other.ranks == 1 && other.mode == outcome.mode);
        let efficiency = alone.map_or("-".to_owned(), |alone| {
            let all = outcome.ranks as f64 * outcome.step.as_secs_f64();
            format!("{:.0} %", 100.0 * alone.step.as_secs_f64() / all)
        });
        let communication = outcome.exposed + outcome.hidden;
        let (exposed, share) = if outcome.mode == "ddp" && outcome.ranks > 1 {
            let share = outcome.hidden.as_secs_f64() / communication.as_secs_f64().max(1e-12);
            (
                format!("{:.2} ms", outcome.exposed.as_secs_f64() * 1e3),
                format!("{:.0} %", 100.0 * share),
            )
        } else {
            ("-".to_owned(), "-".to_owned())
        };
        println!(
            "| {} | {} | {:.4} | {:.1} % | {:.2} ms | {efficiency} | {exposed} | {share} | {:.0} KiB | {:.0} MiB | {} |",
            outcome.mode,
            outcome.ranks,
            outcome.loss,
            100.0 * outcome.accuracy,
            outcome.step.as_secs_f64() * 1e3,
            outcome.traffic / 1024.0,
            outcome.memory / (1024.0 * 1024.0),
            outcome.weights,
        );
    }
}
