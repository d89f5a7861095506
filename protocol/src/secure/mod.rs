//! Authenticated encryption of every frame after hello: a key that device and server share, a handshake that gives
//! both fresh keys and proves each to the other, and frames that are sealed with them.
//!
//! ```text
//!   device                                                server
//!     | -- Hello | epoch, handshake, nonce (in the clear) -->  |
//!     | <-- nonce | sealed Welcome or Refused ---------------  |   the server has the key
//!     | -- sealed Alive ------------------------------------>  |   the device has it
//!     | <-- sealed RoundOpen ... sealed Update --> ...         |
//! ```
//!
//! The composition is that of Noise's `NNpsk0` without its ephemeral keys: HKDF-SHA256 (RFC 5869) over the key and
//! both sides' messages gives a key for each direction, ChaCha20-Poly1305 (RFC 8439) seals, counters are nonces.
//! `SPEC.md` states it step by step. The primitives are RustCrypto's; nothing here is made by hand but their order.
//!
//! Whoever steals a device's key can read what was recorded on its wire before: there is no ephemeral exchange.

mod aead;
mod channel;
mod handshake_init;
mod key;
mod noise;
mod provision;
mod schedule;
mod window;

pub use channel::{Channel, OpenError, answer_nonce, is_answer};
pub use handshake_init::{HANDSHAKE_INIT, HandshakeInit, encode_hello, transcript};
pub use key::{KEY, Key};
pub use noise::ProvisionedNoise;
pub use provision::{
    PROVISION, PROVISION_MAGIC, PROVISION_MAX, PROVISION_VERSION, PROVISION_WITH_NOISE, Provision,
    ProvisionError,
};
pub use schedule::derive;
pub use window::{WINDOW, Window};

/// Bytes of randomness that each side adds to a handshake.
pub const NONCE: usize = 16;

/// Bytes of a frame's counter.
pub const COUNTER: usize = 8;

/// Bytes of a frame's tag.
pub const TAG: usize = 16;
