//! Tests of `PeerSession`: timeouts, repeated hellos, floods, and input that is split at any byte.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use fedspan_protocol::frame::encode;
use fedspan_protocol::message::{
    Ack, AckOutcome, Capabilities, Decline, DeclineReason, Fault, Hello, Message, Model, Numeric, RoundId,
    ToDevice, ToServer, Welcome,
};
use proptest::prelude::*;

use super::*;
use crate::config::Fleet;
use crate::connection::Acceptor;
use fedspan_engine::admission::Requirements;

const MODEL: Model = Model::linear(6, 2, 1);

/// Timeouts that differ from each other, so that a test can identify the timeout that ended a session.
const TIMEOUTS: Timeouts = Timeouts {
    hello: Millis::new(5_000),
    idle: Millis::new(120_000),
    frame: Millis::new(10_000),
    repeat: Millis::new(7_000),
};

fn fleet() -> Fleet {
    let text = "[devices]\nexpected = 1\n[data]\nd = 6\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\n\
                rounds = 3\nstep_size = 0.25\n";
    Fleet::parse("fleet.toml", text).unwrap()
}

/// Begins a session on a persistent link or on a socket.
fn begin_session(persistent: bool, now: Millis) -> (PeerSession, Receiver<Command>) {
    let requirements = Requirements::new(MODEL, &fleet().engine().requests(), None);
    let acceptor = Arc::new(Acceptor::plaintext(requirements, Welcome { campaign: 1, idle_milliseconds: 1 }));
    let connection = if persistent { Connection::persistent(acceptor) } else { Connection::new(acceptor) };
    PeerSession::new(7, Origin::Link("bench".into()), connection, TIMEOUTS, now)
}

/// Begins a session on an address from which packets arrive.
fn begin_packet_session(now: Millis) -> (PeerSession, Receiver<Command>) {
    let requirements = Requirements::new(MODEL, &fleet().engine().requests(), None);
    let acceptor = Arc::new(Acceptor::plaintext(requirements, Welcome { campaign: 1, idle_milliseconds: 1 }));
    PeerSession::new(7, Origin::Link("bench".into()), Connection::datagrams(acceptor), TIMEOUTS, now)
}

/// Encodes an unsealed frame of a device.
fn encode_frame<M: Message>(message: &M) -> Vec<u8> {
    let mut buffer = vec![0; 200];
    let sent = encode(message, 0, |_| {}, &mut buffer).unwrap();
    buffer.truncate(sent);
    buffer
}

/// Encodes the hello of a device.
fn hello_frame(device: u64) -> Vec<u8> {
    let capabilities = Capabilities {
        frame_limit: 256,
        model: MODEL,
        tasks: u32::MAX,
        roles: u32::MAX,
        encodings: u8::MAX,
        numeric: Numeric::F32,
        tensors: 2,
        tensor_elements: 64,
        total_elements: 64,
        privacy: Privacy::None,
    };
    encode_frame(&ToServer::Hello(Hello::new(device, capabilities)))
}

fn alive_frame() -> Vec<u8> {
    encode_frame(&ToServer::Alive)
}

fn decline_frame(round: u32) -> Vec<u8> {
    let decline = Decline { id: RoundId { round, stage: 0 }, reason: DeclineReason::Device };
    encode_frame(&ToServer::Decline(decline))
}

/// Outputs of a session.
#[derive(Debug, Default, PartialEq)]
struct Output {
    events: Vec<String>,
    frames: Vec<u8>,
    ended_by: Option<DisconnectReason>,
}

fn name_event(event: PeerEvent) -> String {
    match event.kind {
        PeerEventKind::Hello(device, ..) => format!("hello {device}"),
        other => format!("{other:?}"),
    }
}

/// Performs all pending steps of a session and admits every device that says hello.
fn run_session(session: &mut PeerSession, now: Millis, output: &mut Output) {
    run_session_with(session, now, output, |_, _| {});
}

