#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use fedspan_protocol::frame::encode;
use fedspan_protocol::message::{
    Ack, AckOutcome, Capabilities, Decline, DeclineReason, Hello, Model, Numeric, RoundId, ToServer, Welcome,
};
use proptest::prelude::*;

use super::*;
use crate::config::Fleet;
use crate::connection::Acceptor;
use fedspan_engine::admission::Requirements;

const MODEL: Model = Model::linear(6, 2, 1);

const PATIENCE: Timeouts = Timeouts { hello: 5_000, idle: 120_000, frame: 10_000, repeat: 7_000 };

fn fleet() -> Fleet {
    let text = "[devices]\nexpected = 1\n[data]\nd = 6\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\n\
                rounds = 3\nstep_size = 0.25\n";
    Fleet::parse("fleet.toml", text).unwrap()
}

fn begin(lasting: bool, now: Millis) -> (PeerSession, Receiver<Command>) {
    let requirements = Requirements::new(MODEL, &fleet().engine().requests(), None);
    let gate = Arc::new(Acceptor::plaintext(requirements, Welcome { campaign: 1, idle_milliseconds: 1 }));
    let connection = if lasting { Connection::persistent(gate) } else { Connection::new(gate) };
    PeerSession::new(7, Origin::Link("bench".into()), connection, PATIENCE, now)
}

fn frame(message: &ToServer) -> Vec<u8> {
    let mut out = vec![0; 200];
    let sent = encode(message, 0, |_| {}, &mut out).unwrap();
    out.truncate(sent);
    out
}

fn hello(device: u64) -> Vec<u8> {
    let capabilities = Capabilities {
        frame_limit: 256,
        model: MODEL,
        tasks: u16::MAX,
        roles: u16::MAX,
        encodings: u8::MAX,
        numeric: Numeric::F32,
        tensors: 2,
        tensor_elements: 64,
        total_elements: 64,
        privacy: Privacy::None,
    };
    frame(&ToServer::Hello(Hello::new(device, capabilities)))
}

fn alive() -> Vec<u8> {
    frame(&ToServer::Alive)
}

fn decline(round: u32) -> Vec<u8> {
    let decline = Decline { id: RoundId { round, stage: 0 }, reason: DeclineReason::Device };
    frame(&ToServer::Decline(decline))
}

/// Outputs of a session.
#[derive(Debug, Default, PartialEq)]
struct Became {
    told: Vec<String>,
    frames: Vec<u8>,
    over: Option<DisconnectReason>,
}

/// Takes all steps of a session, admitting every device that says hello.
fn attend(conversation: &mut PeerSession, now: Millis, became: &mut Became) {
    let mut frame = Vec::new();
    loop {
        match conversation.next(now, &mut frame) {
            PeerAction::Send => became.frames.extend_from_slice(&frame),
            PeerAction::Admit => conversation.admit(),
            PeerAction::Report(what) => {
                let message = conversation.event(what);
                let name = match message.kind {
                    PeerEventKind::Hello(device, ..) => format!("hello {device}"),
                    other => format!("{other:?}"),
                };
                became.told.push(name);
            }
            PeerAction::Close(gone) => {
                became.over = Some(gone);
                return;
            }
            PeerAction::Wait => return,
        }
    }
}

fn hear(conversation: &mut PeerSession, now: Millis, bytes: &[u8]) -> Became {
    let mut became = Became::default();
    conversation.receive(bytes);
    attend(conversation, now, &mut became);
    became
}

/// Advances to the next timer, and returns its time.
fn wait(conversation: &mut PeerSession, now: Millis) -> (Millis, Became) {
    let at = conversation.due(now).unwrap();
    let mut became = Became::default();
    conversation.on_timer(at.saturating_sub(1));
    attend(conversation, at.saturating_sub(1), &mut became);
    assert_eq!(became, Became::default(), "nothing is due before");
    conversation.on_timer(at);
    attend(conversation, at, &mut became);
    (at, became)
}

fn over(gone: DisconnectReason) -> Became {
    Became { over: Some(gone), ..Became::default() }
}

#[test]
fn session_without_hello_times_out() {
    let (mut conversation, _commands) = begin(false, 100);
    let became = hear(&mut conversation, 3_000, &alive());
    assert_eq!(became, Became::default());
    assert_eq!(wait(&mut conversation, 3_000), (5_100, over(DisconnectReason::NoHello)));
}

