//! Reason of a chip's last reset, from the registers that the board crate has read.
//!
//! | reason | RP2040 | nRF52840 | STM32F411 | ESP32-C3 |
//! | --- | --- | --- | --- | --- |
//! | `PowerOn` | power-on, brown-out | power-on, brown-out | power-on | power-on, reset pin, brown-out |
//! | `Pin` | RUN | reset pin | NRST | |
//! | `Software` | watchdog, by program | request | request | request |
//! | `Watchdog` | time is over | time is over | independent, window | main, RTC, super |
//! | `Brownout` | | | brown-out | brown-out, power glitch |
//! | `Fault` | after a panic | after a panic, lock-up | after a panic | after a panic, clock glitch, fuses |
//! | `Wake` | | from System OFF | | from deep sleep |
//!
//! All others are `Unknown`: a debugger's reset where the chip has a flag for it, and the STM32F411's reset at a forbidden entry to
//! a sleep. After a panic the board requests a reset, and [`PanicMark`] says so. A debugger's reset is usually a request, too.
//! The RP2040 does not note requests of its core: a debugger's reset has the reason of the reset before.

use core::sync::atomic::{AtomicU32, Ordering};

pub use fedspan_client::session::ResetReason;

/// Value of a set mark, which memory is unlikely to hold after power-on.
const MARK: u32 = 0x5fed_9a21;

/// Mark that the program has panicked, in memory that start-up code does not clear (section `.uninit`).
#[derive(Debug, Default)]
pub struct PanicMark(AtomicU32);

impl PanicMark {
    /// Creates a mark that is not set.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sets the mark; for the panic handler.
    pub fn set(&self) {
        self.0.store(MARK, Ordering::Relaxed);
    }

    /// Returns [`ResetReason::Fault`] if the mark is set, and `reason` otherwise. Clears the mark.
    #[must_use]
    pub fn explain(&self, reason: ResetReason) -> ResetReason {
        let is_set = self.0.load(Ordering::Relaxed) == MARK;
        self.0.store(0, Ordering::Relaxed);
        if is_set { ResetReason::Fault } else { reason }
    }
}

/// Returns the reason of the first pair of bits and reason of which `register` has a bit.
fn first(register: u32, reasons: &[(u32, ResetReason)], otherwise: ResetReason) -> ResetReason {
    reasons.iter().find(|(bits, _)| register & bits != 0).map_or(otherwise, |&(_, reason)| reason)
}

/// Reason for an RP2040 with these registers `REASON` of the watchdog and `CHIP_RESET`. The
/// watchdog's bits are zero after a reset of the whole chip, whose bits stay until the next one.
#[must_use]
pub fn rp2040(watchdog: u32, chip: u32) -> ResetReason {
    const TIMER: u32 = 1 << 0;
    const FORCE: u32 = 1 << 1;
    const POWER_ON: u32 = 1 << 8;
    const RUN: u32 = 1 << 16;
    const DEBUGGER: u32 = 1 << 20;
    let of_chip =
        [(DEBUGGER, ResetReason::Unknown), (RUN, ResetReason::Pin), (POWER_ON, ResetReason::PowerOn)];
    let of_chip = first(chip, &of_chip, ResetReason::Unknown);
    first(watchdog, &[(FORCE, ResetReason::Software), (TIMER, ResetReason::Watchdog)], of_chip)
}

/// Reason for an nRF52840 with this register `RESETREAS`, which is zero after power-on
/// and after a brown-out. Bits stay until the program clears them; if there are several, the first in the list of this function counts.
#[must_use]
pub fn nrf52840(reasons: u32) -> ResetReason {
    const PIN: u32 = 1 << 0;
    const WATCHDOG: u32 = 1 << 1;
    const REQUEST: u32 = 1 << 2;
    const LOCKUP: u32 = 1 << 3;
    /// Pins, comparator, NFC field, USB supply.
    const WAKE: u32 = 1 << 16 | 1 << 17 | 1 << 19 | 1 << 20;
    let order = [
        (LOCKUP, ResetReason::Fault),
        (WATCHDOG, ResetReason::Watchdog),
        (REQUEST, ResetReason::Software),
        (PIN, ResetReason::Pin),
        (WAKE, ResetReason::Wake),
        // The debugger, and bits that the chip does not have.
        (u32::MAX, ResetReason::Unknown),
    ];
    first(reasons, &order, ResetReason::PowerOn)
}

