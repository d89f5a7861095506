//! Honest device with a key: sends hellos, seals messages, and records which of its frames the server may
//! accept.

use std::collections::{BTreeMap, BTreeSet};

use fedspan_aggregator::connection::{PeerMessage, Traffic};
use fedspan_aggregator::keys::{AcceptedKey, ActiveKeys, Entropy, KeyTable};
use fedspan_engine::DeviceId;
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{Hello, RECEIVES_KEYS, ToDevice, ToServer, decode};
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
    /// Epoch of the key.
    epoch: u16,
    transcript: [u8; 32],
    channel: Option<Channel>,
    answer: Vec<u8>,
    /// Number of sealed frames.
    sealed: u64,
    /// One more than the largest counter that was certainly accepted.
    end: u64,
}

impl Handshake {
    fn new(hello: Hello, epoch: u16, transcript: [u8; 32]) -> Self {
        Self { hello, epoch, transcript, channel: None, answer: Vec::new(), sealed: 0, end: 0 }
    }
}

/// State of the honest device.
pub struct Peer {
    table: KeyTable,
    keys: ActiveKeys,
    /// Keys of the next epoch that the server sends, by device.
    sent_keys: BTreeMap<u64, Key>,
    /// Device to which the server must still send a key on this connection.
    expects_key: Option<DeviceId>,
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

fn key_of(device: u64) -> Key {
    Key::new(0, [device as u8; 32])
}

impl Peer {
    /// Creates the device, and a table of keys. If `sends_keys` is true, new keys are being sent to two devices.
    pub fn new(sends_keys: bool) -> Self {
        let mut table = KeyTable::new();
        for device in DEVICES {
            table.insert(DeviceId(device), key_of(device), 0).expect("a new device");
        }
        let mut sent_keys = BTreeMap::new();
        if sends_keys {
            let devices = [7, 9].map(DeviceId);
            table.send(&devices, 1, &mut ChaCha8Rng::seed_from_u64(6)).expect("active keys");
            let sent = |device: DeviceId| table.lookup(device, 1).expect("a new key").key().clone();
            sent_keys.extend(devices.map(|device| (device.0, sent(device))));
        }
        Self {
            keys: ActiveKeys::new(table.clone()),
            table,
            sent_keys,
            expects_key: None,
            handshakes: Vec::new(),
            current: 0,
            sent_frames: Vec::new(),
            sealed: BTreeMap::new(),
            accepted: BTreeSet::new(),
            open: None,
            unfinished: Vec::new(),
        }
    }

    /// Returns the server's view of the keys.
    pub fn keys(&self) -> ActiveKeys {
        self.keys.clone()
    }

    /// Returns the key of a handshake; a device to which no key is sent invents one.
    fn key_for(&self, hello: &Hello, epoch: u16) -> Key {
        match (epoch, self.sent_keys.get(&hello.device)) {
            (0, _) => key_of(hello.device),
            (_, Some(key)) => key.clone(),
            _ => Key::new(epoch, [0xAA; 32]),
        }
    }

    /// Records a hello that the server has accepted under a key: a server marks the key as used, and sends the next one to a device
    /// that can store it.
    pub fn record_hello(&mut self, hello: &Hello, key: &AcceptedKey) {
        assert_eq!(key.device().0, hello.device);
        key.mark_used();
        let receives = hello.capabilities.roles & RECEIVES_KEYS != 0;
        let next = self.keys.key_to_send(key.device(), key.epoch());
        assert!(next.is_none() || key.epoch() == 0);
        self.expects_key = next.filter(|_| receives).map(|_| key.device());
    }

    /// Ends replaced keys, as a server does when a round has closed: those that the server has sent must have been used.
    pub fn round_closed(&mut self) {
        let used = self.sent_keys.keys().filter(|&&device| self.keys.has_used_sent_key(DeviceId(device)));
        let used: Vec<u64> = used.copied().collect();
        assert_eq!(self.keys.round_closed(), used.len());
        for device in self.sent_keys.keys().copied() {
            let ends = used.contains(&device);
            assert!(
                !ends || self.keys.lookup(DeviceId(device), 0).is_none(),
                "the old key of {device} is kept"
            );
        }
    }

