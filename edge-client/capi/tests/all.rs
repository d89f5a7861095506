//! Tests of the interface to C.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod c_programs;
mod header;
mod interface;
mod time;
