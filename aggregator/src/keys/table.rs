//! Which keys each device has had, and which are accepted: the rules of a key's life, without files or sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fedspan_protocol::secure::{KEY, Key};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::active_keys::AcceptedKey;
use super::{Entropy, KeyError};
use fedspan_engine::DeviceId;

/// Devices that may have keys: bounds the file and what reads it.
pub const DEVICES_MAX: usize = 1 << 20;

/// Where a device stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// One key is accepted.
    Active,
    /// The new key is accepted, and the old one until a round closes.
    Rotating,
    /// No key is accepted. The row stays, so that the number is not given away again by mistake.
    Revoked,
}

/// Why there is no accepted key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LookupError {
    /// The device has never had a key.
    Unknown,
    /// The device was revoked.
    Revoked,
    /// The device's key is of another epoch.
    Epoch {
        /// The one that is accepted.
        current: u16,
    },
}

/// One device, without its secrets. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatus {
    /// The device.
    pub device: DeviceId,
    /// Epoch of its newest key.
    pub epoch: u16,
    /// Where it stands.
    pub state: KeyState,
    /// When it was added first.
    pub created: u64,
    /// When it was last given a new key.
    pub rotated: Option<u64>,
    /// When its last key was revoked, if that was its end.
    pub revoked: Option<u64>,
}

/// One device.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Of the newest key, whether or not it is still accepted. Never goes back, so that no epoch repeats.
    pub(super) epoch: u16,
    pub(super) created: u64,
    pub(super) rotated: Option<u64>,
    pub(super) revoked: Option<u64>,
    /// `None` once revoked: what is not needed is not kept.
    pub(super) current: Option<Arc<AcceptedKey>>,
    /// The key before, while its grace lasts.
    pub(super) previous: Option<Arc<AcceptedKey>>,
}

impl Row {
    fn state(&self) -> KeyState {
        match (&self.current, &self.previous) {
            (None, _) => KeyState::Revoked,
            (Some(_), None) => KeyState::Active,
            (Some(_), Some(_)) => KeyState::Rotating,
        }
    }

    fn listed(&self, device: DeviceId) -> KeyStatus {
        let &Self { epoch, created, rotated, revoked, .. } = self;
        KeyStatus { device, epoch, state: self.state(), created, rotated, revoked }
    }
}

/// The keys of a fleet.
///
/// Every operation is for all the devices it names, or for none. Time comes in as seconds since 1970.
///
/// # Grace of a rotation
/// After [`rotate`](Self::rotate) both keys are accepted until the first [`round_closed`](Self::round_closed) that
/// follows, whether or not a round was open at the time; from then on the old one never again. So at most two keys
/// of a device are accepted at any time, and a device that was rotated cannot be again before a round has closed.
///
/// A clone shares the keys themselves: what is revoked in one is not accepted by connections of the other.
#[derive(Clone, Debug, Default)]
pub struct KeyTable {
    pub(super) rows: BTreeMap<DeviceId, Row>,
}

