//! Server of the fuzz target `datagram_sessions`: one session for each address, and the rounds of each device.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, Connection};
use fedspan_aggregator::core::{
    Command, Origin, PeerAction, PeerEvent, PeerEventKind, PeerSession, Timeouts,
};
use fedspan_aggregator::keys::{ActiveKeys, KeyTable};
use fedspan_engine::{DeviceId, Millis, Update};
use fedspan_protocol::datagram::{FRAME_MAX, PacketReader, PacketWriter};
use fedspan_protocol::message::{Ack, AckOutcome, RoundId, Welcome};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use super::air::Air;
use super::device::{Settings, key_of};
use super::rounds::{DEVICES, LAST_ROUND, Round, bits, requirements};

/// Timeouts of a session. A device repeats what was lost after two to ten seconds.
const TIMEOUTS: Timeouts = Timeouts {
    hello: Millis::new(30_000),
    idle: Millis::new(60_000),
    frame: Millis::new(30_000),
    repeat: Millis::new(7_000),
};

/// Largest number of actions of a session after one packet: all chunks of a round, several times.
const ACTIONS_MAX: usize = 200;

/// Session of one address.
struct End {
    session: PeerSession,
    reader: PacketReader<Vec<u8>>,
    writer: PacketWriter,
    /// Index of the device that has said hello.
    device: Option<usize>,
}

/// Rounds of one device.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Number of the newest round; 0 before the first.
    round: u32,
    is_open: bool,
    /// True if the update of the newest round was counted.
    is_counted: bool,
}

/// Server with one end for each address.
pub struct Server {
    acceptor: Arc<Acceptor>,
    settings: Settings,
    air: Rc<RefCell<Air>>,
    ends: [End; 2],
    rounds: [Progress; 2],
    /// Number of sessions so far.
    sessions: u64,
    /// Number of packets that were received.
    pub packets: u64,
}

impl Server {
    pub fn new(settings: Settings, air: &Rc<RefCell<Air>>) -> Self {
        let mut table = KeyTable::new();
        for device in DEVICES {
            table.insert(DeviceId(device), key_of(device), 0).expect("a new device");
        }
        let welcome = Welcome { campaign: 3, idle_milliseconds: 60_000 };
        let entropy = Box::new(ChaCha8Rng::seed_from_u64(5));
        let requirements = requirements(settings.encoding);
        let acceptor = Arc::new(Acceptor::encrypted(requirements, welcome, ActiveKeys::new(table), entropy));
        let ends = [0, 1].map(|peer| End::new(&acceptor, settings, peer, 0));
        let air = Rc::clone(air);
        Self { acceptor, settings, air, ends, rounds: Default::default(), sessions: 2, packets: 0 }
    }

    /// Ends the session of an address, and begins another one.
    pub fn restart(&mut self, end: usize, now: u64) {
        self.ends[end] = End::new(&self.acceptor, self.settings, self.sessions, now);
        self.sessions += 1;
    }

    /// Receives a packet from an address; returns false if there is none.
    pub fn receive(&mut self, end: usize, now: u64) -> bool {
        let Some(packet) = self.air.borrow_mut().receive(end) else { return false };
        self.packets += 1;
        let End { session, reader, .. } = &mut self.ends[end];
        reader.receive(&packet);
        let mut bytes = [0; 64];
        while reader.has_frame() {
            let read = reader.read(&mut bytes);
            session.receive(&bytes[..read]);
        }
        self.act(end, now);
        true
    }

    /// Performs what the timer of a session asks for.
    pub fn pass_time(&mut self, end: usize, now: u64) {
        self.ends[end].session.on_timer(Millis::new(now));
        self.act(end, now);
    }

    /// Returns the time for which a session waits.
    pub fn wait(&mut self, end: usize, now: u64) -> u64 {
        let due = self.ends[end].session.due(Millis::new(now)).unwrap_or(Millis::MAX);
        (due - Millis::new(now)).as_u64()
    }

    /// Opens a round of a device, and closes an earlier one.
    pub fn open_round(&mut self, device: usize, number: u32, now: u64) {
        self.close_round(device, now);
        self.rounds[device] = Progress { round: number, is_open: true, is_counted: false };
        if let Some(end) = self.end_of(device) {
            self.execute_open(end, device);
            self.act(end, now);
        }
    }

    /// Opens the round after the newest one of a device, except the last one.
    pub fn open_next(&mut self, device: usize, now: u64) {
        let next = self.rounds[device].round + 1;
        if next < LAST_ROUND {
            self.open_round(device, next, now);
        }
    }

    /// Closes the round of a device.
    pub fn close_round(&mut self, device: usize, now: u64) {
        let Progress { round, is_open, .. } = &mut self.rounds[device];
        let id = RoundId { round: *round, stage: 0 };
        if std::mem::take(is_open)
            && let Some(end) = self.end_of(device)
        {
            self.ends[end].session.execute(Command::CloseRound(id));
            self.act(end, now);
        }
    }

    /// Returns true if the update of the last round of a device was counted.
    pub fn has_finished(&self, device: usize) -> bool {
        self.rounds[device].round == LAST_ROUND && self.rounds[device].is_counted
    }

    fn end_of(&self, device: usize) -> Option<usize> {
        self.ends.iter().position(|end| end.device == Some(device))
    }

