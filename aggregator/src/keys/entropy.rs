//! Source of randomness for keys, salts and nonces; its failure is an error value.

use rand_core::TryCryptoRng;

use super::KeyError;

/// Source of randomness that is fit for secrets; every [`TryCryptoRng`] is one. The program uses the system's.
pub trait Entropy: Send {
    /// Fills `bytes`.
    ///
    /// # Errors
    /// [`KeyError::NoEntropy`] if the source failed; `bytes` must not be used then.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError>;
}

impl<R: TryCryptoRng + Send> Entropy for R {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError> {
        self.try_fill_bytes(bytes).map_err(|_| KeyError::NoEntropy)
    }
}
