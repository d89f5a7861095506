//! Search for updates that oppose the mean of the others.
//!
//! Devices that reverse honest updates do not agree on a direction, so that no direction of the second moment
//! shows them. But each of them points away from the mean of the others, as long as the others determine the
//! mean. An honest update of a linear model does not: the step of a device with the head w is -E w w^T, where E
//! is the error of the representation, and the inner product of that step and the mean step -E S (S: the second
//! moment of the heads) is positive unless S is far from a multiple of the identity.

use super::steps::{Steps, add_scaled, dot};

/// Cosine between an update and the mean of the others below which the update opposes it. Sampling noise alone
/// gives cosines of about 1 / sqrt(number of values).
const OPPOSED: f64 = -0.1;
/// Number of passes. Each one starts from the mean without the opponents of the previous pass.
const PASSES: usize = 3;

/// Lowers `kept` to zero for the steps that oppose the mean of the other kept steps, the most opposed first, up
/// to the fraction `removed` of the total weight. Steps that are not kept count as others do, so a step may
/// oppose the mean even if the filter before has removed it.
pub(super) fn without_opponents(steps: &Steps, kept: Vec<f64>, removed: f64) -> Vec<f64> {
    let total: f64 = steps.points.iter().map(|(weight, _)| weight).sum();
    let squares: Vec<f64> = steps.points.iter().map(|(_, step)| dot(step, step)).collect();
    let mut remaining = kept.clone();
    for _ in 0..PASSES {
        let mut sum = vec![0.0; steps.length];
        for ((weight, step), kept) in steps.points.iter().zip(&remaining) {
            add_scaled(&mut sum, weight * kept, step);
        }
        let sum_square = dot(&sum, &sum);
        let mut opponents: Vec<(f64, usize)> = Vec::new();
        for (index, (((weight, step), kept), square)) in
            steps.points.iter().zip(&remaining).zip(&squares).enumerate()
        {
            let own = weight * kept;
            let product = dot(&sum, step);
            let others_square = sum_square - 2.0 * own * product + own * own * square;
            let cosine = (product - own * square) / (others_square * square).sqrt();
            // Not a number for a step of length zero.
            if cosine < OPPOSED {
                opponents.push((cosine, index));
            }
        }
        opponents.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let mut budget = removed * total;
        let mut next = kept.clone();
        for (_, index) in opponents {
            let (Some((weight, _)), Some(kept)) = (steps.points.get(index), next.get_mut(index)) else {
                continue;
            };
            budget -= weight;
            if budget < 0.0 {
                break;
            }
            *kept = 0.0;
        }
        if next == remaining {
            break;
        }
        remaining = next;
    }
    remaining
}
