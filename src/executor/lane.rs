//! Moves one lane on by one piece.

use std::slice;

use annulus_plan::{Fingerprint, Span};
use annulus_transports::link::{LinkError, Piece};
use annulus_transports::memory::{self, Store};
use annulus_transports::wait::Waiter;

use super::Links;
use super::buffers::Buffers;
use super::program::{End, Lane, Step};
use crate::reduce::Kernel;

/// Smaller messages are copied even where a reference could be sent: the copy is cheaper than waiting
/// for the receiver to have read the original.
pub(super) const MIN_REFERENCE_BYTES: usize = 8 << 10;

/// What a link can hand over without showing it first.
const SMALL_BYTES: usize = 32;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
    Moved,
    Blocked,
}

/// Everything a step needs beside its lane.
pub(super) struct Context<'a> {
    pub(super) links: &'a mut Links,
    pub(super) buffers: &'a Buffers<'a>,
    pub(super) fingerprint: Fingerprint,
    pub(super) kernel: &'a Kernel,
    pub(super) element_bytes: usize,
    pub(super) piece_bytes: usize,
    pub(super) by_reference: bool,
    pub(super) slot_store: Store,
    pub(super) output_store: Store,
}

impl Context<'_> {
    /// Moves an unfinished `lane` on by at most one piece.
    ///
    /// # Safety
    /// The buffers are valid for every span of the lane, and nobody else accesses what it writes.
    #[inline]
    pub(super) unsafe fn advance(&mut self, lane: &mut Lane) -> Result<Advance, LinkError> {
        let step = lane.steps[lane.next];
        if let Some(&mark) = lane.marks.get(lane.next) {
            self.fingerprint = mark;
        }
        let moved = match step {
            // SAFETY: the caller vouches for the spans of this lane's steps.
            Step::Send { to, src } => unsafe { self.send(lane, to, src)? },
            // SAFETY: as above.
            Step::Recv { from, dst } => unsafe { self.recv(lane, from, dst)? },
            Step::RecvReduce { from, with, dst, finish } => {
                // SAFETY: as above.
                unsafe { self.recv_reduce(lane, from, with, dst, finish)? }
            }
            Step::RecvReduceSend { from, to, with, dst, finish } => {
                // SAFETY: as above.
                unsafe { self.recv_reduce_send(lane, from, to, with, dst, finish)? }
            }
            Step::RecvCopySend { from, to, dst } => {
                // SAFETY: as above.
                unsafe { self.recv_copy_send(lane, from, to, dst)? }
            }
            Step::Copy { src, dst } => {
                // SAFETY: both spans are valid, and disjoint or equal.
                unsafe { self.copy(src, dst) };
                lane.complete();
                true
            }
            Step::Reduce { a, b, dst, finish } => {
                // SAFETY: the spans are valid, and disjoint or equal.
                unsafe {
                    self.kernel.run(
                        self.buffers.at(dst),
                        std::ptr::null_mut(),
                        self.buffers.at(a),
                        self.buffers.at(b),
                        dst.bytes,
                        finish,
                        self.output_store,
                        Store::Cached,
                    );
                }
                lane.complete();
                true
            }
        };
        Ok(if moved { Advance::Moved } else { Advance::Blocked })
    }

    /// Polls for what the only unfinished lane waits for, if it waits for a message and spinning is worth it; true:
    /// it has come.
    #[inline]
    pub(super) fn spin(&mut self, lanes: &[Lane], waiter: &mut Waiter) -> Result<bool, LinkError> {
        let Some(lane) = lanes.iter().find(|lane| !lane.is_finished()) else { return Ok(false) };
        let (Step::Recv { from, .. } | Step::RecvReduce { from, .. }) = lane.steps[lane.next]
        else {
            return Ok(false);
        };
        match waiter.spin_turns() {
            0 => Ok(false),
            turns => self.links.recvs[from.link].spin(turns),
        }
    }

    #[inline]
    unsafe fn send(&mut self, lane: &mut Lane, to: End, src: Span) -> Result<bool, LinkError> {
        // SAFETY: the caller vouches for `src`; `done` never exceeds its length.
        let rest = unsafe { self.bytes(src, lane.done, src.bytes) };
        // SAFETY: references are only allowed by plans that keep the bytes until they have been read, and
        // the executor does not return before the link is idle.
        match unsafe { self.pass_on(to, rest)? } {
            Some(sent) => {
                lane.done += sent;
                if lane.done == src.bytes {
                    lane.complete();
                }
                Ok(true)
            }
            None => Ok(false),
        }
    }

    #[inline]
    unsafe fn recv(&mut self, lane: &mut Lane, from: End, dst: Span) -> Result<bool, LinkError> {
        // SAFETY: the caller vouches for `dst`, which nobody else accesses.
        let rest = unsafe {
            slice::from_raw_parts_mut(
                self.buffers.at(dst).wrapping_add(lane.done),
                dst.bytes - lane.done,
            )
        };
        let link = &mut self.links.recvs[from.link];
        match link.try_recv(&self.fingerprint, rest, self.output_store)? {
            Some(received) => {
                lane.done += received;
                if lane.done == dst.bytes {
                    self.links.saw(from.link, self.fingerprint);
                    lane.complete();
                }
                Ok(true)
            }
            None => Ok(false),
        }
    }

    #[inline]
    unsafe fn recv_reduce(
        &mut self,
        lane: &mut Lane,
        from: End,
        with: Span,
        dst: Span,
        finish: bool,
    ) -> Result<bool, LinkError> {
        let link = &mut self.links.recvs[from.link];
        if dst.bytes <= SMALL_BYTES
            && lane.done == 0
            && let Some(payload) = link.try_take_small(&self.fingerprint, dst.bytes)
        {
            // SAFETY: both spans are valid and disjoint or equal, and no longer than the payload.
            unsafe {
                self.kernel.run(
                    self.buffers.at(dst),
                    std::ptr::null_mut(),
                    self.buffers.at(with),
                    payload.as_ptr().cast(),
                    dst.bytes,
                    finish,
                    Store::Cached,
                    Store::Cached,
                );
            }
            self.links.saw(from.link, self.fingerprint);
            lane.complete();
            return Ok(true);
        }
        let Some(piece) = link.try_peek()? else { return Ok(false) };
        let room = dst.bytes - lane.done;
        let bytes = accept(&piece, from, &self.fingerprint, room, self.element_bytes)?;
        // SAFETY: `bytes` is within both spans and the piece; spans are disjoint or equal.
        unsafe {
            self.kernel.run(
                self.buffers.at(dst).wrapping_add(lane.done),
                std::ptr::null_mut(),
                self.buffers.at(with).wrapping_add(lane.done),
                piece.bytes.as_ptr(),
                bytes,
                finish,
                self.output_store,
                Store::Cached,
            );
        }
        link.consume(bytes);
        lane.done += bytes;
        if lane.done == dst.bytes {
            self.links.saw(from.link, self.fingerprint);
            lane.complete();
        }
        Ok(true)
    }

    #[inline(never)]
    unsafe fn recv_reduce_send(
        &mut self,
        lane: &mut Lane,
        from: End,
        to: End,
        with: Span,
        dst: Option<Span>,
        finish: bool,
    ) -> Result<bool, LinkError> {
        let mut moved = false;
        if let Some(dst) = dst
            && lane.sent < lane.done
        {
            // SAFETY: `sent <= done <= length`: these bytes are final.
            let ready = unsafe { self.bytes(dst, lane.sent, lane.done) };
            // SAFETY: as in `send`.
            let Some(sent) = (unsafe { self.pass_on(to, ready)? }) else { return Ok(false) };
            lane.sent += sent;
            moved = true;
            if lane.sent == with.bytes {
                self.links.saw(from.link, self.fingerprint);
                lane.complete();
                return Ok(true);
            }
        }
        if lane.done == with.bytes {
            return Ok(moved);
        }
        let source = &mut self.links.recvs[from.link];
        let Some(piece) = source.try_peek()? else { return Ok(moved) };
        let room = with.bytes - lane.done;
        let bytes = accept(&piece, from, &self.fingerprint, room, self.element_bytes)?;
        let target = &mut self.links.sends[to.link];
        let local = self.buffers.at(with).wrapping_add(lane.done);
        if let Some(dst) = dst
            && self.by_reference
            && bytes >= MIN_REFERENCE_BYTES
            && target.can_reference(self.buffers.at(dst).wrapping_add(lane.done), bytes)
        {
            let bytes = bytes.min(self.piece_bytes);
            // SAFETY: `bytes` is within the spans and the piece; spans are disjoint or equal.
            unsafe {
                self.kernel.run(
                    self.buffers.at(dst).wrapping_add(lane.done),
                    std::ptr::null_mut(),
                    local,
                    piece.bytes.as_ptr(),
                    bytes,
                    finish,
                    self.output_store,
                    Store::Cached,
                );
            }
            source.consume(bytes);
            lane.done += bytes;
            return Ok(true);
        }
        let Some(slot) = target.try_reserve(bytes.min(self.piece_bytes))? else {
            return Ok(moved);
        };
        let bytes = slot.len() - slot.len() % self.element_bytes;
        if bytes == 0 {
            return Ok(moved);
        }
        let (first, first_store, second) = match dst {
            Some(dst) => {
                (self.buffers.at(dst).wrapping_add(lane.done), self.output_store, slot.as_mut_ptr())
            }
            None => (slot.as_mut_ptr(), self.slot_store, std::ptr::null_mut()),
        };
        // SAFETY: as above; the slot is `bytes` long or more and overlaps nothing.
        unsafe {
            self.kernel.run(
                first,
                second,
                local,
                piece.bytes.as_ptr(),
                bytes,
                finish,
                first_store,
                self.slot_store,
            );
        }
        target.commit(&self.fingerprint, bytes, self.slot_store)?;
        source.consume(bytes);
        lane.done += bytes;
        lane.sent += bytes;
        if lane.sent == with.bytes {
            self.links.saw(from.link, self.fingerprint);
            lane.complete();
        }
        Ok(true)
    }

    #[inline(never)]
    unsafe fn recv_copy_send(
        &mut self,
        lane: &mut Lane,
        from: End,
        to: End,
        dst: Span,
    ) -> Result<bool, LinkError> {
        let mut moved = false;
        if lane.sent < lane.done {
            // SAFETY: `sent <= done <= length`: these bytes have been received.
            let ready = unsafe { self.bytes(dst, lane.sent, lane.done) };
            // SAFETY: as in `send`.
            if let Some(sent) = unsafe { self.pass_on(to, ready)? } {
                lane.sent += sent;
                moved = true;
            }
        }
        if lane.done < dst.bytes {
            // SAFETY: the caller vouches for `dst`, which nobody else accesses.
            let rest = unsafe {
                slice::from_raw_parts_mut(
                    self.buffers.at(dst).wrapping_add(lane.done),
                    dst.bytes - lane.done,
                )
            };
            let link = &mut self.links.recvs[from.link];
            if let Some(received) = link.try_recv(&self.fingerprint, rest, self.output_store)? {
                lane.done += received;
                moved = true;
            }
        }
        if lane.sent == dst.bytes {
            self.links.saw(from.link, self.fingerprint);
            lane.complete();
        }
        Ok(moved)
    }

    #[inline(never)]
    unsafe fn copy(&self, src: Span, dst: Span) {
        let (src, bytes, dst) = (self.buffers.at(src), src.bytes, self.buffers.at(dst));
        if src != dst {
            // SAFETY: the caller vouches for both spans; unequal spans are disjoint.
            unsafe { memory::copy(dst, src, bytes, self.output_store) };
        }
    }

    /// Sends the beginning of `bytes`, by reference if plan and link allow it.
    ///
    /// # Safety
    /// As [`SendLink::try_send_reference`](annulus_transports::link::SendLink::try_send_reference) when the program allows references.
    #[inline]
    unsafe fn pass_on(&mut self, to: End, bytes: &[u8]) -> Result<Option<usize>, LinkError> {
        let link = &mut self.links.sends[to.link];
        if self.by_reference
            && bytes.len() >= MIN_REFERENCE_BYTES
            && link.can_reference(bytes.as_ptr(), bytes.len())
        {
            let piece = &bytes[..bytes.len().min(self.piece_bytes)];
            // SAFETY: the caller vouches for it.
            let taken = unsafe { link.try_send_reference(&self.fingerprint, piece)? };
            return Ok(taken.map(|()| piece.len()));
        }
        link.try_send(&self.fingerprint, bytes, self.piece_bytes, self.slot_store)
    }

    /// Bytes `start..end` of `span`.
    ///
    /// # Safety
    /// The span is valid and `start <= end <= span.bytes`; nobody writes the bytes while the slice lives.
    unsafe fn bytes<'s>(&self, span: Span, start: usize, end: usize) -> &'s [u8] {
        // SAFETY: the caller vouches for it.
        unsafe { slice::from_raw_parts(self.buffers.at(span).wrapping_add(start), end - start) }
    }
}

impl Lane {
    fn complete(&mut self) {
        self.next += 1;
        (self.done, self.sent) = (0, 0);
    }
}

/// Checks a piece against the call: how many of its bytes can be used, at most `room`, in whole elements. A link
/// shows less than one element only where a piece ends, and no sender cuts pieces like that.
#[inline]
fn accept(
    piece: &Piece<'_>,
    from: End,
    ours: &Fingerprint,
    room: usize,
    element_bytes: usize,
) -> Result<usize, LinkError> {
    let (peer, got) = (from.peer, piece.bytes.len());
    if piece.fingerprint != *ours {
        return Err(LinkError::Mismatch { peer, theirs: piece.fingerprint, ours: *ours });
    }
    if got > room {
        return Err(LinkError::Length { peer, ours: *ours, expected: room, got });
    }
    if got < element_bytes {
        let what = format!("a piece of {got} bytes, where an element has {element_bytes}");
        return Err(LinkError::Protocol { peer, what });
    }
    Ok(got - got % element_bytes)
}
