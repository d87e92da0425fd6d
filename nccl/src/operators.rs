//! Reduction operators: NCCL's own five, and those that a program makes.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{MutexGuard, PoisonError};

use annulus::{DataType, RawCall, ReduceOp, Scalar, read_scalar};

use crate::collectives::data_type;
use crate::communicator::{Live, find};
use crate::handles::Handle;
use crate::init::Out;
use crate::memory;
use crate::result::{Code, Failure, Outcome};

/// The operators that a communicator's program has made.
#[derive(Default)]
pub(crate) struct Operators {
    made: HashMap<u32, Made>,
    /// The number that the next one tries first. Numbers come again as late as possible, so that a destroyed
    /// operator is not taken for another.
    next: u32,
}

/// A sum of products with a factor of this rank's.
#[derive(Clone, Copy)]
struct Made {
    dtype: DataType,
    factor: Factor,
}

#[derive(Clone, Copy)]
enum Factor {
    Value(Scalar),
    /// Read when a collective runs.
    At(usize),
}

/// An operator that fits a call.
pub(crate) struct Operator {
    pub(crate) op: ReduceOp,
    factor_at: Option<*const u8>,
}

/// `ncclNumOps`: the least number of an operator that is made.
const BUILT_IN: c_int = 5;

/// An operator is `BUILT_IN` + its number, with bits of its communicator above.
const NUMBER_BITS: u32 = 16;
const OWNER_BITS: u32 = 14;

impl Operator {
    /// The call with the operator's factor.
    #[inline]
    pub(crate) fn applied_to(&self, call: RawCall) -> RawCall {
        match self.factor_at {
            Some(factor) => call.with_factor_at(factor),
            None => call,
        }
    }
}

/// The operator that `op` stands for in calls of `live` on `dtype`.
#[inline]
pub(crate) fn find_operator(live: &Live, op: c_int, dtype: DataType) -> Result<Operator, Failure> {
    let op = match op {
        0 => ReduceOp::Sum,
        1 => ReduceOp::Prod,
        2 => ReduceOp::Max,
        3 => ReduceOp::Min,
        4 => ReduceOp::Avg,
        _ => return find_made(live, op, dtype),
    };
    Ok(Operator { op, factor_at: None })
}

#[cold]
fn find_made(live: &Live, op: c_int, dtype: DataType) -> Result<Operator, Failure> {
    let number = number(live, op)?;
    let made = operators(live).made.get(&number).copied().ok_or_else(|| unknown(op))?;
    if made.dtype != dtype {
        return Err(Failure::argument(format!(
            "op {op:#x} was made for {}, and the call is on {dtype}",
            made.dtype
        )));
    }
    let (scalar, factor_at) = match made.factor {
        Factor::Value(scalar) => (scalar, None),
        Factor::At(address) if dtype.is_float() => (Scalar::Float(1.0), Some(address as *const u8)),
        Factor::At(address) => (Scalar::Integer(1), Some(address as *const u8)),
    };
    Ok(Operator { op: ReduceOp::PreMulSum(scalar), factor_at })
}

/// `ncclRedOpCreatePreMulSum`
///
/// # Safety
/// `scalar` is null or leads to an element of the type: now, or, if `residence` says device, while collectives with
/// the operator run.
pub(crate) unsafe fn create(
    out: Out<c_int>,
    scalar: *const c_void,
    dtype: c_int,
    residence: c_int,
    comm: Handle,
) -> Outcome {
    let live = find(comm)?;
    live.ready()?;
    let dtype = data_type(dtype)?;
    if scalar.is_null() {
        return Err(Failure::argument("scalar is NULL"));
    }
    let factor = match residence {
        0 => {
            memory::expect_host(scalar, "scalar")?;
            Factor::At(scalar as usize)
        }
        // SAFETY: the caller vouches for the element.
        1 => Factor::Value(unsafe { read_scalar(dtype, scalar.cast()) }),
        _ => {
            let text = format!("residence is {residence}, but must be 0 (device) or 1 (host)");
            return Err(Failure::argument(text));
        }
    };
    let mut operators = operators(&live);
    let limit = 1 << NUMBER_BITS;
    if operators.made.len() == limit as usize {
        return Err(Failure::usage(format!("there are {limit} operators: destroy some")));
    }
    let mut number = operators.next;
    while operators.made.contains_key(&number) {
        number = (number + 1) % limit;
    }
    operators.next = (number + 1) % limit;
    operators.made.insert(number, Made { dtype, factor });
    out.write(BUILT_IN + (owner(&live) << NUMBER_BITS | number) as c_int);
    Ok(Code::Success)
}

/// `ncclRedOpDestroy`
pub(crate) fn destroy(op: c_int, comm: Handle) -> Outcome {
    let live = find(comm)?;
    if (0..BUILT_IN).contains(&op) {
        return Err(Failure::argument(format!("op {op} is built in, and cannot be destroyed")));
    }
    let number = number(&live, op)?;
    match operators(&live).made.remove(&number) {
        Some(_) => Ok(Code::Success),
        None => Err(unknown(op)),
    }
}

fn number(live: &Live, op: c_int) -> Result<u32, Failure> {
    let bits = op.checked_sub(BUILT_IN).filter(|bits| *bits >= 0).map(|bits| bits as u32);
    match bits {
        Some(bits) if bits >> NUMBER_BITS == owner(live) => Ok(bits & ((1 << NUMBER_BITS) - 1)),
        _ => Err(unknown(op)),
    }
}

fn unknown(op: c_int) -> Failure {
    Failure::argument(format!(
        "op {op:#x} is no operator of this communicator: it is not built in (0 to 4), and was not made for it or \
         has been destroyed"
    ))
}

fn owner(live: &Live) -> u32 {
    live.handle.digest() & ((1 << OWNER_BITS) - 1)
}

fn operators(live: &Live) -> MutexGuard<'_, Operators> {
    live.operators.lock().unwrap_or_else(PoisonError::into_inner)
}
