//! Fuzz target for sessions over packets: two devices with drivers ([`Driver`](fedspan_client::link::Driver) over
//! [`DatagramLink`](fedspan_client::link::DatagramLink)) and the sessions of their server, on a channel that a script disturbs. When the
//! disturbance ends, the update of a further round of each device must be counted.

mod air;
mod device;
mod rounds;
mod server;

use std::cell::RefCell;
use std::rc::Rc;

use fedspan_protocol::datagram::PACKET_MIN;
use fedspan_protocol::secure::Suite;

use crate::Work;
use crate::script::Script;
use air::Air;
use device::{Device, LinkMemory, Settings};
use rounds::LAST_ROUND;
use server::Server;

/// Number of steps of the drivers after which a script ends. The limit bounds the time of a short input.
const STEPS: u64 = 6_000;
/// Largest number of times that the devices wait until the updates of the last round are counted.
const WAITS_MAX: u32 = 100;
/// Largest number of turns of both ends until both wait.
const TURNS_MAX: u32 = 100;

/// Runs a script: a byte of settings and one for the packets' length, then events.
pub fn datagram_sessions(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let first = script.byte();
    let settings = Settings {
        suite: [Suite::ChaCha20Poly1305, Suite::Aes128Ccm][usize::from(first % 2)],
        has_short_seals: first / 2 % 2 == 1,
        encoding: (first / 4 % 2).into(),
        frame_limit: [128, 256, 4096, 400][usize::from(first / 8 % 4)],
        wraps: first / 32 % 2 == 1,
        packet: PACKET_MIN + script.index(),
    };
    let mut memory = [0, 1].map(|_| LinkMemory::new(settings));
    let air = Rc::new(RefCell::new(Air::default()));
    let [first, second] = &mut memory;
    let devices = [Device::new(0, settings, &air, first), Device::new(1, settings, &air, second)];
    let mut world = World { server: Server::new(settings, &air), devices, air, now: 1 };
    while let Some(kind) = script.next()
        && world.steps() < STEPS
    {
        world.handle_event(kind, &mut script);
    }
    world.check_recovery();
    world.work()
}

/// The devices, their server and the channel between them.
struct World<'a> {
    server: Server,
    devices: [Device<'a>; 2],
    air: Rc<RefCell<Air>>,
    /// Server's clock in milliseconds.
    now: u64,
}

impl World<'_> {
    fn handle_event(&mut self, kind: u8, script: &mut Script<'_>) {
        let device = usize::from(kind / 16 % 2);
        match kind % 16 {
            0 => self.devices[device].run(self.now),
            1 => drop(self.server.receive(device, self.now)),
            2 => self.pass_time(script.word().into()),
            // Both ends work, for a number of turns without a wait.
            3 | 4 => {
                for _ in 0..script.byte() % 8 {
                    self.deliver();
                }
            }
            5 => self.wait(),
            6..=9 => self.air.borrow_mut().disturb(script),
            10 => self.air.borrow_mut().blocked[device] = script.byte(),
            11 => {
                let time = u32::from(script.word()) << 16 | u32::from(script.word());
                self.devices[device].set_clock(self.now, time);
            }
            12 => self.server.open_next(device, self.now),
            13 => match script.byte() {
                ..128 => self.air.borrow_mut().broken[device] = true,
                _ => self.server.close_round(device, self.now),
            },
            14 => self.server.restart(device, self.now),
            _ => {
                let (queue, length) = (script.index(), script.index());
                self.air.borrow_mut().insert(queue, script.take(length));
            }
        }
    }

    /// Lets both devices run, and the server receive all packets.
    fn deliver(&mut self) {
        for device in &mut self.devices {
            device.run(self.now);
        }
        for end in 0..2 {
            while self.server.receive(end, self.now) {}
        }
    }

    fn pass_time(&mut self, milliseconds: u64) {
        self.now += milliseconds;
        for end in 0..2 {
            self.server.pass_time(end, self.now);
        }
    }

    /// Passes the time until one of the ends has something to do.
    fn wait(&mut self) {
        let devices = self.devices.iter().map(|device| device.wait(self.now)).min();
        let server = [0, 1].map(|end| self.server.wait(end, self.now)).into_iter().min();
        let wait = devices.into_iter().chain(server).min().unwrap_or_default();
        // A wait for ever only passes on the other end.
        self.pass_time(wait.clamp(1, 1 << 33));
    }

    /// Checks that a further round of each device is finished in a bounded number of waits once nothing is disturbed any more.
    fn check_recovery(&mut self) {
        self.air.borrow_mut().clear();
        for device in 0..2 {
            self.server.open_round(device, LAST_ROUND, self.now);
        }
        let counted = [0, 1].map(|device: usize| self.devices[device].counted());
        let has_finished = |world: &Self| {
            (0..2).all(|device| {
                world.server.has_finished(device) && world.devices[device].counted() > counted[device]
            })
        };
        for _ in 0..WAITS_MAX {
            let is_quiet = (0..TURNS_MAX).any(|_| {
                let before = self.air.borrow().received();
                self.deliver();
                self.air.borrow().received() == before
            });
            assert!(is_quiet, "the two ends never wait");
            if has_finished(self) {
                return;
            }
            self.wait();
        }
        panic!("an honest channel does not lead to updates that are counted");
    }

    fn steps(&self) -> u64 {
        self.devices.iter().map(|device| device.steps).sum()
    }

    fn work(&self) -> Work {
        let dropped: u64 = self.devices.iter().map(Device::dropped).sum();
        let steps = self.steps();
        Work { frames: self.server.packets, refused: dropped + self.server.dropped(), steps }
    }
}

