//! Comparison of a measured ratio with the recorded one.

use super::interval::Interval;

/// Number of pairs from which on a lower ratio is a failure.
pub const PAIRS: usize = 15;

/// Part of the recorded ratio below which the whole interval must lie for a failure.
const FAILURE: f64 = 0.9;

/// Result of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The interval reaches the recorded ratio.
    Same,
    /// The whole interval lies below the recorded ratio.
    Lower,
    /// The whole interval of at least [`PAIRS`] pairs lies more than 10 % below the recorded ratio.
    MuchLower,
}

/// Compares an interval with the recorded ratio. Larger ratios are better.
#[must_use]
pub fn compare(interval: &Interval, recorded: f64) -> Verdict {
    match interval.high {
        high if high < FAILURE * recorded && interval.count >= PAIRS => Verdict::MuchLower,
        high if high < recorded => Verdict::Lower,
        _ => Verdict::Same,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{PAIRS, Verdict, compare};
    use crate::benchmarks::interval::Interval;

    /// Compares ratios around `middle`, as many as `count`, with the recorded ratio 1.
    fn verdict(middle: f64, count: usize) -> Verdict {
        let values: Vec<f64> = (0..count).map(|index| middle + 0.001 * index as f64).collect();
        compare(&Interval::new(&values).unwrap(), 1.0)
    }

    #[test]
    fn only_a_whole_interval_of_fifteen_pairs_far_below_fails() {
        assert_eq!(verdict(0.8, PAIRS), Verdict::MuchLower);
        assert_eq!(verdict(0.8, PAIRS - 1), Verdict::Lower, "fewer pairs never fail");
        assert_eq!(verdict(0.8, 3), Verdict::Lower);
        assert_eq!(verdict(0.895, PAIRS), Verdict::Lower, "the interval reaches to 0.906");
        assert_eq!(verdict(0.9, 100), Verdict::Lower);
        assert_eq!(verdict(0.999, PAIRS), Verdict::Same, "the interval reaches to 1.01");
        assert_eq!(verdict(1.5, PAIRS), Verdict::Same);
    }

    #[test]
    fn ten_percent_is_the_edge() {
        let ratios = |high: f64| {
            let values = [vec![0.1; 11], vec![high; 4]].concat();
            compare(&Interval::new(&values).unwrap(), 1.0)
        };
        assert_eq!(ratios(0.9), Verdict::Lower);
        assert_eq!(ratios(0.8999), Verdict::MuchLower);
    }
}
