//! [`Linear`]: the tasks of a linear model behind the [`Task`] trait, and the model's own use (`predict`).

use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::message::{
    Capabilities, DeclineReason, Descriptors, HeadSolve, Model, Numeric, RoundId, RoundOpen, Task as Wire,
    Upload,
};
use fedspan_protocol::orthonormal::{orthonormalise, orthonormality_error};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use super::pass::Over;
use super::{Task, Usage, fedrep, start};
use crate::error::{NotReady, ShapeMismatch};
use crate::kernel::{gradient, project};
use crate::memory::{Memory, Parts, Shape};
use crate::source::{SampleSource, Targets};

/// A linear model `y = W^T B^T x` with the memory `M`.
#[derive(Clone, Debug)]
pub struct Linear<M> {
    memory: M,
    state: State,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Hash of the representation in memory; `None` while it is invalid.
    representation: Option<u32>,
    /// Hash of the representation that the head was fitted on.
    head: Option<u32>,
    /// The open round's task.
    task: Option<Wire>,
    /// How the open round's tensors are encoded.
    received: Encoding,
    usage: Usage,
}

impl<M: Memory> Linear<M> {
    /// A model without representation and head.
    pub const fn new(memory: M) -> Self {
        let state = State {
            representation: None,
            head: None,
            task: None,
            received: Encoding::F32,
            usage: Usage { samples: 0, skipped: 0 },
        };
        Self { memory, state }
    }

    /// The sizes.
    pub fn shape(&self) -> Shape {
        self.memory.parts_ref().shape
    }

    /// The representation in memory, d x k, or `None` while it is invalid.
    pub fn representation(&self) -> Option<&[f32]> {
        self.state.representation.map(|_| self.memory.parts_ref().representation)
    }

    /// Puts a representation (d x k, row-major, orthonormal columns) into memory without a server.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if it has another number of elements; nothing has changed then.
    pub fn set_representation(&mut self, b: &[f32]) -> Result<(), ShapeMismatch> {
        let parts = self.memory.parts();
        let expected = parts.representation.len();
        if b.len() != expected {
            return Err(ShapeMismatch { expected, got: b.len() });
        }
        for (place, &value) in parts.representation.iter_mut().zip(b) {
            *place = value;
        }
        self.accept_representation();
        Ok(())
    }

    /// The memory itself, for the views.
    #[cfg(feature = "nalgebra")]
    pub(crate) fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Declares what is in the representation buffer valid.
    pub(crate) fn accept_representation(&mut self) {
        self.state.representation = Some(crc32c_f32(self.memory.parts_ref().representation));
    }

    /// Fits the head on the representation in memory, from `samples`.
    ///
    /// # Errors
    /// [`DeclineReason`]: no representation ([`DeclineReason::Tensors`]), no usable sample, or a source
    /// that failed.
    pub fn fit_head(
        &mut self,
        head: HeadSolve,
        samples: &mut dyn SampleSource,
    ) -> Result<Usage, DeclineReason> {
        let hash = self.state.representation.ok_or(DeclineReason::Tensors)?;
        self.state.task = Some(Wire::FitHead { head });
        let usage =
            fedrep::solve_head(&mut self.memory.parts(), head, RoundId::default(), Over::All, samples)?;
        self.state.head = Some(hash);
        Ok(usage)
    }

    /// The model's answer for one sample: `out = W^T B^T x`.
    ///
    /// # Errors
    /// [`NotReady`] if there is no verified representation or no head that was fitted on it.
    pub fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        let hash = self.state.representation.ok_or(NotReady::NoRepresentation)?;
        if self.state.head != Some(hash) {
            return Err(NotReady::NoHead);
        }
        let parts = self.memory.parts();
        for (expected, got) in [(parts.shape.features, x.len()), (parts.shape.outputs, out.len())] {
            if expected != got {
                return Err(NotReady::Length { expected, got });
            }
        }
        project::project(parts.representation, x, parts.z);
        project::apply_head(parts.head, parts.z, out);
        Ok(())
    }

    fn expected(&self, task: &Wire) -> Result<Descriptors, DeclineReason> {
        let shape = self.shape();
        let side = |n: usize| u16::try_from(n).map_err(|_| DeclineReason::Tensors);
        let (d, k, c) = (side(shape.features)?, side(shape.width)?, side(shape.outputs)?);
        let of = |role, rows, cols| TensorDescriptor::inline(role, Encoding::F32, rows, cols);
        Ok(match *task {
            Wire::FedRep { .. } | Wire::FitHead { .. } => {
                Descriptors::from_iter([of(Role::Representation, d, k)])
            }
            #[cfg(feature = "shared-head")]
            Wire::FedAvg { .. } => {
                Descriptors::from_iter([of(Role::Representation, d, k), of(Role::SharedHead, k, c)])
            }
            Wire::PowerStart => Descriptors::from_iter([of(Role::Subspace, d, k)]),
            #[cfg(feature = "reveal-moments")]
            Wire::MomentRows { first, count } => {
                let elements = start::moment_elements(shape.features, first.into(), count.into());
                let fits = elements.is_some_and(|n| n > 0 && n <= shape.features * shape.width);
                if !fits {
                    return Err(DeclineReason::Parameter);
                }
                Descriptors::new()
            }
            _ => {
                let _ = c;
                return Err(DeclineReason::Task);
            }
        })
    }

    fn gradient_scale(usage: Usage) -> f32 {
        if usage.samples == 0 { 0.0 } else { 1.0 / fedrep::count(usage) }
    }
}