/// Like [`run_session`]; `during_write` is called while each frame is being written.
fn run_session_with(
    session: &mut PeerSession,
    now: Millis,
    output: &mut Output,
    mut during_write: impl FnMut(&mut PeerSession, &mut Output),
) {
    let mut frame = Vec::new();
    loop {
        match session.next(now, &mut frame) {
            PeerAction::Send => {
                output.frames.extend_from_slice(&frame);
                during_write(session, output);
            }
            PeerAction::Admit => session.admit(),
            PeerAction::Beacon(_) => {}
            PeerAction::Report(event) => output.events.push(name_event(event)),
            PeerAction::Close(reason) => {
                output.ended_by = Some(reason);
                return;
            }
            PeerAction::Wait => return,
        }
    }
}

/// Passes bytes to a session and returns the outputs.
fn feed_bytes(session: &mut PeerSession, now: Millis, bytes: &[u8]) -> Output {
    let mut output = Output::default();
    session.receive(bytes);
    run_session(session, now, &mut output);
    output
}

/// Runs the next timer of a session. Returns the time of the timer and the outputs.
fn run_next_timer(session: &mut PeerSession, now: Millis) -> (Millis, Output) {
    let due = session.due(now).unwrap();
    let mut output = Output::default();
    session.on_timer(due - Millis::new(1));
    run_session(session, due - Millis::new(1), &mut output);
    assert_eq!(output, Output::default(), "the timer fired early");
    session.on_timer(due);
    run_session(session, due, &mut output);
    (due, output)
}

/// Returns the outputs of a session that ends without frames or other events.
fn ended(reason: DisconnectReason) -> Output {
    Output { ended_by: Some(reason), ..Output::default() }
}

#[test]
fn session_without_hello_times_out() {
    let (mut session, _commands) = begin_session(false, Millis::new(100));
    let output = feed_bytes(&mut session, Millis::new(3_000), &alive_frame());
    assert_eq!(output, Output::default());
    assert_eq!(
        run_next_timer(&mut session, Millis::new(3_000)),
        (Millis::new(5_100), ended(DisconnectReason::NoHello))
    );
}

#[test]
fn persistent_link_has_no_hello_timeout() {
    let (mut session, _commands) = begin_session(true, Millis::new(100));
    let mut output = Output::default();
    run_session(&mut session, Millis::new(100), &mut output);
    assert!(!output.frames.is_empty(), "the link requested no hello");
    assert_eq!(session.due(Millis::new(100)), None);
    session.on_timer(Millis::MAX);
    assert_eq!(feed_bytes(&mut session, Millis::new(1 << 40), &hello_frame(3)).events, ["hello 3"]);
    assert_eq!(
        run_next_timer(&mut session, Millis::new(1 << 40)),
        (Millis::new(1 << 40) + TIMEOUTS.idle, ended(DisconnectReason::Idle))
    );
}

#[test]
fn idle_timeout_counts_from_last_valid_message() {
    let (mut session, _commands) = begin_session(false, Millis::ZERO);
    assert_eq!(feed_bytes(&mut session, Millis::new(10), &hello_frame(3)).events, ["hello 3"]);
    assert_eq!(feed_bytes(&mut session, Millis::new(50_000), &alive_frame()), Output::default());
    assert_eq!(feed_bytes(&mut session, Millis::new(90_000), &[1, 2, 3, 0]), Output::default());
    assert_eq!(
        run_next_timer(&mut session, Millis::new(90_000)),
        (Millis::new(50_000) + TIMEOUTS.idle, ended(DisconnectReason::Idle))
    );
}

#[test]
fn unfinished_frame_times_out() {
    let (mut session, _commands) = begin_session(false, Millis::ZERO);
    let _ = feed_bytes(&mut session, Millis::new(10), &hello_frame(3));
    let bytes = alive_frame();
    for (second, byte) in (1..).zip(&bytes[..2]) {
        assert_eq!(feed_bytes(&mut session, Millis::new(second * 1_000), &[*byte]), Output::default());
    }
    assert_eq!(
        run_next_timer(&mut session, Millis::new(2_000)),
        (Millis::new(1_000) + TIMEOUTS.frame, ended(DisconnectReason::Slow))
    );
}

