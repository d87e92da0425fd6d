//! From candle's tensors to slices and back.

use annulus::{Communicator, DataType};
use candle_core::{DType, Device, Storage, Tensor, Var, WithDType};

use crate::hooks::average_values;
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

/// Whether a checkpoint has a variable's values.
pub(super) fn check(checkpoint: &Checkpoint, name: &str, var: &Var) -> Result<(), Error> {
    if !var.dtype().is_float() {
        return Ok(());
    }
    let lacks = |problem: String| Err(Error::Setting { setting: "checkpoint", problem });
    match checkpoint.shape(name) {
        None => lacks(format!("there is no `{name}`")),
        Some(shape) if shape != var.dims() => {
            lacks(format!("`{name}` has shape {shape:?}, the variable {:?}", var.dims()))
        }
        Some(_) if checkpoint.dtype(name) != Some(data_type(name, var.dtype())?) => {
            lacks(format!("`{name}` is not {:?}", var.dtype()))
        }
        Some(_) => Ok(()),
    }
}

/// Sets a variable from a checkpoint that has it.
pub(super) fn load(checkpoint: &Checkpoint, name: &str, var: &Var) -> Result<(), Error> {
    if !var.dtype().is_float() {
        return Ok(());
    }
    with_float!(var.dtype(), T => {
        let values = checkpoint.get::<T>(name).unwrap_or_default();
        Ok(var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?)
    })
}

/// Replaces variables by their mean over ranks, in one all-reduce for each type.
pub(super) fn average<'a>(
    comm: &Communicator,
    vars: impl Iterator<Item = &'a Var> + Clone,
) -> Result<(), Error> {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let of_type = vars.clone().filter(|var| var.dtype() == dtype);
        with_float!(dtype, T => {
            let mut all = of_type.clone().map(to_vec::<T>).collect::<Result<Vec<_>, _>>()?;
            if all.is_empty() {
                continue;
            }
            let mut slices: Vec<&mut [T]> = all.iter_mut().map(Vec::as_mut_slice).collect();
            average_values(comm, &mut slices)?;
            for (var, values) in of_type.zip(all) {
                var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
            }
        });
    }
    Ok(())
}

/// A variable's values in f32.
pub(super) fn read(var: &Var, place: &mut [f32]) -> Result<(), Error> {
    let values = var.as_tensor().flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    place.copy_from_slice(&values);
    Ok(())
}

/// Sets a variable to values in f32, in its own type.
pub(super) fn write(var: &Var, values: &[f32]) -> Result<(), Error> {
    let values = Tensor::from_slice(values, var.shape(), var.device())?;
    Ok(var.set(&values.to_dtype(var.dtype())?)?)
}

fn to_vec<T: WithDType>(var: &Var) -> Result<Vec<T>, Error> {
    Ok(var.as_tensor().flatten_all()?.to_vec1::<T>()?)
}
