//! Trait for the source of randomness for keys, salts and nonces.

use rand_core::TryCryptoRng;

use super::KeyError;

/// Source of randomness for secrets. Every [`TryCryptoRng`] implements the trait; the program uses the
/// operating system's.
pub trait Entropy: Send {
    /// Fills `bytes`.
    ///
    /// # Errors
    /// [`KeyError::NoEntropy`] if the source failed; `bytes` must not be used after an error.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError>;
}

impl<R: TryCryptoRng + Send> Entropy for R {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError> {
        self.try_fill_bytes(bytes).map_err(|_| KeyError::NoEntropy)
    }
}