#[test]
fn unanswered_round_is_resent() {
    let (mut session, mut commands) = begin_session(false, Millis::ZERO);
    let mut core = fleet().engine();
    let mut actions = Vec::new();
    core.handle(Millis::ZERO, fedspan_engine::Event::Joined(DeviceId(3)), &mut actions);
    let Some(fedspan_engine::Action::Open(DeviceId(3), opening)) = actions.pop() else { panic!("a round") };
    let id = opening.id;
    let _ = feed_bytes(&mut session, Millis::ZERO, &hello_frame(3));
    session.execute(Command::Open(opening));
    let mut first = Output::default();
    run_session(&mut session, Millis::new(1_000), &mut first);
    assert!(!first.frames.is_empty());
    let mut last_sent = Millis::new(1_000);
    for _ in 1..4 {
        let (due, output) = run_next_timer(&mut session, last_sent);
        last_sent += TIMEOUTS.repeat;
        assert_eq!((due, &output.frames), (last_sent, &first.frames));
    }
    let declined = feed_bytes(&mut session, Millis::new(30_000), &decline_frame(id.round));
    assert_eq!(declined.events.len(), 1);
    assert_eq!(
        run_next_timer(&mut session, Millis::new(30_000)),
        (Millis::new(30_000) + TIMEOUTS.idle, ended(DisconnectReason::Idle))
    );
    assert!(commands.try_recv().is_none() && commands.is_closed(), "the session still receives commands");
}

#[test]
fn repeated_hellos_end_socket_sessions_only() {
    for persistent in [false, true] {
        let (mut session, _commands) = begin_session(persistent, Millis::ZERO);
        let mut reports = 0;
        let ended_by = (0..100).find_map(|now| {
            let output = feed_bytes(&mut session, Millis::new(now), &hello_frame(3));
            reports += output.events.len();
            output.ended_by
        });
        let (expected_end, expected_reports) =
            if persistent { (None, 100) } else { (Some(DisconnectReason::Flood), 17) };
        assert_eq!((ended_by, reports), (expected_end, expected_reports));
    }
}

/// Tests that a device may sleep on a link that has no end: it says hello each time it wakes, whether there is a round or not. Each hello
/// names the last message before.
#[test]
fn sleeping_device_may_say_hello_for_ever() {
    let (mut session, _commands) = begin_packet_session(Millis::ZERO);
    for wake in 0..1_000 {
        let output = feed_bytes(&mut session, Millis::new(5_000 * wake), &hello_frame(3));
        assert_eq!(output.ended_by, None, "wake {wake}");
        let last = 5_000 * wake.max(1) - 5_000;
        if wake > 0 {
            assert_eq!(output.events, [format!("HelloAgain(None, {last})")]);
        }
    }
    // At twice the rate it is a flood.
    let ended_by = (0..100).find_map(|wake| {
        feed_bytes(&mut session, Millis::new(5_000_000 + 2_500 * wake), &hello_frame(3)).ended_by
    });
    assert_eq!(ended_by, Some(DisconnectReason::Flood));
}

/// Tests that packets with a forged address do not end the session of a device, and that a peer that never says hello is ended like
/// one on a socket.
#[test]
fn forged_packets_end_only_sessions_without_a_device() {
    for says_hello in [false, true] {
        let (mut session, _commands) = begin_packet_session(Millis::ZERO);
        if says_hello {
            let _ = feed_bytes(&mut session, Millis::ZERO, &hello_frame(3));
        }
        let ended_by =
            (0..200).find_map(|now| feed_bytes(&mut session, Millis::new(now), &[9, 9, 9, 0]).ended_by);
        assert_eq!(ended_by, (!says_hello).then_some(DisconnectReason::Flood));
    }
}

#[test]
fn protocol_errors_are_reported_then_end_session() {
    let (mut session, _commands) = begin_session(false, Millis::ZERO);
    let _ = feed_bytes(&mut session, Millis::ZERO, &hello_frame(3));
    let mut output = Output::default();
    for now in 0..100 {
        session.receive(&[9, 9, 9, 0]);
        run_session(&mut session, Millis::new(now), &mut output);
        if output.ended_by.is_some() {
            // The error that exceeds `FAULTS_MAX`.
            assert_eq!(now, 64);
            break;
        }
    }
    assert_eq!(
        (output.events.as_slice(), output.ended_by),
        (["TrafficOnly"; 4].map(String::from).as_slice(), Some(DisconnectReason::Flood))
    );
}

