//! The device server's configuration: the campaign's sections with those of limits and security, and fingerprints of stored
//! campaigns.

mod fingerprint;
mod fleet;
mod limits;
mod security;

pub use fingerprint::{Mismatch, Resumed, difference};
pub use fleet::Fleet;
pub use limits::{Limits, RoundsSection};
pub use security::Security;
