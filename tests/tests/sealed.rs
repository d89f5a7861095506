//! Device and server under a key: what a handshake and a round cost, what the line may do to them, and when a device is
//! silent.

use std::sync::Arc;

use crate::common::{
    Board, DEVICE, Host, K, WELCOME, converse, gate, keys, plain, protected, react, requirements, round,
    uncobs, unopened,
};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::Event;
use fedspan_client::session::Protection;
use fedspan_client::store::{Loaded, NoStore, Record, Store, StoreError};
use fedspan_protocol::message::{Decline, DeclineReason, Numeric, Refusal, RoundId, ToServer};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

#[test]
fn a_round_under_a_key_shows_nothing_but_hello_and_costs_what_it_may() {
    let (mut board, mut host) = (Board::new(DEVICE, protected(), NoStore, 1), Host::new(&gate(&keys(), 1)));
    let hello = board.link_up();
    let (up, down) = converse(&mut board, &mut host, hello);
    assert!(matches!(host.said[..], [PeerMessage::Hello(_)]), "{:?}", host.said);
    host.said.clear();
    let headers = |frames: &[Vec<u8>]| frames.iter().map(|frame| uncobs(frame)[0]).collect::<Vec<_>>();
    assert_eq!((headers(&up), headers(&down)), (vec![0x10, 0x11], vec![0x12]));
    let bytes = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).sum::<usize>();
    let handshake = bytes(&up) + bytes(&down);
    println!(
        "handshake: {handshake} bytes on the wire (hello {}, answer {}, confirmation {})",
        up[0].len(),
        down[0].len(),
        up[1].len()
    );
    assert!(handshake <= 160);

    let (up, down) = round(&mut board, &mut host, 7);
    assert_eq!((headers(&up), headers(&down)), (vec![0x11], vec![0x11, 0x11]));
    let update = bytes(&up) + bytes(&down);
    println!(
        "RoundOpen, Update and Ack at d = 20, k = {K}: {update} bytes ({}, {}, {}); 377 with a checksum",
        down[0].len(),
        up[0].len(),
        down[1].len()
    );
    assert!(update <= 460);
    assert_eq!(board.session.counters().counted, 1);
    let traffic = host.connection.traffic();
    assert_eq!((traffic.protocol_errors(), traffic.unsent, traffic.frames.accepted), (0, 0, 2));
    // No word of the update is on the wire as it would be in the clear.
    let (mut bench, mut open) = (
        Board::new(DEVICE, Protection::Plaintext, NoStore, 1),
        Host::new(&Arc::new(Acceptor::plaintext(requirements(), WELCOME))),
    );
    let hello = bench.link_up();
    converse(&mut bench, &mut open, hello);
    open.said.clear();
    let (clear, _) = round(&mut bench, &mut open, 7);
    let secret = uncobs(&up[0]);
    let words = uncobs(&clear[0]);
    assert!(words.windows(6).all(|word| !secret.windows(6).any(|other| other == word)));
}

/// What happens to one frame of an exchange on a line that lasts.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    Lost,
    Twice,
    /// After the frame that follows it in its direction, or two seconds late.
    Late,
    /// One bit is flipped.
    Damaged,
}

