//! Median of ratios, and an interval that contains the true median with a stated probability for any distribution
//! of the ratios (order statistics; Conover, Practical Nonparametric Statistics, section 3.2).

/// Coverage that the interval shall have, if there are enough values.
const COVERAGE: f64 = 0.95;

/// Summary of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Number of values.
    pub count: usize,
    /// Median.
    pub median: f64,
    /// Lower end of the interval of the median.
    pub low: f64,
    /// Upper end of the interval of the median.
    pub high: f64,
    /// Probability that the interval contains the median of the distribution, at least 0.95 from six values on. For
    /// fewer values the interval reaches from the least to the greatest value.
    pub coverage: f64,
    /// Least value.
    pub least: f64,
    /// Greatest value.
    pub greatest: f64,
}

impl Interval {
    /// Summarises values in any order; `None` if there are none.
    #[must_use]
    pub fn new(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, greatest) = (*sorted.first()?, *sorted.last()?);
        let (rank, coverage) = rank(sorted.len());
        Some(Self {
            count: sorted.len(),
            median: median(sorted.clone()),
            low: sorted[rank],
            high: sorted[sorted.len() - 1 - rank],
            coverage,
            least,
            greatest,
        })
    }

    /// Difference of greatest and least value, as a part of the median.
    #[must_use]
    pub fn spread(&self) -> f64 {
        (self.greatest - self.least) / self.median
    }
}

/// Returns the number of values on each side of the interval, and its coverage. The interval misses the median if at
/// most that many values are on one side of it.
fn rank(count: usize) -> (usize, f64) {
    // Probability that of `count` values exactly `below` are less than the median, and that at most so many are.
    let mut probability = 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut at_most = probability;
    let mut best = (0, 1.0 - 2.0 * at_most);
    for below in 1..count.div_ceil(2) {
        probability *= (count - below + 1) as f64 / below as f64;
        at_most += probability;
        if 1.0 - 2.0 * at_most < COVERAGE {
            break;
        }
        best = (below, 1.0 - 2.0 * at_most);
    }
    best
}

/// Returns the median (the mean of the middle two of an even number of values); 0 if there are none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len() / 2, values.len() % 2) {
        (0, 0) => 0.0,
        (middle, 0) => f64::midpoint(values[middle - 1], values[middle]),
        (middle, _) => values[middle],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{Interval, median, rank};

    #[test]
    fn ranks_are_those_of_the_tables() {
        // Conover, table A3 for p = 1/2; R's qbinom gives the same.
        for (count, below, coverage) in [
            (1, 0, 0.0),
            (2, 0, 0.5),
            (3, 0, 0.75),
            (5, 0, 0.9375),
            (6, 0, 0.96875),
            (15, 3, 0.964_843_75),
            (20, 5, 0.958_610_5),
            (100, 39, 0.964_799_8),
        ] {
            let (found, probability) = rank(count);
            assert_eq!(found, below, "{count}");
            assert!((probability - coverage).abs() < 1e-6, "{count}: {probability}");
        }
    }

    #[test]
    fn interval_contains_the_median_and_keeps_order() {
        let values: Vec<f64> = (1..=15).rev().map(f64::from).collect();
        let interval = Interval::new(&values).unwrap();
        assert_eq!((interval.median, interval.low, interval.high), (8.0, 4.0, 12.0));
        assert_eq!((interval.least, interval.greatest, interval.count), (1.0, 15.0, 15));
        assert!((interval.spread() - 14.0 / 8.0).abs() < 1e-12);
        // An outlier changes the spread only.
        let mut disturbed = values;
        disturbed[0] = 1000.0;
        let disturbed = Interval::new(&disturbed).unwrap();
        assert_eq!((disturbed.low, disturbed.median, disturbed.high), (4.0, 8.0, 12.0));
        assert_eq!(Interval::new(&[]), None);
    }

    #[test]
    fn coverage_is_that_of_simulated_samples() {
        // Samples of 15 from a skewed distribution with median 1/4: squares of uniform numbers.
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let (mut hits, samples) = (0, 20_000);
        for _ in 0..samples {
            let values: Vec<f64> = (0..15).map(|_| uniform().powi(2)).collect();
            let interval = Interval::new(&values).unwrap();
            hits += usize::from((interval.low..=interval.high).contains(&0.25));
        }
        let part = hits as f64 / f64::from(samples);
        assert!((part - 0.964_843_75).abs() < 0.005, "{part}");
    }

    #[test]
    fn median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!([median(vec![]), median(vec![3.0]), median(vec![4.0, 1.0])], [0.0, 3.0, 2.5]);
    }
}
