//! Configuration of the device server: the parser of `fleet.toml`, a builder for programs without a file, and
//! the fingerprints with which stored campaigns are compared.

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
