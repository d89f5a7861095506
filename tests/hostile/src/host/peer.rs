//! The honest device of the script where frames are encrypted: it has its key, says hello, seals what it says, and
//! knows which of its frames a server may believe.

use std::collections::{BTreeMap, BTreeSet};

use fedspan_aggregator::connection::{PeerMessage, Traffic};
use fedspan_aggregator::keys::{ActiveKeys, Entropy, KeyTable};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{Hello, ToDevice, ToServer, decode};
use fedspan_protocol::secure::{
    Channel, GREETING, Greeting, Key, NONCE, WINDOW, answer_nonce, encode_hello, is_answer,
};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use super::messages::hello;
use crate::reference;

/// Devices that have keys; the last of them may not take part.
const DEVICES: [u64; 3] = [7, 8, 9];

/// One hello, and what came of it.
struct Handshake {
    hello: Hello,
    transcript: [u8; 32],
    channel: Option<Channel>,
    answer: Vec<u8>,
    /// Frames that were sealed.
    sealed: u64,
    /// One more than the largest counter that was certainly believed.
    end: u64,
}

impl Handshake {
    fn new(hello: Hello, transcript: [u8; 32]) -> Self {
        Self { hello, transcript, channel: None, answer: Vec::new(), sealed: 0, end: 0 }
    }
}

pub struct Peer {
    table: KeyTable,
    handshakes: Vec<Handshake>,
    /// The one that it speaks under.
    current: usize,
    /// Every frame that it has made, with its delimiter, also those that are still on their way.
    said: Vec<Vec<u8>>,
    /// Sealed frames without COBS: under which handshake, with which counter.
    sealed: BTreeMap<Vec<u8>, (usize, u64)>,
    /// Those that were believed for certain.
    believed: BTreeSet<Vec<u8>>,
    /// The handshake under which the server believes, if that is certain.
    open: Option<usize>,
    /// Bytes since the last delimiter.
    unfinished: Vec<u8>,
}

impl Default for Peer {
    fn default() -> Self {
        let mut table = KeyTable::new();
        for device in DEVICES {
            table.insert(device, key(device), 0).expect("a new device");
        }
        Self {
            table,
            handshakes: Vec::new(),
            current: 0,
            said: Vec::new(),
            sealed: BTreeMap::new(),
            believed: BTreeSet::new(),
            open: None,
            unfinished: Vec::new(),
        }
    }
}

fn key(device: u64) -> Key {
    Key::new(0, [device as u8; 32])
}

impl Peer {
    pub fn keys(&self) -> ActiveKeys {
        ActiveKeys::new(self.table.clone())
    }

    /// The server's.
    pub fn entropy(&self) -> Box<dyn Entropy> {
        Box::new(ChaCha8Rng::seed_from_u64(5))
    }

    /// Begins a handshake: of a device (one of them is known to nobody), with a frame limit.
    pub fn hello(&mut self, which: u8) -> Vec<u8> {
        let device = [7, 7, 8, 9, 10][usize::from(which % 5)];
        let hello = hello(device, [128, 4096][usize::from(which / 5 % 2)]);
        let handshake = self.handshakes.len() as u64;
        let greeting = Greeting { epoch: 0, handshake, nonce: [which; NONCE] };
        let mut wire = vec![0; wire_capacity(200 + GREETING)];
        let (sent, transcript) = encode_hello(hello, &greeting, &mut wire).expect("room");
        wire.truncate(sent);
        self.current = self.handshakes.len();
        self.handshakes.push(Handshake::new(hello, transcript));
        self.said.push(wire.clone());
        wire
    }

    /// The frame that was made so many frames ago.
    pub fn earlier(&self, ago: usize) -> Vec<u8> {
        self.said.iter().rev().nth(ago).cloned().unwrap_or_default()
    }

    /// Speaks under another of its handshakes from now on.
    pub fn turn_to(&mut self, handshake: usize) {
        self.current = handshake;
    }

    pub fn revoke(&mut self, device: u8) {
        // A device that has no key any more is refused; that is all the same here.
        let _ = self.table.revoke(&[DEVICES[usize::from(device) % DEVICES.len()]], 1);
    }

    /// Seals a message, however malformed; nothing before the server's answer.
    pub fn seal(&mut self, message: &[u8]) -> Vec<u8> {
        let Some(handshake) = self.handshakes.get_mut(self.current) else { return Vec::new() };
        let Some(channel) = &mut handshake.channel else { return Vec::new() };
        let wire = seal(channel, message);
        let plain = reference::unstuff(&wire[..wire.len() - 1]).expect("a frame");
        self.sealed.insert(plain, (self.current, handshake.sealed));
        handshake.sealed += 1;
        self.said.push(wire.clone());
        wire
    }

    /// A frame that is sealed well, and not for this connection: with the right key under another handshake, with
    /// another device's key under this one, as if it came from the server, or an answer.
    pub fn elsewhere(&self, how: u8, message: &[u8]) -> Vec<u8> {
        let Some(handshake) = self.handshakes.get(self.current) else { return Vec::new() };
        let (device, nonce) = (handshake.hello.device, [how; NONCE]);
        let mut channel = match how % 4 {
            0 => Channel::device(&key(device), &[how; 32], &nonce),
            1 => Channel::device(&key(device + 1), &handshake.transcript, &nonce),
            2 => Channel::device(&Key::new(1, [device as u8; 32]), &[0; 32], &nonce),
            _ => {
                let mut channel = Channel::server(&key(device), &handshake.transcript, &nonce);
                let mut wire = vec![0; wire_capacity(100)];
                let message = ToDevice::RetryAfter { milliseconds: 1 };
                let sent = channel.seal_answer(&nonce, &message, &mut wire).expect("room");
                wire.truncate(sent);
                return wire;
            }
        };
        seal(&mut channel, message)
    }

