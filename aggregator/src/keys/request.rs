//! Requests to a key store, from the command line or through a server's control socket, and their answers.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::KeyError;
use super::table::{DEVICES_MAX, KeyStatus, KeyTable};
use fedspan_engine::DeviceId;

/// Range of devices, both ends included: `7`, or `1..64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(DeviceId, DeviceId)", into = "(DeviceId, DeviceId)")]
pub struct DeviceRange {
    first: DeviceId,
    last: DeviceId,
}

impl DeviceRange {
    /// Returns the number of devices in the range.
    fn len(self) -> usize {
        let steps = usize::try_from(self.last.0.saturating_sub(self.first.0)).unwrap_or(usize::MAX);
        steps.saturating_add(1)
    }
}

impl From<(DeviceId, DeviceId)> for DeviceRange {
    /// Creates a range from two ends in any order.
    fn from((first_end, second_end): (DeviceId, DeviceId)) -> Self {
        Self { first: first_end.min(second_end), last: first_end.max(second_end) }
    }
}

impl From<DeviceRange> for (DeviceId, DeviceId) {
    fn from(range: DeviceRange) -> Self {
        (range.first, range.last)
    }
}

impl FromStr for DeviceRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = || format!("{text:?} is neither a device number nor a range like 1..64");
        let number = |digits: &str| digits.parse::<DeviceId>().map_err(|_| allowed());
        let (first, last) = match text.split_once("..") {
            None => (number(text)?, number(text)?),
            Some((first, last)) => (number(first)?, number(last)?),
        };
        let range = Self { first, last };
        if first > last {
            return Err(format!("{text:?} ends before it begins"));
        }
        if range.len() > DEVICES_MAX {
            return Err(format!("{text:?} has more than {DEVICES_MAX} devices"));
        }
        Ok(range)
    }
}

impl fmt::Display for DeviceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}..{last}") }
    }
}

/// Formats devices as text; consecutive numbers are merged into ranges.
#[must_use]
pub fn ranges(devices: impl IntoIterator<Item = DeviceId>) -> String {
    let mut ranges: Vec<DeviceRange> = Vec::new();
    for device in devices {
        match ranges.last_mut() {
            Some(range) if range.last.0.checked_add(1) == Some(device.0) => range.last = device,
            _ => ranges.push(DeviceRange { first: device, last: device }),
        }
    }
    ranges.iter().map(DeviceRange::to_string).collect::<Vec<_>>().join(", ")
}

/// Selection of devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceSelector {
    /// Devices by number.
    These(Vec<DeviceRange>),
    /// All devices with an accepted key.
    All,
}

/// Request to a key store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Gives devices their first keys.
    Add {
        /// Devices by number.
        devices: Vec<DeviceRange>,
        /// Whether revoked devices get new keys too.
        again: bool,
    },
    /// Revokes the keys of devices.
    Revoke(Vec<DeviceRange>),
    /// Gives devices new keys.
    Rotate(DeviceSelector),
    /// Gives devices new keys, which the server sends to them.
    Send(DeviceSelector),
    /// Returns the newest keys of devices.
    Export(DeviceSelector),
    /// Returns the status of every device.
    List,
}

impl Request {
    /// Checks a request before a key store exists.
    ///
    /// # Errors
    /// [`KeyError`] for a request that every store would refuse.
    pub fn check(&self) -> Result<(), KeyError> {
        self.devices(&KeyTable::new()).map(|_| ())
    }

    /// Returns the devices that the request selects in a table.
    pub(super) fn devices(&self, table: &KeyTable) -> Result<Vec<DeviceId>, KeyError> {
        match self {
            Self::Add { devices, .. } | Self::Revoke(devices) => expand_ranges(devices),
            Self::Rotate(selector) | Self::Send(selector) | Self::Export(selector) => match selector {
                DeviceSelector::These(devices) => expand_ranges(devices),
                DeviceSelector::All if matches!(self, Self::Send(_)) => Ok(table.active()),
                DeviceSelector::All => Ok(table.accepted()),
            },
            Self::List => Ok(Vec::new()),
        }
    }
}

/// Returns the devices of several ranges.
fn expand_ranges(ranges: &[DeviceRange]) -> Result<Vec<DeviceId>, KeyError> {
    let devices = ranges.iter().fold(0, |sum: usize, range| sum.saturating_add(range.len()));
    if devices > DEVICES_MAX {
        return Err(KeyError::Full { devices, most: DEVICES_MAX });
    }
    let mut seen = BTreeSet::new();
    let mut selected = ranges.iter().flat_map(|range| (range.first.0..=range.last.0).map(DeviceId));
    match selected.find(|device| !seen.insert(*device)) {
        Some(device) => Err(KeyError::Twice { device }),
        None => Ok(seen.into_iter().collect()),
    }
}

/// Answer to a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Status of the devices that were changed.
    Changed(Vec<KeyStatus>),
    /// Status of every device.
    Listed(Vec<KeyStatus>),
    /// Keys, one line each.
    Exported(Zeroizing<String>),
    /// The running server has no key store.
    NoStore,
    /// Reason why the request failed.
    Error(String),
}

impl Answer {
    /// Serialises the answer as one line of JSON with a newline.
    #[must_use]
    pub fn to_line(&self) -> Zeroizing<String> {
        // JSON escapes the line feed of every exported key with an additional byte.
        let text_len = match self {
            Self::Exported(text) => text.len() + text.len() / 16,
            _ => 0,
        };
        let mut line = Zeroizing::new(Vec::with_capacity(text_len + 64));
        // Serialisation of strings and numbers cannot fail.
        let _ = serde_json::to_writer(&mut *line, self);
        line.push(b'\n');
        Zeroizing::new(String::from_utf8(std::mem::take(&mut *line)).unwrap_or_default())
    }
}
