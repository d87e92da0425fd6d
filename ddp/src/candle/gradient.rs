//! Variables that report their gradients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor, Var,
};
use candle_nn::Init;
use candle_nn::var_builder::SimpleBackend;

use super::values;
use crate::{Error, Reducer};

/// What the operations of one backward pass have in common.
pub(super) struct Pass(Mutex<State>);

struct State {
    /// For each variable, whether its gradient was reported.
    reported: Vec<bool>,
    error: Option<Error>,
}

impl Pass {
    pub(super) fn new(vars: usize) -> Self {
        Self(Mutex::new(State { reported: vec![false; vars], error: None }))
    }

    pub(super) fn begin(&self) {
        let mut state = self.state();
        state.reported.fill(false);
        state.error = None;
    }

    pub(super) fn has(&self, index: usize) -> bool {
        self.state().reported[index]
    }

    pub(super) fn take_error(&self) -> Option<Error> {
        self.state().error.take()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The identity, which hands the gradient that comes back to the reducer.
struct Report {
    reducer: Arc<Reducer>,
    pass: Arc<Pass>,
    index: usize,
}

impl CustomOp1 for Report {
    fn name(&self) -> &'static str {
        "annulus-ddp"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let shape = layout.shape().clone();
        // A variable is contiguous, as is what `Tensor::contiguous` gave.
        let (start, end) = layout
            .contiguous_offsets()
            .ok_or_else(|| candle_core::Error::msg("a variable that is not contiguous"))?;
        macro_rules! copy {
            ($($kind:ident),*) => {
                match storage {
                    $(CpuStorage::$kind(values) => CpuStorage::$kind(values[start..end].to_vec()),)*
                    _ => return Err(candle_core::Error::msg("gradients are f16, bf16, f32 or f64")),
                }
            };
        }
        Ok((copy!(F16, BF16, F32, F64), shape))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        use candle_core::backend::BackendStorage;
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let outcome = values::hand_in(&self.reducer, self.index, gradient);
        let mut state = self.pass.state();
        state.reported[self.index] = true;
        match outcome {
            // The averaged gradient takes its place later.
            Ok(()) => Ok(None),
            Err(error) => {
                let text = error.to_string();
                state.error.get_or_insert(error);
                Err(candle_core::Error::msg(text))
            }
        }
    }
}

/// The variables of one forward pass, each given out once.
pub(super) struct Hooked {
    reducer: Arc<Reducer>,
    pass: Arc<Pass>,
    vars: Arc<Vec<(String, Var)>>,
    buffers: HashMap<String, Var>,
    given: Mutex<HashMap<usize, Tensor>>,
}

impl Hooked {
    pub(super) fn new(
        reducer: Arc<Reducer>,
        vars: Arc<Vec<(String, Var)>>,
        pass: Arc<Pass>,
        buffers: &[(String, Var)],
    ) -> Self {
        let buffers = buffers.iter().cloned().collect();
        Self { reducer, pass, vars, buffers, given: Mutex::default() }
    }

    fn find(&self, name: &str) -> Result<Tensor> {
        if let Some(buffer) = self.buffers.get(name) {
            return Ok(buffer.as_tensor().clone());
        }
        let found = self.vars.binary_search_by(|(known, _)| known.as_str().cmp(name));
        let index = found
            .map_err(|_| candle_core::Error::CannotFindTensor { path: name.to_owned() }.bt())?;
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = given.get(&index) {
            return Ok(tensor.clone());
        }
        let var = &self.vars[index].1;
        if !var.dtype().is_float() {
            return Ok(var.as_tensor().clone());
        }
        let (reducer, pass) = (self.reducer.clone(), self.pass.clone());
        let tensor = var.as_tensor().contiguous()?.apply_op1(Report { reducer, pass, index })?;
        given.insert(index, tensor.clone());
        Ok(tensor)
    }
}

impl SimpleBackend for Hooked {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if tensor.shape() != &shape {
            let problem = format!("shape mismatch for {name}");
            let (expected, got) = (shape, tensor.shape().clone());
            return Err(candle_core::Error::UnexpectedShape { msg: problem, expected, got }.bt());
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.find(name)?.to_device(device)?.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.buffers.contains_key(name)
            || self.vars.binary_search_by(|(known, _)| known.as_str().cmp(name)).is_ok()
    }
}
