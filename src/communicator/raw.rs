//! Calls on plain pointers, with types that are known at run time only: what bindings for other languages stand
//! on. Everything else of a call is checked as it is for slices.

use annulus_plan::{
    Collective, CollectiveKind, DataType, Direction, Fingerprint, Rank, ReduceOp, Scalar,
};
use half::{bf16, f16};

use super::engine::Operation;
use super::group::{Group, in_defined_order};
use super::queue::Work;
use super::{Communicator, Started};
use crate::{Error, F8E4M3, F8E5M2};

/// A collective on plain memory: the input has [`Collective::input_bytes`] bytes, the output
/// [`Collective::output_bytes`]; where that is 0 the pointer is not looked at. Alignment does not matter. Input and output either
/// coincide as [`Collective::in_place`] says, which is found out by comparing the pointers, or do not overlap.
#[derive(Clone, Copy, Debug)]
pub struct RawCall {
    collective: Collective,
    factor: Option<Factor>,
    input: *const u8,
    output: *mut u8,
}

/// Calls of one communicator that start together: see [`Communicator::group`], whose rules it follows.
pub struct RawGroup {
    group: Group<'static>,
}

/// The factor that a call's input is multiplied with beforehand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Factor {
    Value(Scalar),
    /// An element of the call's type, which is read when the call runs.
    At(*const u8),
}

impl RawCall {
    /// `op` is the operator with which `collective` was made, if it reduces.
    pub fn new(
        collective: Collective,
        op: Option<ReduceOp>,
        input: *const u8,
        output: *mut u8,
    ) -> Self {
        Self { collective, factor: Factor::of(op), input, output }
    }

    /// Multiplies the input by the element at `factor`, which is read when the call runs, in place of the scalar of
    /// [`ReduceOp::PreMulSum`].
    pub fn with_factor_at(self, factor: *const u8) -> Self {
        Self { factor: Some(Factor::At(factor)), ..self }
    }

    /// Which call it is.
    #[inline]
    pub fn collective(&self) -> &Collective {
        &self.collective
    }

    /// Whether input and output coincide when `rank` makes the call.
    #[inline]
    pub fn is_in_place(&self, rank: Rank) -> bool {
        coincide(&self.collective, rank, self.input, self.output)
    }

    #[inline]
    fn operation(&self, rank: Rank) -> Operation {
        let Self { collective, factor, input, output } = *self;
        let in_place = self.is_in_place(rank);
        Operation { call: collective.with_in_place(in_place), factor, input, output }
    }
}

/// Whether the buffers coincide in the way that the collective knows.
#[inline]
fn coincide(call: &Collective, rank: Rank, input: *const u8, output: *const u8) -> bool {
    let offset = rank.wrapping_mul(call.bytes());
    let is_root = call.root().is_none_or(|root| root == rank);
    match call.kind() {
        CollectiveKind::AllReduce | CollectiveKind::Reduce | CollectiveKind::Broadcast => {
            is_root && input == output
        }
        CollectiveKind::AllGather | CollectiveKind::Gather => {
            is_root && input == output.wrapping_add(offset)
        }
        CollectiveKind::ReduceScatter | CollectiveKind::Scatter => {
            is_root && output == input.wrapping_add(offset)
        }
        _ => false,
    }
}

impl Communicator {
    /// Runs `call` and blocks until the result is in place.
    ///
    /// # Errors
    /// Those of the collective.
    ///
    /// # Panics
    /// If the collective was made for another world size.
    ///
    /// # Safety
    /// The call's pointers are valid for its bytes, and nobody else accesses the memory meanwhile. A factor's pointer
    /// leads to an element of the call's type.
    #[inline]
    pub unsafe fn run_raw(&self, call: &RawCall) -> Result<(), Error> {
        self.expect_world(&call.collective);
        let operation = call.operation(self.rank());
        if call.factor.is_none() && self.queue.is_empty() {
            let fingerprint = Fingerprint::new(&operation.call, 0, self.shared.tag);
            let in_place = operation.call.in_place();
            let (input, output) = (operation.input, operation.output);
            // SAFETY: the caller vouches for the memory.
            let repeated =
                unsafe { self.engine().repeat(&self.shared, fingerprint, in_place, input, output) };
            if let Some(outcome) = repeated {
                return outcome;
            }
        }
        // SAFETY: as above.
        unsafe { self.run(&operation) }
    }

    /// A group without calls.
    pub fn raw_group(&self) -> RawGroup {
        RawGroup { group: Group::new(self) }
    }

    /// Runs the calls of `group` on this thread, and returns when all have ended.
    ///
    /// # Errors
    /// [`Error::Argument`] when `group` is another communicator's; else those of the calls.
    ///
    /// # Safety
    /// As for [`run_raw`](Self::run_raw), for each call, send and receive of the group.
    pub unsafe fn run_raw_group(&self, group: RawGroup) -> Result<(), Error> {
        // SAFETY: the caller vouches for the memory.
        unsafe { self.run_group(group.group) }
    }

