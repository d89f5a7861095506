//! In-place encoders for COBS (consistent overhead byte stuffing): byte by byte for devices, to save flash,
//! and, with the feature `wide`, run by run of nonzero bytes for hosts.

#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
pub use bytewise::{encode_in_place, first_zero};
#[cfg(all(feature = "wide", not(target_os = "none")))]
pub use runs::{encode_in_place, first_zero};

#[cfg(any(test, not(all(feature = "wide", not(target_os = "none")))))]
mod bytewise {
    /// Returns the index of the first zero. Inlined, because a call would take more flash than the loop.
    #[inline(always)]
    pub fn first_zero(bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|&b| b == 0)
    }

    /// Encodes `out[start..end]` to the front of `out`, appends the zero delimiter, and returns the encoded
    /// length. `start` must be at least `end - start` divided by 254, rounded up, and one byte must follow
    /// `end`; then the write position never passes the read position.
    pub fn encode_in_place(out: &mut [u8], start: usize, end: usize) -> Option<usize> {
        let mut code_at = 0;
        let mut write = 1;
        let mut code = 1u8;
        for read in start..end {
            // A full block implies no zero. A full block is closed only if another byte follows, so that no
            // empty block is written.
            if code == 0xff {
                *out.get_mut(code_at)? = code;
                code_at = write;
                write += 1;
                code = 1;
            }
            let byte = *out.get(read)?;
            if byte == 0 {
                *out.get_mut(code_at)? = code;
                code_at = write;
                code = 1;
            } else {
                *out.get_mut(write)? = byte;
                code += 1;
            }
            write += 1;
        }
        *out.get_mut(code_at)? = code;
        *out.get_mut(write)? = 0;
        Some(write + 1)
    }
}

#[cfg(all(feature = "wide", not(target_os = "none")))]
mod runs {
    /// Number of bytes of a full block.
    const BLOCK: usize = 254;

    /// Length of a run up to which a search by words is faster than the call of one by vectors.
    const SHORT: usize = 32;

    /// Returns the index of the first zero.
    pub fn first_zero(bytes: &[u8]) -> Option<usize> {
        let (short, long) = bytes.split_at_checked(SHORT).unwrap_or((bytes, &[]));
        let (words, last) = short.as_chunks::<8>();
        for (index, word) in words.iter().enumerate() {
            let zeros = zero_bytes(u64::from_le_bytes(*word));
            if zeros != 0 {
                return Some(8 * index + zeros.trailing_zeros() as usize / 8);
            }
        }
        if let Some(index) = last.iter().position(|byte| *byte == 0) {
            return Some(8 * words.len() + index);
        }
        if long.is_empty() { None } else { memchr::memchr(0, long).map(|index| SHORT + index) }
    }

    /// Returns a word whose lowest nonzero byte is the first zero byte of `word` (Warren, Hacker's Delight, 6-1); 0 without one.
    fn zero_bytes(word: u64) -> u64 {
        word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080
    }

    /// Encodes like the byte-wise version, under the same conditions.
    pub fn encode_in_place(out: &mut [u8], start: usize, end: usize) -> Option<usize> {
        let (mut read, mut write) = (start, 0);
        loop {
            let unread = out.get(read..end)?;
            let block = unread.get(..BLOCK).unwrap_or(unread);
            let run = first_zero(block).unwrap_or(block.len());
            // Moves the run behind its code byte.
            let target = out.get_mut(write..read + run)?;
            let from = read.checked_sub(write).filter(|from| *from > 0)?;
            target.copy_within(from.., 1);
            *target.first_mut()? = u8::try_from(run + 1).ok()?;
            read += run;
            write += run + 1;
            if read == end {
                break;
            }
            // A full block implies no zero; every other block implies the zero after it.
            read += usize::from(run < BLOCK);
        }
        *out.get_mut(write)? = 0;
        Some(write + 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{bytewise, encode_in_place, first_zero};

    /// Strategy for byte strings with as many zeros as in floats, with only zeros, or without zeros.
    fn byte_strings() -> impl Strategy<Value = std::vec::Vec<u8>> {
        let up_to = |max| proptest::collection::vec(0..=max, 0..1200);
        prop_oneof![
            up_to(255u8),
            up_to(1),
            up_to(20),
            up_to(0),
            up_to(255).prop_map(|b| b.iter().map(|b| b | 1).collect())
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Tests that the compiled implementation agrees with the device's.
        #[test]
        fn host_and_device_encodings_agree(bytes in byte_strings()) {
            let start = bytes.len().div_ceil(254).max(1);
            let end = start + bytes.len();
            let mut host = std::vec![0xa5; end + 1];
            host[start..end].copy_from_slice(&bytes);
            let mut device = host.clone();
            let lengths = (encode_in_place(&mut host, start, end), bytewise::encode_in_place(&mut device, start, end));
            prop_assert_eq!(lengths.0, lengths.1);
            let length = lengths.0.unwrap_or_default();
            prop_assert!(length > 0);
            prop_assert_eq!(&host[..length], &device[..length]);
            prop_assert_eq!(first_zero(&bytes), bytewise::first_zero(&bytes));
        }
    }

    #[test]
    fn encoding_without_room_does_not_panic() {
        for length in 0..6 {
            for start in 0..6 {
                for end in 0..6 {
                    let mut out = [1; 6];
                    let out = &mut out[..length];
                    let _ = encode_in_place(out, start, end);
                }
            }
        }
    }
}
