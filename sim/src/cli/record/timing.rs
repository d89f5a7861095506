//! Gaps in a series of samples, by a counter or the board's clock in each line, and the rate of samples.

use std::fmt;

use super::lines::Refusal;

/// Columns that show gaps, and the expected rate.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Index of a column that counts samples up by one.
    pub counter: Option<usize>,
    /// Index of a column with the board's time in milliseconds.
    pub time: Option<usize>,
    /// Expected rate in samples per second.
    pub rate: Option<f64>,
}

impl Clock {
    /// True if a column has values of the sensor.
    pub fn is_value(&self, column: usize) -> bool {
        ![self.counter, self.time].contains(&Some(column))
    }
}

/// Largest relative difference between the measured and the expected rate.
const TOLERANCE: f64 = 0.05;
/// Interval between two samples, in periods, from which on a sample is missing.
const GAP: f64 = 1.5;
/// Largest counter, up to which an f64 holds all whole numbers.
const LARGEST: f64 = 9_007_199_254_740_992.0;

/// Relation of a sample to the one before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// First sample, or the next one in order.
    Next,
    /// Samples are missing in between.
    Gap {
        /// Number of missing samples.
        missing: f64,
    },
    /// Counter or time did not go up: the board has restarted, or repeats a sample.
    Back {
        /// Value in the line before.
        from: f64,
        /// Value in this line.
        to: f64,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Next => f.write_str("in order"),
            Self::Gap { missing } => write!(f, "{missing} samples are missing before it"),
            Self::Back { from, to } => {
                write!(f, "counter or time went from {from} to {to}; has the board restarted?")
            }
        }
    }
}

/// Checks the counters and times of successive samples.
#[derive(Clone, Debug)]
pub struct Timing {
    clock: Clock,
    /// Counter and time of the sample before.
    previous: Option<(Option<f64>, Option<f64>)>,
    /// Number and duration in milliseconds of the intervals without a gap.
    intervals: (u64, f64),
    /// Number of missing samples.
    pub missing: f64,
    /// Number of times that counter or time did not go up.
    pub backs: u64,
}

impl Timing {
    /// Creates the check of a series.
    pub fn new(clock: Clock) -> Self {
        Self { clock, previous: None, intervals: (0, 0.0), missing: 0.0, backs: 0 }
    }

    /// Sets the columns, when their names arrive.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// Checks the sample with the given values and texts.
    ///
    /// # Errors
    /// [`Refusal::Counter`] for a counter that is no whole number.
    pub fn check(&mut self, values: &[f64], texts: &[&str]) -> Result<Step, Refusal> {
        let value = |column: Option<usize>| column.and_then(|column| values.get(column)).copied();
        let (counter, time) = (value(self.clock.counter), value(self.clock.time));
        if counter.is_some_and(|counter| counter.fract() != 0.0 || !(0.0..=LARGEST).contains(&counter)) {
            let text = self.clock.counter.and_then(|column| texts.get(column)).unwrap_or(&"");
            return Err(Refusal::Counter { text: (*text).to_owned() });
        }
        let (last_counter, last_time) = self.previous.replace((counter, time)).unwrap_or_default();
        let by_counter = last_counter.zip(counter).map_or(Step::Next, |(from, to)| counted(from, to));
        let by_time = last_time.zip(time).map_or(Step::Next, |(from, to)| self.timed(from, to));
        let step = if by_counter == Step::Next { by_time } else { by_counter };
        match step {
            Step::Next => {}
            Step::Gap { missing } => self.missing += missing,
            Step::Back { .. } => self.backs += 1,
        }
        Ok(step)
    }

    /// Relation of two times.
    fn timed(&mut self, from: f64, to: f64) -> Step {
        let interval = to - from;
        if interval <= 0.0 {
            return Step::Back { from, to };
        }
        let periods = interval * self.clock.rate.unwrap_or(0.0) / 1_000.0;
        if periods > GAP {
            return Step::Gap { missing: periods.round() - 1.0 };
        }
        self.intervals.0 += 1;
        self.intervals.1 += interval;
        Step::Next
    }

    /// Rate in samples per second by the board's clock, if lines have times.
    pub fn rate(&self) -> Option<f64> {
        let (count, duration) = self.intervals;
        #[allow(clippy::cast_precision_loss, reason = "a count of samples")]
        (count > 0).then(|| count as f64 * 1_000.0 / duration)
    }
}

/// Relation of two counters. A counter of 8, 16 or 32 bits starts again at 0.
fn counted(from: f64, to: f64) -> Step {
    let wraps = [8, 16, 32].iter().any(|bits| from + 1.0 == f64::from(*bits).exp2());
    if to == from + 1.0 || wraps && to == 0.0 {
        Step::Next
    } else if to > from {
        Step::Gap { missing: to - from - 1.0 }
    } else {
        Step::Back { from, to }
    }
}

/// Message about a measured rate that is not the expected one.
pub fn mismatch(measured: f64, expected: f64) -> Option<String> {
    let differs = (measured - expected).abs() > TOLERANCE * expected;
    differs.then(|| format!("{measured:.4} samples a second arrived, --rate says {expected}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Steps of a series with the given values in a column.
    fn steps(clock: &Clock, values: &[f64]) -> (Vec<Step>, Timing) {
        let mut timing = Timing::new(clock.clone());
        let steps = values.iter().map(|value| timing.check(&[*value], &["?"]).unwrap()).collect();
        (steps, timing)
    }

    #[test]
    fn counter_shows_gaps_wraps_and_restarts() {
        let clock = Clock { counter: Some(0), ..Clock::default() };
        let (found, timing) = steps(&clock, &[254.0, 255.0, 0.0, 1.0, 4.0, 4.0, 2.0]);
        let back = |from, to| Step::Back { from, to };
        let next = Step::Next;
        assert_eq!(
            found,
            [next, next, next, next, Step::Gap { missing: 2.0 }, back(4.0, 4.0), back(4.0, 2.0)]
        );
        assert_eq!((timing.missing, timing.backs), (2.0, 2));
        assert_eq!(steps(&clock, &[65_535.0, 0.0, 4_294_967_295.0, 0.0]).0[1], next);
        for wrong in [-1.0, 0.5, 1e17] {
            assert_eq!(
                Timing::new(clock.clone()).check(&[wrong], &["w"]),
                Err(Refusal::Counter { text: "w".to_owned() })
            );
        }
    }

    #[test]
    fn time_shows_gaps_and_the_rate() {
        let clock = Clock { time: Some(0), rate: Some(50.0), ..Clock::default() };
        let (found, timing) = steps(&clock, &[0.0, 20.0, 41.0, 101.0, 120.0, 7.0]);
        assert_eq!(found[3], Step::Gap { missing: 2.0 });
        assert_eq!(found[5], Step::Back { from: 120.0, to: 7.0 });
        assert_eq!((timing.missing, timing.backs, timing.rate()), (2.0, 1, Some(50.0)));
        assert_eq!(mismatch(51.0, 50.0), None);
        assert!(mismatch(25.0, 50.0).unwrap().contains("25.0000 samples a second arrived, --rate says 50"));
    }
}
