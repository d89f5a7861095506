//! Commands of the device server, one module each.

pub mod keys;
pub mod noise;
pub mod serve;
pub mod status;
pub mod unlock;
