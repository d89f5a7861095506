//! What somebody on the wire can do about a conversation under a key: recordings, flipped bits, lies in the clear, noise.
//! No more than somebody who cuts it.

use std::sync::Arc;

use crate::common::{
    Board, DEVICE, Host, OTHER, WELCOME, converse, gate, joined, keys, opening, plain, plain_open, protected,
    react, recording, requirements, round, uncobs, unopened,
};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::Event;
use fedspan_client::store::NoStore;
use fedspan_hostile::Random;
use fedspan_protocol::limits::WIRE_VERSION;
use fedspan_protocol::message::{
    Ack, AckOutcome, Capabilities, Chunk, Decline, DeclineReason, Descriptors, Fault, Hello, Missing, Model,
    Numeric, Privacy, Refusal, RoundId, ToDevice, ToServer, Update,
};

/// Of a recording, hello is answered, since anybody may say it; nothing else is heard, and nobody joins.
#[test]
fn a_recording_joins_nowhere_and_disturbs_nobody() {
    let gate = gate(&keys(), 1);
    let (up, down) = recording(&gate, 5);
    // On a connection of its own, in order, backwards and repeated.
    let backwards: Vec<Vec<u8>> = up.iter().rev().cloned().collect();
    for frames in [&up, &backwards, &[up.clone(), up.clone()].concat()] {
        for lasting in [false, true] {
            let mut host = if lasting { Host::lasting(&gate) } else { Host::new(&gate) };
            let answers = host.hear(frames);
            assert!(host.said.is_empty(), "{:?}", host.said);
            assert!(answers.iter().all(|frame| {
                uncobs(frame)[0] == 0x12 || *frame == plain(&ToDevice::Fault(Fault::Greet))
            }));
            // Updates are longer than what is read from somebody who has not joined.
            let traffic = host.connection.traffic();
            assert!(traffic.protocol_errors() >= u32::try_from(up.len() - 1).unwrap() && traffic.forged > 0);
        }
    }
    // Into the conversation of the device that is there, before and in the middle of a round, on both ends.
    let (mut board, mut host) = joined(&gate, NoStore, 6);
    for number in 1..=3 {
        let answers = host.hear(&up);
        assert!(host.said.is_empty(), "{:?}", host.said);
        // The recorded hello is answered; that is nothing to the device that is there.
        assert_eq!(answers.iter().map(|frame| uncobs(frame)[0]).collect::<Vec<_>>(), [0x12]);
        let before = unopened(&board);
        assert!(board.hear_all(&answers).is_empty());
        assert!(board.hear_all(&down).is_empty());
        assert_eq!(unopened(&board) - before, 1 + u32::try_from(down.len()).unwrap());
        host.connection.open(&opening(number));
        let open = host.frames();
        let update = board.hear_all(&open);
        assert!(board.hear_all(&down).is_empty());
        host.hear(&up);
        host.hear(&update);
        let [PeerMessage::Update(update)] = &host.said[..] else { panic!("{:?}", host.said) };
        let ack = Ack { id: update.id, outcome: AckOutcome::Counted };
        host.connection.send(ToDevice::Ack(ack));
        host.said.clear();
        let ack = host.frames();
        assert!(board.hear_all(&ack).is_empty());
        assert_eq!(board.session.counters().counted, number);
    }
    // Its own frames, played back, are replays.
    let (own, _) = round(&mut board, &mut host, 4);
    let before = host.connection.traffic().replayed;
    host.hear(&own);
    assert!(host.said.is_empty());
    assert_eq!(host.connection.traffic().replayed - before, u32::try_from(own.len()).unwrap());
}

/// Every bit of every frame of an exchange, flipped: nothing is heard, something is counted, and the frame itself,
/// afterwards, is.
#[test]
fn no_flipped_bit_of_an_exchange_is_heard() {
    let gate = gate(&keys(), 1);
    let (mut board, mut host) = (Board::new(DEVICE, protected(), NoStore, 1), Host::new(&gate));
    let mut flips = 0u32;
    let flipped = |frame: &[u8], bit: usize| {
        let mut frame = frame.to_vec();
        frame[bit / 8] ^= 1 << (bit % 8);
        // The delimiter itself may be gone.
        frame.push(0);
        frame
    };
    let mut up = board.link_up();
    let (mut done, mut up_frames, mut down_frames) = (0, 0, 0);
    while !up.is_empty() {
        for frame in &up {
            for bit in 0..8 * frame.len() {
                flips += 1;
                let before = host.connection.traffic().protocol_errors();
                assert!(host.hear(&[flipped(frame, bit)]).is_empty(), "an answer to damage");
                assert!(host.said.is_empty(), "{:?}", host.said);
                assert!(host.connection.traffic().protocol_errors() > before, "not counted");
            }
            up_frames += 1;
            host.connection.receive(frame, &mut host.said);
        }
        let mut down = host.frames();
        react(&mut host, 1, &mut done);
        down.extend(host.frames());
        up.clear();
        for frame in &down {
            for bit in 0..8 * frame.len() {
                flips += 1;
                let before = board.drops();
                assert!(board.hear(&flipped(frame, bit)).is_empty(), "an answer to damage");
                assert!(!board.last.close && board.drops() > before);
            }
            down_frames += 1;
            up.extend(board.hear(frame));
        }
    }
    println!("{flips} flipped bits of {up_frames} frames up and {down_frames} down: 0 heard");
    assert_eq!((up_frames, down_frames, board.session.counters().counted), (3, 3, 1));
}

