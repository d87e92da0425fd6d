//! Python's `ctypes`, the way vLLM binds NCCL.

use std::process::{Child, Command};

use crate::programs::{folder, is_there, library, package, wait};

#[test]
fn ctypes_drives_two_processes() {
    if !is_there("python3") {
        println!("skipped: python3 is not installed");
        return;
    }
    let id_file = folder("python").join(format!("id-{}", std::process::id()));
    let start = |rank: usize| -> Child {
        let mut python = Command::new("python3");
        python.arg(package().join("tests/python/pynccl.py")).args([&rank.to_string(), "2"]);
        python.arg(&id_file).env("VLLM_NCCL_SO_PATH", library().join("libnccl.so.2"));
        python.spawn().expect("python3")
    };
    let ranks = [start(0), start(1)];
    let ended = ranks.map(|mut rank| wait(&mut rank).success());
    std::fs::remove_file(id_file).expect("rank 0 wrote it");
    assert_eq!(ended, [true, true]);
}
