//! The honest server of the script where frames are encrypted: it has the device's key, answers hellos, seals what it
//! says, and knows which of its frames the device may believe.

use std::collections::{BTreeMap, BTreeSet};

use fedspan_protocol::frame::HEADER_SEALED;
use fedspan_protocol::limits::{HEADER, wire_capacity};
use fedspan_protocol::message::{ToDevice, decode};
use fedspan_protocol::secure::{
    COUNTER, Channel, HANDSHAKE_INIT, HandshakeInit, Key, NONCE, TAG, is_answer, transcript,
};

use crate::reference;

/// The device's key.
pub fn key() -> Key {
    Key::new(2, [0x42; 32])
}

/// What an honest server has sealed, without COBS.
struct Sealed {
    frame: Vec<u8>,
    /// Of which of the channels.
    channel: usize,
}

#[derive(Default)]
pub struct Server {
    /// One for each answer, and the number of the hello that it answers.
    channels: Vec<(Channel, u64)>,
    /// The last of them that is not a refusal.
    welcome: Option<usize>,
    said: Vec<Sealed>,
    /// Frames that the device has believed.
    believed: BTreeSet<Vec<u8>>,
    /// Hellos by the number of their handshake, and the connection in which they came.
    hellos: BTreeMap<u64, (Vec<u8>, u32)>,
    connection: u32,
    /// Of this connection: the number of its last hello, the channel whose answer the device has believed.
    hello: Option<u64>,
    open: Option<usize>,
}

impl Server {
    /// The link came, went, or the device was reset: it has forgotten its keys.
    pub fn cut(&mut self) {
        self.connection += 1;
        (self.hello, self.open) = (None, None);
    }

    /// A hello of the device: no number comes twice with other bytes, or in another connection.
    pub fn greeted(&mut self, message: &[u8], body: &[u8]) {
        let greeting = HandshakeInit::read(body).expect("a hello of a device with a key has a greeting");
        assert_eq!((greeting.epoch, body.len()), (key().epoch(), HANDSHAKE_INIT));
        let hello = (message.to_vec(), self.connection);
        let known = self.hellos.entry(greeting.handshake).or_insert_with(|| hello.clone());
        assert!(*known == hello, "handshake {} was numbered twice", greeting.handshake);
        if self.hello != Some(greeting.handshake) {
            self.open = None;
        }
        self.hello = Some(greeting.handshake);
    }

    /// The message of a frame that the device has sealed: under keys that this server has, once.
    pub fn open(&mut self, frame: &mut [u8]) -> Vec<u8> {
        assert!(!is_answer(frame), "a device answers no hello");
        let open = self.open.expect("sealed without an answer");
        let message =
            self.channels[open].0.open(frame).expect("sealed for somebody else, or with a used counter");
        message.to_vec()
    }

    /// Answers the last hello, or without one says nothing.
    pub fn answer(&mut self, message: &[u8]) -> Vec<u8> {
        let Ok((message, _)) = decode::<ToDevice>(message) else { return Vec::new() };
        let hello = self.hello.or(self.hellos.last_key_value().map(|(number, _)| *number));
        let Some((number, (bytes, _))) = hello.and_then(|number| Some((number, self.hellos.get(&number)?)))
        else {
            return Vec::new();
        };
        let mut nonce = [0; NONCE];
        nonce[..8].copy_from_slice(&self.channels.len().to_le_bytes());
        let mut channel = Channel::server(&key(), &transcript(bytes), &nonce);
        let mut wire = vec![0; wire_capacity(200)];
        let sent = channel.seal_answer(&nonce, &message, &mut wire).expect("room");
        if matches!(message, ToDevice::Welcome(_)) {
            self.welcome = Some(self.channels.len());
        }
        self.channels.push((channel, number));
        self.keep(&wire[..sent], self.channels.len() - 1)
    }

    /// Seals a message, however malformed, for the connection that the device believes in, else for the last one.
    pub fn seal(&mut self, message: &[u8]) -> Vec<u8> {
        // Whom it has refused it says nothing more.
        let last = self.channels.len().checked_sub(1).filter(|last| self.welcome == Some(*last));
        let Some(index) = self.open.or(last) else { return Vec::new() };
        let wire = seal(&mut self.channels[index].0, message);
        self.keep(&wire, index)
    }

