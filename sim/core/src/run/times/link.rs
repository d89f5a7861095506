//! Transmission times of the frames of a round over simulated links.

use fedspan_engine::RoundBroadcast;
use fedspan_engine::random::{Purpose, stream};
use fedspan_protocol::message::RoundId;

use super::drawn::stream_index;
use crate::radio::Exchange;
use crate::scenario::{LinkSection, LinkSpeed};

/// Transmission of a round to and from a client.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transmission {
    /// Time of the transmission, in mean computations.
    pub time: f64,
    /// Seconds on the air of packets of the client over a radio.
    pub sending: f64,
    /// Seconds on the air of packets to the client over a radio.
    pub receiving: f64,
    /// Number of sealed frames over a radio.
    pub frames: usize,
    /// Length of these frames, in bytes.
    pub bytes: usize,
}

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

    /// Transmission of a round to and from a client. A lost frame, or packet of a radio, is retransmitted until it is
    /// received.
    pub fn transmission(&mut self, client: usize, opening: &RoundBroadcast) -> Transmission {
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
                let time = bytes as f64 / (bandwidth * libm::exp(spread * normal));
                Transmission { time, ..Transmission::default() }
            }
            LinkSpeed::Radio { radio, computation, .. } => {
                let mut seconds = |frames: &mut dyn Iterator<Item = usize>| -> f64 {
                    let packets = frames.flat_map(|frame| radio.packets(frame));
                    packets.map(|packet| radio.airtime(packet).as_secs_f64() * sent() as f64).sum()
                };
                let receiving = seconds(&mut exchange.frames_down());
                let sending = seconds(&mut exchange.frames_up());
                Transmission {
                    time: (receiving + sending / radio.device_duty) / computation,
                    sending,
                    receiving,
                    frames: exchange.frames_down().chain(exchange.frames_up()).count(),
                    bytes: exchange.frames_down().chain(exchange.frames_up()).sum(),
                }
            }
        }
    }
}
