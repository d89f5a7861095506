//! Provisioning record: identity, key and noise of one device, flashed separately from the firmware.
//!
//! ```
//! use fedspan_protocol::secure::{Key, Provision};
//!
//! let mut flash = [0xff; 4096]; // an erased page; `include_bytes!` serves as well
//! let provision = Provision { device: 7, key: Key::new(0, [0x42; 32]), noise: None };
//! provision.write(&mut flash)?;
//! assert_eq!(Provision::read(&flash)?, provision);
//! # Ok::<(), fedspan_protocol::secure::ProvisionError>(())
//! ```

use core::fmt;

use super::fields::take;
use super::key::{KEY, Key};
use super::noise::{self, ProvisionedNoise};
use crate::frame::crc32c;

/// Magic bytes at the start of a record.
pub const PROVISION_MAGIC: [u8; 4] = *b"FSPV";

/// Version of the record that this crate writes and reads.
pub const PROVISION_VERSION: u16 = 1;

/// Maximum length of a record, in bytes: a quarter of the smallest common flash page.
pub const PROVISION_MAX: usize = 512;

/// Length of the magic, version, length, device, epoch and key together, in bytes.
const FIXED: usize = 4 + 2 + 2 + 8 + 2 + KEY;

/// Length of the checksum, in bytes.
const CRC: usize = 4;

/// Length of a record without entries, in bytes.
pub const PROVISION: usize = FIXED + CRC;

/// Length of a record with the noise entry, in bytes; the longest record that this version writes.
pub const PROVISION_WITH_NOISE: usize = PROVISION + 2 + noise::VALUE;

/// Tag bit of an entry that a reader may skip if it does not support the entry.
const SKIPPABLE: u8 = 0x80;

/// Data that turns a board into one particular device of a fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Provision {
    /// Identity of the device, unique in the fleet.
    pub device: u64,
    /// Key shared with the server.
    pub key: Key,
    /// Noise that the device adds to its uploads. Firmware that cannot add the noise must not join a
    /// campaign.
    pub noise: Option<ProvisionedNoise>,
}

/// Reason why a provisioning record could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum ProvisionError {
    /// The flash is erased, which means that the device was not provisioned.
    Erased,
    /// The bytes do not start with [`PROVISION_MAGIC`].
    Magic {
        /// First bytes found.
        found: [u8; 4],
    },
    /// The record has another version.
    Version {
        /// Version found.
        found: u16,
    },
    /// The length field is out of range.
    Length {
        /// Length found, in bytes.
        found: u16,
    },
    /// The input, or the output buffer, is shorter than the record.
    Truncated {
        /// Length of the record, in bytes.
        needed: usize,
        /// Number of bytes available.
        got: usize,
    },
    /// The CRC-32C does not match. Its value is not reported, because it depends on the key.
    Check,
    /// An entry extends beyond the record, is not in the order of tags, or has an invalid value.
    Entry {
        /// Offset of the entry's tag.
        offset: usize,
    },
    /// The record has an entry that this firmware does not support and must not skip.
    UnknownEntry {
        /// Tag of the entry.
        tag: u8,
    },
}

impl Provision {
    /// Reads the record at the start of `bytes`. Bytes after the record (such as the rest of an erased page)
    /// are ignored.
    ///
    /// # Errors
    /// [`ProvisionError`] if `bytes` do not start with a complete record of this version.
    pub fn read(bytes: &[u8]) -> Result<Self, ProvisionError> {
        let mut fields = bytes;
        // Length of the shortest record.
        let needed = PROVISION;
        let truncated = ProvisionError::Truncated { needed, got: bytes.len() };
        let magic: [u8; 4] = take(&mut fields).ok_or(truncated)?;
        match magic {
            PROVISION_MAGIC => {}
            [0xff, 0xff, 0xff, 0xff] => return Err(ProvisionError::Erased),
            _ => return Err(ProvisionError::Magic { found: magic }),
        }
        let version = u16::from_le_bytes(take(&mut fields).ok_or(truncated)?);
        if version != PROVISION_VERSION {
            return Err(ProvisionError::Version { found: version });
        }
        let length = u16::from_le_bytes(take(&mut fields).ok_or(truncated)?);
        let needed = usize::from(length);
        if !(PROVISION..=PROVISION_MAX).contains(&needed) {
            return Err(ProvisionError::Length { found: length });
        }
        let truncated = ProvisionError::Truncated { needed, got: bytes.len() };
        let (content, check) = bytes.split_at_checked(needed - CRC).ok_or(truncated)?;
        let (check, _) = check.split_first_chunk().ok_or(truncated)?;
        if u32::from_le_bytes(*check) != crc32c(content) {
            return Err(ProvisionError::Check);
        }
        let device = u64::from_le_bytes(take(&mut fields).ok_or(truncated)?);
        let epoch = u16::from_le_bytes(take(&mut fields).ok_or(truncated)?);
        let key = Key::new(epoch, take(&mut fields).ok_or(truncated)?);
        let noise = read_entries(content)?;
        Ok(Self { device, key, noise })
    }

