//! Copying with a choice of stores.

use std::ptr;

/// How a large copy or reduction writes its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Store {
    /// Through the cache: whoever reads next finds it there.
    #[default]
    Cached,
    /// Past the cache: for output larger than the cache, and for peers that share none with this core.
    NonTemporal,
}

/// Copies `bytes` from `src` to `dst`.
///
/// With [`Store::NonTemporal`], all but the ragged ends of a copy of at least [`SMALLEST_STREAM`] bytes bypasses the
/// cache, and a store fence follows: a flag that the caller raises afterwards is never seen before the data. On
/// other architectures than x86-64 both stores are the same.
///
/// # Safety
/// `src` must be readable and `dst` writable for `bytes`, and they must not overlap. No alignment is needed.
/// Nobody else may write either meanwhile, nor read `dst`.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize, store: Store) {
    // SAFETY: as the caller promised.
    unsafe {
        match store {
            #[cfg(target_arch = "x86_64")]
            Store::NonTemporal if bytes >= SMALLEST_STREAM => x86::stream(dst, src, bytes),
            #[cfg(target_arch = "x86_64")]
            Store::Cached if x86::STRINGS.contains(&bytes) => x86::copy(dst, src, bytes),
            _ => ptr::copy_nonoverlapping(src, dst, bytes),
        }
    }
}

/// Copies a slice to one of the same length.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub(crate) fn copy_slice(to: &mut [u8], from: &[u8], store: Store) {
    assert_eq!(to.len(), from.len());
    // SAFETY: both are that long, and an exclusive borrow overlaps no other.
    unsafe { copy(to.as_mut_ptr(), from.as_ptr(), from.len(), store) }
}

