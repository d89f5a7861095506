//! Tests of a device and a server over LoRa, in virtual time: after each packet the device must be silent for 99 times, and the
//! gateway for 9 times the packet's time on the air. The times of `edge-client/RADIO.md` are long enough for that, the defaults are not.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, Connection};
use fedspan_aggregator::core::{Command, Origin, PeerAction, PeerEventKind, PeerSession, Timeouts};
use fedspan_client::Millis;
use fedspan_client::link::{Buffers, DatagramLink, Driver, NoSensor, Packets, Step};
use fedspan_client::secure::Key;
use fedspan_client::session::{Config, Protection, Sleep, Timers};
use fedspan_client::store::NoStore;
use fedspan_client::{Linear, Workspace};
use fedspan_hostile::Random;
use fedspan_protocol::datagram::{PacketReader, PacketWriter};
use fedspan_protocol::message::{Ack, AckOutcome, Welcome};
use fedspan_sim_core::radio::{RADIOS, Radio};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

use crate::common::{Board, DEVICE, SECRET, WELCOME, active_keys, requirements, round_broadcast};

/// One direction of a radio channel.
#[derive(Default)]
struct Direction {
    /// Time at which the sender may send again.
    free_at: u64,
    /// Packets on the air, with the times of their arrival.
    packets: VecDeque<(u64, Vec<u8>)>,
    /// Number of packets that were sent.
    sent: usize,
}

/// Radio channel between a device and its gateway.
struct Channel {
    now: u64,
    radio: Radio,
    up: Direction,
    down: Direction,
    random: Random,
    /// Part of the packets that is lost.
    loss: f32,
}

impl Channel {
    /// Sends a packet, and returns false if the sender must still be silent.
    fn send(&mut self, is_up: bool, packet: &[u8]) -> bool {
        let duty = if is_up { self.radio.device_duty } else { self.radio.gateway_duty };
        let direction = if is_up { &mut self.up } else { &mut self.down };
        if self.now < direction.free_at {
            return false;
        }
        let seconds = self.radio.airtime(packet.len()).as_secs_f64();
        direction.free_at = self.now + (1e3 * seconds / duty).ceil() as u64;
        direction.sent += 1;
        if self.random.unit().abs() >= self.loss {
            direction.packets.push_back((self.now + (1e3 * seconds).ceil() as u64, packet.to_vec()));
        }
        true
    }

    /// Takes a packet that has arrived.
    fn receive(&mut self, is_up: bool) -> Option<Vec<u8>> {
        let direction = if is_up { &mut self.up } else { &mut self.down };
        if direction.packets.front()?.0 > self.now {
            return None;
        }
        direction.packets.pop_front().map(|(_, packet)| packet)
    }
}

/// Device's end of the channel.
#[derive(Clone)]
struct Air(Rc<RefCell<Channel>>);

impl Packets for Air {
    type Error = Infallible;

    fn send(&mut self, packet: &[u8]) -> Result<bool, Infallible> {
        Ok(self.0.borrow_mut().send(true, packet))
    }

    fn receive(&mut self, packet: &mut [u8]) -> Result<Option<usize>, Infallible> {
        let received = self.0.borrow_mut().receive(false);
        Ok(received.filter(|received| received.len() <= packet.len()).map(|received| {
            packet[..received.len()].copy_from_slice(&received);
            received.len()
        }))
    }
}

/// Server's session with the device, behind the gateway. It begins again with the next packet after it has ended.
struct Gateway {
    session: Option<PeerSession>,
    commands: Option<fedspan_aggregator::core::Receiver<Command>>,
    timeouts: Timeouts,
    reader: PacketReader<Vec<u8>>,
    writer: PacketWriter,
    packet: usize,
    /// Bytes of frames that are not sent yet.
    unsent: VecDeque<Vec<u8>>,
    round: u32,
    counted: u32,
    /// Number of sessions that ended.
    ended: usize,
}

/// Acceptor of a server whose devices must send within `idle`.
fn acceptor(idle: Millis) -> Arc<Acceptor> {
    let idle_milliseconds = u32::try_from(idle.as_u64()).expect("49 days");
    let welcome = Welcome { idle_milliseconds, ..WELCOME };
    let entropy = Box::new(ChaCha20Rng::seed_from_u64(3));
    Arc::new(Acceptor::encrypted(requirements(), welcome, active_keys(), entropy))
}