/// What somebody between the two may say in the clear, to a device.
fn lies() -> Vec<Vec<u8>> {
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
    let mut all: Vec<_> = messages.iter().map(plain).collect();
    all.push(plain_open(&opening(1)));
    all.push(plain_open(&opening(9)));
    all
}

#[test]
fn what_is_said_in_the_clear_is_not_believed() {
    let gate = gate(&keys(), 1);
    // While it waits for the answer.
    let (mut board, mut host) = (Board::new(DEVICE, protected(), NoStore, 1), Host::new(&gate));
    let hello = board.link_up();
    for lie in lies() {
        let before = board.session.counters().unsealed;
        assert!(board.hear(&lie).is_empty());
        assert!(!board.last.close);
        assert_eq!(board.session.counters().unsealed, before + 1);
    }
    assert!(board.hear(&plain(&ToDevice::Fault(Fault::Greet))).is_empty(), "it has just said hello");
    converse(&mut board, &mut host, hello);
    assert_eq!(host.joined(), 1);
    host.said.clear();
    // While it is welcome, between rounds and within one.
    let more = [
        ToDevice::RetryAfter { milliseconds: u32::MAX },
        ToDevice::RetryAfter { milliseconds: 0 },
        ToDevice::Refused(Refusal::UnknownDevice),
        ToDevice::Refused(Refusal::KeyNeeded),
    ];
    let all: Vec<_> = lies().into_iter().chain(more.iter().map(plain)).collect();
    for lie in &all {
        assert!(board.hear(lie).is_empty());
        assert!(!board.last.close);
    }
    host.connection.open(&opening(1));
    let open = host.frames();
    let update = board.hear_all(&open);
    assert_eq!(update.len(), 1);
    for lie in &all {
        assert!(board.hear(lie).is_empty());
        assert!(!board.last.close);
    }
    let own = board.session.counters();
    assert_eq!(
        (own.counted, own.late, own.closed, own.declined, own.malformed, own.unexpected),
        (0, 0, 0, 0, 0, 0)
    );
    assert_eq!((board.session.refusal(), board.session.last_round()), (None, 0));
    // The server hears no lies either: an update, a decline, a sign of life, a hello without a greeting.
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
    let foreign = Hello { wire_version: WIRE_VERSION + 1, ..Hello::new(DEVICE, capabilities) };
    for lie in [
        ToServer::Update(Update { id, samples: 1, skipped: 0, tensors: Descriptors::new() }),
        ToServer::Decline(Decline { id, reason: DeclineReason::Device }),
        ToServer::Missing(Missing { id, tensor: 0, chunks: [0].into_iter().collect() }),
        ToServer::Alive,
        ToServer::Hello(Hello::new(DEVICE, capabilities)),
        ToServer::Hello(Hello::new(OTHER, capabilities)),
        ToServer::Hello(foreign),
    ] {
        let before = host.connection.traffic().unsealed;
        assert!(host.hear(&[plain(&lie)]).is_empty(), "{lie:?}");
        assert!(host.said.is_empty(), "{:?}", host.said);
        assert_eq!(host.connection.traffic().unsealed, before + 1, "{lie:?}");
    }
    host.hear(&update);
    assert_eq!(host.updates(), 1);
}

