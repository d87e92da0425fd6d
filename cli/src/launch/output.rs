//! What ranks print, line by line, with the rank in front.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A longer line is passed on in parts.
const LONGEST_LINE: usize = 64 << 10;

/// How many bytes are read at once.
pub(super) const AT_ONCE: usize = 16 << 10;

/// Which of a rank's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    Out,
    Error,
}

/// The reading end of a rank's output.
pub(super) struct Stream {
    descriptor: OwnedFd,
    channel: Channel,
    lines: Lines,
    pub(super) ended: bool,
}

impl Stream {
    pub(super) fn new(rank: usize, channel: Channel, descriptor: OwnedFd) -> Self {
        Self { descriptor, channel, lines: Lines::new(rank), ended: false }
    }

    /// Passes on what there is. Call it when the stream is readable; blocks otherwise.
    pub(super) fn pass_on(&mut self) -> io::Result<()> {
        let mut bytes = [0; AT_ONCE];
        match rustix::io::read(&self.descriptor, &mut bytes) {
            Ok(0) => self.finish(),
            Ok(count) => {
                let text = self.lines.push(&bytes[..count]);
                self.print(&text)
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(()),
            Err(_) => self.finish(),
        }
    }

    /// Passes on the last line if it has no end.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.ended = true;
        let text = self.lines.take();
        self.print(&text)
    }

    fn print(&self, text: &[u8]) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        match self.channel {
            Channel::Out => {
                let mut out = io::stdout().lock();
                out.write_all(text)?;
                out.flush()
            }
            Channel::Error => io::stderr().lock().write_all(text),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Cuts bytes into lines and puts the rank in front.
struct Lines {
    prefix: Vec<u8>,
    unfinished: Vec<u8>,
}

impl Lines {
    fn new(rank: usize) -> Self {
        Self { prefix: format!("[{rank}] ").into_bytes(), unfinished: Vec::new() }
    }

    /// The lines that `bytes` complete.
    fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.unfinished.extend_from_slice(part);
            if part.ends_with(b"\n") || self.unfinished.len() >= LONGEST_LINE {
                text.append(&mut self.take());
            }
        }
        text
    }

    /// What is there of an unfinished line, as a line.
    fn take(&mut self) -> Vec<u8> {
        if self.unfinished.is_empty() {
            return Vec::new();
        }
        let mut line = self.prefix.clone();
        line.append(&mut self.unfinished);
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_get_their_rank_however_they_arrive() {
        let mut lines = Lines::new(3);
        assert_eq!(lines.push(b"one\ntw"), b"[3] one\n");
        assert_eq!(lines.push(b"o"), b"");
        assert_eq!(lines.push(b"\n\nthree"), b"[3] two\n[3] \n");
        assert_eq!(lines.take(), b"[3] three\n");
        assert_eq!(lines.take(), b"");
    }

    #[test]
    fn a_line_without_end_does_not_pile_up() {
        let mut lines = Lines::new(0);
        let text = lines.push(&vec![b'x'; 3 * LONGEST_LINE]);
        assert!(text.len() > LONGEST_LINE);
        assert!(lines.unfinished.len() < LONGEST_LINE);
    }
}
