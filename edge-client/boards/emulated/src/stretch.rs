//! Longest run of instructions between two pauses of a computation ([`fedspan_client::pace`]): the time for which a firmware
//! cannot feed its watchdog.

use core::cell::Cell;

use fedspan_client::pace::Pacer;

use crate::board::Meter;

/// Multiply-accumulates between two pauses, for all cores.
const QUOTA: u32 = 1_000;

/// Runs `work` with a pacer, and returns the largest number of instructions without a pause in those parts of it that it
/// passes to its second argument.
pub fn longest<M: Meter, R>(
    meter: &M,
    work: impl FnOnce(&Pacer<'_>, &dyn Fn(&mut dyn FnMut())) -> R,
) -> (R, u64) {
    let (last, longest) = (Cell::new(None), Cell::new(0));
    let pause = || {
        if let Some(last) = last.get() {
            longest.set(longest.get().max(meter.ticks().wrapping_sub(last) & M::MASK));
        }
        last.set(last.get().map(|_| meter.ticks()));
    };
    let measured = |part: &mut dyn FnMut()| {
        last.set(Some(meter.ticks()));
        part();
        pause();
        last.set(None);
    };
    let result = work(&Pacer::new(QUOTA, &pause), &measured);
    let (instructions, per) = M::INSTRUCTIONS_PER_TICK;
    (result, u64::from(longest.get()) * instructions / per)
}
