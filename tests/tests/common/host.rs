//! A server's end of one link, and what it lets in.

use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, Connection, PeerMessage};
use fedspan_aggregator::keys::ActiveKeys;
use fedspan_engine::admission::Requirements;
use fedspan_protocol::message::{Ack, AckOutcome, Model, ToDevice, Welcome};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

use super::rounds::{D, K, opening, request};

pub const WELCOME: Welcome = Welcome { campaign: 0xdead_beef, idle_milliseconds: 60_000 };

pub fn requirements() -> Requirements {
    Requirements::new(Model::linear(D, K, 1), &[request(1)], None)
}

/// A server that knows these devices' keys; `seed` is its randomness.
pub fn gate(keys: &ActiveKeys, seed: u64) -> Arc<Acceptor> {
    let entropy = Box::new(ChaCha20Rng::seed_from_u64(seed));
    Arc::new(Acceptor::encrypted(requirements(), WELCOME, keys.clone(), entropy))
}

/// A server's end of one link.
pub struct Host {
    pub connection: Connection,
    pub said: Vec<PeerMessage>,
}

impl Host {
    pub fn new(gate: &Arc<Acceptor>) -> Self {
        Self { connection: Connection::new(Arc::clone(gate)), said: Vec::new() }
    }

    pub fn lasting(gate: &Arc<Acceptor>) -> Self {
        Self { connection: Connection::persistent(Arc::clone(gate)), said: Vec::new() }
    }

    /// Frames from the wire; the frames that go back.
    pub fn hear(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for frame in frames {
            self.connection.receive(frame, &mut self.said);
        }
        self.frames()
    }

    /// The frames that wait.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let mut frame = Vec::new();
            if !self.connection.next_frame(&mut frame) {
                return all;
            }
            if !frame.is_empty() {
                all.push(frame);
            }
        }
    }

    pub fn joined(&self) -> usize {
        self.said.iter().filter(|said| matches!(said, PeerMessage::Hello(_))).count()
    }

    pub fn updates(&self) -> usize {
        self.said.iter().filter(|said| matches!(said, PeerMessage::Update(_))).count()
    }
}

/// What a server's engine does, as far as one device sees it.
pub fn react(host: &mut Host, round: u32, done: &mut u32) {
    for said in std::mem::take(&mut host.said) {
        match said {
            PeerMessage::Hello(_) => host.connection.open(&opening(round)),
            PeerMessage::Update(update) => {
                let outcome = if *done == 0 { AckOutcome::Counted } else { AckOutcome::Duplicate };
                *done += 1;
                host.connection.send(ToDevice::Ack(Ack { id: update.id, outcome }));
            }
            PeerMessage::Alive => {}
            other => panic!("{other:?}"),
        }
    }
}
