//! Hash of a representation, by which a device knows the one that its head was fitted on. The hash is stored with the head and
//! never sent.

use crate::pace::Pace;

/// Returns the MurmurHash3 (x86, 32 bits, seed 0; Appleby 2011) of the values' bytes, little endian. It takes a word at a
/// time, a CRC four bits.
#[must_use]
pub fn representation_hash(values: &[f32]) -> u32 {
    paced_hash(values, Pace::NONE)
}

/// Returns the [`representation_hash`] with pauses. A word counts as one multiply-accumulate.
#[inline(never)]
pub(super) fn paced_hash(values: &[f32], pace: Pace<'_>) -> u32 {
    let mut hash = 0u32;
    pace.split(values.len(), 1, |range| hash = absorb(hash, values.get(range).unwrap_or_default()));
    #[allow(clippy::cast_possible_truncation, reason = "as the hash is defined")]
    let length = (4 * values.len()) as u32;
    hash ^= length;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// Returns the state of the hash after some more values, two in each turn of the loop.
#[inline(never)]
fn absorb(hash: u32, values: &[f32]) -> u32 {
    let (pairs, last) = values.as_chunks::<2>();
    let hash = pairs.iter().fold(hash, |hash, [first, second]| absorb_one(absorb_one(hash, first), second));
    last.first().map_or(hash, |last| absorb_one(hash, last))
}

/// Returns the state of the hash after one more value.
#[inline(always)]
fn absorb_one(hash: u32, value: &f32) -> u32 {
    let word = value.to_bits().wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    (hash ^ word).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
}

#[cfg(test)]
mod tests {
    use super::representation_hash;

    /// Tests the values that other implementations give for these bytes with seed 0.
    #[test]
    fn hash_is_murmur3() {
        let of = |bytes: &[u8]| {
            let mut values = [0.0; 4];
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
            representation_hash(values.get(..bytes.len() / 4).unwrap_or_default())
        };
        assert_eq!(of(b""), 0);
        assert_eq!(of(b"test"), 0xba6b_d213);
        assert_eq!(of(&[0xff; 4]), 0x7629_3b50);
        assert_eq!(of(&[0x21, 0x43, 0x65, 0x87]), 0xf55b_516b);
    }
}
