//! One pass over memory: `dst = a ⊕ b`, in blocks of a cache line.

use std::marker::PhantomData;

use annulus_transports::memory::Store;

use super::arithmetic::{Arithmetic, Parameter};
use super::operator::Operator;

/// Bytes combined at a time: one cache line, so that streaming stores fill whole lines.
const BLOCK: usize = 64;

/// How one line's worth of elements, or less, is combined.
pub(super) trait Combine {
    type Element;

    /// Combines `N` bytes, a power of two and at least one element.
    ///
    /// # Safety
    /// The CPU must have the instructions that the implementation uses.
    unsafe fn combine<const N: usize>(a: [u8; N], b: [u8; N], parameter: &Parameter) -> [u8; N];
}

/// Element by element, which the compiler turns into vector code for the surrounding function's
/// instruction set.
pub(super) struct Elementwise<T, O>(PhantomData<(T, O)>);

impl<T: Arithmetic, O: Operator> Combine for Elementwise<T, O> {
    type Element = T;

    #[inline(always)]
    unsafe fn combine<const N: usize>(a: [u8; N], b: [u8; N], parameter: &Parameter) -> [u8; N] {
        let mut result = [0; N];
        for at in 0..N / size_of::<T>() {
            // SAFETY: element `at` lies within the arrays; `T` is a number, valid for all bits.
            unsafe {
                let a = a.as_ptr().cast::<T>().add(at).read_unaligned();
                let b = b.as_ptr().cast::<T>().add(at).read_unaligned();
                let r = O::apply(a, b, parameter);
                result.as_mut_ptr().cast::<T>().add(at).write_unaligned(r);
            }
        }
        result
    }
}

/// What a pass works on.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub(super) dst: *mut u8,
    /// Also receives the result, unless null.
    pub(super) second: *mut u8,
    pub(super) a: *const u8,
    pub(super) b: *const u8,
    pub(super) bytes: usize,
}

impl Operands {
    /// What lies `bytes` further on.
    #[inline(always)]
    unsafe fn skip(self, bytes: usize) -> Self {
        // SAFETY: the caller stays within the operands.
        unsafe {
            Self {
                dst: self.dst.add(bytes),
                second: if self.second.is_null() { self.second } else { self.second.add(bytes) },
                a: self.a.add(bytes),
                b: self.b.add(bytes),
                bytes: self.bytes - bytes,
            }
        }
    }
}

/// Which of the results bypass the cache.
#[derive(Clone, Copy)]
pub(super) struct Streaming {
    pub(super) dst: bool,
    pub(super) second: bool,
}

impl Streaming {
    pub(super) const NONE: Self = Self { dst: false, second: false };

    #[inline(always)]
    pub(super) fn new(dst: Store, second: Store) -> Self {
        Self { dst: dst == Store::NonTemporal, second: second == Store::NonTemporal }
    }

    #[inline(always)]
    fn any(self) -> bool {
        self.dst || self.second
    }
}

/// A compiled [`pass`].
pub(super) type Pass = unsafe fn(Operands, Streaming, &Parameter);

/// Runs the pass. Inlined into one function for each instruction set, `this`, which it calls for the ragged ends
/// of what it streams.
///
/// # Safety
/// As [`Kernel::run`](super::Kernel::run), and the CPU must have the instructions of `C`.
#[inline(always)]
pub(super) unsafe fn pass<C: Combine>(
    operands: Operands,
    streaming: Streaming,
    parameter: &Parameter,
    this: Pass,
) {
    // SAFETY: as the caller promised.
    unsafe {
        if operands.bytes < BLOCK {
            short::<C>(operands, parameter);
        } else if !(streaming.any() && streamed::<C>(operands, streaming, parameter, this)) {
            cached::<C>(operands, parameter);
        }
    }
}

/// The pass, compiled for what every CPU of the architecture has.
///
/// # Safety
/// As [`pass`].
pub(super) unsafe fn portable_pass<C: Combine>(
    operands: Operands,
    streaming: Streaming,
    parameter: &Parameter,
) {
    // SAFETY: as the caller promised.
    unsafe { pass::<C>(operands, streaming, parameter, portable_pass::<C>) }
}

/// Less than a block: two pieces of a power of two that overlap in the middle. Both are computed before
/// either is written, because a result may lie where an operand does.
#[inline(always)]
unsafe fn short<C: Combine>(operands: Operands, parameter: &Parameter) {
    macro_rules! try_pieces {
        ($($n:literal)*) => {$(
            if $n >= size_of::<C::Element>() && operands.bytes >= $n {
                // SAFETY: both pieces lie within the operands.
                unsafe {
                    let at = operands.bytes - $n;
                    let first = combine_at::<C, $n>(operands, 0, parameter);
                    let last = combine_at::<C, $n>(operands, at, parameter);
                    write(operands.dst, first);
                    write(operands.dst.add(at), last);
                    if !operands.second.is_null() {
                        write(operands.second, first);
                        write(operands.second.add(at), last);
                    }
                }
                return;
            }
        )*};
    }
    try_pieces!(32 16 8 4 2 1);
}

