//! Tests of attackers on the link of a device with a key, who replay recordings, flip bits, and send plain
//! messages and noise. They can do no more than interrupt the link.

use std::sync::Arc;

use crate::common::{
    Board, DEVICE, OTHER, ServerEnd, WELCOME, active_keys, connect_device, count_undecrypted, decode_cobs,
    encode_plain, encode_plain_round, encrypted_acceptor, exchange_frames, handle_server_events,
    key_protection, record_connection, requirements, round_broadcast, run_round,
};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::Event;
use fedspan_client::store::NoStore;
use fedspan_hostile::Random;
use fedspan_protocol::frame::{HEADER_ANSWER, HEADER_SEALED};
use fedspan_protocol::limits::WIRE_VERSION;
use fedspan_protocol::message::{
    Ack, AckOutcome, Capabilities, Chunk, Decline, DeclineReason, Descriptors, Fault, Hello, Missing, Model,
    Numeric, Privacy, Refusal, RoundId, ToDevice, ToServer, Update,
};

/// Tests replayed frames. The server answers a recorded hello, because it cannot distinguish it from a new
/// one. It rejects all other recorded frames, and no device joins.
#[test]
fn recording_joins_nowhere_and_changes_nothing() {
    let acceptor = encrypted_acceptor(&active_keys(), 1);
    let (up, down) = record_connection(&acceptor, 5);
    // The frames are replayed on a new connection: in order, backwards and twice.
    let backwards: Vec<Vec<u8>> = up.iter().rev().cloned().collect();
    for frames in [&up, &backwards, &[up.clone(), up.clone()].concat()] {
        for persistent in [false, true] {
            let mut server =
                if persistent { ServerEnd::persistent(&acceptor) } else { ServerEnd::new(&acceptor) };
            let answers = server.receive(frames);
            assert!(server.events.is_empty(), "{:?}", server.events);
            assert!(answers.iter().all(|frame| {
                decode_cobs(frame)[0] == HEADER_ANSWER
                    || *frame == encode_plain(&ToDevice::Fault(Fault::Greet))
            }));
            // Updates exceed the frame limit of an unauthenticated peer.
            let traffic = server.connection.traffic();
            assert!(traffic.protocol_errors() >= u32::try_from(up.len() - 1).unwrap() && traffic.forged > 0);
        }
    }
    // The frames are replayed into a device's connection, before and during a round, at both ends.
    let (mut board, mut server) = connect_device(&acceptor, NoStore, 6);
    for number in 1..=3 {
        let answers = server.receive(&up);
        assert!(server.events.is_empty(), "{:?}", server.events);
        // The server answers the recorded hello; the device ignores this answer.
        assert_eq!(answers.iter().map(|frame| decode_cobs(frame)[0]).collect::<Vec<_>>(), [HEADER_ANSWER]);
        let before = count_undecrypted(&board);
        assert!(board.receive_all(&answers).is_empty());
        assert!(board.receive_all(&down).is_empty());
        assert_eq!(count_undecrypted(&board) - before, 1 + u32::try_from(down.len()).unwrap());
        server.connection.open(&round_broadcast(number));
        let open = server.take_frames();
        let update = board.receive_all(&open);
        assert!(board.receive_all(&down).is_empty());
        server.receive(&up);
        server.receive(&update);
        let [PeerMessage::Update(update)] = &server.events[..] else { panic!("{:?}", server.events) };
        let ack = Ack { id: update.id, outcome: AckOutcome::Counted };
        server.connection.send(ToDevice::Ack(ack));
        server.events.clear();
        let ack = server.take_frames();
        assert!(board.receive_all(&ack).is_empty());
        assert_eq!(board.session.counters().counted, number);
    }
    // The device's own frames are rejected as replays.
    let (device_frames, _) = run_round(&mut board, &mut server, 4);
    let before = server.connection.traffic().replayed;
    server.receive(&device_frames);
    assert!(server.events.is_empty());
    assert_eq!(server.connection.traffic().replayed - before, u32::try_from(device_frames.len()).unwrap());
}

