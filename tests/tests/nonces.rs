//! No nonce is used twice under a key: devices whose randomness is the same after every reset, whose power goes in the
//! middle of anything, over the real storage on flash, against the real server and somebody who plays back whatever a
//! server has ever said.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::common::{Board, DEVICE, Host, SECRET, gate, keys, opening, plain, protected, uncobs};
use crate::nor::{Nor, PAGE, WORD};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::secure::{Channel, GREETING, Key, answer_nonce, transcript};
use fedspan_client::store::{FlashStore, record_len};
use fedspan_client::{Event, session::Counters};
use fedspan_hostile::Random;
use fedspan_protocol::message::{Ack, AckOutcome, Fault, ToDevice};

const RESETS: usize = 100_000;
const BYTES: usize = record_len(2, 1).next_multiple_of(WORD);

type Flash = FlashStore<Nor, BYTES>;

fn store(nor: &Nor) -> Flash {
    let end = u32::try_from(nor.0.borrow().bytes.len()).unwrap();
    FlashStore::new(nor.clone(), 0..end).unwrap()
}

/// What names a direction's key: the transcript and the server's nonce, which it is derived from.
type Handshake = ([u8; 32], [u8; 16]);

/// Everybody who listens, and everything that was ever sealed.
#[derive(Default)]
struct Wire {
    /// Of the device's frames: key and counter. Of the server's: what was sealed with them.
    up: HashSet<(Handshake, u64)>,
    down: HashMap<(Handshake, u64), Vec<u8>>,
    /// Answers by the transcript of the hello that they answer.
    recorded: HashMap<[u8; 32], Vec<Vec<u8>>>,
    /// All of them.
    answers: Vec<Vec<u8>>,
    /// The hello on the wire.
    transcript: [u8; 32],
    /// Hellos that were said, each once.
    hellos: HashSet<Vec<u8>>,
    /// Hellos that are byte for byte those of another boot.
    hellos_again: usize,
    /// Nonces of the answers that the device has heard since its hello.
    heard: Vec<[u8; 16]>,
    key: Option<Handshake>,
    reused: usize,
    played_back: usize,
}

impl Wire {
    fn said_hello(&mut self, frame: &[u8], boot: &mut Option<Vec<u8>>) {
        let plain = uncobs(frame);
        let message = &plain[1..plain.len() - 4];
        self.transcript = transcript(message);
        if boot.as_deref() != Some(message) {
            self.hellos_again += usize::from(!self.hellos.insert(message.to_vec()));
            *boot = Some(message.to_vec());
            self.heard.clear();
            self.key = None;
        }
        assert!(message.len() > GREETING);
    }

    /// A frame of the device: which key is it under, and with which counter?
    fn said(&mut self, frame: &[u8], boot: &mut Option<Vec<u8>>) {
        let plain = uncobs(frame);
        if plain[0] == 0x10 {
            assert_eq!(plain[1], 0, "nothing but hello is in the clear");
            return self.said_hello(frame, boot);
        }
        assert_eq!(plain[0], 0x11);
        let counter = u64::from_le_bytes(plain[1..9].try_into().unwrap());
        let opens = |nonce: &[u8; 16]| {
            Channel::server(&Key::new(0, SECRET), &self.transcript, nonce).open(&mut plain.clone()).is_ok()
        };
        let handshake = match self.key {
            Some(handshake) => handshake,
            None => {
                let nonce = self.heard.iter().rev().find(|nonce| opens(nonce));
                (self.transcript, *nonce.expect("a key that the device cannot have"))
            }
        };
        assert!(opens(&handshake.1), "a frame under another key");
        self.key = Some(handshake);
        self.reused += usize::from(!self.up.insert((handshake, counter)));
    }

    /// A frame of the server for this device.
    fn answered(
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
        // The same frame again is no second use.
        self.reused += usize::from(*before != plain);
    }
}

