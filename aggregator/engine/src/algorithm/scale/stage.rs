//! First stage of a campaign with feature scaling: computes the scale from sums of the features over the
//! fleet.

use fedspan_protocol::message::{HeadSolve, Task};
use fedspan_protocol::tensor::{Encoding, Role, SUMS_COLUMNS, TensorDescriptor};

use super::sums::{FeatureMoments, FeatureSums, are_possible};
use super::{Scale, Scaled};
use crate::aggregate::UpdateWeight;
use crate::algorithm::Algorithm;
use crate::linalg::{Matrix, RankDeficient};
use crate::types::{DeviceId, Request, Tensor};

/// Start (rounds before training) that computes the scale. All devices send the sums of their features in two
/// rounds, each with half of the features, since a device has memory for no more. The rounds of a start that
/// computes the initial representation may follow, on scaled samples.
pub struct FleetScale {
    features: usize,
    /// Largest sample count that a device may declare.
    max_samples: u32,
    /// Moments of the features of all finished rounds.
    moments: Vec<FeatureMoments>,
    sums: FeatureSums,
    next_start: Option<Scaled>,
    empty: Matrix,
}

impl FleetScale {
    /// Creates the stage for samples of `features` values and at most `max_samples` per device, followed by
    /// `start`, if any.
    #[must_use]
    pub fn new(features: usize, max_samples: u32, start: Option<Box<dyn Algorithm>>) -> Self {
        let next_start = start.map(|start| Scaled::new(start, Scale::identity(features)));
        let mut stage = Self {
            features,
            max_samples,
            moments: Vec::new(),
            sums: FeatureSums::default(),
            next_start,
            empty: Matrix::zeros(0, 0),
        };
        stage.start_round();
        stage
    }

    /// Largest number of features in one round.
    fn features_per_round(&self) -> usize {
        self.features.div_ceil(2).max(1)
    }

    /// Number of features whose sums the next round collects; 0 after the last of these rounds.
    fn next_count(&self) -> usize {
        (self.features - self.moments.len()).min(self.features_per_round())
    }

    /// Creates empty sums for the next round. After the last of these rounds, passes the scale to the next
    /// start.
    fn start_round(&mut self) {
        self.sums = FeatureSums::new(self.next_count());
        if self.next_count() == 0
            && let Some(next_start) = &mut self.next_start
        {
            next_start.set_scale(&Scale::standard(&self.moments));
        }
    }

    /// The next start, if the scale is known; `None` while sums are collected.
    fn active_start(&self) -> Option<&Scaled> {
        self.next_start.as_ref().filter(|_| self.next_count() == 0)
    }

    /// Mutable version of [`Self::active_start`].
    fn active_start_mut(&mut self) -> Option<&mut Scaled> {
        let is_scale_known = self.next_count() == 0;
        self.next_start.as_mut().filter(|_| is_scale_known)
    }
}

fn to_u16(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

impl Algorithm for FleetScale {
    fn request(&self) -> Request {
        if let Some(next_start) = self.active_start() {
            return next_start.request();
        }
        let (first, count) = (to_u16(self.moments.len()), to_u16(self.next_count()));
        let sums = TensorDescriptor::inline(Role::FeatureSums, Encoding::F32, count, SUMS_COLUMNS);
        Request {
            task: Task::FeatureSums { first, count },
            tensors: Vec::new(),
            encoding: Encoding::F32,
            expects: vec![sums],
        }
    }

    fn requests(&self) -> Vec<Request> {
        // No later round has more features than the first, so the request of the first covers all rounds.
        let sums = Self::new(self.features, self.max_samples, None).request();
        std::iter::once(sums).chain(self.next_start.iter().flat_map(Algorithm::requests)).collect()
    }

    fn admits(&self, samples: u32, tensors: &[Tensor]) -> bool {
        match (self.active_start(), tensors) {
            (Some(next_start), _) => next_start.admits(samples, tensors),
            // Sums cannot be reduced to a smaller sample count, so updates with larger counts are rejected.
            (None, [sums]) => samples <= self.max_samples && are_possible(samples, &sums.values),
            (None, _) => false,
        }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        match (self.active_start_mut(), tensors) {
            (Some(next_start), _) => next_start.absorb(device, weight, tensors),
            (None, [sums]) => {
                self.sums.absorb(weight.samples, &sums.values);
            }
            (None, _) => {}
        }
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        if let Some(next_start) = self.active_start_mut() {
            return next_start.finish();
        }
        if let Some(moments) = self.sums.moments() {
            self.moments.extend(moments);
            self.start_round();
        }
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        self.next_start.as_ref().map_or(&self.empty, Algorithm::representation)
    }

    fn basis(&self) -> Option<&Matrix> {
        self.next_start.as_ref().map(Algorithm::representation)
    }

    fn scale(&self) -> Option<Scale> {
        (self.next_count() == 0).then(|| Scale::standard(&self.moments))
    }

    fn fit_request(&self, _head: HeadSolve) -> Request {
        self.request()
    }

    #[allow(clippy::cast_precision_loss, reason = "a number of features")]
    fn state(&self) -> Vec<f64> {
        let known_moments = self.moments.iter().copied();
        let padded_moments = known_moments
            .chain(std::iter::repeat_n(FeatureMoments::default(), self.features - self.moments.len()));
        let next_start = self.next_start.as_ref().map(Algorithm::state);
        [self.moments.len() as f64]
            .into_iter()
            .chain(padded_moments.flat_map(|moments| [moments.mean, moments.deviation]))
            .chain(next_start.into_iter().flatten())
            .collect()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let Some((known_count, values)) = state.split_first() else { return false };
        let Some((moments, next_start)) = values.split_at_checked(2 * self.features) else { return false };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "written by `state`")]
        let known_count = *known_count as usize;
        if known_count > self.features {
            return false;
        }
        let (pairs, _) = moments.as_chunks();
        let moments = pairs
            .iter()
            .take(known_count)
            .map(|&[mean, deviation]| FeatureMoments { mean, deviation })
            .collect();
        let restored =
            self.next_start.as_mut().map_or(next_start.is_empty(), |start| start.restore(next_start));
        if restored {
            self.moments = moments;
            self.start_round();
        }
        restored
    }

    fn rounds_needed(&self) -> u32 {
        let sums = u32::try_from(self.features.div_ceil(self.features_per_round())).unwrap_or(u32::MAX);
        sums.saturating_add(self.next_start.as_ref().map_or(0, Algorithm::rounds_needed))
    }
}
