//! Tests of encrypted sessions: cost of a handshake and a round, line faults, and cases in which a device
//! must not send.

use std::sync::Arc;

use crate::common::{
    Board, DEVICE, K, ServerEnd, WELCOME, active_keys, count_undecrypted, decode_cobs, encode_plain,
    encrypted_acceptor, exchange_frames, handle_server_events, key_protection, requirements, run_round,
};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::Event;
use fedspan_client::session::Protection;
use fedspan_client::store::{NoStore, Record, RecordHeader, Store, StoreError};
use fedspan_protocol::frame::{HEADER_ANSWER, HEADER_CRC32C, HEADER_SEALED};
use fedspan_protocol::message::{Decline, DeclineReason, Numeric, Refusal, RoundId, ToServer};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

#[test]
fn encrypted_round_hides_all_but_the_hello_and_keeps_its_budget() {
    let (mut board, mut server) = (
        Board::new(DEVICE, key_protection(), NoStore, 1),
        ServerEnd::new(&encrypted_acceptor(&active_keys(), 1)),
    );
    let hello = board.link_up();
    let (up, down) = exchange_frames(&mut board, &mut server, hello);
    assert!(matches!(server.events[..], [PeerMessage::Hello(_)]), "{:?}", server.events);
    server.events.clear();
    let headers = |frames: &[Vec<u8>]| frames.iter().map(|frame| decode_cobs(frame)[0]).collect::<Vec<_>>();
    assert_eq!((headers(&up), headers(&down)), (vec![HEADER_CRC32C, HEADER_SEALED], vec![HEADER_ANSWER]));
    let bytes = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).sum::<usize>();
    let handshake = bytes(&up) + bytes(&down);
    println!(
        "handshake: {handshake} bytes on the wire (hello {}, answer {}, confirmation {})",
        up[0].len(),
        down[0].len(),
        up[1].len()
    );
    assert!(handshake <= 160);

    let (up, down) = run_round(&mut board, &mut server, 7);
    assert_eq!((headers(&up), headers(&down)), (vec![HEADER_SEALED], vec![HEADER_SEALED, HEADER_SEALED]));
    let update = bytes(&up) + bytes(&down);
    println!(
        "RoundOpen, Update and Ack at d = 20, k = {K}: {update} bytes ({}, {}, {}); 377 with a checksum",
        down[0].len(),
        up[0].len(),
        down[1].len()
    );
    assert!(update <= 460);
    assert_eq!(board.session.counters().counted, 1);
    let traffic = server.connection.traffic();
    assert_eq!((traffic.protocol_errors(), traffic.unsent, traffic.frames.accepted), (0, 0, 2));
    // No six consecutive bytes of the plain update occur on the wire.
    let (mut plain_board, mut plain_server) = (
        Board::new(DEVICE, Protection::Plaintext, NoStore, 1),
        ServerEnd::new(&Arc::new(Acceptor::plaintext(requirements(), WELCOME))),
    );
    let hello = plain_board.link_up();
    exchange_frames(&mut plain_board, &mut plain_server, hello);
    plain_server.events.clear();
    let (plain_frames, _) = run_round(&mut plain_board, &mut plain_server, 7);
    let encrypted_update = decode_cobs(&up[0]);
    let plain_update = decode_cobs(&plain_frames[0]);
    assert!(plain_update.windows(6).all(|word| !encrypted_update.windows(6).any(|other| other == word)));
}

/// A fault of one frame on a serial line.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Lost,
    Twice,
    /// The frame arrives after the next frame in its direction, or two seconds late.
    Late,
    /// One bit of the frame is flipped.
    Damaged,
}

