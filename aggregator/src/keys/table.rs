//! Key table: the keys of each device and the rules by which keys are accepted, without files and sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fedspan_protocol::secure::{KEY, Key};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::accepted_key::AcceptedKey;
use super::{Entropy, KeyError};
use fedspan_engine::DeviceId;

/// Largest number of devices in a table. The limit bounds the size of the file and the memory of its readers.
pub const DEVICES_MAX: usize = 1 << 20;

/// State of a device's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// One key is accepted.
    Active,
    /// The new key is accepted. The previous key is accepted until a round closes.
    Rotating,
    /// The new key is sent to the device on its next connection. The previous key is accepted until the device has used the new
    /// one.
    Sending,
    /// No key is accepted. The row remains in the table, so that the device number is not reused by mistake.
    Revoked,
}

/// Reason why a key cannot be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LookupError {
    /// The device has never had a key.
    Unknown,
    /// The device's keys were revoked.
    Revoked,
    /// The device's key has another epoch.
    Epoch {
        /// Epoch of the accepted key.
        current: u16,
    },
}

/// Status of a device's keys, without the keys. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatus {
    /// Device number.
    pub device: DeviceId,
    /// Epoch of the device's newest key.
    pub epoch: u16,
    /// State of the device's keys.
    pub state: KeyState,
    /// Time at which the device got its first key.
    pub created: u64,
    /// Time of the last rotation or renewal; `None` if the device has its first key.
    pub rotated: Option<u64>,
    /// Time at which the device's keys were revoked; `None` while a key is accepted.
    pub revoked: Option<u64>,
}

/// Keys of one device.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Epoch of the newest key, accepted or not. The epoch never decreases, so that no epoch is used twice.
    pub(super) epoch: u16,
    /// Time at which the device got its first key.
    pub(super) created: u64,
    /// Time of the last rotation or renewal.
    pub(super) rotated: Option<u64>,
    /// Time at which the device's keys were revoked.
    pub(super) revoked: Option<u64>,
    /// Newest key; `None` if the device's keys were revoked.
    pub(super) current: Option<Arc<AcceptedKey>>,
    /// Previous key, which is accepted after a rotation until a round closes, or until the device has used the newest one.
    pub(super) previous: Option<Arc<AcceptedKey>>,
    /// True if the newest key is sent to the device over the link.
    pub(super) is_sent: bool,
}

impl Row {
    /// Returns the state of the keys.
    fn state(&self) -> KeyState {
        match (&self.current, &self.previous) {
            (None, _) => KeyState::Revoked,
            (Some(_), None) => KeyState::Active,
            (Some(_), Some(_)) if self.is_sent => KeyState::Sending,
            (Some(_), Some(_)) => KeyState::Rotating,
        }
    }

    /// Returns true if the device has completed a handshake with its newest key, since the table was read.
    fn is_used(&self) -> bool {
        self.current.as_ref().is_some_and(|key| key.is_used())
    }

    /// Returns the row as the status of a device.
    fn to_status(&self, device: DeviceId) -> KeyStatus {
        let &Self { epoch, created, rotated, revoked, .. } = self;
        KeyStatus { device, epoch, state: self.state(), created, rotated, revoked }
    }
}

/// Keys of a fleet.
///
/// An operation changes either all devices that it names or, after an error, no device. Times are seconds
/// since 1970.
///
/// # Grace period of a rotation
/// After [`rotate`](Self::rotate) both keys are accepted until the next [`round_closed`](Self::round_closed),
/// whether or not a round was open at the rotation. The previous key is never accepted again after that. At
/// most two keys of a device are therefore accepted at any time, and a device cannot be rotated again before
/// a round has closed.
///
/// A key that is sent over the link ([`KeyState::Sending`]) ends its predecessor when the device has used it, however many rounds close
/// before.
///
/// Clones of a table share the keys: connections of any clone reject a key that was revoked in one of them.
#[derive(Clone, Debug, Default)]
pub struct KeyTable {
    pub(super) rows: BTreeMap<DeviceId, Row>,
}

