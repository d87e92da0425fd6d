//! What is said of many samples.

/// A summary of samples, in their unit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statistics {
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    /// Standard deviation of the sample.
    pub(super) deviation: f64,
    pub(super) samples: Vec<f64>,
}

impl Statistics {
    /// `None` without samples.
    pub(super) fn of(samples: Vec<f64>) -> Option<Self> {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let count = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / count;
        let squares: f64 = sorted.iter().map(|sample| (sample - mean).powi(2)).sum();
        let deviation = (squares / (count - 1.0).max(1.0)).sqrt();
        let percentile = |percent| percentile(&sorted, percent);
        let (p50, p95, p99) = (percentile(50.0), percentile(95.0), percentile(99.0));
        Some(Self { min, max, mean, p50, p95, p99, deviation, samples })
    }

    /// Deviation in percent of the mean.
    pub(super) fn variation(&self) -> f64 {
        if self.mean > 0.0 { 100.0 * self.deviation / self.mean } else { 0.0 }
    }
}

/// Between samples, as far as `percent` says. `sorted` is not empty.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let place = percent / 100.0 * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summarises() {
        let statistics = Statistics::of(vec![4.0, 1.0, 3.0, 2.0]).expect("there are samples");
        assert_eq!((statistics.min, statistics.max), (1.0, 4.0));
        assert_eq!((statistics.mean, statistics.p50), (2.5, 2.5));
        assert!((statistics.p99 - 3.97).abs() < 1e-9);
        assert!((statistics.deviation - (5.0_f64 / 3.0).sqrt()).abs() < 1e-9);
        assert_eq!(statistics.samples[0], 4.0, "in their own order");
        assert_eq!(Statistics::of(vec![]), None);
        assert_eq!(Statistics::of(vec![2.0]).expect("one").variation(), 0.0);
    }
}
