//! Commands that are longer than a few lines.

pub mod keys;
pub mod noise;
pub mod serve;
pub mod status;
pub mod unlock;