/// Tests flips of every bit of every frame of an exchange: the damaged frame is rejected and counted, and the
/// intact frame is accepted afterwards.
#[test]
fn frame_with_any_flipped_bit_is_rejected() {
    let acceptor = encrypted_acceptor(&active_keys(), 1);
    let (mut board, mut server) =
        (Board::new(DEVICE, key_protection(), NoStore, 1), ServerEnd::new(&acceptor));
    let mut flips = 0u32;
    let flip_bit = |frame: &[u8], bit: usize| {
        let mut frame = frame.to_vec();
        frame[bit / 8] ^= 1 << (bit % 8);
        // The flip may have removed the delimiter.
        frame.push(0);
        frame
    };
    let mut up = board.link_up();
    let mut updates = 0;
    let mut up_frames = 0;
    let mut down_frames = 0;
    while !up.is_empty() {
        for frame in &up {
            for bit in 0..8 * frame.len() {
                flips += 1;
                let before = server.connection.traffic().protocol_errors();
                assert!(server.receive(&[flip_bit(frame, bit)]).is_empty(), "a damaged frame was answered");
                assert!(server.events.is_empty(), "{:?}", server.events);
                assert!(
                    server.connection.traffic().protocol_errors() > before,
                    "the damaged frame was not counted"
                );
            }
            up_frames += 1;
            server.connection.receive(frame, &mut server.events);
        }
        let mut down = server.take_frames();
        handle_server_events(&mut server, 1, &mut updates);
        down.extend(server.take_frames());
        up.clear();
        for frame in &down {
            for bit in 0..8 * frame.len() {
                flips += 1;
                let before = board.rejected();
                assert!(board.receive(&flip_bit(frame, bit)).is_empty(), "a damaged frame was answered");
                assert!(!board.last_progress.close && board.rejected() > before);
            }
            down_frames += 1;
            up.extend(board.receive(frame));
        }
    }
    println!("{flips} flipped bits of {up_frames} frames up and {down_frames} down: 0 accepted");
    assert_eq!((up_frames, down_frames, board.session.counters().counted), (3, 3, 1));
}

/// Returns plain messages that an attacker may send to a device.
fn plain_messages() -> Vec<Vec<u8>> {
    let id = RoundId { round: 9, stage: 0 };
    let messages = [
        ToDevice::Welcome(fedspan_protocol::message::Welcome { campaign: 1, idle_milliseconds: 1 }),
        ToDevice::Ack(Ack { id, outcome: AckOutcome::Counted }),
        ToDevice::Ack(Ack { id: RoundId { round: 1, stage: 0 }, outcome: AckOutcome::Late }),
        ToDevice::RoundClosed(id),
        ToDevice::RoundClosed(RoundId { round: 1, stage: 0 }),
        ToDevice::Missing(Missing { id, tensor: 0, chunks: [0].into_iter().collect() }),
        ToDevice::Chunk(Chunk { id, tensor: 0, offset: 0 }),
        ToDevice::Fault(Fault::Malformed),
        ToDevice::Fault(Fault::Unexpected),
        ToDevice::Fault(Fault::Tensors),
    ];
    let mut frames: Vec<_> = messages.iter().map(encode_plain).collect();
    frames.push(encode_plain_round(&round_broadcast(1)));
    frames.push(encode_plain_round(&round_broadcast(9)));
    frames
}

