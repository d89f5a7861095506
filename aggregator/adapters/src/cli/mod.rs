//! Options and commands of `fedspan-aggregator adapter`: averaging and checking files, serving rounds.

pub mod files;
pub mod serve;
