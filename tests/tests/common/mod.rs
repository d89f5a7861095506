//! Test helpers: a device and a server that share keys, between which the test carries the frames.
#![allow(dead_code, unused_imports, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod board;
mod conversation;
mod keys;
mod rounds;
mod server_end;
mod wire;

pub use board::{Board, Device, count_undecrypted};
pub use conversation::{connect_device, exchange_frames, record_connection, run_round};
pub use keys::{DEVICE, OTHER, SECRET, active_keys, key_protection, key_table, revocable_keys};
pub use rounds::{D, K, round_broadcast};
pub use server_end::{ServerEnd, WELCOME, encrypted_acceptor, handle_server_events, requirements};
pub use wire::{decode_cobs, encode_plain, encode_plain_round};
