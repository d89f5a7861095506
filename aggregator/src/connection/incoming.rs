//! Incoming updates: checked against the request before memory is allocated, complete in one message or
//! assembled from chunks.

use fedspan_protocol::assembly::{Assembly, split_body};
use fedspan_protocol::message::{Chunk, Fault, RoundId, Update as UpdateHead};
use fedspan_protocol::tensor::TensorDescriptor;

use super::outgoing::SentRound;
use super::{Dispatch, PeerMessage};
use fedspan_engine::Tensor;
use fedspan_engine::Update;

/// Update whose chunks are arriving.
#[derive(Debug)]
pub(super) struct PartialUpdate {
    pub(super) head: UpdateHead,
    pub(super) assembly: Assembly,
    tensors: Vec<Tensor>,
    /// Chunks received, without duplicates.
    pub(super) chunks: u32,
}

impl PartialUpdate {
    /// Returns its heap bytes, most of which the finished update keeps.
    pub(super) fn memory(&self) -> usize {
        let values: usize = self.tensors.iter().map(|tensor| tensor.values.capacity()).sum();
        self.tensors.capacity() * size_of::<Tensor>() + values * size_of::<f32>()
    }
}

/// Discards an unfinished update, and remembers its round as chunks may still arrive.
pub(super) fn discard_partial(partial: &mut Option<PartialUpdate>, last_update: &mut Option<RoundId>) {
    if let Some(update) = partial.take() {
        *last_update = Some(update.head.id);
    }
}

/// Begins an update. Memory is allocated only for tensors that the open round asks for.
pub(super) fn begin_update(
    partial: &mut Option<PartialUpdate>,
    open: Option<&SentRound>,
    head: UpdateHead,
    body: &[u8],
) -> Result<Dispatch, Fault> {
    let assembly = Assembly::new(&head.tensors).map_err(|_| Fault::Tensors)?;
    let expected = open.map_or(0, |SentRound { opening, .. }| {
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
        *partial = None;
        return Ok(Dispatch::Deliver(PeerMessage::Update(assembled(head, tensors))));
    }
    let replaced = partial.replace(PartialUpdate { head, assembly, tensors, chunks: 0 });
    Ok(if replaced.is_some() { Dispatch::Stale } else { Dispatch::Nothing })
}

pub(super) fn take_chunk(
    partial: &mut Option<PartialUpdate>,
    last_update: &mut Option<RoundId>,
    chunk: &Chunk,
    body: &[u8],
) -> Result<Dispatch, Fault> {
    let Some(update) = partial.as_mut().filter(|update| update.head.id == chunk.id) else {
        return if *last_update == Some(chunk.id) { Ok(Dispatch::Stale) } else { Err(Fault::Unexpected) };
    };
    let Some(place) = update.assembly.accept(chunk, body.len()).map_err(|_| Fault::Tensors)? else {
        return Ok(Dispatch::Stale);
    };
    update.chunks = update.chunks.saturating_add(1);
    let encoding = update.head.tensors.get(place.tensor).map(|t| t.encoding);
    let values = update.tensors.get_mut(place.tensor).and_then(|t| t.values.get_mut(place.elements));
    if let (Some(encoding), Some(values)) = (encoding, values) {
        encoding.decode(body, values).map_err(|_| Fault::Tensors)?;
    }
    if !update.assembly.is_complete() {
        return Ok(Dispatch::Nothing);
    }
    *last_update = Some(chunk.id);
    match partial.take() {
        Some(update) => Ok(Dispatch::Deliver(PeerMessage::Update(assembled(update.head, update.tensors)))),
        None => Ok(Dispatch::Nothing),
    }
}

fn assembled(head: UpdateHead, tensors: Vec<Tensor>) -> Update {
    Update {
        id: head.id,
        samples: head.samples,
        skipped: head.skipped,
        descriptors: head.tensors.to_vec(),
        tensors,
    }
}
