//! ChaCha20-Poly1305 (RFC 8439, section 2.8), composed from RustCrypto's audited crates `chacha20` and
//! `poly1305`.
//!
//! The `chacha20poly1305` crate composes the same two crates, but its code can reach a panic (at the end of a
//! key stream of 256 GiB), and firmware must link without panics. The tests compare this composition with
//! that crate.

use core::slice::from_mut;

use chacha20::cipher::{Block, KeyIvInit, StreamCipherCore};
use chacha20::variants::Ietf;
use chacha20::{ChaChaCore, R20};
use poly1305::Poly1305;
use poly1305::universal_hash::{KeyInit, UniversalHash};
use zeroize::Zeroize;

#[cfg(feature = "short-seals")]
use super::super::SHORT_TAG;
use super::super::{KEY, TAG};
use super::{AEAD_NONCE as NONCE, Aead, Suite};

/// ChaCha20-Poly1305 in software: fast and in constant time on every core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChaCha20Poly1305;

impl Aead for ChaCha20Poly1305 {
    fn suite(&self) -> Suite {
        Suite::ChaCha20Poly1305
    }

    // Inlined, as the other functions: a call with six arguments would take stack.
    #[inline(always)]
    fn encrypt(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG]> {
        encrypt(key, nonce, head, text)
    }

    #[inline(always)]
    fn decrypt(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG],
    ) -> bool {
        decrypt(key, nonce, head, text, tag)
    }

    #[cfg(feature = "short-seals")]
    fn encrypt_short(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; SHORT_TAG]> {
        encrypt(key, nonce, head, text).and_then(|full| shorten_tag(key, nonce, full))
    }

    #[cfg(feature = "short-seals")]
    fn decrypt_short(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
        tag: &[u8; SHORT_TAG],
    ) -> bool {
        decrypt_short(key, nonce, head, text, tag)
    }
}

/// Length of a block of the key stream, in bytes. The first block contains the authenticator's key; the later
/// blocks encrypt the text.
const BLOCK: usize = 64;

/// Block function of ChaCha20, the one that the noise of private updates uses too.
type Cipher = ChaChaCore<R20, Ietf>;

/// Encrypts `text` in place and returns the tag over `head` and the encrypted text. Returns `None` if `text`
/// is longer than the key stream; the text is then partly encrypted and must not be sent.
#[cfg(all(feature = "wide", not(target_os = "none")))]
fn encrypt(key: &[u8; KEY], nonce: &[u8; NONCE], head: &[u8], text: &mut [u8]) -> Option<[u8; TAG]> {
    let mut stream = KeyStream::new(key, nonce);
    stream.apply(text)?;
    Some(stream.authenticate(head, text)?.finalize().into())
}

/// Verifies `tag`, and only then decrypts `text` in place. Returns false and leaves `text` unchanged if the
/// tag is wrong.
#[cfg(all(feature = "wide", not(target_os = "none")))]
#[must_use]
fn decrypt(key: &[u8; KEY], nonce: &[u8; NONCE], head: &[u8], text: &mut [u8], tag: &[u8; TAG]) -> bool {
    let mut stream = KeyStream::new(key, nonce);
    let Some(mac) = stream.authenticate(head, text) else { return false };
    // The comparison takes constant time.
    mac.verify(&(*tag).into()).is_ok() && stream.apply(text).is_some()
}

/// Encrypts `text` in place and returns the tag over `head` and the encrypted text. Returns `None` if `text`
/// is longer than the key stream; the text is then partly encrypted and must not be sent.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
fn encrypt(key: &[u8; KEY], nonce: &[u8; NONCE], head: &[u8], text: &mut [u8]) -> Option<[u8; TAG]> {
    apply_key_stream(key, nonce, 1, text)?;
    Some(compute_authenticator(key, nonce, head, text)?.finalize().into())
}

