//! Runs programs, for a bounded time.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

/// What a program printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A command without the settings of whoever runs the tests.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let launchers = ["ANNULUS_", "NCCL_", "OMPI_", "PMI_", "SLURM_"];
        if launchers.iter().any(|prefix| text.starts_with(prefix))
            || ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"].contains(&text.as_ref())
        {
            command.env_remove(&name);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a program to its end.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Ended {
    finish(command(program, arguments))
}

/// Runs a command to its end.
pub(crate) fn finish(mut command: Command) -> Ended {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let out = read(child.stdout.take().expect("piped"));
    let err = read(child.stderr.take().expect("piped"));
    let status = wait(&mut child);
    let text = |reader: thread::JoinHandle<String>| reader.join().expect("the reader ends");
    Ended { code: status.code(), out: text(out), err: text(err) }
}

/// Waits for the end of a process, and kills one that does not come to it.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            return status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill().expect("the child is ours");
            child.wait().expect("the child is ours");
            panic!("the program did not end");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn read(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