/// One boot after the other, until the power goes or somebody pulls the plug.
#[test]
fn no_nonce_comes_twice_in_a_hundred_thousand_resets() {
    let keys = keys();
    let mut gates: Vec<Arc<Acceptor>> = (0..3).map(|seed| gate(&keys, seed)).collect();
    let mut random = Random(6);
    let mut wire = Wire::default();
    let (mut nor, mut sealed_before_cut, mut cuts, mut silent, mut counted) = (Nor::new(3), 0usize, 0, 0, 0);
    let (mut fresh, mut welcomes, mut erased) = (1, 0usize, 0);
    let mut total = Counters::default();
    for reset in 0..RESETS {
        if random.once_in(20_000) {
            // The server restarts, with other randomness.
            gates.push(gate(&keys, 1_000 + reset as u64));
        }
        let gate = gates.last().unwrap();
        // Where the power will go: never, soon, or after a page was erased.
        let power = match random.below(4) {
            0 => usize::MAX,
            1 => random.below(40),
            2 => random.below(200),
            _ => random.below(3 * PAGE),
        };
        // Flash that stops working, but the device does not: it has to stay silent by itself.
        let lives_on = random.once_in(4);
        nor.0.borrow_mut().power = power;
        let dead = |nor: &Nor| nor.0.borrow().power == 0 && !lives_on;
        // The same randomness every time.
        let mut board = Board::new(DEVICE, protected(), store(&nor), 7);
        let (mut boot, mut server_key, mut pending) = (None, None, None);
        let mut host = Host::new(gate);
        let mut up = if dead(&nor) { Vec::new() } else { board.link_up() };
        let mut round = reset as u32 * 4;
        for _ in 0..random.below(14) {
            if dead(&nor) {
                // What was said in the moment of its death has not left.
                up.clear();
                break;
            }
            up.iter().for_each(|frame| wire.said(frame, &mut boot));
            if random.once_in(6) {
                // The flash works again.
                nor.0.borrow_mut().power = usize::MAX;
            }
            let lost = random.once_in(8);
            let mut down = if lost { Vec::new() } else { host.hear(&up) };
            // A real server reacts to what it hears.
            for said in std::mem::take(&mut host.said) {
                match said {
                    PeerMessage::Hello(_) => {
                        server_key = pending.take();
                        welcomes += 1;
                        host.connection.open(&opening(round));
                        round += 1;
                    }
                    PeerMessage::Update(update) => {
                        counted += 1;
                        host.connection
                            .send(ToDevice::Ack(Ack { id: update.id, outcome: AckOutcome::Counted }));
                        host.connection.open(&opening(round));
                        round += 1;
                    }
                    _ => {}
                }
            }
            down.extend(host.frames());
            for frame in &down {
                wire.answered(frame, &mut server_key, &mut pending);
            }
            up.clear();
            // Somebody plays back what a server has said to this very hello, or to any other.
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
                wire.played_back += played.len();
                down.splice(0..0, played);
            }
            if random.once_in(9) {
                down.clear();
            }
            for frame in &down {
                if let Some(nonce) = answer_nonce(&uncobs(frame)) {
                    wire.heard.push(nonce);
                }
                let said = board.hear(frame);
                if dead(&nor) {
                    break;
                }
                for frame in said {
                    wire.said(&frame, &mut boot);
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
            // They were recorded as they left; now they arrive.
            for frame in sent {
                host.connection.receive(&frame, &mut host.said);
            }
        }
        cuts += usize::from(power != usize::MAX && nor.0.borrow().power == 0);
        let own = board.session.counters();
        silent += usize::from(own.storage > 0);
        total.counted += own.counted;
        total.storage += own.storage;
        total.unopened += own.unopened;
        erased += board.session.store().erased();
        sealed_before_cut = sealed_before_cut.max(wire.up.len());
        // At times another board, with blank flash: it would have another key, so all that was heard is forgotten.
        if random.once_in(25_000) {
            nor = Nor::new(2 + random.below(3));
            wire = Wire {
                reused: wire.reused,
                played_back: wire.played_back,
                hellos_again: wire.hellos_again,
                ..Wire::default()
            };
            fresh += 1;
        }
    }
    println!(
        "{RESETS} resets of {fresh} boards, {cuts} in want of power: {welcomes} handshakes, {} updates counted, \
         {} answers played back, {silent} boots with storage that failed, {erased} erasures of everything; \
         {} hellos said twice, {} nonces used twice",
        counted, wire.played_back, wire.hellos_again, wire.reused
    );
    assert_eq!((wire.hellos_again, wire.reused), (0, 0));
    assert_eq!(erased, 0, "the number of handshakes may be lost where everything is erased");
    assert!(welcomes > RESETS / 4 && cuts > RESETS / 10 && wire.played_back > RESETS / 10);
    assert!(sealed_before_cut > RESETS / 4 && total.unopened > 1_000 && silent > 1_000);
}