    /// Returns true if the server must still send a new key to the device, which was not revoked.
    pub fn expects_key(&self) -> bool {
        let key = self.expects_key.and_then(|device| self.keys.lookup(device, 0));
        key.is_some_and(|key| key.is_accepted())
    }

    /// Returns the server's source of random numbers.
    pub fn entropy(&self) -> Box<dyn Entropy> {
        Box::new(ChaCha8Rng::seed_from_u64(5))
    }

    /// Starts a handshake of a device with a frame limit. One of the devices is unknown to the server.
    pub fn hello(&mut self, kind: u8) -> Vec<u8> {
        let device = [7, 7, 8, 9, 10][usize::from(kind % 5)];
        let mut hello = hello(device, [128, 4096][usize::from(kind / 5 % 2)]);
        if kind / 10 % 2 == 1 {
            hello.capabilities.roles |= RECEIVES_KEYS;
        }
        let handshake = self.handshakes.len() as u64;
        let epoch = u16::from(kind / 20 % 2);
        let greeting = HandshakeInit { epoch, handshake, nonce: [kind; NONCE] };
        let mut wire = vec![0; wire_capacity(200 + HANDSHAKE_INIT)];
        let (sent, transcript) = encode_hello(hello, &greeting, &mut wire).expect("room");
        wire.truncate(sent);
        self.current = self.handshakes.len();
        self.handshakes.push(Handshake::new(hello, epoch, transcript));
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

    /// Revokes the keys of a device.
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
        let key = self.key_for(&handshake.hello, handshake.epoch);
        let mut channel = match kind % 4 {
            0 => Channel::device(&key, &[kind; 32], &nonce),
            1 => Channel::device(&key_of(device + 1), &handshake.transcript, &nonce),
            2 => Channel::device(&Key::new(1, [device as u8; 32]), &[0; 32], &nonce),
            _ => {
                let mut channel = Channel::server(&key, &handshake.transcript, &nonce);
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
            let mut opened = self.handshakes.iter_mut().filter_map(|handshake| {
                let message = handshake.channel.as_mut()?.try_open(frame).ok()?;
                Some((handshake.hello, handshake.epoch, message))
            });
            let (hello, epoch, message) = opened.next().expect("a frame of one of the handshakes");
            let (message, _) = decode::<ToDevice>(&frame[message]).expect("a message");
            if let ToDevice::NewKey(new) = message {
                let receives = hello.capabilities.roles & RECEIVES_KEYS != 0;
                assert!(receives && epoch == 0, "a new key for {hello:?} at epoch {epoch}");
                assert!(
                    Some(&new.key()) == self.sent_keys.get(&hello.device),
                    "another key than the new one"
                );
                self.expects_key = None;
            }
            return;
        }
        let nonce = answer_nonce(frame).expect("an answer has a nonce");
        // The server repeats its answer to the same hello.
        if self.handshakes.iter().any(|handshake| handshake.answer == frame) {
            return;
        }
        for index in 0..self.handshakes.len() {
            let Handshake { hello, epoch, transcript, .. } = self.handshakes[index];
            let mut channel = Channel::device(&self.key_for(&hello, epoch), &transcript, &nonce);
            let mut copy = frame.to_vec();
            let Ok(message) = channel.open(&mut copy) else { continue };
            let (message, _) = decode::<ToDevice>(message).expect("a message");
            assert!(matches!(message, ToDevice::Welcome(_) | ToDevice::Refused(_)), "{message:?}");
            let (channel, answer) = (Some(channel), frame.to_vec());
            let answered = Handshake { channel, answer, ..Handshake::new(hello, epoch, transcript) };
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
        // A report that proves the key comes with the hello, from one frame.
        let proofs =
            events.windows(2).filter(|pair| matches!(pair, [PeerMessage::Hello(_), PeerMessage::Report(_)]));
        assert!(accepted.count() <= opened + proofs.count(), "{events:?} from {opened} frames");
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
            let Handshake { hello, epoch, .. } = &self.handshakes[handshake];
            let key = self.keys.lookup(DeviceId(hello.device), *epoch);
            let is_accepted = key.is_some_and(|key| key.is_accepted());
            assert!(
                opened == 0 || is_accepted || is_ended,
                "a frame was accepted under a key that has ended"
            );
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
