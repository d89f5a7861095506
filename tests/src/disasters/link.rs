//! Simulated link between a device and the server. A stream delivers everything in order and is sometimes
//! closed; a serial line loses, repeats, damages and reorders frames but is never closed.

use fedspan_engine::Millis;
use rand_chacha::ChaCha8Rng;
use rand_core::Rng;

use super::plan::{draw_chance, draw_within};

/// Quality of a link.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    /// Least latency.
    pub latency: Millis,
    /// Largest additional latency.
    pub jitter: Millis,
    /// Bandwidth in bytes per second.
    pub speed: u64,
    /// Percentage of frames that a serial line loses.
    pub lost: u32,
    /// Percentage of frames that a serial line delivers twice.
    pub repeated: u32,
    /// Percentage of frames in which a serial line flips one bit.
    pub damaged: u32,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    /// Time at which the last sent byte arrives (stream) or has left the sender (serial line).
    busy_until: Millis,
}

/// Link of one device.
#[derive(Debug)]
pub struct Link {
    /// Number of the connection; it increases with every reconnect.
    pub number: u64,
    /// True while the network considers the link up.
    pub is_up: bool,
    /// End of the current partition. Until then the link delivers nothing.
    pub partitioned_until: Millis,
    pub quality: Quality,
    is_serial: bool,
    directions: [Direction; 2],
}

/// Chunks of bytes with their arrival times.
pub type Arrivals = Vec<(Millis, Vec<u8>)>;

impl Link {
    /// Creates a link that is down.
    pub fn new(is_serial: bool, random: &mut ChaCha8Rng) -> Self {
        let slow = draw_chance(random, 15);
        let quality = Quality {
            latency: Millis::new(draw_within(random, 1, 80)),
            jitter: Millis::new(draw_within(random, 1, 200)),
            speed: if slow { 600 } else { 100_000 },
            lost: if is_serial { 8 } else { 0 },
            repeated: if is_serial { 5 } else { 0 },
            damaged: if is_serial { 4 } else { 0 },
        };
        Self {
            number: 0,
            is_up: false,
            partitioned_until: Millis::ZERO,
            quality,
            is_serial,
            directions: [Direction::default(); 2],
        }
    }

    /// Opens a new connection; bytes in flight on the old one are lost.
    pub fn renew(&mut self, now: Millis) {
        self.number += 1;
        self.is_up = true;
        self.directions = [Direction { busy_until: now }; 2];
    }

    /// Ends partitions and transmission errors.
    pub fn heal(&mut self) {
        self.partitioned_until = Millis::ZERO;
        self.quality = Quality { lost: 0, repeated: 0, damaged: 0, ..self.quality };
    }

    /// Sends a frame to the server (`is_up`) or to the device. Returns the resulting arrivals.
    pub fn send(
        &mut self,
        now: Millis,
        is_up: bool,
        mut frame: Vec<u8>,
        random: &mut ChaCha8Rng,
    ) -> Arrivals {
        let Quality { latency, jitter, speed, lost, repeated, damaged } = self.quality;
        let Some(direction) = self.directions.get_mut(usize::from(is_up)) else { return Vec::new() };
        let sending = frame.len() as u64 * 1000 / speed;
        if self.is_serial {
            let sent_at = direction.busy_until.max(now) + Millis::new(sending);
            direction.busy_until = sent_at;
            if now < self.partitioned_until || draw_chance(random, lost) {
                return Vec::new();
            }
            if draw_chance(random, damaged)
                && let Some(byte) = usize::try_from(random.next_u32()).ok().and_then(|index| {
                    let length = frame.len().max(1);
                    frame.get_mut(index % length)
                })
            {
                *byte ^= 1 << (random.next_u32() % 8);
            }
            let copies = if draw_chance(random, repeated) { 2 } else { 1 };
            return (0..copies)
                .map(|_| {
                    (sent_at + latency + Millis::new(draw_within(random, 0, jitter.as_u64())), frame.clone())
                })
                .collect();
        }
        // A stream delivers everything, possibly later, in chunks of any size.
        let start = direction.busy_until.max(now).max(self.partitioned_until) + Millis::new(sending);
        let arrival = start.max(now + latency + Millis::new(draw_within(random, 0, jitter.as_u64())));
        direction.busy_until = arrival;
        let middle = usize::try_from(random.next_u64()).unwrap_or_default() % frame.len().max(1);
        let second_part = frame.split_off(middle);
        [(arrival, frame), (arrival, second_part)]
            .into_iter()
            .filter(|(_, bytes)| !bytes.is_empty())
            .collect()
    }
}
