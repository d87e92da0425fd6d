//! Nothing is left behind and nothing grows: memory, descriptors, threads, mappings, sockets, files, processes.
//!
//! Each scenario runs in a process of its own, which counts what it holds. `ANNULUS_TEST_CYCLES=10000 cargo test --release
//! --test leaks -- --nocapture` runs the long form: that many clean cycles for each transport, and a tenth as many that fail.

mod held;
mod killed;
mod scenarios;

use std::process::{Command, Stdio};

/// Set in a scenario's process only: which one.
const MARK: &str = "ANNULUS_TEST_SCENARIO";

/// How many clean cycles a scenario makes.
fn cycles() -> usize {
    let set = std::env::var("ANNULUS_TEST_CYCLES").ok();
    set.map_or(100, |text| text.parse().expect("ANNULUS_TEST_CYCLES is a number"))
}

/// How many failing ones.
fn failures() -> usize {
    (cycles() / 10).max(60)
}

/// Not a test by itself: the process of a scenario.
#[test]
fn scenario() {
    if let Ok(name) = std::env::var(MARK) {
        scenarios::run(&name);
    }
}

/// Runs a scenario in a process of its own, and fails as it fails.
fn alone(name: &str) {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "scenario", "--nocapture", "--test-threads=1"])
        .env(MARK, name)
        .stdin(Stdio::null())
        .output()
        .expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let figures = text.lines().find(|line| line.starts_with(name));
    assert!(output.status.success() && figures.is_some(), "{name}:\n{text}\n{errors}");
    println!("{}", figures.unwrap_or_default());
}

#[test]
fn local_communicators() {
    alone("proc clean");
}

#[test]
fn local_communicators_that_fail() {
    alone("proc failing");
}

#[test]
fn communicators_over_shared_memory() {
    alone("shm clean");
}

#[test]
fn communicators_over_shared_memory_that_fail() {
    alone("shm failing");
}

#[test]
fn communicators_over_tcp() {
    alone("tcp clean");
}

#[test]
fn communicators_over_tcp_that_fail() {
    alone("tcp failing");
}

#[test]
fn communicators_beside_one_that_stays() {
    alone("tcp beside");
}

#[test]
fn splits_of_one_communicator() {
    alone("shm splits");
}

#[test]
fn bootstraps_that_are_refused() {
    alone("refused");
}

#[test]
fn ranks_whose_peers_are_killed() {
    alone("survivor");
}