impl Gateway {
    fn run(&mut self, channel: &mut Channel) {
        let now = Millis::new(channel.now);
        while let Some(packet) = channel.receive(true) {
            self.reader.receive(&packet);
            let mut bytes = [0; 512];
            while self.reader.has_frame() {
                let read = self.reader.read(&mut bytes);
                let (session, commands) =
                    self.session.take().zip(self.commands.take()).unwrap_or_else(|| {
                        let connection = Connection::datagrams(acceptor(self.timeouts.idle));
                        PeerSession::new(1, Origin::Link("radio".into()), connection, self.timeouts, now)
                    });
                (self.session, self.commands) = (Some(session), Some(commands));
                if let Some(session) = &mut self.session {
                    session.receive(&bytes[..read]);
                }
                self.advance(now);
            }
        }
        if let Some(session) = &mut self.session {
            session.on_timer(now);
        }
        self.advance(now);
        while let Some(frame) = self.unsent.front_mut() {
            let (mut writer, mut rest, mut packet) = (self.writer, &frame[..], vec![0; self.packet]);
            let length = writer.write(&mut rest, &mut packet).expect("a frame that fits");
            if !channel.send(false, &packet[..length]) {
                break;
            }
            self.writer = writer;
            *frame = rest.to_vec();
            if frame.is_empty() {
                self.unsent.pop_front();
            }
        }
    }

    /// Performs the actions of the session, and answers like a server with one device and one round after the other.
    fn advance(&mut self, now: Millis) {
        let mut frame = Vec::new();
        while let Some(session) = &mut self.session {
            match session.next(now, &mut frame) {
                PeerAction::Send => self.unsent.push_back(std::mem::take(&mut frame)),
                PeerAction::Admit => session.admit(),
                PeerAction::Beacon(_) => {}
                PeerAction::Report(event) => match event.kind {
                    PeerEventKind::Hello(..) | PeerEventKind::HelloAgain(..) => {
                        session.execute(Command::Open(round_broadcast(self.round)));
                    }
                    PeerEventKind::Update(update) => {
                        let is_counted = update.id.round == self.round;
                        self.counted += u32::from(is_counted);
                        self.round += u32::from(is_counted);
                        let outcome = if is_counted { AckOutcome::Counted } else { AckOutcome::Duplicate };
                        session.execute(Command::Acknowledge(Ack { id: update.id, outcome }));
                        if is_counted {
                            session.execute(Command::Open(round_broadcast(self.round)));
                        }
                    }
                    PeerEventKind::UnreadUpdate(id) => {
                        session.execute(Command::Acknowledge(Ack { id, outcome: AckOutcome::Late }));
                    }
                    _ => {}
                },
                PeerAction::Close(_) => {
                    (self.session, self.commands) = (None, None);
                    self.ended += 1;
                }
                PeerAction::Wait => return,
            }
        }
    }
}

/// Result of a campaign.
#[derive(Debug)]
struct Outcome {
    counted: u32,
    /// Number of links that ended because no packet could be sent for [`Timers::write`].
    stalled: usize,
    /// Number of the server's sessions that ended.
    ended: usize,
    /// Part of the time in which the device sent.
    duty: f64,
}

/// Runs a device and a server for this time, in ms.
fn run(
    (name, loss, seed): (&str, f32, u64),
    timers: Timers,
    limits: Timeouts,
    sleep: Option<Sleep>,
    until: u64,
) -> Outcome {
    let radio = Radio::named(name).expect("a radio");
    let channel = Rc::new(RefCell::new(Channel {
        now: 0,
        radio,
        up: Direction::default(),
        down: Direction::default(),
        random: Random(seed),
        loss,
    }));
    let mut gateway = Gateway {
        session: None,
        commands: None,
        timeouts: limits,
        reader: PacketReader::new(vec![0; 4096]),
        writer: PacketWriter::new(radio.packet),
        packet: radio.packet,
        unsent: VecDeque::new(),
        round: 1,
        counted: 0,
        ended: 0,
    };
    let config = Config { timers, sleep, ..Config::new(DEVICE) };
    let protection = Protection::ShortTags(Key::new(0, SECRET));
    let mut device =
        Board::with_task(config, protection, Linear::new(Workspace::<20, 2>::new()), NoStore, 1).session;
    let (mut receive, mut transmit) = (vec![0; 256], vec![0; config.transmit_capacity()]);
    let (mut packet, mut collected) = (vec![0; radio.packet], vec![0; 256]);
    let mut link = DatagramLink::new(Air(Rc::clone(&channel)), &mut packet, &mut collected);
    let mut driver = Driver::new(Buffers { receive: &mut receive, transmit: &mut transmit });
    let (mut wakes_at, mut stalled, mut airtime, mut is_off) = (0, 0, 0.0, false);
    loop {
        let now = channel.borrow().now;
        if now >= until {
            let duty = airtime / (1e-3 * until as f64);
            return Outcome { counted: gateway.counted, stalled, ended: gateway.ended, duty };
        }
        gateway.run(&mut channel.borrow_mut());
        if is_off && now < wakes_at {
            channel.borrow_mut().down.packets.clear();
        }
        while now >= wakes_at || channel.borrow().down.packets.front().is_some_and(|(at, _)| *at <= now) {
            is_off = false;
            let sent = channel.borrow().up.sent;
            let step = driver.step_non_blocking(&mut device, &mut link, Millis::new(now), &mut NoSensor);
            if channel.borrow().up.sent > sent {
                let channel = channel.borrow();
                airtime += 1e-3 * (channel.up.free_at - now) as f64 * radio.device_duty;
            }
            match step {
                Step::Again => {}
                Step::Wait(at) => {
                    let free_at = channel.borrow().up.free_at;
                    wakes_at = if free_at > now { at.as_u64().min(free_at) } else { at.as_u64() };
                    break;
                }
                Step::Closed(closed) => {
                    stalled += usize::from(closed.is_stalled);
                    wakes_at = closed.retry_at.as_u64();
                    link.reset();
                    is_off = true;
                    break;
                }
            }
        }
        gateway.run(&mut channel.borrow_mut());
        let mut channel = channel.borrow_mut();
        let arrivals =
            [&channel.up, &channel.down].into_iter().filter_map(|way| Some(way.packets.front()?.0));
        let due = gateway.session.as_mut().and_then(|session| session.due(Millis::new(now)));
        let sends = (!gateway.unsent.is_empty()).then_some(channel.down.free_at);
        let next = arrivals.chain([wakes_at]).chain(due.map(Millis::as_u64)).chain(sends).min();
        channel.now = next.unwrap_or(until).max(now + 1).min(until);
    }
}

