//! Tests that no nonce is used twice under a key. Devices with the same random numbers after every reset lose
//! their power at any point; they use the real flash store, the real server, and a link with an attacker who
//! replays the server's frames.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::common::{Board, DEVICE, SECRET, ServerEnd, gate, keys, opening, plain, protected, uncobs};
use crate::nor_flash::{Nor, PAGE, WORD};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::secure::{Channel, HANDSHAKE_INIT, Key, answer_nonce, transcript};
use fedspan_client::store::{FlashStore, record_len};
use fedspan_client::{Event, session::Counters};
use fedspan_hostile::Random;
use fedspan_protocol::message::{Ack, AckOutcome, Fault, ToDevice};

/// Number of resets of devices.
const RESETS: usize = 100_000;
const BYTES: usize = record_len(2, 1).next_multiple_of(WORD);

type Flash = FlashStore<Nor, BYTES>;

fn store(nor: &Nor) -> Flash {
    let end = u32::try_from(nor.0.borrow().bytes.len()).unwrap();
    FlashStore::new(nor.clone(), 0..end).unwrap()
}

/// Transcript and server's nonce, which identify the keys of a connection.
type Handshake = ([u8; 32], [u8; 16]);

/// Observer of the wire, with a record of everything sealed so far.
#[derive(Default)]
struct Wire {
    /// Keys and counters of the device's frames.
    up: HashSet<(Handshake, u64)>,
    /// Frames of the server by keys and counters.
    down: HashMap<(Handshake, u64), Vec<u8>>,
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
    key: Option<Handshake>,
    reused: usize,
    replayed: usize,
}

impl Wire {
    /// Records a hello. Within a boot, a device may only repeat its hello.
    fn record_hello(&mut self, frame: &[u8], boot: &mut Option<Vec<u8>>) {
        let plain = uncobs(frame);
        let message = &plain[1..plain.len() - 4];
        self.transcript = transcript(message);
        if boot.as_deref() != Some(message) {
            self.repeated_hellos += usize::from(!self.hellos.insert(message.to_vec()));
            *boot = Some(message.to_vec());
            self.received.clear();
            self.key = None;
        }
        assert!(message.len() > HANDSHAKE_INIT);
    }

    /// Checks a frame of the device: finds its key and records its counter.
    fn record_device_frame(&mut self, frame: &[u8], boot: &mut Option<Vec<u8>>) {
        let plain = uncobs(frame);
        if plain[0] == 0x10 {
            assert_eq!(plain[1], 0, "only a hello is plain");
            return self.record_hello(frame, boot);
        }
        assert_eq!(plain[0], 0x11);
        let counter = u64::from_le_bytes(plain[1..9].try_into().unwrap());
        let opens = |nonce: &[u8; 16]| {
            Channel::server(&Key::new(0, SECRET), &self.transcript, nonce).open(&mut plain.clone()).is_ok()
        };
        let handshake = match self.key {
            Some(handshake) => handshake,
            None => {
                let nonce = self.received.iter().rev().find(|nonce| opens(nonce));
                (self.transcript, *nonce.expect("a key that the device can have"))
            }
        };
        assert!(opens(&handshake.1), "the frame has the same key as those before");
        self.key = Some(handshake);
        self.reused += usize::from(!self.up.insert((handshake, counter)));
    }

    /// Records a frame that the server sends to this device.
    fn record_server_frame(
        &mut self,
        frame: &[u8],
        server_key: &mut Option<Handshake>,
        pending: &mut Option<Handshake>,
    ) {
        let plain = uncobs(frame);
        let (handshake, counter) = match plain[0] {
            0x10 => return,
            0x12 => {
                let nonce = answer_nonce(&plain).unwrap();
                self.recorded.entry(self.transcript).or_default().push(frame.to_vec());
                self.answers.push(frame.to_vec());
                *pending = Some((self.transcript, nonce));
                ((self.transcript, nonce), 0)
            }
            _ => (server_key.expect("sealed without a handshake"), {
                u64::from_le_bytes(plain[1..9].try_into().unwrap())
            }),
        };
        let before = self.down.entry((handshake, counter)).or_insert_with(|| plain.clone());
        // Sending the same frame again is not a reuse of the nonce.
        self.reused += usize::from(*before != plain);
    }
}

