//! Optimiser AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019) with the update rule of PyTorch.

/// Decay rates of the two moments; the defaults of PyTorch.
const MOMENT_DECAYS: [f64; 2] = [0.9, 0.999];
/// Constant that is added to the denominator of a step; the default of PyTorch.
const EPSILON: f32 = 1e-8;

/// State of the optimiser for one client within one round.
#[derive(Clone, Debug)]
pub struct Adam {
    step_size: f32,
    decay: f32,
    /// Exponential moving averages of the gradients and of their squares.
    moments: [Vec<f32>; 2],
    /// Powers of [`MOMENT_DECAYS`] for the bias correction.
    powers: [f64; 2],
}

impl Adam {
    /// Creates the state for `length` parameters. In each step, weight decay multiplies the trained
    /// parameters by `1 - step_size * decay`.
    #[must_use]
    pub fn new(length: usize, step_size: f32, decay: f32) -> Self {
        Self { step_size, decay, moments: [vec![0.0; length], vec![0.0; length]], powers: [1.0; 2] }
    }

    /// Takes one step on the parameters whose indices are in the ranges `trained`.
    #[allow(clippy::cast_possible_truncation, reason = "rounded")]
    pub fn step(&mut self, values: &mut [f32], gradient: &[f32], trained: &[std::ops::Range<usize>]) {
        for (power, moment) in self.powers.iter_mut().zip(MOMENT_DECAYS) {
            *power *= moment;
        }
        let [first, second] = MOMENT_DECAYS.map(|moment| moment as f32);
        let step = (f64::from(self.step_size) / (1.0 - self.powers[0])) as f32;
        let root = (1.0 - self.powers[1]).sqrt() as f32;
        let shrink = 1.0 - self.step_size * self.decay;
        let [means, squares] = &mut self.moments;
        for index in trained.iter().cloned().flatten() {
            let g = gradient[index];
            let (mean, square) = (&mut means[index], &mut squares[index]);
            *mean = first * *mean + (1.0 - first) * g;
            *square = second * *square + (1.0 - second) * g * g;
            values[index] = values[index] * shrink - step * *mean / (square.sqrt() / root + EPSILON);
        }
    }
}
