//! Energy that a device spends: a stated model with figures of data sheets.
//!
//! ```text
//! energy = volts x (active x cycles / clock + transmit x seconds of sending
//!                   + receive x seconds of receiving + sleep x the other seconds)
//! ```
//!
//! A device does one of these at a time. Not in the model: sensors and features, writes to flash, receive windows in which nothing
//! arrives, connection events of BLE without data, the start of oscillators and radios, losses of a board's regulator, and the
//! self-discharge of batteries. Only a measurement of the current on a board shows what these add.

mod cycles;

pub use cycles::{Core, Work, exact_fedrep, is_exact};

use serde::{Deserialize, Serialize};

use crate::radio::{Family, Radio};

/// Microcontroller with its radio: clock, supply and currents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// Name in scenarios.
    pub name: &'static str,
    /// Radio of the chip.
    pub family: Family,
    /// Core whose cycles count.
    pub core: Core,
    /// Clock of the core in MHz.
    pub clock_mhz: f64,
    /// Supply in volts.
    pub volts: f64,
    /// Current while the core computes, in mA.
    pub active_ma: f64,
    /// Current while the radio sends, in mA.
    pub transmit_ma: f64,
    /// Current while the radio receives, in mA.
    pub receive_ma: f64,
    /// Current during sleep with a running clock and memory retained, in uA.
    pub sleep_ua: f64,
}

/// All chips, with currents of data sheets at 3 V.
pub const CHIPS: [Chip; 2] = [
    // Nordic Semiconductor, nRF52840 Product Specification, "Current consumption": ICPU0 (CoreMark from flash, cache on), IRADIO_TX1
    // (0 dBm, 1 Mbit/s, DC/DC), IRADIO_RX0 (1 Mbit/s), ION_RAMON_RTC (System ON, 256 kB of RAM, RTC from the crystal).
    Chip {
        name: "nrf52840",
        family: Family::Ble,
        core: Core::CortexM4F,
        clock_mhz: 64.0,
        volts: 3.0,
        active_ma: 3.3,
        transmit_ma: 6.40,
        receive_ma: 6.26,
        sleep_ua: 3.16,
    },
    // STMicroelectronics, STM32WLE5xx data sheet DS13105 Rev 12, page 1, "Ultra-low-power platform": less than 72 uA/MHz (CoreMark),
    // taken for 48 MHz; TX 15 mA at 10 dBm (LoRa, 125 kHz), RX 4.82 mA, Stop 2 with RTC 1.07 uA. Its Cortex-M4 has no unit for
    // floating point; the cycles measured for a Cortex-M3 are the nearest.
    //
    // ICPU0, ION_RAMON_RTC and the 15 mA were read in quotations of these documents only.
    Chip {
        name: "stm32wle5",
        family: Family::Lora,
        core: Core::CortexM3,
        clock_mhz: 48.0,
        volts: 3.0,
        active_ma: 3.456,
        transmit_ma: 15.0,
        receive_ma: 4.82,
        sleep_ua: 1.07,
    },
];

/// Work of a device: what it computes, sends and receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Rounds that the device received.
    pub rounds: u32,
    /// Rounds of tasks whose cycles are not known, which are not in `cycles`.
    pub uncounted: u32,
    /// Cycles of the core.
    pub cycles: f64,
    /// Seconds on the air of packets that the device sent, repeated ones included.
    pub sending: f64,
    /// Seconds on the air of packets that were sent to the device, repeated ones included.
    pub receiving: f64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.rounds = self.rounds.saturating_add(other.rounds);
        self.uncounted = self.uncounted.saturating_add(other.uncounted);
        self.cycles += other.cycles;
        self.sending += other.sending;
        self.receiving += other.receiving;
    }
}

/// Energy by its use, in joules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Energy {
    /// Energy of computations.
    pub computation: f64,
    /// Energy of sending.
    pub sending: f64,
    /// Energy of receiving.
    pub receiving: f64,
    /// Energy of sleep.
    pub sleep: f64,
}

impl Energy {
    /// Sum of all uses, in joules.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.computation + self.sending + self.receiving + self.sleep
    }
}

/// Error of a period that is shorter than the work in it.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "found a period of {period} s, allowed: from {busy} s, in which the device computes, sends and receives"
)]
pub struct PeriodTooShort {
    /// Seconds of the period.
    pub period: f64,
    /// Seconds of the work.
    pub busy: f64,
}

