//! What befalls a world, and when.

use rand_chacha::ChaCha8Rng;
use rand_core::Rng;

use super::Millis;
use super::plan::{Kind, percent, within};

/// One disaster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The server's power goes, for so long; what it had not synced is lost, or not, or torn.
    ServerCrash(Millis),
    /// The same in the middle of what it writes: at the write, sync, or change of the round's key after so many.
    PowerCut(u32, Millis),
    /// Its disk is full after so many more writes, for so long.
    DiskFull(u32, Millis),
    /// Its clock jumps.
    ServerJump(Millis),
    /// A device's power goes, for so long.
    DeviceCrash(usize, Millis),
    /// The same in the middle of a write to its flash, after so many bytes.
    FlashCut(usize, usize),
    /// A device's clock jumps.
    DeviceJump(usize, Millis),
    /// A link ends.
    LinkReset(usize),
    /// Nothing passes between a device and the server for so long.
    Partition(usize, Millis),
    /// Nothing passes between anybody and the server.
    Blackout(Millis),
    /// A device's key counts no more.
    Revocation(usize),
}

/// A day.
pub const DAY: Millis = 24 * 3_600_000;

/// How long disasters go on.
pub fn horizon(random: &mut ChaCha8Rng, kind: Kind) -> Millis {
    match kind {
        Kind::Hectic => within(random, 10_000, 90_000),
        Kind::Day { .. } => DAY,
    }
}

/// A bad day: every device loses its link ten times and its power twice, nothing passes four times, and the disk is full twice. The
/// server loses its power 24 times in the first six hours, and then never: what it keeps that it should not, stays.
pub fn bad_day(random: &mut ChaCha8Rng, devices: usize) -> Vec<(Millis, Fault)> {
    let mut all = Vec::new();
    let mut at = |random: &mut ChaCha8Rng, fault| all.push((within(random, 0, DAY), fault));
    for device in 0..devices {
        for _ in 0..10 {
            at(random, Fault::LinkReset(device));
        }
        let off = within(random, 1_000, 1_800_000);
        at(random, Fault::DeviceCrash(device, off));
        let bytes = usize::try_from(within(random, 1, 700)).unwrap_or(1);
        at(random, Fault::FlashCut(device, bytes));
    }
    for number in 0..24u32 {
        let off = within(random, 20, 60_000);
        let fault = match number % 2 {
            0 => Fault::ServerCrash(off),
            _ => Fault::PowerCut(number, off),
        };
        all.push((within(random, 0, DAY / 4), fault));
    }
    for _ in 0..4 {
        let time = within(random, 1_000, 600_000);
        all.push((within(random, 0, DAY), Fault::Blackout(time)));
    }
    for _ in 0..2 {
        let time = within(random, 1_000, 120_000);
        all.push((within(random, 0, DAY), Fault::DiskFull(0, time)));
    }
    all
}

/// What befalls a world of so many devices until `horizon`, in no order. Some worlds know no disaster of some kinds.
pub fn draw(random: &mut ChaCha8Rng, devices: usize, horizon: Millis, keys: bool) -> Vec<(Millis, Fault)> {
    let mut all = Vec::new();
    for kind in 0..11u32 {
        let most = match kind {
            0 | 3 | 4 | 6 | 10 => 6,
            9 => 2,
            _ => 3,
        };
        let count = if percent(random, 35) { 0 } else { within(random, 0, most + 1) };
        for _ in 0..count {
            let at = within(random, 0, horizon);
            let device = usize::try_from(random.next_u32()).unwrap_or_default() % devices.max(1);
            let fault = match kind {
                0 => Fault::ServerCrash(within(random, 20, 15_000)),
                1 => {
                    let writes = u32::try_from(within(random, 0, 60)).unwrap_or(0);
                    Fault::DiskFull(writes, within(random, 100, 8_000))
                }
                2 => Fault::ServerJump(within(random, 1, 100_000)),
                3 => Fault::DeviceCrash(device, within(random, 20, 20_000)),
                4 => Fault::FlashCut(device, usize::try_from(within(random, 1, 700)).unwrap_or(1)),
                5 => Fault::DeviceJump(device, within(random, 1, 100_000)),
                6 => Fault::LinkReset(device),
                7 => Fault::Partition(device, within(random, 100, 50_000)),
                8 => Fault::Blackout(within(random, 100, 40_000)),
                10 => {
                    let writes = u32::try_from(within(random, 0, 60)).unwrap_or(0);
                    Fault::PowerCut(writes, within(random, 20, 15_000))
                }
                // Enough are left to go on.
                _ if keys && devices > 4 => Fault::Revocation(device),
                _ => continue,
            };
            all.push((at, fault));
        }
    }
    all
}
