//! Configuration of the device server: the engine's sections with those for limits and security, and the
//! fingerprints of stored campaigns.

mod fingerprint;
mod fleet;
mod fleet_builder;
mod limits;
mod security;

pub use fedspan_engine::config::{Problem, SettingValue};
pub use fingerprint::{Mismatch, Resumed, difference};
pub use fleet::Fleet;
pub use fleet_builder::FleetBuilder;
pub use limits::{Limits, RoundsSection};
pub use security::Security;
