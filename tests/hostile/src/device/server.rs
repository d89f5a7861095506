//! Honest server with keys: answers hellos, seals messages, and records which of its frames the device may
//! accept.

use std::collections::{BTreeMap, BTreeSet};

use fedspan_protocol::frame::{HEADER_SEALED, HEADER_SHORT};
use fedspan_protocol::limits::{BEACON_TAG, HEADER, wire_capacity};
use fedspan_protocol::message::{ToDevice, ToServer, decode};
use fedspan_protocol::secure::{
    COUNTER, Channel, HANDSHAKE_INIT, HandshakeInit, Key, NONCE, SHORT_COUNTER, SHORT_TAG, Seals, Suite, TAG,
    is_answer, transcript,
};

use crate::reference;

/// Returns the key that the device was provisioned with.
pub fn key() -> Key {
    Key::new(2, [0x42; 32])
}

/// Hello of the device.
#[derive(Clone, PartialEq)]
struct Greeting {
    message: Vec<u8>,
    /// Number of the connection.
    connection: u32,
    epoch: u16,
}

/// A frame sealed by the honest server, before COBS.
struct Sealed {
    frame: Vec<u8>,
    /// Index of the channel that sealed the frame.
    channel: usize,
}

/// State of the honest server.
pub struct Server {
    /// Algorithm of the device.
    suite: Suite,
    /// True if the device seals with short counters and tags.
    has_short_seals: bool,
    /// Keys that the device may use, by epoch.
    keys: BTreeMap<u16, Key>,
    /// Channels, one for each answer, with the number of the handshake that the answer belongs to.
    channels: Vec<(Channel<Suite>, u64)>,
    /// Index of the channel of the last answer that is not a refusal.
    welcome: Option<usize>,
    sent_frames: Vec<Sealed>,
    /// Frames that the device has accepted.
    accepted: BTreeSet<Vec<u8>>,
    /// Hellos by handshake number.
    hellos: BTreeMap<u64, Greeting>,
    connection: u32,
    /// Handshake number of the last hello of this connection.
    hello: Option<u64>,
    open: Option<usize>,
}

impl Server {
    /// Creates the server of a device that seals with this algorithm, and with short or full counters and tags.
    pub fn new(suite: Suite, has_short_seals: bool) -> Self {
        Self {
            suite,
            has_short_seals,
            keys: BTreeMap::from([(key().epoch(), key())]),
            channels: Vec::new(),
            welcome: None,
            sent_frames: Vec::new(),
            accepted: BTreeSet::new(),
            hellos: BTreeMap::new(),
            connection: 0,
            hello: None,
            open: None,
        }
    }

    /// Adds a key that the device has accepted.
    pub fn add_key(&mut self, key: Key) {
        self.keys.insert(key.epoch(), key);
    }

    /// Returns true if the device has accepted a key of this epoch.
    pub fn has_key(&self, epoch: u16) -> bool {
        self.keys.contains_key(&epoch)
    }

    /// Returns the key with this epoch.
    pub fn key(&self, epoch: u16) -> &Key {
        &self.keys[&epoch]
    }

    /// Returns true if the device has accepted an answer to its hello on this connection.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the tag of a beacon for the device; `None` if it has accepted no answer.
    pub fn beacon_tag(&self, beacon: &[u8]) -> Option<[u8; BEACON_TAG]> {
        self.open.map(|open| self.channels[open].0.beacon_tag(beacon))
    }

    /// Starts a new connection after a link change or a reset of the device, which drops the device's session
    /// keys.
    pub fn reset_connection(&mut self) {
        self.connection += 1;
        (self.hello, self.open) = (None, None);
    }