impl KeyTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Devices that have or had keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no device has ever had a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Gives each device its first key, epoch 0; with `again`, also gives devices that were revoked a key of the
    /// epoch after their last.
    ///
    /// # Errors
    /// [`KeyError::Exists`], [`Revoked`](KeyError::Revoked) without `again`, [`UsedUp`](KeyError::UsedUp),
    /// [`Full`](KeyError::Full), and those of every operation: [`Nobody`](KeyError::NoDevices),
    /// [`Twice`](KeyError::Twice), [`NoEntropy`](KeyError::NoEntropy).
    pub fn add(
        &mut self,
        devices: &[DeviceId],
        again: bool,
        now: u64,
        entropy: &mut dyn Entropy,
    ) -> Result<(), KeyError> {
        let devices = distinct(devices)?;
        let new = devices.iter().filter(|device| !self.rows.contains_key(device)).count();
        self.room_for(new)?;
        let mut keys = Vec::new();
        for &device in &devices {
            let epoch = match self.rows.get(&device) {
                None => 0,
                Some(row) if row.current.is_some() => {
                    return Err(KeyError::Exists { device, epoch: row.epoch });
                }
                Some(row) if !again => return Err(KeyError::Revoked { device, epoch: row.epoch }),
                Some(row) => next_epoch(device, row)?,
            };
            keys.push((device, fresh(epoch, entropy)?));
        }
        for (device, key) in keys {
            self.put(device, key, now);
        }
        Ok(())
    }

    /// Takes over a key that was made elsewhere, of a device that has none yet.
    ///
    /// # Errors
    /// [`KeyError::Exists`] or [`Revoked`](KeyError::Revoked) if the device has or had one, [`Full`](KeyError::Full).
    pub fn insert(&mut self, device: DeviceId, key: Key, now: u64) -> Result<(), KeyError> {
        self.room_for(1)?;
        match self.rows.get(&device) {
            None => self.put(device, key, now),
            Some(Row { epoch, current: None, .. }) => {
                return Err(KeyError::Revoked { device, epoch: *epoch });
            }
            Some(row) => return Err(KeyError::Exists { device, epoch: row.epoch }),
        }
        Ok(())
    }

    /// Gives each device a new key of the next epoch; the old one is accepted until a round closes.
    ///
    /// # Errors
    /// [`KeyError::Unknown`], [`Revoked`](KeyError::Revoked), [`Rotating`](KeyError::Rotating),
    /// [`UsedUp`](KeyError::UsedUp), and those of every operation.
    pub fn rotate(
        &mut self,
        devices: &[DeviceId],
        now: u64,
        entropy: &mut dyn Entropy,
    ) -> Result<(), KeyError> {
        let mut keys = Vec::new();
        for device in distinct(devices)? {
            let row = self.active(device)?;
            if row.previous.is_some() {
                return Err(KeyError::Rotating { device, epoch: row.epoch });
            }
            keys.push((device, fresh(next_epoch(device, row)?, entropy)?));
        }
        for (device, key) in keys {
            if let Some(row) = self.rows.get_mut(&device) {
                row.epoch = key.epoch();
                row.rotated = Some(now);
                row.previous = row.current.replace(AcceptedKey::new(device, key));
            }
        }
        Ok(())
    }

    /// Withdraws every key of each device, at once, and forgets them.
    ///
    /// # Errors
    /// [`KeyError::Unknown`], [`Revoked`](KeyError::Revoked), and those of every operation.
    pub fn revoke(&mut self, devices: &[DeviceId], now: u64) -> Result<(), KeyError> {
        let devices = distinct(devices)?;
        devices.iter().try_for_each(|&device| self.active(device).map(|_| ()))?;
        for device in devices {
            if let Some(row) = self.rows.get_mut(&device) {
                row.revoked = Some(now);
                row.current.take().iter().chain(&row.previous.take()).for_each(|key| key.withdraw());
            }
        }
        Ok(())
    }

    /// A round has closed: the older keys of devices that were rotated before are withdrawn and forgotten. Says how
    /// many.
    pub fn round_closed(&mut self) -> usize {
        let replaced = self.rows.values_mut().filter_map(|row| row.previous.take());
        replaced.inspect(|key| key.withdraw()).count()
    }

    /// The `epoch`th key of a device.
    ///
    /// # Errors
    /// [`LookupError`] if it is not accepted, and why.
    pub fn lookup(&self, device: DeviceId, epoch: u16) -> Result<Arc<AcceptedKey>, LookupError> {
        let row = self.rows.get(&device).ok_or(LookupError::Unknown)?;
        let current = row.current.as_ref().ok_or(LookupError::Revoked)?;
        let mut accepted = [Some(current), row.previous.as_ref()].into_iter().flatten();
        let found = accepted.find(|key| key.epoch() == epoch);
        found.cloned().ok_or(LookupError::Epoch { current: row.epoch })
    }

    /// One device.
    #[must_use]
    pub fn get(&self, device: DeviceId) -> Option<KeyStatus> {
        self.rows.get(&device).map(|row| row.listed(device))
    }

    /// Every device, in the order of their numbers.
    pub fn list(&self) -> impl Iterator<Item = KeyStatus> {
        self.rows.iter().map(|(&device, row)| row.listed(device))
    }

    /// Devices with a key that is accepted, in the order of their numbers.
    #[must_use]
    pub fn accepted(&self) -> Vec<DeviceId> {
        let accepted = self.rows.iter().filter(|(_, row)| row.current.is_some());
        accepted.map(|(&device, _)| device).collect()
    }

    /// The newest key of each device, to be flashed.
    ///
    /// # Errors
    /// [`KeyError::Unknown`], [`Revoked`](KeyError::Revoked), and those of every operation.
    pub fn export(&self, devices: &[DeviceId]) -> Result<Vec<Arc<AcceptedKey>>, KeyError> {
        let newest = |device| {
            let row = self.active(device)?;
            row.current.clone().ok_or(KeyError::Revoked { device, epoch: row.epoch })
        };
        distinct(devices)?.into_iter().map(newest).collect()
    }

    /// The row of a device that has an accepted key.
    fn active(&self, device: DeviceId) -> Result<&Row, KeyError> {
        let row = self.rows.get(&device).ok_or(KeyError::Unknown { device })?;
        match row.current {
            Some(_) => Ok(row),
            None => Err(KeyError::Revoked { device, epoch: row.epoch }),
        }
    }

    fn room_for(&self, new: usize) -> Result<(), KeyError> {
        let devices = self.rows.len().saturating_add(new);
        if devices > DEVICES_MAX { Err(KeyError::Full { devices, most: DEVICES_MAX }) } else { Ok(()) }
    }

    /// A device without an accepted key gets one.
    fn put(&mut self, device: DeviceId, key: Key, now: u64) {
        let epoch = key.epoch();
        let current = Some(AcceptedKey::new(device, key));
        let known = self.rows.get(&device);
        let created = known.map_or(now, |row| row.created);
        let rotated = known.map(|_| now);
        self.rows.insert(device, Row { epoch, created, rotated, revoked: None, current, previous: None });
    }
}

/// The devices in the order of their numbers.
fn distinct(devices: &[DeviceId]) -> Result<BTreeSet<DeviceId>, KeyError> {
    let mut distinct = BTreeSet::new();
    match devices.iter().find(|device| !distinct.insert(**device)) {
        Some(&device) => Err(KeyError::Twice { device }),
        None if devices.is_empty() => Err(KeyError::NoDevices),
        None => Ok(distinct),
    }
}

fn next_epoch(device: DeviceId, row: &Row) -> Result<u16, KeyError> {
    row.epoch.checked_add(1).ok_or(KeyError::UsedUp { device })
}

fn fresh(epoch: u16, entropy: &mut dyn Entropy) -> Result<Key, KeyError> {
    let mut bytes = Zeroizing::new([0; KEY]);
    entropy.fill(bytes.as_mut_slice())?;
    Ok(Key::new(epoch, *bytes))
}
