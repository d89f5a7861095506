//! Device of the fuzz target `datagram_sessions`: a session with a driver over packets, and a clock that jumps and wraps.

use std::cell::RefCell;
use std::rc::Rc;

use fedspan_client::link::{Buffers, DatagramLink, Driver, NoSensor, Step};
use fedspan_client::session::{Config, Protection};
use fedspan_client::store::NoStore;
use fedspan_client::{Linear, Millis, Recording, Session, Workspace};
use fedspan_protocol::secure::{Key, Suite};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use super::air::{Air, Radio};
use super::rounds::{D, DEVICES, K, LAST_ROUND, Round, Samples, bits};

/// Largest number of steps of a driver until it waits, for packets of at least 18 bytes and frames of at most 256.
const STEPS_MAX: u32 = 3_000;

/// Settings of all devices.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Algorithm of the seals.
    pub suite: Suite,
    pub has_short_seals: bool,
    /// Encoding of the rounds, by its index.
    pub encoding: usize,
    pub frame_limit: u16,
    /// Length of the longest packet in bytes.
    pub packet: usize,
    /// True if the clocks have 32 bits.
    pub wraps: bool,
}

/// Returns the key of a device.
pub fn key_of(device: u64) -> Key {
    Key::new(0, [device as u8; 32])
}

/// Memory of a device's link.
pub struct LinkMemory {
    receive: Vec<u8>,
    transmit: Vec<u8>,
    packet: Vec<u8>,
    collected: Vec<u8>,
}

impl LinkMemory {
    pub fn new(settings: Settings) -> Self {
        let limit = settings.frame_limit.into();
        let transmit = Config { frame_limit: settings.frame_limit, ..Config::new(0) }.transmit_capacity();
        Self {
            receive: vec![0; limit],
            transmit: vec![0; transmit],
            packet: vec![0; settings.packet],
            collected: vec![0; limit],
        }
    }
}

/// A device with its session and driver.
pub struct Device<'a> {
    /// Index of the device.
    index: usize,
    settings: Settings,
    session: Session<Linear<Workspace<D, K>>, Recording<'static>, NoStore, ChaCha8Rng, Suite>,
    driver: Driver<'a>,
    link: DatagramLink<'a, Radio>,
    /// Difference between the device's clock and the server's.
    ahead: u64,
    /// Device's clock at the last step.
    last: Millis,
    /// Time until which the device waits, on its clock.
    wake: Millis,
    /// True between two links.
    is_offline: bool,
    /// Number of times that the driver was called.
    pub steps: u64,
}

impl<'a> Device<'a> {
    pub fn new(index: usize, settings: Settings, air: &Rc<RefCell<Air>>, memory: &'a mut LinkMemory) -> Self {
        let config = Config { frame_limit: settings.frame_limit, ..Config::new(DEVICES[index]) };
        let key = key_of(DEVICES[index]);
        let protection =
            if settings.has_short_seals { Protection::ShortTags(key) } else { Protection::Key(key) };
        let task = Linear::new(Workspace::new());
        let (source, random) = (Samples::of(index).recording(), ChaCha8Rng::seed_from_u64(1 + index as u64));
        let session = Session::with_aead(config, protection, settings.suite, task, source, NoStore, random);
        let LinkMemory { receive, transmit, packet, collected } = memory;
        let radio = Radio { air: Rc::clone(air), device: index };
        Self {
            index,
            settings,
            session,
            driver: Driver::new(Buffers { receive, transmit }),
            link: DatagramLink::new(radio, packet, collected),
            // A clock of 32 bits wraps after a minute.
            ahead: if settings.wraps { (1 << 32) - 60_000 } else { 0 },
            last: Millis::ZERO,
            wake: Millis::ZERO,
            is_offline: false,
            steps: 0,
        }
    }

    /// Lets the clock jump to a time.
    pub fn set_clock(&mut self, now: u64, time: u32) {
        self.ahead = u64::from(time).wrapping_sub(now);
    }

    fn clock(&self, now: u64) -> Millis {
        let time = self.ahead.wrapping_add(now);
        Millis::new(if self.settings.wraps { time % (1 << 32) } else { time })
    }

    /// Returns the time for which the device waits.
    pub fn wait(&self, now: u64) -> u64 {
        (self.wake - self.clock(now)).as_u64()
    }

    /// Runs the driver until it waits, and checks that it holds only its own data. The caller of a driver begins the next link at the
    /// time that the last one has named, or when its clock has gone back.
    pub fn run(&mut self, now: u64) {
        let time = self.clock(now);
        let has_jumped = time < std::mem::replace(&mut self.last, time);
        if self.is_offline && time < self.wake && !has_jumped {
            return;
        }
        for _ in 0..STEPS_MAX {
            self.steps += 1;
            self.is_offline = false;
            let step = self.driver.step_non_blocking(&mut self.session, &mut self.link, time, &mut NoSensor);
            match step {
                Step::Again => continue,
                Step::Wait(until) => {
                    assert!(until > time, "at {time} the driver waits until {until}, which is past");
                    self.wake = until;
                }
                Step::Closed(closed) => {
                    self.link.reset();
                    self.link.packets_mut().forget_refused();
                    assert!(closed.retry_at > time, "at {time} the next link begins at {}", closed.retry_at);
                    (self.wake, self.is_offline) = (closed.retry_at, true);
                }
            }
            return self.check_representation();
        }
        panic!("the driver never waits");
    }

    fn check_representation(&self) {
        let Some(representation) = self.session.task().representation() else { return };
        let held = bits(representation);
        let is_own = (1..=LAST_ROUND)
            .any(|number| Round::of(self.index, self.settings.encoding, number).representation == held);
        assert!(is_own, "the device holds a representation that was not sent to it");
    }

    /// Returns the number of frames and packets that the device has dropped.
    pub fn dropped(&self) -> u64 {
        let (session, packets) = (self.session.counters(), self.link.counters());
        [session.unopened, session.unsealed, session.malformed, packets.malformed, packets.repeated_fragments]
            .map(u64::from)
            .iter()
            .sum()
    }

    /// Returns the number of rounds whose update was counted, as far as the device knows.
    pub fn counted(&self) -> u32 {
        self.session.counters().counted
    }
}
