//! A small model, and gradients that tell rank, parameter, element and step.

use annulus::DataType;
use annulus_ddp::{Error, Model, Options, Parameter, Reducer};
use half::f16;

pub(crate) fn parameter(name: &str, shape: &[usize]) -> Parameter {
    Parameter::new(name, shape, DataType::F32)
}

pub(crate) fn model() -> Model {
    Model::new(vec![
        parameter("first", &[4, 3]),
        parameter("nothing", &[0]),
        Parameter::new("half", &[5], DataType::F16),
        parameter("scalar", &[]),
        parameter("last", &[1000]),
    ])
}

/// Small buckets, so that there are several.
pub(crate) fn small() -> Options {
    Options { first_bucket_bytes: 64, bucket_bytes: 256, ..Options::default() }
}

pub(crate) fn value(rank: usize, parameter: usize, element: usize, step: usize) -> f32 {
    ((rank * 7 + parameter * 3 + element + step * 5) % 23) as f32 * 0.125 - 1.0
}

pub(crate) fn gradient(rank: usize, parameter: usize, count: usize, step: usize) -> Vec<f32> {
    (0..count).map(|element| value(rank, parameter, element, step)).collect()
}

/// Hands in all gradients of `model()`, in an order that differs between ranks.
pub(crate) fn backward(
    reducer: &Reducer,
    rank: usize,
    step: usize,
    except: &[usize],
) -> Result<(), Error> {
    let count = reducer.model().parameters.len();
    for position in 0..count {
        let index = (position + rank) % count;
        if !except.contains(&index) {
            hand_in(reducer, rank, index, step)?;
        }
    }
    Ok(())
}

pub(crate) fn hand_in(
    reducer: &Reducer,
    rank: usize,
    index: usize,
    step: usize,
) -> Result<(), Error> {
    let parameter = &reducer.model().parameters[index];
    let values = gradient(rank, index, parameter.count(), step);
    match parameter.dtype {
        DataType::F16 => {
            reducer.ready(index, &values.into_iter().map(f16::from_f32).collect::<Vec<_>>())
        }
        _ if index.is_multiple_of(2) => reducer.ready(index, &values),
        _ => reducer.ready_with(index, |place: &mut [f32]| place.copy_from_slice(&values)),
    }
}

pub(crate) fn averaged(reducer: &Reducer, index: usize) -> Option<Vec<f32>> {
    match reducer.model().parameters[index].dtype {
        DataType::F16 => {
            let values = reducer.gradient::<f16>(index).expect("a float");
            values.map(|values| values.into_iter().map(f16::to_f32).collect())
        }
        _ => reducer.gradient::<f32>(index).expect("a float"),
    }
}