#[test]
fn persistent_link_has_no_hello_timeout() {
    let (mut conversation, _commands) = begin(true, 100);
    let mut became = Became::default();
    attend(&mut conversation, 100, &mut became);
    assert!(!became.frames.is_empty(), "whoever is there is asked for a hello");
    assert_eq!(conversation.due(100), None);
    conversation.on_timer(Millis::MAX);
    assert_eq!(hear(&mut conversation, 1 << 40, &hello(3)).told, ["hello 3"]);
    assert_eq!(wait(&mut conversation, 1 << 40), ((1 << 40) + PATIENCE.idle, over(DisconnectReason::Idle)));
}

#[test]
fn idle_timeout_counts_from_last_valid_message() {
    let (mut conversation, _commands) = begin(false, 0);
    assert_eq!(hear(&mut conversation, 10, &hello(3)).told, ["hello 3"]);
    assert_eq!(hear(&mut conversation, 50_000, &alive()), Became::default());
    assert_eq!(hear(&mut conversation, 90_000, &[1, 2, 3, 0]), Became::default());
    assert_eq!(wait(&mut conversation, 90_000), (50_000 + PATIENCE.idle, over(DisconnectReason::Idle)));
}

#[test]
fn unfinished_frame_times_out() {
    let (mut conversation, _commands) = begin(false, 0);
    let _ = hear(&mut conversation, 10, &hello(3));
    let bytes = alive();
    for (second, byte) in (1..).zip(&bytes[..2]) {
        assert_eq!(hear(&mut conversation, second * 1_000, &[*byte]), Became::default());
    }
    assert_eq!(wait(&mut conversation, 2_000), (1_000 + PATIENCE.frame, over(DisconnectReason::Slow)));
}

#[test]
fn unanswered_round_is_resent() {
    let (mut conversation, mut commands) = begin(false, 0);
    let mut host = fleet().engine();
    let mut actions = Vec::new();
    host.handle(0, fedspan_engine::Event::Joined(3), &mut actions);
    let Some(fedspan_engine::Action::Open(3, opening)) = actions.pop() else { panic!("a round") };
    let id = opening.id;
    let _ = hear(&mut conversation, 0, &hello(3));
    conversation.execute(Command::Open(opening));
    let mut first = Became::default();
    attend(&mut conversation, 1_000, &mut first);
    assert!(!first.frames.is_empty());
    for again in 1..4 {
        let (at, became) = wait(&mut conversation, 1_000 + (again - 1) * PATIENCE.repeat);
        assert_eq!((at, &became.frames), (1_000 + again * PATIENCE.repeat, &first.frames));
    }
    let declined = hear(&mut conversation, 30_000, &decline(id.round));
    assert_eq!(declined.told.len(), 1);
    assert_eq!(wait(&mut conversation, 30_000), (30_000 + PATIENCE.idle, over(DisconnectReason::Idle)));
    assert!(commands.try_recv().is_none() && commands.is_closed(), "nobody listens to the host any more");
}

#[test]
fn repeated_hellos_end_socket_sessions_only() {
    for lasting in [false, true] {
        let (mut conversation, _commands) = begin(lasting, 0);
        let mut told = 0;
        let over = (0..100).find_map(|now| {
            let became = hear(&mut conversation, now, &hello(3));
            told += became.told.len();
            became.over
        });
        let (gone, most) = if lasting { (None, 100) } else { (Some(DisconnectReason::Flood), 17) };
        assert_eq!((over, told), (gone, most));
    }
}

#[test]
fn protocol_errors_are_reported_then_end_session() {
    let (mut conversation, _commands) = begin(false, 0);
    let _ = hear(&mut conversation, 0, &hello(3));
    let mut all = Became::default();
    for now in 0..100 {
        conversation.receive(&[9, 9, 9, 0]);
        attend(&mut conversation, now, &mut all);
        if all.over.is_some() {
            assert_eq!(now, 64);
            break;
        }
    }
    assert_eq!(
        (all.told.as_slice(), all.over),
        (["Noise"; 4].map(String::from).as_slice(), Some(DisconnectReason::Flood))
    );
}

#[test]
fn turned_away_device_gets_retry_delay() {
    let (mut conversation, mut commands) = begin(false, 0);
    let mut frame = Vec::new();
    conversation.receive(&hello(3));
    assert!(matches!(conversation.next(0, &mut frame), PeerAction::Admit));
    assert!(matches!(conversation.next(0, &mut frame), PeerAction::Admit), "until it is answered");
    conversation.turn_away();
    assert!(matches!(conversation.next(0, &mut frame), PeerAction::Send));
    assert!(matches!(conversation.next(0, &mut frame), PeerAction::Report(PeerEventKind::TurnedAway)));
    assert!(matches!(conversation.next(0, &mut frame), PeerAction::Close(DisconnectReason::Ended)));
    assert!(
        matches!(conversation.next(0, &mut frame), PeerAction::Close(DisconnectReason::Ended)),
        "for good"
    );
    assert!(commands.try_recv().is_none());
}

