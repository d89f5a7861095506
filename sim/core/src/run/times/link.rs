//! Transmission times of the frames of a round over simulated links.

use fedspan_engine::RoundBroadcast;
use fedspan_engine::random::{Purpose, stream};
use fedspan_protocol::message::RoundId;

use super::drawn::stream_index;
use crate::radio::{Exchange, Lengths};
use crate::scenario::{LinkSection, LinkSpeed};

/// Links of a fleet.
#[derive(Clone, Debug)]
pub struct Link {
    settings: LinkSection,
    seed: u64,
    /// Frame limit of the devices, in bytes.
    limit: usize,
    /// Messages of a round, which are equal for all devices.
    exchange: (RoundId, Exchange),
}

impl Link {
    /// Creates the links of devices with the given frame limit.
    pub fn new(settings: LinkSection, seed: u64, limit: u16) -> Self {
        Self { settings, seed, limit: limit.into(), exchange: Default::default() }
    }

    /// Transmission time of a round to and from a client, in mean computations. A lost frame, or packet of a radio, is
    /// retransmitted until it is received.
    pub fn time(&mut self, client: usize, opening: &RoundBroadcast) -> f64 {
        if self.exchange.0 != opening.id {
            self.exchange = (opening.id, Exchange::new(opening, self.limit));
        }
        let LinkSection { speed, loss } = self.settings;
        let exchange = &self.exchange.1;
        let mut random = stream(self.seed, Purpose::Loss, stream_index(client, opening.id.round));
        // Number of times that a frame or packet is sent.
        let mut sent =
            || 1 + std::iter::repeat_with(|| random.uniform()).take_while(|drawn| *drawn < loss).count();
        match speed {
            LinkSpeed::Bandwidth { bandwidth, spread } => {
                let bytes: usize = exchange.tensor_frames().map(|frame| frame.on_stream * sent()).sum();
                let normal = stream(self.seed, Purpose::Bandwidth, client as u64).normal();
                bytes as f64 / (bandwidth * libm::exp(spread * normal))
            }
            LinkSpeed::Radio { radio, computation } => {
                let mut seconds = |frames: &mut dyn Iterator<Item = Lengths>| -> f64 {
                    let packets = frames.flat_map(|frame| radio.packets(frame.sealed()));
                    packets.map(|packet| radio.airtime(packet).as_secs_f64() * sent() as f64).sum()
                };
                let down = seconds(&mut exchange.opening.iter().chain([&exchange.acknowledgement]).copied());
                let up = seconds(&mut exchange.update.iter().copied());
                (down + up / radio.device_duty) / computation
            }
        }
    }
}
