//! What can be asked of a key store, by the command line directly or through a server's control socket.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::KeyError;
use super::table::{DEVICES_MAX, KeyStatus, KeyTable};
use fedspan_engine::DeviceId;

/// Devices from the first to the last, both included: `7`, or `1..64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(DeviceId, DeviceId)", into = "(DeviceId, DeviceId)")]
pub struct DeviceRange {
    first: DeviceId,
    last: DeviceId,
}

impl DeviceRange {
    fn len(self) -> usize {
        let steps = usize::try_from(self.last.saturating_sub(self.first)).unwrap_or(usize::MAX);
        steps.saturating_add(1)
    }
}

impl From<(DeviceId, DeviceId)> for DeviceRange {
    /// The other way round they are the same devices.
    fn from((one, other): (DeviceId, DeviceId)) -> Self {
        Self { first: one.min(other), last: one.max(other) }
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

/// Devices in words: neighbours become ranges.
#[must_use]
pub fn ranges(devices: impl IntoIterator<Item = DeviceId>) -> String {
    let mut ranges: Vec<DeviceRange> = Vec::new();
    for device in devices {
        match ranges.last_mut() {
            Some(range) if range.last.checked_add(1) == Some(device) => range.last = device,
            _ => ranges.push(DeviceRange { first: device, last: device }),
        }
    }
    ranges.iter().map(DeviceRange::to_string).collect::<Vec<_>>().join(", ")
}

/// Devices by number, or all that have a key that is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceSelector {
    /// These.
    These(Vec<DeviceRange>),
    /// Every one that is not revoked.
    All,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Give devices their first keys.
    Add {
        /// Which.
        devices: Vec<DeviceRange>,
        /// Also those that were revoked.
        again: bool,
    },
    /// Withdraw devices' keys.
    Revoke(Vec<DeviceRange>),
    /// Give devices new keys.
    Rotate(DeviceSelector),
    /// Tell the newest keys of devices.
    Export(DeviceSelector),
    /// Tell where every device stands.
    List,
}

impl Request {
    /// Whether it makes sense to somebody who has no keys yet.
    ///
    /// # Errors
    /// [`KeyError`] for what no store would do.
    pub fn check(&self) -> Result<(), KeyError> {
        self.devices(&KeyTable::new()).map(|_| ())
    }

    /// The devices that it is about.
    pub(super) fn devices(&self, table: &KeyTable) -> Result<Vec<DeviceId>, KeyError> {
        match self {
            Self::Add { devices, .. } | Self::Revoke(devices) => expand(devices),
            Self::Rotate(DeviceSelector::These(devices)) | Self::Export(DeviceSelector::These(devices)) => {
                expand(devices)
            }
            Self::Rotate(DeviceSelector::All) | Self::Export(DeviceSelector::All) => Ok(table.accepted()),
            Self::List => Ok(Vec::new()),
        }
    }
}

fn expand(ranges: &[DeviceRange]) -> Result<Vec<DeviceId>, KeyError> {
    let devices = ranges.iter().fold(0, |sum: usize, range| sum.saturating_add(range.len()));
    if devices > DEVICES_MAX {
        return Err(KeyError::Full { devices, most: DEVICES_MAX });
    }
    let mut seen = BTreeSet::new();
    let mut all = ranges.iter().flat_map(|range| range.first..=range.last);
    match all.find(|device| !seen.insert(*device)) {
        Some(device) => Err(KeyError::Twice { device }),
        None => Ok(seen.into_iter().collect()),
    }
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Where the devices stand that were changed.
    Changed(Vec<KeyStatus>),
    /// Where every device stands.
    Listed(Vec<KeyStatus>),
    /// Keys, a line each.
    Exported(Zeroizing<String>),
    /// The server that runs has no key store.
    NoStore,
    /// Why nothing came of it.
    Error(String),
}

impl Answer {
    /// One line of JSON, with its end.
    #[must_use]
    pub fn to_line(&self) -> Zeroizing<String> {
        // Secrets are as long as in the answer, and every line of theirs gets a backslash.
        let room = match self {
            Self::Exported(text) => text.len() + text.len() / 16,
            _ => 0,
        };
        let mut line = Zeroizing::new(Vec::with_capacity(room + 64));
        // Strings and numbers always serialise.
        let _ = serde_json::to_writer(&mut *line, self);
        line.push(b'\n');
        Zeroizing::new(String::from_utf8(std::mem::take(&mut *line)).unwrap_or_default())
    }
}
