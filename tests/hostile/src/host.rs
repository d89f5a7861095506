//! Fuzz target for the server's end of a connection: runs a script in which rounds are opened and closed
//! while a device sends messages that are honest, damaged or random, in reads of any length.

mod messages;
mod peer;

use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, Connection, OUTBOX_MAX, PeerMessage};
use fedspan_engine::{RoundBroadcast, Update};
use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::limits::{FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, HELLO_FRAME_MAX};
use fedspan_protocol::message::{Fault, Hello, ToDevice, decode};
use fedspan_protocol::tensor::TensorDescriptor;

use crate::script::Script;
use crate::stream::totals;
use crate::{Work, reference};
use messages::{WELCOME, messages, openings, requirements};
use peer::Peer;

/// Largest total number of messages from events that send many messages. The limit bounds the time of a short
/// input.
const BATCH_LIMIT: usize = 512;
/// The same limit for a connection with keys.
const BATCH_LIMIT_SEALED: usize = 128;

/// Runs a script: two bytes of settings (kind of connection, length of a read), then events. The second bit
/// of the settings adds keys, and the honest device then seals its messages. The third bit sends new keys.
pub fn host_connection(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let settings = script.byte();
    let mut bench = Bench::new(settings, script.index());
    let honest = messages();
    let (kinds, mut batch_budget) =
        if bench.peer.is_some() { (24, BATCH_LIMIT_SEALED) } else { (16, BATCH_LIMIT) };
    while let Some(kind) = script.next() {
        match kind % kinds {
            0 => {
                let length = script.index();
                bench.receive(script.take(length));
            }
            1..=6 => bench.deliver_honest(&honest[usize::from(script.word()) % honest.len()]),
            // The message is damaged before the checksum or seal is added.
            7 | 8 => {
                let mut message = honest[usize::from(script.word()) % honest.len()].clone();
                script.damage(&mut message);
                bench.deliver_honest(&message);
            }
            // The frame is damaged in transit.
            9 => {
                let mut frame = bench.encode_frame(&honest[usize::from(script.word()) % honest.len()]);
                script.damage(&mut frame);
                bench.receive(&frame);
            }
            10 => bench.open_round(script.index()),
            11 => bench.close_round(script.index()),
            12 => bench.request_again(script.byte()),
            13 => bench.send_frames(script.index()),
            14 => {
                let bytes = std::mem::take(&mut bench.unread);
                bench.deliver(&bytes);
            }
            // Consecutive honest messages, such as a whole update.
            15 => {
                let (from, count) = (script.index(), script.index().min(batch_budget));
                batch_budget -= count;
                for message in honest.iter().cycle().skip(from).take(count) {
                    bench.deliver_honest(message);
                }
            }
            kind => bench.encrypted_event(kind, &mut script),
        }
    }
    bench.into_work()
}

/// A connection under test, with the honest device and the expected counters.
struct Bench {
    connection: Connection,
    /// The honest device with keys; `None` without keys.
    peer: Option<Peer>,
    /// Bytes that are kept for the next read.
    unread: Vec<u8>,
    read: usize,
    /// All delivered bytes.
    stream: Vec<u8>,
    open: Option<Arc<RoundBroadcast>>,
    greeted: bool,
    /// Whether the server has refused the device and closes the connection.
    ended: bool,
    limit: usize,
    /// Upper bound of the messages that the server has queued on its own initiative.
    own_messages: usize,
    faults: u32,
    work: Work,
}

impl Bench {
    fn new(settings: u8, read: usize) -> Self {
        let persistent = settings % 2 == 1;
        let peer = (settings / 2 % 2 == 1).then(|| Peer::new(settings / 4 % 2 == 1));
        let acceptor = Arc::new(match &peer {
            Some(peer) => Acceptor::encrypted(requirements(), WELCOME, peer.keys(), peer.entropy()),
            None => Acceptor::plaintext(requirements(), WELCOME),
        });
        Self {
            connection: if persistent { Connection::persistent(acceptor) } else { Connection::new(acceptor) },
            peer,
            unread: Vec::new(),
            read: if read == 0 { usize::MAX } else { read },
            stream: Vec::new(),
            open: None,
            greeted: false,
            ended: false,
            limit: HELLO_FRAME_MAX,
            own_messages: usize::from(persistent),
            faults: 0,
            work: Work::default(),
        }
    }