    fn execute_open(&mut self, end: usize, device: usize) {
        let Progress { round, is_open, .. } = self.rounds[device];
        if is_open {
            let broadcast = Arc::clone(&Round::of(device, self.settings.encoding, round).broadcast);
            self.ends[end].session.execute(Command::Open(broadcast));
        }
    }

    /// Performs the actions of a session until it waits.
    fn act(&mut self, end: usize, now: u64) {
        let mut frame = Vec::new();
        for _ in 0..ACTIONS_MAX {
            match self.ends[end].session.next(Millis::new(now), &mut frame) {
                PeerAction::Send => self.send(end, &frame),
                PeerAction::Admit => self.ends[end].session.admit(),
                PeerAction::Beacon(_) => panic!("no device receives beacons"),
                PeerAction::Report(event) => self.handle_event(end, event, now),
                PeerAction::Close(_) => return self.restart(end, now),
                PeerAction::Wait => return self.check_memory(end),
            }
        }
        panic!("the session of the server never waits");
    }

    /// Sends a frame in packets.
    fn send(&mut self, end: usize, frame: &[u8]) {
        let mut packet = vec![0; self.settings.packet];
        let mut rest = frame;
        while !rest.is_empty() {
            let length = self.ends[end].writer.write(&mut rest, &mut packet).expect("a frame in packets");
            self.air.borrow_mut().send(2 + end, packet[..length].to_vec());
        }
    }

    fn check_memory(&self, end: usize) {
        let connection = self.ends[end].session.connection();
        let (memory, memory_max) = (connection.memory(), connection.memory_max());
        assert!(memory <= memory_max, "{memory} of {memory_max} bytes");
        assert_eq!(connection.pending(), 0, "messages wait although the link accepts all");
        let requested = size_of::<f32>() * super::rounds::D * super::rounds::K;
        assert!(connection.update_memory() <= 4 * requested, "{} bytes", connection.update_memory());
    }

    /// Does what the core of a server does.
    fn handle_event(&mut self, end: usize, event: PeerEvent, now: u64) {
        let device = event.key.as_ref().and_then(|key| DEVICES.iter().position(|id| *id == key.device().0));
        match (event.kind, device) {
            (PeerEventKind::Hello(id, ..), Some(device)) => {
                assert_eq!(id.0, DEVICES[device], "another device than that of the key");
                // A newer session of a device replaces its earlier one.
                if let Some(earlier) = self.end_of(device).filter(|earlier| *earlier != end) {
                    self.restart(earlier, now);
                }
                self.ends[end].device = Some(device);
                self.execute_open(end, device);
            }
            (PeerEventKind::HelloAgain(..), Some(device)) => {
                assert_eq!(self.ends[end].device, Some(device));
                self.execute_open(end, device);
            }
            (PeerEventKind::Update(update), Some(device)) => self.handle_update(end, device, &update),
            (PeerEventKind::UnreadUpdate(id), Some(_)) => self.acknowledge(end, id, AckOutcome::Late),
            (PeerEventKind::Decline(decline), Some(device)) => {
                let progress = &mut self.rounds[device];
                progress.is_open &= decline.id.round != progress.round;
            }
            (PeerEventKind::TrafficOnly, _) => {}
            (kind, device) => panic!("{kind:?} of device {device:?}"),
        }
    }

    /// Counts an update, which must be what this device has computed.
    fn handle_update(&mut self, end: usize, device: usize, update: &Update) {
        assert_eq!(self.ends[end].device, Some(device));
        let expected = Round::of(device, self.settings.encoding, update.id.round);
        let values: Vec<u32> = update.tensors.iter().flat_map(|tensor| bits(&tensor.values)).collect();
        assert!(values == expected.update, "an update that the device has not computed");
        let progress = &mut self.rounds[device];
        let outcome = match (progress.round == update.id.round, progress.is_counted, progress.is_open) {
            (true, false, true) => AckOutcome::Counted,
            (true, true, _) => AckOutcome::Duplicate,
            _ => AckOutcome::Late,
        };
        if outcome == AckOutcome::Counted {
            (progress.is_counted, progress.is_open) = (true, false);
        }
        self.acknowledge(end, update.id, outcome);
    }

    fn acknowledge(&mut self, end: usize, id: RoundId, outcome: AckOutcome) {
        self.ends[end].session.execute(Command::Acknowledge(Ack { id, outcome }));
    }

    /// Returns the number of frames and packets that the sessions have dropped.
    pub fn dropped(&self) -> u64 {
        let counted = self.ends.iter().map(|end| {
            let (packets, traffic) = (end.reader.counters(), end.session.connection().traffic());
            let packets = packets.malformed + packets.repeated_fragments;
            packets + traffic.replayed + traffic.forged + traffic.unsealed + traffic.faults + traffic.stale
        });
        counted.map(u64::from).sum()
    }
}

impl End {
    fn new(acceptor: &Arc<Acceptor>, settings: Settings, peer: u64, now: u64) -> Self {
        let connection = Connection::datagrams(Arc::clone(acceptor));
        let from = Origin::Link("air".into());
        let (session, _) = PeerSession::new(peer, from, connection, TIMEOUTS, Millis::new(now));
        Self {
            session,
            reader: PacketReader::new(vec![0; FRAME_MAX]),
            writer: PacketWriter::new(settings.packet),
            device: None,
        }
    }
}