/// Consecutive devices that are turned away retry evenly spread in time, deterministically.
#[test]
fn retry_delays_are_spread_evenly() {
    for first in [0, 17, 4_000_000_000, u64::MAX - 3_000] {
        let mut times: Vec<u32> = (first..first + 3_000).map(retry_delay).collect();
        times.sort_unstable();
        assert!(times[0] >= 15_000 && times[2_999] < 30_000, "{first}");
        let widest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        // 5 on average.
        assert!(times[0] < 15_030 && times[2_999] > 29_970 && widest <= 20, "{first}: {widest}");
        for second in times.chunk_by(|a, b| a / 1_000 == b / 1_000) {
            assert!((190..=210).contains(&second.len()), "{first}: {} in a second", second.len());
        }
    }
    let (mut conversation, _commands) = begin(false, 0);
    let mut frame = Vec::new();
    conversation.receive(&hello(3));
    assert!(matches!(conversation.next(0, &mut frame), PeerAction::Admit));
    conversation.turn_away();
    assert!(matches!(conversation.next(0, &mut frame), PeerAction::Send));
    let mut told = vec![0; 200];
    let retry = ToDevice::RetryAfter { milliseconds: retry_delay(7) };
    let sent = encode(&retry, 0, |_| {}, &mut told).unwrap();
    assert_eq!(frame, told[..sent]);
}

#[test]
fn closed_session_sends_queued_frames() {
    let (mut conversation, mut commands) = begin(false, 0);
    let mut frame = Vec::new();
    conversation.receive(&hello(3));
    assert!(matches!(conversation.next(0, &mut frame), PeerAction::Admit));
    conversation.admit();
    let PeerAction::Report(PeerEventKind::Hello(3, _, sender)) = conversation.next(0, &mut frame) else {
        panic!("a hello")
    };
    let mut became = Became::default();
    attend(&mut conversation, 0, &mut became);
    let ack = Ack { id: RoundId { round: 1, stage: 0 }, outcome: AckOutcome::Late };
    assert!(sender.send(Command::Acknowledge(ack)));
    drop(sender);
    assert!(commands.is_closed());
    let said = became.frames.len();
    while let Some(command) = commands.try_recv() {
        conversation.execute(command);
    }
    attend(&mut conversation, 0, &mut became);
    assert!(became.frames.len() > said && became.over.is_none());
    conversation.close();
    attend(&mut conversation, 0, &mut became);
    assert_eq!(became.over, Some(DisconnectReason::Ended));
}

/// Generates messages of a device.
fn said() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(hello(3)),
        Just(hello(4)),
        Just(alive()),
        (0u32..4).prop_map(decline),
        prop::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    /// The outputs do not depend on how the bytes are split; only traffic reports may occur between pieces.
    #[test]
    fn splitting_of_input_does_not_matter(
        said in prop::collection::vec(said(), 0..30),
        cuts in prop::collection::vec(1usize..60, 1..40),
        lasting in any::<bool>(),
    ) {
        let bytes = said.concat();
        let run = |pieces: &mut dyn FnMut(usize) -> usize| {
            let (mut conversation, _commands) = begin(lasting, 0);
            let mut became = Became::default();
            attend(&mut conversation, 0, &mut became);
            let (mut rest, mut piece) = (bytes.as_slice(), 0);
            while !rest.is_empty() && became.over.is_none() {
                let (now, later) = rest.split_at(pieces(piece).min(rest.len()));
                (rest, piece) = (later, piece + 1);
                conversation.receive(now);
                attend(&mut conversation, 0, &mut became);
            }
            became.told.retain(|what| what != "Noise");
            became
        };
        let whole = run(&mut |_| usize::MAX);
        prop_assert_eq!(run(&mut |piece| cuts[piece % cuts.len()]), whole);
    }

    /// Bytes that arrive before earlier ones are handled are handled after them.
    #[test]
    fn early_bytes_wait(said in prop::collection::vec(said(), 0..30)) {
        let (mut one, _commands) = begin(false, 0);
        let (mut other, _commands) = begin(false, 0);
        let (mut became, mut early) = (Became::default(), Became::default());
        one.receive(&said.concat());
        said.iter().for_each(|bytes| other.receive(bytes));
        attend(&mut one, 0, &mut became);
        attend(&mut other, 0, &mut early);
        prop_assert_eq!(became, early);
    }
}