/// Verifies `tag`, and only then decrypts `text` in place. Returns false and leaves `text` unchanged if the
/// tag is wrong.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
#[must_use]
fn decrypt(key: &[u8; KEY], nonce: &[u8; NONCE], head: &[u8], text: &mut [u8], tag: &[u8; TAG]) -> bool {
    let Some(mac) = compute_authenticator(key, nonce, head, text) else { return false };
    // The comparison takes constant time.
    mac.verify(&(*tag).into()).is_ok() && apply_key_stream(key, nonce, 1, text).is_some()
}

/// Verifies a short tag, and only then decrypts, like [`decrypt`].
#[cfg(feature = "short-seals")]
#[must_use]
fn decrypt_short(
    key: &[u8; KEY],
    nonce: &[u8; NONCE],
    head: &[u8],
    text: &mut [u8],
    tag: &[u8; SHORT_TAG],
) -> bool {
    let Some(mac) = compute_authenticator(key, nonce, head, text) else { return false };
    let Some(computed) = shorten_tag(key, nonce, mac.finalize().into()) else { return false };
    // Differences are collected, so that the time does not depend on where they are.
    let difference = computed.iter().zip(tag).fold(0, |difference, (a, b)| difference | (a ^ b));
    core::hint::black_box(difference) == 0 && apply_key_stream(key, nonce, 1, text).is_some()
}

/// Returns the short form of the tag that [`encrypt`] returned.
///
/// The first bytes of a Poly1305 tag are not a good short tag: Poly1305 bounds the probability of a whole difference of two tags
/// (Bernstein, The Poly1305-AES message-authentication code, 2005, theorem 3.3), and 2^64 differences have the same first bytes.
/// Therefore the tag is the input, nonce and block number, of a block of ChaCha20 under the second half of the block whose first half is
/// the key of Poly1305. That key is used for this frame only. Two frames have the same input with probability at most 2^-92 (theorem
/// 3.3, frames of up to 16 KiB), and the first bytes of the output are as unpredictable as a key stream.
#[cfg(feature = "short-seals")]
#[cfg_attr(target_os = "none", inline(never))]
fn shorten_tag(key: &[u8; KEY], nonce: &[u8; NONCE], tag: [u8; TAG]) -> Option<[u8; SHORT_TAG]> {
    let mut block = [0; BLOCK];
    apply_key_stream(key, nonce, 0, &mut block)?;
    let (input, position) = tag.split_first_chunk::<NONCE>()?;
    let mut cipher = Cipher::new(block.last_chunk::<KEY>()?.into(), input.into());
    cipher.set_block_pos(u32::from_le_bytes(*position.first_chunk()?));
    let mut output = Block::<Cipher>::default();
    cipher.write_keystream_block(&mut output);
    block.zeroize();
    output.first_chunk().copied()
}

/// Applies the key stream from block `first` on. Returns `None` if the stream is shorter than `text`. Not inlined, so that the
/// states of the cipher and the authenticator are not on a device's stack at the same time.
#[cfg_attr(target_os = "none", inline(never))]
fn apply_key_stream(key: &[u8; KEY], nonce: &[u8; NONCE], first: u32, text: &mut [u8]) -> Option<()> {
    // The cipher's own functions for bytes would compile its rounds a second time.
    u32::try_from(text.len() / BLOCK).ok()?.checked_add(first)?.checked_add(1)?;
    let mut cipher = Cipher::new(key.into(), nonce.into());
    cipher.set_block_pos(first);
    let (blocks, rest) = Block::<Cipher>::slice_as_chunks_mut(text);
    cipher.apply_keystream_blocks(blocks);
    if !rest.is_empty() {
        let mut last = Block::<Cipher>::default();
        cipher.apply_keystream_blocks(from_mut(&mut last));
        for (byte, key_byte) in rest.iter_mut().zip(&last) {
            *byte ^= key_byte;
        }
        last.zeroize();
    }
    Some(())
}

