//! Sensor of the device. **This one is synthetic: replace it.** It generates a linear regression problem for a fleet: all devices
//! share K directions of the features, and each device weights them differently.

use fedspan_client::Targets;
use fedspan_client::link;

/// Number of features of a sample; `data.d` of the server. The last one is usually the constant 1.
pub const D: usize = {{features}};
/// Width of the representation; `model.k` of the server.
pub const K: usize = {{width}};
/// Number of outputs; `data.outputs` of the server. For classes their number, and `Targets::Classes` below.
pub const C: usize = {{outputs}};
/// Number of samples that are collected before a round is computed.
pub const SAMPLES: u32 = 100;

/// The sensor, with room for one sample.
pub struct Sensor {
    random: u64,
    weights: [[f32; C]; K],
    x: [f32; D],
    y: [f32; C],
}

impl Sensor {
    /// Creates the sensor of a device. A replacement takes its driver here.
    pub fn new(device: u64) -> Self {
        let mut sensor = Self { random: device, weights: [[0.0; C]; K], x: [0.0; D], y: [0.0; C] };
        let mut weights = sensor.weights;
        weights.as_flattened_mut().fill_with(|| sensor.number());
        sensor.weights = weights;
        sensor
    }

    /// Takes one sample, and the number or numbers to predict from it. A replacement reads its driver here, and computes
    /// features from a window (`fedspan_client::features` does so for inertial sensors).
    pub fn measure(&mut self) -> (&[f32], &[f32]) {
        for index in 0..D {
            self.x[index] = self.number();
        }
        self.y = [0.0; C];
        // Direction j has alternating signs at every K-th feature, beginning with feature j.
        for (index, value) in self.x.iter().enumerate() {
            let sign = if (index / K).is_multiple_of(2) { 1.0 } else { -1.0 };
            for (y, weight) in self.y.iter_mut().zip(self.weights[index % K]) {
                *y += sign * value * weight;
            }
        }
        (&self.x, &self.y)
    }

    /// Returns a random number, uniform in [-1, 1): SplitMix64.
    fn number(&mut self) -> f32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

impl link::Sensor for Sensor {
    /// Returns the next sample. Called while a round collects samples; a replacement returns `None` until its driver has one.
    fn poll(&mut self) -> Option<(&[f32], Targets<'_>)> {
        let (x, y) = self.measure();
        Some((x, Targets::Values(y)))
    }
}
