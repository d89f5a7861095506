//! Outbox entries: messages, and rounds whose tensors are sent in chunks.

use std::sync::Arc;

use fedspan_protocol::Error;
use fedspan_protocol::message::{Chunk, Descriptors, Missing, RoundOpen, Task, ToDevice};
use fedspan_protocol::tensor::TensorDescriptor;

use super::secure_layer::SecureLayer;
use fedspan_engine::RoundBroadcast;

/// Round that is open on a device, and the chunking of its tensors.
#[derive(Debug)]
pub(super) struct SentRound {
    pub opening: Arc<RoundBroadcast>,
    /// Task sent to this device: the opening's task, or its variant without a ridge choice that the device
    /// cannot make.
    pub task: Task,
    pub tensors: Descriptors,
}

/// Outbox entry. Entries other than messages and frames belong to the open round; opening another one removes
/// them.
#[derive(Debug)]
pub(super) enum Outgoing {
    Message(ToDevice),
    /// Finished frame.
    Encoded(Vec<u8>),
    Open,
    /// Chunks from this tensor and chunk index to the end of the last tensor.
    Chunks(usize, usize),
    /// Chunks that the device has requested again.
    Resend(Missing),
}

impl Outgoing {
    /// Encodes the next frame of this entry, and returns the rest of the entry, which is to be sent next.
    pub(super) fn encode(
        self,
        open: Option<&SentRound>,
        secure: &mut SecureLayer,
        out: &mut [u8],
    ) -> (Result<usize, Error>, Option<Self>) {
        match (self, open) {
            (Self::Message(message), _) => (secure.encode(&message, 0, |_| {}, out), None),
            (Self::Encoded(bytes), _) => (copy(&bytes, out), None),
            (Self::Open, Some(cut)) => (encode_open(cut, secure, out), None),
            (Self::Chunks(tensor, index), Some(SentRound { opening, tensors, .. })) => {
                let encoded = encode_chunk(opening, tensors, tensor, index, secure, out);
                let count = tensors.get(tensor).map_or(0, TensorDescriptor::chunks);
                let next = if index + 1 < count { (tensor, index + 1) } else { (tensor + 1, 0) };
                let more = next.0 < tensors.len();
                (encoded, more.then_some(Self::Chunks(next.0, next.1)))
            }
            (Self::Resend(mut missing), Some(SentRound { opening, tensors, .. })) => {
                let mut chunks = missing.chunks.iter().copied();
                let (tensor, index) = (missing.tensor.into(), chunks.next().map_or(usize::MAX, usize::from));
                let encoded = encode_chunk(opening, tensors, tensor, index, secure, out);
                missing.chunks = chunks.collect();
                let more = !missing.chunks.is_empty();
                (encoded, more.then_some(Self::Resend(missing)))
            }
            (_, None) => (Err(Error::BadDescriptor), None),
        }
    }

    /// Returns the heap bytes of this entry.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Encoded(bytes) => bytes.capacity(),
            _ => 0,
        }
    }
}

fn copy(bytes: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    let (needed, got) = (bytes.len(), out.len());
    out.get_mut(..needed).ok_or(Error::BufferTooSmall { needed, got })?.copy_from_slice(bytes);
    Ok(needed)
}

fn encode_open(cut: &SentRound, secure: &mut SecureLayer, out: &mut [u8]) -> Result<usize, Error> {
    let SentRound { opening, task, tensors } = cut;
    let inline = tensors.iter().all(|t| t.chunk == 0);
    let body = if inline { opening.encoded.iter().map(Vec::len).sum() } else { 0 };
    let round = RoundOpen { id: opening.id, task: *task, tensors: tensors.clone() };
    let message = ToDevice::RoundOpen(round);
    let fill = |mut place: &mut [u8]| {
        for bytes in &opening.encoded {
            if let Some((own, rest)) = std::mem::take(&mut place).split_at_mut_checked(bytes.len()) {
                own.copy_from_slice(bytes);
                place = rest;
            }
        }
    };
    secure.encode(&message, body, fill, out)
}

fn encode_chunk(
    opening: &RoundBroadcast,
    tensors: &Descriptors,
    tensor: usize,
    index: usize,
    secure: &mut SecureLayer,
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
    secure.encode(&ToDevice::Chunk(chunk), len, |place| place.copy_from_slice(bytes), out)
}
