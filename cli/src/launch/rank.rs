//! One rank's process: started, watched, ended with all that it has started itself.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

use super::output::{Channel, Stream};
use super::signals::{self, Mask};
use super::{Job, LaunchError, Output};

/// A rank that has been started.
pub(super) struct Running {
    pub(super) rank: usize,
    pub(super) pid: Pid,
    descriptor: OwnedFd,
    /// How it has ended. Until the value is dropped its number stays taken, and so does its process group's.
    pub(super) ended: Option<How>,
    /// Its standard output and error, if they are piped.
    pub(super) streams: Vec<Stream>,
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By itself, with this code.
    Exit(u8),
    /// By this signal.
    Signal(i32),
}

/// Where the ranks of a job meet, as only they know.
pub(super) struct Meeting {
    listener: TcpListener,
    root: String,
    secret: String,
}

impl Meeting {
    pub(super) fn new() -> Result<Self, LaunchError> {
        let system = |what| move |source| LaunchError::System { what, source };
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .map_err(system("listen at 127.0.0.1, where the ranks are to meet"))?;
        let root = listener.local_addr().map_err(system("read a socket's address"))?.to_string();
        let mut secret = [0_u8; 32];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| system("draw a random secret")(error.into()))?;
        let secret = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { listener, root, secret })
    }
}

impl Running {
    /// Starts `rank` on the calling thread, with whose end it is killed.
    pub(super) fn start(
        job: &Job,
        rank: usize,
        meeting: &Meeting,
        mask: Mask,
    ) -> Result<Self, LaunchError> {
        let mut command = Command::new(&job.program);
        command.args(&job.arguments).process_group(0);
        for (name, value) in [
            ("ANNULUS_RANK", rank.to_string()),
            ("ANNULUS_WORLD_SIZE", job.ranks.to_string()),
            ("ANNULUS_LOCAL_RANK", rank.to_string()),
            ("ANNULUS_LOCAL_WORLD_SIZE", job.ranks.to_string()),
            ("ANNULUS_ROOT", meeting.root.clone()),
            ("ANNULUS_SECRET", meeting.secret.clone()),
        ] {
            command.env(name, value);
        }
        let inherited = (rank == 0).then(|| meeting.listener.as_raw_fd());
        match inherited {
            Some(fd) => command.env("ANNULUS_LISTEN_FD", fd.to_string()),
            None => command.env_remove("ANNULUS_LISTEN_FD"),
        };
        if rank > 0 || io::IsTerminal::is_terminal(&io::stdin()) {
            // A process group of the background that reads from the terminal is stopped.
            command.stdin(Stdio::null());
        }
        if job.output == Output::Prefixed {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let launcher = rustix::process::getpid();
        let prepare = move || {
            mask.set()?;
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(launcher) {
                return Err(io::ErrorKind::BrokenPipe.into()); // the launcher is gone already
            }
            if let Some(fd) = inherited {
                // SAFETY: the child's copy of the listener is open until `exec` and beyond.
                fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: between `fork` and `exec` it makes system calls only: no lock, no allocation.
        unsafe { command.pre_exec(prepare) };
        let mut child = command.spawn().map_err(|source| cannot_start(job, rank, source))?;
        let pid = Pid::from_child(&child);
        let mut streams = Vec::new();
        streams.extend(child.stdout.take().map(|out| Stream::new(rank, Channel::Out, out.into())));
        streams
            .extend(child.stderr.take().map(|err| Stream::new(rank, Channel::Error, err.into())));
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Self { rank, pid, descriptor, ended: None, streams }),
            Err(error) => {
                let _ = rustix::process::kill_process_group(pid, Signal::KILL);
                let _ = child.wait();
                Err(cannot_start(job, rank, error.into()))
            }
        }
    }

    /// Looks whether it has ended. Does not block.
    pub(super) fn look(&mut self) -> Option<How> {
        if self.ended.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let status = rustix::process::waitid(WaitId::PidFd(self.descriptor.as_fd()), options);
            if let Ok(Some(status)) = status {
                self.ended = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Some(How::Exit(code as u8)),
                    (None, Some(signal)) => Some(How::Signal(signal)),
                    (None, None) => None,
                };
            }
        }
        self.ended
    }

    /// Sends a signal to the process and to all that it has started.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process_group(self.pid, signal);
    }
}

impl AsFd for Running {
    /// Readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let descriptor = WaitId::PidFd(self.descriptor.as_fd());
        let _ = rustix::process::waitid(descriptor, WaitIdOptions::EXITED);
    }
}

impl How {
    /// Whether it is what a job hopes for.
    pub fn is_success(self) -> bool {
        self == Self::Exit(0)
    }

    /// The code by which a shell would report it.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Exit(code) => code,
            Self::Signal(number) => 128 + number as u8,
        }
    }
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exited with code {code}"),
            Self::Signal(number) => write!(f, "was killed by {}", signals::name(*number)),
        }
    }
}

fn cannot_start(job: &Job, rank: usize, source: io::Error) -> LaunchError {
    let program = job.program.clone();
    match source.kind() {
        io::ErrorKind::NotFound => {
            let path = Path::new(&program);
            let hint = if path.exists() && path.components().count() == 1 {
                format!(" in PATH; the one in this folder is ./{}", path.display())
            } else if path.exists() {
                ": it is there, but the interpreter or loader that it names is not".to_owned()
            } else {
                String::new()
            };
            LaunchError::NotFound { program, hint }
        }
        io::ErrorKind::PermissionDenied => LaunchError::NotExecutable { program },
        _ => {
            let remedy = match source.raw_os_error() {
                Some(libc::EAGAIN) => {
                    ": the limit of processes is reached (ulimit -u, or the container's pids.max)"
                }
                Some(libc::EMFILE | libc::ENFILE) => {
                    ": the limit of open files is reached (ulimit -n)"
                }
                Some(libc::ENOMEM) => ": there is no memory for another process",
                Some(libc::ENOEXEC) => {
                    ": it is neither a program of this machine nor a script with #!"
                }
                _ => "",
            };
            LaunchError::Start { rank, ranks: job.ranks, program, source, remedy }
        }
    }
}
