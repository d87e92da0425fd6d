//! `annulus run` as its users run it.

mod process;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use process::{PATIENCE, command, finish, run, wait};
use rustix::process::{Pid, Signal, kill_process};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus");

/// Runs a shell script as several ranks.
fn script(ranks: &str, text: &str) -> process::Ended {
    run(ANNULUS, &["run", "-n", ranks, "--", "sh", "-c", text])
}

#[test]
fn output_has_the_rank_in_front() {
    let ended =
        script("3", "echo one $ANNULUS_RANK of $ANNULUS_WORLD_SIZE; printf two; echo three >&2");
    assert_eq!(ended.code, Some(0));
    for rank in 0..3 {
        for line in [format!("[{rank}] one {rank} of 3\n"), format!("[{rank}] two\n")] {
            assert!(ended.out.contains(&line), "{}", ended.out);
        }
        assert!(ended.err.contains(&format!("[{rank}] three\n")), "{}", ended.err);
    }
    assert_eq!(ended.out.lines().count(), 6);
    let plain = run(ANNULUS, &["run", "-n", "2", "--no-prefix", "--", "echo", "-n", "x"]);
    assert_eq!(plain.out, "xx");
}

#[test]
fn a_failing_rank_ends_the_others() {
    let begun = Instant::now();
    let ended = script("3", "[ $ANNULUS_RANK = 1 ] && exit 7; exec sleep 1000");
    assert_eq!(ended.code, Some(7));
    assert!(ended.err.contains("rank 1 (pid "), "{}", ended.err);
    assert!(ended.err.contains("exited with code 7; ending the other 2 ranks"), "{}", ended.err);
    assert!(begun.elapsed() < PATIENCE);
}

#[test]
fn a_killed_rank_is_named_with_its_signal() {
    let ended = script("2", "[ $ANNULUS_RANK = 1 ] && kill -ABRT $$; exec sleep 1000");
    assert_eq!(ended.code, Some(128 + 6));
    assert!(ended.err.contains("rank 1 (pid ") && ended.err.contains("SIGABRT"), "{}", ended.err);
}

#[test]
fn ranks_that_will_not_end_are_killed() {
    let ended = script(
        "2",
        "if [ $ANNULUS_RANK = 1 ]; then sleep 0.2; exit 3; fi; trap '' TERM; while :; do sleep 1; done",
    );
    assert_eq!(ended.code, Some(3));
}

#[test]
fn what_cannot_be_started_is_said() {
    let missing = run(ANNULUS, &["run", "-n", "2", "--", "no-such-program"]);
    assert_eq!(missing.code, Some(127));
    assert!(missing.err.contains("no such program"), "{}", missing.err);
    let file = run(ANNULUS, &["run", "-n", "2", "--", "/proc/self/status"]);
    assert_eq!(file.code, Some(126));
    assert!(file.err.contains("not executable"), "{}", file.err);
    for ranks in ["0", "5000", "-1", "x"] {
        let refused = run(ANNULUS, &["run", "-n", ranks, "--", "true"]);
        assert_eq!(refused.code, Some(2), "{ranks}");
        assert!(refused.err.contains("--ranks"), "{}", refused.err);
    }
}

#[test]
fn the_secret_is_the_ranks_alone() {
    let show = "echo $ANNULUS_SECRET; tr '\\0' ' ' < /proc/$PPID/cmdline; tr '\\0' '\\n' < /proc/$PPID/environ";
    let [first, second] = [(); 2].map(|()| {
        let ended = script("1", show);
        let secret =
            ended.out.lines().next().expect("a line").trim_start_matches("[0] ").to_owned();
        assert_eq!(secret.len(), 64);
        assert_eq!(
            ended.out.matches(&secret).count(),
            1,
            "neither argument nor the launcher's own"
        );
        secret
    });
    assert_ne!(first, second, "a new one for each job");
}

#[test]
fn only_rank_0_gets_the_roots_socket_and_the_input() {
    let ended =
        script("2", "[ -z \"$ANNULUS_LISTEN_FD\" ] || ls -l /proc/$$/fd/$ANNULUS_LISTEN_FD");
    assert!(ended.out.contains("[0] ") && ended.out.contains("socket:"), "{}", ended.out);
    assert!(!ended.out.contains("[1] "), "{}", ended.out);
    let mut cat = command(ANNULUS, &["run", "-n", "2", "--", "cat"]);
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    std::io::Write::write_all(&mut writer, b"input\n").expect("written");
    drop(writer);
    cat.stdin(reader);
    assert_eq!(finish(cat).out, "[0] input\n");
}

#[test]
fn signals_are_passed_on() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (mut launcher, ranks) = started("sleep 1000 & echo $!; echo $$; wait", 4);
        kill_process(Pid::from_child(&launcher), signal).expect("the launcher lives");
        assert_eq!(wait(&mut launcher).code(), Some(code));
        gone(&ranks);
    }
}

#[test]
fn a_killed_launcher_leaves_no_rank() {
    let (mut launcher, ranks) = started("echo $$; exec sleep 1000", 2);
    launcher.kill().expect("the launcher lives");
    wait(&mut launcher);
    gone(&ranks);
}

/// Starts two ranks and reads the first `count` lines, which are process ids.
fn started(text: &str, count: usize) -> (Child, Vec<i32>) {
    let mut command = command(ANNULUS, &["run", "-n", "2", "--", "sh", "-c", text]);
    let mut launcher = command.stdout(Stdio::piped()).spawn().expect("the launcher starts");
    let lines = BufReader::new(launcher.stdout.take().expect("piped")).lines();
    let pid = |line: std::io::Result<String>| {
        let line = line.expect("a line");
        line.rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a process id")
    };
    let pids = lines.take(count).map(pid).collect();
    (launcher, pids)
}

/// Waits until none of the processes runs.
fn gone(pids: &[i32]) {
    let begun = Instant::now();
    let runs = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Nobody may collect what is left of an orphan: Z.
        stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
    };
    while pids.iter().any(runs) {
        assert!(begun.elapsed() < PATIENCE, "left behind: {pids:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
