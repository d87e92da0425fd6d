//! An encrypted stream whose other end says anything.

use std::io::{self, IoSlice, IoSliceMut, Read};

use annulus_transports::tcp::record::{Opener, RecordKey, Sealer};

/// The first byte tells how many bytes come at a time, the second what the others are:
///
/// * even: the stream. Whoever does not know the key can make nothing be handed out;
/// * odd: a mask over the stream of an honest sender (short masks go on with zeros). What is handed out must be the beginning of
///   what was sent, as far as the mask leaves records alone, and all of it if it leaves all alone.
pub(crate) fn run(data: &[u8]) {
    let [step, mode, data @ ..] = data else { return };
    let step = usize::from(*step).max(1);
    let mut opener = Opener::new(RecordKey::new([7; 32]));
    if mode % 2 == 0 {
        let opened = open(&mut opener, &mut Stream { bytes: data, step });
        assert_eq!(opened, [], "a forgery was believed");
    } else {
        let (plain, mut stream, ends) = honest();
        let damage = data.iter().take(stream.len()).position(|mask| *mask != 0);
        for (byte, mask) in stream.iter_mut().zip(data) {
            *byte ^= mask;
        }
        let opened = open(&mut opener, &mut Stream { bytes: &stream, step });
        let whole = ends.iter().filter(|(end, _)| damage.is_none_or(|at| *end <= at));
        let expected = whole.map(|(_, plain)| *plain).max().unwrap_or(0);
        assert_eq!(opened, plain[..expected]);
    }
    assert!(opener.memory_bytes() <= Opener::MAX_MEMORY_BYTES);
}

/// All that is handed out before the stream ends or fails.
fn open(opener: &mut Opener, stream: &mut Stream<'_>) -> Vec<u8> {
    let (mut opened, mut part) = (Vec::new(), [0; 50]);
    // 0 is the end of the stream; after an error there is nothing more.
    while let Ok(bytes @ 1..) = opener.read(stream, &mut [IoSliceMut::new(&mut part)]) {
        opened.extend_from_slice(&part[..bytes]);
    }
    assert!(!matches!(opener.read(stream, &mut [IoSliceMut::new(&mut part)]), Ok(1..)));
    opened
}

/// What an honest sender says, its stream, and where its records end: in the stream and in what it says.
fn honest() -> (Vec<u8>, Vec<u8>, Vec<(usize, usize)>) {
    let mut sealer = Sealer::new(RecordKey::new([7; 32]));
    let (mut plain, mut stream, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for (number, length) in [1, 40, 300, 8].into_iter().enumerate() {
        let message = vec![number as u8 + 1; length];
        let sealed =
            sealer.write(&mut stream, &[IoSlice::new(&message)]).expect("a vector takes all");
        assert_eq!(sealed, length);
        plain.extend(message);
        ends.push((stream.len(), plain.len()));
    }
    (plain, stream, ends)
}

/// Bytes that come a few at a time, and then end.
struct Stream<'a> {
    bytes: &'a [u8],
    step: usize,
}

impl Read for Stream<'_> {
    fn read(&mut self, dst: &mut [u8]) -> io::Result<usize> {
        let bytes = self.step.min(dst.len());
        self.bytes.read(&mut dst[..bytes])
    }
}
