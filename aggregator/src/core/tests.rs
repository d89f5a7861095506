//! Tests of `ServerCore`: write stalls, quotas, revoked keys and late updates, without sockets.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod held_out;
mod journal_file;
mod keys;
mod patience;
mod robustness;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use fedspan_protocol::message::{Decline, DeclineReason, Privacy, Refusal, RoundId};
use fedspan_protocol::secure::Key;
use fedspan_protocol::tensor::Role;
use getrandom::SysRng;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use redb::StorageBackend;
use redb::backends::InMemoryBackend;
use zeroize::Zeroizing;

use super::command_queue::command_queue;
use super::*;
use crate::config::Fleet;
use crate::journal;
use crate::keys::{AcceptedKey, Argon2Cost, Entropy, KeyStore, KeyTable, Unlock};
use crate::store::{RoundKeyStorage, Store};
use fedspan_engine::Tensor;
use fedspan_engine::{RoundBroadcast, Update};

/// Starts a core in plaintext mode, with the configuration [`configuration_text`].
fn start_core(state: &std::path::Path) -> ServerCore {
    start_core_with_keys(state, None)
}

/// Starts a core with the configuration [`configuration_text`] and the given keys.
fn start_core_with_keys(
    state: &std::path::Path,
    keys: Option<(SharedKeyStore, Box<dyn Entropy>)>,
) -> ServerCore {
    let fleet = Fleet::parse("fleet.toml", &configuration_text(state)).unwrap();
    let file = Journal::open(state).unwrap();
    ServerCore::new(&fleet, Store::open(state, SysRng).unwrap(), 1, keys, Some(file)).unwrap()
}

/// Returns a configuration for two devices.
fn configuration_text(state: &std::path::Path) -> String {
    format!(
        "state = {:?}\n[devices]\nexpected = 2\nabsence = 0\n[data]\nd = 6\n[model]\nk = 2\n[algorithm]\n\
         name = \"fedrep\"\nrounds = 3\nstep_size = 0.25\n",
        state.display().to_string()
    )
}

/// Storage in memory. Writes fail with a full disk while [`Disk::set_full`] is set.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<(InMemoryBackend, AtomicBool)>);

impl Disk {
    fn set_full(&self, is_full: bool) {
        self.0.1.store(is_full, Ordering::Relaxed);
    }

