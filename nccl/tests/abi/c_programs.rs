//! The C programs of `tests/c`, on threads and in processes.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::programs::{self, compile, is_there, package, succeed, with_library};

/// The program of that name, compiled against the library's own header; none without a compiler.
fn program(name: &str) -> Option<PathBuf> {
    if !is_there("gcc") {
        println!("skipped: {name}.c: gcc is not installed");
        return None;
    }
    Some(compile(&format!("{name}.c"), name, &[&package().join("include")]))
}

/// `collectives.c`, compiled once.
fn collectives_program() -> Option<&'static PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(|| program("collectives")).as_ref()
}

/// `lifetimes.c`, compiled once.
fn lifetimes_program() -> Option<&'static PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(|| program("lifetimes")).as_ref()
}

fn collectives(arguments: &[&str]) {
    if let Some(program) = collectives_program() {
        succeed(with_library(program).args(arguments));
    }
}

fn lifetimes(scenario: &str) {
    if let Some(program) = lifetimes_program() {
        succeed(with_library(program).arg(scenario));
    }
}

#[test]
fn every_collective_on_threads() {
    collectives(&["threads", "3"]);
}

#[test]
fn every_collective_in_processes() {
    collectives(&["processes", "2"]);
}

#[test]
fn every_collective_in_groups_of_one_thread() {
    collectives(&["one_thread", "3"]);
}

#[test]
fn every_collective_after_init_all() {
    collectives(&["init_all", "2"]);
}

#[test]
fn every_collective_of_one_rank() {
    collectives(&["threads", "1"]);
}

#[test]
fn no_memory_error_under_valgrind() {
    if !is_there("valgrind") {
        println!("skipped: valgrind is not installed");
        return;
    }
    if let Some(program) = collectives_program() {
        let mut valgrind = with_library("valgrind");
        // Its processor has no AVX-512.
        valgrind.env("ANNULUS_ISA", "portable");
        valgrind.args(["-q", "--error-exitcode=9", "--fair-sched=yes"]);
        succeed(valgrind.arg(program).args(["init_all", "2", "small"]));
    }
}

#[test]
fn nonblocking_communicators_are_polled() {
    lifetimes("nonblocking");
}

#[test]
fn joining_can_be_aborted() {
    lifetimes("abort_while_joining");
}

#[test]
fn a_pending_call_can_be_aborted_from_a_thread() {
    lifetimes("abort_from_a_thread");
}

#[test]
fn ranks_that_call_different_things_learn_which() {
    lifetimes("mismatch");
}

#[test]
fn exiting_with_a_communicator_disturbs_nobody() {
    lifetimes("exit_alive");
    lifetimes("exit_alive_threads");
}

#[test]
fn a_lost_rank_is_named() {
    lifetimes("killed");
}

#[test]
fn survivors_go_on_without_a_rank() {
    lifetimes("shrink");
}

#[test]
fn a_communicator_takes_in_a_rank() {
    lifetimes("grow");
}

#[test]
fn beginnings_that_make_no_sense_are_refused() {
    lifetimes("bad_beginnings");
}

#[test]
fn memory_of_a_device_is_refused() {
    let Some(program) = lifetimes_program() else { return };
    let folder = programs::folder("driver");
    let mut gcc = std::process::Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-o"]).arg(folder.join("libcuda.so.1"));
    succeed(gcc.arg(package().join("tests/c/driver.c")));
    let path = format!("{}:{}", programs::library().display(), folder.display());
    succeed(with_library(program).arg("device_memory").env("LD_LIBRARY_PATH", path));
}

#[test]
fn parameters_tell_the_environment() {
    lifetimes("parameters");
}

#[test]
fn ranks_meet_at_the_address_of_comm_id() {
    let Some(program) = lifetimes_program() else { return };
    // A port that was free just now.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    drop(listener);
    succeed(with_library(program).arg("by_address").env("NCCL_COMM_ID", address));
}

#[test]
fn the_log_says_what_people_look_for() {
    let Some(program) = lifetimes_program() else { return };
    let log = |variables: &[(&str, &str)]| {
        succeed(with_library(program).arg("mismatch").envs(variables.iter().copied()))
    };
    let text = log(&[("NCCL_DEBUG", "INFO"), ("NCCL_ALGO", "ring"), ("NCCL_IB_HCA", "mlx5_0")]);
    for expected in [
        "NCCL INFO NCCL version 2.29.7+annulus",
        "rank 0 nranks 2 cudaDev 0",
        "Init COMPLETE",
        "Channel 00/0 : 0[0] -> 1 via SHM",
        "NCCL_ALGO set by environment to ring.",
        "NCCL WARN NCCL_IB_HCA is set to mlx5_0, but does nothing",
        "AllReduce: 36 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
        "NCCL WARN ncclAllReduce: ",
    ] {
        assert!(text.contains(expected), "no {expected:?} in:\n{text}");
    }
    assert!(!text.contains("AllReduce: sendbuff"), "{text}");
    let text = log(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "COLL")]);
    assert!(text.contains("count 9 datatype 2 op 0 root 0"), "{text}");
    assert!(!text.contains("Init COMPLETE"), "{text}");
    assert_eq!(log(&[]), "");
    let file = programs::folder("logs").join(format!("{}-%p.log", std::process::id()));
    let file = file.to_str().expect("UTF-8");
    assert_eq!(log(&[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", file)]), "");
    let folder = programs::folder("logs");
    let logs: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.to_str().is_some_and(|path| path.contains(&format!("{}-", std::process::id())))
        })
        .collect();
    assert_eq!(logs.len(), 2, "one for each rank: {logs:?}");
    for log in logs {
        assert!(std::fs::read_to_string(&log).expect("a log").contains("NCCL WARN"));
        std::fs::remove_file(log).expect("it is there");
    }
}
