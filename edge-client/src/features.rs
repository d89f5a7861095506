//! Features of windows of inertial data: 57 features and a constant 1, computed from 100 samples of 6
//! channels.
//!
//! [`WindowFeatures`] takes one sensor sample at a time and stores sums instead of the window, in 1 KB. All
//! scales are constants derived from physical ranges (one g, a few rad/s) and not fitted to data, so a board
//! can compute features from its first sample on. Overlapping windows need one extractor each.
//!
//! | features | per channel or pair | scale: acceleration in g, rotation in rad/s |
//! | --- | --- | --- |
//! | 0..6 | mean | 1, 2 |
//! | 6..12 | standard deviation | 1/3, 4/3 |
//! | 12..18 | mean minus minimum | 3, 10 |
//! | 18..24 | maximum minus mean | 3, 10 |
//! | 24..30 | mean absolute difference of neighbours (jerk) | 0.1, 0.3 |
//! | 30..36, 36..42 | autocorrelation at lags 3 and 25 | 2 |
//! | 42..57 | correlation of each pair of channels | 10 |
//! | 57 | the constant 1 | |

use fedspan_protocol::sqrt::sqrtf;

/// Number of channels: acceleration x, y, z in g, then rotation x, y, z in rad/s.
pub const CHANNELS: usize = 6;
/// Number of samples in a window: 2 s at 50 Hz.
pub const WINDOW: usize = 100;
/// Number of features of a window, including the constant.
pub const FEATURES: usize = 58;
/// Lags of the autocorrelations, in samples: 60 ms and half a second.
pub const LAGS: [usize; 2] = [3, 25];

/// Number of pairs of channels, including the pair of each channel with itself.
const PAIRS: usize = CHANNELS * (CHANNELS + 1) / 2;
/// Number of samples in the history: the largest lag.
const HISTORY: usize = LAGS[1];

/// Divisor of a feature: for channels of acceleration, and for channels of rotation.
struct Scale(f32, f32);

// Scales of the table in the module documentation.
const MEAN: Scale = Scale(1.0, 2.0);
const DEVIATION: Scale = Scale(1.0 / 3.0, 4.0 / 3.0);
const EXTREME: Scale = Scale(3.0, 10.0);
const JERK: Scale = Scale(0.1, 0.3);
const AUTOCORRELATION: Scale = Scale(2.0, 2.0);
const CORRELATION: f32 = 10.0;

/// Regularisation added to every sum of squares, so that a channel at rest has correlations near zero instead
/// of noise. Corresponds to standard deviations of 0.02 g and 0.05 rad/s over the window.
const STILL: Scale = Scale(100.0 * 0.02 * 0.02, 100.0 * 0.05 * 0.05);

impl Scale {
    /// Returns the divisor of a channel.
    const fn divisor(&self, channel: usize) -> f32 {
        if channel < 3 { self.0 } else { self.1 }
    }
}

/// Feature extractor: sums over one window. Values are relative to the window's first sample, because the
/// rounding of large constant values such as gravity would hide small motions.
#[derive(Clone, Debug)]
pub struct WindowFeatures {
    /// Number of samples in the window.
    count: usize,
    /// First sample of the window.
    origin: [f32; CHANNELS],
    /// Most recent sample, relative to `origin` like all values below.
    previous: [f32; CHANNELS],
    /// Sum of each channel.
    sum: [f32; CHANNELS],
    /// Minimum of each channel.
    minima: [f32; CHANNELS],
    /// Maximum of each channel.
    maxima: [f32; CHANNELS],
    /// Sum of the absolute differences of neighbouring samples, by channel.
    jerk: [f32; CHANNELS],
    /// Sums of products of pairs of channels, lower triangle.
    products: [f32; PAIRS],
    /// Sums of products of each sample with the sample one lag earlier.
    lagged: [[f32; CHANNELS]; LAGS.len()],
    /// Sums of the samples that have no sample one lag earlier.
    head: [[f32; CHANNELS]; LAGS.len()],
    /// Last [`HISTORY`] samples, as a ring.
    history: [[f32; CHANNELS]; HISTORY],
}

impl Default for WindowFeatures {
    fn default() -> Self {
        Self::new()
    }
}