#[test]
fn plain_messages_are_ignored() {
    let acceptor = encrypted_acceptor(&active_keys(), 1);
    // The messages arrive while the device waits for the answer to its hello.
    let (mut board, mut server) =
        (Board::new(DEVICE, key_protection(), NoStore, 1), ServerEnd::new(&acceptor));
    let hello = board.link_up();
    for frame in plain_messages() {
        let before = board.session.counters().unsealed;
        assert!(board.receive(&frame).is_empty());
        assert!(!board.last_progress.close);
        assert_eq!(board.session.counters().unsealed, before + 1);
    }
    assert!(
        board.receive(&encode_plain(&ToDevice::Fault(Fault::Greet))).is_empty(),
        "the device repeated the hello that it has just sent"
    );
    exchange_frames(&mut board, &mut server, hello);
    assert_eq!(server.count_hellos(), 1);
    server.events.clear();
    // The messages arrive after the welcome, before and during a round.
    let further_messages = [
        ToDevice::RetryAfter { milliseconds: u32::MAX },
        ToDevice::RetryAfter { milliseconds: 0 },
        ToDevice::Refused(Refusal::UnknownDevice),
        ToDevice::Refused(Refusal::KeyNeeded),
    ];
    let frames: Vec<_> =
        plain_messages().into_iter().chain(further_messages.iter().map(encode_plain)).collect();
    for frame in &frames {
        assert!(board.receive(frame).is_empty());
        assert!(!board.last_progress.close);
    }
    server.connection.open(&round_broadcast(1));
    let open = server.take_frames();
    let update = board.receive_all(&open);
    assert_eq!(update.len(), 1);
    for frame in &frames {
        assert!(board.receive(frame).is_empty());
        assert!(!board.last_progress.close);
    }
    let counters = board.session.counters();
    assert_eq!(
        (
            counters.counted,
            counters.late,
            counters.closed,
            counters.declined,
            counters.malformed,
            counters.unexpected
        ),
        (0, 0, 0, 0, 0, 0)
    );
    assert_eq!((board.session.refusal(), board.session.last_round()), (None, 0));
    // The server also ignores plain messages.
    let id = RoundId { round: 1, stage: 0 };
    let capabilities = Capabilities {
        frame_limit: 256,
        model: Model::linear(20, 2, 1),
        tasks: 3,
        roles: 2,
        encodings: 7,
        numeric: Numeric::F32,
        tensors: 2,
        tensor_elements: 40,
        total_elements: 42,
        privacy: Privacy::None,
    };
    let other_version = Hello { wire_version: WIRE_VERSION + 1, ..Hello::new(DEVICE, capabilities) };
    for frame in [
        ToServer::Update(Update { id, samples: 1, skipped: 0, tensors: Descriptors::new() }),
        ToServer::Decline(Decline { id, reason: DeclineReason::Device }),
        ToServer::Missing(Missing { id, tensor: 0, chunks: [0].into_iter().collect() }),
        ToServer::Alive,
        ToServer::Hello(Hello::new(DEVICE, capabilities)),
        ToServer::Hello(Hello::new(OTHER, capabilities)),
        ToServer::Hello(other_version),
    ] {
        let before = server.connection.traffic().unsealed;
        assert!(server.receive(&[encode_plain(&frame)]).is_empty(), "{frame:?}");
        assert!(server.events.is_empty(), "{:?}", server.events);
        assert_eq!(server.connection.traffic().unsealed, before + 1, "{frame:?}");
    }
    server.receive(&update);
    assert_eq!(server.count_updates(), 1);
}

/// Tests that the three plain messages that a device accepts have only the effects stated in SPEC.md.
#[test]
fn accepted_plain_messages_have_bounded_effects() {
    let acceptor = encrypted_acceptor(&active_keys(), 1);
    // RetryAfter before the answer causes a pause of at most a minute.
    for milliseconds in [0, 1, 59_999, 60_000, 60_001, u32::MAX] {
        let mut board = Board::new(DEVICE, key_protection(), NoStore, 1);
        board.link_up();
        board.receive(&encode_plain(&ToDevice::RetryAfter { milliseconds }));
        assert!(board.last_progress.close);
        board.handle_event(Event::LinkDown);
        assert!(board.last_progress.wake.as_u64() <= board.now + 60_000, "{milliseconds}");
    }
    // Refused before the answer has the same effect as a lost link, any number of times.
    let mut board = Board::new(DEVICE, key_protection(), NoStore, 1);
    let mut hellos = Vec::new();
    for _ in 0..20 {
        let hello = board.link_up();
        assert!(!hellos.contains(&hello), "two attempts sent the same hello");
        hellos.push(hello);
        board.receive(&encode_plain(&ToDevice::Refused(Refusal::UnknownDevice)));
        assert!(board.last_progress.close && board.session.refusal().is_none());
        board.handle_event(Event::LinkDown);
        assert!(
            board.last_progress.wake.as_u64() > board.now
                && board.last_progress.wake.as_u64() <= board.now + 60_000
        );
        board.now = board.last_progress.wake.as_u64();
    }
    // After the welcome, any number of Greet faults cause one new handshake, and the round continues.
    let (mut board, mut server) = connect_device(&acceptor, NoStore, 1);
    board.now += 10_000;
    server.connection.open(&round_broadcast(1));
    let open = server.take_frames();
    let update = board.receive_all(&open);
    assert_eq!(update.len(), 1, "the device sent no update");
    let greet = encode_plain(&ToDevice::Fault(Fault::Greet));
    let sent: Vec<_> = (0..1_000).flat_map(|_| board.receive(&greet)).collect();
    assert_eq!(sent.len(), 1, "the faults did not cause exactly one hello");
    let (mut updates, mut up) = (0, sent);
    loop {
        let mut down = server.receive(&up);
        handle_server_events(&mut server, 1, &mut updates);
        down.extend(server.take_frames());
        if down.is_empty() {
            break;
        }
        up = board.receive_all(&down);
    }
    assert_eq!((updates, board.session.counters().counted, board.session.counters().declined), (1, 1, 0));
    // No further handshake starts shortly afterwards, because each handshake costs a write to flash.
    let sent: Vec<_> = (0..1_000).flat_map(|_| board.receive(&greet)).collect();
    assert!(sent.is_empty(), "a handshake started shortly after the last one");
    board.now += 2_000;
    assert_eq!((0..1_000).flat_map(|_| board.receive(&greet)).count(), 1);
}

