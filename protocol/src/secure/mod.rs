//! Authenticated encryption of every frame after the hello, from a pre-shared key: a handshake derives fresh
//! keys and authenticates both sides, and the keys seal all later frames.
//!
//! ```text
//!   device                                                server
//!     | -- Hello | epoch, handshake, nonce (in the clear) -->  |
//!     | <-- nonce | sealed Welcome or Refused ---------------  |   the server has the key
//!     | -- sealed Alive ------------------------------------>  |   the device has it
//!     | <-- sealed RoundOpen ... sealed Update --> ...         |
//! ```
//!
//! The construction is Noise's `NNpsk0` without ephemeral keys: HKDF-SHA256 (RFC 5869) over the key and both
//! sides' messages gives one key per direction, ChaCha20-Poly1305 (RFC 8439) seals frames, and counters are
//! the nonces. `SPEC.md` describes it step by step. The primitives are RustCrypto's; this module contains
//! only their composition.
//!
//! There is no forward secrecy: an attacker who steals a device's key can decrypt recorded traffic.

mod aead;
mod channel;
mod fields;
mod handshake_init;
mod key;
mod noise;
mod provision;
mod schedule;
mod window;

#[cfg(feature = "aes-ccm")]
pub use aead::SoftwareAes;
pub use aead::{AEAD_NONCE, Aead, Aes128, Aes128Ccm, ChaCha20Poly1305, Suite};
#[cfg(feature = "short-seals")]
pub use channel::Seals;
pub use channel::{Channel, OpenError, answer_nonce, is_answer};
pub use handshake_init::{HANDSHAKE_INIT, HandshakeInit, encode_hello, transcript};
pub use key::{KEY, Key};
pub use noise::ProvisionedNoise;
pub use provision::{
    PROVISION, PROVISION_MAGIC, PROVISION_MAX, PROVISION_VERSION, PROVISION_WITH_NOISE, Provision,
    ProvisionError,
};
#[cfg(feature = "key-rotation")]
pub use schedule::check_value;
pub use schedule::{derive, refusal_tag};
pub use window::{WINDOW, Window};

/// Number of random bytes that each side contributes to a handshake.
pub const NONCE: usize = 16;

/// Length of a frame's counter, in bytes.
pub const COUNTER: usize = 8;

/// Length of a frame's tag, in bytes.
pub const TAG: usize = 16;

/// Length of a short counter, in bytes: the low bytes of the counter.
pub const SHORT_COUNTER: usize = 2;

/// Length of a short tag, in bytes: computed from the whole tag.
pub const SHORT_TAG: usize = 8;