/// The smallest copy, in bytes, that [`Store::NonTemporal`] applies to: below this, the trip to memory costs more
/// than any reader saves.
pub const SMALLEST_STREAM: usize = 512;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::ops::Range;
    use std::ptr;

    const LINE: usize = 64;

    /// The sizes that glibc copies by the CPU's string instruction. On Zen 3 that instruction falls from 60
    /// to 2 GB/s where the destination begins a little later within its page than the source, which is
    /// how a large `malloc` (16 bytes into a page) lies to a page-aligned slot.
    pub(super) const STRINGS: Range<usize> = 2048..1 << 20;

    /// # Safety
    /// As [`super::copy`].
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
        // SAFETY: as the caller promised.
        unsafe {
            if is_x86_feature_detected!("avx2") {
                copy_avx2(dst, src, bytes);
            } else {
                ptr::copy_nonoverlapping(src, dst, bytes);
            }
        }
    }

    /// # Safety
    /// As [`super::copy`]; the CPU has AVX2.
    #[target_feature(enable = "avx2")]
    unsafe fn copy_avx2(dst: *mut u8, src: *const u8, bytes: usize) {
        const BLOCK: usize = 128;
        let mut at = 0;
        while at + BLOCK <= bytes {
            // SAFETY: the block lies within the buffers; no access needs alignment.
            unsafe {
                let (src, dst) = (src.add(at), dst.add(at));
                let a = _mm256_loadu_si256(src.cast());
                let b = _mm256_loadu_si256(src.add(32).cast());
                let c = _mm256_loadu_si256(src.add(64).cast());
                let d = _mm256_loadu_si256(src.add(96).cast());
                _mm256_storeu_si256(dst.cast(), a);
                _mm256_storeu_si256(dst.add(32).cast(), b);
                _mm256_storeu_si256(dst.add(64).cast(), c);
                _mm256_storeu_si256(dst.add(96).cast(), d);
            }
            at += BLOCK;
        }
        // SAFETY: what is left of the buffers, less than a block.
        unsafe { ptr::copy_nonoverlapping(src.add(at), dst.add(at), bytes - at) }
    }

    /// # Safety
    /// As [`super::copy`]; `bytes` is at least a line.
    pub(super) unsafe fn stream(dst: *mut u8, src: *const u8, bytes: usize) {
        let head = dst.addr().wrapping_neg() % LINE;
        let lines = (bytes - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: head, lines and tail lie within the buffers, and `dst + head` begins a line.
        unsafe {
            ptr::copy_nonoverlapping(src, dst, head);
            if is_x86_feature_detected!("avx2") {
                lines_avx2(dst.add(head), src.add(head), lines);
            } else {
                lines_sse2(dst.add(head), src.add(head), lines);
            }
            ptr::copy_nonoverlapping(src.add(tail), dst.add(tail), bytes - tail);
            _mm_sfence();
        }
    }

    /// # Safety
    /// `dst` begins a line; both are valid for `lines` lines; the CPU has AVX2.
    #[target_feature(enable = "avx2")]
    unsafe fn lines_avx2(dst: *mut u8, src: *const u8, lines: usize) {
        for at in (0..lines * LINE).step_by(LINE) {
            // SAFETY: `at` is the offset of a line; loads need no alignment, and the stores have it.
            unsafe {
                let lower = _mm256_loadu_si256(src.add(at).cast());
                let upper = _mm256_loadu_si256(src.add(at + 32).cast());
                _mm256_stream_si256(dst.add(at).cast(), lower);
                _mm256_stream_si256(dst.add(at + 32).cast(), upper);
            }
        }
    }

    /// # Safety
    /// `dst` begins a line; both are valid for `lines` lines.
    unsafe fn lines_sse2(dst: *mut u8, src: *const u8, lines: usize) {
        for at in (0..lines * LINE).step_by(16) {
            // SAFETY: `at` lies within the lines; the load needs no alignment, and the store has it; SSE2
            // is part of the architecture.
            unsafe {
                let part: __m128i = _mm_loadu_si128(src.add(at).cast());
                _mm_stream_si128(dst.add(at).cast(), part);
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn both_widths_copy_whole_lines() {
            #[repr(align(64))]
            struct Lines([u8; 10 * LINE]);
            let src: Vec<u8> = (0..).map(|n: u32| (n * 7) as u8).take(8 * LINE + 5).collect();
            for avx2 in [false, true] {
                if avx2 && !is_x86_feature_detected!("avx2") {
                    eprintln!("skipped: this CPU has no AVX2");
                    continue;
                }
                let copy: unsafe fn(*mut u8, *const u8, usize) =
                    if avx2 { lines_avx2 } else { lines_sse2 };
                let mut dst = Lines([0; 10 * LINE]);
                // SAFETY: 8 lines from an odd address, to the second line of ten.
                unsafe { copy(dst.0.as_mut_ptr().add(LINE), src.as_ptr().add(5), 8) };
                assert_eq!(dst.0[LINE..9 * LINE], src[5..]);
                assert!(dst.0[..LINE].iter().chain(&dst.0[9 * LINE..]).all(|&byte| byte == 0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(bytes: usize, to: usize, from: usize, store: Store) {
        let src: Vec<u8> = (0..bytes + from).map(|n| (n * 31 % 251) as u8).collect();
        let mut dst = vec![0xee; bytes + to + 64];
        // SAFETY: `bytes` from and to within separate buffers.
        unsafe { copy(dst.as_mut_ptr().add(to), src.as_ptr().add(from), bytes, store) };
        assert_eq!(dst[to..to + bytes], src[from..]);
        assert!(dst[..to].iter().chain(&dst[to + bytes..]).all(|&byte| byte == 0xee));
    }

    #[test]
    fn lengths_about_the_smallest_stream() {
        for store in [Store::Cached, Store::NonTemporal] {
            for bytes in [0, 1, 63, 64, SMALLEST_STREAM - 1, SMALLEST_STREAM, SMALLEST_STREAM + 1] {
                check(bytes, 0, 0, store);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_length_and_alignment(bytes in 0..5000usize, to in 0..64usize, from in 0..64usize, nt: bool) {
            check(bytes, to, from, if nt { Store::NonTemporal } else { Store::Cached });
        }
    }
}
