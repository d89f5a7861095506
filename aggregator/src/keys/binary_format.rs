//! Encoder and decoder of key store files: a header, encrypted rows and a checksum. `KEYS.md` specifies the
//! format.

use std::collections::BTreeMap;
use std::sync::Arc;

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use fedspan_protocol::frame::crc32c;
use fedspan_protocol::secure::{KEY, Key};
use zeroize::Zeroizing;

use super::accepted_key::AcceptedKey;
use super::corruption::Corruption;
use super::table::{DEVICES_MAX, KeyTable, Row};
use super::unlock::{Argon2Cost, Derivation, SALT, Secret};
use fedspan_engine::DeviceId;

const MAGIC: [u8; 8] = *b"FEDSPKEY";

/// Latest version of the format; files of later versions are rejected. It is written while a key is being sent to a device.
const VERSION: u16 = 2;

/// Version without keys that are sent.
const VERSION_WITHOUT_SENDING: u16 = 1;

const NONCE: usize = 24;
const TAG: usize = 16;
const CRC: usize = 4;

/// Length of the header: magic, version, derivation with its three parameters, salt, nonce, length of the
/// rows.
const HEADER: usize = 8 + 2 + 2 + 4 + 4 + 4 + SALT + NONCE + 4;

/// Length of a row: device, epoch, state, three times, two keys.
const ROW: usize = 8 + 2 + 1 + 8 + 8 + 8 + KEY + KEY;

/// Length of the longest file, in bytes.
pub(super) const FILE_MAX: usize = HEADER + DEVICES_MAX * ROW + TAG + CRC;

/// State of a row: no key is accepted, one, two, or two of which the newest is sent over the link (since version 2).
const REVOKED: u8 = 0;
const ACTIVE: u8 = 1;
const ROTATING: u8 = 2;
const SENDING: u8 = 3;

/// Time field of an event that has not happened.
const NEVER: u64 = u64::MAX;

/// Key store file, parsed but not decrypted.
pub(super) struct Envelope<'a> {
    pub(super) derivation: Derivation,
    pub(super) salt: [u8; SALT],
    version: u16,
    nonce: [u8; NONCE],
    /// Header of the file, which is authenticated but not encrypted.
    header: &'a [u8],
    rows: &'a [u8],
    tag: [u8; TAG],
}

impl<'a> Envelope<'a> {
    /// Parses a file and verifies its checksum.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Corruption> {
        let got = bytes.len();
        let truncated = |needed| Corruption::Truncated { needed, got };
        let mut fields = bytes;
        let has_magic = bytes.iter().zip(MAGIC).all(|(byte, magic)| *byte == magic);
        if !has_magic {
            return Err(Corruption::NotKeys);
        }
        let too_short = truncated(HEADER + TAG + CRC);
        let _: [u8; 8] = take_bytes(&mut fields).ok_or(too_short)?;
        let version = u16::from_le_bytes(take_bytes(&mut fields).ok_or(too_short)?);
        if !(VERSION_WITHOUT_SENDING..=VERSION).contains(&version) {
            return Err(Corruption::Version { found: version, known: VERSION });
        }
        let kind = u16::from_le_bytes(take_bytes(&mut fields).ok_or(too_short)?);
        let mut number = || Some(u32::from_le_bytes(take_bytes(&mut fields)?));
        let memory = number().ok_or(too_short)?;
        let passes = number().ok_or(too_short)?;
        let lanes = number().ok_or(too_short)?;
        let salt = take_bytes(&mut fields).ok_or(too_short)?;
        let nonce = take_bytes(&mut fields).ok_or(too_short)?;
        let length = u32::from_le_bytes(take_bytes(&mut fields).ok_or(too_short)?);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length % ROW != 0 || length > DEVICES_MAX * ROW {
            return Err(Corruption::Length { length });
        }
        let needed = HEADER + length + TAG + CRC;
        let (content, trailer) = bytes.split_at_checked(needed - CRC).ok_or(truncated(needed))?;
        let (check, extra) = trailer.split_first_chunk().ok_or(truncated(needed))?;
        if !extra.is_empty() {
            return Err(Corruption::Trailing { extra: extra.len() });
        }
        let (stored, computed) = (u32::from_le_bytes(*check), crc32c(content));
        if stored != computed {
            return Err(Corruption::Corrupted { stored, computed });
        }
        let bad_derivation = Corruption::Derivation { kind, memory, passes, lanes };
        let derivation = match kind {
            0 if (memory, passes, lanes) == (0, 0, 0) && salt == [0; SALT] => Derivation::KeyFile,
            1 => Derivation::Argon2id(Argon2Cost::new(memory, passes, lanes).ok_or(bad_derivation)?),
            _ => return Err(bad_derivation),
        };
        let (header, sealed) = content.split_at_checked(HEADER).ok_or(too_short)?;
        let (rows, tag) = sealed.split_last_chunk().ok_or(too_short)?;
        Ok(Self { derivation, salt, version, nonce, header, rows, tag: *tag })
    }

    /// Decrypts the table.
    pub(super) fn open(&self, secret: &Secret) -> Result<KeyTable, Corruption> {
        let passphrase = matches!(self.derivation, Derivation::Argon2id(_));
        let mut rows = Zeroizing::new(self.rows.to_vec());
        let cipher = XChaCha20Poly1305::new(secret.key().into());
        let (nonce, tag) = (XNonce::from(self.nonce), Tag::from(self.tag));
        cipher
            .decrypt_inout_detached(&nonce, self.header, rows.as_mut_slice().into(), &tag)
            .map_err(|_| Corruption::Secret { passphrase })?;
        decode_rows(&rows, self.version)
    }
}