/// At least a block, through the cache.
#[inline(always)]
unsafe fn cached<C: Combine>(operands: Operands, parameter: &Parameter) {
    let Operands { dst, second, bytes, .. } = operands;
    let last = bytes - BLOCK;
    // SAFETY: every block lies within the operands.
    unsafe {
        // The last block may overlap the one before it, whose result may lie where its operands do.
        let tail = combine_at::<C, BLOCK>(operands, last, parameter);
        let mut at = 0;
        while at < last {
            let block = combine_at::<C, BLOCK>(operands, at, parameter);
            write(dst.add(at), block);
            if !second.is_null() {
                write(second.add(at), block);
            }
            at = opaque(at + BLOCK);
        }
        write(dst.add(last), tail);
        if !second.is_null() {
            write(second.add(last), tail);
        }
    }
}

/// Writes the whole lines of a result past the cache, and what comes before and after through it.
/// Does nothing and returns false where no whole line of elements exists.
#[inline(always)]
unsafe fn streamed<C: Combine>(
    operands: Operands,
    streaming: Streaming,
    parameter: &Parameter,
    this: Pass,
) -> bool {
    let leader = if streaming.dst { operands.dst } else { operands.second };
    let head = leader.addr().wrapping_neg() % BLOCK;
    if leader.is_null()
        || !head.is_multiple_of(size_of::<C::Element>())
        || operands.bytes < head + BLOCK
    {
        return false;
    }
    // SAFETY: the head, the lines and the rest lie within the operands.
    unsafe {
        this(Operands { bytes: head, ..operands }, Streaming::NONE, parameter);
        let lines = operands.skip(head);
        let stream_second = streaming.second && is_streamable(lines.second);
        let mut at = 0;
        while at + BLOCK <= lines.bytes {
            let line = combine_at::<C, BLOCK>(lines, at, parameter);
            write_as(streaming.dst, lines.dst.add(at), line);
            if !lines.second.is_null() {
                write_as(stream_second, lines.second.add(at), line);
            }
            at = opaque(at + BLOCK);
        }
        this(lines.skip(at), Streaming::NONE, parameter);
    }
    fence();
    true
}

#[inline(always)]
unsafe fn combine_at<C: Combine, const N: usize>(
    operands: Operands,
    at: usize,
    parameter: &Parameter,
) -> [u8; N] {
    // SAFETY: the caller keeps `at + N` within the operands; arrays of bytes have no alignment.
    unsafe {
        let a = operands.a.add(at).cast::<[u8; N]>().read();
        let b = operands.b.add(at).cast::<[u8; N]>().read();
        C::combine(a, b, parameter)
    }
}

#[inline(always)]
unsafe fn write<const N: usize>(dst: *mut u8, block: [u8; N]) {
    // SAFETY: the caller's; arrays of bytes have no alignment.
    unsafe { dst.cast::<[u8; N]>().write(block) }
}

#[inline(always)]
unsafe fn write_as(stream: bool, dst: *mut u8, line: [u8; BLOCK]) {
    // SAFETY: the caller's; it asks to stream only to aligned addresses.
    unsafe { if stream { stream_line(dst, line) } else { write(dst, line) } }
}

/// 16 bytes suffice: the parts of a line meet in the CPU's write-combining buffer.
#[inline(always)]
fn is_streamable(dst: *mut u8) -> bool {
    dst.addr().is_multiple_of(16)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn stream_line(dst: *mut u8, line: [u8; BLOCK]) {
    use std::arch::x86_64::{__m128i, _mm_stream_si128};
    for at in (0..BLOCK).step_by(16) {
        // SAFETY: SSE2 is part of the architecture; the read is within the line and unaligned; the caller
        // vouches for 64 bytes at an aligned `dst`.
        unsafe {
            let part = line.as_ptr().add(at).cast::<__m128i>().read_unaligned();
            _mm_stream_si128(dst.add(at).cast(), part);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn stream_line(dst: *mut u8, line: [u8; BLOCK]) {
    // SAFETY: the caller's.
    unsafe { write(dst, line) }
}

/// Orders streamed stores before whatever the thread stores next, such as the flag that announces them.
#[inline(always)]
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// The same number, hidden from the compiler: it must not vectorise across blocks, which it does with
/// gathers, several times slower than a block's own vector code.
#[inline(always)]
fn opaque(mut at: usize) -> usize {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) at, options(pure, nomem, nostack, preserves_flags));
    }
    at
}