    /// Encodes a frame of any message bytes, sealed by the honest device if there are keys.
    fn encode_frame(&mut self, message: &[u8]) -> Vec<u8> {
        match &mut self.peer {
            Some(peer) => peer.seal_message(message),
            None => reference::encode_plain(message),
        }
    }

    fn deliver_honest(&mut self, message: &[u8]) {
        let frame = self.encode_frame(message);
        self.receive(&frame);
    }

    /// Delivers an event of those that need keys.
    fn encrypted_event(&mut self, kind: u8, script: &mut Script<'_>) {
        let honest = messages();
        let Some(peer) = &mut self.peer else { return };
        let frame = match kind {
            // A new handshake (device and frame limit), then a replay of the last frame.
            16 => peer.hello(script.byte()),
            17 => peer.replay(0),
            18 => peer.replay(script.index()),
            // A frame that is sealed but never arrives.
            19 => {
                peer.seal_message(&honest[usize::from(script.word()) % honest.len()]);
                return;
            }
            20 => reference::encode_plain(&honest[usize::from(script.word()) % honest.len()]),
            21 => peer.foreign_frame(script.byte(), &honest[usize::from(script.word()) % honest.len()]),
            22 => return peer.switch_handshake(script.index()),
            _ => match script.byte() {
                device @ ..192 => return peer.revoke(device),
                _ => return peer.round_closed(),
            },
        };
        self.receive(&frame);
    }

    /// Collects bytes into reads of the length that the script has set.
    fn receive(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        while self.unread.len() >= self.read {
            let unread = self.unread.split_off(self.read);
            let bytes_read = std::mem::replace(&mut self.unread, unread);
            self.deliver(&bytes_read);
        }
        if self.read == usize::MAX {
            let bytes_read = std::mem::take(&mut self.unread);
            self.deliver(&bytes_read);
        }
    }

    /// Delivers one read to the connection and checks its events.
    fn deliver(&mut self, bytes: &[u8]) {
        if self.ended {
            return;
        }
        self.stream.extend_from_slice(bytes);
        let (mut events, before) = (Vec::new(), self.connection.traffic());
        self.connection.receive(bytes, &mut events);
        self.work.steps += 1;
        if let Some(peer) = &mut self.peer {
            peer.check_accepted(bytes, &before, &self.connection.traffic(), &events);
        }
        for inbound in events {
            match inbound {
                PeerMessage::Hello(hello) => self.record_hello(&hello),
                PeerMessage::OtherDevice => {
                    assert!(self.greeted);
                    self.faults += 1;
                }
                PeerMessage::Fault(_) => self.faults += 1,
                PeerMessage::Refused(_) => self.ended = true,
                PeerMessage::Revoked => {
                    assert!(self.peer.is_some());
                    self.ended = true;
                }
                PeerMessage::Update(update) => {
                    assert!(self.greeted);
                    self.check_update(&update);
                }
                PeerMessage::UnreadUpdate(_)
                | PeerMessage::Decline(_)
                | PeerMessage::Report(_)
                | PeerMessage::Alive => {
                    assert!(self.greeted)
                }
            }
        }
        // Messages that the server queues itself are not limited by the outbox, so the bound includes them.
        assert_eq!(self.connection.traffic().faults, self.faults);
        assert!(
            self.connection.pending() <= OUTBOX_MAX + self.own_messages + 1,
            "{}",
            self.connection.pending()
        );
    }