/// Tests an attacker who removes the greeting from a hello.
#[test]
fn hello_without_greeting_is_refused() {
    let (mut board, mut server) = (
        Board::new(DEVICE, key_protection(), NoStore, 1),
        ServerEnd::new(&encrypted_acceptor(&active_keys(), 1)),
    );
    let hello = decode_cobs(&board.link_up()[0]);
    let (message, _) = fedspan_protocol::message::decode::<ToServer>(&hello[1..hello.len() - 4]).unwrap();
    let down = server.receive(&[encode_plain(&message)]);
    assert_eq!(down, [encode_plain(&ToDevice::Refused(Refusal::KeyNeeded))]);
    assert!(
        board.receive_all(&down).is_empty() && board.last_progress.close && board.session.refusal().is_none()
    );
    // A device with a key does not join a server without keys, whether genuine or pretended.
    let mut board = Board::new(DEVICE, key_protection(), NoStore, 1);
    let mut server = ServerEnd::new(&Arc::new(Acceptor::plaintext(requirements(), WELCOME)));
    board.link_up();
    let down = server.receive(&[encode_plain(&message)]);
    assert_eq!((server.count_hellos(), down.len()), (1, 1));
    assert!(board.receive_all(&down).is_empty(), "the device accepted a plain welcome");
    server.connection.open(&round_broadcast(1));
    let open = server.take_frames();
    assert!(board.receive_all(&open).is_empty());
    assert_eq!(board.session.counters().unsealed, 2);
}

/// Tests that random frames with sealed headers, and invented answers, are counted and have no other effect.
#[test]
fn noise_with_sealed_headers_is_only_counted() {
    let (mut board, mut server) = connect_device(&encrypted_acceptor(&active_keys(), 1), NoStore, 1);
    let mut waiting = Board::new(DEVICE, key_protection(), NoStore, 2);
    waiting.link_up();
    let mut random = Random(9);
    for _ in 0..3_000 {
        let length = random.below(60);
        let mut frame = vec![HEADER_SEALED + random.below(2) as u8];
        frame.extend((0..length).map(|_| 1 + random.below(255) as u8));
        if random.once_in(2) && length >= 8 {
            // The counter of the frame has not been used.
            frame[1..9].copy_from_slice(&[2, 1, 1, 1, 1, 1, 1, 1]);
        }
        let code = u8::try_from(frame.len() + 1).unwrap();
        let wire = [&[code][..], &frame, &[0]].concat();
        assert!(board.receive(&wire).is_empty() && waiting.receive(&wire).is_empty());
        assert!(server.receive(&[wire]).is_empty() && server.events.is_empty());
    }
    assert!(board.rejected() >= 3_000 && waiting.rejected() >= 3_000);
    assert!(server.connection.traffic().protocol_errors() >= 3_000);
    run_round(&mut board, &mut server, 1);
    assert_eq!(board.session.counters().counted, 1);
}
