//! Starts the ranks' processes, lets the fault strike, and waits for what comes of it.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::cast::{Line, Outcome};
use super::network::Network;
use super::random::Random;
use super::scenario::{Fault, Links, Scenario};
use super::verdict::{Testimony, judge};

/// How long a whole run may take.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long the survivors may take to notice, and to end their calls. Far more than they need, since machines are busy, and
/// less than a call's deadline, which must not be what ends it.
const NOTICE: Duration = Duration::from_secs(25);
/// The option that makes a worker a [newcomer](super::work_as_newcomer) of so many ranks.
const NEWCOMER: &str = "--newcomer-of";
/// In the environment of each process of a run.
const JOB: &str = "ANNULUS_CHAOS_JOB";

/// A run that went wrong, with all that its processes printed.
#[derive(Debug)]
pub struct Failure {
    scenario: Scenario,
    problem: String,
    logs: Logs,
}

/// What the processes of a run have printed, by rank.
#[derive(Debug)]
pub struct Logs(Vec<Vec<String>>);

impl fmt::Display for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, log) in self.0.iter().enumerate() {
            for line in log {
                writeln!(f, "  rank {rank}: {line}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "FAILED {}: {}", self.scenario, self.problem)?;
        write!(f, "{}", self.logs)
    }
}

/// Runs `scenario`. `worker`: the program and its arguments that run [`work`](super::work), or with `--newcomer-of N`
/// [`work_as_newcomer`](super::work_as_newcomer); `--rank R` is appended. `network`: needed for
/// scenarios over [`Links::Network`]. Blocks for about a second, at most for a minute and a half, and leaves no process behind.
///
/// # Errors
/// When somebody hangs, gets a wrong element, names the wrong ranks or leaves something behind.
pub fn run(
    scenario: &Scenario,
    worker: (&Path, &[String]),
    network: Option<&Network>,
) -> Result<Logs, Box<Failure>> {
    let files = left_files();
    let mut run = Run::new(scenario);
    let outcome = run.play(worker, network);
    // Also when it went wrong: the next run wants the network whole.
    let outcome = run.relent(network).and(outcome);
    run.end();
    let problem = match outcome {
        Ok(()) => run.judge().and_then(|()| run.nothing_left(&files)),
        Err(problem) => Err(problem),
    };
    let logs = Logs(run.ranks.into_iter().map(|rank| rank.log).collect());
    match problem {
        Ok(()) => Ok(logs),
        Err(problem) => Err(Box::new(Failure { scenario: scenario.clone(), problem, logs })),
    }
}

struct Run<'a> {
    scenario: &'a Scenario,
    job: String,
    ranks: Vec<Rank>,
    sender: Sender<(usize, Option<String>)>,
    said: Receiver<(usize, Option<String>)>,
    begun: Instant,
    deadline: Instant,
}

