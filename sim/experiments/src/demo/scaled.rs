//! Logarithmic features of the demo's windows, for a fair comparison with local-only training.
//!
//! The features contain logarithms of the spreads instead of the spreads, and other weights. They were chosen
//! on validation windows for models that are fitted on one wearer's labels, one window per exercise. FedRep
//! is more accurate on the features that a device computes, local-only training on the features of this
//! module.

use std::sync::OnceLock;

use fedspan_client::features::{CHANNELS, FEATURES, WINDOW};

use fedspan_sim_core::data::watch::{self, WatchSettings, Windows};
use fedspan_sim_core::data::{DataError, Dataset};

/// Lags of the autocorrelations, in samples.
const LAGS: [usize; 2] = [3, 12];

/// Divisor of a channel: `acceleration` in g for the first half of the channels, which are accelerations, and
/// `rotation` in rad/s for the second half, which are rotation rates.
fn scale(channel: usize, acceleration: f64, rotation: f64) -> f64 {
    if channel < CHANNELS / 2 { acceleration } else { rotation }
}

/// Converts a spread to a logarithmic scale.
fn logarithm(value: f64) -> f64 {
    libm::log2(value + 0.05) / 3.0
}

/// Creates the data set of [`watch::dataset`] with the logarithmic features.
///
/// # Errors
/// [`DataError`] if the bundled recordings cannot be split as `settings` ask.
pub fn dataset(settings: &WatchSettings, seed: u64) -> Result<Dataset, DataError> {
    static SCALED: OnceLock<Result<Windows, DataError>> = OnceLock::new();
    match SCALED.get_or_init(|| Windows::all(features)) {
        Ok(windows) => watch::dataset_from_windows(windows, settings, seed),
        Err(error) => Err(error.clone()),
    }
}

/// Computes the features of a window of [`WINDOW`] samples. Returns zeros for a window of another length.
fn features(window: &[[f32; CHANNELS]]) -> [f32; FEATURES] {
    const N: f64 = WINDOW as f64;
    let mut out = [0.0; FEATURES];
    if window.len() != WINDOW {
        return out;
    }
    let channels: Vec<Vec<f64>> = (0..CHANNELS)
        .map(|c| window.iter().map(|sample| sample.get(c).copied().unwrap_or(0.0).into()).collect())
        .collect();
    let mean: Vec<f64> = channels.iter().map(|x| x.iter().sum::<f64>() / N).collect();
    let centred: Vec<Vec<f64>> =
        channels.iter().zip(&mean).map(|(x, mean)| x.iter().map(|v| v - mean).collect()).collect();
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let squares: Vec<f64> = centred.iter().map(|x| product(x, x)).collect();
    // Without the added term, noise would dominate the correlations of a channel that hardly moves. The term
    // makes them nearly zero.
    let power = |c: usize, squares: f64| squares + N * scale(c, 0.02 * 0.02, 0.05 * 0.05);
    let power: Vec<f64> = squares.iter().enumerate().map(|(c, squares)| power(c, *squares)).collect();
    let mut values: Vec<f64> = Vec::with_capacity(FEATURES);
    let per_channel = || centred.iter().enumerate();
    values.extend(mean.iter().enumerate().map(|(c, mean)| 0.5 * mean / scale(c, 1.0, 2.0)));
    values.extend(
        squares.iter().enumerate().map(|(c, sum)| 3.0 * logarithm((sum / N).sqrt() / scale(c, 0.5, 2.0))),
    );
    for sign in [-1.0, 1.0] {
        values.extend(per_channel().map(|(c, x)| {
            let extreme = x.iter().map(|v| sign * v).fold(f64::NEG_INFINITY, f64::max);
            0.5 * logarithm(extreme / scale(c, 1.5, 5.0))
        }));
    }
    values.extend(per_channel().map(|(c, x)| {
        let steps = x.iter().zip(x.iter().skip(1)).map(|(a, b)| (b - a).abs());
        2.0 * logarithm(steps.sum::<f64>() / (N - 1.0) / scale(c, 0.1, 0.3))
    }));
    for lag in LAGS {
        values.extend(centred.iter().zip(&power).map(|(x, power)| {
            let shifted = x.get(lag..).unwrap_or_default();
            product(x, shifted) / power
        }));
    }
    for (i, (x, px)) in centred.iter().zip(&power).enumerate() {
        values.extend(
            centred.iter().zip(&power).skip(i + 1).map(|(y, py)| 0.1 * product(x, y) / (px * py).sqrt()),
        );
    }
    values.push(1.0);
    for (entry, value) in out.iter_mut().zip(values) {
        #[allow(clippy::cast_possible_truncation, reason = "f32 like all samples")]
        {
            *entry = value as f32;
        }
    }
    out
}