/// Reason for an STM32F411 with this register `RCC_CSR` (reference manual RM0383). Every reset sets the
/// bit of the pin, which all others drive, and power-on sets that of the brown-out, too.
#[must_use]
pub fn stm32f411(csr: u32) -> ResetReason {
    const BROWNOUT: u32 = 1 << 25;
    const PIN: u32 = 1 << 26;
    const POWER_ON: u32 = 1 << 27;
    const REQUEST: u32 = 1 << 28;
    const WATCHDOGS: u32 = 1 << 29 | 1 << 30;
    const LOW_POWER: u32 = 1 << 31;
    let order = [
        (POWER_ON, ResetReason::PowerOn),
        (WATCHDOGS, ResetReason::Watchdog),
        (REQUEST, ResetReason::Software),
        (LOW_POWER, ResetReason::Unknown),
        (BROWNOUT, ResetReason::Brownout),
        (PIN, ResetReason::Pin),
    ];
    first(csr, &order, ResetReason::Unknown)
}

/// Reason for an ESP32-C3 with this code of its ROM's `rtc_get_reset_reason`. The code of power-on
/// is also that of the reset pin.
#[must_use]
pub fn esp32c3(code: u32) -> ResetReason {
    match code {
        0x01 => ResetReason::PowerOn,
        0x03 | 0x0C => ResetReason::Software,
        0x05 => ResetReason::Wake,
        0x07..=0x09 | 0x0B | 0x0D | 0x10..=0x12 => ResetReason::Watchdog,
        0x0F | 0x17 => ResetReason::Brownout,
        0x13 | 0x14 => ResetReason::Fault,
        // 0x15 and 0x16: the host, over USB.
        _ => ResetReason::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mark is consumed, and memory with any other content is no mark.
    #[test]
    fn panic_is_reported_once() {
        let mark = PanicMark::new();
        assert_eq!(mark.explain(ResetReason::Software), ResetReason::Software);
        mark.set();
        assert_eq!(mark.explain(ResetReason::Software), ResetReason::Fault);
        assert_eq!(mark.explain(ResetReason::Pin), ResetReason::Pin);
        let arbitrary = PanicMark(AtomicU32::new(!0));
        assert_eq!(arbitrary.explain(ResetReason::PowerOn), ResetReason::PowerOn);
    }

    #[test]
    fn rp2040_reasons_are_read() {
        for (watchdog, chip, reason) in [
            (0, 0, ResetReason::Unknown),
            (0, 0x0000_0100, ResetReason::PowerOn),
            (0, 0x0001_0000, ResetReason::Pin),
            (0, 0x0010_0000, ResetReason::Unknown),
            (1, 0x0000_0100, ResetReason::Watchdog),
            (2, 0x0001_0000, ResetReason::Software),
        ] {
            assert_eq!(rp2040(watchdog, chip), reason, "{watchdog:#x} {chip:#x}");
        }
    }

    #[test]
    fn nrf52840_reasons_are_read() {
        for (reasons, reason) in [
            (0, ResetReason::PowerOn),
            (0x1, ResetReason::Pin),
            (0x2, ResetReason::Watchdog),
            (0x4, ResetReason::Software),
            (0x8, ResetReason::Fault),
            (0x1_0000, ResetReason::Wake),
            (0x2_0000, ResetReason::Wake),
            (0x4_0000, ResetReason::Unknown),
            (0x8_0000, ResetReason::Wake),
            (0x10_0000, ResetReason::Wake),
            (0x8000_0000, ResetReason::Unknown),
            (0x5, ResetReason::Software),
            (0xf, ResetReason::Fault),
        ] {
            assert_eq!(nrf52840(reasons), reason, "{reasons:#x}");
        }
    }

    #[test]
    fn stm32f411_reasons_are_read() {
        for (csr, reason) in [
            (0, ResetReason::Unknown),
            (0x0E00_0000, ResetReason::PowerOn),
            (0x0600_0000, ResetReason::Brownout),
            (0x0400_0000, ResetReason::Pin),
            (0x1400_0000, ResetReason::Software),
            (0x2400_0000, ResetReason::Watchdog),
            (0x4400_0000, ResetReason::Watchdog),
            (0x8400_0000, ResetReason::Unknown),
            // The internal oscillator's bits, which share the register.
            (0x0000_0003, ResetReason::Unknown),
        ] {
            assert_eq!(stm32f411(csr), reason, "{csr:#x}");
        }
    }

    #[test]
    fn esp32c3_reasons_are_read() {
        for (codes, reason) in [
            (&[0x01][..], ResetReason::PowerOn),
            (&[0x03, 0x0C], ResetReason::Software),
            (&[0x05], ResetReason::Wake),
            (&[0x07, 0x08, 0x09, 0x0B, 0x0D, 0x10, 0x11, 0x12], ResetReason::Watchdog),
            (&[0x0F, 0x17], ResetReason::Brownout),
            (&[0x13, 0x14], ResetReason::Fault),
            (&[0, 0x02, 0x04, 0x06, 0x0A, 0x0E, 0x15, 0x16, 0x18, u32::MAX], ResetReason::Unknown),
        ] {
            assert!(codes.iter().all(|&code| esp32c3(code) == reason), "{reason:?}");
        }
    }
}
