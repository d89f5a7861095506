//! Report of a device about itself, for the operator of a fleet.

use heapless::Vec;
use serde::{Deserialize, Serialize};

use crate::limits::REPORT_COUNTERS_MAX;
use crate::{Error, codec};

/// Report of a device, which it sends once on each connection, and again after every few rounds. Its body contains
/// [`ReportCounters`], so that a device does not copy them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Firmware of the device.
    pub firmware: Firmware,
    /// Reason of the last reset.
    pub reset: ResetReason,
    /// Time since the last reset in seconds, by the device's clock.
    pub uptime: u32,
}

/// Counters of a device since the last reset, in the order of [`REPORT_COUNTERS`]. Newer devices may send more, which have no name here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportCounters(pub Vec<u32, REPORT_COUNTERS_MAX>);

impl ReportCounters {
    /// Reads the body of a report.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it does not begin with at most [`REPORT_COUNTERS_MAX`] counters, [`Error::TrailingBytes`] if bytes follow.
    pub fn read(body: &[u8]) -> Result<Self, Error> {
        match codec::read(body)? {
            (counters, []) => Ok(Self(counters)),
            (_, rest) => Err(Error::TrailingBytes { count: rest.len() }),
        }
    }

    /// Returns the length of the body with these counters, of which there are fewer than 128.
    #[must_use]
    pub fn length_of(counters: &[u32]) -> usize {
        1 + counters.iter().map(|count| 1 + count.checked_ilog2().unwrap_or(0) as usize / 7).sum::<usize>()
    }

    /// Writes the body with these counters, whose length is [`Self::length_of`].
    pub fn write(counters: &[u32], body: &mut [u8]) {
        let mut targets = body.iter_mut();
        #[allow(clippy::cast_possible_truncation, reason = "fewer than 128")]
        for number in [counters.len() as u32].iter().chain(counters) {
            let mut left = *number;
            // Seven bits a byte, the lowest first; the highest bit says that another byte follows.
            for target in targets.by_ref() {
                let low = (left & 0x7F) as u8;
                left >>= 7;
                *target = if left == 0 { low } else { low | 0x80 };
                if left == 0 {
                    break;
                }
            }
        }
    }
}

/// Firmware of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firmware {
    /// Version: major, minor, patch.
    pub version: [u16; 3],
    /// Identifier of the build, such as the first four bytes of a commit's hash; 0 if unknown.
    pub build: u32,
}

impl Firmware {
    /// Reads a version such as `1.2.3` or `1.2.3-rc.1`, whose end from `-` or `+` on is ignored, and the identifier of a build in
    /// hexadecimal.
    ///
    /// Returns `None` if the version does not begin with three numbers below 65,536, or if the identifier is no number below 2^32.
    #[must_use]
    pub const fn parse(version: &str, build: &str) -> Option<Self> {
        let Some((major, [b'.', rest @ ..])) = read_number(version.as_bytes()) else { return None };
        let Some((minor, [b'.', rest @ ..])) = read_number(rest) else { return None };
        let Some((patch, [] | [b'-' | b'+', ..])) = read_number(rest) else { return None };
        match u32::from_str_radix(build, 16) {
            Ok(build) => Some(Self { version: [major, minor, patch], build }),
            Err(_) => None,
        }
    }
}

/// Reads the decimal number at the start of `text`, and returns it with the rest; `None` without one below 65,536.
const fn read_number(mut text: &[u8]) -> Option<(u16, &[u8])> {
    let [b'0'..=b'9', ..] = text else { return None };
    let mut number = 0u32;
    while let [digit @ b'0'..=b'9', rest @ ..] = text {
        number = number.saturating_mul(10).saturating_add((*digit - b'0') as u32);
        text = rest;
    }
    #[allow(clippy::cast_possible_truncation, reason = "compared before")]
    if number <= u16::MAX as u32 { Some((number as u16, text)) } else { None }
}

/// Reason of a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
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
