//! Tests of adapter files and of their rounds over HTTP. All test files form one program, because linking a
//! program per file would take longer than the tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

mod average_laws;
mod buffers;
mod configurations;
mod experts;
mod headers;
mod http_damage;
mod http_hostile_peers;
mod http_refusals;
mod http_rounds;
mod http_strangers;
mod http_weights;
mod invalid_files;
mod round_state;