    /// Records a hello of the device, which must use the key with this epoch. The same handshake number must not come with
    /// other bytes or in another connection.
    pub fn record_hello(&mut self, message: &[u8], body: &[u8], epoch: u16) {
        let greeting = HandshakeInit::read(body).expect("a hello of a device with a key has a greeting");
        assert_eq!((greeting.epoch, body.len()), (epoch, HANDSHAKE_INIT));
        let announced = match decode::<ToServer>(message) {
            Ok((ToServer::Hello(hello), _)) => Suite::announced(hello.capabilities.roles),
            other => panic!("{other:?} instead of a hello"),
        };
        assert_eq!(announced, self.suite, "the announced algorithm");
        let hello = Greeting { message: message.to_vec(), connection: self.connection, epoch };
        let known = self.hellos.entry(greeting.handshake).or_insert_with(|| hello.clone());
        assert!(*known == hello, "handshake {} was numbered twice", greeting.handshake);
        if self.hello != Some(greeting.handshake) {
            self.open = None;
        }
        self.hello = Some(greeting.handshake);
    }

    /// Opens a frame of the device. The frame must use the current keys and a new counter.
    pub fn open(&mut self, frame: &mut [u8]) -> Vec<u8> {
        let header = if self.has_short_seals { HEADER_SHORT } else { HEADER_SEALED };
        assert_eq!(frame.first(), Some(&header), "the form of the device's seals");
        let open = self.open.expect("the device sealed a frame before it accepted an answer");
        let message = self.channels[open]
            .0
            .open(frame)
            .expect("the frame does not open with the current keys, or its counter is not new");
        message.to_vec()
    }

    /// Answers the last hello; returns an empty frame if there was no hello.
    pub fn answer(&mut self, message: &[u8]) -> Vec<u8> {
        let Ok((message, _)) = decode::<ToDevice>(message) else { return Vec::new() };
        let hello = self.hello.or(self.hellos.last_key_value().map(|(number, _)| *number));
        let Some((number, greeting)) = hello.and_then(|number| Some((number, self.hellos.get(&number)?)))
        else {
            return Vec::new();
        };
        let mut nonce = [0; NONCE];
        nonce[..8].copy_from_slice(&self.channels.len().to_le_bytes());
        let key = self.key(greeting.epoch);
        let mut channel = Channel::server_with(self.suite, key, &transcript(&greeting.message), &nonce)
            .with_seals(Seals::Either);
        let mut wire = vec![0; wire_capacity(200)];
        let sent = channel.seal_answer(&nonce, &message, &mut wire).expect("room");
        if matches!(message, ToDevice::Welcome(_)) {
            self.welcome = Some(self.channels.len());
        }
        self.channels.push((channel, number));
        self.record_sent(&wire[..sent], self.channels.len() - 1)
    }

    /// Seals a message, however malformed, on the channel that the device has accepted, or else on the last
    /// channel.
    pub fn seal_message(&mut self, message: &[u8]) -> Vec<u8> {
        // After a refusal the server sends no further frames.
        let last = self.channels.len().checked_sub(1).filter(|last| self.welcome == Some(*last));
        let Some(index) = self.open.or(last) else { return Vec::new() };
        let wire = seal_message(&mut self.channels[index].0, message);
        self.record_sent(&wire, index)
    }

    fn record_sent(&mut self, wire: &[u8], channel: usize) -> Vec<u8> {
        let frame = reference::unstuff(&wire[..wire.len() - 1]).expect("a frame");
        self.sent_frames.push(Sealed { frame: frame.clone(), channel });
        frame
    }

    /// Returns the frame that was sealed `ago` frames before the last one.
    pub fn replay(&self, ago: usize) -> Vec<u8> {
        self.sent_frames.iter().rev().nth(ago).map(|sealed| sealed.frame.clone()).unwrap_or_default()
    }

