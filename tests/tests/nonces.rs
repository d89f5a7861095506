//! Tests that no nonce is used twice under a key. Devices with the same random numbers after every reset lose
//! their power at any point; they use the real flash store, the real server, and a link with an attacker who
//! replays the server's frames.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::common::{
    Board, DEVICE, SECRET, ServerEnd, active_keys, decode_cobs, encode_plain, encrypted_acceptor,
    key_protection, round_broadcast,
};
use crate::nor_flash::{Nor, PAGE, WORD};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::secure::{Channel, HANDSHAKE_INIT, Key, answer_nonce, transcript};
use fedspan_client::store::{FlashStore, record_len};
use fedspan_client::{Event, session::Counters};
use fedspan_hostile::Random;
use fedspan_protocol::frame::{HEADER_ANSWER, HEADER_CRC32C, HEADER_SEALED};
use fedspan_protocol::message::{Ack, AckOutcome, Fault, ToDevice};

/// Number of resets of devices.
const RESETS: usize = 100_000;
/// Size of the device's saved state (its record) in flash, in bytes.
const BYTES: usize = record_len(2, 1).next_multiple_of(WORD);

type Flash = FlashStore<Nor, BYTES>;

fn open_store(nor: &Nor) -> Flash {
    let capacity = u32::try_from(nor.0.borrow().bytes.len()).unwrap();
    FlashStore::new(nor.clone(), 0..capacity).unwrap()
}

/// Transcript and server's nonce, which identify the keys of a connection.
type Handshake = ([u8; 32], [u8; 16]);

/// Observer of the wire, with a copy of everything encrypted so far.
#[derive(Default)]
struct Wire {
    /// Keys and counters of the device's frames.
    device_nonces: HashSet<(Handshake, u64)>,
    /// Frames of the server by keys and counters.
    server_frames: HashMap<(Handshake, u64), Vec<u8>>,
    /// Answers by the transcript of the hello that they belong to.
    recorded: HashMap<[u8; 32], Vec<Vec<u8>>>,
    /// All answers.
    answers: Vec<Vec<u8>>,
    /// Transcript of the last hello.
    transcript: [u8; 32],
    /// All hellos, without repetitions.
    hellos: HashSet<Vec<u8>>,
    /// Number of hellos that repeat those of an earlier boot.
    repeated_hellos: usize,
    /// Nonces of the answers that the device has received since its hello.
    received: Vec<[u8; 16]>,
    /// Key of the device's frames in this boot.
    session_key: Option<Handshake>,
    /// Number of reused nonces.
    reused: usize,
    /// Number of answers that the attacker replayed.
    replayed: usize,
}

impl Wire {
    /// Records a hello. Within a boot, a device may only repeat its hello.
    fn record_hello(&mut self, frame: &[u8], boot_hello: &mut Option<Vec<u8>>) {
        let decoded = decode_cobs(frame);
        let message = &decoded[1..decoded.len() - 4];
        self.transcript = transcript(message);
        if boot_hello.as_deref() != Some(message) {
            self.repeated_hellos += usize::from(!self.hellos.insert(message.to_vec()));
            *boot_hello = Some(message.to_vec());
            self.received.clear();
            self.session_key = None;
        }
        assert!(message.len() > HANDSHAKE_INIT);
    }

    /// Checks a frame of the device: finds its key and records its counter.
    fn record_device_frame(&mut self, frame: &[u8], boot_hello: &mut Option<Vec<u8>>) {
        let decoded = decode_cobs(frame);
        if decoded[0] == HEADER_CRC32C {
            assert_eq!(decoded[1], 0, "only a hello is plain");
            return self.record_hello(frame, boot_hello);
        }
        assert_eq!(decoded[0], HEADER_SEALED);
        let counter = u64::from_le_bytes(decoded[1..9].try_into().unwrap());
        let opens = |nonce: &[u8; 16]| {
            Channel::server(&Key::new(0, SECRET), &self.transcript, nonce).open(&mut decoded.clone()).is_ok()
        };
        let handshake = match self.session_key {
            Some(handshake) => handshake,
            None => {
                let nonce = self.received.iter().rev().find(|nonce| opens(nonce));
                (
                    self.transcript,
                    *nonce.expect("no answer that the device received gives the key of this frame"),
                )
            }
        };
        assert!(opens(&handshake.1), "the frame has another key than earlier frames");
        self.session_key = Some(handshake);
        self.reused += usize::from(!self.device_nonces.insert((handshake, counter)));
    }

