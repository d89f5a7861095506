//! Handshake parameters that all connections of a server share: admission requirements, welcome and keys.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use fedspan_protocol::limits::HELLO_FRAME_MAX;
use fedspan_protocol::message::{Hello, Refusal, Welcome};
use fedspan_protocol::secure::{NONCE, Seals};

use crate::keys::{ActiveKeys, Entropy};
use fedspan_engine::admission::Requirements;

/// Keys of the devices, and the source of the server's nonces.
struct Secrets {
    keys: ActiveKeys,
    entropy: Mutex<Box<dyn Entropy>>,
}

/// Handshake parameters, shared by all connections of a server.
pub struct Acceptor {
    requirements: Requirements,
    welcome: Welcome,
    /// Keys and nonces; `None` if frames are not encrypted.
    secrets: Option<Secrets>,
    /// True if devices may seal with short tags.
    short_tags: bool,
    /// Longest beacon in bytes of the decoded frame; `None` if no beacons are sent.
    longest_beacon: Option<usize>,
    /// Number of the newest round whose beacon was sent.
    beacon_sent: AtomicU32,
}

impl Acceptor {
    /// Creates an acceptor without encryption, for test benches and simulations.
    #[must_use]
    pub fn plaintext(requirements: Requirements, welcome: Welcome) -> Self {
        Self {
            requirements,
            welcome,
            secrets: None,
            short_tags: true,
            longest_beacon: None,
            beacon_sent: AtomicU32::new(0),
        }
    }

    /// Creates an acceptor that requires devices to prove their keys. `entropy` supplies the server's nonces.
    #[must_use]
    pub fn encrypted(
        requirements: Requirements,
        welcome: Welcome,
        keys: ActiveKeys,
        entropy: Box<dyn Entropy>,
    ) -> Self {
        let secrets = Some(Secrets { keys, entropy: Mutex::new(entropy) });
        Self {
            requirements,
            welcome,
            secrets,
            short_tags: true,
            longest_beacon: None,
            beacon_sent: AtomicU32::new(0),
        }
    }

    /// Returns the acceptor with or without short tags: without them, frames that a device seals with short tags are dropped and
    /// counted as forged. They are allowed by default.
    #[must_use]
    pub fn with_short_tags(self, short_tags: bool) -> Self {
        Self { short_tags, ..self }
    }

    /// Returns the acceptor of a server that opens rounds by beacons on the devices that receive them, as long as the decoded frame has at
    /// most `longest` bytes. Each connection then asks for beacons ([`Connection::take_beacon`](super::Connection::take_beacon)).
    #[must_use]
    pub fn with_beacons(self, longest: usize) -> Self {
        Self { longest_beacon: Some(longest), ..self }
    }

    /// Records that the beacon of a round is being sent: devices that come later get an opening of their own. Returns false if it, or
    /// that of a later round, was sent before.
    pub fn begin_beacon(&self, round: u32) -> bool {
        self.beacon_sent.fetch_max(round, Ordering::Relaxed) < round
    }

    /// Returns the length of the longest beacon; `None` if the beacon of this round was sent, or no beacons are sent.
    pub(super) fn longest_beacon(&self, round: u32) -> Option<usize> {
        self.longest_beacon.filter(|_| round > self.beacon_sent.load(Ordering::Relaxed))
    }

    /// Returns the forms of sealed frames that are accepted.
    pub(super) fn seals(&self) -> Seals {
        if self.short_tags { Seals::Either } else { Seals::Full }
    }

    /// Returns the keys; `None` if frames are not encrypted.
    pub(super) fn keys(&self) -> Option<&ActiveKeys> {
        self.secrets.as_ref().map(|secrets| &secrets.keys)
    }

    /// Draws a nonce; `None` if the source of randomness fails.
    pub(super) fn nonce(&self) -> Option<[u8; NONCE]> {
        let mut nonce = [0; NONCE];
        let mut entropy = self.secrets.as_ref()?.entropy.lock().unwrap_or_else(PoisonError::into_inner);
        entropy.fill(&mut nonce).ok()?;
        Some(nonce)
    }

    /// Returns the welcome for admitted devices.
    pub(super) fn welcome(&self) -> Welcome {
        self.welcome
    }

    /// Checks whether a device may take part over a link that carries frames of at most `longest_frame` bytes.
    pub(super) fn admit(&self, hello: &Hello, longest_frame: usize) -> Result<(), Refusal> {
        self.requirements.admit_over(hello, longest_frame)
    }

    /// Returns the length of the longest frame that a device with this frame limit has to send.
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
