//! The options of `fedspan-aggregator adapter`: averaging and checking files, and serving rounds.

pub mod files;
pub mod serve;
