//! Configuration of the device server: the engine's sections with those for limits and security, and the
//! fingerprints of stored campaigns.

mod fingerprint;
mod fleet;
mod limits;
mod security;

pub use fingerprint::{Mismatch, Resumed, difference};
pub use fleet::Fleet;
pub use limits::{Limits, RoundsSection};
pub use security::Security;
