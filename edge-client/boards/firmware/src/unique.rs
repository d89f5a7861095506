//! Device number from a chip's unique number, and seed from raw noise.

/// Length of a seed in bytes.
pub const SEED: usize = 32;

/// Number of raw bytes per byte of a seed.
const CONDENSED: usize = 32;

/// Offset basis of 64-bit FNV-1a.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// Hashes bytes to 64 bits, each of which depends on every byte: FNV-1a, then the last step of `SplitMix64`,
/// because neighbouring chips of a wafer differ in few bits. The hash is not suitable for secrets.
#[must_use]
pub fn fold(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let folded =
        bytes.into_iter().fold(FNV_START, |state, byte| (state ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    mix(folded)
}

/// Applies the last step of `SplitMix64`: a bijection in which each bit of the result depends on all bits of
/// `z`.
#[must_use]
pub const fn mix(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Condenses raw noise, which may be biased and correlated, into a seed, with 32 bytes of noise for each byte
/// of the seed. The function is no cryptographic extractor. It is good enough to spread reconnects; keys and
/// privacy noise need a cryptographic source of entropy.
pub fn condense(mut raw: impl FnMut() -> u8) -> [u8; SEED] {
    let mut seed = [0; SEED];
    for part in seed.as_chunks_mut::<8>().0 {
        *part = fold((0..8 * CONDENSED).map(|_| raw())).to_le_bytes();
    }
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fold_depends_on_every_bit() {
        let original = [0x5a; 12];
        for bit in 0..96 {
            let mut flipped = original;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let changed = (fold(original) ^ fold(flipped)).count_ones();
            assert!((12..=52).contains(&changed), "bit {bit}: {changed} of 64 bits changed");
        }
    }

    #[test]
    fn seed_depends_on_every_byte_of_noise() {
        let seed_of = |changed: usize| {
            let mut drawn = 0;
            let seed = condense(|| {
                drawn += 1;
                u8::from(drawn == changed)
            });
            assert_eq!(drawn, SEED * CONDENSED);
            seed
        };
        let unchanged = seed_of(0);
        for changed in 1..=SEED * CONDENSED {
            let differs = |part: usize| unchanged[8 * part..][..8] != seed_of(changed)[8 * part..][..8];
            let affected = (changed - 1) / (8 * CONDENSED);
            assert!((0..SEED / 8).all(|part| differs(part) == (part == affected)), "byte {changed}");
        }
    }
}
