//! Capabilities of a network: its supported tasks, shared layers and parameters.

use core::ops::Range;

use fedspan_protocol::message::{Capabilities, DeclineReason, Descent, Model, Numeric, Privacy, TaskKind};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

#[cfg(feature = "recurrent")]
use crate::kernel::recurrent::Lstm;
use crate::memory::{FrontEnd, NetworkMemory, NetworkShape};

/// Returns the capabilities of a network of this shape; the session fills in the frame limit.
pub fn capabilities<M: NetworkMemory>(memory: &M) -> Capabilities {
    let shape = memory.shape();
    let adapted = shape.is_adapted();
    let shared_head = cfg!(feature = "shared-head") && !adapted;
    let body = shape.layers() - 1;
    let layers = if adapted {
        factors(shape).end
    } else if shared_head {
        body + 1
    } else {
        body
    };
    let elements = |layers: Range<usize>| u32::try_from(shape.range(layers).len()).unwrap_or(u32::MAX);
    let mut roles =
        if adapted { Role::AdapterDown.bit() | Role::AdapterUp.bit() } else { Role::Representation.bit() };
    if shared_head {
        roles |= Role::SharedHead.bit();
    }
    Capabilities {
        frame_limit: 0,
        model: model(memory),
        tasks: TaskKind::Sgd.bit() | TaskKind::FitHead.bit(),
        roles,
        encodings: Encoding::F32.bit() | Encoding::F16.bit() | Encoding::I8.bit(),
        numeric: Numeric::F32,
        tensors: u8::try_from(layers).unwrap_or(u8::MAX),
        tensor_elements: (0..layers).map(|layer| elements(layer..layer + 1)).max().unwrap_or(0),
        total_elements: elements(0..layers),
        privacy: Privacy::None,
    }
}

/// Returns the model that the hello announces.
pub fn model<M: NetworkMemory>(memory: &M) -> Model {
    let shape = memory.shape();
    let outputs = to_u16(shape.outputs);
    match shape.front_end {
        FrontEnd::Nothing => Model::network(to_u16(shape.features), hidden_widths(shape), outputs),
        #[cfg(feature = "adapter")]
        FrontEnd::Adapter { features, rank, width } => {
            let frozen = memory.frozen().checksum();
            Model::adapted(
                to_u16(features),
                to_u16(rank),
                to_u16(width),
                hidden_widths(shape),
                outputs,
                frozen,
            )
        }
        #[cfg(feature = "convolution")]
        FrontEnd::Filters { image, filters } => {
            Model::convolutional(image, filters, hidden_widths(shape), outputs)
        }
        #[cfg(feature = "recurrent")]
        FrontEnd::Lstm(Lstm { steps, channels, cells }) => {
            Model::recurrent(to_u16(steps), to_u16(channels), to_u16(cells), hidden_widths(shape), outputs)
        }
    }
}

/// Returns the widths of the first `N` hidden dense layers.
fn hidden_widths<const N: usize>(shape: NetworkShape) -> [u16; N] {
    let mut hidden = [0; N];
    for (target, &width) in hidden.iter_mut().zip(&shape.hidden) {
        *target = to_u16(width);
    }
    hidden
}

/// Converts a size to the type of the protocol.
fn to_u16(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// Returns the layers that are factors of an adapter: the first two, or an empty range without an adapter.
pub fn factors(shape: NetworkShape) -> Range<usize> {
    if shape.is_adapted() { 0..2 } else { 0..0 }
}

/// Returns true if the frozen layer has the sizes in the shape.
#[cfg(feature = "adapter")]
pub fn frozen_fits<M: NetworkMemory>(memory: &M) -> bool {
    match memory.shape().front_end {
        FrontEnd::Adapter { features, width, .. } => memory.frozen().fits(features, width),
        _ => true,
    }
}

/// Returns the role of a layer's tensor. `from_above` is true if the first layers are not among the shared
/// layers.
pub fn role(shape: NetworkShape, layer: usize, from_above: bool) -> Role {
    if shape.is_adapted() {
        return if layer == 0 { Role::AdapterDown } else { Role::AdapterUp };
    }
    if layer + 1 == shape.layers() || from_above { Role::SharedHead } else { Role::Representation }
}

/// Returns the layers that the tensors of a round contain. For an adapter these are its factors, or one of
/// them; for other networks all layers before the head, all layers, the last few layers, or none. Layers that
/// must not be sent by the device must not be sent to the device either.
///
/// # Errors
/// [`DeclineReason::Tensors`] for any other set of tensors.
pub fn shared_layers(
    shape: NetworkShape,
    tensors: &[TensorDescriptor],
) -> Result<Range<usize>, DeclineReason> {
    let head = shape.layers() - 1;
    let layers = match tensors.first() {
        None => 0..0,
        Some(tensor) if tensor.role == Role::AdapterUp => 1..1 + tensors.len(),
        Some(tensor) if matches!(tensor.role, Role::Representation | Role::AdapterDown) => 0..tensors.len(),
        Some(_) => shape.layers().saturating_sub(tensors.len())..shape.layers(),
    };
    let factors = factors(shape);
    let is_valid_part = if factors.is_empty() {
        layers.is_empty() || layers.start > 0 || layers.end >= head
    } else {
        layers.end <= factors.end
    };
    let shared = layers.end > head;
    let fits = layers.end <= shape.layers()
        && layers.len() == tensors.len()
        && is_valid_part
        && (!shared || cfg!(feature = "shared-head"));
    let same = |(layer, tensor): (usize, &TensorDescriptor)| {
        tensor.role == role(shape, layer, layers.start > 0)
            && usize::from(tensor.rows) == shape.layer(layer).rows()
            && usize::from(tensor.cols) == shape.layer(layer).matrix().1
    };
    let encoding = tensors.first().map(|tensor| tensor.encoding);
    let same_encoding = tensors.iter().all(|tensor| Some(tensor.encoding) == encoding);
    if fits && same_encoding && layers.clone().zip(tensors).all(same) {
        Ok(layers)
    } else {
        Err(DeclineReason::Tensors)
    }
}

/// Returns true if the SGD parameters are in range and the memory suffices for them.
pub fn is_valid_descent(shape: NetworkShape, descent: Descent, velocity: bool) -> bool {
    // The condition is false for a NaN.
    (0.0..f32::INFINITY).contains(&descent.step_size)
        && (0.0..1.0).contains(&descent.momentum)
        && (velocity || descent.momentum == 0.0)
        && (1..=shape.batch).contains(&usize::from(descent.batch))
}