impl WindowFeatures {
    /// Creates an empty window.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            count: 0,
            origin: [0.0; CHANNELS],
            previous: [0.0; CHANNELS],
            sum: [0.0; CHANNELS],
            minima: [0.0; CHANNELS],
            maxima: [0.0; CHANNELS],
            jerk: [0.0; CHANNELS],
            products: [0.0; PAIRS],
            lagged: [[0.0; CHANNELS]; LAGS.len()],
            head: [[0.0; CHANNELS]; LAGS.len()],
            history: [[0.0; CHANNELS]; HISTORY],
        }
    }

    /// Returns the number of samples in the window.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true before the first sample.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds one sensor sample, in g and rad/s. The hundredth sample completes the window: the function writes
    /// the features to `out`, starts a new window and returns true.
    pub fn push(&mut self, sample: &[f32; CHANNELS], out: &mut [f32; FEATURES]) -> bool {
        if self.count == 0 {
            *self = Self::new();
            self.origin = *sample;
        }
        let mut value = [0.0; CHANNELS];
        for ((v, s), o) in value.iter_mut().zip(sample).zip(&self.origin) {
            *v = s - o;
        }
        self.add(&value);
        self.count += 1;
        if self.count < WINDOW {
            return false;
        }
        self.write(out);
        self.count = 0;
        true
    }

    /// Adds one sample, relative to the origin, to all sums.
    fn add(&mut self, value: &[f32; CHANNELS]) {
        let t = self.count;
        for (channel, &v) in value.iter().enumerate() {
            add_to_channel(&mut self.sum, channel, v);
            if t > 0 {
                add_to_channel(&mut self.jerk, channel, (v - at(&self.previous, channel)).abs());
            }
        }
        for ((minimum, maximum), &v) in self.minima.iter_mut().zip(&mut self.maxima).zip(value) {
            *minimum = minimum.min(v);
            *maximum = maximum.max(v);
        }
        let pairs = (0..CHANNELS).flat_map(|i| (0..=i).map(move |j| (i, j)));
        for (product, (i, j)) in self.products.iter_mut().zip(pairs) {
            *product += at(value, i) * at(value, j);
        }
        for ((lagged, head), &lag) in self.lagged.iter_mut().zip(&mut self.head).zip(&LAGS) {
            let before = self.history.get((t + HISTORY - lag) % HISTORY).filter(|_| t >= lag);
            for (channel, &v) in value.iter().enumerate() {
                match before {
                    Some(before) => add_to_channel(lagged, channel, v * at(before, channel)),
                    None => add_to_channel(head, channel, v),
                }
            }
        }
        if let Some(slot) = self.history.get_mut(t % HISTORY) {
            *slot = *value;
        }
        self.previous = *value;
    }

    /// Computes the features from the sums.
    fn write(&self, out: &mut [f32; FEATURES]) {
        const N: f32 = WINDOW as f32;
        let mut targets = out.iter_mut();
        let mut put = |value: f32| {
            if let Some(target) = targets.next() {
                *target = value;
            }
        };
        let mean = |c: usize| at(&self.sum, c) / N;
        let covariance = |i: usize, j: usize| {
            let product = self.products.get(i * (i + 1) / 2 + j).copied().unwrap_or(0.0);
            product - N * mean(i) * mean(j)
        };
        // Rounding can make the sum of a channel at rest slightly negative.
        let squares = |c: usize| covariance(c, c).max(0.0);
        for c in 0..CHANNELS {
            put((at(&self.origin, c) + mean(c)) / MEAN.divisor(c));
        }
        for c in 0..CHANNELS {
            put(sqrtf(squares(c) / N) / DEVIATION.divisor(c));
        }
        for c in 0..CHANNELS {
            put((mean(c) - at(&self.minima, c)) / EXTREME.divisor(c));
        }
        for c in 0..CHANNELS {
            put((at(&self.maxima, c) - mean(c)) / EXTREME.divisor(c));
        }
        for c in 0..CHANNELS {
            put(at(&self.jerk, c) / (N - 1.0) / JERK.divisor(c));
        }
        for ((lagged, head), &lag) in self.lagged.iter().zip(&self.head).zip(&LAGS) {
            for c in 0..CHANNELS {
                // Sum of (x_t - mean)(x_{t+lag} - mean) over the n - lag pairs.
                let tail: f32 = (WINDOW - lag..WINDOW)
                    .filter_map(|t| self.history.get(t % HISTORY))
                    .fold(0.0, |sum, value| sum + at(value, c));
                let pair_sum = 2.0 * at(&self.sum, c) - tail - at(head, c);
                let pairs = N - lag as f32;
                let sum = at(lagged, c) - mean(c) * pair_sum + pairs * mean(c) * mean(c);
                put(sum / (squares(c) + STILL.divisor(c)) / AUTOCORRELATION.divisor(c));
            }
        }
        for i in 0..CHANNELS {
            for j in i + 1..CHANNELS {
                let scale = sqrtf((squares(i) + STILL.divisor(i)) * (squares(j) + STILL.divisor(j)));
                put(covariance(j, i) / scale / CORRELATION);
            }
        }
        put(1.0);
    }
}