#[test]
fn turned_away_device_gets_retry_delay() {
    let (mut session, mut commands) = begin_session(false, Millis::ZERO);
    let mut frame = Vec::new();
    session.receive(&hello_frame(3));
    assert!(matches!(session.next(Millis::ZERO, &mut frame), PeerAction::Admit));
    assert!(
        matches!(session.next(Millis::ZERO, &mut frame), PeerAction::Admit),
        "the hello is no longer pending"
    );
    session.turn_away();
    assert!(matches!(session.next(Millis::ZERO, &mut frame), PeerAction::Send));
    assert!(matches!(
        session.next(Millis::ZERO, &mut frame),
        PeerAction::Report(PeerEvent { kind: PeerEventKind::TurnedAway, .. })
    ));
    assert!(matches!(session.next(Millis::ZERO, &mut frame), PeerAction::Close(DisconnectReason::Ended)));
    assert!(
        matches!(session.next(Millis::ZERO, &mut frame), PeerAction::Close(DisconnectReason::Ended)),
        "the session did not stay closed"
    );
    assert!(commands.try_recv().is_none());
}

/// The retry delays of consecutive turned-away devices are deterministic and evenly spread.
#[test]
fn retry_delays_are_spread_evenly() {
    for first in [0, 17, 4_000_000_000, u64::MAX - 3_000] {
        let mut times: Vec<u32> = (first..first + 3_000).map(retry_delay).collect();
        times.sort_unstable();
        assert!(times[0] >= 15_000 && times[2_999] < 30_000, "{first}");
        let widest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        // The average distance is 5 ms.
        assert!(times[0] < 15_030 && times[2_999] > 29_970 && widest <= 20, "{first}: {widest}");
        for times_in_second in times.chunk_by(|a, b| a / 1_000 == b / 1_000) {
            // On average 3,000 / 15 = 200 devices reconnect in a second.
            assert!(
                (190..=210).contains(&times_in_second.len()),
                "{first}: {} in a second",
                times_in_second.len()
            );
        }
    }
    let (mut session, _commands) = begin_session(false, Millis::ZERO);
    let mut frame = Vec::new();
    session.receive(&hello_frame(3));
    assert!(matches!(session.next(Millis::ZERO, &mut frame), PeerAction::Admit));
    session.turn_away();
    assert!(matches!(session.next(Millis::ZERO, &mut frame), PeerAction::Send));
    let mut expected = vec![0; 200];
    let retry = ToDevice::RetryAfter { milliseconds: retry_delay(7) };
    let sent = encode(&retry, 0, |_| {}, &mut expected).unwrap();
    assert_eq!(frame, expected[..sent]);
}

#[test]
fn closed_session_sends_queued_frames() {
    let (mut session, mut commands) = begin_session(false, Millis::ZERO);
    let mut frame = Vec::new();
    session.receive(&hello_frame(3));
    assert!(matches!(session.next(Millis::ZERO, &mut frame), PeerAction::Admit));
    session.admit();
    let PeerAction::Report(PeerEvent { kind: PeerEventKind::Hello(DeviceId(3), _, sender), .. }) =
        session.next(Millis::ZERO, &mut frame)
    else {
        panic!("a hello")
    };
    let mut output = Output::default();
    run_session(&mut session, Millis::ZERO, &mut output);
    let ack = Ack { id: RoundId { round: 1, stage: 0 }, outcome: AckOutcome::Late };
    assert!(sender.send(Command::Acknowledge(ack)));
    drop(sender);
    assert!(commands.is_closed());
    let sent = output.frames.len();
    while let Some(command) = commands.try_recv() {
        session.execute(command);
    }
    run_session(&mut session, Millis::ZERO, &mut output);
    assert!(output.frames.len() > sent && output.ended_by.is_none());
    session.close();
    run_session(&mut session, Millis::ZERO, &mut output);
    assert_eq!(output.ended_by, Some(DisconnectReason::Ended));
}