impl Chip {
    /// Returns the chip whose radio this is.
    #[must_use]
    pub fn with(radio: &Radio) -> Self {
        let [ble, lora] = CHIPS;
        match radio.family() {
            Family::Ble => ble,
            Family::Lora => lora,
        }
    }

    /// Seconds in which the device does not sleep.
    #[must_use]
    pub fn busy(&self, usage: &Usage) -> f64 {
        usage.cycles / (1e6 * self.clock_mhz) + usage.sending + usage.receiving
    }

    /// Energy of work and of some seconds of sleep.
    #[must_use]
    pub fn energy(&self, usage: &Usage, sleep: f64) -> Energy {
        let joules = |ma: f64, seconds: f64| 1e-3 * ma * self.volts * seconds;
        Energy {
            computation: joules(self.active_ma, usage.cycles / (1e6 * self.clock_mhz)),
            sending: joules(self.transmit_ma, usage.sending),
            receiving: joules(self.receive_ma, usage.receiving),
            sleep: joules(1e-3 * self.sleep_ua, sleep),
        }
    }

    /// Energy of a period in seconds with this work in it, and sleep in the rest.
    ///
    /// # Errors
    /// [`PeriodTooShort`] if the work takes longer than the period.
    pub fn in_period(&self, usage: &Usage, period: f64) -> Result<Energy, PeriodTooShort> {
        let busy = self.busy(usage);
        if period.is_nan() || period < busy {
            return Err(PeriodTooShort { period, busy });
        }
        Ok(self.energy(usage, period - busy))
    }

    /// Months that a battery of `mah` mAh at the chip's supply lasts at a mean power in watts.
    #[must_use]
    pub fn battery_months(&self, mah: f64, watts: f64) -> f64 {
        const MONTH: f64 = 365.25 / 12.0 * 86_400.0;
        3.6 * mah * self.volts / watts / MONTH
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const CHIP: Chip = CHIPS[0];

    #[test]
    fn energy_of_a_round_equals_a_computation_by_hand() {
        // 64,000 cycles at 64 MHz are 1 ms; 3.3 mA at 3 V for 1 ms are 9.9 uJ, 6.4 mA for 10 ms 192 uJ, 6.26 mA for 20 ms 375.6 uJ, and
        // 3.16 uA for 9.969 s 94.50612 uJ.
        let usage = Usage { cycles: 64_000.0, sending: 0.01, receiving: 0.02, ..Usage::default() };
        let energy = CHIP.in_period(&usage, 10.0).unwrap();
        let found = [energy.computation, energy.sending, energy.receiving, energy.sleep];
        for (found, expected) in found.into_iter().zip([9.9e-6, 192e-6, 375.6e-6, 94.506_12e-6]) {
            assert!((found - expected).abs() < 1e-12, "{found}, {expected}");
        }
        assert!((energy.total() - 672.006_12e-6).abs() < 1e-12);
        // 225 mAh at 3 V are 2430 J: at 1 mW 28.125 days.
        let months = CHIP.battery_months(225.0, 1e-3);
        assert!((months * 365.25 / 12.0 - 28.125).abs() < 1e-9, "{months}");
    }

    #[test]
    fn longer_periods_take_more_sleep_and_less_power() {
        let usage = Usage { cycles: 1e6, sending: 0.1, receiving: 0.2, ..Usage::default() };
        let energies =
            [1.0, 60.0, 3_600.0, 86_400.0].map(|period| (period, CHIP.in_period(&usage, period).unwrap()));
        for [(shorter, before), (longer, after)] in energies.array_windows() {
            assert!(after.sleep > before.sleep && after.computation == before.computation);
            assert!(after.total() / longer < before.total() / shorter);
        }
    }

    #[test]
    fn period_shorter_than_its_work_is_refused() {
        let usage = Usage { sending: 2.0, receiving: 1.0, ..Usage::default() };
        assert_eq!(CHIP.in_period(&usage, 2.5), Err(PeriodTooShort { period: 2.5, busy: 3.0 }));
        assert_eq!(CHIP.in_period(&usage, 3.0).unwrap().sleep, 0.0);
        assert!(CHIP.in_period(&usage, f64::NAN).is_err());
    }

    #[test]
    fn chip_of_a_radio_has_that_radio() {
        for radio in crate::radio::RADIOS {
            assert_eq!(Chip::with(&radio).family, radio.family(), "{}", radio.name);
        }
    }
}