    fn record_hello(&mut self, hello: &Hello) {
        self.greeted = true;
        if let Some(peer) = &mut self.peer {
            peer.record_hello(hello, &self.connection.key().expect("a connection with a key"));
        }
        self.limit = usize::from(hello.capabilities.frame_limit).clamp(FRAME_LIMIT_MIN, FRAME_LIMIT_MAX);
        // The welcome or a new key.
        self.own_messages += 1;
    }

    /// Checks that an update uses memory only for requested tensors.
    fn check_update(&mut self, update: &Update) {
        let opening = self.open.as_ref().expect("an update although no round was opened");
        assert_eq!(update.id, opening.id);
        let requested: usize = opening.request.expects.iter().map(TensorDescriptor::elements).sum();
        let received: usize = update.tensors.iter().map(|tensor| tensor.values.len()).sum();
        assert!(received <= requested, "{received} numbers received, {requested} requested");
        assert_eq!(update.tensors.len(), update.descriptors.len());
        for (tensor, descriptor) in update.tensors.iter().zip(&update.descriptors) {
            assert_eq!(tensor.values.len(), descriptor.elements());
        }
    }

    /// Opens a round on the connection, if the device was welcomed.
    fn open_round(&mut self, index: usize) {
        // The server opens rounds only for devices that it has welcomed.
        if self.greeted && !self.ended {
            let openings = openings();
            let opening = &openings[index % openings.len()];
            self.connection.open(opening);
            self.open = Some(Arc::clone(opening));
            // With a new key behind the round.
            self.own_messages += 3;
        }
    }

    /// Closes a round on the connection, if the device was welcomed.
    fn close_round(&mut self, index: usize) {
        // The server closes rounds only for devices that it has welcomed.
        if !self.greeted || self.ended {
            return;
        }
        let openings = openings();
        self.connection.close_round(openings[index % openings.len()].id);
        self.own_messages += 1;
    }

    fn request_again(&mut self, kind: u8) {
        match kind % 2 {
            0 => self.connection.request_missing(),
            _ => self.connection.resend_round(),
        }
        self.own_messages += 2;
    }

    /// Sends frames to the device; each frame must be one message within the device's limit.
    fn send_frames(&mut self, frames: usize) {
        let mut decoder = Decoder::new(vec![0; self.limit]);
        for _ in 0..frames {
            let mut frame = Vec::new();
            if !self.connection.next_frame(&mut frame) {
                break;
            }
            self.work.steps += 1;
            let mut input = frame.as_slice();
            match (decoder.feed(&mut input), &mut self.peer) {
                (FeedResult::Message(bytes), peer) => {
                    let (message, _) = decode::<ToDevice>(bytes).expect("a message");
                    assert!(peer.is_none() || is_public(&message), "in the clear: {message:?}");
                }
                (FeedResult::Sealed(bytes), Some(peer)) => peer.receive(bytes),
                (other, _) => panic!("{other:?} from {frame:x?}"),
            }
            assert!(input.is_empty(), "the server sent more than one frame");
        }
        assert_eq!(self.connection.traffic().unsent, 0);
        self.own_messages = self.own_messages.min(self.connection.pending());
    }

    /// Checks that every delimited sequence of the stream was counted, either as a frame or as dropped.
    fn into_work(mut self) -> Work {
        let bytes = std::mem::take(&mut self.unread);
        self.deliver(&bytes);
        self.send_frames(usize::MAX);
        assert_eq!(self.connection.pending(), 0);
        let owes_key = self.peer.as_ref().is_some_and(Peer::expects_key);
        assert!(!owes_key || self.ended, "the new key was not sent");
        let traffic = self.connection.traffic();
        let [accepted, sealed, dropped] = totals(traffic.frames);
        let sequences = reference::sequences(&self.stream).count() as u64;
        let [replayed, forged, unsealed] =
            [traffic.replayed, traffic.forged, traffic.unsealed].map(u64::from);
        let counted = match self.peer {
            None => {
                assert_eq!((sealed, 0), (forged, replayed + unsealed));
                accepted + sealed + dropped
            }
            Some(_) => {
                assert!(sealed == accepted + replayed + forged || self.ended, "{traffic:?}");
                sealed + dropped + unsealed
            }
        };
        // With keys, hellos that were answered are not counted as frames.
        let answered = if self.peer.is_some() { count_hellos(&self.stream) } else { 0 };
        assert!(counted <= sequences, "{counted} counted of {sequences}");
        // Frames that follow a refusal in the same read are not processed.
        assert!(
            counted + answered >= sequences || self.ended,
            "{counted} counted of {sequences}: {traffic:?}"
        );
        self.work.frames = sequences;
        self.work.refused = dropped + replayed + forged + unsealed;
        self.work.refused += u64::from(traffic.faults) + u64::from(traffic.stale) + u64::from(self.ended);
        self.work
    }
}

