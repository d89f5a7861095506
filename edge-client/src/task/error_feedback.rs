//! Error feedback: what the encoding of a gradient left out is added to the next gradient.

use fedspan_protocol::message::{
    self, AckOutcome, Capabilities, DeclineReason, Descriptors, Privacy, RoundId, RoundOpen, Task as Wire,
    Upload,
};
use fedspan_protocol::tensor::{Encoding, I8_BLOCK, TensorDescriptor};

use super::{Task, Usage};
use crate::error::ShapeMismatch;
use crate::pace::Pace;
use crate::release::Release;
use crate::source::{SampleSource, Targets};
use crate::time::Millis;

/// Task whose gradients may be sent in [`Encoding::I8TopK`], with the memory of error feedback (Stich, Cordonnier and Jaggi,
/// "Sparsified SGD with Memory", 2018; Karimireddy et al., "Error Feedback Fixes SignSGD", 2019).
///
/// With the residual e, 0 at first, and the gradient g of a round, the device sends `C(g + e)`, and when the server has counted
/// the update, `e <- g + e - C(g + e)`. An update that is late leaves e as it was; one that is rejected makes it 0, because e may be
/// why: the norm that a server bounds is that of `C(g + e)`, which can be several times that of g. If an update was counted but
/// its acknowledgement is lost until the round closes, e stays as well, and is sent twice. The residual is in the coordinates
/// of a round's representation: it stays meaningful while the representation moves slowly. It is lost in a reset, as a round
/// would be. A device with noise in its updates does not announce the encoding.
///
/// The caller owns the memory `V` of `values` (d x k), such as an array; gradients in other encodings do not use it.
///
/// ```
/// use fedspan_client::task::ErrorFeedback;
/// use fedspan_client::{Linear, Task, Workspace};
///
/// let model = Linear::new(Workspace::<16, 4>::new());
/// let model = ErrorFeedback::new(model, [0.0; 16 * 4])?;
/// assert_eq!(model.capabilities().encodings, 0b1111);
/// # Ok::<(), fedspan_client::ShapeMismatch>(())
/// ```
#[derive(Clone, Debug)]
pub struct ErrorFeedback<T, V> {
    task: T,
    residual: V,
    /// True if the open round uploads in the encoding that leaves values out.
    is_used: bool,
}

impl<T: Task, V: AsRef<[f32]> + AsMut<[f32]>> ErrorFeedback<T, V> {
    /// Wraps a task, with memory for the residual of one tensor. The memory is cleared.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if there are fewer values than the longest tensor of the task has.
    pub fn new(task: T, mut residual: V) -> Result<Self, ShapeMismatch> {
        let expected = usize::try_from(task.capabilities().tensor_elements).unwrap_or(usize::MAX);
        let got = residual.as_ref().len();
        if got < expected {
            return Err(ShapeMismatch { expected, got });
        }
        residual.as_mut().fill(0.0);
        Ok(Self { task, residual, is_used: false })
    }

    /// Returns the inner task.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// Returns the inner task, mutable, for example for predictions.
    pub fn task_mut(&mut self) -> &mut T {
        &mut self.task
    }

    /// Returns the residual, for example to keep it over a reset. The values after those of the gradient are 0.
    pub fn residual(&self) -> &[f32] {
        self.residual.as_ref()
    }

    /// Replaces the residual by one that [`Self::residual`] has returned.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if the length differs. The residual is then unchanged.
    pub fn set_residual(&mut self, values: &[f32]) -> Result<(), ShapeMismatch> {
        let residual = self.residual.as_mut();
        let (expected, got) = (residual.len(), values.len());
        if expected != got {
            return Err(ShapeMismatch { expected, got });
        }
        residual.iter_mut().zip(values).for_each(|(target, value)| *target = *value);
        Ok(())
    }
}

/// Largest magnitude of a residual.
const RESIDUAL_MAX: f32 = 1e36;

/// Returns the parts of `elements` elements that are encoded as one block.
fn blocks(elements: usize) -> impl Iterator<Item = core::ops::Range<usize>> {
    (0..elements).step_by(I8_BLOCK).map(move |first| first..elements.min(first + I8_BLOCK))
}

impl<T: Task, V: AsRef<[f32]> + AsMut<[f32]>> Task for ErrorFeedback<T, V> {
    fn capabilities(&self) -> Capabilities {
        let inner = self.task.capabilities();
        let top_k = if inner.privacy == Privacy::None { Encoding::I8TopK.bit() } else { 0 };
        Capabilities { encodings: inner.encodings | top_k, ..inner }
    }

    fn streamed_tasks(&self) -> u32 {
        self.task.streamed_tasks()
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        let leaves_out = round.task.encoding() == Some(Encoding::I8TopK);
        // Error feedback needs tensors whose sum over rounds is what counts.
        let is_gradient = matches!(round.task, Wire::FedRep { upload: Upload::Gradient, .. });
        if leaves_out && (!is_gradient || self.task.capabilities().privacy != Privacy::None) {
            return Err(DeclineReason::Parameter);
        }
        self.task.open(round)?;
        self.is_used = leaves_out;
        // The sum with a gradient would not be finite.
        if self.residual.as_ref().iter().any(|value| value.abs() > RESIDUAL_MAX) {
            self.residual.as_mut().fill(0.0);
        }
        Ok(())
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        self.task.tensor_mut(index)
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        self.task.verify()
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        self.task.run(id, source)
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        self.task.begin()
    }

    fn sample(&mut self, x: &[f32], target: Targets<'_>) -> u32 {
        self.task.sample(x, target)
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        self.task.finish()
    }

    fn upload(&self) -> Descriptors {
        self.task.upload()
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        self.task.emit(index, first, out);
        if self.is_used {
            for (value, left_out) in out.iter_mut().zip(self.residual.as_ref().iter().skip(first)) {
                *value += left_out;
            }
        }
    }

    fn acknowledged(&mut self, outcome: AckOutcome) {
        self.task.acknowledged(outcome);
        let is_used = core::mem::take(&mut self.is_used);
        match outcome {
            _ if !is_used => return,
            AckOutcome::Counted | AckOutcome::Duplicate => {}
            // The residual may be the reason, as for a norm over the bound, and would be it in each later round.
            AckOutcome::Rejected(_) => return self.residual.as_mut().fill(0.0),
            _ => return,
        }
        let elements = self.task.upload().first().map_or(0, TensorDescriptor::elements);
        for range in blocks(elements) {
            let (mut sum, mut sent, mut bytes) = ([0.0; I8_BLOCK], [0.0; I8_BLOCK], [0; I8_BLOCK]);
            let block = (
                sum.get_mut(..range.len()),
                sent.get_mut(..range.len()),
                bytes.get_mut(..Encoding::I8TopK.byte_len(range.len())),
                self.residual.as_mut().get_mut(range.clone()),
            );
            let (Some(sum), Some(sent), Some(bytes), Some(residual)) = block else { return };
            self.task.pace().spend(I8_BLOCK);
            self.task.emit(0, range.start, sum);
            sum.iter_mut().zip(&*residual).for_each(|(value, left_out)| *value += left_out);
            // The update was sent, so its values are finite.
            let is_encoded = Encoding::I8TopK.encode(sum, bytes).is_ok();
            if is_encoded && Encoding::I8TopK.decode(bytes, sent).is_ok() {
                residual
                    .iter_mut()
                    .zip(sum)
                    .zip(sent)
                    .for_each(|((target, sum), sent)| *target = *sum - *sent);
            }
        }
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
        self.task.head_fitted_on()
    }

    fn restore_head(&mut self, representation: u32) {
        self.task.restore_head(representation);
    }
}
