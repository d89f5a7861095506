//! Hexadecimal encoding of 32-byte keys as 64 digits.

use zeroize::Zeroizing;

/// Appends the 64 digits of 32 bytes to `text`, in lower case.
pub fn encode(bytes: &[u8; 32], text: &mut String) {
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(nibble.into(), 16).unwrap_or('0'));
        }
    }
}

/// Decodes exactly 64 digits in upper or lower case; `None` for any other text.
pub fn decode(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut bytes = Zeroizing::new([0; 32]);
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            let nibble = char::from(*digit).to_digit(16)?;
            *byte = *byte << 4 | u8::try_from(nibble).ok()?;
        }
    }
    Some(bytes)
}
