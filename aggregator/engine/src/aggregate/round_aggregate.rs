//! Collection of the updates of a round, which the aggregation rule combines when the round closes.

use std::collections::BTreeMap;

use fedspan_protocol::tensor::Role;

use super::{FixedPointMean, Rule, SampleCap, UpdateWeight, Weighted};
use crate::linalg::{Matrix, RankDeficient, from_f32, orthonormal};
use crate::types::{DeviceId, Tensor, Weighting};

/// Updates of one round. For the mean it is a running sum; for other rules it contains all updates (4 bytes
/// per value and device, and 8 more while the round closes).
#[derive(Clone, Debug)]
pub struct RoundAggregate {
    rule: Rule,
    weighting: Weighting,
    buffer: Buffer,
}

/// Storage of the updates.
#[derive(Clone, Debug)]
enum Buffer {
    /// Running sum of all updates.
    Sum(FixedPointMean),
    /// Weight and values of each update, in the order of devices.
    All(BTreeMap<DeviceId, (UpdateWeight, Vec<f32>)>),
}

impl RoundAggregate {
    /// Creates an empty collection for updates whose tensors together have `length` values.
    #[must_use]
    pub fn new(rule: Rule, weighting: Weighting, length: usize) -> Self {
        let buffer = match rule.needs_all_updates() {
            false => Buffer::Sum(FixedPointMean::new(length)),
            true => Buffer::All(BTreeMap::new()),
        };
        Self { rule, weighting, buffer }
    }

    /// Rule that combines the updates.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Adds a device's update, with its tensors concatenated. The caller must have capped the sample count at
    /// the maximum for one device.
    pub fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        let parts = tensors.iter().map(|tensor| tensor.values.as_slice());
        match &mut self.buffer {
            Buffer::Sum(mean) => mean.absorb(weight.weight(self.weighting), parts),
            Buffer::All(all) => {
                all.insert(device, (weight, parts.collect::<Vec<_>>().concat()));
            }
        }
    }

    /// Whether an update can be used. A representation must have full rank, since it may be the only update
    /// of the round.
    #[must_use]
    pub fn admits(&self, tensors: &[Tensor]) -> bool {
        match tensors {
            [update] if update.role == Role::Representation => {
                basis(update.rows, update.cols, &update.values).is_ok()
            }
            _ => true,
        }
    }

    /// Combines the absorbed updates as vectors and discards them; `None` without updates. `center` is the
    /// point from which updates deviate, extended by zeros: the broadcast model if devices upload models, or
    /// empty if they upload gradients.
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
                let updates: Vec<Weighted<'_>> = all
                    .values()
                    .zip(weights)
                    .map(|((_, values), weight)| Weighted { weight, values })
                    .collect();
                (!updates.is_empty()).then(|| self.rule.combine(&updates, center))
            }
        }
    }

    /// Combines the absorbed updates as bases, by a rule for subspaces, and discards them. `None` without
    /// updates, or if the rule is not for subspaces. The result is the basis (d x k) of the combined subspace
    /// that is nearest to `reference`.
    ///
    /// # Errors
    /// [`RankDeficient`] if the bases span fewer than k directions.
    pub fn take_subspace(&mut self, reference: &Matrix) -> Result<Option<Matrix>, RankDeficient> {
        let Buffer::All(all) = &mut self.buffer else { return Ok(None) };
        let all = std::mem::take(all);
        let weights = weights(self.weighting, &all);
        let (d, k) = reference.shape();
        // The filter discards nothing, since updates without full rank were not admitted.
        let bases: Vec<(f64, Matrix)> = all
            .values()
            .zip(weights)
            .filter_map(|((_, values), weight)| Some((weight, orthonormal(&from_f32(d, k, values)).ok()?)))
            .collect();
        if bases.is_empty() {
            return Ok(None);
        }
        let rule = self.rule.as_subspace_rule();
        rule.map(|rule| rule.combine_subspaces(&bases, reference)).transpose()
    }
}

/// Orthonormal basis of an uploaded representation.
fn basis(rows: u16, cols: u16, values: &[f32]) -> Result<Matrix, RankDeficient> {
    orthonormal(&from_f32(rows.into(), cols.into(), values))
}

/// Weights in the order of devices. Sample counts are bounded relative to those of the other devices.
fn weights(weighting: Weighting, all: &BTreeMap<DeviceId, (UpdateWeight, Vec<f32>)>) -> Vec<f64> {
    let mut declared: Vec<u32> = all.values().map(|(weight, _)| weight.samples).collect();
    declared.sort_unstable();
    let bound = SampleCap { max_samples: u32::MAX, relative: true }.bound(&declared);
    let capped = |weight: &UpdateWeight| UpdateWeight { samples: weight.samples.min(bound), ..*weight };
    all.values().map(|(weight, _)| f64::from(capped(weight).weight(weighting))).collect()
}
