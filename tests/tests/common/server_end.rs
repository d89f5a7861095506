//! Test helpers: the server's end of a connection.

use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, Connection, PeerMessage};
use fedspan_aggregator::keys::ActiveKeys;
use fedspan_engine::admission::Requirements;
use fedspan_protocol::message::{Ack, AckOutcome, Model, ToDevice, Welcome};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

use super::rounds::{D, K, request, round_broadcast};

/// Welcome of the test campaign.
pub const WELCOME: Welcome = Welcome { campaign: 0xdead_beef, idle_milliseconds: 60_000 };

/// Returns the requirements of the test campaign.
pub fn requirements() -> Requirements {
    Requirements::new(Model::linear(D, K, 1), &[request(1)], None)
}

/// Creates the acceptor of a server with these keys; `seed` seeds its random numbers.
pub fn encrypted_acceptor(keys: &ActiveKeys, seed: u64) -> Arc<Acceptor> {
    let entropy = Box::new(ChaCha20Rng::seed_from_u64(seed));
    Arc::new(Acceptor::encrypted(requirements(), WELCOME, keys.clone(), entropy))
}

/// The server's end of one connection.
pub struct ServerEnd {
    pub connection: Connection,
    pub events: Vec<PeerMessage>,
}

impl ServerEnd {
    /// Creates the end of a connection that is closed after a refusal.
    pub fn new(acceptor: &Arc<Acceptor>) -> Self {
        Self { connection: Connection::new(Arc::clone(acceptor)), events: Vec::new() }
    }

    /// Creates the end of a serial line, which is never closed.
    pub fn persistent(acceptor: &Arc<Acceptor>) -> Self {
        Self { connection: Connection::persistent(Arc::clone(acceptor)), events: Vec::new() }
    }

    /// Receives frames; returns the frames that the server sends.
    pub fn receive(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for frame in frames {
            self.connection.receive(frame, &mut self.events);
        }
        self.take_frames()
    }

    /// Takes the frames that the server sends.
    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let mut frame = Vec::new();
            if !self.connection.next_frame(&mut frame) {
                return frames;
            }
            if !frame.is_empty() {
                frames.push(frame);
            }
        }
    }

    /// Returns the number of hellos among the events.
    pub fn count_hellos(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, PeerMessage::Hello(_))).count()
    }

    /// Returns the number of updates among the events.
    pub fn count_updates(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, PeerMessage::Update(_))).count()
    }
}

/// Handles events like the engine of a server with one device.
pub fn handle_server_events(server: &mut ServerEnd, round: u32, update_count: &mut u32) {
    for event in std::mem::take(&mut server.events) {
        match event {
            PeerMessage::Hello(_) => server.connection.open(&round_broadcast(round)),
            PeerMessage::Update(update) => {
                let outcome = if *update_count == 0 { AckOutcome::Counted } else { AckOutcome::Duplicate };
                *update_count += 1;
                server.connection.send(ToDevice::Ack(Ack { id: update.id, outcome }));
            }
            PeerMessage::Alive => {}
            other => panic!("{other:?}"),
        }
    }
}
