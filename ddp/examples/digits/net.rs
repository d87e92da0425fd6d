//! A small convolutional net.

use std::sync::PoisonError;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, Linear, Module, VarBuilder, VarMap, conv2d, linear};

pub(crate) struct Net {
    first: Conv2d,
    second: Conv2d,
    hidden: Linear,
    output: Linear,
}

impl Net {
    pub(crate) fn new(vb: VarBuilder) -> Result<Self> {
        let padded = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
        Ok(Self {
            first: conv2d(1, 16, 3, padded, vb.pp("a_first"))?,
            second: conv2d(16, 32, 3, padded, vb.pp("b_second"))?,
            hidden: linear(32 * 4 * 4, 128, vb.pp("c_hidden"))?,
            output: linear(128, 10, vb.pp("d_output"))?,
        })
    }

    /// The logits of images of shape (count, 1, 8, 8).
    ///
    /// The activation is smooth, so that weights of different numbers of ranks stay within rounding of each other. With
    /// ReLU, an input within rounding of 0 gets another gradient, and weights part by a thousandth.
    pub(crate) fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let features = self.first.forward(images)?.silu()?;
        let features = self.second.forward(&features)?.silu()?.avg_pool2d(2)?;
        let features = self.hidden.forward(&features.flatten_from(1)?)?.silu()?;
        self.output.forward(&features)
    }
}

/// The net's variables with the same values in every run, whatever the number of ranks.
pub(crate) fn variables() -> Result<VarMap> {
    let varmap = VarMap::new();
    Net::new(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
    let mut names: Vec<&String> = data.keys().collect();
    names.sort();
    let mut state = 7_u64;
    for name in names {
        let var = &data[name];
        // He's initialization; biases are 0.
        let inputs: usize = var.dims().iter().skip(1).product();
        let bound = if var.dims().len() == 1 { 0.0 } else { (6.0 / inputs as f32).sqrt() };
        let mut value = || {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ (mixed >> 31)) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
        };
        let values: Vec<f32> = (0..var.elem_count()).map(|_| bound * value()).collect();
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?)?;
    }
    drop(data);
    Ok(varmap)
}

/// The number of right answers.
pub(crate) fn right(logits: &Tensor, labels: &Tensor) -> Result<f64> {
    let guesses = logits.argmax(D::Minus1)?;
    Ok(f64::from(guesses.eq(labels)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?))
}