/// Runs a handshake and a round on a lasting line, on which the `unlucky`th frame suffers. How many frames there were.
fn line(mishap: Mishap, unlucky: usize) -> usize {
    let gate = gate(&keys(), 1);
    let (mut board, mut host) = (Board::new(DEVICE, protected(), NoStore, 1), Host::lasting(&gate));
    let mut up = board.link_up();
    let (mut frames, mut done, mut reopened) = (0, 0, 0);
    let (mut late_up, mut late_down): (Vec<Vec<u8>>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    let mut pass = |sent: Vec<Vec<u8>>, late: &mut Vec<Vec<u8>>| {
        let mut arrived = Vec::new();
        for mut frame in sent {
            let unlucky = frames == unlucky;
            frames += 1;
            let held = std::mem::take(late);
            match mishap {
                _ if !unlucky => arrived.push(frame),
                Mishap::Lost => {}
                Mishap::Twice => arrived.extend([frame.clone(), frame]),
                Mishap::Late => late.push(frame),
                Mishap::Damaged => {
                    let at = frame.len() / 2;
                    frame[at] ^= 4;
                    arrived.push(frame);
                }
            }
            arrived.extend(held);
        }
        arrived
    };
    for second in 0..200 {
        loop {
            let heard = pass(std::mem::take(&mut up), &mut late_up);
            let mut down = host.hear(&heard);
            react(&mut host, 1, &mut done);
            down.extend(host.frames());
            if down.is_empty() {
                break;
            }
            let heard = pass(down, &mut late_down);
            up = board.hear_all(&heard);
        }
        assert!(!board.last.close, "a lasting line is not closed");
        if board.session.counters().counted == 1 && late_up.is_empty() && late_down.is_empty() {
            println!("{mishap:?} {unlucky}: {second} s, {frames} frames, {done} updates heard");
            assert!(done >= 1);
            // And the next round goes as if nothing had happened.
            host.said.clear();
            round(&mut board, &mut host, 2);
            assert_eq!(board.session.counters().counted, 2);
            return frames;
        }
        up = board.wait(1_000);
        if second % 2 == 1 {
            // What was late is here.
            up.append(&mut late_up);
            up.extend(board.hear_all(&std::mem::take(&mut late_down)));
        }
        reopened += u32::from(host.connection.unanswered().is_some());
        if reopened == 10 {
            host.connection.resend_round();
            reopened = 0;
        }
    }
    panic!("{mishap:?} {unlucky}: never counted: {:?}", board.session.counters());
}

#[test]
fn whatever_is_lost_damaged_repeated_or_late_on_a_lasting_line_is_made_good() {
    for mishap in [Mishap::Lost, Mishap::Twice, Mishap::Late, Mishap::Damaged] {
        let mut frame = 0;
        while frame < line(mishap, frame) {
            frame += 1;
        }
        assert!(frame >= 7, "greet, hello, answer, confirmation, RoundOpen, Update, Ack");
    }
}

/// A device that may not take part is told so under its key, and believes it.
#[test]
fn a_sealed_refusal_is_believed() {
    let requirements = requirements().with_numeric(Numeric::I16);
    let entropy = Box::new(ChaCha20Rng::seed_from_u64(1));
    let gate = Arc::new(Acceptor::encrypted(requirements, WELCOME, keys(), entropy));
    let (mut board, mut host) = (Board::new(DEVICE, protected(), NoStore, 1), Host::new(&gate));
    let hello = board.link_up();
    let (up, down) = converse(&mut board, &mut host, hello);
    assert_eq!((up.len(), uncobs(&down[0])[0]), (1, 0x12));
    assert!(board.last.close && matches!(host.said[..], [PeerMessage::Refused(Refusal::Capability(_))]));
    assert!(matches!(board.session.refusal(), Some(Refusal::Capability(_))));
}

/// Storage that fails as it is told to.
#[derive(Clone, Copy, Debug, Default)]
struct Faulty {
    load: bool,
    save: bool,
    handshakes: u64,
}

impl Store for Faulty {
    fn save(&mut self, _record: &Record<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn load(&mut self, _head: &mut [f32]) -> Result<Option<Loaded>, StoreError> {
        Ok(None)
    }

    fn save_handshakes(&mut self, numbered: u64) -> Result<(), StoreError> {
        assert!(numbered > self.handshakes);
        if self.save { Err(StoreError) } else { Ok(()) }
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        if self.load { Err(StoreError) } else { Ok(self.handshakes) }
    }

    fn save_spent(&mut self, _spent: u64) -> Result<(), StoreError> {
        Err(StoreError)
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        Err(StoreError)
    }
}

/// A device that cannot number its handshakes says nothing, comes back, and says nothing again.
#[test]
fn a_device_whose_storage_fails_is_silent() {
    let full = Faulty { handshakes: u64::MAX - 127, ..Faulty::default() };
    for store in [
        Faulty { load: true, ..Faulty::default() },
        Faulty { save: true, ..Faulty::default() },
        // Numbers that would not fit.
        full,
    ] {
        let mut board = Board::new(DEVICE, protected(), store, 1);
        for attempt in 1..=10 {
            assert!(board.link_up().is_empty(), "{store:?}");
            assert!(board.last.close);
            assert_eq!(board.session.counters().storage, attempt);
            assert!(board.wait(5_000).is_empty());
            assert!(board.event(Event::LinkDown).is_empty());
            assert!(board.last.wake > board.now && board.last.wake <= board.now + 60_000);
            board.now = board.last.wake;
        }
    }
    // Without a key there is nothing to number.
    let store = Faulty { load: true, save: true, handshakes: 0 };
    assert_eq!(Board::new(DEVICE, Protection::Plaintext, store, 1).link_up().len(), 1);
    // The last numbers there are can be used, and are written before the first of them is.
    let last = Faulty { handshakes: u64::MAX - 128, ..Faulty::default() };
    assert_eq!(Board::new(DEVICE, protected(), last, 1).link_up().len(), 1);
}

/// A hello that is said again is answered as it was, byte for byte, until it is confirmed; and before that nothing in
/// the clear is a message.
#[test]
fn the_same_hello_has_the_same_answer_and_nothing_joins_before_it_is_confirmed() {
    let gate = gate(&keys(), 1);
    let (mut board, mut host) = (Board::new(DEVICE, protected(), NoStore, 1), Host::new(&gate));
    let lies = [
        plain(&ToServer::Alive),
        plain(&ToServer::Decline(Decline {
            id: RoundId { round: 1, stage: 0 },
            reason: DeclineReason::Task,
        })),
    ];
    let hello = board.link_up();
    let mut answers = Vec::new();
    for _ in 0..5 {
        let before = host.connection.traffic().unsealed;
        assert!(host.hear(&lies).is_empty() && host.said.is_empty(), "{:?}", host.said);
        assert_eq!(host.connection.traffic().unsealed, before + 2);
        answers.extend(host.hear(&hello));
        assert!(host.said.is_empty());
        assert_eq!(board.wait(2_000), hello, "the same hello");
    }
    assert_eq!(answers.len(), 5);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    // Whichever arrives, the handshake is one; the others are nothing.
    let alive = board.hear_all(&answers[4..]);
    assert!(board.hear_all(&answers[..4]).is_empty());
    assert_eq!(unopened(&board), 4);
    host.hear(&alive);
    assert_eq!(host.joined(), 1);
    host.said.clear();
    // Another server's answer to the same hello has other keys; a nonce is never drawn twice.
    let mut other = Host::new(&gate);
    assert_ne!(other.hear(&hello), answers[..1]);
    // The hello once more, after it was confirmed: answered anew, and the conversation goes on.
    assert_ne!(host.hear(&hello), answers[..1]);
    round(&mut board, &mut host, 1);
    assert_eq!(board.session.counters().counted, 1);
}