    /// Queues the calls of `group` and returns at once. They run in order, after what was queued before, on a thread
    /// of the communicator; each of the results says when one has ended, and how.
    ///
    /// # Errors
    /// [`Error::Argument`] when `group` is another communicator's, or its transfers contradict each other; then
    /// nothing was queued.
    ///
    /// # Safety
    /// As for [`run_raw_group`](Self::run_raw_group), until all have ended.
    pub unsafe fn start_raw_group(&self, group: RawGroup) -> Result<Vec<Started>, Error> {
        let mut group = group.group;
        self.expect_own(&group)?;
        let exchange = if group.has_transfers() { Some(group.take_exchange()?) } else { None };
        let exchange = exchange.map(Work::Exchange);
        let collectives = in_defined_order(group).into_iter().map(Work::Collective);
        let start = |work| {
            // SAFETY: the caller vouches for the memory.
            Started { ticket: unsafe { self.queue.push(work) } }
        };
        Ok(exchange.into_iter().chain(collectives).map(start).collect())
    }

    fn expect_world(&self, call: &Collective) {
        let (theirs, ours) = (call.world(), self.world_size());
        assert_eq!(theirs, ours, "the call was made for {theirs} ranks, and here are {ours}");
    }
}

impl RawGroup {
    /// Adds `call`.
    ///
    /// # Panics
    /// If the collective was made for another world size.
    pub fn call(&mut self, call: &RawCall) {
        assert_eq!(call.collective.world(), self.group.world(), "the call's world size");
        self.group.push(call.operation(self.group.rank()));
    }

    /// Adds a send of `count` elements from `data` to `peer`.
    ///
    /// # Errors
    /// [`Error::Argument`] when `peer` is not a rank of the communicator, or the bytes exceed the address space.
    pub fn send(
        &mut self,
        data: *const u8,
        count: usize,
        dtype: DataType,
        peer: Rank,
    ) -> Result<(), Error> {
        let bytes = self.bytes(count, dtype)?;
        self.group.transfer(data.cast_mut(), bytes, dtype, peer, Direction::Send)
    }

    /// Adds a receive of `count` elements from `peer` into `data`.
    ///
    /// # Errors
    /// [`Error::Argument`] when `peer` is not a rank of the communicator, or the bytes exceed the address space.
    pub fn recv(
        &mut self,
        data: *mut u8,
        count: usize,
        dtype: DataType,
        peer: Rank,
    ) -> Result<(), Error> {
        let bytes = self.bytes(count, dtype)?;
        self.group.transfer(data, bytes, dtype, peer, Direction::Receive)
    }

    /// Whether the transfers of the group fit together, as far as one rank can tell.
    ///
    /// # Errors
    /// [`Error::Argument`] when received bytes overlap, or what a rank sends itself is not what it receives.
    pub fn check(&self) -> Result<(), Error> {
        self.group.check_transfers()
    }

    fn bytes(&self, count: usize, dtype: DataType) -> Result<usize, Error> {
        let bytes = count.checked_mul(dtype.size()).filter(|&bytes| bytes <= isize::MAX as usize);
        bytes.ok_or_else(|| Error::Argument {
            rank: self.group.rank(),
            kind: CollectiveKind::PointToPoint,
            argument: "count",
            problem: format!("is {count} elements of {dtype}: that exceeds the address space"),
        })
    }
}

impl Factor {
    pub(super) fn of(op: Option<ReduceOp>) -> Option<Self> {
        match op {
            Some(ReduceOp::PreMulSum(scalar)) => Some(Self::Value(scalar)),
            _ => None,
        }
    }

    /// # Safety
    /// A pointer leads to an element of type `dtype`, at any alignment.
    pub(super) unsafe fn read(self, dtype: DataType) -> Scalar {
        match self {
            Self::Value(scalar) => scalar,
            // SAFETY: the caller vouches for it.
            Self::At(element) => unsafe { read_scalar(dtype, element) },
        }
    }
}

/// The factor of a [`ReduceOp::PreMulSum`]: the element of type `dtype` at `element`, which needs no alignment.
///
/// # Safety
/// The element can be read.
pub unsafe fn read_scalar(dtype: DataType, element: *const u8) -> Scalar {
    /// # Safety
    /// As for [`read_scalar`].
    unsafe fn number<T: Copy>(element: *const u8) -> T {
        // SAFETY: the caller vouches for it.
        unsafe { element.cast::<T>().read_unaligned() }
    }
    // SAFETY: the caller vouches for an element of the type; these have its size, and any bits will do.
    unsafe {
        match dtype {
            DataType::I8 => Scalar::Integer(number::<i8>(element).into()),
            DataType::U8 => Scalar::Integer(number::<u8>(element).into()),
            DataType::I32 => Scalar::Integer(number::<i32>(element).into()),
            DataType::U32 => Scalar::Integer(number::<u32>(element).into()),
            DataType::I64 => Scalar::Integer(number::<i64>(element).into()),
            DataType::U64 => Scalar::Integer(number::<u64>(element).into()),
            DataType::F32 => Scalar::Float(number::<f32>(element).into()),
            DataType::F64 => Scalar::Float(number::<f64>(element)),
            DataType::F16 => Scalar::Float(number::<f16>(element).into()),
            DataType::Bf16 => Scalar::Float(number::<bf16>(element).into()),
            DataType::F8E4M3 => Scalar::Float(number::<F8E4M3>(element).to_f32().into()),
            DataType::F8E5M2 => Scalar::Float(number::<F8E5M2>(element).to_f32().into()),
        }
    }
}
