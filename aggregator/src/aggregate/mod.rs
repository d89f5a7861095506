//! How many updates become one.

mod mean;

pub use mean::{FixedPointMean, MAGNITUDE_MAX};
