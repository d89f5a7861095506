//! ChaCha20-Poly1305 (RFC 8439, section 2.8), composed from RustCrypto's audited crates `chacha20` and
//! `poly1305`.
//!
//! The `chacha20poly1305` crate composes the same two crates, but its code can reach a panic (at the end of a
//! key stream of 256 GiB), and firmware must link without panics. The tests compare this composition with
//! that crate.

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use poly1305::Poly1305;
use poly1305::universal_hash::{KeyInit, UniversalHash};
use zeroize::Zeroize;

use super::{KEY, TAG};

/// Length of a nonce, in bytes.
pub const NONCE: usize = 12;

/// Length of a block of the key stream, in bytes. The first block contains the authenticator's key; the later
/// blocks encrypt the text.
const BLOCK: usize = 64;

/// Returns the nonce of a frame: four zeros and the frame's counter, little endian.
pub const fn nonce(counter: u64) -> [u8; NONCE] {
    let [a, b, c, d, e, f, g, h] = counter.to_le_bytes();
    [0, 0, 0, 0, a, b, c, d, e, f, g, h]
}

/// Encrypts `text` in place and returns the tag over `head` and the encrypted text. Returns `None` if `text`
/// is longer than the key stream; the text is then partly encrypted and must not be sent.
pub fn encrypt(key: &[u8; KEY], nonce: &[u8; NONCE], head: &[u8], text: &mut [u8]) -> Option<[u8; TAG]> {
    apply_key_stream(key, nonce, BLOCK, text)?;
    Some(compute_authenticator(key, nonce, head, text)?.finalize().into())
}

/// Verifies `tag`, and only then decrypts `text` in place. Returns false and leaves `text` unchanged if the
/// tag is wrong.
#[must_use]
pub fn decrypt(key: &[u8; KEY], nonce: &[u8; NONCE], head: &[u8], text: &mut [u8], tag: &[u8; TAG]) -> bool {
    let Some(mac) = compute_authenticator(key, nonce, head, text) else { return false };
    // The comparison takes constant time.
    mac.verify(&(*tag).into()).is_ok() && apply_key_stream(key, nonce, BLOCK, text).is_some()
}

/// Applies the key stream from byte `offset`, a multiple of [`BLOCK`]. Not inlined, so that the states of the
/// cipher and the authenticator are not on a device's stack at the same time.
#[cfg_attr(target_os = "none", inline(never))]
fn apply_key_stream(key: &[u8; KEY], nonce: &[u8; NONCE], offset: usize, text: &mut [u8]) -> Option<()> {
    let mut stream = ChaCha20::new(key.into(), nonce.into());
    stream.try_seek(offset).ok()?;
    stream.try_apply_keystream(text).ok()
}

/// Returns the authenticator over `head`, `text`, and the lengths of the two.
#[cfg_attr(target_os = "none", inline(never))]
fn compute_authenticator(key: &[u8; KEY], nonce: &[u8; NONCE], head: &[u8], text: &[u8]) -> Option<Poly1305> {
    let mut block = [0; BLOCK];
    apply_key_stream(key, nonce, 0, &mut block)?;
    let mut mac = Poly1305::new(block.first_chunk::<KEY>()?.into());
    block.zeroize();
    mac.update_padded(head);
    mac.update_padded(text);
    let lengths = (text.len() as u128) << 64 | head.len() as u128;
    mac.update(&[lengths.to_le_bytes().into()]);
    Some(mac)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
