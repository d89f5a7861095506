//! What waits to be sent to a device: messages, and rounds whose tensors travel in chunks.

use std::sync::Arc;

use fedspan_protocol::Error;
use fedspan_protocol::frame::encode;
use fedspan_protocol::message::{Chunk, Descriptors, RoundOpen, ToDevice};
use fedspan_protocol::tensor::TensorDescriptor;

use crate::engine::Opening;

#[derive(Debug)]
pub(super) enum Outgoing {
    Message(ToDevice),
    Open(Arc<Opening>, Descriptors),
    /// Chunks from `next` to the end of the last tensor.
    Chunks(Arc<Opening>, Descriptors, usize, usize),
    /// One chunk that was asked for again.
    Chunk(Arc<Opening>, Descriptors, usize, usize),
}

impl Outgoing {
    /// Writes the next frame of it, and gives back what is to be sent right after that.
    pub(super) fn encode(self, out: &mut [u8]) -> (Result<usize, Error>, Option<Self>) {
        match self {
            Self::Message(message) => (encode(&message, 0, |_| {}, out), None),
            Self::Open(opening, tensors) => (encode_open(&opening, tensors, out), None),
            Self::Chunk(opening, tensors, tensor, index) => {
                (encode_chunk(&opening, &tensors, tensor, index, out), None)
            }
            Self::Chunks(opening, tensors, tensor, index) => {
                let encoded = encode_chunk(&opening, &tensors, tensor, index, out);
                let count = tensors.get(tensor).map_or(0, TensorDescriptor::chunks);
                let next = if index + 1 < count { (tensor, index + 1) } else { (tensor + 1, 0) };
                let more = next.0 < tensors.len();
                (encoded, more.then(|| Self::Chunks(opening, tensors, next.0, next.1)))
            }
        }
    }
}

fn encode_open(opening: &Opening, tensors: Descriptors, out: &mut [u8]) -> Result<usize, Error> {
    let inline = tensors.iter().all(|t| t.chunk == 0);
    let body = if inline { opening.encoded.iter().map(Vec::len).sum() } else { 0 };
    let message = ToDevice::RoundOpen(RoundOpen { id: opening.id, task: opening.request.task, tensors });
    let fill = |mut place: &mut [u8]| {
        for bytes in &opening.encoded {
            if let Some((own, rest)) = std::mem::take(&mut place).split_at_mut_checked(bytes.len()) {
                own.copy_from_slice(bytes);
                place = rest;
            }
        }
    };
    encode(&message, body, fill, out)
}

fn encode_chunk(
    opening: &Opening,
    tensors: &Descriptors,
    tensor: usize,
    index: usize,
    out: &mut [u8],
) -> Result<usize, Error> {
    let descriptor = tensors.get(tensor).ok_or(Error::BadDescriptor)?;
    let range = descriptor.chunk_range(index).ok_or(Error::BadDescriptor)?;
    let first = descriptor.encoding.byte_len(range.start);
    let len = descriptor.encoding.byte_len(range.len());
    let bytes =
        opening.encoded.get(tensor).and_then(|b| b.get(first..first + len)).ok_or(Error::BadDescriptor)?;
    let chunk = Chunk {
        id: opening.id,
        tensor: u8::try_from(tensor).map_err(|_| Error::BadDescriptor)?,
        offset: u32::try_from(range.start).map_err(|_| Error::BadDescriptor)?,
    };
    encode(&ToDevice::Chunk(chunk), len, |place| place.copy_from_slice(bytes), out)
}
