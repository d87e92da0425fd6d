//! A small net, its variables, and rows for it.

use std::sync::PoisonError;

use annulus_ddp::Options;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Module, VarBuilder, VarMap, linear};

pub(crate) const CPU: Device = Device::Cpu;

/// Three layers, of which the second is used twice.
pub(crate) struct Net {
    pub(crate) layers: Vec<candle_nn::Linear>,
}

impl Net {
    pub(crate) fn new(vb: VarBuilder) -> Result<Self, candle_core::Error> {
        let layer = |index: usize| linear(6, 6, vb.pp(format!("layer{index}")));
        Ok(Self { layers: vec![layer(0)?, layer(1)?, layer(1)?, layer(2)?] })
    }

    pub(crate) fn loss(&self, rows: &Tensor) -> Result<Tensor, candle_core::Error> {
        let mut output = rows.clone();
        for layer in &self.layers {
            output = layer.forward(&output)?.tanh()?;
        }
        output.sqr()?.mean_all()
    }
}

pub(crate) fn varmap(seed: f32) -> VarMap {
    let varmap = VarMap::new();
    Net::new(VarBuilder::from_varmap(&varmap, DType::F32, &CPU)).expect("a net");
    let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
    for (name, var) in data.iter() {
        let values: Vec<f32> = (0..var.elem_count())
            .map(|i| ((i * 7 + name.len() * 3) % 11) as f32 * 0.05 - seed)
            .collect();
        var.set(&Tensor::from_vec(values, var.shape(), &CPU).expect("values")).expect("set");
    }
    drop(data);
    varmap
}

/// Rows of a global batch.
pub(crate) fn rows(from: usize, to: usize) -> Tensor {
    let values: Vec<f32> = (from * 6..to * 6).map(|i| ((i * 13) % 17) as f32 * 0.1 - 0.8).collect();
    Tensor::from_vec(values, (to - from, 6), &CPU).expect("rows")
}

pub(crate) fn values(var: &Var) -> Vec<f32> {
    var.as_tensor().flatten_all().and_then(|flat| flat.to_vec1()).expect("values")
}

/// Several buckets.
pub(crate) fn small() -> Options {
    Options { first_bucket_bytes: 64, bucket_bytes: 64, ..Options::default() }
}

/// What candle alone computes, by variable in the order of names.
pub(crate) fn loss_gradients(varmap: &VarMap, from: usize, to: usize) -> Vec<Vec<f32>> {
    let net = Net::new(VarBuilder::from_varmap(varmap, DType::F32, &CPU)).expect("a net");
    let gradients = net.loss(&rows(from, to)).and_then(|loss| loss.backward()).expect("gradients");
    let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
    let mut vars: Vec<_> = data.iter().collect();
    vars.sort_by_key(|(name, _)| name.as_str());
    vars.iter()
        .map(|(_, var)| {
            gradients
                .get(var.as_tensor())
                .expect("used")
                .flatten_all()
                .and_then(|g| g.to_vec1())
                .expect("values")
        })
        .collect()
}
