//! Transmission times of the frames of a round over simulated links.

use fedspan_engine::RoundBroadcast;
use fedspan_engine::random::{Purpose, stream};
use fedspan_protocol::assembly::plan;
use fedspan_protocol::frame::encode;
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{
    Chunk, Descriptors, Message, RoundId, RoundOpen, ToDevice, ToServer, Update,
};
use fedspan_protocol::tensor::TensorDescriptor;

use super::drawn::stream_index;
use crate::scenario::LinkSection;

/// Links of a fleet, with one bandwidth for each device.
#[derive(Clone, Debug)]
pub struct Link {
    settings: LinkSection,
    seed: u64,
    /// Frame limit of the devices, in bytes.
    limit: usize,
    /// Lengths in bytes of the frames of a round, which are equal for all devices.
    frames: (RoundId, Vec<usize>),
}

impl Link {
    /// Creates the links of devices with the given frame limit.
    pub fn new(settings: LinkSection, seed: u64, limit: u16) -> Self {
        Self { settings, seed, limit: limit.into(), frames: Default::default() }
    }

    /// Transmission time of all frames of a round to and from a client, in mean computations. A lost frame is
    /// retransmitted until it is received.
    pub fn time(&mut self, client: usize, opening: &RoundBroadcast) -> f64 {
        if self.frames.0 != opening.id {
            self.frames = (opening.id, frame_lengths(opening, self.limit));
        }
        let LinkSection { bandwidth, spread, loss } = self.settings;
        let mut random = stream(self.seed, Purpose::Loss, stream_index(client, opening.id.round));
        let mut bytes = 0;
        for frame in &self.frames.1 {
            bytes += frame;
            while random.uniform() < loss {
                bytes += frame;
            }
        }
        let normal = stream(self.seed, Purpose::Bandwidth, client as u64).normal();
        bytes as f64 / (bandwidth * libm::exp(spread * normal))
    }
}

/// Upper bounds of the lengths in bytes of the encoded frames in a round, both directions. Zeros in the
/// content shorten a frame by less than one byte in 254.
pub fn frame_lengths(opening: &RoundBroadcast, limit: usize) -> Vec<usize> {
    let (id, request) = (opening.id, &opening.request);
    let down: Descriptors = request.tensors.iter().map(|t| t.descriptor(request.encoding)).collect();
    let upload: Descriptors = request.expects.iter().copied().collect();
    let open = |tensors| ToDevice::RoundOpen(RoundOpen { id, task: request.task, tensors });
    // The encoded length of the sample count varies by one or two bytes; 100 has a typical length.
    let update = |tensors| ToServer::Update(Update { id, samples: 100, skipped: 0, tensors });
    let mut frames = one_way_frame_lengths(id, down, limit, open, ToDevice::Chunk);
    frames.extend(one_way_frame_lengths(id, upload, limit, update, ToServer::Chunk));
    frames
}

/// Lengths in bytes of the frames in one direction: the first message, and the chunks of tensors that do not
/// fit into it.
fn one_way_frame_lengths<M: Message>(
    id: RoundId,
    mut tensors: Descriptors,
    limit: usize,
    head: impl Fn(Descriptors) -> M,
    chunk: impl Fn(Chunk) -> M,
) -> Vec<usize> {
    let mut space = vec![0; wire_capacity(limit)];
    let mut length =
        |message: &M, body| encode(message, body, |slot| slot.fill(u8::MAX), &mut space).unwrap_or(0);
    if plan(&mut tensors, limit).is_err() {
        return Vec::new();
    }
    let inline = tensors.iter().filter(|t| t.chunk == 0).map(TensorDescriptor::byte_len).sum();
    let mut frames = vec![length(&head(tensors.clone()), inline)];
    for (tensor, descriptor) in (0..).zip(&tensors).filter(|(_, t)| t.chunk > 0) {
        for range in (0..descriptor.chunks()).filter_map(|index| descriptor.chunk_range(index)) {
            let offset = u32::try_from(range.start).unwrap_or(u32::MAX);
            let body = descriptor.encoding.byte_len(range.len());
            frames.push(length(&chunk(Chunk { id, tensor, offset }), body));
        }
    }
    frames
}
