//! Drift: small rank-one steps of a direction that is the same in all rounds.

use fedspan_engine::linalg::{Matrix, complement};
use fedspan_engine::random::{Purpose, stream};

use super::{dot, norm};

/// Direction of `d` values and norm 1 that is the same in all rounds of a run. It is orthogonal to the true
/// representation, if there is one of `d` rows and fewer columns.
pub(super) fn wrong_direction(d: usize, truth: Option<&Matrix>, seed: u64) -> Vec<f64> {
    let random = &mut stream(seed, Purpose::Attackers, 3);
    let drawn = Matrix::from_fn(d, 1, |_, _| random.normal());
    let direction = match truth {
        Some(truth) if truth.nrows() == d && truth.ncols() < d => complement(truth, &drawn),
        _ => drawn,
    };
    let length = norm(direction.as_slice()).max(f64::MIN_POSITIVE);
    direction.iter().map(|value| value / length).collect()
}

/// Head of `k` values of an attacker, which is the same in all rounds of a run. The heads of all attackers are on
/// one side of a common head; otherwise their steps would cancel out.
pub(super) fn drifting_head(k: usize, attacker: usize, seed: u64) -> Vec<f64> {
    let common = &mut stream(seed, Purpose::Attackers, 4);
    let common: Vec<f64> = (0..k).map(|_| common.normal()).collect();
    let own = &mut stream(seed, Purpose::Attack, attacker as u64);
    let own: Vec<f64> = (0..k).map(|_| own.normal()).collect();
    let side = if dot(&own, &common) < 0.0 { -1.0 } else { 1.0 };
    own.iter().map(|value| side * value).collect()
}

/// Rank-one step `u h^T` of norm `length` (row-major), extended by zeros to `values` values.
pub(super) fn rank_one_step(u: &[f64], head: &[f64], length: f64, values: usize) -> Vec<f64> {
    let factor = length / (norm(u) * norm(head)).max(f64::MIN_POSITIVE);
    let mut step: Vec<f64> = u.iter().flat_map(|u| head.iter().map(move |h| factor * u * h)).collect();
    step.resize(values, 0.0);
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use fedspan_engine::linalg::{product_transposed, random_basis};

    /// The direction has norm 1, is orthogonal to the truth, and depends on the seed alone.
    #[test]
    fn wrong_direction_is_orthogonal_to_the_truth() {
        let truth = random_basis(12, 3, &mut stream(7, Purpose::Truth, 0));
        let direction = wrong_direction(12, Some(&truth), 7);
        assert!((norm(&direction) - 1.0).abs() < 1e-12);
        let along = product_transposed(&truth, &Matrix::from_column_slice(12, 1, &direction));
        assert!(along.norm() < 1e-12, "{along}");
        assert_eq!(direction, wrong_direction(12, Some(&truth), 7));
        assert_ne!(direction, wrong_direction(12, Some(&truth), 8));
        assert!((norm(&wrong_direction(3, Some(&truth), 7)) - 1.0).abs() < 1e-12);
    }

    /// Heads are all on one side of a common head, and differ between attackers.
    #[test]
    fn heads_are_on_one_side_and_differ() {
        let random = &mut stream(5, Purpose::Attackers, 4);
        let common: Vec<f64> = (0..4).map(|_| random.normal()).collect();
        let heads: Vec<Vec<f64>> = (0..20).map(|attacker| drifting_head(4, attacker, 5)).collect();
        assert!(heads.iter().all(|head| dot(head, &common) >= 0.0));
        assert!(heads.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
