//! The sensor. **This one is synthetic: replace it by your own.** It computes a fleet's linear regression
//! problem: all devices share K directions of the features, each has a combination of its own, so a fleet
//! of boards has something to learn together before anybody has soldered anything.
//!
//! Whatever replaces it, three things stay: the shape, [`Sensor::new`] and the one method of
//! [`AsyncSensor`]. Scales of features are constants of the firmware, never fitted to data; the last feature
//! of a real sensor is usually the constant 1, which gives the model an offset.

use embassy_time::{Duration, Instant, Timer};
use fedspan_client::Targets;
use fedspan_client::link::AsyncSensor;

use crate::unique::mix;

/// Features of a sample. The server's `data.d`.
pub const D: usize = 20;
/// Width of the representation. The server's `model.k`.
pub const K: usize = 2;
/// Outputs: one number to predict, or the number of classes. The server's `data.outputs`.
pub const C: usize = 1;
/// Samples that a round collects before it is computed.
pub const SAMPLES: u32 = 20;

/// Time from one sample to the next.
const PERIOD: Duration = Duration::from_millis(50);

/// A sensor whose samples are seen once.
#[derive(Clone, Debug)]
pub struct Sensor {
    due: Instant,
    random: u64,
    own: [[f32; C]; K],
    x: [f32; D],
    y: [f32; C],
}

impl Sensor {
    /// The sensor of one device. One's own takes its driver here: a bus, a pin for "data ready", a button.
    #[must_use]
    pub fn new(device: u64) -> Self {
        let mut sensor =
            Self { due: Instant::MIN, random: mix(device), own: [[0.0; C]; K], x: [0.0; D], y: [0.0; C] };
        let mut own = sensor.own;
        own.as_flattened_mut().fill_with(|| sensor.unit());
        sensor.own = own;
        sensor
    }

    /// One sample and its target.
    ///
    /// One's own driver goes here: wait for the interrupt, read the bus, compute features from a window
    /// (`fedspan_client::features` does for inertial sensors).
    ///
    /// **How the label gets in** is the sensor's as well. A button that is held while the thing happens:
    /// keep its pin beside the driver, and with `C` = 2 let `class: [u8; 1]` be `[u8::from(button.is_low())]`
    /// and give out `Targets::Classes(&class)`. A label that comes later (somebody inspects the machine)
    /// needs samples that wait for it: keep them, implement `SampleSource` instead of this trait
    /// (`examples/own_sensor.rs` of the client) and use `Sampling::Replay` with `link::run_async`.
    fn measure(&mut self) {
        for index in 0..D {
            let value = self.unit();
            if let Some(place) = self.x.get_mut(index) {
                *place = value;
            }
        }
        self.y = [0.0; C];
        // Direction j: alternating signs over every K-th feature, from feature j on.
        for (index, value) in self.x.iter().enumerate() {
            let sign = if (index / K).is_multiple_of(2) { 1.0 } else { -1.0 };
            if let Some(own) = self.own.get(index % K) {
                for (y, weight) in self.y.iter_mut().zip(own) {
                    *y += sign * value * weight;
                }
            }
        }
    }

    /// Uniform in -1..1.
    fn unit(&mut self) -> f32 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        #[allow(clippy::cast_precision_loss, reason = "24 bits fit an f32")]
        let value = (mix(self.random) >> 40) as f32;
        value / 8_388_608.0 - 1.0
    }
}

impl AsyncSensor for Sensor {
    /// Only awaited while a round collects samples. Cancel-safe, as the trait asks for: nothing changes
    /// before the last `await`.
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
    fn samples_are_the_devices_own_and_come_again_after_a_reset() {
        let first = |device| {
            let mut sensor = Sensor::new(device);
            sensor.measure();
            (sensor.x, sensor.y)
        };
        assert_eq!(first(3), first(3));
        assert_ne!(first(3), first(4));
    }

    #[test]
    fn targets_lie_in_k_directions() {
        // x with its part in the K directions taken out has target 0.
        let mut sensor = Sensor::new(5);
        for _ in 0..100 {
            sensor.measure();
            let mut parts = [0.0f32; K];
            for (index, value) in sensor.x.iter().enumerate() {
                parts[index % K] += if (index / K).is_multiple_of(2) { *value } else { -value };
            }
            let wanted: f32 = parts.iter().zip(sensor.own).map(|(part, own)| part * own[0]).sum();
            assert!((sensor.y[0] - wanted).abs() < 1e-5);
            assert!(sensor.x.iter().all(|value| (-1.0..1.0).contains(value)));
        }
    }

    #[test]
    fn samples_keep_their_distance() {
        let mut sensor = Sensor::new(1);
        let start = Instant::now();
        for _ in 0..3 {
            block_on(sensor.next());
        }
        assert!(start.elapsed() >= PERIOD * 2);
    }
}
