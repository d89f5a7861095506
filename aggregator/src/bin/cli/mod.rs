//! Commands of the device server, one module each.

pub mod devices;
pub mod keys;
pub mod noise;
pub mod serve;
pub mod status;
mod status_text;
pub mod unlock;
