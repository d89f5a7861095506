//! Errors of operations on the key table.

use fedspan_engine::DeviceId;

/// Reason why an operation was refused; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The device has an accepted key already.
    #[error("device {device} has a key already, epoch {epoch}; rotate gives it a new one")]
    Exists {
        /// Device number.
        device: DeviceId,
        /// Epoch of its key.
        epoch: u16,
    },
    /// The device has never had a key.
    #[error("device {device} has no key; add gives it one")]
    Unknown {
        /// Device number.
        device: DeviceId,
    },
    /// The device's keys were revoked.
    #[error("device {device} was revoked, its last key was epoch {epoch}; add --again gives it a new key")]
    Revoked {
        /// Device number.
        device: DeviceId,
        /// Epoch of its last key.
        epoch: u16,
    },
    /// The grace of an earlier rotation has not ended.
    #[error(
        "device {device} is still rotating to epoch {epoch}, until a round closes; a key that must go at once is \
         revoked, then added again"
    )]
    Rotating {
        /// Device number.
        device: DeviceId,
        /// Epoch of its newer key.
        epoch: u16,
    },
    /// The device has used all epochs.
    #[error("device {device} has had {} keys, the most there are; give it another number", u32::from(u16::MAX) + 1)]
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
    #[error("{devices} devices would have keys, at most {most} may")]
    Full {
        /// Number of devices that the table would hold.
        devices: usize,
        /// Largest number allowed.
        most: usize,
    },
    /// The operation names no device, or `--all` selects none.
    #[error("no device to do this for")]
    NoDevices,
    /// The source of randomness failed.
    #[error("no randomness to make a key from")]
    NoEntropy,
}
