//! Search: attackers who know the server and the truth try every candidate of a list in a rehearsal of the round,
//! and send the one after which the representation is farthest from the truth.
//!
//! A candidate is a direction for each attacker, and a length that all of them share. The rehearsal has the checks,
//! the rule and the step of the campaign itself ([`Engine::rehearsal`]). The search is greedy: it looks at the end of
//! this round only. Attackers know the honest updates of the round that arrive before or together with theirs.

use std::collections::BTreeMap;

use fedspan_engine::linalg::{
    Matrix, complement, from_f32, principal_angle_distance, product_transposed, top_eigenspace,
};
use fedspan_engine::{DeviceId, Engine, Rehearsal, RoundBroadcast, Update};
use fedspan_protocol::tensor::Role;

use super::drift::{drifting_head, rank_one_step, wrong_direction};
use super::{Attackers, norm, replace_step};
use crate::scenario::Attack;

/// Fraction of the honest norms that are at most the base of the lengths: the clip of the spectral filter for a
/// fifth of attackers.
const CLIP: f64 = 0.75;
/// Lengths of candidates, as multiples of that norm.
const LENGTHS: [f64; 3] = [1.0, 0.5, 1.5];
/// Directions of candidates.
const DIRECTIONS: [Direction; 8] = [
    Direction::Of(Attack::SignFlip(1.0)),
    Direction::Of(Attack::InnerProduct(1.0)),
    Direction::Of(Attack::OpposingRankOne(Some(1))),
    Direction::Of(Attack::OpposingRankOne(Some(2))),
    Direction::Of(Attack::OpposingRankOne(None)),
    Direction::Of(Attack::Drift(1.0)),
    Direction::Away { own_heads: false },
    Direction::Away { own_heads: true },
];

/// Direction of the attackers' steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Direction {
    /// Direction of another attack.
    Of(Attack),
    /// Rank-one step that enlarges the largest principal angle between representation and truth, in the head direction
    /// of that angle. With `own_heads`, every attacker adds a random head of the same norm.
    Away { own_heads: bool },
}

/// Knowledge of the attackers of a round, apart from the campaign.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    /// Broadcast of the round.
    pub opening: &'a RoundBroadcast,
    /// Point from which steps are measured.
    pub base: &'a [f64],
    /// Honest steps.
    pub steps: &'a [&'a Vec<f64>],
    /// Honest updates that the server has not yet received.
    pub honest: &'a [(usize, Update)],
    /// Updates that the attackers computed honestly, with their steps.
    pub own: &'a [(usize, Update, Vec<f64>)],
}

/// Steps of the attackers in one candidate.
type Steps = BTreeMap<usize, Vec<f64>>;

impl Attackers {
    /// Steps that the attackers send: the best of the first `count` candidates. `None` if the round cannot be rehearsed.
    pub(super) fn search(&self, count: u16, engine: &Engine, known: Known<'_>) -> Option<Steps> {
        let mut rehearsal = engine.rehearsal()?;
        for (index, update) in known.honest {
            rehearsal.receive(DeviceId(*index as u64), update);
        }
        let honest = rehearsal.copy()?.close();
        let truth = self.truth.as_ref().filter(|truth| truth.nrows() == honest.nrows());
        let target = truth.unwrap_or(&honest);
        let candidates = self.candidates(known).into_iter().take(usize::from(count));
        farthest(candidates, |candidate| {
            let rehearsed = self.rehearsed(&rehearsal, candidate, known);
            rehearsed.map_or(f64::NEG_INFINITY, |result| principal_angle_distance(&result, target))
        })
    }

    /// Representation after the round if the attackers send these steps.
    fn rehearsed(&self, rehearsal: &Rehearsal<'_>, steps: &Steps, known: Known<'_>) -> Option<Matrix> {
        let mut rehearsal = rehearsal.copy()?;
        for (index, computed, _) in known.own {
            let mut update = computed.clone();
            if let Some(step) = steps.get(index) {
                replace_step(&mut update, step, known.base);
            }
            update.samples = self.attack.samples.unwrap_or(update.samples);
            rehearsal.receive(DeviceId(*index as u64), &update);
        }
        Some(rehearsal.close())
    }

    /// All candidates: every direction with the first length, with the second, with the third, and at last what the
    /// attackers computed.
    fn candidates(&self, known: Known<'_>) -> Vec<Steps> {
        let base_length = quantile_of_norms(known.steps, CLIP);
        let mut candidates = Vec::new();
        for length in LENGTHS.map(|length| length * base_length) {
            for direction in DIRECTIONS {
                let step = |index: usize, own: &[f64]| {
                    with_norm(self.direction(direction, index, own, known), length)
                };
                candidates
                    .push(known.own.iter().map(|(index, _, own)| (*index, step(*index, own))).collect());
            }
        }
        candidates.push(known.own.iter().map(|(index, _, own)| (*index, own.clone())).collect());
        candidates
    }

