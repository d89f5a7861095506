//! Tests that rounds do not wait for silent devices, and that a thief who reconnects without end takes no
//! rounds from other devices.

use super::*;

/// Deadline of the rounds, in ms.
const DEADLINE: u64 = 1_000;

/// Starts a core for three devices that stops waiting for a device after two missed deadlines.
fn start_patient_core(state: &std::path::Path) -> ServerCore {
    let configuration = configuration_text(state)
        .replace("expected = 2\nabsence = 0", "expected = 3\nabsence = 3600")
        .replace("rounds = 3", "rounds = 100")
        + "[rounds]\ndeadline = 1.0\npatience = 2\n";
    let fleet = Fleet::parse("fleet.toml", &configuration).unwrap();
    let file = Journal::open(state).unwrap();
    ServerCore::new(&fleet, Store::open(state, SysRng).unwrap(), 1, None, Some(file)).unwrap()
}

/// Handles one event at a time, and flushes the core.
fn handle_at(core: &mut ServerCore, now: u64, peer: u64, kind: PeerEventKind) {
    core.handle(Millis::new(now), peer_event(peer, None, kind));
    core.flush(Millis::new(now)).unwrap();
}

/// Lets time pass until `now`.
fn pass_time(core: &mut ServerCore, now: u64) {
    while core.wake().is_some_and(|wake| wake <= Millis::new(now)) {
        let wake = core.wake().unwrap();
        core.tick(wake).unwrap();
    }
}

/// Connects devices 0, 1 and 2 as the peers `first`, `first + 1` and `first + 2`.
fn connect(core: &mut ServerCore, now: u64, first: u64) -> Vec<Receiver<Command>> {
    let mut queues = Vec::new();
    for device in 0..3 {
        let (sender, receiver) = command_queue(4096);
        handle_at(core, now, first + device, PeerEventKind::Hello(DeviceId(device), Privacy::None, sender));
        queues.push(receiver);
    }
    queues
}

/// Answers the open round as peers `peers`, and returns whether the round was committed.
fn answer(core: &mut ServerCore, now: u64, peers: &[u64]) -> bool {
    let (round, done) = (Arc::clone(&core.engine().open_round().unwrap().broadcast), core.done);
    for peer in peers {
        handle_at(core, now, *peer, zero_update(&round));
    }
    core.done > done
}

/// Runs a test and returns what it has logged. Every test of this file that logs a missed deadline does so: a
/// log line that runs first without a subscriber, in another thread, may be disabled for all.
fn with_log(test: impl FnOnce()) -> String {
    let written = CapturedLog::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, test);
    String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
}

