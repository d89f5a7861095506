//! What every connection of a server needs to answer a hello: who may take part, what they are told, their keys.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use fedspan_protocol::limits::HELLO_FRAME_MAX;
use fedspan_protocol::message::{Hello, Refusal, Welcome};
use fedspan_protocol::secure::NONCE;

use crate::keys::{ActiveKeys, Entropy};
use fedspan_engine::admission::Requirements;

/// The keys of a server, and its randomness.
struct Secrets {
    keys: ActiveKeys,
    entropy: Mutex<Box<dyn Entropy>>,
}

/// Shared by all connections of a server.
pub struct Acceptor {
    requirements: Requirements,
    welcome: Welcome,
    /// `None`: frames are not encrypted.
    secrets: Option<Secrets>,
}

impl Acceptor {
    /// Frames are not encrypted: for a bench, and for simulations.
    #[must_use]
    pub fn plaintext(requirements: Requirements, welcome: Welcome) -> Self {
        Self { requirements, welcome, secrets: None }
    }

    /// Devices prove that they have their key of `keys`. `entropy` is the source of the server's nonces.
    #[must_use]
    pub fn encrypted(
        requirements: Requirements,
        welcome: Welcome,
        keys: ActiveKeys,
        entropy: Box<dyn Entropy>,
    ) -> Self {
        Self { requirements, welcome, secrets: Some(Secrets { keys, entropy: Mutex::new(entropy) }) }
    }

    /// The keys; `None` where frames are not encrypted.
    pub(super) fn keys(&self) -> Option<&ActiveKeys> {
        self.secrets.as_ref().map(|secrets| &secrets.keys)
    }

    /// A fresh nonce; `None` if there is no randomness to be had.
    pub(super) fn nonce(&self) -> Option<[u8; NONCE]> {
        let mut nonce = [0; NONCE];
        let mut entropy = self.secrets.as_ref()?.entropy.lock().unwrap_or_else(PoisonError::into_inner);
        entropy.fill(&mut nonce).ok()?;
        Some(nonce)
    }

    /// What a device is told that may take part.
    pub(super) fn welcome(&self) -> Welcome {
        self.welcome
    }

    /// Whether a device may take part.
    pub(super) fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        self.requirements.admit(hello)
    }

    /// Bytes of the longest frame that a device with this frame limit has a reason to send.
    pub(super) fn longest_frame(&self, limit: usize) -> usize {
        self.requirements.longest_upload().max(HELLO_FRAME_MAX).min(limit)
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor")
            .field("welcome", &self.welcome)
            .field("encrypted", &self.secrets.is_some())
            .finish_non_exhaustive()
    }
}
