//! Ranks as processes, one of which is killed: the others hear of it, also when it was the root's.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use annulus::bootstrap::{Membership, Notice, Options};
use annulus::launch::Launch;

const PATIENT: Duration = Duration::from_secs(60);

/// Set in the ranks' processes only.
const MARK: &str = "ANNULUS_TEST_RANK_PROCESS";

/// Not a test by itself: what each rank's process runs, with a launcher's variables.
#[test]
fn rank_process() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    let launch = Launch::from_env().expect("a launch");
    let (sender, notices) = channel();
    let on_notice = Arc::new(move |notice| {
        let _ = sender.send(notice);
    });
    let options = Options {
        timeout: PATIENT,
        on_notice,
        interfaces: None,
        settings: 0,
        heartbeat: None,
        encrypt: false,
    };
    let _membership = Membership::launched(&launch, &options).expect("joined");
    println!("\njoined");
    while let Ok(notice) = notices.recv_timeout(PATIENT) {
        if let Notice::Lost { rank, .. } = notice {
            println!("\nlost {rank}");
            return;
        }
    }
}

struct Rank {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Rank {
    fn start(rank: usize, world: usize, name: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "rank_process", "--nocapture", "--test-threads=1"])
            .env(MARK, "1")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world.to_string())
            .env("LOCAL_WORLD_SIZE", world.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "1")
            .env("TORCHELASTIC_RUN_ID", format!("{name}-{}", std::process::id()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Self { process, lines }
    }

    /// Waits until it says `words`.
    fn says(&mut self, words: &str) -> bool {
        self.lines.by_ref().map_while(Result::ok).any(|line| line == words)
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn kill(victim: usize, name: &str) {
    let mut ranks: Vec<_> = (0..3).map(|rank| Rank::start(rank, 3, name)).collect();
    assert!(ranks.iter_mut().all(|rank| rank.says("joined")));
    ranks[victim].process.kill().expect("killed");
    for (rank, process) in ranks.iter_mut().enumerate() {
        if rank != victim {
            assert!(process.says(&format!("lost {victim}")), "rank {rank}");
        }
    }
}

#[test]
fn the_others_hear_of_a_killed_rank() {
    kill(1, "killed-one");
}

#[test]
fn the_others_hear_of_a_killed_root() {
    kill(0, "killed-root");
}