/// The bit of FedRep, whatever its parameters.
fn fedrep_bit() -> u16 {
    let head = HeadSolve::LeastSquares { ridge: 0.0 };
    Wire::FedRep { step_size: 0.0, head, upload: Upload::Gradient, encoding: Encoding::F32 }.bit()
}

fn valid_step(step: f32) -> bool {
    step.is_finite() && step >= 0.0
}

fn valid_head(head: &HeadSolve) -> bool {
    match *head {
        HeadSolve::LeastSquares { ridge } => valid_step(ridge),
        HeadSolve::Gradient { steps, step_size } => steps > 0 && valid_step(step_size),
        _ => false,
    }
}

fn valid_parameters(task: &Wire) -> bool {
    match task {
        Wire::FedRep { step_size, head, .. } => valid_step(*step_size) && valid_head(head),
        Wire::FitHead { head } => valid_head(head),
        Wire::FedAvg { step_size, head_step_size, local_steps, .. } => {
            valid_step(*step_size) && valid_step(*head_step_size) && *local_steps > 0
        }
        _ => true,
    }
}

impl<M: Memory> Task for Linear<M> {
    fn capabilities(&self) -> Capabilities {
        let shape = self.shape();
        let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let elements = u32::try_from(shape.features * shape.width).unwrap_or(u32::MAX);
        let head = u32::try_from(shape.width * shape.outputs).unwrap_or(u32::MAX);
        let any_head = HeadSolve::LeastSquares { ridge: 0.0 };
        let mut tasks = Wire::FitHead { head: any_head }.bit() | Wire::PowerStart.bit() | fedrep_bit();
        let mut roles = Role::Gradient.bit() | Role::Representation.bit() | Role::Subspace.bit();
        if cfg!(feature = "shared-head") {
            let encoding = Encoding::F32;
            tasks |= Wire::FedAvg { step_size: 0.0, head_step_size: 0.0, local_steps: 1, encoding }.bit();
            roles |= Role::SharedHead.bit();
        }
        if cfg!(feature = "reveal-moments") {
            tasks |= Wire::MomentRows { first: 0, count: 1 }.bit();
            roles |= Role::Moment.bit();
        }
        Capabilities {
            frame_limit: 0,
            model: Model::Linear {
                features: small(shape.features),
                width: small(shape.width),
                outputs: small(shape.outputs),
            },
            tasks,
            roles,
            encodings: Encoding::F32.bit() | Encoding::F16.bit() | Encoding::I8.bit(),
            numeric: Numeric::F32,
            tensors: if cfg!(feature = "shared-head") { 2 } else { 1 },
            tensor_elements: elements,
            total_elements: if cfg!(feature = "shared-head") {
                elements.saturating_add(head)
            } else {
                elements
            },
        }
    }

