//! AES-128-CCM (RFC 3610; NIST SP 800-38C) from a function that encrypts one block, which is what many chips have in hardware.
//!
//! The `ccm` crate composes the same, but zeroes a text whose tag is wrong, which may belong to another connection of the server. The tests
//! compare this composition with that crate.

use zeroize::Zeroize;

use super::super::{KEY, SHORT_TAG, TAG};
use super::{AEAD_NONCE as NONCE, Aead, Suite, are_equal};

/// Length of a block and of a key, in bytes.
const BLOCK: usize = 16;

/// Bytes of a block that contain the length of the text, or the number of a block.
const LENGTH: usize = BLOCK - 1 - NONCE;

/// Longest text, in bytes.
const TEXT_MAX: usize = (1 << (8 * LENGTH)) - 1;

/// Longest head whose length takes two bytes.
const HEAD_MAX: usize = 0xFEFF;

/// Block cipher AES-128: hardware of a chip, or software.
///
/// ```
/// use fedspan_protocol::secure::{Aes128, Aes128Ccm};
///
/// /// Registers of a chip's peripheral, which encrypts one block.
/// struct Peripheral {
///     key: [u8; 16],
/// }
///
/// impl Aes128 for Peripheral {
///     fn set_key(&mut self, key: &[u8; 16]) -> Option<()> {
///         self.key = *key;
///         Some(())
///     }
///
///     fn encrypt_block(&mut self, block: &mut [u8; 16]) -> Option<()> {
///         // Here the peripheral's DMA is started and awaited; an error or a timeout gives `None`.
///         block.iter_mut().zip(self.key).for_each(|(byte, key)| *byte ^= key);
///         Some(())
///     }
/// }
///
/// let _aead = Aes128Ccm::new(Peripheral { key: [0; 16] });
/// ```
pub trait Aes128 {
    /// Sets the key of all following blocks. Returns `None` if the hardware fails.
    fn set_key(&mut self, key: &[u8; BLOCK]) -> Option<()>;

    /// Encrypts a block in place. Returns `None` if the hardware fails; nothing is then sent. A failure that is not reported, such as a
    /// key stream of zeros, would send plain text.
    fn encrypt_block(&mut self, block: &mut [u8; BLOCK]) -> Option<()>;
}

/// AES-128-CCM over a block cipher.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aes128Ccm<B> {
    cipher: B,
}

impl<B: Aes128> Aes128Ccm<B> {
    /// Creates the algorithm over a block cipher.
    pub const fn new(cipher: B) -> Self {
        Self { cipher }
    }

    /// Encrypts, and returns a tag of `N` bytes.
    fn seal<const N: usize>(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; N]> {
        self.set_key(key)?;
        let tag = self.tag(nonce, head, text)?;
        self.apply_key_stream(nonce, text)?;
        Some(tag)
    }

    /// Decrypts, and encrypts again if the tag is wrong.
    fn open<const N: usize>(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
        tag: &[u8; N],
    ) -> bool {
        if self.set_key(key).is_none() || text.len() > TEXT_MAX {
            return false;
        }
        if self.apply_key_stream(nonce, text).is_none() {
            return false;
        }
        let is_authentic = self.tag(nonce, head, text).is_some_and(|expected| are_equal(&expected, tag));
        is_authentic || self.apply_key_stream(nonce, text).is_some_and(|()| false)
    }

    /// Sets the first half of a direction's key.
    fn set_key(&mut self, key: &[u8; KEY]) -> Option<()> {
        self.cipher.set_key(key.first_chunk()?)
    }

