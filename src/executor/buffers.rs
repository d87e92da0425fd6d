//! Where a plan's buffers are.

use annulus_plan::{Buffer, Collective, Plan, Span};

/// The memory of one call. Which buffers exist, and how large, is the program's affair: see
/// [`Extents`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers<'a> {
    /// [`Buffer::Input`].
    pub(crate) input: *const u8,
    /// [`Buffer::Output`].
    pub(crate) output: *mut u8,
    /// [`Buffer::Scratch`].
    pub(crate) scratch: *mut u8,
    /// [`Buffer::Member`].
    pub(crate) members: &'a [*mut u8],
}

impl Buffers<'_> {
    /// The address of `span`'s first byte. Valid for its length when the program's extents hold.
    pub(super) fn at(&self, span: Span) -> *mut u8 {
        let base = match span.buffer {
            Buffer::Input => self.input.cast_mut(),
            Buffer::Output => self.output,
            Buffer::Scratch => self.scratch,
            Buffer::Member(index) => self.members[index],
        };
        base.wrapping_add(span.offset)
    }
}

/// How large each buffer of a call is, in bytes: what the spans of its plan are checked against once,
/// so that running it needs no check.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    pub(crate) input: usize,
    pub(crate) output: usize,
    pub(crate) scratch: usize,
    pub(crate) members: Vec<usize>,
}

impl Extents {
    /// Those of `plan` for `call`.
    pub(crate) fn of(call: &Collective, plan: &Plan) -> Self {
        Self {
            input: call.input_bytes(plan.rank),
            output: call.output_bytes(plan.rank),
            scratch: plan.scratch_bytes,
            members: Vec::new(),
        }
    }

    /// Whether `span` lies within its buffer.
    pub(super) fn hold(&self, span: Span) -> bool {
        let extent = match span.buffer {
            Buffer::Input => self.input,
            Buffer::Output => self.output,
            Buffer::Scratch => self.scratch,
            Buffer::Member(index) => self.members.get(index).copied().unwrap_or(0),
        };
        span.offset.checked_add(span.bytes).is_some_and(|end| end <= extent)
    }
}