impl KeyTable {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of devices that have or had keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if no device has ever had a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Gives each device its first key, epoch 0; with `again`, revoked devices get a key of the next epoch.
    ///
    /// # Errors
    /// [`KeyError::Exists`], [`Revoked`](KeyError::Revoked) without `again`, [`UsedUp`](KeyError::UsedUp),
    /// [`Full`](KeyError::Full), and those of every operation: [`NoDevices`](KeyError::NoDevices),
    /// [`Twice`](KeyError::Twice), [`NoEntropy`](KeyError::NoEntropy).
    pub fn add(
        &mut self,
        devices: &[DeviceId],
        again: bool,
        now: u64,
        entropy: &mut dyn Entropy,
    ) -> Result<(), KeyError> {
        let devices = sort_distinct(devices)?;
        let new_devices = devices.iter().filter(|device| !self.rows.contains_key(device)).count();
        self.check_capacity(new_devices)?;
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
            keys.push((device, draw_key(epoch, entropy)?));
        }
        for (device, key) in keys {
            self.set_key(device, key, now);
        }
        Ok(())
    }

    /// Inserts a given key for a device without keys.
    ///
    /// # Errors
    /// [`KeyError::Exists`] or [`Revoked`](KeyError::Revoked) if the device has or had a key,
    /// [`Full`](KeyError::Full).
    pub fn insert(&mut self, device: DeviceId, key: Key, now: u64) -> Result<(), KeyError> {
        self.check_capacity(1)?;
        match self.rows.get(&device) {
            None => self.set_key(device, key, now),
            Some(Row { epoch, current: None, .. }) => {
                return Err(KeyError::Revoked { device, epoch: *epoch });
            }
            Some(row) => return Err(KeyError::Exists { device, epoch: row.epoch }),
        }
        Ok(())
    }

    /// Gives each device a new key of the next epoch. The previous key is accepted until a round closes. A device whose new key is being
    /// sent to it keeps that key, and the previous one ends with the round.
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
        self.replace(devices, false, now, entropy)
    }

    /// Gives each device a new key of the next epoch, which is sent to it over the link. The previous key is accepted until the device has
    /// used the new one.
    ///
    /// # Errors
    /// Same as [`Self::rotate`].
    pub fn send(
        &mut self,
        devices: &[DeviceId],
        now: u64,
        entropy: &mut dyn Entropy,
    ) -> Result<(), KeyError> {
        self.replace(devices, true, now, entropy)
    }

    /// Gives each device a new key of the next epoch.
    fn replace(
        &mut self,
        devices: &[DeviceId],
        is_sent: bool,
        now: u64,
        entropy: &mut dyn Entropy,
    ) -> Result<(), KeyError> {
        let mut keys = Vec::new();
        for device in sort_distinct(devices)? {
            let row = self.accepted_row(device)?;
            match row.state() {
                // The key that is being sent is the new key.
                KeyState::Sending if !is_sent => keys.push((device, None)),
                KeyState::Sending => return Err(KeyError::Sending { device, epoch: row.epoch }),
                KeyState::Rotating => return Err(KeyError::Rotating { device, epoch: row.epoch }),
                KeyState::Active | KeyState::Revoked => {
                    keys.push((device, Some(draw_key(next_epoch(device, row)?, entropy)?)));
                }
            }
        }
        for (device, key) in keys {
            let Some(row) = self.rows.get_mut(&device) else { continue };
            let Some(key) = key else {
                row.is_sent = false;
                continue;
            };
            row.epoch = key.epoch();
            row.rotated = Some(now);
            row.is_sent = is_sent;
            row.previous = row.current.replace(AcceptedKey::new(device, key));
        }
        Ok(())
    }

    /// Revokes and removes all keys of each device.
    ///
    /// # Errors
    /// [`KeyError::Unknown`], [`Revoked`](KeyError::Revoked), and those of every operation.
    pub fn revoke(&mut self, devices: &[DeviceId], now: u64) -> Result<(), KeyError> {
        let devices = sort_distinct(devices)?;
        devices.iter().try_for_each(|&device| self.accepted_row(device).map(|_| ()))?;
        for device in devices {
            if let Some(row) = self.rows.get_mut(&device) {
                row.revoked = Some(now);
                row.current.take().iter().chain(&row.previous.take()).for_each(|key| key.withdraw());
            }
        }
        Ok(())
    }

    /// Revokes the keys that rotations have replaced, after a round has closed, and returns their number. Keys that are sent to
    /// devices replace others when they are used.
    pub fn round_closed(&mut self) -> usize {
        let over = self.rows.values_mut().filter(|row| !row.is_sent || row.is_used());
        over.filter_map(|row| row.previous.take()).inspect(|key| key.withdraw()).count()
    }

    /// Revokes the previous key of a device that has used the key that the server has sent. Returns true if there was one.
    pub fn sent_key_used(&mut self, device: DeviceId) -> bool {
        let row = self.rows.get_mut(&device).filter(|row| row.is_sent && row.is_used());
        row.and_then(|row| row.previous.take()).inspect(|key| key.withdraw()).is_some()
    }

    /// Returns the key that is to be sent to a device whose connection uses the key of `epoch`.
    #[must_use]
    pub fn key_to_send(&self, device: DeviceId, epoch: u16) -> Option<Arc<AcceptedKey>> {
        let row = self.rows.get(&device).filter(|row| row.is_sent && row.previous.is_some())?;
        row.current.clone().filter(|key| key.epoch() > epoch)
    }

    /// Returns true if a device has used a key that the server has sent, and its previous key is still accepted.
    #[must_use]
    pub fn has_used_sent_key(&self, device: DeviceId) -> bool {
        self.rows.get(&device).is_some_and(|row| row.is_sent && row.previous.is_some() && row.is_used())
    }

    /// Returns the device's key of an epoch.
    ///
    /// # Errors
    /// [`LookupError`] if there is no such key, or it is not accepted.
    pub fn lookup(&self, device: DeviceId, epoch: u16) -> Result<Arc<AcceptedKey>, LookupError> {
        let row = self.rows.get(&device).ok_or(LookupError::Unknown)?;
        let current = row.current.as_ref().ok_or(LookupError::Revoked)?;
        let mut accepted = [Some(current), row.previous.as_ref()].into_iter().flatten();
        let matching = accepted.find(|key| key.epoch() == epoch);
        matching.cloned().ok_or(LookupError::Epoch { current: row.epoch })
    }

    /// Returns the keys of a device that are accepted: the current one, then the previous one while it is being replaced.
    pub fn keys_of(&self, device: DeviceId) -> impl Iterator<Item = &Arc<AcceptedKey>> {
        let row = self.rows.get(&device).filter(|row| row.current.is_some());
        row.into_iter().flat_map(|row| [row.current.as_ref(), row.previous.as_ref()]).flatten()
    }

    /// Returns true if the device has a key that is accepted.
    #[must_use]
    pub fn has_key(&self, device: DeviceId) -> bool {
        self.rows.get(&device).is_some_and(|row| row.current.is_some())
    }

    /// Returns the status of one device; `None` if the device has never had a key.
    #[must_use]
    pub fn get(&self, device: DeviceId) -> Option<KeyStatus> {
        self.rows.get(&device).map(|row| row.to_status(device))
    }

    /// Returns the status of every device, in order of device numbers.
    pub fn list(&self) -> impl Iterator<Item = KeyStatus> {
        self.rows.iter().map(|(&device, row)| row.to_status(device))
    }

    /// Returns the devices with one accepted key, in order of device numbers: those to which a new key can be sent.
    #[must_use]
    pub fn active(&self) -> Vec<DeviceId> {
        let active = self.rows.iter().filter(|(_, row)| row.state() == KeyState::Active);
        active.map(|(&device, _)| device).collect()
    }

    /// Returns the devices with an accepted key, in order of device numbers.
    #[must_use]
    pub fn accepted(&self) -> Vec<DeviceId> {
        let accepted = self.rows.iter().filter(|(_, row)| row.current.is_some());
        accepted.map(|(&device, _)| device).collect()
    }

    /// Returns the newest key of each device, for provisioning.
    ///
    /// # Errors
    /// [`KeyError::Unknown`], [`Revoked`](KeyError::Revoked), and those of every operation.
    pub fn export(&self, devices: &[DeviceId]) -> Result<Vec<Arc<AcceptedKey>>, KeyError> {
        let newest = |device| {
            let row = self.accepted_row(device)?;
            row.current.clone().ok_or(KeyError::Revoked { device, epoch: row.epoch })
        };
        sort_distinct(devices)?.into_iter().map(newest).collect()
    }

    /// Returns the row of a device with an accepted key.
    fn accepted_row(&self, device: DeviceId) -> Result<&Row, KeyError> {
        let row = self.rows.get(&device).ok_or(KeyError::Unknown { device })?;
        match row.current {
            Some(_) => Ok(row),
            None => Err(KeyError::Revoked { device, epoch: row.epoch }),
        }
    }

    /// Checks that the table has room for `new_devices` more devices.
    fn check_capacity(&self, new_devices: usize) -> Result<(), KeyError> {
        let devices = self.rows.len().saturating_add(new_devices);
        if devices > DEVICES_MAX { Err(KeyError::Full { devices, most: DEVICES_MAX }) } else { Ok(()) }
    }

    /// Sets the key of a device without an accepted key.
    fn set_key(&mut self, device: DeviceId, key: Key, now: u64) {
        let epoch = key.epoch();
        let current = Some(AcceptedKey::new(device, key));
        let existing = self.rows.get(&device);
        let created = existing.map_or(now, |row| row.created);
        let rotated = existing.map(|_| now);
        let row = Row { epoch, created, rotated, revoked: None, current, previous: None, is_sent: false };
        self.rows.insert(device, row);
    }
}

/// Sorts the devices and refuses duplicates.
fn sort_distinct(devices: &[DeviceId]) -> Result<BTreeSet<DeviceId>, KeyError> {
    let mut distinct = BTreeSet::new();
    match devices.iter().find(|device| !distinct.insert(**device)) {
        Some(&device) => Err(KeyError::Twice { device }),
        None if devices.is_empty() => Err(KeyError::NoDevices),
        None => Ok(distinct),
    }
}

/// Returns the epoch of a device's next key.
fn next_epoch(device: DeviceId, row: &Row) -> Result<u16, KeyError> {
    row.epoch.checked_add(1).ok_or(KeyError::UsedUp { device })
}

/// Draws a random key.
fn draw_key(epoch: u16, entropy: &mut dyn Entropy) -> Result<Key, KeyError> {
    let mut bytes = Zeroizing::new([0; KEY]);
    entropy.fill(bytes.as_mut_slice())?;
    Ok(Key::new(epoch, *bytes))
}
