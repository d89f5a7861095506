//! Where keys, salts and nonces come from: a source that may fail, as a value.

use rand_core::TryCryptoRng;

use super::KeyError;

/// A source of randomness fit for secrets: every [`TryCryptoRng`] is one. The binary passes the system's.
pub trait Entropy: Send {
    /// Fills `bytes`.
    ///
    /// # Errors
    /// [`KeyError::NoEntropy`] if the source failed; `bytes` are not to be used then.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError>;
}

impl<R: TryCryptoRng + Send> Entropy for R {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError> {
        self.try_fill_bytes(bytes).map_err(|_| KeyError::NoEntropy)
    }
}
