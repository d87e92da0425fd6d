//! Ranks of one host meet at an abstract Unix socket: rank 0 hands the unique id to whoever of its user asks.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::id::UNIQUE_ID_BYTES;

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// A server answers at once; one that does not is stopped or stuck.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Hands out the id as long as it lives.
pub(super) struct IdServer {
    thread: Option<JoinHandle<()>>,
    stop: OwnedFd,
}

impl IdServer {
    /// Listens at `name`. Fails with [`io::ErrorKind::AddrInUse`] when somebody else does.
    pub(super) fn start(name: &[u8], id: [u8; UNIQUE_ID_BYTES]) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("annulus-meet".into())
            .spawn(move || serve(&listener, &stopped, &id))?;
        Ok(Self { thread: Some(thread), stop })
    }
}

impl Drop for IdServer {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It does not panic: there is nothing to pass on.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, stop: &OwnedFd, id: &[u8; UNIQUE_ID_BYTES]) {
    loop {
        let mut wait = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut wait, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        if !wait[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            // An id fits into any fresh socket's buffer; whoever is gone again needs none.
            Ok((mut stream, _)) if is_ours(&stream) => {
                let _ = stream.write_all(id);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Out of descriptors, perhaps: the listener stays ready, so do not spin.
            Err(_) => std::thread::sleep(LONGEST_PAUSE),
        }
    }
}

/// Asks at `name` until somebody answers; `None`: nobody of this user was there before the deadline.
///
/// # Errors
/// When this process cannot ask, and [`io::ErrorKind::TimedOut`] when somebody is there and does not answer.
pub(super) fn ask(name: &[u8], deadline: Instant) -> io::Result<Option<[u8; UNIQUE_ID_BYTES]>> {
    let address = SocketAddr::from_abstract_name(name)?;
    let mut pause = FIRST_PAUSE;
    let mut silent = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() && silent {
            let what = "rank 0 does not answer: see that it runs, and that it has descriptors left (`ulimit -n`)";
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        if left.is_zero() {
            return Ok(None);
        }
        match UnixStream::connect_addr(&address) {
            Ok(mut stream) if is_ours(&stream) => {
                stream.set_read_timeout(Some(ANSWER_TIME.min(left)))?;
                let mut id = [0; UNIQUE_ID_BYTES];
                match stream.read_exact(&mut id) {
                    Ok(()) => return Ok(Some(id)),
                    Err(error) => silent = error.kind() == io::ErrorKind::WouldBlock,
                }
            }
            Ok(_) => {}
            Err(error)
                if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) =>
            {
                return Err(error);
            }
            Err(_) => silent = false,
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Whether the process at the other end belongs to this user.
fn is_ours(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_the_id_over_while_it_lives() {
        let name = format!("annulus-test-{}-meeting", std::process::id()).into_bytes();
        let soon = || Instant::now() + Duration::from_millis(30);
        assert_eq!(ask(&name, soon()).expect("asked"), None);
        let deadline = Instant::now() + Duration::from_secs(60);
        let server = std::thread::scope(|scope| {
            let early = scope.spawn(|| ask(&name, deadline));
            let server = IdServer::start(&name, [7; 128]).expect("the name is free");
            assert_eq!(early.join().expect("no panic").expect("asked"), Some([7; 128]));
            server
        });
        assert_eq!(ask(&name, deadline).expect("asked"), Some([7; 128]));
        let taken = IdServer::start(&name, [8; 128]).err().expect("taken").kind();
        assert_eq!(taken, io::ErrorKind::AddrInUse);
        drop(server);
        assert_eq!(ask(&name, soon()).expect("asked"), None);
    }
}