/// Returns scripts of rounds on a channel that is disturbed in each way, for all settings.
pub fn seeds() -> Vec<Vec<u8>> {
    // Both devices connect.
    const CONNECT: [u8; 4] = [3, 6, 3, 4];
    let mut seeds = Vec::new();
    for first in 0..64u8 {
        let mut seed = vec![first, first.wrapping_mul(37)];
        seed.extend(CONNECT);
        for round in 0..4u8 {
            seed.extend([12, 28]);
            // Packets of all four queues, disturbed in each way in turn, while the round is received and answered.
            for turn in 0..3u8 {
                let disturbance = |way: u8, queue: u8| {
                    // The number that is `way` modulo 9 and `queue` in its fifth and sixth bit.
                    (0..16u8).map(|low| 16 * queue + low).find(|number| number % 9 == way).unwrap_or(way)
                };
                seed.extend([0, 16, 6, disturbance((first + round + turn) % 9, turn % 2), turn]);
                seed.extend([1, 17, 1, 17, 7, disturbance((first + turn) % 9, 2 + turn % 2), 1, 8, 30]);
            }
            seed.extend([3, 2, 5, 3, 2, 10, 5 * round, 5, 26, 3, 0, 16]);
            seed.extend(match round {
                0 => [11, 0, 0, 0, 0, 14, 5],
                1 => [13, 1, 27, 255, 255, 255, 255],
                2 => [2, 0, 200, 14, 13, 200, 5],
                _ => [15, 2, 3, 0x20, 1, 2, 5],
            });
            seed.extend([3, 7, 5, 3, 7]);
        }
        seeds.push(seed);
    }
    seeds.extend((0..32).flat_map(|ago| [late_chunk(2, ago), late_chunk(0, ago)]));
    seeds
}

/// Returns a script in which a packet of a round is lost in a queue and arrives in the next round, in place of one that is lost there: the
/// packet that was sent `ago` packets before the last one.
fn late_chunk(queue: u8, ago: u8) -> Vec<u8> {
    // Chunks of i8 values in single packets, ChaCha20-Poly1305, and short seals for half of the scripts.
    let mut script = vec![4 + 2 * (ago % 2), 250, 3, 6, 3, 4];
    // Losing the second packet, and repeating a past one.
    let (lose, repeat) = if queue == 0 { (0, 7) } else { (36, 34) };
    for _ in 0..3 {
        script.push(12);
        // The device answers before a packet to the server is lost.
        script.extend((queue == 0).then_some(0));
        script.extend([6, lose, 1, 3, 1, 12]);
        script.extend((queue == 0).then_some(0));
        script.extend([6, lose, 1, 6, repeat, 0, ago, 3, 2, 5, 3, 3]);
    }
    script
}
