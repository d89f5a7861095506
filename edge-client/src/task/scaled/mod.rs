//! Feature scaling: [`Scaled`] wraps any task and scales its samples as they are read.

mod source;
mod sums;

use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::limits::TENSORS_MAX;
#[cfg(feature = "top-k")]
use fedspan_protocol::message::AckOutcome;
use fedspan_protocol::message::{
    self, Capabilities, DeclineReason, Descriptors, Privacy, RoundId, RoundOpen, Task as Wire, TaskKind,
};
use fedspan_protocol::tensor::{Encoding, Role, SUMS_COLUMNS, TensorDescriptor};

use super::{Linear, Task, Usage};
use crate::error::{NotReady, ShapeMismatch, check_finite};
use crate::mechanism::Mechanism;
use crate::memory::Memory;
use crate::pace::Pace;
use crate::release::Release;
use crate::source::{SampleSource, Targets};
use crate::time::Millis;
use source::{ROWS, Scale, ScaledSource};
use sums::Block;

/// Task whose campaign may have a scale: a shift that is subtracted from each feature, and a factor by which
/// the result is multiplied, in training and in predictions. The task also computes the sums from which the
/// server derives a scale ([`Wire::FeatureSums`]), unless its updates have noise: the sums reveal the
/// device's means.
///
/// The caller owns the memory `V` of [`scaled_values`] values, such as an array. Samples are scaled as they
/// are read, four at a time if the source allows random access ([`SampleSource::samples_from`]). A source
/// without random access must return at most four samples per call, otherwise rounds are declined
/// ([`DeclineReason::Device`]).
///
/// ```
/// use fedspan_client::task::{Scaled, scaled_values};
/// use fedspan_client::{Linear, Task, Workspace};
///
/// const VALUES: usize = scaled_values(20);
/// let model = Linear::new(Workspace::<20, 2>::new());
/// let model = Scaled::new(model, [0.0; VALUES])?;
/// assert_eq!(VALUES, 6 * 20);
/// assert!(model.capabilities().tensors >= 2);
/// # Ok::<(), fedspan_client::ShapeMismatch>(())
/// ```
#[derive(Clone, Debug)]
pub struct Scaled<T, V> {
    /// Inner task.
    task: T,
    /// Scale, 2 x d, then rows of samples, 4 x d. Feature sums use both parts.
    values: V,
    state: State,
}

/// State of a scaled task in addition to its buffers.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Number of features of a sample.
    features: usize,
    /// Number of targets of a sample.
    outputs: usize,
    /// Kind of the open round.
    round: Round,
    /// Hash of the scale that the task's representation was received with; 0 for none.
    hash: u32,
    /// True if the scale in memory has that hash.
    valid: bool,
}

/// Kind of the open round.
#[derive(Clone, Copy, Debug)]
enum Round {
    /// Round of the inner task, without a scale.
    Plain,
    /// Round of the inner task, with a scale as its tensor of this index.
    Scaled(usize),
    /// Sums of some features.
    Sums { first: u16, count: u16 },
}

/// Returns the number of values that a [`Scaled`] needs for samples with this many features.
#[must_use]
pub const fn scaled_values(features: usize) -> usize {
    let values = (2 + ROWS) * features;
    if values < sums::COLUMNS { sums::COLUMNS } else { values }
}

/// Splits the memory into scale and rows of samples.
fn split_scale(values: &mut [f32], features: usize) -> (Scale<'_>, &mut [f32]) {
    let (scale, rows) = values.split_at_mut_checked(2 * features).unwrap_or_default();
    (Scale::from_rows(scale, features), rows.get_mut(..ROWS * features).unwrap_or_default())
}

