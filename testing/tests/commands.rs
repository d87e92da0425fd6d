//! The commands, in short.

use std::process::Command;

fn run(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ANNULUS_") {
            command.env_remove(name);
        }
    }
    let output = command.args(arguments).output().expect("the command starts");
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // What the machine cannot do is counted by whoever runs the tests.
    errors.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{text}\n{errors}");
    text.into_owned()
}

#[test]
fn some_seeds_of_chaos() {
    let text = run(env!("CARGO_BIN_EXE_annulus-chaos"), &["--seeds", "0..12"]);
    assert!(text.contains("12 seeds in") && text.contains(", 0 failed"), "{text}");
}

#[test]
fn a_seed_is_the_same_run_again() {
    let seed = || {
        let text = run(env!("CARGO_BIN_EXE_annulus-chaos"), &["--seed", "9", "--transport", "tcp"]);
        text.lines().next().and_then(|line| Some(line.split_once(" s  ")?.1.to_owned()))
    };
    let first = seed().expect("a line for the seed");
    assert_eq!(seed(), Some(first));
}

#[test]
fn start_up_stays_lazy() {
    let arguments = ["--threads", "2,48", "--processes", "2,12"];
    let text = run(env!("CARGO_BIN_EXE_annulus-startup"), &arguments);
    let rows = text.lines().filter(|line| line.starts_with("| ")).map(|line| {
        line.split('|').filter_map(|cell| cell.trim().split(' ').next()?.parse().ok()).collect()
    });
    let rows: Vec<Vec<f64>> = rows.filter(|row: &Vec<f64>| row.len() == 6).collect();
    assert_eq!(rows.len(), 4, "{text}");
    for row in rows {
        // Connections to the root at both ends, an epoll descriptor and little more: not one for each other rank.
        assert!(row[3] < 16.0, "{text}");
    }
}

#[test]
fn every_rank_hears_of_every_failure() {
    let text = run(env!("CARGO_BIN_EXE_annulus-reactions"), &["--ranks", "3", "--jobs", "2"]);
    let rows = text.lines().filter(|line| line.starts_with("| ")).count();
    assert_eq!(rows, 1 + 10, "{text}");
}
