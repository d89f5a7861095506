//! A device and a server that share keys, and the wire between them in the test's hands.
#![allow(dead_code, unused_imports, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod board;
mod conversation;
mod host;
mod keys;
mod rounds;
mod wire;

pub use board::{Board, Device, unopened};
pub use conversation::{converse, joined, recording, round};
pub use host::{Host, WELCOME, gate, react, requirements};
pub use keys::{DEVICE, OTHER, SECRET, keys, protected, table, withdrawable};
pub use rounds::{D, K, opening};
pub use wire::{plain, plain_open, uncobs};