impl<T: Task, V: AsRef<[f32]> + AsMut<[f32]>> Scaled<T, V> {
    /// Wraps a task, with memory for a scale.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if there are fewer values than [`scaled_values`].
    pub fn new(task: T, values: V) -> Result<Self, ShapeMismatch> {
        let model = task.capabilities().model;
        let (features, outputs) = (model.features(), model.outputs());
        let (expected, length) = (scaled_values(features), values.as_ref().len());
        if length < expected {
            return Err(ShapeMismatch { expected, got: length });
        }
        let state = State { features, outputs, round: Round::Plain, hash: 0, valid: true };
        Ok(Self { task, values, state })
    }

    /// Returns the inner task.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// Returns the inner task, mutable. The inner task does not apply the scale: its predictions are for
    /// scaled samples.
    pub fn task_mut(&mut self) -> &mut T {
        &mut self.task
    }

    /// Returns the current scale, 2 x d: shifts, then factors. Returns `None` if there is no scale.
    pub fn scale(&self) -> Option<&[f32]> {
        let used = self.state.valid && self.state.hash != 0;
        self.values.as_ref().get(..2 * self.state.features).filter(|_| used)
    }

    /// Stores a scale, 2 x d, as one that came with the representation in memory.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if it has another number of values; the scale is then unchanged.
    pub fn set_scale(&mut self, scale: &[f32]) -> Result<(), ShapeMismatch> {
        let expected = 2 * self.state.features;
        let target = self.values.as_mut().get_mut(..expected).filter(|_| scale.len() == expected);
        let Some(target) = target else { return Err(ShapeMismatch { expected, got: scale.len() }) };
        for (target, value) in target.iter_mut().zip(scale) {
            *target = *value;
        }
        self.adopt(crc32c_f32(scale));
        Ok(())
    }

    /// Sets the scale of the received representation, identified by its hash. A head that was fitted under
    /// another scale becomes invalid.
    fn adopt(&mut self, hash: u32) {
        let before = core::mem::replace(&mut self.state.hash, hash);
        self.state.valid = true;
        if let Some(fitted) = self.task.head_fitted_on().filter(|_| before != hash) {
            self.task.restore_head(fitted ^ before ^ hash);
        }
    }

    /// Passes the scaled samples of `x` to the inner task.
    fn predict_with(
        &mut self,
        x: &[f32],
        predict: impl FnOnce(&mut T, &[f32]) -> Result<(), NotReady>,
    ) -> Result<(), NotReady> {
        let State { features, hash, valid, .. } = self.state;
        if !valid {
            return Err(NotReady::NoRepresentation);
        }
        if hash == 0 {
            return predict(&mut self.task, x);
        }
        let Self { task, values, .. } = self;
        let (scale, rows) = split_scale(values.as_mut(), features);
        let Some(rows) = rows.get_mut(..x.len()) else {
            return Err(NotReady::Length { expected: features, got: x.len() });
        };
        // The scale of a constant feature can hide a value that is not finite.
        check_finite(x)?;
        scale.apply(x, rows);
        predict(task, rows)
    }

    /// Checks a request for feature sums.
    fn opened_sums(&self, round: &RoundOpen, first: u16, count: u16) -> Result<Round, DeclineReason> {
        if self.task.capabilities().privacy != Privacy::None {
            return Err(DeclineReason::Task);
        }
        let (start, wanted) = (usize::from(first), usize::from(count));
        let fits = wanted * sums::COLUMNS <= self.values.as_ref().len();
        if wanted == 0 || !fits || start + wanted > self.state.features {
            return Err(DeclineReason::Parameter);
        }
        if !round.tensors.is_empty() {
            return Err(DeclineReason::Tensors);
        }
        Ok(Round::Sums { first, count })
    }
}

impl<M: Memory, P: Mechanism, V: AsRef<[f32]> + AsMut<[f32]>> Scaled<Linear<M, P>, V> {
    /// Computes [`Linear::predict`] for an unscaled sample.
    ///
    /// # Errors
    /// [`NotReady`] for the reasons of [`Linear::predict`].
    pub fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        self.predict_with(x, |task, x| task.predict(x, out))
    }
}

