//! Honest device with a key: sends hellos, seals messages, and records which of its frames the server may
//! accept.

use std::collections::{BTreeMap, BTreeSet};

use fedspan_aggregator::connection::{PeerMessage, Traffic};
use fedspan_aggregator::keys::{ActiveKeys, Entropy, KeyTable};
use fedspan_engine::DeviceId;
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{Hello, ToDevice, ToServer, decode};
use fedspan_protocol::secure::{
    Channel, HANDSHAKE_INIT, HandshakeInit, Key, NONCE, WINDOW, answer_nonce, encode_hello, is_answer,
};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use super::messages::hello;
use crate::reference;

/// Devices with keys; the last one is not allowed to join.
const DEVICES: [u64; 3] = [7, 8, 9];

/// A hello, and the channel and answer that resulted from it.
struct Handshake {
    hello: Hello,
    transcript: [u8; 32],
    channel: Option<Channel>,
    answer: Vec<u8>,
    /// Number of sealed frames.
    sealed: u64,
    /// One more than the largest counter that was certainly accepted.
    end: u64,
}

impl Handshake {
    fn new(hello: Hello, transcript: [u8; 32]) -> Self {
        Self { hello, transcript, channel: None, answer: Vec::new(), sealed: 0, end: 0 }
    }
}

/// State of the honest device.
pub struct Peer {
    table: KeyTable,
    handshakes: Vec<Handshake>,
    /// Index of the handshake that the device currently uses.
    current: usize,
    /// All frames that the device has created, with delimiter, including frames that never arrived.
    sent_frames: Vec<Vec<u8>>,
    /// Sealed frames before COBS encoding, each with its handshake and counter.
    sealed: BTreeMap<Vec<u8>, (usize, u64)>,
    /// Frames that were certainly accepted.
    accepted: BTreeSet<Vec<u8>>,
    /// Handshake whose frames the server accepts; `None` if that is not certain.
    open: Option<usize>,
    /// Bytes received by the server since the last delimiter.
    unfinished: Vec<u8>,
}

impl Default for Peer {
    fn default() -> Self {
        let mut table = KeyTable::new();
        for device in DEVICES {
            table.insert(DeviceId(device), key_of(device), 0).expect("a new device");
        }
        Self {
            table,
            handshakes: Vec::new(),
            current: 0,
            sent_frames: Vec::new(),
            sealed: BTreeMap::new(),
            accepted: BTreeSet::new(),
            open: None,
            unfinished: Vec::new(),
        }
    }
}

fn key_of(device: u64) -> Key {
    Key::new(0, [device as u8; 32])
}

impl Peer {
    /// Returns the server's view of the keys.
    pub fn keys(&self) -> ActiveKeys {
        ActiveKeys::new(self.table.clone())
    }

    /// Returns the server's source of random numbers.
    pub fn entropy(&self) -> Box<dyn Entropy> {
        Box::new(ChaCha8Rng::seed_from_u64(5))
    }

    /// Starts a handshake of a device with a frame limit. One of the devices is unknown to the server.
    pub fn hello(&mut self, kind: u8) -> Vec<u8> {
        let device = [7, 7, 8, 9, 10][usize::from(kind % 5)];
        let hello = hello(device, [128, 4096][usize::from(kind / 5 % 2)]);
        let handshake = self.handshakes.len() as u64;
        let greeting = HandshakeInit { epoch: 0, handshake, nonce: [kind; NONCE] };
        let mut wire = vec![0; wire_capacity(200 + HANDSHAKE_INIT)];
        let (sent, transcript) = encode_hello(hello, &greeting, &mut wire).expect("room");
        wire.truncate(sent);
        self.current = self.handshakes.len();
        self.handshakes.push(Handshake::new(hello, transcript));
        self.sent_frames.push(wire.clone());
        wire
    }

    /// Returns the frame that was created `ago` frames before the last one.
    pub fn replay(&self, ago: usize) -> Vec<u8> {
        self.sent_frames.iter().rev().nth(ago).cloned().unwrap_or_default()
    }

    /// Switches the device to another of its handshakes.
    pub fn switch_handshake(&mut self, handshake: usize) {
        self.current = handshake;
    }

    /// Revokes the key of a device.
    pub fn revoke(&mut self, device: u8) {
        // Revoking a key twice fails, which does not matter here.
        let _ = self.table.revoke(&[DeviceId(DEVICES[usize::from(device) % DEVICES.len()])], 1);
    }

    /// Seals a message, however malformed. Returns an empty frame before the server's answer.
    pub fn seal_message(&mut self, message: &[u8]) -> Vec<u8> {
        let Some(handshake) = self.handshakes.get_mut(self.current) else { return Vec::new() };
        let Some(channel) = &mut handshake.channel else { return Vec::new() };
        let wire = seal_message(channel, message);
        let plain = reference::unstuff(&wire[..wire.len() - 1]).expect("a frame");
        self.sealed.insert(plain, (self.current, handshake.sealed));
        handshake.sealed += 1;
        self.sent_frames.push(wire.clone());
        wire
    }

    /// Returns a correctly sealed frame that does not belong to this connection: the right key with another
    /// handshake, another device's key with this handshake, another epoch, or an answer sealed by the
    /// server's end.
    pub fn foreign_frame(&self, kind: u8, message: &[u8]) -> Vec<u8> {
        let Some(handshake) = self.handshakes.get(self.current) else { return Vec::new() };
        let (device, nonce) = (handshake.hello.device, [kind; NONCE]);
        let mut channel = match kind % 4 {
            0 => Channel::device(&key_of(device), &[kind; 32], &nonce),
            1 => Channel::device(&key_of(device + 1), &handshake.transcript, &nonce),
            2 => Channel::device(&Key::new(1, [device as u8; 32]), &[0; 32], &nonce),
            _ => {
                let mut channel = Channel::server(&key_of(device), &handshake.transcript, &nonce);
                let mut wire = vec![0; wire_capacity(100)];
                let message = ToDevice::RetryAfter { milliseconds: 1 };
                let sent = channel.seal_answer(&nonce, &message, &mut wire).expect("room");
                wire.truncate(sent);
                return wire;
            }
        };
        seal_message(&mut channel, message)
    }

