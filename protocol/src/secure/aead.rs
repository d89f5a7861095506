//! Authenticated encryption of frames, as a trait: the software of this crate, or the hardware of a chip.

mod aes_ccm;
mod chacha20_poly1305;

#[cfg(feature = "aes-ccm")]
mod software;

use core::cell::RefCell;

use super::{KEY, SHORT_TAG, TAG};
use crate::message::SEALS_WITH_AES_CCM;

#[cfg(feature = "aes-ccm")]
pub use aes_ccm::SoftwareAes;
pub use aes_ccm::{Aes128, Aes128Ccm};
pub use chacha20_poly1305::ChaCha20Poly1305;

/// Length of the nonce of a frame, in bytes: four zeros and the frame's counter, little endian.
pub const AEAD_NONCE: usize = 12;

/// Algorithm that seals frames. A device announces it in its hello, and the hello is part of what the keys are derived from:
/// without the key it cannot be changed on the way, and no two algorithms have the same keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suite {
    /// ChaCha20-Poly1305 (RFC 8439).
    #[default]
    ChaCha20Poly1305,
    /// AES-128-CCM (RFC 3610; NIST SP 800-38C) with lengths of three bytes. The key is the first half of a direction's key.
    Aes128Ccm,
}

impl Suite {
    /// Returns the bit of [`Capabilities::roles`](crate::message::Capabilities) that announces the algorithm; 0 for the default.
    #[must_use]
    pub const fn ability(self) -> u32 {
        match self {
            Self::ChaCha20Poly1305 => 0,
            Self::Aes128Ccm => SEALS_WITH_AES_CCM,
        }
    }

    /// Returns the algorithm that a device with these [`Capabilities::roles`](crate::message::Capabilities) announces.
    #[must_use]
    pub const fn announced(roles: u32) -> Self {
        if roles & SEALS_WITH_AES_CCM == 0 { Self::ChaCha20Poly1305 } else { Self::Aes128Ccm }
    }
}

/// Authenticated encryption with associated data.
///
/// The key is of one direction of one connection, and a nonce is used once for it. `head` is authenticated, `text` is encrypted in place.
/// An implementation with hardware must pass the vectors in `protocol/vectors/check_sealed.c`, and must compare tags in constant time.
pub trait Aead {
    /// Returns the algorithm.
    fn suite(&self) -> Suite;

    /// Encrypts `text` in place and returns the tag over `head` and the encrypted text. Returns `None` if `text` is too long or
    /// the hardware fails; `text` then must not be sent.
    fn encrypt(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; AEAD_NONCE],
        head: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG]>;

    /// Verifies `tag` and decrypts `text` in place. Returns false if the tag is wrong or the hardware fails. The text is then
    /// unchanged; on a device, which opens each frame for one connection, it may be anything.
    #[must_use]
    fn decrypt(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; AEAD_NONCE],
        head: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG],
    ) -> bool;

    /// Encrypts like [`Self::encrypt`], with a short tag. Without an own function, an implementation has no short tags.
    fn encrypt_short(
        &mut self,
        _key: &[u8; KEY],
        _nonce: &[u8; AEAD_NONCE],
        _head: &[u8],
        _text: &mut [u8],
    ) -> Option<[u8; SHORT_TAG]> {
        None
    }

    /// Verifies a short tag and decrypts, like [`Self::decrypt`].
    #[must_use]
    fn decrypt_short(
        &mut self,
        _key: &[u8; KEY],
        _nonce: &[u8; AEAD_NONCE],
        _head: &[u8],
        _text: &mut [u8],
        _tag: &[u8; SHORT_TAG],
    ) -> bool {
        false
    }
}

/// Handle of an algorithm that exists once, such as the hardware of a chip. A session needs such a handle, which can be copied. An
/// algorithm that is in use fails.
impl<A: Aead> Aead for &RefCell<A> {
    fn suite(&self) -> Suite {
        self.try_borrow().map_or(Suite::default(), |aead| aead.suite())
    }

    fn encrypt(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; AEAD_NONCE],
        head: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG]> {
        self.try_borrow_mut().ok()?.encrypt(key, nonce, head, text)
    }

    fn decrypt(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; AEAD_NONCE],
        head: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG],
    ) -> bool {
        self.try_borrow_mut().is_ok_and(|mut aead| aead.decrypt(key, nonce, head, text, tag))
    }

    fn encrypt_short(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; AEAD_NONCE],
        head: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; SHORT_TAG]> {
        self.try_borrow_mut().ok()?.encrypt_short(key, nonce, head, text)
    }

    fn decrypt_short(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; AEAD_NONCE],
        head: &[u8],
        text: &mut [u8],
        tag: &[u8; SHORT_TAG],
    ) -> bool {
        self.try_borrow_mut().is_ok_and(|mut aead| aead.decrypt_short(key, nonce, head, text, tag))
    }
}

/// Returns the nonce of a frame.
pub(super) const fn nonce(counter: u64) -> [u8; AEAD_NONCE] {
    let [a, b, c, d, e, f, g, h] = counter.to_le_bytes();
    [0, 0, 0, 0, a, b, c, d, e, f, g, h]
}

/// Returns true if two tags are equal. Differences are collected, so that the time does not depend on where they are.
fn are_equal<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    core::hint::black_box(a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b))) == 0
}
