//! SRPFL's recursion run exactly: what doubling participation should gain, before anything is simulated. The mathematics
//! is the server's ([`fedspan_engine::participation::theory`]); `STRAGGLERS.md` says what is computed.

mod curves;
mod table;

use fedspan_engine::participation::theory::{Recursion, levels, optimal_stages, theorem_stages, time};
use serde::Serialize;

pub use curves::{Course, Curve, course, point};
pub use table::{by_contraction, one};

/// Logarithms to base 2 of `N / n0` in the table: 16 to 65536.
pub const RATIOS: [u32; 13] = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// Contractions that show how the answer depends on it; the theory has at most 1/4.
pub const CONTRACTIONS: [f64; 5] = [0.01, 0.05, 0.1, 0.19, 0.25];

/// What is assumed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// `n0`.
    pub first: usize,
    /// `a`.
    pub contraction: f64,
    /// The target over the recursion's floor with all devices.
    pub factor: f64,
    /// The distance at which everything starts, in the recursion's unit.
    pub start: f64,
    /// What a round takes besides computation, in mean computations.
    pub communication: Vec<f64>,
}

/// Expected times to the target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// `N / n0`.
    pub ratio: usize,
    /// Time of full participation.
    pub full: f64,
    /// Time with the optimal switches.
    pub optimal: f64,
    /// Time with the theorem's stages.
    pub theorem: f64,
    /// `full / optimal`.
    pub full_over_optimal: f64,
    /// `full / theorem`.
    pub full_over_theorem: f64,
}

/// A straight line through ratios against `log2(N / n0)`, by least squares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trend {
    /// What doubling the fleet adds.
    pub slope: f64,
    /// At `N = n0`.
    pub intercept: f64,
    /// The part of the ratios' variance that the line explains.
    pub r_squared: f64,
}

/// One communication.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// In mean computations.
    pub communication: f64,
    /// By `N / n0`.
    pub cells: Vec<Cell>,
    /// Of `full / optimal`.
    pub optimal_trend: Trend,
    /// Of `full / theorem`.
    pub theorem_trend: Trend,
}

/// All cells of one communication.
#[must_use]
pub fn part(settings: &Settings, communication: f64) -> Part {
    let cells: Vec<Cell> = RATIOS.iter().map(|log2| cell(settings, 1 << log2, communication)).collect();
    let trend = |of: fn(&Cell) -> f64| {
        let points: Vec<(f64, f64)> =
            RATIOS.iter().zip(&cells).map(|(log2, cell)| (f64::from(*log2), of(cell))).collect();
        Trend::of(&points)
    };
    Part {
        communication,
        optimal_trend: trend(|cell| cell.full_over_optimal),
        theorem_trend: trend(|cell| cell.full_over_theorem),
        cells,
    }
}

fn cell(settings: &Settings, ratio: usize, communication: f64) -> Cell {
    let Settings { first, contraction, factor, start, .. } = *settings;
    let recursion = Recursion { contraction };
    let cohort = first * ratio;
    let levels = levels(first, cohort, communication);
    let all = levels.len() - 1;
    let floor = recursion.floor(ratio as f64);
    let of = |stages: &[u32]| time(recursion, &levels, stages, start, factor * floor);
    let full = of(&vec![0; all]);
    let optimal = of(&optimal_stages(first, cohort, contraction, communication, start, floor));
    let theorem = of(&theorem_stages(first, cohort, contraction));
    Cell {
        ratio,
        full,
        optimal,
        theorem,
        full_over_optimal: full / optimal,
        full_over_theorem: full / theorem,
    }
}

impl Trend {
    fn of(points: &[(f64, f64)]) -> Self {
        let n = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
        let (x, y) = (mean(|p| p.0), mean(|p| p.1));
        let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
        let xx = sum(&|p| (p.0 - x) * (p.0 - x));
        let yy = sum(&|p| (p.1 - y) * (p.1 - y));
        let xy = sum(&|p| (p.0 - x) * (p.1 - y));
        let slope = xy / xx;
        // Equal ratios are on a line.
        let r_squared = if yy > 0.0 { xy * xy / (xx * yy) } else { 1.0 };
        Self { slope, intercept: y - slope * x, r_squared }
    }
}

#[cfg(test)]
mod tests {
    use fedspan_engine::participation::theory::expected_arrival;

    use super::*;

    fn settings() -> Settings {
        Settings { first: 4, contraction: 0.19, factor: 1.2, start: 1.0, communication: vec![0.0] }
    }

    #[test]
    fn a_trend_finds_its_line() {
        let points: Vec<(f64, f64)> = (0..9).map(f64::from).map(|x| (x, 3.0 - 0.5 * x)).collect();
        let trend = Trend::of(&points);
        assert!((trend.slope + 0.5).abs() < 1e-12 && (trend.intercept - 3.0).abs() < 1e-12);
        assert!((trend.r_squared - 1.0).abs() < 1e-12);
    }

    /// Theorem 4.9 with the optimal switches: without communication the ratio grows with every doubling of the fleet by
    /// much the same; whatever the communication, they never take a round longer than full participation.
    #[test]
    fn the_speedup_is_logarithmic() {
        for contraction in CONTRACTIONS {
            let settings = Settings { contraction, ..settings() };
            let without = part(&settings, 0.0);
            assert!(
                without.cells.windows(2).all(|pair| pair[0].full_over_optimal < pair[1].full_over_optimal)
            );
            let trend = without.optimal_trend;
            assert!(trend.slope > 0.3 && trend.r_squared > 0.99, "{trend:?}");
            for communication in [1.0, 10.0, 100.0] {
                for cell in part(&settings, communication).cells {
                    let cohort = settings.first * cell.ratio;
                    let round = expected_arrival(cohort, cohort) + communication;
                    assert!(cell.optimal < cell.full + round, "{cell:?}");
                }
            }
        }
    }

    /// A cell by hand: round after round.
    #[test]
    fn full_participation_takes_its_rounds() {
        let recursion = Recursion { contraction: 0.19 };
        let (mut distance, mut rounds) = (1.0, 0.0);
        while distance > 1.2 * recursion.floor(16.0) {
            distance = recursion.step(distance, 16.0);
            rounds += 1.0;
        }
        let harmonic: f64 = (1..=64).map(|n| 1.0 / f64::from(n)).sum();
        assert!((cell(&settings(), 16, 2.0).full - rounds * (harmonic + 2.0)).abs() < 1e-9);
    }
}
