//! The provisioning record: what makes a board one device of one fleet, as it is flashed beside the firmware.
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

use super::key::{KEY, Key};
use super::noise::{self, ProvisionedNoise};
use crate::frame::crc32c;

/// First bytes of a record.
pub const PROVISION_MAGIC: [u8; 4] = *b"FSPV";

/// Version of the record that this crate writes and reads.
pub const PROVISION_VERSION: u16 = 1;

/// Longest record: a quarter of the smallest flash page that is common.
pub const PROVISION_MAX: usize = 512;

/// Magic, version, length, device, epoch, key.
const FIXED: usize = 4 + 2 + 2 + 8 + 2 + KEY;

const CRC: usize = 4;

/// Bytes of a record without entries.
pub const PROVISION: usize = FIXED + CRC;

/// Bytes of a record with the entry for noise: the longest that this version writes.
pub const PROVISION_WITH_NOISE: usize = PROVISION + 2 + noise::VALUE;

/// An entry whose tag has this bit may be skipped by a reader that does not know it.
const SKIPPABLE: u8 = 0x80;

/// What a board needs to know to be one device of one fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Provision {
    /// Its number.
    pub device: u64,
    /// The secret that it shares with its server.
    pub key: Key,
    /// The noise that it adds to what it sends. A firmware that cannot add it must not join.
    pub noise: Option<ProvisionedNoise>,
}

/// Why there is no provisioning record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProvisionError {
    /// The flash is erased: nothing was provisioned.
    Erased,
    /// The bytes begin otherwise.
    Magic {
        /// What stands there.
        found: [u8; 4],
    },
    /// A record of another version.
    Version {
        /// Which.
        found: u16,
    },
    /// The record says that it is shorter or longer than any.
    Length {
        /// What it says.
        found: u16,
    },
    /// The bytes (or, writing, the buffer) end before the record.
    Truncated {
        /// Bytes of the record.
        needed: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// The record is damaged. Its CRC-32C covers the key, and is not told.
    Check,
    /// An entry ends after the record does, does not follow its predecessor in the order of tags, or holds what no entry
    /// with its tag can hold.
    Entry {
        /// Offset of its tag.
        offset: usize,
    },
    /// An entry that this firmware does not know and must not ignore.
    UnknownEntry {
        /// Its tag.
        tag: u8,
    },
}

impl Provision {
    /// Reads the record at the start of `bytes`; what follows it (the rest of an erased page) does not matter.
    ///
    /// # Errors
    /// [`ProvisionError`] for anything that is not a whole record of this version.
    pub fn read(bytes: &[u8]) -> Result<Self, ProvisionError> {
        let mut fields = bytes;
        // Bytes of the part that is the same for all records.
        let needed = PROVISION;
        let truncated = ProvisionError::Truncated { needed, got: bytes.len() };
        let found: [u8; 4] = take(&mut fields).ok_or(truncated)?;
        match found {
            PROVISION_MAGIC => {}
            [0xff, 0xff, 0xff, 0xff] => return Err(ProvisionError::Erased),
            _ => return Err(ProvisionError::Magic { found }),
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

    /// Bytes of the record.
    #[must_use]
    pub const fn length(&self) -> usize {
        if self.noise.is_some() { PROVISION_WITH_NOISE } else { PROVISION }
    }

    /// Writes the record to the start of `out`; says how many bytes it has, [`PROVISION_WITH_NOISE`] at most.
    ///
    /// # Errors
    /// [`ProvisionError::Truncated`] if `out` is too short; it is not written then.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, ProvisionError> {
        let (needed, got) = (self.length(), out.len());
        let record = out.get_mut(..needed).ok_or(ProvisionError::Truncated { needed, got })?;
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

/// Takes the next field.
pub(super) fn take<const N: usize>(fields: &mut &[u8]) -> Option<[u8; N]> {
    let (field, rest) = fields.split_first_chunk()?;
    *fields = rest;
    Some(*field)
}

/// Entries follow the key: tag, length, value; every tag at most once, in ascending order.
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
            Self::Erased => f.write_str("the flash is erased: nothing was provisioned"),
            Self::Magic { found: [a, b, c, d] } => {
                write!(f, "no provisioning record: it begins with {a:02x} {b:02x} {c:02x} {d:02x}")
            }
            Self::Version { found } => {
                write!(f, "provisioning record of version {found}, this firmware reads {PROVISION_VERSION}")
            }
            Self::Length { found } => {
                write!(f, "provisioning record of {found} bytes, it has {PROVISION} to {PROVISION_MAX}")
            }
            Self::Truncated { needed, got } => {
                write!(f, "provisioning record of {needed} bytes, {got} are there")
            }
            Self::Check => f.write_str("provisioning record damaged: its CRC-32C is another"),
            Self::Entry { offset } => write!(f, "provisioning record: malformed entry at byte {offset}"),
            Self::UnknownEntry { tag } => {
                write!(f, "provisioning record: entry {tag:#04x} must be known, and is not")
            }
        }
    }
}

impl core::error::Error for ProvisionError {}