    /// Receives a sealed frame from the server; it must open under one of the handshakes.
    pub fn receive(&mut self, frame: &mut [u8]) {
        if !is_answer(frame) {
            let mut opened = self.handshakes.iter_mut().filter_map(|handshake| handshake.channel.as_mut());
            let message = opened
                .find_map(|channel| channel.try_open(frame).ok())
                .expect("a frame of one of the handshakes");
            decode::<ToDevice>(&frame[message]).expect("a message");
            return;
        }
        let nonce = answer_nonce(frame).expect("an answer has a nonce");
        // The server repeats its answer to the same hello.
        if self.handshakes.iter().any(|handshake| handshake.answer == frame) {
            return;
        }
        for index in 0..self.handshakes.len() {
            let Handshake { hello, transcript, .. } = self.handshakes[index];
            let mut channel = Channel::device(&key_of(hello.device), &transcript, &nonce);
            let mut copy = frame.to_vec();
            let Ok(message) = channel.open(&mut copy) else { continue };
            let (message, _) = decode::<ToDevice>(message).expect("a message");
            assert!(matches!(message, ToDevice::Welcome(_) | ToDevice::Refused(_)), "{message:?}");
            let (channel, answer) = (Some(channel), frame.to_vec());
            let answered = Handshake { channel, answer, ..Handshake::new(hello, transcript) };
            if self.handshakes[index].channel.is_none() {
                self.handshakes[index] = answered;
            } else {
                // The server answers a hello that is replayed after another one with a new nonce.
                self.current = self.handshakes.len();
                self.handshakes.push(answered);
            }
            return;
        }
        // An answer to a damaged hello matches no handshake; the device ignores it.
    }

    /// Compares the frames that the server opened in one read with the frames that the device sealed: the
    /// server must accept no other frame, and no frame twice.
    pub fn check_accepted(&mut self, read: &[u8], before: &Traffic, after: &Traffic, events: &[PeerMessage]) {
        let opened = (after.frames.accepted - before.frames.accepted) as usize;
        self.unfinished.extend_from_slice(read);
        if !read.contains(&0) {
            assert_eq!((opened, events), (0, &[][..]), "half a frame was accepted");
            return;
        }
        let end = self.unfinished.iter().rposition(|byte| *byte == 0).map_or(0, |last| last + 1);
        let incomplete = self.unfinished.split_off(end);
        let complete = std::mem::replace(&mut self.unfinished, incomplete);
        let sequences: Vec<_> = reference::sequences(&complete).map(reference::unstuff).collect();
        let new_frames: BTreeSet<&Vec<u8>> = sequences
            .iter()
            .flatten()
            .filter(|plain| self.sealed.contains_key(*plain) && !self.accepted.contains(*plain))
            .collect();
        assert!(opened <= new_frames.len(), "{opened} frames accepted, {} were sealed", new_frames.len());
        let accepted = events.iter().filter(|event| {
            !matches!(event, PeerMessage::Fault(_) | PeerMessage::Refused(_) | PeerMessage::Revoked)
        });
        assert!(accepted.count() <= opened, "{events:?} from {opened} frames");
        for inbound in events {
            if let PeerMessage::Hello(hello) = inbound {
                assert!(self.handshakes.iter().any(|handshake| handshake.hello == *hello), "{hello:?}");
            }
        }
        let is_ended =
            events.iter().any(|event| matches!(event, PeerMessage::Refused(_) | PeerMessage::Revoked));
        let oversize = after.frames.oversize > before.frames.oversize;
        let greeted = events.iter().any(|event| matches!(event, PeerMessage::Hello(_)));
        // If only one frame arrived, it is certain which frame was accepted, and whether it had to be.
        let only_frame = new_frames.first().filter(|_| sequences.len() == 1).map(|frame| self.sealed[*frame]);
        if let Some((handshake, counter)) = only_frame {
            let must_accept =
                self.open == Some(handshake) && counter + WINDOW >= self.handshakes[handshake].end;
            assert!(
                opened == 1 || !must_accept || is_ended || oversize,
                "frame {counter} of handshake {handshake} was not accepted"
            );
        }
        if greeted || opened > 0 && opened < new_frames.len() {
            // With several frames in one read, it is uncertain which of them were accepted.
            self.open = only_frame.map(|(handshake, _)| handshake);
        }
        if opened == new_frames.len() {
            let accepted: Vec<Vec<u8>> = new_frames.into_iter().cloned().collect();
            for frame in accepted {
                let (handshake, counter) = self.sealed[&frame];
                let end = &mut self.handshakes[handshake].end;
                *end = (*end).max(counter + 1);
                self.accepted.insert(frame);
            }
        }
    }
}

/// Seals any message bytes. Bytes that decode are sealed as that message, others as the body of a message
/// that has none.
fn seal_message(channel: &mut Channel, message: &[u8]) -> Vec<u8> {
    let (message, body) = decode::<ToServer>(message).unwrap_or((ToServer::Alive, message));
    let mut wire = vec![0; wire_capacity(400 + body.len())];
    let sent = channel.seal(&message, body.len(), |buffer| buffer.copy_from_slice(body), &mut wire);
    wire.truncate(sent.expect("room"));
    wire
}
