//! An update as it comes in: checked against what was asked before it is given memory, whole at once or put
//! together from its chunks.

use fedspan_protocol::assembly::{Assembly, split_body};
use fedspan_protocol::message::{Chunk, Fault, RoundId, Update as UpdateHead};
use fedspan_protocol::tensor::TensorDescriptor;

use super::outgoing::Cut;
use super::{Inbound, Parsed};
use fedspan_engine::Tensor;
use fedspan_engine::Update;

/// An update whose chunks are coming in.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) head: UpdateHead,
    pub(super) assembly: Assembly,
    tensors: Vec<Tensor>,
    /// Chunks that have come.
    pub(super) chunks: u32,
}

impl Incoming {
    /// Bytes that it has on the heap: most of the update that it becomes.
    pub(super) fn memory(&self) -> usize {
        let values: usize = self.tensors.iter().map(|tensor| tensor.values.capacity()).sum();
        self.tensors.capacity() * size_of::<Tensor>() + values * size_of::<f32>()
    }
}

/// Forgets an unfinished update, but not that its chunks may still come.
pub(super) fn settle(incoming: &mut Option<Incoming>, settled: &mut Option<RoundId>) {
    if let Some(update) = incoming.take() {
        *settled = Some(update.head.id);
    }
}

/// Only what was asked for is given memory.
pub(super) fn begin_update(
    incoming: &mut Option<Incoming>,
    open: Option<&Cut>,
    head: UpdateHead,
    body: &[u8],
) -> Result<Parsed, Fault> {
    let assembly = Assembly::new(&head.tensors).map_err(|_| Fault::Tensors)?;
    let expected = open.map_or(0, |Cut { opening, .. }| {
        opening.request.expects.iter().map(TensorDescriptor::elements).sum::<usize>()
    });
    let announced: usize = head.tensors.iter().map(TensorDescriptor::elements).sum();
    if announced > expected {
        return Err(Fault::Tensors);
    }
    let empty = |t: &TensorDescriptor| Tensor {
        role: t.role,
        rows: t.rows,
        cols: t.cols,
        values: vec![0.0; t.elements()],
    };
    let mut tensors: Vec<Tensor> = head.tensors.iter().map(empty).collect();
    for (index, descriptor, bytes) in split_body(&head.tensors, body).map_err(|_| Fault::Tensors)? {
        if let Some(tensor) = tensors.get_mut(index) {
            descriptor.encoding.decode(bytes, &mut tensor.values).map_err(|_| Fault::Tensors)?;
        }
    }
    if assembly.is_complete() {
        *incoming = None;
        return Ok(Parsed::Say(Inbound::Update(whole(head, tensors))));
    }
    let replaced = incoming.replace(Incoming { head, assembly, tensors, chunks: 0 });
    Ok(if replaced.is_some() { Parsed::Stale } else { Parsed::Nothing })
}

pub(super) fn take_chunk(
    incoming: &mut Option<Incoming>,
    settled: &mut Option<RoundId>,
    chunk: &Chunk,
    body: &[u8],
) -> Result<Parsed, Fault> {
    let Some(update) = incoming.as_mut().filter(|update| update.head.id == chunk.id) else {
        return if *settled == Some(chunk.id) { Ok(Parsed::Stale) } else { Err(Fault::Unexpected) };
    };
    let Some(place) = update.assembly.accept(chunk, body.len()).map_err(|_| Fault::Tensors)? else {
        return Ok(Parsed::Stale);
    };
    update.chunks = update.chunks.saturating_add(1);
    let encoding = update.head.tensors.get(place.tensor).map(|t| t.encoding);
    let values = update.tensors.get_mut(place.tensor).and_then(|t| t.values.get_mut(place.elements));
    if let (Some(encoding), Some(values)) = (encoding, values) {
        encoding.decode(body, values).map_err(|_| Fault::Tensors)?;
    }
    if !update.assembly.is_complete() {
        return Ok(Parsed::Nothing);
    }
    *settled = Some(chunk.id);
    match incoming.take() {
        Some(update) => Ok(Parsed::Say(Inbound::Update(whole(update.head, update.tensors)))),
        None => Ok(Parsed::Nothing),
    }
}

fn whole(head: UpdateHead, tensors: Vec<Tensor>) -> Update {
    Update {
        id: head.id,
        samples: head.samples,
        skipped: head.skipped,
        descriptors: head.tensors.to_vec(),
        tensors,
    }
}