    fn streamed_tasks(&self) -> u16 {
        let any_head = HeadSolve::LeastSquares { ridge: 0.0 };
        Wire::FitHead { head: any_head }.bit() | fedrep_bit()
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        let expected = self.expected(&round.task)?;
        if !valid_parameters(&round.task) {
            return Err(DeclineReason::Parameter);
        }
        let same = |(a, b): (&TensorDescriptor, &TensorDescriptor)| {
            a.role == b.role && a.rows == b.rows && a.cols == b.cols
        };
        if expected.len() != round.tensors.len() || !expected.iter().zip(&round.tensors).all(same) {
            return Err(DeclineReason::Tensors);
        }
        let mut encodings = round.tensors.iter().map(|t| t.encoding);
        let first = encodings.next().unwrap_or_default();
        if encodings.any(|other| other != first) {
            return Err(DeclineReason::Tensors);
        }
        self.state.task = Some(round.task);
        self.state.received = first;
        Ok(())
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        self.state.representation = None;
        let parts = self.memory.parts();
        match (index, &self.state.task) {
            (0, Some(_)) => Some(parts.representation),
            (1, Some(Wire::FedAvg { .. })) => {
                self.state.head = None;
                Some(parts.head)
            }
            _ => None,
        }
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        let Parts { shape, representation, head, .. } = self.memory.parts();
        let shared = match self.state.task {
            Some(Wire::MomentRows { .. }) => return Ok(()),
            Some(Wire::FedAvg { .. }) => true,
            _ => false,
        };
        if representation.iter().any(|v| !v.is_finite()) || (shared && head.iter().any(|v| !v.is_finite())) {
            return Err(DeclineReason::NonFinite);
        }
        if !shared {
            let error = orthonormality_error(representation, shape.width);
            // False for a NaN.
            let close = error <= self.state.received.orthonormality_tolerance();
            if !close {
                return Err(DeclineReason::NotOrthonormal { error });
            }
            if self.state.received == Encoding::I8 {
                orthonormalise(representation, shape.width)
                    .map_err(|_| DeclineReason::NotOrthonormal { error })?;
            }
        }
        self.state.representation = Some(crc32c_f32(representation));
        Ok(())
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        let parts = &mut self.memory.parts();
        let state = &mut self.state;
        let usage = match state.task.ok_or(DeclineReason::Task)? {
            Wire::FedRep { head, .. } => {
                let usage = fedrep::run(parts, head, id, source)?;
                state.head = state.representation;
                usage
            }
            Wire::FitHead { head } => {
                let usage = fedrep::solve_head(parts, head, id, Over::All, source)?;
                state.head = state.representation;
                usage
            }
            #[cfg(feature = "shared-head")]
            Wire::FedAvg { step_size, head_step_size, local_steps, .. } => {
                state.representation = None;
                state.head = None;
                super::shared::run(parts, step_size, head_step_size, local_steps, id, source)?
            }
            Wire::PowerStart => {
                state.representation = None;
                start::power(parts, id, source)?
            }
            #[cfg(feature = "reveal-moments")]
            Wire::MomentRows { first, count } => {
                state.representation = None;
                start::moment_rows(parts, first.into(), count.into(), id, source)?
            }
            _ => return Err(DeclineReason::Task),
        };
        state.usage = usage;
        if usage.samples == 0 { Err(DeclineReason::NoSamples) } else { Ok(usage) }
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        self.state.usage = Usage::default();
        match self.state.task {
            Some(Wire::FedRep { .. } | Wire::FitHead { .. }) => fedrep::begin(&mut self.memory.parts()),
            _ => Err(DeclineReason::Task),
        }
    }

    fn sample(&mut self, x: &[f32], target: Targets<'_>) -> u32 {
        if let Some(Wire::FedRep { head, .. } | Wire::FitHead { head }) = self.state.task {
            let used = fedrep::sample(&mut self.memory.parts(), head, x, target);
            let usage = &mut self.state.usage;
            let counter = if used { &mut usage.samples } else { &mut usage.skipped };
            *counter = counter.saturating_add(1);
        }
        self.state.usage.samples
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        let usage = self.state.usage;
        if usage.samples == 0 {
            return Err(DeclineReason::NoSamples);
        }
        let Some(Wire::FedRep { head, .. } | Wire::FitHead { head }) = self.state.task else {
            return Err(DeclineReason::Task);
        };
        self.state.head = None;
        fedrep::finish(&mut self.memory.parts(), head, usage)?;
        self.state.head = self.state.representation;
        Ok(usage)
    }

    fn upload(&self) -> Descriptors {
        let Some(task) = self.state.task else { return Descriptors::new() };
        let Ok(mut tensors) = self.expected(&task) else { return Descriptors::new() };
        match task {
            Wire::FedRep { upload, encoding, .. } => {
                for tensor in &mut tensors {
                    tensor.role = upload.role();
                    tensor.encoding = encoding;
                }
            }
            Wire::FedAvg { encoding, .. } => {
                for tensor in &mut tensors {
                    tensor.encoding = encoding;
                }
            }
            Wire::MomentRows { first, count } => {
                let elements = start::moment_elements(self.shape().features, first.into(), count.into());
                let cols = elements.and_then(|n| u16::try_from(n).ok()).unwrap_or(0);
                return Descriptors::from_iter([TensorDescriptor::inline(
                    Role::Moment,
                    Encoding::F32,
                    1,
                    cols,
                )]);
            }
            Wire::PowerStart => {}
            _ => return Descriptors::new(),
        }
        tensors
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        let parts = self.memory.parts_ref();
        let shape = parts.shape;
        let Some(task) = self.state.task else { return };
        if let Wire::FedRep { upload, step_size, .. } = task {
            let scale = Self::gradient_scale(self.state.usage);
            let (s, w) = (parts.residual, parts.head);
            gradient::elements(s, w, shape.width, shape.outputs, scale, first, out);
            if upload == Upload::Representation {
                for (place, &b) in out.iter_mut().zip(parts.representation.iter().skip(first)) {
                    *place = b - step_size * *place;
                }
            }
            return;
        }
        let tensor = if index == 0 { parts.representation } else { parts.head };
        for (place, &value) in out.iter_mut().zip(tensor.iter().skip(first)) {
            *place = value;
        }
    }

    fn head(&self) -> &[f32] {
        self.memory.parts_ref().head
    }

    fn head_mut(&mut self) -> &mut [f32] {
        self.memory.parts().head
    }

    fn head_fitted_on(&self) -> Option<u32> {
        self.state.head
    }

    fn restore_head(&mut self, representation: u32) {
        self.state.head = Some(representation);
    }
}