/// Times of `edge-client/RADIO.md` for a radio, from the longest pause after a packet.
fn times_for(name: &str) -> (Timers, Timeouts) {
    let radio = Radio::named(name).expect("a radio");
    let pause = (1e3 * radio.airtime(radio.packet).as_secs_f64() / radio.device_duty).ceil() as u32;
    let timers = Timers {
        ask_again: 8 * pause,
        resend: 8 * pause,
        reconnect: 8 * pause,
        reconnect_max: 3_600_000,
        write: 2 * pause,
    };
    let (idle, long) = (Millis::new(86_400_000), Millis::from(8 * pause));
    (timers, Timeouts { hello: long, idle, frame: long, repeat: Millis::from(7 * pause) })
}

const HOUR: u64 = 3_600_000;

/// On every radio, with and without losses, of which two patterns are tried.
#[test]
fn device_trains_within_its_duty_cycle() {
    for radio in RADIOS.iter().filter(|radio| radio.device_duty < 1.0) {
        let name = radio.name;
        let (timers, limits) = times_for(name);
        for (loss, seed) in [(0.0, 1), (0.1, 1), (0.1, 2)] {
            // A hundred pauses; a round takes 1 to 17 of them, losses included.
            let until = 100 * u64::from(timers.write / 2);
            let outcome = run((name, loss, seed), timers, limits, None, until);
            println!("{name}, {loss}, {seed}, pauses of {} ms: {outcome:?}", timers.write / 2);
            assert!(outcome.counted >= 1, "{name}, {loss}, {seed}: {outcome:?}");
            assert_eq!((outcome.stalled, outcome.ended), (0, 0), "{name}, {loss}, {seed}: {outcome:?}");
            // The pause after the last packet may end after the run.
            let last = 1.0 / 100.0 * radio.device_duty;
            assert!(outcome.duty <= radio.device_duty + last, "{name}, {loss}, {seed}: {outcome:?}");
        }
    }
}

/// The defaults are for links without pauses: the write limit ends each link while the duty cycle forbids to send.
#[test]
fn default_times_are_too_short_for_a_duty_cycle() {
    let limits = Timeouts {
        hello: Millis::new(5_000),
        idle: Millis::new(120_000),
        frame: Millis::new(10_000),
        repeat: Millis::new(10_000),
    };
    let outcome = run(("lora-sf9", 0.0, 1), Timers::DEFAULT, limits, None, 4 * HOUR);
    println!("{outcome:?}");
    assert_eq!(outcome.counted, 0);
    assert!(outcome.stalled > 10);
}

/// A device that sleeps trains once in each hour.
#[test]
fn sleeping_device_trains_within_its_duty_cycle() {
    let (timers, limits) = times_for("lora-sf9");
    let sleep = Sleep { wait: timers.ask_again, ..Sleep::once_in(3_600_000) };
    let outcome = run(("lora-sf9", 0.05, 1), timers, limits, Some(sleep), 24 * HOUR);
    println!("{outcome:?}");
    assert!((16..=24).contains(&outcome.counted), "{outcome:?}");
    assert_eq!(outcome.stalled, 0);
    assert!(outcome.duty < 0.002, "{outcome:?}");
}