#[cfg(feature = "learned-prior")]
impl<W: AsRef<[f32]> + AsMut<[f32]>, V: AsRef<[f32]> + AsMut<[f32]>> Scaled<super::LearnedPrior<W>, V> {
    /// Computes [`LearnedPrior::predict`](super::LearnedPrior::predict) for an unscaled sample.
    ///
    /// # Errors
    /// [`NotReady`] for the reasons of [`LearnedPrior::predict`](super::LearnedPrior::predict).
    pub fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        self.predict_with(x, |task, x| task.predict(x, out))
    }

    /// Computes [`LearnedPrior::predict_with_variance`](super::LearnedPrior::predict_with_variance) for an unscaled sample.
    ///
    /// # Errors
    /// [`NotReady`] for the reasons of [`LearnedPrior::predict_with_variance`](super::LearnedPrior::predict_with_variance).
    pub fn predict_with_variance(&mut self, x: &[f32], out: &mut [f32]) -> Result<f32, NotReady> {
        let mut variance = f32::NAN;
        self.predict_with(x, |task, x| task.predict_with_variance(x, out).map(|value| variance = value))?;
        Ok(variance)
    }
}

#[cfg(feature = "network")]
impl<M: crate::memory::NetworkMemory, V: AsRef<[f32]> + AsMut<[f32]>> Scaled<super::Network<M>, V> {
    /// Computes [`Network::predict`](super::Network::predict) for up to four unscaled samples.
    ///
    /// # Errors
    /// [`NotReady`] for the reasons of [`Network::predict`](super::Network::predict).
    pub fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        self.predict_with(x, |task, x| task.predict(x, out))
    }
}

#[cfg(all(feature = "network", feature = "learned-prior"))]
impl<M, W, V> Scaled<super::PriorNetwork<M, W>, V>
where
    M: crate::memory::NetworkMemory,
    W: AsRef<[f32]> + AsMut<[f32]>,
    V: AsRef<[f32]> + AsMut<[f32]>,
{
    /// Computes [`PriorNetwork::predict`](super::PriorNetwork::predict) for up to four unscaled samples.
    ///
    /// # Errors
    /// [`NotReady`] for the reasons of [`PriorNetwork::predict`](super::PriorNetwork::predict).
    pub fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        self.predict_with(x, |task, x| task.predict(x, out))
    }
}

impl<T: Task, V: AsRef<[f32]> + AsMut<[f32]>> Task for Scaled<T, V> {
    fn capabilities(&self) -> Capabilities {
        let inner = self.task.capabilities();
        let d = self.state.features;
        let open = inner.privacy == Privacy::None;
        let wide = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let sums = wide(self.values.as_ref().len() / sums::COLUMNS * sums::COLUMNS);
        let (task, role) = if open { (TaskKind::FeatureSums.bit(), Role::FeatureSums.bit()) } else { (0, 0) };
        let tensors = u8::try_from(TENSORS_MAX).unwrap_or(u8::MAX).min(inner.tensors.saturating_add(1));
        Capabilities {
            tasks: inner.tasks | task,
            roles: inner.roles | role | Role::Scale.bit(),
            tensors,
            tensor_elements: inner.tensor_elements.max(wide(2 * d)).max(sums),
            total_elements: inner.total_elements.saturating_add(wide(2 * d)).max(sums),
            ..inner
        }
    }

