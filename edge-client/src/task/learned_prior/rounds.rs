//! Rounds of models with a learned prior: the implementation of [`Task`] for [`LearnedPrior`].

use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::limits::PRIORS_MAX;
use fedspan_protocol::message::{
    Capabilities, DeclineReason, Descriptors, GeometricGrid, HeadSolve, Model, Numeric, Privacy, RoundId,
    RoundOpen, Task as Wire, TaskKind,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use super::draws::Draw;
use super::posterior::Factors;
use super::{
    BASIS, Buffers, HEAD, LearnedPrior, PRECISION, PRODUCTS, SCORE, SCORES, are_variances, draws, posterior,
};
use crate::kernel::posterior::packed_len;
use crate::kernel::vector::put;
use crate::memory::Shape;
use crate::source::{SampleSource, Targets};
use crate::task::{Task, Usage};

/// Tasks of the model.
pub(in crate::task) const TASKS: u32 = TaskKind::FitHead.bit()
    | TaskKind::PooledMoments.bit()
    | TaskKind::HeadMoments.bit()
    | TaskKind::PriorEvidence.bit()
    | TaskKind::NewcomerGradient.bit();

/// Roles of the tensors that the model sends.
const ROLES: u32 = Role::SecondMoments.bit()
    | Role::CrossMoments.bit()
    | Role::HeadMoments.bit()
    | Role::HeadSums.bit()
    | Role::PriorEvidence.bit()
    | Role::NewcomerGradient.bit()
    | Role::NewcomerError.bit();

/// Number of values of [`Role::HeadSums`].
const HEAD_SUMS: usize = 3;

/// Number of values of [`Role::NewcomerError`].
const NEWCOMER_ERROR: usize = 2;

/// Returns the number of priors of a grid.
fn priors(spans: GeometricGrid, floors: GeometricGrid) -> usize {
    usize::from(spans.count) * usize::from(floors.count)
}

/// Returns true if the grids of a round of evidence are possible: finite, not negative, floors above zero, and of at most
/// [`PRIORS_MAX`] priors.
fn valid_grids(spans: GeometricGrid, floors: GeometricGrid) -> bool {
    let is_valid = |grid: GeometricGrid| grid.values().all(|value| value >= 0.0 && value.is_finite());
    let are_above_zero = floors.values().all(|value| value > 0.0);
    (1..=PRIORS_MAX).contains(&priors(spans, floors)) && is_valid(spans) && is_valid(floors) && are_above_zero
}

/// Returns the least and the largest number of a grid.
fn least_and_largest(grid: GeometricGrid) -> (f32, f32) {
    grid.values().fold((f32::INFINITY, 0.0), |(least, largest), value| (least.min(value), largest.max(value)))
}

/// Returns `part / whole`; 0 if there is nothing.
fn fraction(part: u32, whole: u32) -> f32 {
    to_f32(part) / to_f32(whole.max(1))
}

#[allow(clippy::cast_precision_loss, reason = "counts above 2^24 may round")]
fn to_f32(count: u32) -> f32 {
    count as f32
}

impl<V: AsRef<[f32]> + AsMut<[f32]>> LearnedPrior<V> {
    /// Returns a descriptor of a tensor of this role, with rows and columns.
    fn descriptor(role: Role, rows: usize, cols: usize) -> TensorDescriptor {
        let side = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        TensorDescriptor::inline(role, Encoding::F32, side(rows), side(cols))
    }

    /// Returns the descriptors of the tensors of a prior, with or without a mean and a metric.
    pub(in crate::task) fn prior_descriptors(
        &self,
        has_mean: bool,
        has_metric: bool,
    ) -> impl Iterator<Item = TensorDescriptor> {
        let Shape { features: d, width: k, outputs: c } = self.state.shape;
        let tensors = [
            (true, Role::Representation, d, k),
            (has_mean, Role::PriorMean, d, c),
            (has_metric, Role::SecondMoments, 1, packed_len(d)),
            (true, Role::PriorVariances, 1, k + 1),
        ];
        tensors
            .into_iter()
            .filter(|tensor| tensor.0)
            .map(|(_, role, rows, cols)| Self::descriptor(role, rows, cols))
    }

    /// Fits the head under the prior in memory.
    pub(super) fn fit_posterior(
        &mut self,
        head: HeadSolve,
        id: RoundId,
        source: &mut dyn SampleSource,
    ) -> Result<Usage, DeclineReason> {
        let HeadSolve::Prior { noise } = head else { return Err(DeclineReason::Parameter) };
        let (shape, has_metric) = (self.state.shape, self.state.receives_metric);
        (self.state.head, self.state.noise) = (None, None);
        let mut buffers = self.buffers();
        let usage = posterior::fit(&mut buffers, shape, has_metric, id, source)?;
        if !posterior::add_mean(&mut buffers) {
            return Err(DeclineReason::UpdateNonFinite);
        }
        (self.state.head, self.state.noise) = (self.state.prior, Some(noise));
        Ok(usage)
    }

    /// Returns true if the parameters of a task are possible.
    fn has_valid_parameters(task: &Wire) -> bool {
        let is_variance = |noise: f32| noise >= 0.0 && noise.is_finite();
        match *task {
            Wire::FitHead { head: HeadSolve::Prior { noise } } | Wire::HeadMoments { noise } => {
                is_variance(noise)
            }
            Wire::PriorEvidence { spans, floors, .. } => valid_grids(spans, floors),
            Wire::NewcomerGradient { draws, .. } => draws > 0,
            Wire::PooledMoments => true,
            _ => false,
        }
    }

    /// Computes the open round.
    fn compute(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        let task = self.state.task.ok_or(DeclineReason::Task)?;
        let (shape, has_metric) = (self.state.shape, self.state.receives_metric);
        // Without a sample, the head of the last round is kept.
        posterior::count_samples(&mut self.buffers(), shape, id, source)?;
        if let Wire::NewcomerGradient { labels, .. } = task
            && !draws::leaves_others(&mut self.buffers(), shape, labels.into(), id, source)?
        {
            return Err(DeclineReason::NoSamples);
        }
        (self.state.head, self.state.noise) = (None, None);
        let usage = match task {
            Wire::FitHead { head } => self.fit_posterior(head, id, source)?,
            Wire::PooledMoments => posterior::pooled_moments(&mut self.buffers(), shape, id, source)?,
            Wire::HeadMoments { noise } => {
                let mut buffers = self.buffers();
                let usage = posterior::head_moments(&mut buffers, shape, has_metric, noise, id, source)?;
                let is_finite = posterior::add_mean(&mut buffers) && posterior::are_finite(buffers.basis);
                if !is_finite {
                    return Err(DeclineReason::UpdateNonFinite);
                }
                // The head moments are in place of the representation.
                self.state.head = self.state.prior.take();
                usage
            }
            Wire::PriorEvidence { spans, floors, draws } => {
                let grids = (spans, floors);
                let mut buffers = self.buffers();
                let usage = posterior::evidence(&mut buffers, shape, has_metric, grids, id, source)?;
                let mut tried = 0;
                if draws > 0 && draws::count_classes(&mut buffers, shape, id, source)? {
                    let mut number = 0;
                    for span in spans.values() {
                        for floor in floors.values() {
                            let factors = Factors { has_metric, span, floor };
                            let (correct, predictions) =
                                draws::score(&mut buffers, shape, factors, draws.into(), id, source)?;
                            put(buffers.scores, 3 * number + 2, fraction(correct, predictions));
                            tried = predictions;
                            number += 1;
                        }
                    }
                }
                put(buffers.scores, 3 * priors(spans, floors) + 1, to_f32(tried));
                usage
            }
            Wire::NewcomerGradient { labels, draws, first } => {
                let mut buffers = self.buffers();
                let first = Draw { labels: labels.into(), number: first };
                let usage = draws::newcomer_gradient(
                    &mut buffers,
                    shape,
                    has_metric,
                    (first, draws.into()),
                    id,
                    source,
                )?;
                if !posterior::are_finite(buffers.products) {
                    return Err(DeclineReason::UpdateNonFinite);
                }
                usage
            }
            _ => return Err(DeclineReason::Task),
        };
        self.state.usage = usage;
        if !posterior::are_finite(self.buffer(SCORE).get(..self.state.scored).unwrap_or_default()) {
            return Err(DeclineReason::UpdateNonFinite);
        }
        Ok(usage)
    }
}

impl<V: AsRef<[f32]> + AsMut<[f32]>> Task for LearnedPrior<V> {
    fn capabilities(&self) -> Capabilities {
        let shape = self.state.shape;
        let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let wide = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (d, k, c) = (shape.features, shape.width, shape.outputs);
        let (packed, head, basis) = (packed_len(d), d.saturating_mul(c), d.saturating_mul(k));
        let metric = if self.state.has_metric_buffer { packed } else { 0 };
        let down = metric.saturating_add(head).saturating_add(basis).saturating_add(k + 1);
        let up = packed.saturating_add(head).max(basis.saturating_add(SCORES)).max(SCORES);
        Capabilities {
            frame_limit: 0,
            model: Model::linear(small(d), small(k), small(c)),
            tasks: TASKS,
            roles: ROLES,
            encodings: Encoding::F32.bit() | Encoding::F16.bit() | Encoding::I8.bit(),
            numeric: Numeric::F32,
            tensors: if self.state.has_metric_buffer { 4 } else { 3 },
            tensor_elements: wide(packed.max(head).max(basis).max(SCORES)),
            total_elements: wide(down.max(up)),
            privacy: Privacy::None,
        }
    }

    fn streamed_tasks(&self) -> u32 {
        0
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        if TASKS & round.task.bit() == 0 {
            return Err(DeclineReason::Task);
        }
        if !Self::has_valid_parameters(&round.task) {
            return Err(DeclineReason::Parameter);
        }
        let has = |role| round.tensors.iter().any(|tensor| tensor.role == role);
        let (has_mean, has_metric) = (has(Role::PriorMean), has(Role::SecondMoments));
        let mut expected = Descriptors::new();
        if round.task != Wire::PooledMoments {
            for tensor in self.prior_descriptors(has_mean, has_metric && self.state.has_metric_buffer) {
                expected.push(tensor).map_err(|_| DeclineReason::Tensors)?;
            }
        }
        let same = |(a, b): (&TensorDescriptor, &TensorDescriptor)| {
            (a.role, a.rows, a.cols) == (b.role, b.rows, b.cols)
        };
        if expected.len() != round.tensors.len() || !expected.iter().zip(&round.tensors).all(same) {
            return Err(DeclineReason::Tensors);
        }
        self.state.task = Some(round.task);
        self.state.noise = None;
        self.state.scored = match round.task {
            Wire::HeadMoments { .. } => HEAD_SUMS,
            Wire::PriorEvidence { spans, floors, .. } => 3 * priors(spans, floors) + 2,
            Wire::NewcomerGradient { .. } => NEWCOMER_ERROR,
            _ => 0,
        };
        (self.state.receives_mean, self.state.receives_metric) = (has_mean, has_metric);
        Ok(())
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        self.state.prior = None;
        let (has_mean, has_metric) = (self.state.receives_mean, self.state.receives_metric);
        let Buffers { basis, mean, metric, variances, .. } = self.buffers();
        match (index, has_mean, has_metric) {
            (0, _, _) => Some(basis),
            (1, true, _) => Some(mean),
            (1, false, true) | (2, true, true) => Some(metric),
            (1, false, false) | (2, false, true) | (2, true, false) | (3, true, true) => Some(variances),
            _ => None,
        }
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        if self.state.task == Some(Wire::PooledMoments) {
            return Ok(());
        }
        let (has_mean, has_metric, d) =
            (self.state.receives_mean, self.state.receives_metric, self.state.shape.features);
        let task = self.state.task;
        let Buffers { basis, mean, metric, variances, .. } = self.buffers();
        if !has_mean {
            mean.fill(0.0);
        }
        let metric = if has_metric { metric } else { &mut [] };
        if ![&*basis, mean, metric].into_iter().all(posterior::are_finite) {
            return Err(DeclineReason::NonFinite);
        }
        // The smallest floor of a grid must not underflow, and the largest variances not overflow.
        let extremes = match task {
            Some(Wire::PriorEvidence { spans, floors, .. }) => [spans, floors].map(least_and_largest),
            _ => [(1.0, 1.0); 2],
        };
        if !are_variances(variances, extremes) || has_metric && !posterior::is_metric(metric, d) {
            return Err(DeclineReason::Parameter);
        }
        let hash = [&*basis, mean, metric, variances]
            .iter()
            .fold(0u32, |hash, part| hash.rotate_left(5) ^ crc32c_f32(part));
        self.state.prior = Some(hash);
        Ok(())
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        let ran = self.compute(id, source);
        if ran.is_err() && self.state.head.is_none() {
            // The head was the memory of sums, which may have overflowed.
            self.buffers().head.fill(0.0);
        }
        ran
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        Err(DeclineReason::Task)
    }

    fn sample(&mut self, _x: &[f32], _target: Targets<'_>) -> u32 {
        0
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        Err(DeclineReason::Task)
    }

    fn upload(&self) -> Descriptors {
        let (d, k, c) = (self.state.shape.features, self.state.shape.width, self.state.shape.outputs);
        let sums = (Role::HeadSums, 1, HEAD_SUMS);
        let (first, second) = match self.state.task {
            Some(Wire::PooledMoments) => {
                (Some((Role::SecondMoments, 1, packed_len(d))), Some((Role::CrossMoments, d, c)))
            }
            Some(Wire::HeadMoments { .. }) => (Some((Role::HeadMoments, d, k)), Some(sums)),
            Some(Wire::PriorEvidence { .. }) => (Some((Role::PriorEvidence, 1, self.state.scored)), None),
            Some(Wire::NewcomerGradient { .. }) => {
                (Some((Role::NewcomerGradient, d, k)), Some((Role::NewcomerError, 1, NEWCOMER_ERROR)))
            }
            _ => (None, None),
        };
        let mut descriptors = Descriptors::new();
        for (role, rows, cols) in first.into_iter().chain(second) {
            // There is room for more than two.
            let _ = descriptors.push(Self::descriptor(role, rows, cols));
        }
        descriptors
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        let number = match (self.state.task, index) {
            (Some(Wire::PooledMoments), 0) => PRECISION,
            (Some(Wire::PooledMoments), _) => HEAD,
            (Some(Wire::HeadMoments { .. }), 0) => BASIS,
            (Some(Wire::NewcomerGradient { .. }), 0) => PRODUCTS,
            (
                Some(Wire::HeadMoments { .. } | Wire::PriorEvidence { .. } | Wire::NewcomerGradient { .. }),
                _,
            ) => SCORE,
            // The head of other tasks is never sent.
            _ => return,
        };
        for (target, value) in out.iter_mut().zip(self.buffer(number).iter().skip(first)) {
            *target = *value;
        }
    }

    fn head(&self) -> &[f32] {
        self.buffer(HEAD)
    }

    fn head_mut(&mut self) -> &mut [f32] {
        self.buffers().head
    }

    fn head_fitted_on(&self) -> Option<u32> {
        self.state.head
    }

    fn restore_head(&mut self, representation: u32) {
        self.state.head = Some(representation);
    }
}
