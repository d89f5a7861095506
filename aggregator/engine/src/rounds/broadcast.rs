//! Contents of the message that opens a round on the devices.

use std::sync::OnceLock;

use fedspan_protocol::Error;
use fedspan_protocol::assembly::plan;
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::limits::{
    CHECK, DESCRIPTOR_MAX, FRAME_LIMIT_MAX, HEADER, OPEN_HEAD_MAX, TENSORS_MAX, wire_capacity,
};
use fedspan_protocol::message::{Ack, AckOutcome, Chunk, Descriptors, RoundId, RoundOpen, ToDevice};
use fedspan_protocol::tensor::{Role, TensorDescriptor};

use crate::types::{Request, Tensor};

/// Broadcast of a round: the contents of its opening message, encoded once for all devices.
#[derive(Debug)]
pub struct RoundBroadcast {
    /// Id of the round.
    pub id: RoundId,
    /// Task, tensors and expected reply.
    pub request: Request,
    /// Tensors of the request in their wire encoding.
    pub encoded: Vec<Vec<u8>>,
    /// Opening with all tensors, once it has been asked for; `None` if it is longer than the longest frame.
    opening: OnceLock<Option<SharedFrame>>,
    /// Acknowledgement of an update that counts, once it has been asked for.
    counted: OnceLock<Option<SharedFrame>>,
    /// Tensors for the first frame limit for which they were planned.
    planned: OnceLock<Planned>,
}

/// Tensors of a round as they are sent under one frame limit.
#[derive(Debug)]
struct Planned {
    /// Frame limit in bytes.
    limit: usize,
    /// Descriptors with the length of chunks.
    tensors: Result<Descriptors, Error>,
    /// Frames of tensors in chunks, once one has been asked for; `None` if a frame cannot be encoded.
    frames: OnceLock<Option<ChunkedFrames>>,
}

/// Frames of a round whose tensors are sent in chunks.
#[derive(Debug)]
struct ChunkedFrames {
    /// Opening without tensors.
    opening: SharedFrame,
    /// Chunks of each tensor.
    chunks: Vec<Vec<SharedFrame>>,
}

/// Message that is the same for all devices without keys, encoded once for all of them.
#[derive(Debug)]
pub struct SharedFrame {
    /// Encoded frame with its checksum.
    pub frame: Vec<u8>,
    /// Message and body within the frame.
    pub message: Vec<u8>,
}

impl SharedFrame {
    /// Encodes a message and its body.
    fn new(message: &ToDevice, content: &[u8]) -> Option<Self> {
        let longest = FRAME_LIMIT_MAX.min(MESSAGE_MAX.saturating_add(content.len()));
        let mut frame = vec![0; wire_capacity(longest)];
        let length = encode(message, content.len(), |body| body.copy_from_slice(content), &mut frame).ok()?;
        frame.truncate(length);
        frame.shrink_to_fit();
        let mut decoder = Decoder::new(vec![0; length]);
        match decoder.feed(&mut frame.as_slice()) {
            FeedResult::Message(message) => Some(Self { message: message.to_vec(), frame }),
            _ => None,
        }
    }
}

/// Upper bound of the length of a frame without its body, in bytes: the longest opening.
const MESSAGE_MAX: usize = HEADER + OPEN_HEAD_MAX + TENSORS_MAX * DESCRIPTOR_MAX + CHECK;

/// Compares what the devices receive.
impl PartialEq for RoundBroadcast {
    fn eq(&self, other: &Self) -> bool {
        (self.id, &self.request, &self.encoded) == (other.id, &other.request, &other.encoded)
    }
}

impl RoundBroadcast {
    /// Encodes a request.
    ///
    /// # Errors
    /// [`Error::NonFinite`] if a value is not finite or too large for the encoding, for example because the
    /// shared model has diverged.
    pub fn new(id: RoundId, request: Request) -> Result<Self, Error> {
        let encode = |tensor: &Tensor| {
            let encoding = tensor.descriptor(request.encoding).encoding;
            let mut bytes = vec![0; encoding.byte_len(tensor.values.len())];
            encoding.encode(&tensor.values, &mut bytes).map(|()| bytes)
        };
        let encoded = request.tensors.iter().map(encode).collect::<Result<_, _>>()?;
        Ok(Self::with_encoded(id, request, encoded))
    }

    fn with_encoded(id: RoundId, request: Request, encoded: Vec<Vec<u8>>) -> Self {
        Self {
            id,
            request,
            encoded,
            opening: OnceLock::new(),
            counted: OnceLock::new(),
            planned: OnceLock::new(),
        }
    }

    /// Opening of the round as one frame, which is encoded once for all devices: as a beacon, and for devices without keys. `None` if it
    /// is longer than the longest frame.
    pub fn opening(&self) -> Option<&SharedFrame> {
        let new = || {
            let tensors = self.descriptors();
            let message = ToDevice::RoundOpen(RoundOpen { id: self.id, task: self.request.task, tensors });
            SharedFrame::new(&message, &self.encoded.concat())
        };
        self.opening.get_or_init(new).as_ref()
    }

