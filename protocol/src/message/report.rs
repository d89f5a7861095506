//! Report of a device about itself, for the operator of a fleet.

use heapless::Vec;
use serde::{Deserialize, Serialize};

use crate::limits::REPORT_COUNTERS_MAX;

/// Report of a device, which it sends once on each connection, and again after every few rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Firmware of the device.
    pub firmware: Firmware,
    /// Reason of the last reset.
    pub reset: ResetReason,
    /// Time since the last reset in seconds, by the device's clock.
    pub uptime: u32,
    /// Counters since the last reset, in the order of [`REPORT_COUNTERS`]. Newer devices may send more, which have no name here.
    pub counters: Vec<u32, REPORT_COUNTERS_MAX>,
}

/// Firmware of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firmware {
    /// Version: major, minor, patch.
    pub version: [u16; 3],
    /// Identifier of the build, such as the first four bytes of a commit's hash; 0 if unknown.
    pub build: u32,
}

/// Reason of a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ResetReason {
    /// Unknown.
    #[default]
    Unknown,
    /// Power was switched on.
    PowerOn,
    /// Reset pin.
    Pin,
    /// Request of the firmware, such as after an update.
    Software,
    /// Watchdog.
    Watchdog,
    /// Supply voltage too low.
    Brownout,
    /// Fault or panic of the firmware.
    Fault,
    /// Wake-up from a sleep without memory.
    Wake,
}

/// Names of the counters of a report, in their order.
pub const REPORT_COUNTERS: [&str; 16] = [
    "counted",
    "late",
    "rejected",
    "declined",
    "closed",
    "unasked",
    "malformed",
    "unexpected",
    "asked_again",
    "unsent",
    "rehandshakes",
    "unopened",
    "unsealed",
    "beacons",
    "clock_jumps",
    "storage",
];