    /// Returns the storage, or an error while the disk is full.
    fn if_not_full(&self) -> std::io::Result<&InMemoryBackend> {
        let is_full = self.0.1.load(Ordering::Relaxed);
        if is_full { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(&self.0.0) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> std::io::Result<u64> {
        self.0.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.if_not_full()?.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.if_not_full()?.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.if_not_full()?.write(offset, data)
    }
}

/// Storage of the round key in memory.
#[derive(Clone, Default)]
struct Slot(Arc<Mutex<Option<Vec<u8>>>>);

impl RoundKeyStorage for Slot {
    fn read(&self) -> std::io::Result<Option<Zeroizing<Vec<u8>>>> {
        Ok(self.0.lock().unwrap().clone().map(Zeroizing::new))
    }

    fn write(&self, key: &[u8]) -> std::io::Result<()> {
        *self.0.lock().unwrap() = Some(key.to_vec());
        Ok(())
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn erase(&self) -> std::io::Result<()> {
        *self.0.lock().unwrap() = None;
        Ok(())
    }
}

/// While the disk is full, the server acknowledges nothing and the status reports the write stall. When the
/// disk has room again, the server acknowledges each pending update once.
#[test]
fn full_disk_delays_acknowledgements() {
    let state = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let configuration = configuration_text(state.path());
    let fleet = Fleet::parse("fleet.toml", &configuration).unwrap();
    let shared_disk = disk.clone();
    let store = Store::over(move || shared_disk.clone(), Slot::default(), SysRng).unwrap();
    let mut core = ServerCore::new(&fleet, store, 1, None, None).unwrap();
    let (first_sender, mut first_commands) = command_queue(64);
    let (second_sender, mut second_commands) = command_queue(64);
    handle_and_flush(&mut core, 0, PeerEventKind::Hello(DeviceId(0), Privacy::None, first_sender));
    handle_and_flush(&mut core, 1, PeerEventKind::Hello(DeviceId(1), Privacy::None, second_sender));
    let round = take_opened_rounds(&mut first_commands).pop().expect("a round");
    disk.set_full(true);
    handle_and_flush(&mut core, 0, zero_update(&round));
    assert!(core.is_stalled() && core.status().stalled && !core.is_finished());
    assert_eq!(core.wake(), Some(WRITE_RETRY));
    core.tick(WRITE_RETRY).unwrap();
    assert!(first_commands.try_recv().is_none(), "the server acknowledged an update that is not written");
    assert_eq!((core.status().stalls, core.wake()), (1, Some(WRITE_RETRY + WRITE_RETRY)));
    let message = core.read_snapshot().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("waits for its disk") && message.contains("try again"), "{message}");
    disk.set_full(false);
    core.tick(WRITE_RETRY + WRITE_RETRY).unwrap();
    assert!(!core.status().stalled);
    let acknowledged =
        |command| matches!(command, Some(Command::Acknowledge(ack)) if ack.outcome == AckOutcome::Counted);
    assert!(acknowledged(first_commands.try_recv()) && first_commands.try_recv().is_none());
    // The round continues after the write stall.
    handle_and_flush(&mut core, 1, zero_update(&round));
    assert_eq!(take_opened_rounds(&mut second_commands).len(), 2);
    assert_eq!(core.status().updates.counted, 2);
}

/// The time of a write stall does not count towards the deadline: an update that waited is not late, and
/// copies of the update are answered once.
#[test]
fn campaign_clock_pauses_during_write_stall() {
    let state = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let configuration = configuration_text(state.path());
    let fleet = Fleet::parse("fleet.toml", &configuration).unwrap();
    assert_eq!(fleet.rounds.deadline, Some(std::time::Duration::from_secs(60)));
    let shared_disk = disk.clone();
    let store = Store::over(move || shared_disk.clone(), Slot::default(), SysRng).unwrap();
    let mut core = ServerCore::new(&fleet, store, 1, None, None).unwrap();
    let (first_sender, mut first_commands) = command_queue(4);
    let (second_sender, mut second_commands) = command_queue(4);
    handle_and_flush(&mut core, 0, PeerEventKind::Hello(DeviceId(0), Privacy::None, first_sender));
    handle_and_flush(&mut core, 1, PeerEventKind::Hello(DeviceId(1), Privacy::None, second_sender));
    let round = take_opened_rounds(&mut first_commands).pop().expect("a round");
    take_opened_rounds(&mut second_commands);
    disk.set_full(true);
    core.handle(Millis::new(30_000), peer_event(0, None, zero_update(&round)));
    core.flush(Millis::new(30_000)).unwrap();
    for second in 31..200 {
        core.tick(Millis::new(second * 1_000)).unwrap();
    }
    disk.set_full(false);
    // After the write stall the timer fires before the waiting events are handled.
    core.tick(Millis::new(200_000)).unwrap();
    assert!(!core.is_stalled());
    assert_eq!(
        core.wake(),
        Some(Millis::new(230_000)),
        "the deadline did not move by the length of the stall"
    );
    for _ in 0..12 {
        core.handle(Millis::new(200_000), peer_event(1, None, zero_update(&round)));
    }
    core.flush(Millis::new(200_000)).unwrap();
    let status = core.status();
    assert_eq!(status.updates.counted, 2);
    assert_eq!((status.connections.congested, status.connections.answered_already), (0, 11));
    let acknowledged = std::iter::from_fn(|| second_commands.try_recv())
        .filter(|command| matches!(command, Command::Acknowledge(_)))
        .count();
    assert_eq!(acknowledged, 1);
}

/// Lets two devices join and finishes training.
fn finish_training(core: &mut ServerCore) -> Vec<Receiver<Command>> {
    let queue_pairs = [command_queue(64), command_queue(64)];
    let (senders, mut queues): (Vec<_>, Vec<_>) = queue_pairs.into_iter().unzip();
    for (device, commands) in (0..).zip(senders) {
        handle_and_flush(core, device, PeerEventKind::Hello(DeviceId(device), Privacy::None, commands));
    }
    while !core.is_fitting() {
        let round = take_opened_rounds(&mut queues[0]).pop().expect("a round");
        handle_and_flush(core, 0, zero_update(&round));
        handle_and_flush(core, 1, zero_update(&round));
        let _ = take_opened_rounds(&mut queues[1]);
    }
    queues
}

/// Handles one event of a peer in plaintext mode, and flushes the core.
fn handle_and_flush(core: &mut ServerCore, peer: u64, kind: PeerEventKind) {
    handle_and_flush_under(core, peer, None, kind);
}

/// Handles one event that arrives under a key, and flushes the core.
fn handle_and_flush_under(
    core: &mut ServerCore,
    peer: u64,
    key: Option<&Arc<AcceptedKey>>,
    kind: PeerEventKind,
) {
    core.handle(Millis::ZERO, peer_event(peer, key, kind));
    core.flush(Millis::ZERO).unwrap();
}

/// Creates an event of a peer.
fn peer_event(peer: u64, key: Option<&Arc<AcceptedKey>>, kind: PeerEventKind) -> PeerEvent {
    let from = Origin::Address(([192, 0, 2, 7], 4410).into());
    PeerEvent { peer, from, key: key.cloned(), kind, traffic: Default::default() }
}

/// Creates an update of zeros.
fn zero_update(opening: &RoundBroadcast) -> PeerEventKind {
    PeerEventKind::Update(Box::new(Update {
        id: opening.id,
        samples: 1,
        skipped: 0,
        descriptors: opening.request.expects.clone(),
        tensors: vec![Tensor { role: Role::Gradient, rows: 6, cols: 2, values: vec![0.0; 12] }],
    }))
}

/// Splits an array of pairs into two arrays.
fn unzip_three<A, B>([a, b, c]: [(A, B); 3]) -> ([A; 3], [B; 3]) {
    ([a.0, b.0, c.0], [a.1, b.1, c.1])
}

/// Returns true if the queue is empty and closed.
fn is_drained_and_closed(commands: &mut Receiver<Command>) -> bool {
    take_opened_rounds(commands);
    commands.is_closed()
}

/// Takes all queued commands and returns the rounds that they open.
fn take_opened_rounds(queues: &mut Receiver<Command>) -> Vec<Arc<RoundBroadcast>> {
    let mut rounds = Vec::new();
    while let Some(command) = queues.try_recv() {
        if let Command::Open(opening) = command {
            rounds.push(opening);
        }
    }
    rounds
}

/// Repeated declines must not make the journal grow, because a peer can send a decline with a few bytes.
#[test]
fn repeated_declines_are_journalled_once() {
    let state = tempfile::tempdir().unwrap();
    let mut core = start_core(state.path());
    let queue_pairs = [command_queue(16), command_queue(16)];
    let (senders, _receivers): (Vec<_>, Vec<_>) = queue_pairs.into_iter().unzip();
    for (device, commands) in (0..).zip(senders) {
        handle_and_flush(&mut core, device, PeerEventKind::Hello(DeviceId(device), Privacy::None, commands));
    }
    let id = core.engine().open_round().unwrap().broadcast.id;
    for round in [id.round, 0, 77] {
        for _ in 0..50 {
            let id = RoundId { round, ..id };
            let reason = DeclineReason::Device;
            handle_and_flush(&mut core, 1, PeerEventKind::Decline(Decline { id, reason }));
        }
    }
    core.journal = None;
    let journal = std::fs::read_to_string(state.path().join(journal::FILE)).unwrap();
    assert_eq!(journal.matches("declined").count(), 1, "{journal}");
    assert_eq!(core.status().updates.declined, 150);
}

/// If the core disconnects the last awaited device, the round closes and the resulting actions are performed.
#[test]
fn cutting_off_last_device_commits_round() {
    let state = tempfile::tempdir().unwrap();
    let mut core = start_core(state.path());
    let (honest, mut queues) = command_queue(16);
    // The queue has room for one command and is not read, so the opening of the round fills the queue.
    let (stalled, _unread) = command_queue(1);
    handle_and_flush(&mut core, 0, PeerEventKind::Hello(DeviceId(0), Privacy::None, honest));
    handle_and_flush(&mut core, 1, PeerEventKind::Hello(DeviceId(1), Privacy::None, stalled));
    let first_rounds = take_opened_rounds(&mut queues);
    handle_and_flush(&mut core, 0, zero_update(first_rounds.first().expect("the first round")));
    handle_and_flush(&mut core, 1, PeerEventKind::HelloAgain(Privacy::None, Millis::ZERO));
    let next_rounds = take_opened_rounds(&mut queues);
    assert_eq!(
        (core.done, first_rounds.len(), next_rounds.len()),
        (1, 1, 1),
        "the round was not committed, or the next one is not open"
    );
    assert_eq!(core.status().connections.congested, 1);
}

/// A closed command queue, unlike a full one, does not make the core disconnect the device: the session has
/// ended, and its `Gone` event will follow.
#[test]
fn ended_session_is_not_cut_off() {
    let state = tempfile::tempdir().unwrap();
    let mut core = start_core(state.path());
    let (honest, mut queues) = command_queue(16);
    let (sender, receiver) = command_queue(16);
    handle_and_flush(&mut core, 0, PeerEventKind::Hello(DeviceId(0), Privacy::None, honest));
    handle_and_flush(&mut core, 1, PeerEventKind::Hello(DeviceId(1), Privacy::None, sender));
    let first = take_opened_rounds(&mut queues).pop().expect("a round");
    drop(receiver);
    handle_and_flush(&mut core, 1, zero_update(&first));
    assert_eq!((core.status().connections.congested, core.status().connected), (0, 2));
    handle_and_flush(&mut core, 1, PeerEventKind::Gone(DisconnectReason::Closed));
    let status = core.status();
    assert_eq!((status.connections.closed, status.connections.congested, status.connected), (1, 0, 1));
    handle_and_flush(&mut core, 0, zero_update(&first));
    assert_eq!(core.done, 1, "the update does not count");
}

/// An event is discarded if its key is revoked while the event waits in the inbox.
#[test]
fn queued_event_under_revoked_key_is_discarded() {
    for waiting in ["hello", "hello again", "update", "decline"] {
        let state = tempfile::tempdir().unwrap();
        let mut core = start_core(state.path());
        let mut table = KeyTable::new();
        table.insert(DeviceId(0), Key::new(0, [1; 32]), 0).unwrap();
        table.insert(DeviceId(1), Key::new(0, [2; 32]), 0).unwrap();
        let keys = [table.lookup(DeviceId(0), 0).unwrap(), table.lookup(DeviceId(1), 0).unwrap()];
        let queue_pairs = [command_queue(16), command_queue(16), command_queue(16)];
        let (senders, receivers) = unzip_three(queue_pairs);
        let [honest, revoked, reconnected] = senders;
        let [mut honest_commands, mut revoked_commands, mut reconnected_commands] = receivers;
        handle_and_flush_under(
            &mut core,
            0,
            Some(&keys[0]),
            PeerEventKind::Hello(DeviceId(0), Privacy::None, honest),
        );
        handle_and_flush_under(
            &mut core,
            1,
            Some(&keys[1]),
            PeerEventKind::Hello(DeviceId(1), Privacy::None, revoked),
        );
        let round = take_opened_rounds(&mut honest_commands).pop().expect("a round");
        table.revoke(&[DeviceId(1)], 1).unwrap();
        let (peer, kind) = match waiting {
            "hello" => (2, PeerEventKind::Hello(DeviceId(1), Privacy::None, reconnected)),
            "hello again" => (1, PeerEventKind::HelloAgain(Privacy::None, Millis::ZERO)),
            "update" => (1, zero_update(&round)),
            _ => (1, PeerEventKind::Decline(Decline { id: round.id, reason: DeclineReason::Device })),
        };
        handle_and_flush_under(&mut core, peer, Some(&keys[1]), kind);
        let (updates, connections) = (core.status().updates, core.status().connections);
        assert_eq!((updates.counted, updates.declined, connections.revoked_messages), (0, 0, 1), "{waiting}");
        assert_eq!((connections.welcomed, connections.welcomed_again), (2, 0), "{waiting}");
        if waiting == "hello" {
            assert!(is_drained_and_closed(&mut reconnected_commands));
        } else {
            assert!(is_drained_and_closed(&mut revoked_commands), "{waiting}: the connection stays open");
            assert_eq!(core.status().connected, 1, "{waiting}");
            let devices = core.devices().lines(Millis::ZERO);
            assert!(devices[0].contains("\"connected\":true"), "{waiting}: {devices:?}");
            assert!(devices[1].contains("\"connected\":false"), "{waiting}: {devices:?}");
        }
        // The session still ends with its `Gone` event, and other devices are not affected.
        handle_and_flush_under(
            &mut core,
            peer,
            Some(&keys[1]),
            PeerEventKind::Gone(DisconnectReason::Revoked),
        );
        handle_and_flush_under(&mut core, 0, Some(&keys[0]), zero_update(&round));
        let status = core.status();
        assert_eq!((status.updates.counted, status.connections.revoked), (1, 1), "{waiting}");
        if waiting != "hello" {
            assert_eq!(core.done, 1, "the round did not close without the device");
        }
    }
}

/// Log lines captured by a subscriber of this thread.
#[derive(Clone, Debug, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The number of log lines is bounded, because a peer can cause a log line with a few bytes.
#[test]
fn log_limits_refusals_and_declines() {
    let state = tempfile::tempdir().unwrap();
    let written = CapturedLog::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let mut core = start_core(state.path());
    let hellos = 3_000;
    tracing::subscriber::with_default(subscriber, || {
        let queue_pairs = [command_queue(16), command_queue(16)];
        let (senders, _receivers): (Vec<_>, Vec<_>) = queue_pairs.into_iter().unzip();
        for (device, commands) in (0..).zip(senders) {
            handle_and_flush(
                &mut core,
                device,
                PeerEventKind::Hello(DeviceId(device), Privacy::None, commands),
            );
        }
        let id = core.engine().open_round().unwrap().broadcast.id;
        for peer in 10..10 + hellos {
            handle_and_flush(&mut core, peer, PeerEventKind::Refused(Refusal::UnknownDevice));
            handle_and_flush(&mut core, peer, PeerEventKind::Gone(DisconnectReason::Refused));
            handle_and_flush(
                &mut core,
                1,
                PeerEventKind::Decline(Decline { id, reason: DeclineReason::Device }),
            );
        }
        core.close_peers();
    });
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    for kind in ["refused", "declined"] {
        let matching = || text.lines().filter(|line| line.contains(kind));
        let logged = matching().filter(|line| line.contains("from=192.0.2.7:4410")).count();
        let suppressed = matching().filter_map(|line| line.split_once("lines=")).map(|(_, rest)| rest.trim());
        let suppressed: u64 = suppressed.map(|number| number.parse::<u64>().unwrap()).sum();
        assert_eq!(logged as u64 + suppressed, hellos, "{kind}");
        assert!(logged < 200, "{kind}: {logged} lines");
    }
    let status = core.status();
    assert_eq!((status.connections.refused, status.updates.declined), (hellos, hellos));
}

/// A round in phase `FitHead` stays open when updates arrive, so only the quota limits the updates of a
/// device.
#[test]
fn quota_resets_with_each_join_while_heads_are_fitted() {
    let state = tempfile::tempdir().unwrap();
    let mut core = start_core(state.path());
    let mut queues = finish_training(&mut core);
    let round = take_opened_rounds(&mut queues[1])
        .pop()
        .or_else(|| take_opened_rounds(&mut queues[0]).pop())
        .expect("a round");
    let empty_update = || {
        let (id, descriptors) = (round.id, Vec::new());
        PeerEventKind::Update(Box::new(Update {
            id,
            samples: 0,
            skipped: 0,
            descriptors,
            tensors: Vec::new(),
        }))
    };
    for _ in 0..3 {
        for _ in 0..core.quota.max_updates {
            handle_and_flush(&mut core, 1, empty_update());
        }
        assert_eq!(core.status().connections.over_quota, 0);
        handle_and_flush(&mut core, 1, PeerEventKind::HelloAgain(Privacy::None, Millis::ZERO));
        let _ = take_opened_rounds(&mut queues[1]);
    }
    for _ in 0..100 {
        handle_and_flush(&mut core, 1, empty_update());
    }
    assert!(is_drained_and_closed(&mut queues[1]));
    let connections = core.connections;
    assert_eq!((connections.over_quota, connections.stale), (1, 99 - u64::from(core.quota.max_updates)));
    core.journal = None;
    let journal = std::fs::read_to_string(state.path().join(journal::FILE)).unwrap();
    let lines = journal.lines().filter(|line| line.contains("\"device\":1")).count();
    assert!(lines < 5 * core.quota.max_updates as usize, "{lines} lines");
}

/// If the updates of all devices are rejected, here because of their norm, the server repeats the round. Each
/// repetition has its own quota.
#[test]
fn repeated_round_has_own_quota() {
    let state = tempfile::tempdir().unwrap();
    let mut core = start_core(state.path());
    let queue_pairs = [command_queue(16), command_queue(16)];
    let (senders, mut queues): (Vec<_>, Vec<_>) = queue_pairs.into_iter().unzip();
    for (device, commands) in (0..).zip(senders) {
        handle_and_flush(&mut core, device, PeerEventKind::Hello(DeviceId(device), Privacy::None, commands));
    }
    for minute in 0..40 {
        let round = take_opened_rounds(&mut queues[0]).pop().expect("the repeated round");
        let _ = take_opened_rounds(&mut queues[1]);
        for device in 0..2 {
            let PeerEventKind::Update(mut update) = zero_update(&round) else { continue };
            update.tensors[0].values.fill(1e30);
            core.handle(
                Millis::new(minute * 60_000),
                peer_event(device, None, PeerEventKind::Update(update)),
            );
            core.flush(Millis::new(minute * 60_000)).unwrap();
        }
        core.tick(Millis::new((minute + 1) * 60_000)).unwrap();
    }
    let status = core.status();
    assert_eq!((status.connections.over_quota, status.updates.norm_over_bound), (0, 80));
    let round = take_opened_rounds(&mut queues[0]).pop().expect("the repeated round");
    for device in 0..2 {
        core.handle(Millis::new(40 * 60_000), peer_event(device, None, zero_update(&round)));
        core.flush(Millis::new(40 * 60_000)).unwrap();
    }
    assert_eq!(core.done, 1);
}

/// A network delivers delayed traffic all at once: several hellos of a device, each followed by an update
/// that the device sent before the round was reopened. These updates do not count, but the update after the
/// last opening does.
#[test]
fn unread_updates_use_no_quota_of_reopened_round() {
    let state = tempfile::tempdir().unwrap();
    let mut core = start_core(state.path());
    let queue_pairs = [command_queue(99), command_queue(99)];
    let (senders, mut queues): (Vec<_>, Vec<_>) = queue_pairs.into_iter().unzip();
    for (device, commands) in (0..).zip(senders) {
        handle_and_flush(&mut core, device, PeerEventKind::Hello(DeviceId(device), Privacy::None, commands));
    }
    let round = take_opened_rounds(&mut queues[1]).pop().expect("a round");
    for _ in 0..2 * core.quota.max_updates {
        handle_and_flush(&mut core, 1, PeerEventKind::HelloAgain(Privacy::None, Millis::ZERO));
        handle_and_flush(&mut core, 1, PeerEventKind::UnreadUpdate(round.id));
    }
    assert_eq!(
        take_opened_rounds(&mut queues[1]).len(),
        2 * core.quota.max_updates as usize,
        "the round was not opened again for each hello"
    );
    handle_and_flush(&mut core, 0, zero_update(&round));
    handle_and_flush(&mut core, 1, zero_update(&round));
    let status = core.status();
    assert_eq!((core.done, status.updates.counted, status.connections.over_quota), (1, 2, 0));
    // Updates that are not decoded for another reason are answered within the quota.
    for _ in 0..=core.quota.max_updates {
        handle_and_flush(&mut core, 1, PeerEventKind::UnreadUpdate(round.id));
    }
    assert_eq!(core.status().connections.over_quota, 1);
}

/// A device that was disconnected for too many updates to a closed round reconnects, and its next update
/// counts.
#[test]
fn late_updates_use_no_quota_of_next_round() {
    let state = tempfile::tempdir().unwrap();
    let mut core = start_core(state.path());
    let queue_pairs = [command_queue(99), command_queue(99), command_queue(99)];
    let (senders, receivers) = unzip_three(queue_pairs);
    let [first, second, reconnected] = senders;
    let [mut first_commands, mut second_commands, mut reconnected_commands] = receivers;
    handle_and_flush(&mut core, 0, PeerEventKind::Hello(DeviceId(0), Privacy::None, first));
    handle_and_flush(&mut core, 1, PeerEventKind::Hello(DeviceId(1), Privacy::None, second));
    let closed_round = take_opened_rounds(&mut first_commands).pop().expect("a round");
    handle_and_flush(&mut core, 0, zero_update(&closed_round));
    handle_and_flush(&mut core, 1, zero_update(&closed_round));
    assert_eq!(core.done, 1);
    for _ in 0..2 * core.quota.max_updates {
        handle_and_flush(&mut core, 1, PeerEventKind::UnreadUpdate(closed_round.id));
        handle_and_flush(&mut core, 1, zero_update(&closed_round));
    }
    assert!(is_drained_and_closed(&mut second_commands));
    assert_eq!(core.status().connections.over_quota, 1);
    handle_and_flush(&mut core, 1, PeerEventKind::Gone(DisconnectReason::Ended));
    handle_and_flush(&mut core, 2, PeerEventKind::Hello(DeviceId(1), Privacy::None, reconnected));
    let next_round = take_opened_rounds(&mut reconnected_commands).pop().expect("the next round");
    handle_and_flush(&mut core, 0, zero_update(&next_round));
    handle_and_flush(&mut core, 2, zero_update(&next_round));
    assert_eq!((core.done, core.status().connections.over_quota), (2, 1));
}