    /// Returns a correctly sealed frame that does not belong to this connection: sealed with another key, for
    /// another handshake, or by the device's end.
    pub fn foreign_frame(&self, kind: u8, message: &[u8]) -> Vec<u8> {
        let Some(greeting) = self.hello.and_then(|number| self.hellos.get(&number)) else {
            return Vec::new();
        };
        let (transcript, nonce) = (transcript(&greeting.message), [kind; NONCE]);
        let (key, other_key) = (self.key(greeting.epoch), Key::new(greeting.epoch, [kind | 1; 32]));
        let server =
            |key: &Key, transcript: &[u8; 32]| Channel::server_with(self.suite, key, transcript, &nonce);
        let mut wire = vec![0; wire_capacity(200)];
        let welcome = |mut channel: Channel<Suite>, wire: &mut [u8]| {
            let (message, _) =
                decode::<ToDevice>(message).unwrap_or((ToDevice::RetryAfter { milliseconds: 1 }, &[]));
            channel.seal_answer(&nonce, &message, wire).unwrap_or(0)
        };
        let sent = match kind % 4 {
            0 => welcome(server(&other_key, &transcript), &mut wire),
            1 => welcome(server(key, &[kind; 32]), &mut wire),
            // Reflected frame: sealed by the device's end of the channel.
            2 => welcome(Channel::device_with(self.suite, key, &transcript, &nonce), &mut wire),
            _ => {
                let seals = if self.has_short_seals { Seals::Short } else { Seals::Full };
                wire = seal_message(&mut server(key, &[kind; 32]).with_seals(seals), message);
                wire.len()
            }
        };
        reference::unstuff(&wire[..sent.saturating_sub(1)]).unwrap_or_default()
    }

    /// Checks a frame that the device has accepted: this server must have sealed the frame for this
    /// connection, and the device must not have accepted it before.
    ///
    /// `opened` is the frame after decryption in place. Returns its message.
    pub fn record_accepted(&mut self, frame: &[u8], opened: &[u8]) -> Vec<u8> {
        let Some(sealed) = self.sent_frames.iter().find(|sealed| sealed.frame == frame) else {
            panic!("accepted a frame that the server did not seal: {frame:x?}")
        };
        let is_repeated = !self.accepted.insert(frame.to_vec());
        if !is_answer(frame) {
            assert_eq!(Some(sealed.channel), self.open, "sealed for another connection");
            assert!(!is_repeated, "a counter was accepted twice");
            let (counter, tag) =
                if opened[0] == HEADER_SHORT { (SHORT_COUNTER, SHORT_TAG) } else { (COUNTER, TAG) };
            return opened[HEADER + counter..opened.len() - tag].to_vec();
        }
        let (_, number) = self.channels[sealed.channel];
        assert_eq!(Some(number), self.hello, "the answer to another hello");
        let message = opened[HEADER + NONCE..opened.len() - TAG].to_vec();
        // A refusal only makes the device disconnect, so it may be repeated.
        if let Ok((ToDevice::Welcome(_), _)) = decode(&message) {
            assert!(!is_repeated, "an answer was accepted twice");
            self.open = Some(sealed.channel);
        }
        message
    }

    /// Returns true if the device must accept the frame, because it is the latest frame of the current
    /// connection.
    pub fn must_open(&self, frame: &[u8]) -> bool {
        matches!(frame.first(), Some(&(HEADER_SEALED | HEADER_SHORT)))
            && !self.accepted.contains(frame)
            && self
                .sent_frames
                .last()
                .is_some_and(|last| last.frame == frame && Some(last.channel) == self.open)
    }
}

/// Seals any message bytes. Bytes that decode are sealed as that message, others as the body of a message
/// that has none.
fn seal_message(channel: &mut Channel<Suite>, message: &[u8]) -> Vec<u8> {
    let bodiless = ToDevice::RetryAfter { milliseconds: 7 };
    let (message, body) = decode::<ToDevice>(message).unwrap_or((bodiless, message));
    let mut wire = vec![0; wire_capacity(400 + body.len())];
    let sent = channel.seal(&message, body.len(), |buffer| buffer.copy_from_slice(body), &mut wire);
    wire.truncate(sent.expect("room"));
    wire
}
