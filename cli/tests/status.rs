//! `annulus status`, on ranks that hang and on ranks that are stopped.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use annulus::{Communicator, ReduceOp};
use rustix::process::{Pid, Signal, kill_process};

#[path = "process/mod.rs"]
mod process;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus");
/// Set in the ranks' processes only.
const MARK: &str = "ANNULUS_TEST_STATUS_RANK";

/// Not a test by itself: what each rank's process runs.
#[test]
fn rank_process() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    let comm = Communicator::from_env().expect("the ranks meet");
    for _ in 0..3 {
        comm.all_reduce(&mut [1.0_f32; 2], ReduceOp::Sum).expect("both are here");
    }
    println!("\npid {}", std::process::id());
    if comm.rank() == 0 {
        let _ = comm.all_reduce(&mut [1.0_f32; 2], ReduceOp::Sum);
    }
    thread::sleep(process::PATIENCE);
}

/// A job whose rank 1 has not come to its fourth call.
struct Job {
    launcher: Child,
    ranks: Vec<Pid>,
}

impl Job {
    fn start(variables: &[(&str, &str)]) -> Self {
        let exe = std::env::current_exe().expect("this test");
        let mut command = process::command(ANNULUS, &["run", "-n", "2", "--"]);
        command.arg(exe).args(["--exact", "rank_process", "--nocapture", "--test-threads=1"]);
        command.env(MARK, "1").envs(variables.iter().copied());
        let mut launcher = command.stdout(Stdio::piped()).spawn().expect("annulus run");
        let lines = BufReader::new(launcher.stdout.take().expect("piped")).lines();
        let pid = |line: String| line.split_once("] pid ")?.1.parse().ok().and_then(Pid::from_raw);
        let ranks = lines.map_while(Result::ok).filter_map(pid).take(2).collect();
        Self { launcher, ranks }
    }

    fn signal(&self, signal: Signal) {
        for &rank in &self.ranks {
            kill_process(rank, signal).expect("it lives");
        }
    }
}

impl Drop for Job {
    /// The ranks are killed with their launcher.
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

fn status(targets: &[&str]) -> String {
    let ended = process::run(ANNULUS, &[&["status"], targets].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.out
}

/// Asks until the answer contains `words`.
fn eventually(targets: &[&str], words: &str) -> String {
    let begin = Instant::now();
    loop {
        let text = status(targets);
        if text.contains(words) || begin.elapsed() > process::PATIENCE {
            assert!(text.contains(words), "{words}: {text}");
            return text;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The numbers of the operations in `text`. Those that had to wait are listed by themselves.
fn listed(text: &str) -> Vec<u64> {
    let numbers =
        text.lines().filter_map(|line| line.trim_start().strip_prefix('#')?.split_once(' '));
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let ranges = numbers.map(|(numbers, _)| numbers.split_once("..").unwrap_or((numbers, numbers)));
    ranges.flat_map(|(first, last)| number(first)..=number(last)).collect()
}

#[test]
fn hung_and_stopped_ranks_are_shown() {
    let job = Job::start(&[]);
    let launcher = job.launcher.id().to_string();
    let waiting = "in all_reduce(count 2, f32, sum) as operation 4 for ";
    let text = eventually(&[&launcher], ", waiting for rank 1;");
    assert!(text.contains(waiting), "{text}");
    assert!(text.contains(": 2 of 2 ranks"), "{text}");
    assert!(text.contains("rank 1 have not come to collective 4:"), "{text}");
    job.signal(Signal::STOP);
    let stopped = status(&["--operations", &launcher]);
    assert!(stopped.contains(waiting), "{stopped}");
    assert!(stopped.contains(" all_reduce(count 2, f32, sum) as operation 1"), "{stopped}");
    let of_rank_1 = stopped.split("\nrank 1 of 2 ").nth(1).expect("its operations");
    assert_eq!(listed(of_rank_1), [1, 2, 3], "{stopped}");
    let named = format!("TEST_JOB={}", std::process::id());
    let other = Job::start(&[("TEST_JOB", &named[9..])]);
    let text = eventually(&[&named], ", waiting for rank 1;");
    assert!(text.matches("communicator").count() == 1, "not the first job too: {text}");
    drop(other);
    let one = status(&[&job.ranks[0].as_raw_nonzero().to_string()]);
    assert!(one.contains(": 1 of 2 ranks"), "{one}");
}

#[test]
fn dumps_are_written_at_a_signal_and_merged() {
    let folder = std::env::temp_dir().join(format!("annulus-status-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let job = Job::start(&[("ANNULUS_DUMP", folder.to_str().expect("text"))]);
    eventually(&[&job.launcher.id().to_string()], ", waiting for rank 1;");
    job.signal(Signal::USR1);
    let begin = Instant::now();
    let dumps = loop {
        let files: Vec<String> = std::fs::read_dir(&folder)
            .expect("it is there")
            .flatten()
            .map(|file| file.path().to_string_lossy().into_owned())
            .filter(|path| !path.contains("/."))
            .collect();
        if files.len() == 2 || begin.elapsed() > process::PATIENCE {
            break files;
        }
        thread::sleep(Duration::from_millis(20));
    };
    drop(job);
    let paths: Vec<&str> = dumps.iter().map(String::as_str).collect();
    let text = status(&paths);
    std::fs::remove_dir_all(&folder).expect("it is ours");
    assert!(text.contains(": 2 of 2 ranks"), "{text}");
    assert!(text.contains("rank 1 have not come to collective 4:"), "{text}");
}

#[test]
fn what_cannot_be_shown_is_refused() {
    for (targets, reason) in [
        (["4294967295"], "there is no process 4294967295"),
        (["no-such-file"], "neither the number of a process, nor a variable"),
        (["NO_SUCH_JOB=1"], "has NO_SUCH_JOB=1 in its environment"),
        (["/proc/self/status"], "no flight records"),
    ] {
        let ended = process::run(ANNULUS, &["status", targets[0]]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.err.contains(reason), "{ended:?}");
    }
}