    /// Records a frame that the server sends to this device.
    fn record_server_frame(
        &mut self,
        frame: &[u8],
        server_key: &mut Option<Handshake>,
        pending: &mut Option<Handshake>,
    ) {
        let decoded = decode_cobs(frame);
        let (handshake, counter) = match decoded[0] {
            HEADER_CRC32C => return,
            HEADER_ANSWER => {
                let nonce = answer_nonce(&decoded).unwrap();
                self.recorded.entry(self.transcript).or_default().push(frame.to_vec());
                self.answers.push(frame.to_vec());
                *pending = Some((self.transcript, nonce));
                ((self.transcript, nonce), 0)
            }
            _ => (server_key.expect("the server encrypted a frame before the handshake"), {
                u64::from_le_bytes(decoded[1..9].try_into().unwrap())
            }),
        };
        let known = self.server_frames.entry((handshake, counter)).or_insert_with(|| decoded.clone());
        // Sending the same frame again is not a reuse of the nonce.
        self.reused += usize::from(*known != decoded);
    }
}

/// Runs one boot after another, each until the power fails or the device is unplugged.
#[test]
fn nonces_are_unique_over_a_hundred_thousand_resets() {
    let keys = active_keys();
    let mut acceptors: Vec<Arc<Acceptor>> = (0..3).map(|seed| encrypted_acceptor(&keys, seed)).collect();
    let mut random = Random(6);
    let mut wire = Wire::default();
    let mut nor = Nor::new(3);
    let mut boards = 1;
    let mut handshakes = 0usize;
    let mut power_cuts = 0;
    let mut updates = 0;
    let mut storage_failures = 0;
    let mut erasures = 0;
    // Largest number of device frames recorded for one board.
    let mut max_device_frames = 0usize;
    let mut total = Counters::default();
    for reset in 0..RESETS {
        if random.once_in(20_000) {
            // The server restarts with other random numbers.
            acceptors.push(encrypted_acceptor(&keys, 1_000 + reset as u64));
        }
        let acceptor = acceptors.last().unwrap();
        // The power never fails, fails soon, or fails after a page was erased.
        let power = match random.below(4) {
            0 => usize::MAX,
            1 => random.below(40),
            2 => random.below(200),
            _ => random.below(3 * PAGE),
        };
        // In some boots only the flash fails; the device keeps its power and must stop sending on its own.
        let keeps_power = random.once_in(4);
        nor.0.borrow_mut().power = power;
        let is_dead = |nor: &Nor| nor.0.borrow().power == 0 && !keeps_power;
        // Every boot uses the same random numbers.
        let mut board = Board::new(DEVICE, key_protection(), open_store(&nor), 7);
        // Hello of this boot, key of the server's frames, and key that the server uses after the confirmation.
        let mut boot_hello = None;
        let mut server_key = None;
        let mut pending = None;
        let mut server = ServerEnd::new(acceptor);
        let mut up = if is_dead(&nor) { Vec::new() } else { board.link_up() };
        let mut round = reset as u32 * 4;
        for _ in 0..random.below(14) {
            if is_dead(&nor) {
                // Frames of the call in which the power failed are never sent.
                up.clear();
                break;
            }
            up.iter().for_each(|frame| wire.record_device_frame(frame, &mut boot_hello));
            if random.once_in(6) {
                // The flash works again.
                nor.0.borrow_mut().power = usize::MAX;
            }
            let is_lost = random.once_in(8);
            let mut down = if is_lost { Vec::new() } else { server.receive(&up) };
            // The events are handled as in a real server.
            for event in std::mem::take(&mut server.events) {
                match event {
                    PeerMessage::Hello(_) => {
                        server_key = pending.take();
                        handshakes += 1;
                        server.connection.open(&round_broadcast(round));
                        round += 1;
                    }
                    PeerMessage::Update(update) => {
                        updates += 1;
                        server
                            .connection
                            .send(ToDevice::Ack(Ack { id: update.id, outcome: AckOutcome::Counted }));
                        server.connection.open(&round_broadcast(round));
                        round += 1;
                    }
                    _ => {}
                }
            }
            down.extend(server.take_frames());
            for frame in &down {
                wire.record_server_frame(frame, &mut server_key, &mut pending);
            }
            up.clear();
            // The attacker replays the server's answers to this hello or to any other.
            let mut replayed = Vec::new();
            if let Some(recorded) = wire.recorded.get(&wire.transcript) {
                replayed.extend(recorded.iter().take(2).cloned());
            }
            if random.once_in(3) && !wire.answers.is_empty() {
                replayed.push(wire.answers[random.below(wire.answers.len())].clone());
            }
            if random.once_in(10) {
                replayed.push(encode_plain(&ToDevice::Fault(Fault::Greet)));
            }
            if random.once_in(2) {
                wire.replayed += replayed.len();
                down.splice(0..0, replayed);
            }
            if random.once_in(9) {
                down.clear();
            }
            for frame in &down {
                if let Some(nonce) = answer_nonce(&decode_cobs(frame)) {
                    wire.received.push(nonce);
                }
                let sent = board.receive(frame);
                if is_dead(&nor) {
                    break;
                }
                for frame in sent {
                    wire.record_device_frame(&frame, &mut boot_hello);
                    up.push(frame);
                }
            }
            let sent = std::mem::take(&mut up);
            if is_dead(&nor) {
                break;
            }
            up = match random.below(8) {
                0 => board.wait(2_000),
                1 => board.reconnect(),
                2 => board.handle_event(Event::LinkUp),
                _ => board.handle_event(Event::Tick),
            };
            // These frames were recorded when the device sent them; they arrive at the server only after
            // further events.
            for frame in sent {
                server.connection.receive(&frame, &mut server.events);
            }
        }
        power_cuts += usize::from(power != usize::MAX && nor.0.borrow().power == 0);
        let counters = board.session.counters();
        storage_failures += usize::from(counters.storage > 0);
        total.counted += counters.counted;
        total.storage += counters.storage;
        total.unopened += counters.unopened;
        erasures += board.session.store().erased();
        max_device_frames = max_device_frames.max(wire.device_nonces.len());
        // From time to time the board is replaced by one with blank flash. It would have another key, so all
        // recorded frames are dropped.
        if random.once_in(25_000) {
            nor = Nor::new(2 + random.below(3));
            wire = Wire {
                reused: wire.reused,
                replayed: wire.replayed,
                repeated_hellos: wire.repeated_hellos,
                ..Wire::default()
            };
            boards += 1;
        }
    }
    println!(
        "{RESETS} resets of {boards} boards, {power_cuts} power cuts: {handshakes} handshakes, {} updates counted, \
         {} answers replayed, {storage_failures} boots with storage that failed, {erasures} erasures of everything; \
         {} hellos repeated, {} nonces reused",
        updates, wire.replayed, wire.repeated_hellos, wire.reused
    );
    assert_eq!((wire.repeated_hellos, wire.reused), (0, 0));
    assert_eq!(erasures, 0, "the store erased everything, which may lose the number of handshakes");
    assert!(handshakes > RESETS / 4 && power_cuts > RESETS / 10 && wire.replayed > RESETS / 10);
    assert!(max_device_frames > RESETS / 4 && total.unopened > 1_000 && storage_failures > 1_000);
}
