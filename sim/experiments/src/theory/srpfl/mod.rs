//! Theory of SRPFL: speedup over full participation that the recursion of the paper predicts if the number of
//! participants is doubled in stages. The recursion is implemented in
//! [`fedspan_engine::participation::theory`]; `STRAGGLERS.md` defines the computation.

mod curves;
mod table;

use fedspan_engine::participation::theory::{Recursion, levels, optimal_stages, theorem_stages, time};
use serde::Serialize;

pub use curves::{Curve, CurvePlan, point, recursion_curve};
pub use table::{by_contraction, cost_table};

/// Values of log2(N / n0) in the rows of the table; N / n0 ranges from 16 to 65536.
pub const RATIOS: [u32; 13] = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// Contractions `a` of the table that shows the dependence on the contraction; the theory requires at most
/// 1/4.
pub const CONTRACTIONS: [f64; 5] = [0.01, 0.05, 0.1, 0.19, 0.25];

/// Assumptions of the computation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Number of devices in the first stage, `n0`.
    pub first: usize,
    /// Contraction `a` of the recursion.
    pub contraction: f64,
    /// Target distance, as a multiple of the stationary distance of the recursion with all devices.
    pub factor: f64,
    /// Initial distance, in the unit of the recursion.
    pub start: f64,
    /// Communication costs of a round, in mean computation times.
    pub communication: Vec<f64>,
}

/// Expected times to the target for one fleet size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Ratio `N / n0` of the number of devices to the size of the first stage.
    pub ratio: usize,
    /// Expected time with full participation.
    pub full: f64,
    /// Expected time if the stages switch at the optimal rounds.
    pub optimal: f64,
    /// Expected time with the stages of the theorem.
    pub theorem: f64,
    /// Ratio `full / optimal`.
    pub full_over_optimal: f64,
    /// Ratio `full / theorem`.
    pub full_over_theorem: f64,
}

/// Least squares line through ratios as a function of `log2(N / n0)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trend {
    /// Increase of the ratio for each doubling of the fleet.
    pub slope: f64,
    /// Value of the line at `N = n0`.
    pub intercept: f64,
    /// Fraction of the ratios' variance that the line explains.
    pub r_squared: f64,
}

/// Results for one communication cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// Communication cost of a round, in mean computation times.
    pub communication: f64,
    /// Expected times for each value of [`RATIOS`].
    pub cells: Vec<Cell>,
    /// Trend of the ratio `full / optimal`.
    pub optimal_trend: Trend,
    /// Trend of the ratio `full / theorem`.
    pub theorem_trend: Trend,
}

/// Computes all cells of one communication cost.
#[must_use]
pub fn part(settings: &Settings, communication: f64) -> Part {
    let cells: Vec<Cell> =
        RATIOS.iter().map(|log2| compute_cell(settings, 1 << log2, communication)).collect();
    let trend = |value: fn(&Cell) -> f64| {
        let points: Vec<(f64, f64)> =
            RATIOS.iter().zip(&cells).map(|(log2, cell)| (f64::from(*log2), value(cell))).collect();
        Trend::fit(&points)
    };
    Part {
        communication,
        optimal_trend: trend(|cell| cell.full_over_optimal),
        theorem_trend: trend(|cell| cell.full_over_theorem),
        cells,
    }
}

/// Computes the expected times for one fleet size; `ratio` is `N / n0`.
fn compute_cell(settings: &Settings, ratio: usize, communication: f64) -> Cell {
    let Settings { first, contraction, factor, start, .. } = *settings;
    let recursion = Recursion { contraction };
    let cohort = first * ratio;
    let levels = levels(first, cohort, communication);
    let last_level = levels.len() - 1;
    let floor = recursion.floor(ratio as f64);
    let expected_time = |stages: &[u32]| time(recursion, &levels, stages, start, factor * floor);
    let full = expected_time(&vec![0; last_level]);
    let optimal = expected_time(&optimal_stages(first, cohort, contraction, communication, start, floor));
    let theorem = expected_time(&theorem_stages(first, cohort, contraction));
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
    /// Fits the line to points of `log2(N / n0)` and ratio.
    fn fit(points: &[(f64, f64)]) -> Self {
        let n = points.len() as f64;
        let mean = |term: fn(&(f64, f64)) -> f64| points.iter().map(term).sum::<f64>() / n;
        let (x, y) = (mean(|p| p.0), mean(|p| p.1));
        let sum = |term: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(term).sum::<f64>();
        let xx = sum(&|p| (p.0 - x) * (p.0 - x));
        let yy = sum(&|p| (p.1 - y) * (p.1 - y));
        let xy = sum(&|p| (p.0 - x) * (p.1 - y));
        let slope = xy / xx;
        // Without variance in the ratios the line fits exactly.
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
    fn trend_recovers_line() {
        let points: Vec<(f64, f64)> = (0..9).map(f64::from).map(|x| (x, 3.0 - 0.5 * x)).collect();
        let trend = Trend::fit(&points);
        assert!((trend.slope + 0.5).abs() < 1e-12 && (trend.intercept - 3.0).abs() < 1e-12);
        assert!((trend.r_squared - 1.0).abs() < 1e-12);
    }

    /// Checks Theorem 4.9 for the optimal stages: without communication, each doubling of the fleet increases
    /// the ratio by nearly the same amount. At any communication cost, the optimal stages take at most one
    /// round longer than full participation.
    #[test]
    fn optimal_speedup_grows_logarithmically() {
        for contraction in CONTRACTIONS {
            let settings = Settings { contraction, ..settings() };
            let without_communication = part(&settings, 0.0);
            assert!(
                without_communication
                    .cells
                    .windows(2)
                    .all(|pair| pair[0].full_over_optimal < pair[1].full_over_optimal)
            );
            let trend = without_communication.optimal_trend;
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

    /// Compares the time of full participation with a loop over the rounds of the recursion.
    #[test]
    fn full_participation_time_equals_rounds_by_hand() {
        let recursion = Recursion { contraction: 0.19 };
        let (mut distance, mut rounds) = (1.0, 0.0);
        while distance > 1.2 * recursion.floor(16.0) {
            distance = recursion.step(distance, 16.0);
            rounds += 1.0;
        }
        let harmonic: f64 = (1..=64).map(|n| 1.0 / f64::from(n)).sum();
        assert!((compute_cell(&settings(), 16, 2.0).full - rounds * (harmonic + 2.0)).abs() < 1e-9);
    }
}