    fn streamed_tasks(&self) -> u32 {
        self.task.streamed_tasks()
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        if let Wire::FeatureSums { first, count } = round.task {
            self.state.round = self.opened_sums(round, first, count)?;
            return Ok(());
        }
        let is_scale = |tensor: &&TensorDescriptor| tensor.role == Role::Scale;
        let Some(scale) = round.tensors.last().filter(is_scale).copied() else {
            self.task.open(round)?;
            self.state.round = Round::Plain;
            return Ok(());
        };
        if (scale.encoding, usize::from(scale.rows), usize::from(scale.cols))
            != (Encoding::F32, 2, self.state.features)
        {
            return Err(DeclineReason::Tensors);
        }
        let mut others = round.clone();
        others.tensors.pop();
        self.task.open(&others)?;
        self.state.round = Round::Scaled(others.tensors.len());
        Ok(())
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        match self.state.round {
            Round::Sums { .. } => None,
            Round::Scaled(last) if index == last => {
                self.state.valid = false;
                self.values.as_mut().get_mut(..2 * self.state.features)
            }
            Round::Scaled(_) | Round::Plain => self.task.tensor_mut(index),
        }
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        let hash = match self.state.round {
            Round::Sums { .. } => return Ok(()),
            Round::Plain => 0,
            Round::Scaled(_) => {
                let values = self.values.as_ref().get(..2 * self.state.features).unwrap_or_default();
                if values.iter().any(|value| !value.is_finite()) {
                    return Err(DeclineReason::NonFinite);
                }
                if values.iter().skip(self.state.features).any(|factor| *factor == 0.0) {
                    return Err(DeclineReason::Parameter);
                }
                crc32c_f32(values)
            }
        };
        self.task.verify()?;
        self.adopt(hash);
        Ok(())
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        let State { features, outputs, round, .. } = self.state;
        match round {
            Round::Plain => self.task.run(id, source),
            Round::Scaled(_) => {
                let Self { task, values, .. } = self;
                let (scale, rows) = split_scale(values.as_mut(), features);
                let mut source = ScaledSource::new(source, scale, rows);
                let result = task.run(id, &mut source);
                if source.has_failed() { Err(DeclineReason::Device) } else { result }
            }
            Round::Sums { first, count } => {
                self.state.valid = self.state.hash == 0;
                let block = Block { features, outputs, first: first.into(), count: count.into() };
                sums::run(self.values.as_mut(), block, id, source, self.task.pace())
            }
        }
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        match self.state.round {
            Round::Sums { .. } => Err(DeclineReason::Task),
            Round::Plain | Round::Scaled(_) => self.task.begin(),
        }
    }

    fn sample(&mut self, x: &[f32], target: Targets<'_>) -> u32 {
        if let Round::Plain = self.state.round {
            return self.task.sample(x, target);
        }
        let Self { task, values, state } = self;
        let (scale, rows) = split_scale(values.as_mut(), state.features);
        // The inner task skips and counts a sample of another length.
        let row = rows.get_mut(..x.len()).unwrap_or_default();
        scale.apply(x, row);
        task.sample(row, target)
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        self.task.finish()
    }

    fn upload(&self) -> Descriptors {
        match self.state.round {
            Round::Sums { count, .. } => Descriptors::from_iter([TensorDescriptor::inline(
                Role::FeatureSums,
                Encoding::F32,
                count,
                SUMS_COLUMNS,
            )]),
            Round::Plain | Round::Scaled(_) => self.task.upload(),
        }
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        match self.state.round {
            Round::Sums { .. } => {
                for (target, value) in out.iter_mut().zip(self.values.as_ref().iter().skip(first)) {
                    *target = *value;
                }
            }
            Round::Plain | Round::Scaled(_) => self.task.emit(index, first, out),
        }
    }

    #[cfg(feature = "top-k")]
    fn acknowledged(&mut self, outcome: AckOutcome) {
        self.task.acknowledged(outcome);
    }

    fn cost(&self, task: &message::Task) -> u64 {
        self.task.cost(task)
    }

    fn slot(&self) -> Millis {
        self.task.slot()
    }

    fn prepare(&mut self, release: &Release) -> Result<(), DeclineReason> {
        self.task.prepare(release)
    }

    fn pace(&self) -> Pace<'_> {
        self.task.pace()
    }

    fn head(&self) -> &[f32] {
        self.task.head()
    }

    fn head_mut(&mut self) -> &mut [f32] {
        self.task.head_mut()
    }

    fn head_fitted_on(&self) -> Option<u32> {
        self.task.head_fitted_on().map(|hash| hash ^ self.state.hash)
    }

    fn restore_head(&mut self, representation: u32) {
        self.task.restore_head(representation ^ self.state.hash);
    }
}
