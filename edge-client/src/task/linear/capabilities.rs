//! Capabilities of a linear model: its supported tasks, and the tensors and parameters of these tasks.

#[cfg(feature = "power")]
use fedspan_protocol::message::PowerUpload;
use fedspan_protocol::message::{
    CHOOSES_RIDGE, Capabilities, DeclineReason, Descriptors, FITS_BY_STEPS, HeadSolve, Model, Numeric,
    Privacy, Task as Wire, TaskKind,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use super::POWER_START;
use crate::memory::Shape;
use crate::task::GRADIENT_HEAD;
#[cfg(feature = "reveal-moments")]
use crate::task::moments;
#[cfg(feature = "power")]
use crate::task::power;
#[cfg(feature = "ridge-choice")]
use crate::task::ridge_scores;

/// Returns the capabilities of a linear model of this shape; the session fills in the frame limit. `second`
/// is true if the memory has a second d x k matrix. `privacy` is the noise of updates; a model with noise
/// sends only noisy tensors. `fed_rep` is true if gradients may be sent. Ridges are chosen by the triangular factor, which
/// `has_minimum_norm` stands for.
pub(super) fn capabilities(
    shape: Shape,
    numeric: Numeric,
    second: bool,
    privacy: Privacy,
    fed_rep: bool,
    has_minimum_norm: bool,
) -> Capabilities {
    let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let elements = u32::try_from(shape.features * shape.width).unwrap_or(u32::MAX);
    let head = u32::try_from(shape.width * shape.outputs).unwrap_or(u32::MAX);
    let open = privacy == Privacy::None;
    let mut tasks = streamed_tasks(fed_rep);
    let mut roles = 0;
    if fed_rep {
        roles |= Role::Gradient.bit() | Role::Representation.bit();
    }
    if POWER_START && open {
        tasks |= TaskKind::PowerStart.bit();
        roles |= Role::Subspace.bit();
    }
    if GRADIENT_HEAD {
        roles |= FITS_BY_STEPS;
    }
    let ridge_choice = cfg!(feature = "ridge-choice") && has_minimum_norm;
    // Classification needs at least two outputs.
    if ridge_choice && open && shape.outputs > 1 {
        tasks |= TaskKind::RidgeScores.bit();
        roles |= Role::RidgeScores.bit();
    }
    // The fixed-point implementation has no second pass for leave-one-out.
    if ridge_choice && numeric == Numeric::F32 {
        roles |= CHOOSES_RIDGE;
    }
    // Tasks with a shared head are not implemented in fixed point.
    let shared_head = cfg!(feature = "shared-head") && open && numeric == Numeric::F32;
    if shared_head {
        tasks |= TaskKind::FedAvg.bit() | TaskKind::AdapterUp.bit() | TaskKind::AdapterDown.bit();
        roles |= Role::SharedHead.bit() | Role::AdapterDown.bit() | Role::AdapterUp.bit();
    }
    if cfg!(feature = "reveal-moments") && open {
        tasks |= TaskKind::MomentRows.bit();
        roles |= Role::Moment.bit();
    }
    let power = cfg!(feature = "power") && second;
    if power {
        tasks |= TaskKind::FedPower.bit();
        roles |= Role::Subspace.bit();
    }
    // A shared head is k x C, so with many outputs it is the larger tensor.
    let (largest, total) = match shared_head {
        true => (elements.max(head), elements.saturating_add(head)),
        false => (elements, elements),
    };
    Capabilities {
        frame_limit: 0,
        model: Model::linear(small(shape.features), small(shape.width), small(shape.outputs)),
        tasks,
        roles,
        encodings: Encoding::F32.bit() | Encoding::F16.bit() | Encoding::I8.bit(),
        numeric,
        tensors: if shared_head || power { 2 } else { 1 },
        tensor_elements: largest,
        total_elements: if power { total.max(elements.saturating_mul(2)) } else { total },
        privacy,
    }
}

/// Returns the tasks that need only one pass over the samples.
pub(super) fn streamed_tasks(fed_rep: bool) -> u32 {
    let fit_head = TaskKind::FitHead.bit();
    if fed_rep { fit_head | TaskKind::FedRep.bit() } else { fit_head }
}

/// Returns the descriptors of the tensors that a round of `task` needs.
pub(super) fn expected(shape: Shape, task: &Wire) -> Result<Descriptors, DeclineReason> {
    let side = |n: usize| u16::try_from(n).map_err(|_| DeclineReason::Tensors);
    let (d, k, c) = (side(shape.features)?, side(shape.width)?, side(shape.outputs)?);
    let of = |role, rows, cols| TensorDescriptor::inline(role, Encoding::F32, rows, cols);
    Ok(match *task {
        Wire::FedRep { .. } | Wire::FitHead { .. } => {
            Descriptors::from_iter([of(Role::Representation, d, k)])
        }
        #[cfg(feature = "ridge-choice")]
        Wire::RidgeScores { .. } => Descriptors::from_iter([of(Role::Representation, d, k)]),
        #[cfg(feature = "shared-head")]
        Wire::FedAvg { .. } => {
            Descriptors::from_iter([of(Role::Representation, d, k), of(Role::SharedHead, k, c)])
        }
        #[cfg(feature = "shared-head")]
        Wire::AdapterUp { .. } => Descriptors::from_iter(factors(shape, Encoding::F32)?.into_iter().take(1)),
        #[cfg(feature = "shared-head")]
        Wire::AdapterDown { .. } => Descriptors::from_iter(factors(shape, Encoding::F32)?),
        Wire::PowerStart if POWER_START => Descriptors::from_iter([of(Role::Subspace, d, k)]),
        #[cfg(feature = "power")]
        Wire::FedPower { .. } => Descriptors::from_iter([of(Role::Subspace, d, k)]),
        #[cfg(feature = "reveal-moments")]
        Wire::MomentRows { first, count } => {
            let elements = moments::moment_elements(shape.features, first.into(), count.into());
            // The rows must fit the representation's buffer, and be sent as one row of a tensor.
            let max_elements = (shape.features * shape.width).min(usize::from(u16::MAX));
            let fits = elements.is_some_and(|n| n > 0 && n <= max_elements);
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

/// Returns the descriptors of the tensors uploaded after a round of `task`, without chunk lengths.
pub(super) fn sent(shape: Shape, task: &Wire) -> Descriptors {
    let Ok(mut tensors) = expected(shape, task) else { return Descriptors::new() };
    match *task {
        Wire::FedRep { upload, encoding, .. } => {
            for tensor in &mut tensors {
                tensor.role = upload.role();
                tensor.encoding = encoding;
            }
        }
        #[cfg(feature = "shared-head")]
        Wire::FedAvg { encoding, .. } => {
            for tensor in &mut tensors {
                tensor.encoding = encoding;
            }
        }
        #[cfg(feature = "shared-head")]
        Wire::AdapterUp { encoding, .. } => {
            return factors(shape, encoding).into_iter().flatten().skip(1).collect();
        }
        #[cfg(feature = "shared-head")]
        Wire::AdapterDown { encoding, .. } => {
            return factors(shape, encoding).into_iter().flatten().take(1).collect();
        }
        #[cfg(feature = "reveal-moments")]
        Wire::MomentRows { first, count } => {
            let elements = moments::moment_elements(shape.features, first.into(), count.into());
            let cols = elements.and_then(|n| u16::try_from(n).ok()).unwrap_or(0);
            return Descriptors::from_iter([TensorDescriptor::inline(Role::Moment, Encoding::F32, 1, cols)]);
        }
        #[cfg(feature = "ridge-choice")]
        Wire::RidgeScores { count, .. } => {
            let scores = TensorDescriptor::inline(Role::RidgeScores, Encoding::F32, 1, count.into());
            return Descriptors::from_iter([scores]);
        }
        Wire::PowerStart => {}
        #[cfg(feature = "power")]
        Wire::FedPower { upload, encoding, .. } => {
            for tensor in &mut tensors {
                tensor.encoding = encoding;
            }
            if upload == PowerUpload::ProductAndBasis
                && let Some(product) = tensors.first().copied()
            {
                // Cannot fail, because the list of descriptors has a capacity of more than two.
                let _ = tensors.push(product);
            }
        }
        _ => return Descriptors::new(),
    }
    tensors
}

/// Returns the descriptors of an adapter's factors: the down-projection, the up-projection.
#[cfg(feature = "shared-head")]
pub(super) fn factors(shape: Shape, encoding: Encoding) -> Result<[TensorDescriptor; 2], DeclineReason> {
    let side = |n: usize| u16::try_from(n).map_err(|_| DeclineReason::Tensors);
    let (d, k, c) = (side(shape.features)?, side(shape.width)?, side(shape.outputs)?);
    let of = |role, rows, cols| TensorDescriptor::inline(role, encoding, rows, cols);
    Ok([of(Role::AdapterDown, d, k), of(Role::AdapterUp, k, c)])
}

/// Returns true if the parameters of a task are in range.
pub(super) fn valid_parameters(shape: Shape, task: &Wire) -> bool {
    let _ = shape;
    #[cfg(feature = "ridge-choice")]
    if let Some(grid) = ridge_scores::Grid::from_task(task) {
        return grid.is_valid(shape);
    }
    #[cfg(feature = "power")]
    if let Some(request) = power::PowerRequest::from_task(task) {
        return request.is_valid();
    }
    let (step_sizes, steps) = match *task {
        Wire::FedRep { step_size, head, .. } => {
            let (of_head, steps) = parameters_of(head);
            ([step_size, of_head], steps)
        }
        Wire::FitHead { head } | Wire::AdapterUp { head, .. } => {
            let (of_head, steps) = parameters_of(head);
            ([0.0, of_head], steps)
        }
        Wire::AdapterDown { step_size, .. } => ([step_size, 0.0], 1),
        Wire::FedAvg { step_size, head_step_size, local_steps, .. } => {
            ([step_size, head_step_size], local_steps)
        }
        _ => ([0.0; 2], 1),
    };
    // The condition is false for a NaN.
    steps > 0 && step_sizes.iter().all(|step| (0.0..f32::INFINITY).contains(step))
}

/// Returns the number of iterations of a task, or the number of gradient steps of its head.
pub(super) fn iterations(task: &Wire) -> u16 {
    match *task {
        Wire::FedRep { head, .. } | Wire::FitHead { head } | Wire::AdapterUp { head, .. } => {
            parameters_of(head).1
        }
        Wire::FedPower { iterations, .. } => iterations,
        _ => 1,
    }
}

/// Returns the step size (or ridge) and the number of steps of a solver; 0 steps if the solver is not
/// supported.
fn parameters_of(head: HeadSolve) -> (f32, u16) {
    match head {
        HeadSolve::LeastSquares { ridge } => (ridge, 1),
        #[cfg(feature = "ridge-choice")]
        HeadSolve::LeaveOneOut { fallback_ridge: otherwise } => (otherwise, 1),
        HeadSolve::Gradient { steps, step_size } if GRADIENT_HEAD => (step_size, steps),
        _ => (0.0, 0),
    }
}
