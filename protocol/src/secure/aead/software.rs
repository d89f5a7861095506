//! Algorithms in software, chosen at run time: for a server whose devices choose.

use super::super::{KEY, SHORT_TAG, TAG};
use super::{AEAD_NONCE as NONCE, Aead, Aes128Ccm, ChaCha20Poly1305, SoftwareAes, Suite};

impl Suite {
    /// Calls a function with the algorithm. It keeps no key, so that a server has none for each of its connections.
    fn with<R>(self, call: impl FnOnce(&mut dyn Aead) -> R) -> R {
        match self {
            Self::ChaCha20Poly1305 => call(&mut ChaCha20Poly1305),
            Self::Aes128Ccm => call(&mut Aes128Ccm::<SoftwareAes>::default()),
        }
    }
}

/// The algorithm in software.
impl Aead for Suite {
    fn suite(&self) -> Suite {
        *self
    }

    fn encrypt(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG]> {
        self.with(|aead| aead.encrypt(key, nonce, head, text))
    }

    fn decrypt(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG],
    ) -> bool {
        self.with(|aead| aead.decrypt(key, nonce, head, text, tag))
    }

    fn encrypt_short(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; SHORT_TAG]> {
        self.with(|aead| aead.encrypt_short(key, nonce, head, text))
    }

    fn decrypt_short(
        &mut self,
        key: &[u8; KEY],
        nonce: &[u8; NONCE],
        head: &[u8],
        text: &mut [u8],
        tag: &[u8; SHORT_TAG],
    ) -> bool {
        self.with(|aead| aead.decrypt_short(key, nonce, head, text, tag))
    }
}