/// Runs one boot after another, each until the power fails or the device is unplugged.
#[test]
fn nonces_are_unique_over_a_hundred_thousand_resets() {
    let keys = keys();
    let mut gates: Vec<Arc<Acceptor>> = (0..3).map(|seed| gate(&keys, seed)).collect();
    let mut random = Random(6);
    let mut wire = Wire::default();
    let (mut nor, mut sealed_before_cut, mut cuts, mut silent, mut counted) = (Nor::new(3), 0usize, 0, 0, 0);
    let (mut fresh, mut welcomes, mut erased) = (1, 0usize, 0);
    let mut total = Counters::default();
    for reset in 0..RESETS {
        if random.once_in(20_000) {
            // The server restarts with other random numbers.
            gates.push(gate(&keys, 1_000 + reset as u64));
        }
        let gate = gates.last().unwrap();
        // The power never fails, fails soon, or fails after a page was erased.
        let power = match random.below(4) {
            0 => usize::MAX,
            1 => random.below(40),
            2 => random.below(200),
            _ => random.below(3 * PAGE),
        };
        // In some boots only the flash fails, and the device must stop sending on its own.
        let lives_on = random.once_in(4);
        nor.0.borrow_mut().power = power;
        let dead = |nor: &Nor| nor.0.borrow().power == 0 && !lives_on;
        // Every boot uses the same random numbers.
        let mut board = Board::new(DEVICE, protected(), store(&nor), 7);
        let (mut boot, mut server_key, mut pending) = (None, None, None);
        let mut server = ServerEnd::new(gate);
        let mut up = if dead(&nor) { Vec::new() } else { board.link_up() };
        let mut round = reset as u32 * 4;
        for _ in 0..random.below(14) {
            if dead(&nor) {
                // Frames of the call in which the power failed are never sent.
                up.clear();
                break;
            }
            up.iter().for_each(|frame| wire.record_device_frame(frame, &mut boot));
            if random.once_in(6) {
                // The flash works again.
                nor.0.borrow_mut().power = usize::MAX;
            }
            let lost = random.once_in(8);
            let mut down = if lost { Vec::new() } else { server.receive(&up) };
            // The events are handled as in a real server.
            for event in std::mem::take(&mut server.events) {
                match event {
                    PeerMessage::Hello(_) => {
                        server_key = pending.take();
                        welcomes += 1;
                        server.connection.open(&opening(round));
                        round += 1;
                    }
                    PeerMessage::Update(update) => {
                        counted += 1;
                        server
                            .connection
                            .send(ToDevice::Ack(Ack { id: update.id, outcome: AckOutcome::Counted }));
                        server.connection.open(&opening(round));
                        round += 1;
                    }
                    _ => {}
                }
            }
            down.extend(server.frames());
            for frame in &down {
                wire.record_server_frame(frame, &mut server_key, &mut pending);
            }
            up.clear();
            // The attacker replays the server's answers to this hello or to any other.
            let mut played = Vec::new();
            if let Some(old) = wire.recorded.get(&wire.transcript) {
                played.extend(old.iter().take(2).cloned());
            }
            if random.once_in(3) && !wire.answers.is_empty() {
                played.push(wire.answers[random.below(wire.answers.len())].clone());
            }
            if random.once_in(10) {
                played.push(plain(&ToDevice::Fault(Fault::Greet)));
            }
            if random.once_in(2) {
                wire.replayed += played.len();
                down.splice(0..0, played);
            }
            if random.once_in(9) {
                down.clear();
            }
            for frame in &down {
                if let Some(nonce) = answer_nonce(&uncobs(frame)) {
                    wire.received.push(nonce);
                }
                let sent = board.receive(frame);
                if dead(&nor) {
                    break;
                }
                for frame in sent {
                    wire.record_device_frame(&frame, &mut boot);
                    up.push(frame);
                }
            }
            let sent = std::mem::take(&mut up);
            if dead(&nor) {
                break;
            }
            up = match random.below(8) {
                0 => board.wait(2_000),
                1 => board.reconnect(),
                2 => board.event(Event::LinkUp),
                _ => board.event(Event::Tick),
            };
            // These frames were recorded when the device sent them; they arrive at the server only after
            // further events.
            for frame in sent {
                server.connection.receive(&frame, &mut server.events);
            }
        }
        cuts += usize::from(power != usize::MAX && nor.0.borrow().power == 0);
        let counters = board.session.counters();
        silent += usize::from(counters.storage > 0);
        total.counted += counters.counted;
        total.storage += counters.storage;
        total.unopened += counters.unopened;
        erased += board.session.store().erased();
        sealed_before_cut = sealed_before_cut.max(wire.up.len());
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
            fresh += 1;
        }
    }
    println!(
        "{RESETS} resets of {fresh} boards, {cuts} power cuts: {welcomes} handshakes, {} updates counted, \
         {} answers replayed, {silent} boots with storage that failed, {erased} erasures of everything; \
         {} hellos repeated, {} nonces reused",
        counted, wire.replayed, wire.repeated_hellos, wire.reused
    );
    assert_eq!((wire.repeated_hellos, wire.reused), (0, 0));
    assert_eq!(erased, 0, "the store erased everything, which may lose the number of handshakes");
    assert!(welcomes > RESETS / 4 && cuts > RESETS / 10 && wire.replayed > RESETS / 10);
    assert!(sealed_before_cut > RESETS / 4 && total.unopened > 1_000 && silent > 1_000);
}
