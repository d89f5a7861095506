//! Samples that are computed instead of stored, one at a time, for a board without room for a recording:
//! a fleet's linear regression problem. All devices share two directions; each has its own combination.

use fedspan_client::SourceError;
use fedspan_client::source::{SampleSource, Samples, Targets};
use fedspan_protocol::message::RoundId;

use crate::problem::Generator;

/// Length of a sample.
pub const FEATURES: usize = 20;
/// Samples that train, and as many that test.
pub const SAMPLES: usize = 20;

/// Which samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Those that train.
    Training,
    /// Those that test.
    Test,
}

/// A device's samples.
#[derive(Clone, Debug)]
pub struct Made {
    device: u64,
    part: Part,
    own: [f32; 2],
    generator: Generator,
    left: usize,
    x: [f32; FEATURES],
    y: [f32; 1],
}

impl Made {
    /// The samples of one device.
    #[must_use]
    pub fn new(device: u64, part: Part) -> Self {
        let mut generator = Generator::new(device);
        let own = [generator.unit(), generator.unit()];
        Self { device, part, own, generator, left: 0, x: [0.0; FEATURES], y: [0.0] }
    }
}

impl SampleSource for Made {
    fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
        let other = if self.part == Part::Training { 1 } else { 2 };
        self.generator = Generator::new(self.device ^ other << 62);
        self.left = SAMPLES;
        Ok(())
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        self.left = self.left.checked_sub(1)?;
        self.x = core::array::from_fn(|_| self.generator.unit());
        // The two directions: alternating signs over the even, and over the odd features; length 1.
        let mut shared = [0.0; 2];
        for (index, value) in self.x.iter().enumerate() {
            let sign = if index % 4 < 2 { 1.0 } else { -1.0 };
            if let Some(place) = shared.get_mut(index % 2) {
                *place += sign * value;
            }
        }
        let [a, b] = shared;
        let [v, w] = self.own;
        self.y = [(a * v + b * w) / SQRT_10];
        Some(Samples { x: &self.x, targets: Targets::Values(&self.y) })
    }
}

/// Length of ten ones.
const SQRT_10: f32 = 3.162_277_7;