/// Returns the value of a channel.
fn at(values: &[f32; CHANNELS], channel: usize) -> f32 {
    values.get(channel).copied().unwrap_or(0.0)
}

/// Adds `by` to the value of a channel.
fn add_to_channel(values: &mut [f32; CHANNELS], channel: usize, by: f32) {
    if let Some(value) = values.get_mut(channel) {
        *value += by;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    /// Reference implementation in f64 with two passes, written from the table of the module documentation.
    fn compute_reference(window: &[[f32; CHANNELS]]) -> [f64; FEATURES] {
        let n = window.len() as f64;
        let column = |c: usize| window.iter().map(|row| f64::from(row[c])).collect::<Vec<f64>>();
        let mean = |c: usize| column(c).iter().sum::<f64>() / n;
        let sum = |i: usize, j: usize| {
            let (mi, mj) = (mean(i), mean(j));
            column(i).iter().zip(column(j)).map(|(a, b)| (a - mi) * (b - mj)).sum::<f64>()
        };
        let pick = |c: usize, a: f64, g: f64| if c < 3 { a } else { g };
        let still = |c: usize| pick(c, 100.0 * 0.02 * 0.02, 100.0 * 0.05 * 0.05);
        let mut out = Vec::new();
        out.extend((0..6).map(|c| mean(c) / pick(c, 1.0, 2.0)));
        out.extend((0..6).map(|c| 1.5 * (sum(c, c) / n).sqrt() / pick(c, 0.5, 2.0)));
        let fold = |c: usize, f: fn(f64, f64) -> f64| column(c).into_iter().reduce(f).unwrap_or(0.0);
        out.extend((0..6).map(|c| 0.5 * (mean(c) - fold(c, f64::min)) / pick(c, 1.5, 5.0)));
        out.extend((0..6).map(|c| 0.5 * (fold(c, f64::max) - mean(c)) / pick(c, 1.5, 5.0)));
        out.extend((0..6).map(|c| {
            let x = column(c);
            x.windows(2).map(|w| (w[1] - w[0]).abs()).sum::<f64>() / (n - 1.0) / pick(c, 0.1, 0.3)
        }));
        for lag in LAGS {
            out.extend((0..6).map(|c| {
                let (x, m) = (column(c), mean(c));
                let sum: f64 = x.iter().zip(&x[lag..]).map(|(a, b)| (a - m) * (b - m)).sum();
                0.5 * sum / (sum_squared_deviations(&x, m) + still(c))
            }));
        }
        for i in 0..6 {
            for j in i + 1..6 {
                out.push(0.1 * sum(i, j) / ((sum(i, i) + still(i)) * (sum(j, j) + still(j))).sqrt());
            }
        }
        out.push(1.0);
        let mut features = [0.0; FEATURES];
        features.copy_from_slice(&out);
        features
    }

    /// Returns the sum of the squared deviations from the mean.
    fn sum_squared_deviations(x: &[f64], mean: f64) -> f64 {
        x.iter().map(|v| (v - mean) * (v - mean)).sum()
    }

    /// Returns a window of sines with noise and offsets, with gravity as the offset of channel 2.
    fn generate_window(seed: u32, amplitude: f32) -> [[f32; CHANNELS]; WINDOW] {
        let mut state = seed;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        let mut rows = [[0.0; CHANNELS]; WINDOW];
        for (t, row) in rows.iter_mut().enumerate() {
            for (c, value) in row.iter_mut().enumerate() {
                let phase = t as f32 * (0.05 + 0.03 * c as f32);
                *value = if c == 2 { 1.0 } else { 0.1 } + amplitude * (libm::sinf(phase) + 0.3 * noise());
            }
        }
        rows
    }

    #[test]
    fn one_pass_equals_a_two_pass_reference() {
        for (seed, amplitude) in [(1, 1.0), (2, 0.01), (3, 0.0), (4, 8.0)] {
            let rows = generate_window(seed, amplitude);
            let (mut extractor, mut out) = (WindowFeatures::new(), [0.0; FEATURES]);
            // The second window through the same extractor must not depend on the first.
            for _ in 0..2 {
                let done: Vec<bool> = rows.iter().map(|row| extractor.push(row, &mut out)).collect();
                assert_eq!(done.iter().filter(|d| **d).count(), 1);
                assert_eq!(done.last(), Some(&true));
                for (index, (computed, expected)) in out.iter().zip(compute_reference(&rows)).enumerate() {
                    let error = (f64::from(*computed) - expected).abs();
                    assert!(
                        error < 2e-5 * expected.abs().max(1.0),
                        "feature {index}: {computed} instead of {expected}"
                    );
                }
            }
        }
    }
}