/// Generates messages of a device.
fn messages_of_device() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(hello_frame(3)),
        Just(hello_frame(4)),
        Just(alive_frame()),
        (0u32..4).prop_map(decline_frame),
        prop::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    /// The outputs do not depend on how the bytes are split, except for traffic reports between the pieces, and for requests of a
    /// hello: noise causes one unless the hello arrives with it.
    #[test]
    fn splitting_of_input_does_not_matter(
        messages_of_device in prop::collection::vec(messages_of_device(), 0..30),
        piece_lengths in prop::collection::vec(1usize..60, 1..40),
        persistent in any::<bool>(),
    ) {
        let bytes = messages_of_device.concat();
        let run = |pieces: &mut dyn FnMut(usize) -> usize| {
            let (mut session, _commands) = begin_session(persistent, Millis::ZERO);
            let mut output = Output::default();
            run_session(&mut session, Millis::ZERO, &mut output);
            let mut unread = bytes.as_slice();
            let mut piece = 0;
            while !unread.is_empty() && output.ended_by.is_none() {
                let (received, later) = unread.split_at(pieces(piece).min(unread.len()));
                (unread, piece) = (later, piece + 1);
                session.receive(received);
                run_session(&mut session, Millis::ZERO, &mut output);
            }
            output.events.retain(|event| event != "TrafficOnly");
            let request = encode_frame(&ToDevice::Fault(Fault::Greet));
            let frames = output.frames.split_inclusive(|&byte| byte == 0);
            output.frames = frames.filter(|frame| *frame != request).flatten().copied().collect();
            output
        };
        let unsplit = run(&mut |_| usize::MAX);
        prop_assert_eq!(run(&mut |piece| piece_lengths[piece % piece_lengths.len()]), unsplit);
    }

    /// Messages that are handled while frames are written cause the same events in the same order, and at most the bytes of one call wait.
    #[test]
    fn messages_are_handled_while_frames_are_written(
        messages_of_device in prop::collection::vec(messages_of_device(), 0..30),
        piece_lengths in prop::collection::vec(1usize..60, 1..40),
        persistent in any::<bool>(),
        acknowledgements in 0..10,
    ) {
        let bytes = messages_of_device.concat();
        let run = |reads_ahead: bool| {
            let (mut session, _commands) = begin_session(persistent, Millis::ZERO);
            let mut output = Output::default();
            let mut unread = bytes.as_slice();
            let mut lengths = piece_lengths.iter().cycle();
            let mut next_piece = move || {
                let (piece, later) = unread.split_at(unread.len().min(*lengths.next().unwrap()));
                unread = later;
                piece
            };
            for _ in 0..acknowledgements {
                let ack = Ack { id: RoundId::default(), outcome: AckOutcome::Late };
                session.execute(Command::Acknowledge(ack));
            }
            while output.ended_by.is_none() {
                run_session_with(&mut session, Millis::ZERO, &mut output, |session, output| {
                    if !reads_ahead {
                        return;
                    }
                    loop {
                        session.receive_ahead();
                        output.events.extend(session.take_event().map(name_event));
                        session.receive_ahead();
                        let piece = if session.is_receptive() { next_piece() } else { &[] };
                        if piece.is_empty() {
                            break;
                        }
                        session.receive(piece);
                        assert!(session.unprocessed.len() <= piece.len());
                    }
                });
                let piece = next_piece();
                if piece.is_empty() {
                    break;
                }
                if output.ended_by.is_none() {
                    session.receive(piece);
                }
            }
            output.events.retain(|event| event != "TrafficOnly");
            (output.events, output.ended_by)
        };
        prop_assert_eq!(run(true), run(false));
    }

    /// Bytes that arrive while earlier messages are pending are handled after those messages.
    #[test]
    fn early_bytes_wait(messages_of_device in prop::collection::vec(messages_of_device(), 0..30)) {
        let (mut joined, _commands) = begin_session(false, Millis::ZERO);
        let (mut separate, _commands) = begin_session(false, Millis::ZERO);
        let mut joined_output = Output::default();
        let mut separate_output = Output::default();
        joined.receive(&messages_of_device.concat());
        messages_of_device.iter().for_each(|bytes| separate.receive(bytes));
        run_session(&mut joined, Millis::ZERO, &mut joined_output);
        run_session(&mut separate, Millis::ZERO, &mut separate_output);
        prop_assert_eq!(joined_output, separate_output);
    }
}
