//! `annulus doctor` and `annulus explain` as their users run them.

mod process;

use process::{command, finish, run};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus");

#[test]
fn the_doctor_looks_at_everything() {
    let ended = run(ANNULUS, &["doctor"]);
    for subject in
        ["cores", "memory", "shared memory", "open files", "interfaces", "NVIDIA GPUs", "launcher"]
    {
        assert!(ended.out.contains(subject), "{subject}: {}", ended.out);
    }
}

#[test]
fn the_doctor_finds_settings_that_make_no_sense() {
    let mut doctor = command(ANNULUS, &["doctor"]);
    doctor.env("ANNULUS_ALGO", "magic").env("ANNULUS_TIMOUT", "1").env("ANNULUS_SECRET", "hush");
    let ended = finish(doctor);
    assert_eq!(ended.code, Some(1));
    assert!(ended.out.contains("PROBLEM settings"), "{}", ended.out);
    assert!(ended.out.contains("did you mean ANNULUS_TIMEOUT?"), "{}", ended.out);
    assert!(!ended.out.contains("hush"));
}

#[test]
fn choices_are_explained_and_overridden() {
    let question = ["explain", "all_reduce", "--bytes", "1M", "--ranks", "8", "--cores", "4"];
    let ended = run(ANNULUS, &question);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("1048576 bytes, 8 ranks"), "{}", ended.out);
    let mut overridden = command(ANNULUS, &question);
    overridden.env("ANNULUS_ALGO", "ring");
    let out = finish(overridden).out;
    assert!(out.contains("uses ring") && out.contains("ANNULUS_ALGO=ring"), "{out}");
    assert_eq!(run(ANNULUS, &["explain", "all_reduce", "--bytes", "x"]).code, Some(2));
}