/// Returns the authenticator over `head`, `text`, and the lengths of the two.
#[cfg_attr(target_os = "none", inline(never))]
fn compute_authenticator(key: &[u8; KEY], nonce: &[u8; NONCE], head: &[u8], text: &[u8]) -> Option<Poly1305> {
    let mut block = [0; BLOCK];
    apply_key_stream(key, nonce, 0, &mut block)?;
    let mut mac = Poly1305::new(block.first_chunk::<KEY>()?.into());
    block.zeroize();
    authenticate(&mut mac, head, text);
    Some(mac)
}

/// Authenticates `head`, `text`, and the lengths of the two.
#[inline(always)]
fn authenticate(mac: &mut Poly1305, head: &[u8], text: &[u8]) {
    mac.update_padded(head);
    mac.update_padded(text);
    let lengths = (text.len() as u128) << 64 | head.len() as u128;
    mac.update(&[lengths.to_le_bytes().into()]);
}

/// Number of blocks that a host's instructions compute in the time of one.
#[cfg(all(feature = "wide", not(target_os = "none")))]
const PARALLEL: usize = 4;

/// Key stream of a frame on a host, in groups of [`PARALLEL`] blocks. A device computes one block at a time, in less flash.
#[cfg(all(feature = "wide", not(target_os = "none")))]
struct KeyStream {
    cipher: Cipher,
    /// First group, which begins with the block of the authenticator.
    first: [Block<Cipher>; PARALLEL],
}

#[cfg(all(feature = "wide", not(target_os = "none")))]
impl KeyStream {
    fn new(key: &[u8; KEY], nonce: &[u8; NONCE]) -> Self {
        let mut cipher = Cipher::new(key.into(), nonce.into());
        let mut first = <[Block<Cipher>; PARALLEL]>::default();
        cipher.write_keystream_blocks(&mut first);
        Self { cipher, first }
    }

    /// Returns the authenticator over `head`, `text`, and the lengths of the two.
    fn authenticate(&self, head: &[u8], text: &[u8]) -> Option<Poly1305> {
        let mut mac = Poly1305::new(self.first.first()?.first_chunk::<KEY>()?.into());
        authenticate(&mut mac, head, text);
        Some(mac)
    }

    /// Applies the key stream after the authenticator's block, once. Returns `None` if the stream is shorter than `text`.
    fn apply(&mut self, text: &mut [u8]) -> Option<()> {
        u32::try_from(text.len() / BLOCK).ok()?.checked_add(2 * PARALLEL as u32)?;
        let (begin, text) = text.split_at_mut(text.len().min((PARALLEL - 1) * BLOCK));
        add(begin, self.first.iter().skip(1));
        let (blocks, _) = Block::<Cipher>::slice_as_chunks_mut(text);
        let whole = blocks.len() / PARALLEL * PARALLEL;
        self.cipher.apply_keystream_blocks(blocks.get_mut(..whole)?);
        let end = text.get_mut(whole * BLOCK..).filter(|end| !end.is_empty());
        if let Some(end) = end {
            let mut last = <[Block<Cipher>; PARALLEL]>::default();
            self.cipher.write_keystream_blocks(&mut last);
            add(end, last.iter());
            last.iter_mut().for_each(|block| block.zeroize());
        }
        Some(())
    }
}

#[cfg(all(feature = "wide", not(target_os = "none")))]
impl Drop for KeyStream {
    fn drop(&mut self) {
        self.first.iter_mut().for_each(|block| block.zeroize());
    }
}

/// Adds blocks of the key stream to a text, modulo 2.
#[cfg(all(feature = "wide", not(target_os = "none")))]
fn add<'a>(text: &mut [u8], stream: impl Iterator<Item = &'a Block<Cipher>>) {
    for (part, block) in text.chunks_mut(BLOCK).zip(stream) {
        part.iter_mut().zip(block).for_each(|(byte, key_byte)| *byte ^= key_byte);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