    /// Acknowledgement of an update that counts in this round, for devices without keys.
    pub fn counted(&self) -> Option<&SharedFrame> {
        let message = ToDevice::Ack(Ack { id: self.id, outcome: AckOutcome::Counted });
        self.counted.get_or_init(|| SharedFrame::new(&message, &[])).as_ref()
    }

    /// Descriptors of the tensors, in one frame.
    fn descriptors(&self) -> Descriptors {
        let Request { ref tensors, encoding, .. } = self.request;
        tensors.iter().map(|tensor| tensor.descriptor(encoding)).collect()
    }

    /// Descriptors of the tensors, with the chunks in which they are sent to devices with this frame limit, in bytes.
    ///
    /// # Errors
    /// The errors of [`plan`].
    pub fn planned(&self, limit: usize) -> Result<Descriptors, Error> {
        let new = || {
            let mut tensors = self.descriptors();
            plan(&mut tensors, limit).map(|()| tensors)
        };
        // Most fleets have one limit.
        let first = self.planned.get_or_init(|| Planned { limit, tensors: new(), frames: OnceLock::new() });
        if first.limit == limit { first.tensors.clone() } else { new() }
    }

    /// Opening of the round whose tensors follow in chunks, for devices without keys and with this frame limit, in bytes. `None` if
    /// the tensors were planned for another limit first.
    pub fn opening_of_chunks(&self, limit: usize) -> Option<&SharedFrame> {
        Some(&self.chunked(limit)?.opening)
    }

    /// Chunk `index` of a tensor, for devices without keys and with this frame limit, in bytes. `None` if the tensors were planned for
    /// another limit first, or if there is no such chunk.
    pub fn chunk(&self, limit: usize, tensor: usize, index: usize) -> Option<&SharedFrame> {
        self.chunked(limit)?.chunks.get(tensor)?.get(index)
    }

    /// Frames of tensors in chunks under this limit, encoded once for all devices.
    fn chunked(&self, limit: usize) -> Option<&ChunkedFrames> {
        let planned = self.planned.get().filter(|planned| planned.limit == limit)?;
        let tensors = planned.tensors.as_ref().ok()?;
        planned.frames.get_or_init(|| self.chunk_frames(tensors)).as_ref()
    }

    fn chunk_frames(&self, tensors: &Descriptors) -> Option<ChunkedFrames> {
        let open = RoundOpen { id: self.id, task: self.request.task, tensors: tensors.clone() };
        let chunks_of = |(number, tensor): (usize, &TensorDescriptor)| {
            let frame = |index| {
                let (chunk, content) = self.chunk_message(tensor, number, index)?;
                SharedFrame::new(&ToDevice::Chunk(chunk), content)
            };
            (0..tensor.chunks()).map(frame).collect::<Option<Vec<_>>>()
        };
        Some(ChunkedFrames {
            opening: SharedFrame::new(&ToDevice::RoundOpen(open), &[])?,
            chunks: tensors.iter().enumerate().map(chunks_of).collect::<Option<_>>()?,
        })
    }

    /// Message and content of chunk `index` of tensor `number`, whose descriptor contains the length of chunks. `None` if there is no
    /// such chunk.
    pub fn chunk_message(
        &self,
        descriptor: &TensorDescriptor,
        number: usize,
        index: usize,
    ) -> Option<(Chunk, &[u8])> {
        let range = descriptor.chunk_range(index)?;
        let first = descriptor.encoding.byte_len(range.start);
        let length = descriptor.encoding.byte_len(range.len());
        let content = self.encoded.get(number)?.get(first..first.checked_add(length)?)?;
        let (tensor, offset) = (u8::try_from(number).ok()?, u32::try_from(range.start).ok()?);
        Some((Chunk { id: self.id, tensor, offset }, content))
    }

    /// Copy of the broadcast under another id.
    pub(super) fn with_id(&self, id: RoundId) -> Self {
        let Request { task, ref tensors, encoding, ref expects } = self.request;
        let request = Request { task, tensors: tensors.clone(), encoding, expects: expects.clone() };
        Self::with_encoded(id, request, self.encoded.clone())
    }

    /// Copy of the broadcast without the tensors of these roles; `None` if it has no such tensors.
    pub(super) fn without_roles(&self, roles: &[Role]) -> Option<Self> {
        let sent = |tensor: &Tensor| !roles.contains(&tensor.role);
        if self.request.tensors.iter().all(sent) {
            return None;
        }
        let (tensors, encoded) = self
            .request
            .tensors
            .iter()
            .zip(&self.encoded)
            .filter(|(tensor, _)| sent(tensor))
            .map(|(tensor, bytes)| (tensor.clone(), bytes.clone()))
            .unzip();
        let Request { task, encoding, ref expects, .. } = self.request;
        let request = Request { task, tensors, encoding, expects: expects.clone() };
        Some(Self::with_encoded(self.id, request, encoded))
    }
}
