//! Collection of single samples into groups of four, in memory of the model ([`Gathering`](crate::memory::Gathering)): a group
//! takes at most half of the instructions of four single samples, and gives the same bits.

use super::sample_pass::FOUR_OUTPUTS_MAX;
use crate::source::{Samples, Targets};

/// Samples that wait for the rest of their group.
#[derive(Debug)]
pub struct Gather {
    /// Number of samples, below four between two calls.
    count: usize,
    /// True if the targets are classes.
    has_classes: bool,
    values: [f32; 4 * FOUR_OUTPUTS_MAX],
    classes: [u8; 4],
}

impl Gather {
    /// Creates an empty group.
    pub const fn new() -> Self {
        Self { count: 0, has_classes: false, values: [0.0; 4 * FOUR_OUTPUTS_MAX], classes: [0; 4] }
    }

    /// Returns the number of samples.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds a sample, whose features go to `memory` (4 d values). Returns false and does nothing if the memory is too small,
    /// or the target is missing or of another kind.
    pub fn push(
        &mut self,
        memory: &mut [f32],
        x: &[f32],
        targets: Targets<'_>,
        index: usize,
        outputs: usize,
    ) -> bool {
        let has_classes = matches!(targets, Targets::Classes(_));
        let Some(row) = memory.chunks_exact_mut(x.len().max(1)).nth(self.count) else { return false };
        if self.count > 0 && has_classes != self.has_classes {
            return false;
        }
        match targets {
            Targets::Values(values) => {
                let values = values.get(index * outputs..(index + 1) * outputs);
                let targets = self.values.get_mut(self.count * outputs..(self.count + 1) * outputs);
                let (Some(values), Some(targets)) = (values, targets) else { return false };
                copy(targets, values);
            }
            Targets::Classes(classes) => {
                let (Some(class), Some(target)) = (classes.get(index), self.classes.get_mut(self.count))
                else {
                    return false;
                };
                *target = *class;
            }
        }
        copy(row, x);
        self.has_classes = has_classes;
        self.count += 1;
        true
    }

    /// Returns the samples, whose features are in `memory`, and leaves the group empty.
    pub fn take<'a>(&'a mut self, memory: &'a [f32], features: usize, outputs: usize) -> Samples<'a> {
        let count = core::mem::take(&mut self.count);
        let targets = if self.has_classes {
            Targets::Classes(self.classes.get(..count).unwrap_or_default())
        } else {
            Targets::Values(self.values.get(..count * outputs).unwrap_or_default())
        };
        Samples { x: memory.get(..count * features).unwrap_or_default(), targets }
    }
}

/// Copies values up to the end of the shorter slice, four at a time.
fn copy(targets: &mut [f32], values: &[f32]) {
    let ((target_fours, targets), (fours, values)) = (targets.as_chunks_mut::<4>(), values.as_chunks::<4>());
    for (target, &[v0, v1, v2, v3]) in target_fours.iter_mut().zip(fours) {
        *target = [v0, v1, v2, v3];
    }
    for (target, value) in targets.iter_mut().zip(values) {
        *target = *value;
    }
}