/// Runs a handshake and a round on a serial line on which frame number `unlucky` has the fault. Returns the
/// number of frames.
fn run_line_with_fault(fault: Fault, unlucky: usize) -> usize {
    let acceptor = encrypted_acceptor(&active_keys(), 1);
    let (mut board, mut server) =
        (Board::new(DEVICE, key_protection(), NoStore, 1), ServerEnd::persistent(&acceptor));
    let mut up = board.link_up();
    let mut frames = 0;
    let mut updates = 0;
    // Number of simulated seconds at whose end the round was unanswered, since the server last sent it.
    let mut unanswered_seconds = 0;
    let (mut late_up, mut late_down): (Vec<Vec<u8>>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    let mut carry = |sent: Vec<Vec<u8>>, late: &mut Vec<Vec<u8>>| {
        let mut arrived = Vec::new();
        for mut frame in sent {
            let unlucky = frames == unlucky;
            frames += 1;
            let delayed = std::mem::take(late);
            match fault {
                _ if !unlucky => arrived.push(frame),
                Fault::Lost => {}
                Fault::Twice => arrived.extend([frame.clone(), frame]),
                Fault::Late => late.push(frame),
                Fault::Damaged => {
                    let middle = frame.len() / 2;
                    frame[middle] ^= 4;
                    arrived.push(frame);
                }
            }
            arrived.extend(delayed);
        }
        arrived
    };
    for second in 0..200 {
        loop {
            let arrived = carry(std::mem::take(&mut up), &mut late_up);
            let mut down = server.receive(&arrived);
            handle_server_events(&mut server, 1, &mut updates);
            down.extend(server.take_frames());
            if down.is_empty() {
                break;
            }
            let arrived = carry(down, &mut late_down);
            up = board.receive_all(&arrived);
        }
        assert!(!board.last_progress.close, "the device closed the serial line");
        if board.session.counters().counted == 1 && late_up.is_empty() && late_down.is_empty() {
            println!("{fault:?} {unlucky}: {second} s, {frames} frames, {updates} updates received");
            assert!(updates >= 1);
            // The next round must run normally.
            server.events.clear();
            run_round(&mut board, &mut server, 2);
            assert_eq!(board.session.counters().counted, 2);
            return frames;
        }
        up = board.wait(1_000);
        if second % 2 == 1 {
            // Delayed frames arrive.
            up.append(&mut late_up);
            up.extend(board.receive_all(&std::mem::take(&mut late_down)));
        }
        unanswered_seconds += u32::from(server.connection.unanswered().is_some());
        if unanswered_seconds == 10 {
            server.connection.resend_round();
            unanswered_seconds = 0;
        }
    }
    panic!("{fault:?} {unlucky}: the update never counted: {:?}", board.session.counters());
}

#[test]
fn session_recovers_from_any_fault_of_one_frame() {
    for fault in [Fault::Lost, Fault::Twice, Fault::Late, Fault::Damaged] {
        let mut frame = 0;
        while frame < run_line_with_fault(fault, frame) {
            frame += 1;
        }
        assert!(frame >= 7, "fewer frames than greet, hello, answer, confirmation, RoundOpen, Update, Ack");
    }
}

/// Tests that a device that may not join receives a sealed refusal, and accepts it.
#[test]
fn sealed_refusal_is_accepted() {
    let requirements = requirements().with_numeric(Some(Numeric::I16));
    let entropy = Box::new(ChaCha20Rng::seed_from_u64(1));
    let acceptor = Arc::new(Acceptor::encrypted(requirements, WELCOME, active_keys(), entropy));
    let (mut board, mut server) =
        (Board::new(DEVICE, key_protection(), NoStore, 1), ServerEnd::new(&acceptor));
    let hello = board.link_up();
    let (up, down) = exchange_frames(&mut board, &mut server, hello);
    assert_eq!((up.len(), decode_cobs(&down[0])[0]), (1, HEADER_ANSWER));
    assert!(
        board.last_progress.close
            && matches!(server.events[..], [PeerMessage::Refused(Refusal::Capability(_))])
    );
    assert!(matches!(board.session.refusal(), Some(Refusal::Capability(_))));
}

/// Store whose operations fail on request.
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

    fn load(&mut self, _head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
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

/// Tests that a device that cannot store its handshake number sends nothing, not even after it reconnects.
#[test]
fn device_with_failed_storage_stays_silent() {
    let exhausted = Faulty { handshakes: u64::MAX - 127, ..Faulty::default() };
    for store in [
        Faulty { load: true, ..Faulty::default() },
        Faulty { save: true, ..Faulty::default() },
        // The handshake numbers are used up.
        exhausted,
    ] {
        let mut board = Board::new(DEVICE, key_protection(), store, 1);
        for attempt in 1..=10 {
            assert!(board.link_up().is_empty(), "{store:?}");
            assert!(board.last_progress.close);
            assert_eq!(board.session.counters().storage, attempt);
            assert!(board.wait(5_000).is_empty());
            assert!(board.handle_event(Event::LinkDown).is_empty());
            assert!(
                board.last_progress.wake.as_u64() > board.now
                    && board.last_progress.wake.as_u64() <= board.now + 60_000
            );
            board.now = board.last_progress.wake.as_u64();
        }
    }
    // A device without a key numbers no handshakes and does not need the store.
    let store = Faulty { load: true, save: true, handshakes: 0 };
    assert_eq!(Board::new(DEVICE, Protection::Plaintext, store, 1).link_up().len(), 1);
    // The last block of numbers can be used, and is stored before its first use.
    let last_block = Faulty { handshakes: u64::MAX - 128, ..Faulty::default() };
    assert_eq!(Board::new(DEVICE, key_protection(), last_block, 1).link_up().len(), 1);
}

/// Tests that a repeated hello gets the same answer, byte for byte, until the answer is confirmed. Before the
/// confirmation the server ignores plain messages.
#[test]
fn repeated_hello_gets_the_same_answer_until_confirmed() {
    let acceptor = encrypted_acceptor(&active_keys(), 1);
    let (mut board, mut server) =
        (Board::new(DEVICE, key_protection(), NoStore, 1), ServerEnd::new(&acceptor));
    let plain_messages = [
        encode_plain(&ToServer::Alive),
        encode_plain(&ToServer::Decline(Decline {
            id: RoundId { round: 1, stage: 0 },
            reason: DeclineReason::Task,
        })),
    ];
    let hello = board.link_up();
    let mut answers = Vec::new();
    for _ in 0..5 {
        let before = server.connection.traffic().unsealed;
        assert!(
            server.receive(&plain_messages).is_empty() && server.events.is_empty(),
            "{:?}",
            server.events
        );
        assert_eq!(server.connection.traffic().unsealed, before + 2);
        answers.extend(server.receive(&hello));
        assert!(server.events.is_empty());
        assert_eq!(board.wait(2_000), hello, "the device sent another hello");
    }
    assert_eq!(answers.len(), 5);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    // Each of the answers can complete the handshake; the further ones are rejected.
    let confirmation = board.receive_all(&answers[4..]);
    assert!(board.receive_all(&answers[..4]).is_empty());
    assert_eq!(count_undecrypted(&board), 4);
    server.receive(&confirmation);
    assert_eq!(server.count_hellos(), 1);
    server.events.clear();
    // The server answers the same hello on another connection with other keys, because it draws no nonce
    // twice.
    let mut other_server = ServerEnd::new(&acceptor);
    assert_ne!(other_server.receive(&hello), answers[..1]);
    // After the confirmation the server gives the hello a new answer, and the session continues.
    assert_ne!(server.receive(&hello), answers[..1]);
    run_round(&mut board, &mut server, 1);
    assert_eq!(board.session.counters().counted, 1);
}