/// The numbers survive a restart. Log, status and journal show the device while it is not waited for.
#[test]
fn silent_device_is_reported_until_it_answers() {
    let state = tempfile::tempdir().unwrap();
    let log = with_log(|| {
        let mut core = start_patient_core(state.path());
        let _queues = connect(&mut core, 0, 0);
        assert!(!answer(&mut core, 0, &[0, 1]));
        pass_time(&mut core, DEADLINE);
        assert_eq!((core.done, core.status().not_awaited.len(), core.status().updates.missed), (1, 0, 1));
        drop(core);

        let mut core = start_patient_core(state.path());
        let mut queues = connect(&mut core, 0, 3);
        assert!(!answer(&mut core, 0, &[3, 4]));
        pass_time(&mut core, DEADLINE);
        assert_eq!((core.done, core.status().not_awaited.as_slice()), (2, &[DeviceId(2)][..]));
        assert!(serde_json::to_string(&core.status()).unwrap().contains("\"not_awaited\":[2]"));
        for _ in 0..10 {
            assert!(answer(&mut core, DEADLINE, &[3, 4]), "a round waits for the silent device");
        }
        drop((core, queues));

        let mut core = start_patient_core(state.path());
        queues = connect(&mut core, 0, 6);
        assert_eq!(core.status().not_awaited.as_slice(), [DeviceId(2)]);
        assert!(answer(&mut core, 0, &[6, 7]), "a round waits for the silent device after a restart");
        // The device answers a round that has closed meanwhile.
        let rounds = take_opened_rounds(&mut queues[2]);
        handle_at(&mut core, 50, 8, zero_update(rounds.first().unwrap()));
        assert!(core.status().not_awaited.is_empty());
        assert!(!serde_json::to_string(&core.status()).unwrap().contains("not_awaited"));
        assert_eq!(core.status().updates.late, 1);
        assert!(answer(&mut core, 60, &[6, 7]));
        assert!(!answer(&mut core, 60, &[6, 7]), "rounds do not wait for a device that answers");
        assert!(answer(&mut core, 61, &[8]));
    });
    let lines =
        |text: &str| log.lines().filter(|line| line.contains(text) && line.contains("device=2")).count();
    assert_eq!(lines("device missed too many deadlines"), 1, "{log}");
    assert_eq!(lines("rounds wait for the device again"), 1, "{log}");
    let entries = journal::read(&state.path().join(journal::FILE)).unwrap();
    let events: Vec<String> = entries
        .iter()
        .filter_map(|entry| match entry {
            journal::JournalEntry::Deadline(_) => Some("deadline".to_owned()),
            journal::JournalEntry::NotAwaited(entry) => Some(format!("not awaited {}", entry.device)),
            journal::JournalEntry::Awaited(entry) => Some(format!("awaited {}", entry.device)),
            journal::JournalEntry::Began(_)
            | journal::JournalEntry::Resumed(_)
            | journal::JournalEntry::Opened(_)
            | journal::JournalEntry::Answered(_)
            | journal::JournalEntry::Committed(_) => None,
        })
        .collect();
    assert_eq!(events, ["deadline", "not awaited 2", "awaited 2"]);
}

/// A thief with the key of device 2 replaces its connection without end. The others complete round after
/// round, without a deadline passing.
#[test]
fn thief_that_reconnects_without_end_takes_no_rounds() {
    with_log(|| {
        let state = tempfile::tempdir().unwrap();
        let mut core = start_patient_core(state.path());
        let _queues = connect(&mut core, 0, 0);
        let mut receivers = Vec::new();
        for connection in 0..200 {
            let (sender, receiver) = command_queue(4096);
            receivers.push(receiver);
            let hello = PeerEventKind::Hello(DeviceId(2), Privacy::None, sender);
            handle_at(&mut core, connection, 10 + connection, hello);
            answer(&mut core, connection, &[0, 1]);
        }
        assert!(core.done >= 95, "{} rounds", core.done);
        assert_eq!(core.status().updates.missed, 2);
    });
}

/// A device that repeats its hello on one connection, because its welcome was lost, has not reconnected.
#[test]
fn repeated_hello_is_no_missed_deadline() {
    let state = tempfile::tempdir().unwrap();
    let mut core = start_patient_core(state.path());
    let _queues = connect(&mut core, 0, 0);
    for _ in 0..10 {
        handle_at(&mut core, 1, 2, PeerEventKind::HelloAgain(Privacy::None, Millis::ZERO));
    }
    assert_eq!((core.status().updates.missed, answer(&mut core, 2, &[0, 1])), (0, false));
    assert!(answer(&mut core, 3, &[2]));
}

/// A device that sleeps on a link without an end is noticed by its hellos, between which a lost welcome is no sleep.
#[test]
fn sleep_on_a_link_without_an_end_is_noticed() {
    let state = tempfile::tempdir().unwrap();
    let mut core = start_patient_core(state.path());
    let _queues = connect(&mut core, 0, 0);
    for wake in 1..4 {
        let (now, last) = (3_600_000 * wake, 3_600_000 * (wake - 1) + 2_000);
        assert_eq!(core.sleepers.longest().is_some(), wake > 2, "a single absence is no habit");
        handle_at(&mut core, now, 2, PeerEventKind::HelloAgain(Privacy::None, Millis::new(last)));
        handle_at(&mut core, now + 2_000, 2, PeerEventKind::HelloAgain(Privacy::None, Millis::new(now)));
    }
    assert_eq!(core.sleepers.longest(), Some(Millis::new(3_598_000)));
}
