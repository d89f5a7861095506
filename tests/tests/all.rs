//! Test program of all tests across crates. They are linked into one program, because linking each file
//! separately takes longer than its tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod aes_ccm;
mod common;
#[path = "../../edge-client/examples/tcp_device.rs"]
mod example;
#[path = "../../edge-client/tests/common/nor_flash.rs"]
mod nor_flash;
#[path = "../../edge-client/tests/common/torn_flash.rs"]
mod torn_flash;

mod benchmarks;
mod c_device;
mod cuts;
mod datagrams;
mod device_keys;
mod disasters;
mod documents;
mod duty_cycle;
mod end_to_end;
mod energy;
mod key_rotation;
mod literature;
mod live;
mod load;
mod mutants;
mod network_attacker;
mod nonces;
mod promises;
mod raw_bytes;
mod readme;
mod revocation;
mod ridge_choice;
mod sealed;
mod serial_lines;
mod shell;
mod silent_replay;
mod sizes;
mod tables;
mod tcp_device;
mod test_files;
mod versions;
mod wall_clock;
