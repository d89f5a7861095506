//! Raw windows of the smartwatch recordings, as samples for networks on time series.

use fedspan_client::features::{CHANNELS, WINDOW};

use super::super::{Client, DataError, Dataset, Layout, Set, Shape, SharedSet};
use super::{HOP, Windows, recordings};

/// Allowed decimation factors: numbers of consecutive samples that are averaged into one sample. Each divides
/// the length of a window.
pub const DECIMATIONS: [usize; 5] = [1, 2, 4, 5, 10];

/// Number of values of a decimated window, without the constant.
#[must_use]
pub fn values(decimation: usize) -> usize {
    WINDOW / decimation.max(1) * CHANNELS
}

/// Computes all windows in g and rad/s. `decimation` consecutive samples are averaged into one, and a
/// constant 1 is appended to each window.
///
/// # Errors
/// [`DataError`] if the recordings in the program are damaged.
pub fn raw_windows(decimation: usize) -> Result<Windows, DataError> {
    let mut windows = Vec::new();
    for series in recordings()? {
        let samples = series.samples();
        let mut rows = Vec::with_capacity(series.windows() * (values(decimation) + 1));
        for start in (0..series.windows()).map(|j| j * HOP) {
            let window = samples.get(start..start + WINDOW).unwrap_or_default();
            for part in window.chunks_exact(decimation.max(1)) {
                for channel in 0..CHANNELS {
                    let sum: f32 = part.iter().filter_map(|sample| sample.get(channel)).sum();
                    rows.push(sum / part.len() as f32);
                }
            }
            rows.push(1.0);
        }
        windows.push((series, rows));
    }
    let shape = Shape::Series { steps: WINDOW / decimation.max(1), channels: CHANNELS };
    let layout = Layout { shape: Some(shape), constant: true };
    Ok(Windows { width: values(decimation) + 1, layout, series: windows })
}

/// Standardises every channel to mean 0 and standard deviation 1 over the training windows of training
/// clients. Test windows and newcomers are scaled in the same way but do not determine the scale.
#[must_use]
pub fn standardised(mut dataset: Dataset) -> Dataset {
    let d = dataset.features;
    let rows = dataset.clients.iter().flat_map(|client: &Client| client.train.x.chunks_exact(d));
    let mut count = 0.0;
    let mut sums = [0.0; CHANNELS];
    let mut squares = [0.0; CHANNELS];
    for row in rows {
        for step in row.chunks_exact(CHANNELS) {
            count += 1.0;
            for ((sum, square), value) in sums.iter_mut().zip(&mut squares).zip(step) {
                *sum += f64::from(*value);
                *square += f64::from(*value).powi(2);
            }
        }
    }
    let mut scales = [(0.0f32, 1.0f32); CHANNELS];
    for ((scale, sum), square) in scales.iter_mut().zip(sums).zip(squares) {
        let mean = sum / f64::max(count, 1.0);
        let deviation = (square / f64::max(count, 1.0) - mean * mean).max(0.0).sqrt();
        // A constant channel is centred and not scaled.
        *scale = (narrow(mean), if deviation > 0.0 { narrow(deviation) } else { 1.0 });
    }
    let scaled = |shared: &mut SharedSet| {
        let mut set = Set::clone(shared);
        for row in set.x.chunks_exact_mut(d) {
            for step in row.chunks_exact_mut(CHANNELS) {
                for (value, (mean, deviation)) in step.iter_mut().zip(scales) {
                    *value = (*value - mean) / deviation;
                }
            }
        }
        *shared = set.into();
    };
    for client in dataset.clients.iter_mut().chain(&mut dataset.newcomers) {
        scaled(&mut client.train);
        scaled(&mut client.test);
    }
    dataset
}

#[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
fn narrow(value: f64) -> f32 {
    value as f32
}
