//! Tests of the command `fedspan-aggregator adapter` as a process: averages and checks of files, and the HTTP
//! server.

#[allow(dead_code, reason = "shared with the tests of fedspan-adapters, which use all of it")]
#[path = "../../adapters/tests/common/mod.rs"]
mod common;

mod command;
mod serve;
