//! Rehearsal of the open round: its result for updates that the campaign has not received.
//!
//! A simulation of attackers that know the server uses it to try updates. The checks, the rule and the step are those
//! of the campaign, on a copy of the algorithm.

use super::updates::check_update;
use super::{Engine, OpenRound, Phase};
use crate::aggregate::UpdateWeight;
use crate::algorithm::Algorithm;
use crate::linalg::Matrix;
use crate::types::{DeviceId, Update};

/// Copy of the open round, with the updates that have counted so far.
pub struct Rehearsal<'a> {
    algorithm: Box<dyn Algorithm>,
    round: &'a OpenRound,
    norm_bound: f32,
    max_samples: u32,
    is_start: bool,
}

impl Engine {
    /// Copies the open round of a start or of training; `None` without such a round, or if the algorithm cannot be
    /// copied.
    #[must_use]
    pub fn rehearsal(&self) -> Option<Rehearsal<'_>> {
        let round = self.open.as_ref()?;
        let (algorithm, is_start) = match (&self.start, self.phase) {
            (Some(start), Phase::Start(_)) => (start, true),
            (_, Phase::Train(_)) => (&self.algorithm, false),
            _ => return None,
        };
        Some(Rehearsal {
            algorithm: algorithm.copy()?,
            round,
            norm_bound: self.settings.norm_bound,
            max_samples: self.settings.samples.max_samples,
            is_start,
        })
    }
}

impl Rehearsal<'_> {
    /// Copies the rehearsal with the updates that it has received; `None` if the algorithm cannot be copied.
    #[must_use]
    pub fn copy(&self) -> Option<Self> {
        Some(Self { algorithm: self.algorithm.copy()?, ..*self })
    }

    /// Receives the update of a device. Returns whether it counts.
    pub fn receive(&mut self, device: DeviceId, update: &Update) -> bool {
        let counts = self.round.cohort.contains(&device)
            && check_update(update, &self.round.broadcast.request.expects, self.norm_bound).is_ok()
            && self.algorithm.admits(update.samples, &update.tensors);
        if counts {
            let samples = update.samples.min(self.max_samples);
            let weight = match self.is_start {
                true => UpdateWeight::from_samples(samples),
                false => self.round.update_weight(device, samples),
            };
            self.algorithm.absorb(device, weight, &update.tensors);
        }
        counts
    }

    /// Closes the round, and returns the representation with which the next round would begin. A round whose result has
    /// no full rank leaves the representation as it was.
    #[must_use]
    pub fn close(mut self) -> Matrix {
        // The algorithm is unchanged after an error.
        let _ = self.algorithm.finish();
        self.algorithm.representation().clone()
    }
}
