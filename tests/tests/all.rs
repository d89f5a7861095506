//! What crosses crates: one program, since linking each file by itself takes longer than its tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;
#[path = "../../edge-client/tests/common/nor_flash.rs"]
mod nor_flash;
#[path = "../../edge-client/tests/common/torn_flash.rs"]
mod torn_flash;

mod cuts;
mod disasters;
mod end_to_end;
mod interference;
mod lines;
mod listed;
mod literature;
mod live;
mod load;
mod nonces;
mod raw_bytes;
mod ridge_choice;
mod sealed;
mod shell;
mod sizes;
mod tables;
mod trust;
mod versions;
