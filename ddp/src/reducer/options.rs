//! How a reducer works.

/// How a reducer works. The same on every rank, which is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A bucket is closed once it has so many bytes; the first one. 1 MiB.
    pub first_bucket_bytes: usize,
    /// The same for the others. 25 MiB.
    pub bucket_bytes: usize,
    /// What gradients are averaged over.
    pub averaging: Averaging,
    /// What becomes of a parameter without a gradient.
    pub unused: Unused,
    /// Whether gradients are checked for infinities and NaNs, before and after they are reduced:
    /// [`StepReport::non_finite`](crate::StepReport::non_finite), and with it [`LossScaler`](crate::LossScaler), need it. Costs a look at each.
    pub check_finite: bool,
}

/// What gradients are averaged over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Averaging {
    /// Ranks: right where each has the same number of samples. Ranks then make the same number of passes per step.
    #[default]
    Ranks,
    /// Samples: each rank's gradient is the mean over its own samples, of which it may have any number, 0 included.
    Samples,
}

/// What becomes of a parameter without a gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unused {
    /// An error in that step, on every rank, which names the parameter and the rank.
    #[default]
    Refuse,
    /// It counts as zero, if any rank has one; if none has, there is none afterwards either. PyTorch's
    /// `find_unused_parameters`. Buckets with unused parameters are reduced after the backward pass.
    Zero,
    /// As `Zero`, and the same parameters on every rank and in every step, which is checked: PyTorch's
    /// `static_graph`. From the second step on, buckets do not wait for them.
    Static,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            first_bucket_bytes: 1 << 20,
            bucket_bytes: 25 << 20,
            averaging: Averaging::Ranks,
            unused: Unused::Refuse,
            check_finite: false,
        }
    }
}

impl Options {
    pub(super) fn limits(&self) -> [usize; 2] {
        [self.first_bucket_bytes, self.bucket_bytes]
    }
}
