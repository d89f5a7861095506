//! Sensor of the firmware. **This sensor is synthetic: replace it with your own.** It generates a linear
//! regression problem for a fleet: all devices share K directions of the features, and each device weights
//! the directions differently. A fleet of boards can therefore train together before any hardware is
//! attached.
//!
//! A replacement keeps the shape, [`Sensor::new`], and the method of [`AsyncSensor`]. The scales of features
//! are constants of the firmware, never fitted to data. The last feature of a real sensor is usually the
//! constant 1, which gives the model an offset.

use embassy_time::{Duration, Instant, Timer};
use fedspan_client::Targets;
use fedspan_client::link::AsyncSensor;

use crate::unique::mix;

/// Number of features per sample; the server's `data.d`.
pub const D: usize = 20;
/// Width of the representation; the server's `model.k`.
pub const K: usize = 2;
/// Number of outputs: 1 for a number to predict, otherwise the number of classes. The server's
/// `data.outputs`.
pub const C: usize = 1;
/// Number of samples collected before a round is computed.
pub const SAMPLES: u32 = 20;

/// Longest time without a sample while a round collects samples; after that the sensor counts as hung, and the watchdog resets
/// the board. A sensor that waits for rare events needs a longer time.
pub const SILENCE: Duration = Duration::from_secs(60);

/// Time between samples.
const PERIOD: Duration = Duration::from_millis(50);

/// Sensor that delivers each sample once.
#[derive(Clone, Debug)]
pub struct Sensor {
    due: Instant,
    random: u64,
    weights: [[f32; C]; K],
    x: [f32; D],
    y: [f32; C],
}

impl Sensor {
    /// Creates the sensor of one device. A replacement takes its driver here: a bus, a data-ready pin, a
    /// button.
    #[must_use]
    pub fn new(device: u64) -> Self {
        let mut sensor =
            Self { due: Instant::MIN, random: mix(device), weights: [[0.0; C]; K], x: [0.0; D], y: [0.0; C] };
        let mut weights = sensor.weights;
        weights.as_flattened_mut().fill_with(|| sensor.unit());
        sensor.weights = weights;
        sensor
    }

    /// Takes one sample and its target.
    ///
    /// A replacement calls its driver here: it waits for the interrupt, reads the bus, and computes features
    /// from a window (`fedspan_client::features` does this for inertial sensors).
    ///
    /// **The label** comes from the sensor as well. For a button that is held during an event, keep its pin
    /// next to the driver, set `C` = 2, let `class: [u8; 1]` be `[u8::from(button.is_low())]`, and return
    /// `Targets::Classes(&class)`. If a label arrives later, for example from an inspection of the machine,
    /// the samples must be kept until then: implement `SampleSource` instead of this trait
    /// (`examples/own_sensor.rs` of the client), and use `Sampling::Replay` with `link::run_async`.
    fn measure(&mut self) {
        for index in 0..D {
            let value = self.unit();
            if let Some(feature) = self.x.get_mut(index) {
                *feature = value;
            }
        }
        self.y = [0.0; C];
        // Direction j has alternating signs at every K-th feature, starting with feature j.
        for (index, value) in self.x.iter().enumerate() {
            let sign = if (index / K).is_multiple_of(2) { 1.0 } else { -1.0 };
            if let Some(weights) = self.weights.get(index % K) {
                for (y, weight) in self.y.iter_mut().zip(weights) {
                    *y += sign * value * weight;
                }
            }
        }
    }

    /// Returns a random number, uniform in [-1, 1).
    fn unit(&mut self) -> f32 {
        // The generator is SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        #[allow(clippy::cast_precision_loss, reason = "24 bits fit an f32")]
        let value = (mix(self.random) >> 40) as f32;
        value / 8_388_608.0 - 1.0
    }
}

impl AsyncSensor for Sensor {
    /// Waits for the next sample. Called only while a round collects samples. Cancel-safe, as the trait
    /// requires: nothing changes before the last `await`.
    async fn next(&mut self) -> (&[f32], Targets<'_>) {
        Timer::at(self.due).await;
        self.due = Instant::now() + PERIOD;
        self.measure();
        (&self.x, Targets::Values(&self.y))
    }
}

#[cfg(test)]
mod tests {
    use embassy_futures::block_on;

    use super::*;

    #[test]
    fn samples_depend_on_the_device_and_repeat_after_a_reset() {
        let first_sample = |device| {
            let mut sensor = Sensor::new(device);
            sensor.measure();
            (sensor.x, sensor.y)
        };
        assert_eq!(first_sample(3), first_sample(3));
        assert_ne!(first_sample(3), first_sample(4));
    }

    #[test]
    fn targets_depend_on_k_directions() {
        // The target depends only on the components of a sample along the K directions.
        let mut sensor = Sensor::new(5);
        for _ in 0..100 {
            sensor.measure();
            let mut components = [0.0f32; K];
            for (index, value) in sensor.x.iter().enumerate() {
                components[index % K] += if (index / K).is_multiple_of(2) { *value } else { -value };
            }
            let expected: f32 = components
                .iter()
                .zip(sensor.weights)
                .map(|(component, weights)| component * weights[0])
                .sum();
            assert!((sensor.y[0] - expected).abs() < 1e-5);
            assert!(sensor.x.iter().all(|value| (-1.0..1.0).contains(value)));
        }
    }

    #[test]
    fn samples_are_spaced_by_the_period() {
        let mut sensor = Sensor::new(1);
        let start = Instant::now();
        for _ in 0..3 {
            block_on(sensor.next());
        }
        assert!(start.elapsed() >= PERIOD * 2);
    }
}
