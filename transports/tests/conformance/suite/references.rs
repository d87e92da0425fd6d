//! Messages that the receiver reads where they lie.

use super::Harness;
use super::ends::{call, link, pattern, peek, receive, send};

pub(crate) fn references_are_idle_once_read<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    // Larger than the link itself, sometimes.
    for (number, size) in [64, 4096, 1 << 20, 40_000].into_iter().cycle().take(12).enumerate() {
        let mut buffer = (world.allocate)(0, size + 64);
        let bytes = &mut buffer[(number * 8) % 64..][..size];
        bytes.copy_from_slice(&pattern(number, size));
        assert_eq!(sender.can_reference(bytes.as_ptr(), bytes.len()), H::REFERENCES);
        // SAFETY: `buffer` is neither written nor dropped before the link is idle.
        let taken = unsafe { sender.try_send_reference(&call(number), bytes) }.expect("open");
        assert_eq!(taken.is_some(), H::REFERENCES);
        if !H::REFERENCES {
            return;
        }
        assert!(!sender.is_idle().expect("open"));
        peek(&mut *receiver, &mut *sender, |seen, fingerprint| {
            assert_eq!(fingerprint, call(number));
            assert!(seen == bytes);
        });
        receiver.consume(size - 8);
        assert!(!sender.is_idle().expect("open"), "8 bytes are still to be read");
        receiver.consume(8);
        assert!(sender.is_idle().expect("open"));
    }
}

pub(crate) fn references_and_copies_keep_their_order<H: Harness>(harness: &H) {
    if !H::REFERENCES {
        return;
    }
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    let mut buffer = (world.allocate)(0, 4096);
    buffer.copy_from_slice(&pattern(7, 4096));
    for _ in 0..20 {
        send(&mut *sender, &call(1), &pattern(1, 50), usize::MAX);
        // SAFETY: `buffer` lives and keeps its contents until after both ends.
        unsafe { sender.try_send_reference(&call(2), &buffer) }.expect("open").expect("room");
        send(&mut *sender, &call(3), &pattern(3, 20), usize::MAX);
        assert_eq!(receive(&mut *receiver, &call(1), 50), pattern(1, 50));
        assert!(!sender.is_idle().expect("open"));
        assert!(receive(&mut *receiver, &call(2), 4096) == pattern(7, 4096));
        assert_eq!(receive(&mut *receiver, &call(3), 20), pattern(3, 20));
        assert!(sender.is_idle().expect("open"));
    }
}
