//! What of a round's updates an algorithm keeps, and what it makes of them when the round closes.

use std::collections::BTreeMap;

use fedspan_protocol::tensor::Role;

use super::{
    FixedPointMean, Rule, SampleCap, UpdateWeight, Weighted, geometric_median, projector_geometric_median,
    projector_mean, trimmed_mean,
};
use crate::linalg::{Matrix, RankDeficient, from_f32, orthonormal};
use crate::types::{DeviceId, Tensor, Weighting};

/// The updates of a round under a rule: a running sum for the mean, all of them for the others (4 bytes a value and
/// device, 8 more while the round closes).
#[derive(Clone, Debug)]
pub struct RoundAggregate {
    rule: Rule,
    weighting: Weighting,
    buffer: Buffer,
}

#[derive(Clone, Debug)]
enum Buffer {
    Sum(FixedPointMean),
    /// Shares and values, in order of devices.
    All(BTreeMap<DeviceId, (UpdateWeight, Vec<f32>)>),
}

impl RoundAggregate {
    /// Nothing yet, for updates of `length` values in all their tensors.
    #[must_use]
    pub fn new(rule: Rule, weighting: Weighting, length: usize) -> Self {
        let buffer = match rule {
            Rule::Mean => Buffer::Sum(FixedPointMean::new(length)),
            Rule::GeometricMedian
            | Rule::TrimmedMean { .. }
            | Rule::ProjectorMean
            | Rule::ProjectorGeometricMedian => Buffer::All(BTreeMap::new()),
        };
        Self { rule, weighting, buffer }
    }

    /// The rule.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Adds a device's update, its tensors one after the other. Its samples are bounded already by what any
    /// device may declare.
    pub fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        let parts = tensors.iter().map(|tensor| tensor.values.as_slice());
        match &mut self.buffer {
            Buffer::Sum(mean) => mean.absorb(weight.weight(self.weighting), parts),
            Buffer::All(all) => {
                all.insert(device, (weight, parts.collect::<Vec<_>>().concat()));
            }
        }
    }

    /// Whether an update can be used at all: a representation needs full rank, as a round may have no other.
    #[must_use]
    pub fn admits(&self, tensors: &[Tensor]) -> bool {
        match tensors {
            [update] if update.role == Role::Representation => {
                basis(update.rows, update.cols, &update.values).is_ok()
            }
            _ => true,
        }
    }

    /// What the rule makes of the numbers absorbed, and forgets them; `None` if there were none. `center` is the
    /// point that updates are steps from (zero where it is shorter): a model that was sent, or nothing for gradients.
    pub fn take_vector(&mut self, center: &[f64]) -> Option<Vec<f64>> {
        match &mut self.buffer {
            Buffer::Sum(mean) => {
                let value = mean.value();
                mean.reset();
                value
            }
            Buffer::All(all) => {
                let all = std::mem::take(all);
                let weights = weights(self.weighting, &all);
                let heaviest = |part| heaviest(weights.clone(), part);
                let updates: Vec<Weighted<'_>> = all
                    .values()
                    .zip(weights.iter().copied())
                    .map(|((_, values), weight)| Weighted { weight, values })
                    .collect();
                let absorbed = !updates.is_empty();
                absorbed.then(|| match self.rule {
                    // As many devices as it is to withstand may have more of the weight.
                    Rule::TrimmedMean { trim } => trimmed_mean(&updates, trim.max(heaviest(trim))),
                    // Numbers under a rule for subspaces are combined by `Rule::for_vectors`; a mean keeps no updates.
                    Rule::GeometricMedian
                    | Rule::Mean
                    | Rule::ProjectorMean
                    | Rule::ProjectorGeometricMedian => geometric_median(&updates, center),
                })
            }
        }
    }

    /// What a rule for subspaces makes of the bases absorbed, and forgets them; `None` if there were none.
    /// `reference` (d x k) is the basis that the result is nearest to.
    ///
    /// # Errors
    /// [`RankDeficient`] if they span fewer than k directions.
    pub fn take_subspace(&mut self, reference: &Matrix) -> Result<Option<Matrix>, RankDeficient> {
        let Buffer::All(all) = &mut self.buffer else { return Ok(None) };
        let all = std::mem::take(all);
        let weights = weights(self.weighting, &all);
        let (d, k) = reference.shape();
        // What has no full rank was not admitted.
        let bases: Vec<(f64, Matrix)> = all
            .values()
            .zip(weights)
            .filter_map(|((_, values), weight)| Some((weight, orthonormal(&from_f32(d, k, values)).ok()?)))
            .collect();
        if bases.is_empty() {
            return Ok(None);
        }
        let space = match self.rule {
            Rule::ProjectorMean => projector_mean(&bases, reference)?,
            // Only the two rules for subspaces are asked for a subspace.
            Rule::ProjectorGeometricMedian
            | Rule::Mean
            | Rule::GeometricMedian
            | Rule::TrimmedMean { .. } => projector_geometric_median(&bases, reference)?,
        };
        Ok(Some(space))
    }
}

fn basis(rows: u16, cols: u16, values: &[f32]) -> Result<Matrix, RankDeficient> {
    orthonormal(&from_f32(rows.into(), cols.into(), values))
}

/// What part of the weight the heaviest `part` of the devices has.
fn heaviest(mut weights: Vec<f64>, part: f64) -> f64 {
    weights.sort_by(|a, b| b.total_cmp(a));
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded down")]
    let devices = (part * weights.len() as f64) as usize;
    let total: f64 = weights.iter().sum();
    weights.iter().take(devices).sum::<f64>() / total.max(f64::MIN_POSITIVE)
}

/// Weights in order of devices, each bounded by what the others declare.
fn weights(weighting: Weighting, all: &BTreeMap<DeviceId, (UpdateWeight, Vec<f32>)>) -> Vec<f64> {
    let mut declared: Vec<u32> = all.values().map(|(weight, _)| weight.samples).collect();
    declared.sort_unstable();
    let bound = SampleCap { max_samples: u32::MAX, relative: true }.bound(&declared);
    let capped = |weight: &UpdateWeight| UpdateWeight { samples: weight.samples.min(bound), ..*weight };
    all.values().map(|(weight, _)| f64::from(capped(weight).weight(weighting))).collect()
}
