//! The example that loses a rank and goes on, over each transport between processes.

use std::process::Command;

#[allow(dead_code)] // its main
#[path = "../examples/elastic.rs"]
mod elastic;

/// Set in the ranks' processes only.
const MARK: &str = "ANNULUS_TEST_ELASTIC";

/// Not a test by itself: what each rank's process runs.
#[test]
fn rank_process() {
    if std::env::var_os(MARK).is_some() {
        elastic::rank().expect("training goes on");
    }
}

fn trains_over(transport: &str) {
    let program = std::env::current_exe().expect("this test");
    let command = || {
        let mut command = Command::new(&program);
        command
            .args(["--exact", "rank_process", "--nocapture", "--test-threads=1"])
            .env(MARK, "1")
            .env("ANNULUS_TIMEOUT", "60s")
            .env("ANNULUS_TRANSPORT", transport);
        command
    };
    let job = format!("elastic-{transport}-{}", std::process::id());
    elastic::run(command, &job).expect("all but one rank finish");
}

#[test]
fn training_goes_on_over_shared_memory() {
    trains_over("shm");
}

#[test]
fn training_goes_on_over_tcp() {
    trains_over("tcp");
}