    /// Takes a sealed frame from the server: each opens, and once.
    pub fn hear(&mut self, frame: &mut [u8]) {
        if !is_answer(frame) {
            let mut opened = self.handshakes.iter_mut().filter_map(|handshake| handshake.channel.as_mut());
            let message =
                opened.find_map(|channel| channel.try_open(frame).ok()).expect("a frame for nobody");
            decode::<ToDevice>(&frame[message]).expect("a message");
            return;
        }
        let nonce = answer_nonce(frame).expect("an answer has a nonce");
        // The same hello gets the same answer.
        if self.handshakes.iter().any(|handshake| handshake.answer == frame) {
            return;
        }
        for index in 0..self.handshakes.len() {
            let Handshake { hello, transcript, .. } = self.handshakes[index];
            let mut channel = Channel::device(&key(hello.device), &transcript, &nonce);
            let mut copy = frame.to_vec();
            let Ok(message) = channel.open(&mut copy) else { continue };
            let (message, _) = decode::<ToDevice>(message).expect("a message");
            assert!(matches!(message, ToDevice::Welcome(_) | ToDevice::Refused(_)), "{message:?}");
            let (channel, answer) = (Some(channel), frame.to_vec());
            let answered = Handshake { channel, answer, ..Handshake::new(hello, transcript) };
            if self.handshakes[index].channel.is_none() {
                self.handshakes[index] = answered;
            } else {
                // A hello that comes back after another one is answered anew.
                self.current = self.handshakes.len();
                self.handshakes.push(answered);
            }
            return;
        }
        // To a hello that was damaged on its way, and can be confirmed by nobody.
    }

    /// What was opened in one read, against what the device has sealed: nothing else is believed, and nothing twice.
    pub fn judge(&mut self, read: &[u8], before: &Traffic, after: &Traffic, said: &[PeerMessage]) {
        let opened = (after.frames.accepted - before.frames.accepted) as usize;
        self.unfinished.extend_from_slice(read);
        if !read.contains(&0) {
            assert_eq!((opened, said), (0, &[][..]), "half a frame was believed");
            return;
        }
        let end = self.unfinished.iter().rposition(|byte| *byte == 0).map_or(0, |last| last + 1);
        let rest = self.unfinished.split_off(end);
        let whole = std::mem::replace(&mut self.unfinished, rest);
        let sequences: Vec<_> = reference::sequences(&whole).map(reference::unstuff).collect();
        let fresh: BTreeSet<&Vec<u8>> = sequences
            .iter()
            .flatten()
            .filter(|plain| self.sealed.contains_key(*plain) && !self.believed.contains(*plain))
            .collect();
        assert!(opened <= fresh.len(), "{opened} frames believed, {} were sealed", fresh.len());
        let believed = said.iter().filter(|said| {
            !matches!(said, PeerMessage::Fault(_) | PeerMessage::Refused(_) | PeerMessage::Revoked)
        });
        assert!(believed.count() <= opened, "{said:?} from {opened} frames");
        for inbound in said {
            if let PeerMessage::Hello(hello) = inbound {
                assert!(self.handshakes.iter().any(|handshake| handshake.hello == *hello), "{hello:?}");
            }
        }
        let ended = said.iter().any(|said| matches!(said, PeerMessage::Refused(_) | PeerMessage::Revoked));
        let oversize = after.frames.oversize > before.frames.oversize;
        let greeted = said.iter().any(|said| matches!(said, PeerMessage::Hello(_)));
        // One frame at a time it is known which was believed, and one that must be is.
        let single = fresh.first().filter(|_| sequences.len() == 1).map(|frame| self.sealed[*frame]);
        if let Some((handshake, counter)) = single {
            let due = self.open == Some(handshake) && counter + WINDOW >= self.handshakes[handshake].end;
            assert!(
                opened == 1 || !due || ended || oversize,
                "frame {counter} of {handshake} was not believed"
            );
        }
        if greeted || opened > 0 && opened < fresh.len() {
            // Which of several was believed is not known.
            self.open = single.map(|(handshake, _)| handshake);
        }
        if opened == fresh.len() {
            let believed: Vec<Vec<u8>> = fresh.into_iter().cloned().collect();
            for frame in believed {
                let (handshake, counter) = self.sealed[&frame];
                let end = &mut self.handshakes[handshake].end;
                *end = (*end).max(counter + 1);
                self.believed.insert(frame);
            }
        }
    }
}

/// The frame of any message bytes: what decodes as it is, anything else behind a message that takes no body.
fn seal(channel: &mut Channel, message: &[u8]) -> Vec<u8> {
    let (message, body) = decode::<ToServer>(message).unwrap_or((ToServer::Alive, message));
    let mut wire = vec![0; wire_capacity(400 + body.len())];
    let sent = channel.seal(&message, body.len(), |place| place.copy_from_slice(body), &mut wire);
    wire.truncate(sent.expect("room"));
    wire
}
