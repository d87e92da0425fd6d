//! The text of `ncclGetLastError`: one for the process, as in NCCL.

use std::ffi::c_char;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes of a text with its NUL; what is longer is cut.
const CAPACITY: usize = 4096;

/// A text that was handed out stays as it is until so many others have come.
const KEPT: usize = 16;

static TEXTS: [[AtomicU8; CAPACITY]; KEPT] =
    [const { [const { AtomicU8::new(0) }; CAPACITY] }; KEPT];
static CURRENT: AtomicUsize = AtomicUsize::new(0);
static WRITER: Mutex<()> = Mutex::new(());

/// Makes `text` the last error.
pub(crate) fn set(text: &str) {
    let _writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    let next = (CURRENT.load(Ordering::Relaxed) + 1) % KEPT;
    let mut end = text.len().min(CAPACITY - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = text.as_bytes()[..end].iter().filter(|byte| **byte != 0);
    // The last byte of each text is never written, so that even a reader who came 16 errors late finds an end.
    for (cell, byte) in TEXTS[next].iter().zip(bytes.chain([&0])) {
        cell.store(*byte, Ordering::Relaxed);
    }
    CURRENT.store(next, Ordering::Release);
}

/// The last error, empty if there was none; it can be read as long as the process lives.
pub(crate) fn get() -> *const c_char {
    TEXTS[CURRENT.load(Ordering::Acquire)].as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn text() -> String {
        // SAFETY: the texts are terminated and live as long as the process.
        unsafe { CStr::from_ptr(get()) }.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn texts_are_cut_at_characters_and_stay_while_others_come() {
        set("a\0b");
        assert_eq!(text(), "ab");
        let kept = get();
        set(&"ä".repeat(CAPACITY));
        assert_eq!(text().chars().count(), (CAPACITY - 1) / 2);
        for number in 0..KEPT - 2 {
            set(&number.to_string());
        }
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(kept) }, c"ab");
    }
}