/// Returns true for messages that the server may send to an unauthenticated peer (SPEC.md, section 12).
fn is_public(message: &ToDevice) -> bool {
    matches!(message, ToDevice::Refused(_) | ToDevice::RetryAfter { .. } | ToDevice::Fault(Fault::Greet))
}

/// Returns the number of hellos in a stream, valid or not.
fn count_hellos(stream: &[u8]) -> u64 {
    let messages = reference::sequences(stream).filter_map(|sequence| reference::open(sequence, usize::MAX));
    messages.filter(|message| message.first() == Some(&0)).count() as u64
}

/// Returns scripts with a hello, a round and all answers to it, in reads of several lengths.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for settings in 0..2u8 {
        for read in [0, 1, 7, 200] {
            for device in 0..4u8 {
                for round in 0..4u8 {
                    seeds.push(vec![
                        settings, read, 1, device, 0, 14, 13, 9, 10, round, 13, 3, 15, 4, 30, 14, 12, 0, 15,
                        34, 40, 12, 1, 11, round, 1, 0, 0, 14, 13, 200,
                    ]);
                }
            }
        }
    }
    // With keys: a handshake, its confirmation, the same again; then replays, frames of other connections and
    // other handshakes; then a revocation.
    for settings in [2u8, 3, 6, 7] {
        for read in [0, 1, 7, 200] {
            for device in 0..8u8 {
                for round in 0..4u8 {
                    // The key is proved by Alive, or by the report behind it, as if Alive were lost.
                    let proof = 38 + round % 2;
                    seeds.push(vec![
                        settings, read, 1, 4, 0, 16, device, 17, 14, 13, 9, 1, proof, 0, 14, 10, round, 13,
                        3, 15, 4, 30, 14, 12, 0, 18, 3, 19, 5, 0, 15, 34, 40, 20, 4, 0, 21, 1, 9, 0, 18, 5,
                        16, 0, 14, 13, 9, 1, 44, 0, 10, round, 13, 200, 15, 4, 70, 9, 5, 0, 1, 9, 0, 22, 0,
                        1, 5, 0, 18, 0, 11, round, 23, device, 1, 5, 0, 14, 13, 200,
                    ]);
                }
            }
        }
    }
    // New keys: a device that stores them greets with the old key and then with the new one, a round closes, and the old key
    // greets again. Some frames are replayed, or come from a device that cannot store keys.
    for settings in [6u8, 7] {
        for (first, second) in [(10u8, 30u8), (0, 30), (10, 10), (13, 33), (12, 32), (30, 10)] {
            let confirmed = [13, 9, 1, 44, 0];
            let mut seed = vec![settings, 0, 1, 4, 0, 16, first];
            seed.extend(confirmed);
            seed.extend([10, 0, 13, 9, 18, 1, 16, second]);
            seed.extend(confirmed);
            seed.extend([18, 2, 23, 200, 10, 2, 13, 9, 22, 0, 1, 44, 0, 16, first]);
            seed.extend(confirmed);
            seed.extend([21, 2, 9, 0, 23, second % 3, 1, 44, 0, 13, 9]);
            seeds.push(seed);
        }
    }
    seeds
}