    /// Step of any norm in a direction.
    fn direction(&self, direction: Direction, index: usize, own: &[f64], known: Known<'_>) -> Vec<f64> {
        match direction {
            Direction::Of(kind) => self.attacked_step(kind, index, own, known.steps, known.opening),
            Direction::Away { own_heads } => {
                let Some(expected) = known.opening.request.expects.first() else { return own.to_vec() };
                let (d, k) = (usize::from(expected.rows), usize::from(expected.cols));
                let (u, mut head) = self.largest_angle(d, k, known.opening);
                if own_heads {
                    let random = &mut self.attacker_stream(index, known.opening);
                    let drawn: Vec<f64> = (0..k).map(|_| random.normal()).collect();
                    let factor = 1.0 / norm(&drawn).max(f64::MIN_POSITIVE);
                    head.iter_mut().zip(&drawn).for_each(|(head, drawn)| *head += factor * drawn);
                }
                // The server subtracts gradients, and takes other uploads as they are.
                let sign = if expected.role == Role::Gradient { -1.0 } else { 1.0 };
                rank_one_step(&u, &head, sign, own.len())
            }
        }
    }

    /// Direction in which the sent representation is farthest from the truth, and the head of norm 1 that belongs to
    /// it. Without a truth or a representation, those of a drift.
    fn largest_angle(&self, d: usize, k: usize, opening: &RoundBroadcast) -> (Vec<f64>, Vec<f64>) {
        let sent = opening.request.tensors.first();
        let sent = sent.filter(|sent| (usize::from(sent.rows), usize::from(sent.cols)) == (d, k));
        if let (Some(sent), Some(truth)) = (sent, self.truth.as_ref().filter(|truth| truth.nrows() == d)) {
            let error = complement(truth, &from_f32(d, k, &sent.values));
            let head = top_eigenspace(&product_transposed(&error, &error), 1);
            let direction = &error * &head;
            if direction.norm() > 0.0 {
                return (direction.iter().copied().collect(), head.iter().copied().collect());
            }
        }
        let head = with_norm(drifting_head(k, 0, self.seed), 1.0);
        (wrong_direction(d, self.truth.as_ref(), self.seed), head)
    }
}

/// First of the candidates with the largest distance; a distance that is not a number counts as none.
fn farthest<T>(candidates: impl Iterator<Item = T>, mut distance: impl FnMut(&T) -> f64) -> Option<T> {
    let mut best: Option<(f64, T)> = None;
    for candidate in candidates {
        let reached = distance(&candidate);
        let reached = if reached.is_nan() { f64::NEG_INFINITY } else { reached };
        if best.as_ref().is_none_or(|(most, _)| reached > *most) {
            best = Some((reached, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Smallest norm that at least this fraction of the steps does not exceed; 0 without steps.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a fraction of a count"
)]
fn quantile_of_norms(steps: &[&Vec<f64>], fraction: f64) -> f64 {
    let mut norms: Vec<f64> = steps.iter().map(|step| norm(step)).collect();
    norms.sort_by(f64::total_cmp);
    let index = (fraction * norms.len() as f64).ceil() as usize;
    norms.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Step scaled to a norm; a step of zeros is unchanged.
fn with_norm(step: Vec<f64>, length: f64) -> Vec<f64> {
    let factor = length / norm(&step).max(f64::MIN_POSITIVE);
    step.into_iter().map(|value| value * factor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::SEARCH_CANDIDATES;
    use fedspan_engine::random::{Purpose, stream};

    /// The list has as many candidates as the scenario allows.
    #[test]
    fn list_has_all_candidates() {
        assert_eq!(LENGTHS.len() * DIRECTIONS.len() + 1, usize::from(SEARCH_CANDIDATES));
    }

    /// No candidate is farther than the one that is found, and of equal ones the first is found. Distances that are not
    /// numbers are never chosen if there is another.
    #[test]
    fn found_candidate_is_the_farthest() {
        let random = &mut stream(3, Purpose::Attack, 0);
        for count in 1..60 {
            let mut distances: Vec<f64> = (0..count).map(|_| random.below(20) as f64 / 20.0).collect();
            if count > 2 {
                distances.iter_mut().step_by(3).for_each(|distance| *distance = f64::NAN);
            }
            let found = farthest(distances.iter().enumerate(), |(_, distance)| **distance);
            assert!(found.is_some_and(|(found, most)| {
                distances.iter().all(|distance| distance.is_nan() || distance <= most)
                    && distances.iter().take(found).all(|distance| distance.is_nan() || distance < most)
            }));
        }
        assert_eq!(
            farthest([f64::NAN].iter(), |distance| **distance).map(|found| found.is_nan()),
            Some(true)
        );
        assert_eq!(farthest(std::iter::empty::<f64>(), |distance| *distance), None);
    }

    #[test]
    fn quantile_is_the_smallest_norm_that_covers_the_fraction() {
        let steps: Vec<Vec<f64>> = [4.0, 1.0, 3.0, 2.0].map(|value| vec![0.0, value]).to_vec();
        let steps: Vec<&Vec<f64>> = steps.iter().collect();
        assert_eq!([0.25, 0.5, 0.75, 1.0].map(|part| quantile_of_norms(&steps, part)), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(quantile_of_norms(&[], 0.75), 0.0);
        assert_eq!(norm(&with_norm(vec![3.0, 4.0], 2.0)), 2.0);
    }
}