/// Encodes and encrypts a table. A nonce must not be used twice with the same secret; 24 random bytes ensure
/// that.
pub(super) fn seal(table: &KeyTable, secret: &Secret, nonce: [u8; NONCE]) -> Result<Vec<u8>, Corruption> {
    let length = table.rows.len() * ROW;
    let too_long = Corruption::Length { length };
    // The vector has its full capacity from the start: a growing vector would leave copies of secrets in
    // freed memory.
    let mut file = Zeroizing::new(Vec::with_capacity(HEADER + length + TAG + CRC));
    let (kind, cost): (u16, _) = match secret.derivation() {
        Derivation::KeyFile => (0, [0; 3]),
        Derivation::Argon2id(cost) => (1, [cost.memory(), cost.passes(), cost.lanes()]),
    };
    file.extend_from_slice(&MAGIC);
    let is_sending = table.rows.values().any(|row| row.is_sent && row.previous.is_some());
    let version = if is_sending { VERSION } else { VERSION_WITHOUT_SENDING };
    file.extend_from_slice(&version.to_le_bytes());
    file.extend_from_slice(&kind.to_le_bytes());
    cost.iter().for_each(|number| file.extend_from_slice(&number.to_le_bytes()));
    file.extend_from_slice(secret.salt());
    file.extend_from_slice(&nonce);
    file.extend_from_slice(&u32::try_from(length).map_err(|_| too_long)?.to_le_bytes());
    table.rows.iter().for_each(|(&device, row)| encode_row(device, row, &mut file));
    let (header, rows) = file.split_at_mut_checked(HEADER).ok_or(too_long)?;
    let cipher = XChaCha20Poly1305::new(secret.key().into());
    let tag = cipher.encrypt_inout_detached(&XNonce::from(nonce), header, rows.into());
    file.extend_from_slice(&tag.map_err(|_| too_long)?);
    let check = crc32c(&file);
    file.extend_from_slice(&check.to_le_bytes());
    // The content is encrypted and need not be zeroised.
    Ok(std::mem::take(&mut *file))
}

/// Appends the row of a device.
fn encode_row(device: DeviceId, row: &Row, file: &mut Vec<u8>) {
    let accepted = match (&row.current, &row.previous) {
        (None, _) => REVOKED,
        (Some(_), None) => ACTIVE,
        (Some(_), Some(_)) if row.is_sent => SENDING,
        (Some(_), Some(_)) => ROTATING,
    };
    file.extend_from_slice(&device.0.to_le_bytes());
    file.extend_from_slice(&row.epoch.to_le_bytes());
    file.push(accepted);
    for time in [row.created, row.rotated.unwrap_or(NEVER), row.revoked.unwrap_or(NEVER)] {
        file.extend_from_slice(&time.to_le_bytes());
    }
    for key in [&row.current, &row.previous] {
        file.extend_from_slice(key.as_ref().map_or(&[0; KEY], |key| key.key().expose()));
    }
}

/// Decodes rows. Devices must be in ascending order, and keys that are not accepted must be zero.
fn decode_rows(rows: &[u8], version: u16) -> Result<KeyTable, Corruption> {
    let mut table = BTreeMap::new();
    for (number, mut fields) in rows.chunks(ROW).enumerate() {
        let (device, row) = decode_row(&mut fields, version).ok_or(Corruption::Row { row: number })?;
        if table.last_key_value().is_some_and(|(last, _)| *last >= device) {
            return Err(Corruption::Row { row: number });
        }
        table.insert(device, row);
    }
    Ok(KeyTable { rows: table })
}

/// Decodes one row; `None` if the row is invalid.
fn decode_row(fields: &mut &[u8], version: u16) -> Option<(DeviceId, Row)> {
    let device = u64::from_le_bytes(take_bytes(fields)?);
    let epoch = u16::from_le_bytes(take_bytes(fields)?);
    let [accepted] = take_bytes(fields)?;
    let mut next_time = || Some(u64::from_le_bytes(take_bytes(fields)?));
    let (created, rotated, revoked) = (next_time()?, next_time()?, next_time()?);
    let [rotated, revoked] = [rotated, revoked].map(|time| (time != NEVER).then_some(time));
    let (current, previous) = (Zeroizing::new(take_bytes(fields)?), Zeroizing::new(take_bytes(fields)?));
    let is_zero = |key: &[u8; KEY]| key.iter().all(|byte| *byte == 0);
    let key = |epoch, bytes: &[u8; KEY]| Some(AcceptedKey::new(DeviceId(device), Key::new(epoch, *bytes)));
    let (current, previous): (Option<Arc<AcceptedKey>>, Option<Arc<AcceptedKey>>) = match accepted {
        REVOKED if is_zero(&current) && is_zero(&previous) && revoked.is_some() => (None, None),
        ACTIVE if is_zero(&previous) && revoked.is_none() => (key(epoch, &current), None),
        ROTATING | SENDING
            if revoked.is_none() && (accepted == ROTATING || version > VERSION_WITHOUT_SENDING) =>
        {
            (key(epoch, &current), key(epoch.checked_sub(1)?, &previous))
        }
        _ => return None,
    };
    Some((
        DeviceId(device),
        Row { epoch, created, rotated, revoked, current, previous, is_sent: accepted == SENDING },
    ))
}

/// Takes the next `N` bytes from a row.
fn take_bytes<const N: usize>(fields: &mut &[u8]) -> Option<[u8; N]> {
    let (field, remaining) = fields.split_first_chunk()?;
    *fields = remaining;
    Some(*field)
}
