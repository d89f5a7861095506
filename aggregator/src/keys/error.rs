//! Why an operation on keys was refused.

use fedspan_engine::DeviceId;

/// An operation on the key table was refused; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The device has a key that is accepted.
    #[error("device {device} has a key already, epoch {epoch}; rotate gives it a new one")]
    Exists {
        /// Which device.
        device: DeviceId,
        /// Epoch of its key.
        epoch: u16,
    },
    /// The device has never had a key.
    #[error("device {device} has no key; add gives it one")]
    Unknown {
        /// Which device.
        device: DeviceId,
    },
    /// The device's keys were revoked.
    #[error("device {device} was revoked, its last key was epoch {epoch}; add --again gives it a new key")]
    Revoked {
        /// Which device.
        device: DeviceId,
        /// Epoch of its last key.
        epoch: u16,
    },
    /// An earlier rotation's grace is not over.
    #[error(
        "device {device} is still rotating to epoch {epoch}, until a round closes; a key that must go at once is \
         revoked, then added again"
    )]
    Rotating {
        /// Which device.
        device: DeviceId,
        /// Epoch of its newer key.
        epoch: u16,
    },
    /// The device has used every epoch there is.
    #[error("device {device} has had {} keys, the most there are; give it another number", u32::from(u16::MAX) + 1)]
    UsedUp {
        /// Which device.
        device: DeviceId,
    },
    /// A device is named twice in one operation.
    #[error("device {device} is named twice")]
    Twice {
        /// Which device.
        device: DeviceId,
    },
    /// The table is full.
    #[error("{devices} devices would have keys, at most {most} may")]
    Full {
        /// Devices that would be in the table.
        devices: usize,
        /// The most.
        most: usize,
    },
    /// No device is named, or none is there.
    #[error("no device to do this for")]
    NoDevices,
    /// The system's source of randomness failed.
    #[error("no randomness to make a key from")]
    NoEntropy,
}
