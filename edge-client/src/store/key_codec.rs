//! Binary format of a key in flash, little endian, 56 bytes.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 4 | `FSKY` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | mask |
//! | 6 | 2 | number of the item; the largest one counts |
//! | 8 | 2 | epoch |
//! | 10 | 2 | zero |
//! | 12 | 4 | check value of the key that the device was provisioned with |
//! | 16 | 32 | secret bytes |
//! | 48 | 4 | CRC-32C of all bytes before |
//! | 52 | 4 | 0xA5, four times |
//!
//! The bytes from offset 6 to the checksum are XORed with the mask. A server can choose the key, so the mask is the smallest one for which
//! no part of the item looks like the start of a [counter](super::counters).

use fedspan_protocol::frame::crc32c;
use fedspan_protocol::secure::{KEY, Key};
use zeroize::Zeroize;

use super::StoredKey;
use super::counters::has_magic;

/// First bytes of an item.
pub const MAGIC: [u8; 4] = *b"FSKY";
/// Version of the format.
const VERSION: u8 = 1;
/// Length of an item in bytes.
pub const ITEM: usize = 56;
/// Length of the number, the epoch, the zeros and the check value.
const FIELDS: usize = 10;
/// Last bytes of an item.
const END: [u8; 4] = [0xA5; 4];

/// Encodes the item of this number.
pub fn encode(number: u16, stored: &StoredKey, item: &mut [u8; ITEM]) {
    let fields = number.to_le_bytes().into_iter().chain(stored.key.epoch().to_le_bytes()).chain([0; 2]);
    let fields = fields.chain(stored.provisioned.to_le_bytes());
    // Each of the 54 windows of three bytes rules out at most three masks.
    for mask in 0..=u8::MAX {
        let masked = fields.clone().chain(*stored.key.expose()).map(|byte| byte ^ mask);
        let content = MAGIC.into_iter().chain([VERSION, mask]).chain(masked);
        item.iter_mut().zip(content).for_each(|(target, byte)| *target = byte);
        if let Some((content, [c0, c1, c2, c3, end @ ..])) = item.split_at_mut_checked(ITEM - 8) {
            [*c0, *c1, *c2, *c3] = crc32c(content).to_le_bytes();
            end.copy_from_slice(&END);
        }
        if !has_magic(item.get(1..).unwrap_or_default()) {
            break;
        }
    }
}

/// Decodes an item, and returns its number and the key; `None` if it is not one.
pub fn decode(item: &[u8; ITEM]) -> Option<(u16, StoredKey)> {
    let (content, trailer) = item.split_last_chunk::<8>()?;
    let (check, end) = trailer.split_first_chunk::<4>()?;
    let fields = content.strip_prefix(&MAGIC)?;
    let ([version, mask], masked) = fields.split_first_chunk()?;
    if *version != VERSION || end != END || *check != crc32c(content).to_le_bytes() {
        return None;
    }
    let (fields, secret) = masked.split_first_chunk::<FIELDS>()?;
    let [n0, n1, e0, e1, _, _, provisioned @ ..] = fields.map(|byte| byte ^ mask);
    let secret: &[u8; KEY] = secret.first_chunk()?;
    let mut secret = secret.map(|byte| byte ^ mask);
    let key = Key::new(u16::from_le_bytes([e0, e1]), secret);
    secret.zeroize();
    Some((u16::from_le_bytes([n0, n1]), StoredKey { key, provisioned: u32::from_le_bytes(provisioned) }))
}
