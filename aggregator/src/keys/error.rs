//! Error type of operations on the key table.

use fedspan_engine::DeviceId;

/// Reason why an operation was refused. A refused operation changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The device has an accepted key already.
    #[error("device {device} already has a key, epoch {epoch}; use rotate to replace it")]
    Exists {
        /// Device number.
        device: DeviceId,
        /// Epoch of the device's key.
        epoch: u16,
    },
    /// The device has never had a key.
    #[error("device {device} has no key; use add to give it one")]
    Unknown {
        /// Device number.
        device: DeviceId,
    },
    /// The device's keys were revoked.
    #[error(
        "device {device} was revoked, its last key was epoch {epoch}; use add --again to give it a new key"
    )]
    Revoked {
        /// Device number.
        device: DeviceId,
        /// Epoch of the device's last key.
        epoch: u16,
    },
    /// No round has closed since the last rotation, so the previous key is still accepted.
    #[error(
        "device {device} is still rotating to epoch {epoch}, until a round closes; to replace a key at once, revoke \
         it and add the device again"
    )]
    Rotating {
        /// Device number.
        device: DeviceId,
        /// Epoch of the device's newer key.
        epoch: u16,
    },
    /// The device's newest key is still being sent to it.
    #[error(
        "the key of epoch {epoch} is still being sent to device {device}; `rotate` without --send ends that with the next round, \
         and the device then has to be flashed"
    )]
    Sending {
        /// Device number.
        device: DeviceId,
        /// Epoch of the device's newer key.
        epoch: u16,
    },
    /// The device has used all epochs.
    #[error("device {device} has used all {} epochs; give the device another number", u32::from(u16::MAX) + 1)]
    UsedUp {
        /// Device number.
        device: DeviceId,
    },
    /// The operation names a device twice.
    #[error("device {device} is named twice")]
    Twice {
        /// Device number.
        device: DeviceId,
    },
    /// The table is full.
    #[error("{devices} devices would have keys, allowed: at most {most}")]
    Full {
        /// Number of devices that the table would hold.
        devices: usize,
        /// Largest number allowed.
        most: usize,
    },
    /// The operation names no device, or `--all` selects no device.
    #[error("no device selected")]
    NoDevices,
    /// The source of randomness failed.
    #[error("the source of randomness failed: no key can be made")]
    NoEntropy,
}
