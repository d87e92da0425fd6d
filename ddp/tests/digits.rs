//! The example that trains on digits, as its users run it.

use std::path::PathBuf;
use std::process::{Command, Output};

/// The example beside this test, where `cargo test` builds it.
fn digits(arguments: &[&str]) -> Option<Output> {
    let test = std::env::current_exe().expect("this test");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("a build folder");
    let program: PathBuf = folder.join("examples").join("digits");
    if !program.exists() {
        println!(
            "skipped: the example digits is not built (cargo build --features candle --example digits)"
        );
        return None;
    }
    let mut command = Command::new(program);
    command.args(["--epochs", "1"]).args(arguments).env("ANNULUS_TIMEOUT", "60s");
    Some(command.output().expect("it runs"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn ranks_learn_what_one_learns() {
    let Some(output) = digits(&["--ranks", "1,2", "--mode", "both"]) else { return };
    let (told, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{told}{errors}");
    let far = told
        .lines()
        .find_map(|line| line.strip_prefix("weights of 2 ranks differ from those of one by "));
    let far: f32 = far.and_then(|rest| rest.split(' ').next()?.parse().ok()).expect("compared");
    assert!(far < 1e-5, "{told}");
    let rows: Vec<&str> = told
        .lines()
        .filter(|line| line.starts_with("| ddp") || line.starts_with("| data-parallel"))
        .collect();
    assert_eq!(rows.len(), 4, "{told}");
    for row in rows {
        let accuracy: f32 = row
            .split('|')
            .nth(4)
            .and_then(|cell| cell.trim().trim_end_matches(" %").parse().ok())
            .expect("a number");
        assert!(accuracy > 50.0, "{row}");
    }
    assert!(told.contains("on all 2 ranks"), "{told}");
}

#[test]
fn a_rank_that_dies_ends_all_with_its_name() {
    let Some(output) = digits(&["--ranks", "3", "--kill", "1:5"]) else { return };
    let errors = text(&output.stderr);
    assert!(!output.status.success());
    for survivor in [0, 2] {
        let line = errors.lines().find(|line| line.contains(&format!("rank {survivor}: ")));
        assert!(line.is_some_and(|line| line.contains("rank 1")), "rank {survivor}: {errors}");
    }
}

#[test]
fn the_survivors_go_on_if_asked_to() {
    let Some(output) = digits(&["--ranks", "3", "--kill", "1:5", "--elastic"]) else { return };
    let (told, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{told}{errors}");
    assert!(told.contains("on all 2 ranks") && told.contains("| ddp | 2 |"), "{told}{errors}");
    assert!(errors.contains("going on with the others"), "{errors}");
}

#[test]
fn a_slow_rank_is_named_and_the_time_line_has_all_ranks() {
    let folder = std::env::temp_dir().join(format!("annulus-digits-test-{}", std::process::id()));
    let (trace, weights) = (folder.join("new"), folder.join("weights.safetensors"));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = |path: &PathBuf| path.to_str().expect("a name").to_owned();
    let output = digits(&[
        "--ranks",
        "2",
        "--slow",
        "1:100",
        "--trace",
        &path(&trace),
        "--save",
        &path(&weights),
    ]);
    let Some(output) = output else { return };
    let (told, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{told}{errors}");
    assert!(told.contains("rank 1 was the slowest"), "{told}");
    assert!(weights.is_file());
    let events = std::fs::read_to_string(trace.join("digits-2.json")).expect("written");
    let events: serde_json::Value = serde_json::from_str(&events).expect("JSON");
    let events = events["traceEvents"].as_array().expect("a list");
    for rank in [0, 1] {
        let steps = events.iter().filter(|event| {
            event["pid"] == rank && event["name"].as_str().is_some_and(|n| n.ends_with("compute"))
        });
        assert_eq!(steps.count(), 25, "rank {rank}");
    }
    std::fs::remove_dir_all(&folder).expect("it was there");
}

#[test]
fn flags_that_make_no_sense_are_refused_with_the_reason() {
    for (arguments, words) in [
        (&["--ranks", "0"][..], "expected a number from 1"),
        (&["--ranks", "2", "--kill", "2:1"], "there is no rank 2 among 2"),
        (&["--ranks", "2", "--slow", "5:1"], "there is no rank 5 among 2"),
        (&["--ranks", "2", "--kill", "1:25"], "there is no step 25: training has 25"),
        (&["--kill", "1"], "such as 1:40"),
        (&["--rate", "NaN"], "expected a number above 0"),
        (&["--batch", "0"], "expected a number from 1 to 1500"),
        (&["--threads", "0"], "expected a number from 1"),
        (&["--mode", "data-parallel", "--elastic"], "--elastic is about ranks"),
        (&["--save", "/nonexistent/folder/file"], "/nonexistent/folder is no folder"),
        (&["--trace", "/proc/version/traces"], "--trace: /proc/version/traces: "),
    ] {
        let Some(output) = digits(arguments) else { return };
        let errors = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
}
