//! Replay of the journal of a campaign in which rounds did not wait for a silent device.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fedspan_aggregator::config::RoundsSection;
use fedspan_aggregator::connection::PeerMessage;
use fedspan_aggregator::journal::{JournalEntry, Server};
use fedspan_engine::{Action, DeviceId, Event, Millis, RecordedEffects};
use fedspan_protocol::message::ToDevice;
use fedspan_sim_core::device::{Identity, client_session};
use fedspan_sim_core::fleet::{DeviceFactory, SimDevice};
use fedspan_sim_core::live::{campaign, check_replay};
use fedspan_sim_core::noise::SeedSource;
use fedspan_sim_core::run::gate;
use fedspan_sim_core::scenario::Scenario;

/// Scenario of four clients and 30 rounds.
const SCENARIO: &str = "seed = 3\n[data]\nkind = \"linear-regression\"\nclients = 4\nd = 6\nk = 2\nsamples = 12\n\
    [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 30\nstep_size = 0.25\n";

/// Device that is silent for a while.
const SILENT: u64 = 2;

/// Time from a round's opening to the answer of a device, in ms; `None` if the device is silent.
fn delay(device: u64, now: u64) -> Option<u64> {
    match device {
        SILENT if now < 320 => None,
        SILENT => Some(30),
        device => Some(3 + device),
    }
}

/// Runs the campaign of a server whose device 2 misses deadlines, and returns its journal.
fn run_server(scenario: &Scenario) -> (Vec<JournalEntry>, u64) {
    let dataset = scenario.dataset(scenario.seed).unwrap();
    let mut fleet = campaign(scenario, &dataset, Path::new("")).unwrap();
    let (deadline, patience) = (Some(Duration::from_millis(100)), NonZeroU32::new(2));
    fleet.rounds = RoundsSection { deadline, patience, ..fleet.rounds };
    let mut engine = fleet.engine();
    let build = DeviceFactory::new(scenario, &dataset, scenario.seed, SeedSource::System).unwrap();
    let acceptor = gate(scenario, &build, &engine);
    let began = Server { after: 0, expected: fleet.expected, configuration: fleet.fingerprint() };
    let mut lines = vec![JournalEntry::Began(began)];
    let mut devices = Vec::new();
    let mut due = BTreeMap::new();
    for index in 0..dataset.clients.len() {
        let session =
            client_session(scenario, &dataset, index, Identity::plaintext(index as u64), false).unwrap();
        let mut device = SimDevice::connect(session, Arc::clone(&acceptor));
        device.inbox.clear();
        device.pump();
        devices.push(device);
        due.insert((0, index as u64), Event::Joined(DeviceId(index as u64)));
    }
    let mut number = devices.len() as u64;
    let mut unanswered = BTreeMap::new();
    loop {
        let next = due.first_key_value().map(|((at, _), _)| *at);
        let wake = engine.wake().map(Millis::as_u64);
        let Some(now) = next.into_iter().chain(wake).min() else { break };
        let event = match next {
            Some(next) if next == now => due.pop_first().unwrap().1,
            _ => Event::Tick,
        };
        let mut effects = RecordedEffects::default();
        engine.handle(Millis::new(now), event, &mut effects);
        let representation = engine.representation();
        let entries = effects.records.iter();
        lines.extend(entries.filter_map(|record| JournalEntry::of(Millis::new(now), record, representation)));
        if engine.is_trained() {
            break;
        }
        for action in effects.actions {
            match action {
                Action::Open(id, broadcast) => drop(unanswered.insert(id, broadcast)),
                Action::Close(id, _) => drop(unanswered.remove(&id)),
                Action::Acknowledge(id, ack) => {
                    let device = &mut devices[usize::try_from(id.0).unwrap()];
                    device.connection.send(ToDevice::Ack(ack));
                    device.pump();
                }
                Action::Commit(_)
                | Action::NextRound(..)
                | Action::Finished
                | Action::NotAwaited(_)
                | Action::Awaited(_) => {}
                Action::Failed(failure) => panic!("{failure}"),
            }
        }
        let answering: Vec<DeviceId> =
            unanswered.keys().copied().filter(|id| delay(id.0, now).is_some()).collect();
        for id in answering {
            let broadcast = unanswered.remove(&id).unwrap();
            let device = &mut devices[usize::try_from(id.0).unwrap()];
            device.connection.open(&broadcast);
            device.pump();
            for inbound in device.inbox.drain(..) {
                if let PeerMessage::Update(update) = inbound {
                    number += 1;
                    due.insert((now + delay(id.0, now).unwrap(), number), Event::Update(id, update));
                }
            }
        }
    }
    (lines, engine.counters().missed)
}

/// Rounds closed by a deadline and rounds that did not wait for the silent device are decided again with the
/// same bits.
#[test]
fn journal_of_silent_device_is_replayed() {
    let scenario = Scenario::parse("silent", SCENARIO, &[]).unwrap();
    let (lines, missed) = run_server(&scenario);
    let events: BTreeSet<&str> = lines
        .iter()
        .map(|line| match line {
            JournalEntry::Deadline(_) => "deadline",
            JournalEntry::NotAwaited(_) => "not awaited",
            JournalEntry::Awaited(_) => "awaited",
            JournalEntry::Began(_)
            | JournalEntry::Resumed(_)
            | JournalEntry::Opened(_)
            | JournalEntry::Answered(_)
            | JournalEntry::Committed(_) => "",
        })
        .collect();
    assert_eq!((missed, events), (2, BTreeSet::from(["", "awaited", "deadline", "not awaited"])));
    let checked = check_replay(&scenario, &lines).unwrap();
    let difference = checked.replay.difference().map(|difference| difference.to_string());
    assert_eq!((difference, checked.replay.rounds()), (None, 30));
}
