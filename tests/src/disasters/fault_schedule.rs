//! Schedule of faults, drawn at random.

use fedspan_engine::Millis;
use rand_chacha::ChaCha8Rng;
use rand_core::Rng;

use super::plan::{Kind, draw_chance, draw_within};

/// A fault and its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The server loses its power for this time; unsynced writes are kept, lost or torn.
    ServerCrash(Millis),
    /// The server loses its power during a later write, sync or change of the round key: after this many more
    /// of them, for this time.
    PowerCut(u32, Millis),
    /// The server's disk is full after this many more writes, for this time.
    DiskFull(u32, Millis),
    /// The server's clock jumps forward by this time.
    ServerJump(Millis),
    /// A device loses its power for this time.
    DeviceCrash(usize, Millis),
    /// A device loses its power after this many more bytes are written to its flash.
    FlashCut(usize, usize),
    /// A device's clock jumps forward by this time.
    DeviceJump(usize, Millis),
    /// A device's link is reset.
    LinkReset(usize),
    /// A device is partitioned from the server for this time.
    Partition(usize, Millis),
    /// All devices are partitioned from the server for this time.
    Blackout(Millis),
    /// A device's key is revoked.
    Revocation(usize),
}

/// One day.
pub const DAY: Millis = Millis::new(24 * 3_600_000);

/// Draws the time after which no more faults occur.
pub fn draw_horizon(random: &mut ChaCha8Rng, kind: Kind) -> Millis {
    match kind {
        Kind::Hectic => Millis::new(draw_within(random, 10_000, 90_000)),
        Kind::Day { .. } => DAY,
        Kind::Sleeping { .. } => Millis::ZERO,
    }
}

/// Draws the faults of a day: every device loses its link ten times and its power twice, the network fails
/// four times and the disk fills twice. The server loses its power 24 times in the first six hours and never
/// afterwards, so that memory leaks show in the remaining hours.
pub fn draw_day_faults(random: &mut ChaCha8Rng, devices: usize) -> Vec<(Millis, Fault)> {
    let mut faults = Vec::new();
    let mut schedule = |random: &mut ChaCha8Rng, fault| {
        faults.push((Millis::new(draw_within(random, 0, DAY.as_u64())), fault))
    };
    for device in 0..devices {
        for _ in 0..10 {
            schedule(random, Fault::LinkReset(device));
        }
        let duration = Millis::new(draw_within(random, 1_000, 1_800_000));
        schedule(random, Fault::DeviceCrash(device, duration));
        let bytes = usize::try_from(draw_within(random, 1, 700)).unwrap_or(1);
        schedule(random, Fault::FlashCut(device, bytes));
    }
    for number in 0..24u32 {
        let duration = Millis::new(draw_within(random, 20, 60_000));
        let fault = match number % 2 {
            0 => Fault::ServerCrash(duration),
            _ => Fault::PowerCut(number, duration),
        };
        faults.push((Millis::new(draw_within(random, 0, DAY.as_u64() / 4)), fault));
    }
    for _ in 0..4 {
        let time = Millis::new(draw_within(random, 1_000, 600_000));
        faults.push((Millis::new(draw_within(random, 0, DAY.as_u64())), Fault::Blackout(time)));
    }
    for _ in 0..2 {
        let time = Millis::new(draw_within(random, 1_000, 120_000));
        faults.push((Millis::new(draw_within(random, 0, DAY.as_u64())), Fault::DiskFull(0, time)));
    }
    faults
}

/// Draws the faults of a short world, unordered, all before `horizon`. Each kind of fault is absent with a
/// probability of 35 %.
pub fn draw_faults(
    random: &mut ChaCha8Rng,
    devices: usize,
    horizon: Millis,
    has_keys: bool,
) -> Vec<(Millis, Fault)> {
    let mut faults = Vec::new();
    for kind in 0..11u32 {
        let max_count = match kind {
            0 | 3 | 4 | 6 | 10 => 6,
            9 => 2,
            _ => 3,
        };
        let count = if draw_chance(random, 35) { 0 } else { draw_within(random, 0, max_count + 1) };
        for _ in 0..count {
            let time = Millis::new(draw_within(random, 0, horizon.as_u64()));
            let device = usize::try_from(random.next_u32()).unwrap_or_default() % devices.max(1);
            let fault = match kind {
                0 => Fault::ServerCrash(Millis::new(draw_within(random, 20, 15_000))),
                1 => {
                    let writes = u32::try_from(draw_within(random, 0, 60)).unwrap_or(0);
                    Fault::DiskFull(writes, Millis::new(draw_within(random, 100, 8_000)))
                }
                2 => Fault::ServerJump(Millis::new(draw_within(random, 1, 100_000))),
                3 => Fault::DeviceCrash(device, Millis::new(draw_within(random, 20, 20_000))),
                4 => Fault::FlashCut(device, usize::try_from(draw_within(random, 1, 700)).unwrap_or(1)),
                5 => Fault::DeviceJump(device, Millis::new(draw_within(random, 1, 100_000))),
                6 => Fault::LinkReset(device),
                7 => Fault::Partition(device, Millis::new(draw_within(random, 100, 50_000))),
                8 => Fault::Blackout(Millis::new(draw_within(random, 100, 40_000))),
                10 => {
                    let writes = u32::try_from(draw_within(random, 0, 60)).unwrap_or(0);
                    Fault::PowerCut(writes, Millis::new(draw_within(random, 20, 15_000)))
                }
                // A key is revoked only if enough devices remain.
                _ if has_keys && devices > 4 => Fault::Revocation(device),
                _ => continue,
            };
            faults.push((time, fault));
        }
    }
    faults
}