    /// Returns the length of the record, in bytes.
    #[must_use]
    pub const fn length(&self) -> usize {
        if self.noise.is_some() { PROVISION_WITH_NOISE } else { PROVISION }
    }

    /// Writes the record to the start of `out` and returns its length, at most [`PROVISION_WITH_NOISE`].
    ///
    /// # Errors
    /// [`ProvisionError::Truncated`] if `out` is too short. Nothing is then written.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, ProvisionError> {
        let (needed, capacity) = (self.length(), out.len());
        let record = out.get_mut(..needed).ok_or(ProvisionError::Truncated { needed, got: capacity })?;
        let length = (needed as u16).to_le_bytes();
        let (version, epoch) = (PROVISION_VERSION.to_le_bytes(), self.key.epoch().to_le_bytes());
        let device = self.device.to_le_bytes();
        let fields: [&[u8]; 6] =
            [&PROVISION_MAGIC, &version, &length, &device, &epoch, self.key.expose().as_slice()];
        let (content, check) = record.split_at_mut(needed - CRC);
        let entry = self.noise.iter().flat_map(ProvisionedNoise::bytes);
        for (byte, value) in content.iter_mut().zip(fields.into_iter().flatten().copied().chain(entry)) {
            *byte = value;
        }
        check.copy_from_slice(&crc32c(content).to_le_bytes());
        Ok(needed)
    }
}

/// Reads the entries after the key. An entry consists of tag, length and value; tags are unique and in
/// ascending order.
fn read_entries(content: &[u8]) -> Result<Option<ProvisionedNoise>, ProvisionError> {
    let mut offset = FIXED;
    let (mut before, mut noise) = (None, None);
    while let Some(&tag) = content.get(offset) {
        let malformed = ProvisionError::Entry { offset };
        let length = content.get(offset + 1).map(|length| usize::from(*length)).ok_or(malformed)?;
        let end = offset + 2 + length;
        let value = content.get(offset + 2..end).ok_or(malformed)?;
        if before.is_some_and(|before| before >= tag) {
            return Err(malformed);
        }
        if tag == noise::TAG {
            noise = Some(ProvisionedNoise::read(value).ok_or(malformed)?);
        } else if tag & SKIPPABLE == 0 {
            return Err(ProvisionError::UnknownEntry { tag });
        }
        before = Some(tag);
        offset = end;
    }
    Ok(noise)
}

impl fmt::Display for ProvisionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Erased => f.write_str("the flash is erased: the device was not provisioned"),
            Self::Magic { found: [a, b, c, d] } => {
                write!(f, "no provisioning record: the bytes begin with {a:02x} {b:02x} {c:02x} {d:02x}")
            }
            Self::Version { found } => {
                write!(
                    f,
                    "provisioning record of version {found}; this firmware reads version {PROVISION_VERSION}"
                )
            }
            Self::Length { found } => {
                write!(f, "provisioning record of {found} bytes; allowed: {PROVISION} to {PROVISION_MAX}")
            }
            Self::Truncated { needed, got } => {
                write!(f, "provisioning record of {needed} bytes, but only {got} are available")
            }
            Self::Check => f.write_str("provisioning record is damaged: its CRC-32C does not match"),
            Self::Entry { offset } => write!(f, "provisioning record: malformed entry at byte {offset}"),
            Self::UnknownEntry { tag } => {
                write!(f, "provisioning record: mandatory entry {tag:#04x} is unknown to this firmware")
            }
        }
    }
}

impl core::error::Error for ProvisionError {}
