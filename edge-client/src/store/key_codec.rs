//! Binary format of a key in flash, little endian, 48 bytes.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 4 | `FSKY` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | mask |
//! | 6 | 2 | epoch |
//! | 8 | 32 | secret bytes |
//! | 40 | 4 | CRC-32C of all bytes before |
//! | 44 | 4 | 0xA5, four times |
//!
//! Epoch and secret are XORed with the mask. A server can choose the key, so the mask is the smallest one for which no part of the item
//! looks like the start of a [counter](super::counters).

use fedspan_protocol::frame::crc32c;
use fedspan_protocol::secure::{KEY, Key};

use super::counters::has_magic;

/// First bytes of an item.
pub const MAGIC: [u8; 4] = *b"FSKY";
/// Version of the format.
const VERSION: u8 = 1;
/// Length of an item in bytes.
pub const ITEM: usize = 48;
/// Last bytes of an item.
const END: [u8; 4] = [0xA5; 4];

/// Encodes a key.
pub fn encode(key: &Key) -> [u8; ITEM] {
    let mut item = [0; ITEM];
    // Each of the 46 windows of three bytes rules out at most three masks.
    for mask in 0..=u8::MAX {
        let masked = key.epoch().to_le_bytes().into_iter().chain(*key.expose()).map(|byte| byte ^ mask);
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
    item
}

/// Decodes an item; `None` if it is not one.
pub fn decode(item: &[u8; ITEM]) -> Option<Key> {
    let (content, trailer) = item.split_last_chunk::<8>()?;
    let (check, end) = trailer.split_first_chunk::<4>()?;
    let fields = content.strip_prefix(&MAGIC)?;
    let ([version, mask], masked) = fields.split_first_chunk()?;
    if *version != VERSION || end != END || *check != crc32c(content).to_le_bytes() {
        return None;
    }
    let (epoch, secret) = masked.split_first_chunk()?;
    let secret: &[u8; KEY] = secret.first_chunk()?;
    Some(Key::new(u16::from_le_bytes(epoch.map(|byte| byte ^ mask)), secret.map(|byte| byte ^ mask)))
}