    fn keep(&mut self, wire: &[u8], channel: usize) -> Vec<u8> {
        let frame = reference::unstuff(&wire[..wire.len() - 1]).expect("a frame");
        self.said.push(Sealed { frame: frame.clone(), channel });
        frame
    }

    /// The frame that was sealed so many frames ago.
    pub fn earlier(&self, ago: usize) -> Vec<u8> {
        self.said.iter().rev().nth(ago).map(|sealed| sealed.frame.clone()).unwrap_or_default()
    }

    /// A frame that is sealed well, and not for this connection: another key, another handshake, its own direction.
    pub fn elsewhere(&self, how: u8, message: &[u8]) -> Vec<u8> {
        let Some((hello, _)) = self.hello.and_then(|number| self.hellos.get(&number)) else {
            return Vec::new();
        };
        let (transcript, nonce) = (transcript(hello), [how; NONCE]);
        let other = Key::new(2, [how | 1; 32]);
        let mut wire = vec![0; wire_capacity(200)];
        let welcome = |mut channel: Channel, wire: &mut [u8]| {
            let (message, _) =
                decode::<ToDevice>(message).unwrap_or((ToDevice::RetryAfter { milliseconds: 1 }, &[]));
            channel.seal_answer(&nonce, &message, wire).unwrap_or(0)
        };
        let sent = match how % 4 {
            0 => welcome(Channel::server(&other, &transcript, &nonce), &mut wire),
            1 => welcome(Channel::server(&key(), &[how; 32], &nonce), &mut wire),
            // Reflected: as the device itself would seal it.
            2 => welcome(Channel::device(&key(), &transcript, &nonce), &mut wire),
            _ => {
                wire = seal(&mut Channel::server(&key(), &[how; 32], &nonce), message);
                wire.len()
            }
        };
        reference::unstuff(&wire[..sent.saturating_sub(1)]).unwrap_or_default()
    }

    /// The device has believed a frame: it was sealed by this server, for this connection, and not believed before.
    ///
    /// `opened` is what is left of it: decrypted in place. Returns its message.
    pub fn believed(&mut self, frame: &[u8], opened: &[u8]) -> Vec<u8> {
        let Some(sealed) = self.said.iter().find(|sealed| sealed.frame == frame) else {
            panic!("believed what nobody has sealed: {frame:x?}")
        };
        let again = !self.believed.insert(frame.to_vec());
        if !is_answer(frame) {
            assert_eq!(Some(sealed.channel), self.open, "sealed for another connection");
            assert!(!again, "a counter was accepted twice");
            return opened[HEADER + COUNTER..opened.len() - TAG].to_vec();
        }
        let (_, number) = self.channels[sealed.channel];
        assert_eq!(Some(number), self.hello, "the answer to another hello");
        let message = opened[HEADER + NONCE..opened.len() - TAG].to_vec();
        // A refusal changes nothing but that the device goes, and may come again until it has.
        if let Ok((ToDevice::Welcome(_), _)) = decode(&message) {
            assert!(!again, "an answer was believed twice");
            self.open = Some(sealed.channel);
        }
        message
    }

    /// Whether a frame must be believed: it is the next of a connection that stands.
    pub fn is_due(&self, frame: &[u8]) -> bool {
        frame.first() == Some(&HEADER_SEALED)
            && !self.believed.contains(frame)
            && self.said.last().is_some_and(|last| last.frame == frame && Some(last.channel) == self.open)
    }
}

/// The frame of any message bytes: what decodes as it is, anything else behind a message that takes no body.
fn seal(channel: &mut Channel, message: &[u8]) -> Vec<u8> {
    let alone = ToDevice::RetryAfter { milliseconds: 7 };
    let (message, body) = decode::<ToDevice>(message).unwrap_or((alone, message));
    let mut wire = vec![0; wire_capacity(400 + body.len())];
    let sent = channel.seal(&message, body.len(), |place| place.copy_from_slice(body), &mut wire);
    wire.truncate(sent.expect("room"));
    wire
}
