//! Mixed precision: a loss that is scaled so that small gradients do not vanish.

use crate::{Error, StepReport};

/// Scales the loss, and finds the largest scale at which gradients do not overflow.
///
/// Multiply the loss by [`scale`](Self::scale), run the backward pass, then ask [`update`](Self::update). All ranks come
/// to the same decision: either every rank steps or none.
///
/// ```no_run
/// # use annulus_ddp::{LossScaler, Reducer};
/// # fn train(reducer: &Reducer, mut scaler: LossScaler) -> Result<(), annulus_ddp::Error> {
/// // ... backward from loss * scaler.scale() ...
/// let report = reducer.finish()?;
/// let scale = scaler.scale();
/// if scaler.update(&report)? {
///     reducer.scale_gradients(1.0 / scale);
///     // ... step ...
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LossScaler {
    scale: f64,
    growth: f64,
    backoff: f64,
    interval: u64,
    /// Steps since the scale changed.
    good: u64,
    skipped: u64,
}

impl Default for LossScaler {
    /// 65536 at first; twice that after 2000 good steps in a row, half after an overflow.
    fn default() -> Self {
        Self { scale: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000, good: 0, skipped: 0 }
    }
}

impl LossScaler {
    /// Starts at `scale`, and doubles after `interval` good steps in a row.
    ///
    /// # Panics
    /// Unless `scale` is positive and finite, and `interval` at least 1.
    pub fn new(scale: f64, interval: u64) -> Self {
        assert!(
            scale > 0.0 && scale.is_finite() && interval > 0,
            "a loss scale of {scale}, growing every {interval}"
        );
        Self { scale, interval, ..Self::default() }
    }

    /// What to multiply the next loss by.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// How many steps were skipped so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Whether to step by the gradients of this report: not if any of them, on any rank, is infinite or NaN. Adapts the
    /// scale.
    ///
    /// # Errors
    /// [`Error::Setting`] if the reducer does not [check](crate::Options::check_finite) its gradients.
    pub fn update(&mut self, report: &StepReport) -> Result<bool, Error> {
        if !report.checked {
            return Err(Error::Setting {
                setting: "check_finite",
                problem: "is off, but a loss scale depends on it: construct the reducer with it"
                    .to_owned(),
            });
        }
        if report.non_finite.is_some() {
            self.scale = (self.scale * self.backoff).max(f64::from(f32::MIN_POSITIVE));
            self.good = 0;
            self.skipped += 1;
            return Ok(false);
        }
        self.good += 1;
        if self.good == self.interval {
            self.good = 0;
            let grown = self.scale * self.growth;
            if grown <= f64::from(f32::MAX) {
                self.scale = grown;
            }
        }
        Ok(true)
    }
}