/// A rank's process, and what has been heard of it.
struct Rank {
    process: Child,
    orders: Option<ChildStdin>,
    log: Vec<String>,
    lines: Vec<Line>,
    /// Its pipe has ended, and with it the process.
    ended: bool,
    killed: bool,
    exited_well: bool,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let (sender, said) = channel();
        let job = format!("{}-{}", std::process::id(), scenario.seed);
        let begun = Instant::now();
        let deadline = begun + PATIENCE;
        Self { scenario, job, ranks: Vec::new(), sender, said, begun, deadline }
    }

    fn play(
        &mut self,
        worker: (&Path, &[String]),
        network: Option<&Network>,
    ) -> Result<(), String> {
        let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        for rank in 0..self.scenario.world {
            self.start(rank, worker, network).map_err(failed("cannot start a process"))?;
        }
        self.wait("rank 0 names the job", |ranks| ranks[0].id().is_some())?;
        let id = self.ranks[0].id().unwrap_or_default().to_owned();
        for rank in &mut self.ranks[1..] {
            rank.order(&id);
        }
        let met = |rank: &Rank| rank.has(&Line::Ready) || rank.outcome() != Outcome::Silent;
        self.wait("all ranks meet", |ranks| ranks.iter().all(met))?;
        self.listen_for(self.scenario.strike);
        self.strike(network)?;
        let scenario = self.scenario;
        let lost = scenario.lost();
        let reports = |rank: &Rank| rank.ended || rank.outcome() != Outcome::Silent;
        let whole = std::mem::replace(&mut self.deadline, Instant::now() + NOTICE);
        self.wait("each survivor's calls end", |ranks| {
            let mut survivors = ranks.iter().enumerate().filter(|(rank, _)| !lost.contains(rank));
            survivors.all(|(_, rank)| reports(rank))
        })?;
        self.deadline = whole;
        self.relent(network)?;
        self.wait("the calls of those given up end", |ranks| ranks.iter().all(reports))?;
        if scenario.shrinks() {
            self.go_on(&lost, worker, network)?;
        }
        for rank in &mut self.ranks {
            rank.order("leave");
        }
        self.wait("all processes end", |ranks| ranks.iter().all(|rank| rank.ended))
    }

    /// Waits until the survivors have gone on without the lost, and with a new process if they want one.
    fn go_on(
        &mut self,
        lost: &[usize],
        (program, arguments): (&Path, &[String]),
        network: Option<&Network>,
    ) -> Result<(), String> {
        if self.scenario.grows() {
            self.wait("a survivor invites", |ranks| {
                ranks.iter().any(|rank| rank.invitation().is_some() || rank.is_stuck())
                    || ranks.iter().all(|rank| rank.ended)
            })?;
            let invitation = self.ranks.iter().find_map(Rank::invitation);
            if let Some((id, world)) = invitation.map(|(id, world)| (id.to_owned(), world)) {
                let newcomer = self.ranks.len();
                let arguments = [arguments, &[NEWCOMER.to_owned(), world.to_string()]].concat();
                self.start(newcomer, (program, &arguments), network)
                    .map_err(|error| format!("cannot start a process: {error}"))?;
                self.ranks[newcomer].order(&id);
            }
        }
        let (grows, world) = (self.scenario.grows(), self.scenario.world);
        self.wait("the survivors go on", |ranks| {
            let mut going = ranks.iter().enumerate().filter(|(rank, _)| !lost.contains(rank));
            going.all(|(rank, state)| {
                let sizes = usize::from(rank < world) + usize::from(grows);
                state.ended || state.is_stuck() || state.went_on().len() >= sizes
            })
        })
    }

    fn start(
        &mut self,
        rank: usize,
        (program, arguments): (&Path, &[String]),
        network: Option<&Network>,
    ) -> io::Result<()> {
        let mut command = match (network, self.scenario.links) {
            (Some(network), Links::Network) => network.command(self.scenario.host(rank), program),
            _ => Command::new(program),
        };
        let (reader, writer) = io::pipe()?;
        command
            .args(arguments)
            .args(["--rank", &rank.to_string()])
            .env(JOB, &self.job)
            .env("RUST_BACKTRACE", "0");
        command.stdin(Stdio::piped()).stdout(writer.try_clone()?).stderr(writer);
        let mut process = command.spawn()?;
        drop(command); // and with it this end of the pipe
        let orders = process.stdin.take();
        let sender = self.sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                let _ = sender.send((rank, Some(line)));
            }
            let _ = sender.send((rank, None));
        });
        let (log, lines) = (Vec::new(), Vec::new());
        let (ended, killed, exited_well) = (false, false, false);
        self.ranks.push(Rank { process, orders, log, lines, ended, killed, exited_well });
        Ok(())
    }

    /// Lets the fault strike that comes from outside.
    fn strike(&mut self, network: Option<&Network>) -> Result<(), String> {
        let mut random = Random::new(self.scenario.seed, u64::MAX);
        let network = || network.ok_or("there is no network for this scenario");
        match self.scenario.fault.clone() {
            Fault::Kill(victims) => {
                for victim in victims {
                    self.ranks[victim].kill();
                    let log = &mut self.ranks[victim].log;
                    log.push(format!("{:7.3} s: killed", self.begun.elapsed().as_secs_f64()));
                    if random.chance(2) {
                        self.listen_for(Duration::from_millis(random.below(30) as u64));
                    }
                }
            }
            Fault::Pause(rank, time) => {
                self.ranks[rank].signal(Signal::STOP);
                self.listen_for(time);
                self.ranks[rank].signal(Signal::CONT);
            }
            Fault::Stop(rank) => self.ranks[rank].signal(Signal::STOP),
            Fault::Delay(host) => network()?.hinder(host, true).map_err(|e| e.to_string())?,
            Fault::Flap(host, time) => {
                network()?.connect(host, false).map_err(|e| e.to_string())?;
                self.listen_for(time);
                network()?.connect(host, true).map_err(|e| e.to_string())?;
            }
            Fault::Partition(host) => {
                network()?.connect(host, false).map_err(|e| e.to_string())?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends what the fault has begun.
    fn relent(&mut self, network: Option<&Network>) -> Result<(), String> {
        match (&self.scenario.fault, network) {
            (Fault::Stop(rank), _) => self.ranks[*rank].signal(Signal::CONT),
            (Fault::Delay(host), Some(network)) => {
                network.hinder(*host, false).map_err(|e| e.to_string())?;
            }
            (Fault::Partition(host) | Fault::Flap(host, _), Some(network)) => {
                network.connect(*host, true).map_err(|e| e.to_string())?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Listens until `done`; an error: the deadline has come first.
    fn wait(&mut self, what: &str, done: impl Fn(&[Rank]) -> bool) -> Result<(), String> {
        while !done(&self.ranks) {
            if self.ranks.iter().all(|rank| rank.ended) {
                return Err(format!("all processes ended before this: {what}"));
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if !self.listen(left) {
                let silent = |(rank, state): (usize, &Rank)| (!state.ended).then_some(rank);
                let running: Vec<_> = self.ranks.iter().enumerate().filter_map(silent).collect();
                return Err(format!(
                    "hang: not before the deadline: {what}; ranks {running:?} run"
                ));
            }
        }
        Ok(())
    }

    fn listen_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while self.listen(until.saturating_duration_since(Instant::now())) {}
    }

    /// Hears one line; `false`: there was none in time.
    fn listen(&mut self, time: Duration) -> bool {
        match self.said.recv_timeout(time) {
            Ok((rank, Some(text))) => {
                let rank = &mut self.ranks[rank];
                rank.lines.extend(Line::parse(&text));
                rank.log.push(format!("{:7.3} s: {text}", self.begun.elapsed().as_secs_f64()));
                true
            }
            Ok((rank, None)) => {
                self.ranks[rank].ended = true;
                true
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Whatever has happened: no process stays.
    fn end(&mut self) {
        for rank in &mut self.ranks {
            if !rank.ended {
                let _ = rank.process.kill();
            }
            rank.exited_well = rank.process.wait().is_ok_and(|status| status.success());
        }
    }

    /// Whether nothing of the job is there any more. `before`: files that were there before it.
    fn nothing_left(&self, before: &HashSet<String>) -> Result<(), String> {
        no_process_left(&self.job)?;
        // Others may be at work on this machine, who leave files of their own.
        let own = |file: &&String| {
            self.ranks.iter().any(|rank| file.contains(&rank.process.id().to_string()))
        };
        match left_files().difference(before).find(own) {
            Some(file) => Err(format!("{file} is left")),
            None => Ok(()),
        }
    }

    fn judge(&self) -> Result<(), String> {
        let testimony = |rank: &Rank| Testimony {
            outcome: rank.outcome(),
            was_final: rank.has(&Line::Final),
            struck: rank.has(&Line::Strikes),
            went_on: rank.went_on(),
            stuck: rank.lines.iter().find_map(|line| match line {
                Line::Stuck(why) => Some(why.clone()),
                _ => None,
            }),
            clean: rank.has(&Line::Clean),
            exited_well: rank.exited_well,
            killed: rank.killed,
        };
        let ranks: Vec<_> = self.ranks.iter().map(testimony).collect();
        judge(self.scenario, &ranks)
    }
}

impl Rank {
    fn id(&self) -> Option<&str> {
        self.lines.iter().find_map(|line| match line {
            Line::Id(id) => Some(id.as_str()),
            _ => None,
        })
    }

    fn has(&self, line: &Line) -> bool {
        self.lines.contains(line)
    }

    fn invitation(&self) -> Option<(&str, usize)> {
        self.lines.iter().find_map(|line| match line {
            Line::Invitation(id, world) => Some((id.as_str(), *world)),
            _ => None,
        })
    }

    fn is_stuck(&self) -> bool {
        self.lines.iter().any(|line| matches!(line, Line::Stuck(_)))
    }

    fn went_on(&self) -> Vec<usize> {
        let sizes = self.lines.iter().filter_map(|line| match line {
            Line::WentOn(ranks) => Some(*ranks),
            _ => None,
        });
        sizes.collect()
    }

    fn outcome(&self) -> Outcome {
        let outcome = self.lines.iter().find_map(|line| match line {
            Line::Outcome(outcome) => Some(outcome.clone()),
            _ => None,
        });
        outcome.unwrap_or(Outcome::Silent)
    }

    /// Sends a line, which a process that is gone does not read.
    fn order(&mut self, order: &str) {
        if let Some(orders) = &mut self.orders {
            let _ = orders.write_all(format!("{order}\n").as_bytes());
        }
    }

    fn kill(&mut self) {
        self.killed = true;
        let _ = self.process.kill();
    }

    fn signal(&self, signal: Signal) {
        // It was not waited for yet: the number is still its own.
        if let Some(pid) = Pid::from_raw(self.process.id() as i32) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Whether no process of the job is there any more.
fn no_process_left(job: &str) -> Result<(), String> {
    let mark = format!("{JOB}={job}");
    let entries = std::fs::read_dir("/proc").map_err(|error| format!("/proc: {error}"))?;
    for entry in entries.filter_map(Result::ok) {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes()) {
            return Err(format!("process {} is left", entry.file_name().display()));
        }
    }
    Ok(())
}

/// Files that may be Annulus's where a library leaves files.
fn left_files() -> HashSet<String> {
    let folders = ["/dev/shm", "/tmp"].iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    let paths =
        folders.flatten().filter_map(|entry| Some(entry.ok()?.path().display().to_string()));
    paths.filter(|path| path.contains("annulus")).collect()
}
