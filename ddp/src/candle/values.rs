//! From candle's tensors to slices and back.

use std::path::Path;

use annulus::DataType;
use candle_core::{DType, Device, Storage, Tensor, Var, WithDType};

use crate::{Checkpoint, Error, Reducer};

/// Runs an expression with `$type` as the Rust type of a float.
macro_rules! with_float {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            DType::F16 => {
                type $type = half::f16;
                $body
            }
            DType::BF16 => {
                type $type = half::bf16;
                $body
            }
            DType::F64 => {
                type $type = f64;
                $body
            }
            _ => {
                type $type = f32;
                $body
            }
        }
    };
}

/// Runs an expression with `$type` as the Rust type of a variable's type; [`data_type`] must know it.
macro_rules! with_type {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            DType::U8 => {
                type $type = u8;
                $body
            }
            DType::U32 => {
                type $type = u32;
                $body
            }
            DType::I64 => {
                type $type = i64;
                $body
            }
            other => with_float!(other, $type => $body),
        }
    };
}

/// The type by its name in Annulus.
pub(super) fn data_type(name: &str, dtype: DType) -> Result<DataType, Error> {
    Ok(match dtype {
        DType::U8 => DataType::U8,
        DType::U32 => DataType::U32,
        DType::I64 => DataType::I64,
        DType::F16 => DataType::F16,
        DType::BF16 => DataType::Bf16,
        DType::F32 => DataType::F32,
        DType::F64 => DataType::F64,
        other => {
            let problem =
                format!("is {other:?}: variables are f16, bf16, f32, f64, u8, u32 or i64");
            return Err(Error::Candle(std::sync::Arc::new(candle_core::Error::Msg(format!(
                "`{name}` {problem}"
            )))));
        }
    })
}

/// Gives a gradient to the reducer, from where it lies if it lies in host memory in one piece.
pub(super) fn hand_in(reducer: &Reducer, index: usize, gradient: &Tensor) -> Result<(), Error> {
    let gradient = gradient.contiguous()?.to_device(&Device::Cpu)?;
    with_float!(gradient.dtype(), T => {
        let (storage, layout) = gradient.storage_and_layout();
        match (&*storage, layout.contiguous_offsets()) {
            (Storage::Cpu(values), Some((start, end))) => {
                reducer.ready(index, &values.as_slice::<T>()?[start..end])
            }
            _ => Err(candle_core::Error::msg("a gradient that is neither contiguous nor in host memory").into()),
        }
    })
}

/// The averaged gradient of a variable.
pub(super) fn gradient(
    reducer: &Reducer,
    index: usize,
    var: &Var,
) -> Result<Option<Tensor>, Error> {
    if !var.dtype().is_float() {
        return Ok(None);
    }
    with_float!(var.dtype(), T => {
        reducer.with_gradient(index, |values: Option<&mut [T]>| {
            values.map(|values| Tensor::from_slice(values, var.shape(), var.device())).transpose()
        })?
    })
    .map_err(Error::from)
}

/// The values' bytes.
pub(super) fn bytes(var: &Var) -> Result<Vec<u8>, Error> {
    with_type!(var.dtype(), T => Ok(bytemuck::cast_slice(&to_vec::<T>(var)?).to_vec()))
}

/// Sets a variable to values whose bytes these are.
pub(super) fn set(var: &Var, bytes: &[u8]) -> Result<(), Error> {
    with_type!(var.dtype(), T => {
        let mut values = vec![T::default(); bytes.len() / size_of::<T>()];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
        Ok(var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?)
    })
}

/// Puts a variable into a checkpoint; integers are not kept.
pub(super) fn save(checkpoint: &mut Checkpoint, name: &str, var: &Var) -> Result<(), Error> {
    if var.dtype().is_float() {
        with_float!(var.dtype(), T => checkpoint.insert(name, var.dims(), &to_vec::<T>(var)?));
    }
    Ok(())
}

/// Sets a variable from a checkpoint.
pub(super) fn load(
    checkpoint: &Checkpoint,
    name: &str,
    var: &Var,
    path: &Path,
) -> Result<(), Error> {
    if !var.dtype().is_float() {
        return Ok(());
    }
    if checkpoint.shape(name) != Some(var.dims()) {
        let problem = match checkpoint.shape(name) {
            Some(shape) => format!("`{name}` has shape {shape:?}, the variable {:?}", var.dims()),
            None => format!("there is no `{name}`"),
        };
        return Err(Error::file(path, problem));
    }
    with_float!(var.dtype(), T => {
        let values = checkpoint.get::<T>(name);
        let values = values.ok_or_else(|| Error::file(path, format!("`{name}` is not {:?}", var.dtype())))?;
        Ok(var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?)
    })
}

fn to_vec<T: WithDType>(var: &Var) -> Result<Vec<T>, Error> {
    Ok(var.as_tensor().flatten_all()?.to_vec1::<T>()?)
}
