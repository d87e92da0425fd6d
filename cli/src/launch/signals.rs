//! Signals as something to poll for, and by name.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::Signal;

/// What ends a launcher from outside, held back from this thread and its children-to-be while the value lives.
pub(super) struct Signals {
    descriptor: OwnedFd,
    before: Mask,
}

/// A thread's set of signals that are held back.
#[derive(Clone, Copy)]
pub(super) struct Mask(libc::sigset_t);

const CAUGHT: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

impl Signals {
    /// Call it before other threads start: they would still be hit.
    pub(super) fn catch() -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initialises the set, which the other calls read; the signals exist.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in CAUGHT {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            set.assume_init()
        };
        let before = Mask(set).set()?;
        // SAFETY: the set is initialised, and -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            before.set()?;
            return Err(error);
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(fd) }, before })
    }

    /// The mask to give back to a child.
    pub(super) fn before(&self) -> Mask {
        self.before
    }

    /// A signal that has come since, if any. Does not block.
    pub(super) fn next(&self) -> Option<Signal> {
        let mut bytes = [0; size_of::<libc::signalfd_siginfo>()];
        let got = rustix::io::read(&self.descriptor, &mut bytes).ok()?;
        let number = u32::from_ne_bytes(bytes[..4].try_into().expect("four bytes"));
        if got == bytes.len() { Signal::from_named_raw(number.cast_signed()) } else { None }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // What came meanwhile has been dealt with, and must not end the process afterwards.
        while self.next().is_some() {}
        let _ = self.before.set();
    }
}

impl Mask {
    /// Makes it the calling thread's mask and returns the one before. May be called between `fork` and `exec`.
    pub(super) fn set(&self) -> io::Result<Self> {
        let mut before = MaybeUninit::uninit();
        // SAFETY: reads the one set and writes the other.
        let code =
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, before.as_mut_ptr()) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        // SAFETY: the call has succeeded, and so has written it.
        Ok(Self(unsafe { before.assume_init() }))
    }
}

/// The name of a signal, such as `SIGSEGV`, and what it mostly means.
pub(super) fn name(number: i32) -> String {
    let known = match number {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL (illegal instruction)",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT (abort)",
        libc::SIGBUS => "SIGBUS (memory that cannot be had, such as a full /dev/shm)",
        libc::SIGFPE => "SIGFPE (arithmetic error)",
        libc::SIGKILL => "SIGKILL (by somebody, or by the kernel for lack of memory)",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV (segmentation fault)",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE (nobody reads its output)",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU (CPU time limit)",
        libc::SIGXFSZ => "SIGXFSZ (file size limit)",
        libc::SIGSYS => "SIGSYS (forbidden system call)",
        other => return format!("signal {other}"),
    };
    known.to_owned()
}
