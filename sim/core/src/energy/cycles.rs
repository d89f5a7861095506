//! Cycles of a round of FedRep: operations of the algorithm, times factors of a core. The factors are fitted to the budgets
//! (`tests/budgets.toml`), which `tests/tests/energy.rs` compares with the model.

use fedspan_client::Shape;
use fedspan_protocol::message::{HeadSolve, Numeric, Task};

/// Core with measured cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Core {
    /// Cortex-M4 with floating point.
    CortexM4F,
    /// Cortex-M3.
    CortexM3,
    /// Cortex-M0.
    CortexM0,
    /// RISC-V with integers, multiplication and compressed instructions.
    Rv32imc,
}

/// Cycles of each operation in an arithmetic.
struct Factors {
    multiply: f64,
    element: f64,
}

/// Operations of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Multiply-accumulates.
    pub multiplies: f64,
    /// Projections and targets of samples, m (k + C), which are converted, checked and copied.
    pub elements: f64,
}

impl Core {
    /// All cores.
    pub const ALL: [Self; 4] = [Self::CortexM4F, Self::CortexM3, Self::CortexM0, Self::Rv32imc];

    /// Name in scenarios and in `tests/budgets.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CortexM4F => "m4",
            Self::CortexM3 => "m3",
            Self::CortexM0 => "m0",
            Self::Rv32imc => "rv32imc",
        }
    }

    /// Cycles of operations, from memory without wait states.
    #[must_use]
    pub fn cycles(self, numeric: Numeric, work: &Work) -> f64 {
        let Factors { multiply, element } = self.factors(numeric);
        multiply * work.multiplies + element * work.elements
    }

    /// Cycles of sealing and opening frames with ChaCha20-Poly1305. `bytes` is the length of all of them.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "counts of bytes")]
    pub fn sealing_cycles(self, frames: usize, bytes: usize) -> f64 {
        let (frame, byte) = match self {
            Self::CortexM4F => (6_150.0, 71.0),
            Self::CortexM3 => (6_500.0, 78.2),
            Self::CortexM0 => (12_000.0, 246.0),
            Self::Rv32imc => (8_340.0, 97.1),
        };
        frame * frames as f64 + byte * bytes as f64
    }

    /// Factors of an arithmetic; another than 16-bit fixed point is that of f32.
    const fn factors(self, numeric: Numeric) -> Factors {
        let [float, fixed] = match self {
            Self::CortexM4F => [(4.97, 243.0), (6.58, 1_030.0)],
            Self::CortexM3 => [(200.0, 158.0), (13.48, 1_328.0)],
            Self::CortexM0 => [(375.0, 484.0), (28.2, 1_960.0)],
            Self::Rv32imc => [(154.0, 387.0), (14.2, 1_360.0)],
        };
        let (multiply, element) = if matches!(numeric, Numeric::I16) { fixed } else { float };
        Factors { multiply, element }
    }
}

/// True if a head solver is the one whose cycles are measured.
#[must_use]
pub const fn is_exact(head: HeadSolve) -> bool {
    matches!(head, HeadSolve::LeastSquares { .. })
}

/// Operations of a round of FedRep with exact heads from `samples` samples, where the normal equations determine the head: check of
/// `B`, projections, normal equations and their solution, predictions, factors of the gradient, and the gradient.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "dimensions are below 2^16")]
pub fn exact_fedrep(shape: Shape, samples: usize) -> Work {
    let Shape { features, width, outputs } = shape;
    let [d, k, c, m] = [features, width, outputs, samples].map(|count| count as f64);
    let triangle = k * (k + 1.0) / 2.0;
    let check = d * triangle;
    let sample = d * k + triangle + 2.0 * k * c + d * c;
    let solution = k * k * (k + 3.0) / 6.0 + k * k * c;
    let gradient = d * k * c;
    Work { multiplies: check + m * sample + solution + gradient, elements: m * (k + c) }
}

impl Work {
    /// Operations of a task; `None` if they are not known. Rounds that prepare training (sums of features, power iterations, rows of
    /// moments) are counted, but their cycles have not been measured.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "dimensions are below 2^16")]
    pub fn of(task: &Task, shape: Shape, samples: usize) -> Option<Self> {
        let (d, k, m) = (shape.features as f64, shape.width as f64, samples as f64);
        let only = |multiplies| Self { multiplies, elements: 0.0 };
        Some(match *task {
            Task::FedRep { head, .. } if is_exact(head) => exact_fedrep(shape, samples),
            Task::PowerStart => only(2.0 * d * k * m),
            Task::MomentRows { first, count } => {
                let (first, count) = (f64::from(first), f64::from(count));
                only(m * count * (d - first - (count - 1.0) / 2.0).max(0.0))
            }
            Task::FeatureSums { count, .. } => only(2.0 * m * f64::from(count)),
            _ => return None,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_by_hand_for_one_feature() {
        // B (1 x 1) is checked by one product, and so on: 1 + m (1 + 1 + 2 + 1) + 4/6 + 1 + 1.
        let work = exact_fedrep(Shape { features: 1, width: 1, outputs: 1 }, 10);
        assert!((work.multiplies - (53.0 + 4.0 / 6.0)).abs() < 1e-12, "{work:?}");
        assert_eq!(work.elements, 20.0);
    }

    #[test]
    fn larger_shapes_and_more_samples_take_more_cycles() {
        let shape = Shape { features: 20, width: 2, outputs: 1 };
        let cycles =
            |shape, samples| Core::ALL.map(|core| core.cycles(Numeric::F32, &exact_fedrep(shape, samples)));
        let larger = [
            cycles(shape, 21),
            cycles(Shape { features: 21, ..shape }, 20),
            cycles(Shape { width: 3, ..shape }, 20),
            cycles(Shape { outputs: 2, ..shape }, 20),
        ];
        for larger in larger {
            assert!(cycles(shape, 20).into_iter().zip(larger).all(|(smaller, larger)| smaller < larger));
        }
    }

    #[test]
    fn only_exact_heads_are_known() {
        let shape = Shape { features: 20, width: 2, outputs: 1 };
        assert_eq!(
            Work::of(&Task::FitHead { head: HeadSolve::LeastSquares { ridge: 0.0 } }, shape, 20),
            None
        );
        // The rows of the upper half of a 20 x 20 matrix have 210 values.
        let rows = Work::of(&Task::MomentRows { first: 0, count: 20 }, shape, 3).unwrap();
        assert_eq!(rows.multiplies, 630.0);
    }
}
