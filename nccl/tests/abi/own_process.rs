//! Tests that run again in a process of their own, which finds the library and may crash.

use std::env;
use std::process::Command;

use crate::programs::{library, succeed};

const INSIDE: &str = "ANNULUS_TEST_INSIDE";

/// Runs `body` in a process of its own, where it is the only test: `name` is the test's, with its module.
pub(crate) fn in_own_process(name: &str, body: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        return body();
    }
    let mut again = Command::new(env::current_exe().expect("this program's path"));
    again.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    let text = succeed(again.env(INSIDE, "1").env("LD_LIBRARY_PATH", library()));
    assert!(text.contains("1 passed"), "no test {name}: {text}");
}
