//! The control connection of a rank or of the root, whose other end says anything.

use annulus::bootstrap::read_frames;

/// The first byte is the world size, the others are what arrives.
pub(crate) fn run(data: &[u8]) {
    let [world, data @ ..] = data else { return };
    // A frame takes five bytes at least.
    assert!(read_frames(data, usize::from(*world)) <= data.len() / 5);
}
