//! The kernels for the repository's own benchmarks, which see only what is public.

use std::ptr;

use annulus_plan::{DataType, ReduceKind, Scalar};
use annulus_transports::memory::Store;

use super::{Isa, IsaError, Kernel, premultiply};

/// A kernel behind slices.
#[derive(Clone, Copy, Debug)]
pub struct Reduction(Kernel, DataType);

impl Reduction {
    /// With the instructions that `isa` names, or those that the library would use.
    pub fn new(isa: Option<&str>, dtype: DataType, op: ReduceKind) -> Result<Self, IsaError> {
        let kernel = match isa {
            Some(name) => Kernel::with_isa(Isa::parse(name)?, dtype, op, 2),
            None => {
                Isa::from_env()?;
                Kernel::new(dtype, op, 2)
            }
        };
        Ok(Self(kernel, dtype))
    }

    /// The names of the instruction sets of this CPU.
    pub fn available() -> Vec<&'static str> {
        Isa::available().map(Isa::name).collect()
    }

    /// `dst = dst ⊕ b`, over the shorter of the two.
    pub fn accumulate(&self, dst: &mut [u8], b: &[u8], finish: bool, store: Store) {
        let bytes = self.whole(dst.len().min(b.len()));
        let dst = dst.as_mut_ptr();
        // SAFETY: `bytes` lie within both; `b` is borrowed apart from `dst`.
        unsafe { self.0.run(dst, ptr::null_mut(), dst, b.as_ptr(), bytes, finish, store, store) }
    }

    /// `dst = second = a ⊕ b`, over the shortest of them.
    pub fn combine(&self, dst: &mut [u8], second: &mut [u8], a: &[u8], b: &[u8], store: Store) {
        let shortest = dst.len().min(second.len()).min(a.len()).min(b.len());
        let bytes = self.whole(shortest);
        let (dst, second) = (dst.as_mut_ptr(), second.as_mut_ptr());
        // SAFETY: `bytes` lie within all four, which are borrowed apart.
        unsafe { self.0.run(dst, second, a.as_ptr(), b.as_ptr(), bytes, false, store, store) }
    }

    /// `dst = dst · scalar`.
    pub fn scale(&self, dst: &mut [u8], scalar: Scalar) {
        let bytes = self.whole(dst.len());
        let dst = dst.as_mut_ptr();
        // SAFETY: `bytes` lie within `dst`.
        unsafe { premultiply(self.1, scalar, dst, dst, bytes) }
    }

    fn whole(&self, bytes: usize) -> usize {
        bytes - bytes % self.1.size()
    }
}
