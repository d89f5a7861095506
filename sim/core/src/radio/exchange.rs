//! Frames of a round between a device and the server, as sealed with short counters and tags.

use fedspan_engine::RoundBroadcast;
use fedspan_protocol::assembly::plan;
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::limits::{BEACON_TAG, CHECK, HEADER, wire_capacity};
use fedspan_protocol::message::{
    Ack, AckOutcome, Announced, Chunk, Descriptors, Message, RoundId, RoundOpen, ToDevice, ToServer, Update,
};
use fedspan_protocol::secure::{SHORT_COUNTER, SHORT_TAG};
use fedspan_protocol::tensor::TensorDescriptor;

/// Lengths of a message with its body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Length of the message and its body, in bytes.
    pub message: usize,
    /// Length of the encoded frame on a stream without keys, in bytes. Zeros in the content shorten a frame by less than one
    /// byte in 254.
    pub on_stream: usize,
}

impl Lengths {
    /// Length of the frame in packets, sealed with a short counter and tag, in bytes.
    #[must_use]
    pub const fn sealed(self) -> usize {
        HEADER + SHORT_COUNTER + self.message + SHORT_TAG
    }

    /// Length of the frame in packets with a checksum, in bytes.
    #[must_use]
    pub const fn unsealed(self) -> usize {
        HEADER + self.message + CHECK
    }
}

/// Messages of a round of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Opening of the round, with its tensors.
    pub opening: Vec<Lengths>,
    /// Announcement of the round, if the opening is a beacon.
    pub announcement: Lengths,
    /// Update, with its tensors.
    pub update: Vec<Lengths>,
    /// Acknowledgement of the update.
    pub acknowledgement: Lengths,
}

impl Exchange {
    /// Computes the messages of a round for devices with this frame limit.
    #[must_use]
    pub fn new(round: &RoundBroadcast, limit: usize) -> Self {
        let (id, request) = (round.id, &round.request);
        let down: Descriptors = request.tensors.iter().map(|t| t.descriptor(request.encoding)).collect();
        let up: Descriptors = request.expects.iter().copied().collect();
        let open = |tensors| ToDevice::RoundOpen(RoundOpen { id, task: request.task, tensors });
        // The encoded length of the sample count varies by one or two bytes; 100 has a typical length.
        let update = |tensors| ToServer::Update(Update { id, samples: 100, skipped: 0, tensors });
        let alone = |message| lengths(&message, 0, &mut vec![0; wire_capacity(limit)]);
        Self {
            opening: one_way(id, down, limit, open, ToDevice::Chunk),
            announcement: alone(ToDevice::Announced(Announced { id, tag: [u8::MAX; BEACON_TAG] })),
            update: one_way(id, up, limit, update, ToServer::Chunk),
            acknowledgement: alone(ToDevice::Ack(Ack { id, outcome: AckOutcome::Counted })),
        }
    }

    /// Lengths of the frames to a device, without a beacon.
    pub fn frames_down(&self) -> impl Iterator<Item = usize> {
        self.opening.iter().chain([&self.acknowledgement]).map(|frame| frame.sealed())
    }

    /// Lengths of the frames to a device that receives the beacon: the announcement and the acknowledgement.
    pub fn frames_beside_beacon(&self) -> impl Iterator<Item = usize> {
        [self.announcement, self.acknowledgement].into_iter().map(Lengths::sealed)
    }

    /// Lengths of the frames of a device.
    pub fn frames_up(&self) -> impl Iterator<Item = usize> {
        self.update.iter().map(|frame| frame.sealed())
    }

    /// Lengths of the frames that carry the tensors, in both directions.
    pub fn tensor_frames(&self) -> impl Iterator<Item = Lengths> {
        self.opening.iter().chain(&self.update).copied()
    }

    /// Length of the beacon in packets, in bytes; `None` if it is not one frame.
    #[must_use]
    pub fn beacon(&self) -> Option<usize> {
        match self.opening[..] {
            [opening] => Some(opening.unsealed()),
            _ => None,
        }
    }
}

/// Lengths of the messages of one direction: the first message, and the chunks of tensors that do not fit into it.
fn one_way<M: Message>(
    id: RoundId,
    mut tensors: Descriptors,
    limit: usize,
    head: impl Fn(Descriptors) -> M,
    chunk: impl Fn(Chunk) -> M,
) -> Vec<Lengths> {
    let mut space = vec![0; wire_capacity(limit)];
    if plan(&mut tensors, limit).is_err() {
        return Vec::new();
    }
    let inline = tensors.iter().filter(|t| t.chunk == 0).map(TensorDescriptor::byte_len).sum();
    let mut messages = vec![lengths(&head(tensors.clone()), inline, &mut space)];
    for (tensor, descriptor) in (0..).zip(&tensors).filter(|(_, t)| t.chunk > 0) {
        for range in (0..descriptor.chunks()).filter_map(|index| descriptor.chunk_range(index)) {
            let offset = u32::try_from(range.start).unwrap_or(u32::MAX);
            let body = descriptor.encoding.byte_len(range.len());
            messages.push(lengths(&chunk(Chunk { id, tensor, offset }), body, &mut space));
        }
    }
    messages
}

/// Lengths of a message with a body of this many bytes. `space` holds the longest frame.
fn lengths<M: Message>(message: &M, body: usize, space: &mut [u8]) -> Lengths {
    let on_stream = encode(message, body, |slot| slot.fill(u8::MAX), space).unwrap_or(0);
    let mut decoder = Decoder::new(vec![0; space.len()]);
    match decoder.feed(&mut space.get(..on_stream).unwrap_or_default()) {
        FeedResult::Message(message) => Lengths { message: message.len(), on_stream },
        _ => Lengths::default(),
    }
}