/// The three exceptions do what SPEC.md says, and no more.
#[test]
fn what_is_believed_in_the_clear_is_bounded() {
    let gate = gate(&keys(), 1);
    // RetryAfter, while it waits: at most a minute.
    for milliseconds in [0, 1, 59_999, 60_000, 60_001, u32::MAX] {
        let mut board = Board::new(DEVICE, protected(), NoStore, 1);
        board.link_up();
        board.hear(&plain(&ToDevice::RetryAfter { milliseconds }));
        assert!(board.last.close);
        board.event(Event::LinkDown);
        assert!(board.last.wake <= board.now + 60_000, "{milliseconds}");
    }
    // Refused, while it waits: as after a lost link, however often.
    let mut board = Board::new(DEVICE, protected(), NoStore, 1);
    let mut hellos = Vec::new();
    for _ in 0..20 {
        let hello = board.link_up();
        assert!(!hellos.contains(&hello), "a handshake for each attempt");
        hellos.push(hello);
        board.hear(&plain(&ToDevice::Refused(Refusal::UnknownDevice)));
        assert!(board.last.close && board.session.refusal().is_none());
        board.event(Event::LinkDown);
        assert!(board.last.wake > board.now && board.last.wake <= board.now + 60_000);
        board.now = board.last.wake;
    }
    // Greet, while it is welcome: one handshake for a welcome, however many come; and the round goes on.
    let (mut board, mut host) = joined(&gate, NoStore, 1);
    board.now += 10_000;
    host.connection.open(&opening(1));
    let open = host.frames();
    let update = board.hear_all(&open);
    assert_eq!(update.len(), 1, "it is lost");
    let greet = plain(&ToDevice::Fault(Fault::Greet));
    let said: Vec<_> = (0..1_000).flat_map(|_| board.hear(&greet)).collect();
    assert_eq!(said.len(), 1, "one hello");
    let (mut done, mut up) = (0, said);
    loop {
        let mut down = host.hear(&up);
        react(&mut host, 1, &mut done);
        down.extend(host.frames());
        if down.is_empty() {
            break;
        }
        up = board.hear_all(&down);
    }
    assert_eq!((done, board.session.counters().counted, board.session.counters().declined), (1, 1, 0));
    // And not again right after: the numbers of handshakes are written to flash.
    let said: Vec<_> = (0..1_000).flat_map(|_| board.hear(&greet)).collect();
    assert!(said.is_empty(), "a handshake just now was enough");
    board.now += 2_000;
    assert_eq!((0..1_000).flat_map(|_| board.hear(&greet)).count(), 1);
}

/// Whoever stands between them takes the greeting away.
#[test]
fn a_hello_without_its_greeting_gets_nobody_in() {
    let (mut board, mut host) = (Board::new(DEVICE, protected(), NoStore, 1), Host::new(&gate(&keys(), 1)));
    let hello = uncobs(&board.link_up()[0]);
    let (message, _) = fedspan_protocol::message::decode::<ToServer>(&hello[1..hello.len() - 4]).unwrap();
    let down = host.hear(&[plain(&message)]);
    assert_eq!(down, [plain(&ToDevice::Refused(Refusal::KeyNeeded))]);
    assert!(board.hear_all(&down).is_empty() && board.last.close && board.session.refusal().is_none());
    // A server without keys, or one that pretends to be, is not spoken to.
    let mut board = Board::new(DEVICE, protected(), NoStore, 1);
    let mut host = Host::new(&Arc::new(Acceptor::plaintext(requirements(), WELCOME)));
    board.link_up();
    let down = host.hear(&[plain(&message)]);
    assert_eq!((host.joined(), down.len()), (1, 1));
    assert!(board.hear_all(&down).is_empty(), "a welcome in the clear is none");
    host.connection.open(&opening(1));
    let open = host.frames();
    assert!(board.hear_all(&open).is_empty());
    assert_eq!(board.session.counters().unsealed, 2);
}

/// Noise that looks sealed, and answers that somebody makes up, to both ends: nothing comes of it.
#[test]
fn noise_under_sealed_headers_is_counted_and_nothing_else() {
    let (mut board, mut host) = joined(&gate(&keys(), 1), NoStore, 1);
    let mut waiting = Board::new(DEVICE, protected(), NoStore, 2);
    waiting.link_up();
    let mut random = Random(9);
    for _ in 0..3_000 {
        let length = random.below(60);
        let mut frame = vec![0x11 + random.below(2) as u8];
        frame.extend((0..length).map(|_| 1 + random.below(255) as u8));
        if random.once_in(2) && length >= 8 {
            // A counter that would be new.
            frame[1..9].copy_from_slice(&[2, 1, 1, 1, 1, 1, 1, 1]);
        }
        let code = u8::try_from(frame.len() + 1).unwrap();
        let wire = [&[code][..], &frame, &[0]].concat();
        assert!(board.hear(&wire).is_empty() && waiting.hear(&wire).is_empty());
        assert!(host.hear(&[wire]).is_empty() && host.said.is_empty());
    }
    assert!(board.drops() >= 3_000 && waiting.drops() >= 3_000);
    assert!(host.connection.traffic().protocol_errors() >= 3_000);
    round(&mut board, &mut host, 1);
    assert_eq!(board.session.counters().counted, 1);
}
