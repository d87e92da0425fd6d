//! Ranks as processes through the public API: they compute together, and a killed one is named by the others.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use annulus::{Communicator, Config, Error, Launch, ReduceOp, Transport};

/// Set in the ranks' processes only.
const MARK: &str = "ANNULUS_TEST_PROCESS";
const VICTIM: usize = 1;

/// Not a test by itself: what each rank's process runs, with a launcher's variables. It calls until a call fails, and
/// prints what it got.
#[test]
fn rank_process() {
    let Some(transport) = std::env::var_os(MARK) else { return };
    let mut config = Config::default();
    config.timeout = std::time::Duration::from_secs(60);
    config.transport = transport.to_str().and_then(Transport::from_name).expect("a transport");
    let launch = Launch::from_env().expect("a launch");
    let comm = Communicator::launched(&launch, &config).expect("ranks meet");
    let ranks = comm.world_size() as f32;
    let mut calls = 0;
    let error = loop {
        let mut small = [1.0_f32; 4];
        let mut large = vec![2.0_f32; 100_000];
        if let Err(error) = comm.all_reduce(&mut small, ReduceOp::Sum) {
            break error;
        }
        if let Err(error) = comm.all_reduce(&mut large, ReduceOp::Sum) {
            break error;
        }
        assert_eq!((small[3], large[99_999]), (ranks, 2.0 * ranks));
        calls += 1;
        if calls == 3 {
            println!("\nworks");
        }
    };
    let again = comm.barrier().expect_err("broken for good");
    assert_eq!(error.to_string(), again.to_string());
    let lost = match error {
        Error::RankLost { lost, .. } => lost.to_string(),
        other => other.to_string(),
    };
    println!("\nlost {lost}");
}

struct Rank {
    process: Child,
    lines: Box<dyn Iterator<Item = String>>,
}

impl Rank {
    fn start(rank: usize, world: usize, transport: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "rank_process", "--nocapture", "--test-threads=1"])
            .env(MARK, transport)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world.to_string())
            .env("LOCAL_WORLD_SIZE", world.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "1")
            .env("TORCHELASTIC_RUN_ID", format!("{transport}-{}", std::process::id()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Self { process, lines: Box::new(lines.map_while(Result::ok)) }
    }

    fn says(&mut self, beginning: &str) -> Option<String> {
        self.lines.by_ref().find(|line| line.starts_with(beginning))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn kill_one_over(transport: &str) {
    let mut ranks: Vec<_> = (0..3).map(|rank| Rank::start(rank, 3, transport)).collect();
    for rank in &mut ranks {
        rank.says("works").expect("calls succeed");
    }
    ranks[VICTIM].process.kill().expect("killed");
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != VICTIM) {
        let lost = process.says("lost ").expect("an error, not a hang");
        assert!(lost == format!("lost {VICTIM}") || lost.contains("rank 1 (pid"), "{rank}: {lost}");
    }
}

#[test]
fn a_killed_process_is_named_over_shared_memory() {
    kill_one_over("shm");
}

#[test]
fn a_killed_process_is_named_over_tcp() {
    kill_one_over("tcp");
}
