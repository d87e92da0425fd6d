//! Passing an open file, such as a memfd, to another process over a Unix socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends `fd` to the process at the other end, which takes it with [`recv_fd`]. The caller keeps its own.
///
/// Blocks only when the socket's buffer is full of what the other end has not read.
pub fn send_fd(stream: &UnixStream, fd: BorrowedFd<'_>) -> Result<(), DescriptorError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    let fits = control.push(SendAncillaryMessage::ScmRights(&fds));
    debug_assert!(fits, "the space is made for one descriptor");
    loop {
        // A descriptor travels with at least one byte.
        match sendmsg(stream, &[IoSlice::new(&[MARK])], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(source) => return Err(DescriptorError::io("sendmsg", source)),
        }
    }
}

/// Takes the descriptor that the other end has sent with [`send_fd`]; blocks until it is here, at most
/// until `deadline`. The descriptor is closed on exec.
///
/// Exactly one must come: more are closed, and the result is an error.
pub fn recv_fd(stream: &UnixStream, deadline: Instant) -> Result<OwnedFd, DescriptorError> {
    loop {
        wait_readable(stream, deadline)?;
        let mut mark = [0];
        // Room for one more than is wanted, to see that there is one more.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = match recvmsg(stream, &mut [IoSliceMut::new(&mut mark)], &mut control, flags)
        {
            Ok(message) => message,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(source) => return Err(DescriptorError::io("recvmsg", source)),
        };
        // Collected first: those that are not handed on are closed when they are dropped.
        let mut received = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                received.extend(fds);
            }
        }
        if message.bytes == 0 {
            return Err(DescriptorError::Closed);
        }
        let truncated = message.flags.contains(ReturnFlags::CTRUNC);
        return match (received.pop(), received.len()) {
            (Some(fd), 0) if !truncated && mark == [MARK] => Ok(fd),
            // The kernel truncates what does not fit, and also what the limit on open files forbids.
            (None, _) if truncated => Err(DescriptorError::io("recvmsg", Errno::MFILE)),
            (None, _) => Err(DescriptorError::Count { got: 0 }),
            (Some(_), rest) => Err(DescriptorError::Count { got: rest + 1 }),
        };
    }
}

/// Why no descriptor was passed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The other end closed the connection first.
    #[error("the other end closed the connection before it passed a descriptor")]
    Closed,
    /// Nothing came in time.
    #[error("the other end passed no descriptor before the deadline")]
    Timeout,
    /// Not exactly one came.
    #[error("the other end passed {got} descriptors with one message where one was due")]
    Count {
        /// How many came, at least.
        got: usize,
    },
    /// The system failed.
    #[error("passing a descriptor: {operation}: {source}{}", remedy(source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

/// The byte that carries a descriptor.
const MARK: u8 = 0xfd;

impl DescriptorError {
    fn io(operation: &'static str, errno: Errno) -> Self {
        Self::Io { operation, source: errno.into() }
    }
}

fn remedy(error: &std::io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => "; raise the limit with `ulimit -n`",
        Some(Errno::TOOMANYREFS) => {
            "; too many descriptors are on their way: raise the limit with `ulimit -n`"
        }
        _ => "",
    }
}

fn wait_readable(stream: &UnixStream, deadline: Instant) -> Result<(), DescriptorError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // A deadline beyond the range of the clock is none.
        let timeout = Timespec::try_from(left).ok();
        let mut polled = [PollFd::new(stream, PollFlags::IN)];
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) => return Err(DescriptorError::Timeout),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(source) => return Err(DescriptorError::io("poll", source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    fn patience() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn passed_memory_is_the_same_memory() {
        let (left, right) = UnixStream::pair().unwrap();
        let mut file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(b"shared").unwrap();
        send_fd(&left, file.as_fd()).unwrap();
        let passed = recv_fd(&right, patience()).unwrap();
        assert!(fcntl_getfd(&passed).unwrap().contains(FdFlags::CLOEXEC));
        let mut passed = File::from(passed);
        passed.rewind().unwrap();
        let mut text = String::new();
        passed.read_to_string(&mut text).unwrap();
        assert_eq!(text, "shared");
    }

    #[test]
    fn several_descriptors_each_come_out_on_their_own() {
        let (left, right) = UnixStream::pair().unwrap();
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        for _ in 0..3 {
            send_fd(&left, file.as_fd()).unwrap();
        }
        for _ in 0..3 {
            recv_fd(&right, patience()).unwrap();
        }
        let now = Instant::now();
        assert!(matches!(recv_fd(&right, now), Err(DescriptorError::Timeout)));
        drop(left);
        assert!(matches!(recv_fd(&right, patience()), Err(DescriptorError::Closed)));
    }

    #[test]
    fn any_other_number_of_descriptors_is_refused_and_closed() {
        for count in [0, 2, 5] {
            let (left, right) = UnixStream::pair().unwrap();
            let (held, mut probe) = UnixStream::pair().unwrap();
            let fds = vec![held.as_fd(); count];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(count == 0 || control.push(SendAncillaryMessage::ScmRights(&fds)));
            sendmsg(&left, &[IoSlice::new(&[MARK])], &mut control, SendFlags::empty()).unwrap();
            let error = recv_fd(&right, patience()).unwrap_err();
            assert!(matches!(error, DescriptorError::Count { got } if (got == 0) == (count == 0)));
            // Whoever still held a copy of the other end would keep this from ending.
            drop(held);
            probe.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(probe.read(&mut [0]).unwrap(), 0);
        }
    }
}