    /// Returns the encrypted tag of a text that is not encrypted. The key must be set.
    fn tag<const N: usize>(&mut self, nonce: &[u8; NONCE], head: &[u8], text: &[u8]) -> Option<[u8; N]> {
        if text.len() > TEXT_MAX || head.len() > HEAD_MAX {
            return None;
        }
        let flags = (if head.is_empty() { 0 } else { 1 << 6 }) | ((N as u8 - 2) / 2) << 3;
        let mut state = start(flags, nonce, text.len() as u32);
        self.cipher.encrypt_block(&mut state)?;
        if !head.is_empty() {
            let length = (head.len() as u16).to_be_bytes();
            self.absorb(&mut state, length.iter().chain(head))?;
        }
        self.absorb(&mut state, text.iter())?;
        let mut pad = start(0, nonce, 0);
        self.cipher.encrypt_block(&mut pad)?;
        let mut tag = [0; N];
        for ((target, byte), key_byte) in tag.iter_mut().zip(state).zip(pad) {
            *target = byte ^ key_byte;
        }
        state.zeroize();
        pad.zeroize();
        Some(tag)
    }

    /// Absorbs bytes into the state of the CBC-MAC, with zeros up to a whole block.
    fn absorb<'a>(&mut self, state: &mut [u8; BLOCK], mut bytes: impl Iterator<Item = &'a u8>) -> Option<()> {
        loop {
            let mut count = 0;
            for (target, byte) in state.iter_mut().zip(bytes.by_ref()) {
                *target ^= byte;
                count += 1;
            }
            if count > 0 {
                self.cipher.encrypt_block(state)?;
            }
            if count < BLOCK {
                return Some(());
            }
        }
    }

    /// Encrypts or decrypts a text: XORs it with the key stream. The key must be set.
    fn apply_key_stream(&mut self, nonce: &[u8; NONCE], text: &mut [u8]) -> Option<()> {
        for (number, bytes) in (1..).zip(text.chunks_mut(BLOCK)) {
            let mut block = start(0, nonce, number);
            self.cipher.encrypt_block(&mut block)?;
            for (byte, key_byte) in bytes.iter_mut().zip(block) {
                *byte ^= key_byte;
            }
            block.zeroize();
        }
        Some(())
    }
}

/// Returns the block of these flags and a number of [`LENGTH`] bytes.
fn start(flags: u8, nonce: &[u8; NONCE], number: u32) -> [u8; BLOCK] {
    let [_, high, middle, low] = number.to_be_bytes();
    let mut block = [0; BLOCK];
    let bytes = [flags | (LENGTH as u8 - 1)].into_iter().chain(*nonce).chain([high, middle, low]);
    block.iter_mut().zip(bytes).for_each(|(target, byte)| *target = byte);
    block
}

impl<B: Aes128> Aead for Aes128Ccm<B> {
    fn suite(&self) -> Suite {
        Suite::Aes128Ccm
    }

    fn encrypt(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG]> {
        self.seal(key, nonce, head, text)
    }

    fn decrypt(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG],
    ) -> bool {
        self.open(key, nonce, head, text, tag)
    }

    fn encrypt_short(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; SHORT_TAG]> {
        self.seal(key, nonce, head, text)
    }

    fn decrypt_short(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
        tag: &[u8; SHORT_TAG],
    ) -> bool {
        self.open(key, nonce, head, text, tag)
    }
}

/// AES-128 in software, in constant time: the crate `aes`.
#[cfg(feature = "aes-ccm")]
#[derive(Clone, Default)]
pub struct SoftwareAes {
    cipher: Option<aes::Aes128>,
}

#[cfg(feature = "aes-ccm")]
impl Aes128 for SoftwareAes {
    fn set_key(&mut self, key: &[u8; BLOCK]) -> Option<()> {
        use aes::cipher::KeyInit;
        self.cipher = Some(aes::Aes128::new(key.into()));
        Some(())
    }

    fn encrypt_block(&mut self, block: &mut [u8; BLOCK]) -> Option<()> {
        use aes::cipher::BlockCipherEncrypt;
        self.cipher.as_ref()?.encrypt_block(block.into());
        Some(())
    }
}

#[cfg(feature = "aes-ccm")]
impl core::fmt::Debug for SoftwareAes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SoftwareAes { key: secret }")
    }
}

#[cfg(all(test, feature = "aes-ccm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
