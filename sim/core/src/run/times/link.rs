//! How long what is sent takes.

use fedspan_engine::Opening;
use fedspan_engine::random::{Purpose, stream};
use fedspan_protocol::assembly::plan;
use fedspan_protocol::frame::encode;
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{
    Chunk, Descriptors, Message, RoundId, RoundOpen, ToDevice, ToServer, Update,
};
use fedspan_protocol::tensor::TensorDescriptor;

use super::drawn::in_round;
use crate::scenario::LinkSection;

/// The links of a fleet.
#[derive(Clone, Debug)]
pub struct Link {
    settings: LinkSection,
    seed: u64,
    /// The devices' frame limit.
    limit: usize,
    /// Bytes of each frame of a round, which are the same for all devices.
    frames: (RoundId, Vec<usize>),
}

impl Link {
    /// Links of devices with a frame limit.
    pub fn new(settings: LinkSection, seed: u64, limit: u16) -> Self {
        Self { settings, seed, limit: limit.into(), frames: Default::default() }
    }

    /// Time that the frames of a round take to and from a client: each is sent until it arrives.
    pub fn time(&mut self, client: usize, opening: &Opening) -> f64 {
        if self.frames.0 != opening.id {
            self.frames = (opening.id, frames(opening, self.limit));
        }
        let LinkSection { bandwidth, spread, loss } = self.settings;
        let mut random = stream(self.seed, Purpose::Loss, in_round(client, opening.id.round));
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

/// Bytes of the encoded frames that open a round and answer it, each at its longest: zeros in what it carries
/// would make it shorter, by less than one byte in 254.
pub fn frames(opening: &Opening, limit: usize) -> Vec<usize> {
    let (id, request) = (opening.id, &opening.request);
    let down: Descriptors = request.tensors.iter().map(|t| t.descriptor(request.encoding)).collect();
    let up: Descriptors = request.expects.iter().copied().collect();
    let open = |tensors| ToDevice::RoundOpen(RoundOpen { id, task: request.task, tensors });
    // As many samples as make the number no longer than a usual one: its length varies by a byte or two.
    let update = |tensors| ToServer::Update(Update { id, samples: 100, skipped: 0, tensors });
    let mut frames = one_way(id, down, limit, open, ToDevice::Chunk);
    frames.extend(one_way(id, up, limit, update, ToServer::Chunk));
    frames
}

fn one_way<M: Message>(
    id: RoundId,
    mut tensors: Descriptors,
    limit: usize,
    head: impl Fn(Descriptors) -> M,
    chunk: impl Fn(Chunk) -> M,
) -> Vec<usize> {
    let mut space = vec![0; wire_capacity(limit)];
    let mut length =
        |message: &M, body| encode(message, body, |place| place.fill(u8::MAX), &mut space).unwrap_or(0);
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
