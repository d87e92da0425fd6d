//! The digits: 8 x 8 images of handwritten digits, a part of them for training.

use annulus_ddp::DistributedSampler;
use candle_core::{Device, Result, Tensor};

const FILE: &str = include_str!("digits.txt");
const PIXELS: usize = 64;
/// The first images are for training, the others for evaluation.
pub(crate) const TRAINING: usize = 1500;

pub(crate) struct Digits {
    pixels: Vec<f32>,
    labels: Vec<u32>,
}

impl Digits {
    pub(crate) fn read() -> std::result::Result<Self, String> {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for line in FILE.lines().filter(|line| !line.starts_with('#')) {
            let parsed = line.split_once(' ').and_then(|(label, image)| {
                let image: Option<Vec<u32>> =
                    image.chars().map(|pixel| pixel.to_digit(17)).collect();
                Some((label.parse().ok()?, image.filter(|image| image.len() == PIXELS)?))
            });
            let (label, image) =
                parsed.ok_or_else(|| format!("digits.txt: not an image: {line}"))?;
            labels.push(label);
            pixels.extend(image.into_iter().map(|pixel| pixel as f32 / 16.0));
        }
        Ok(Self { pixels, labels })
    }

    pub(crate) fn evaluation(&self) -> usize {
        self.labels.len() - TRAINING
    }

    /// Images and labels with these indices.
    pub(crate) fn batch(&self, indices: &[usize]) -> Result<(Tensor, Tensor)> {
        let images = indices.iter().flat_map(|i| &self.pixels[i * PIXELS..(i + 1) * PIXELS]);
        let images: Vec<f32> = images.copied().collect();
        let labels: Vec<u32> = indices.iter().map(|&i| self.labels[i]).collect();
        let count = indices.len();
        Ok((
            Tensor::from_vec(images, (count, 1, 8, 8), &Device::Cpu)?,
            Tensor::from_vec(labels, count, &Device::Cpu)?,
        ))
    }
}

/// The global batches of an epoch, the same whatever the number of ranks.
pub(crate) fn batches(
    epoch: u64,
    size: usize,
) -> std::result::Result<Vec<Vec<usize>>, annulus_ddp::Error> {
    let mut order = DistributedSampler::new(TRAINING, 1, 0)?.shuffle(true).seed(1);
    order.set_epoch(epoch);
    Ok(order.indices().chunks(size).map(<[usize]>::to_vec).collect())
}
