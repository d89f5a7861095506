//! SysTick of a Cortex-M, used as a millisecond clock or as an instruction counter.

use core::sync::atomic::{AtomicU32, Ordering};

use cortex_m::peripheral::SYST;
use cortex_m::peripheral::syst::SystClkSource;
use fedspan_client::Millis;

/// Milliseconds between interrupts; so few interrupts that a waiting board hardly uses the host's processor.
pub const PERIOD: u32 = 10;
/// Mask of the counter, which has 24 bits.
pub const MASK: u32 = 0x00ff_ffff;

/// Number of interrupts since the start. Only the interrupt writes it, so no compare-and-swap is needed.
static PERIODS: AtomicU32 = AtomicU32::new(0);
/// The latest time that [`now`] returned, in milliseconds.
static LATEST: AtomicU32 = AtomicU32::new(0);

/// Starts the clock on a timer of `hertz` cycles per second.
pub fn start_clock(timer: &mut SYST, hertz: u32) {
    start_timer(timer, hertz / 1000 * PERIOD - 1);
    timer.enable_interrupt();
}

/// Starts the counter over all 24 bits, without interrupts.
pub fn start_counter(timer: &mut SYST) {
    start_timer(timer, MASK);
}

fn start_timer(timer: &mut SYST, reload: u32) {
    timer.set_clock_source(SystClkSource::Core);
    timer.set_reload(reload);
    timer.clear_current();
    timer.enable_counter();
}

/// Handles the SysTick interrupt, which advances the clock by one period.
pub fn on_interrupt() {
    PERIODS.store(PERIODS.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// Returns the milliseconds since the start, never decreasing. The value wraps after 49 days.
#[must_use]
pub fn now(hertz: u32) -> Millis {
    let (periods, current) = loop {
        let before = PERIODS.load(Ordering::Relaxed);
        let current = SYST::get_current();
        if PERIODS.load(Ordering::Relaxed) == before {
            break (before, current);
        }
    };
    let cycles_per_millisecond = hertz / 1000;
    let since = (cycles_per_millisecond * PERIOD - 1).saturating_sub(current) / cycles_per_millisecond;
    // If the timer has wrapped and its interrupt is pending, the computed time is too early; the latest time
    // is returned instead.
    let time = periods.wrapping_mul(PERIOD).wrapping_add(since).max(LATEST.load(Ordering::Relaxed));
    LATEST.store(time, Ordering::Relaxed);
    time.into()
}

/// Returns the current value of the counter, which counts up.
#[must_use]
pub fn ticks() -> u32 {
    MASK - SYST::get_current()
}
