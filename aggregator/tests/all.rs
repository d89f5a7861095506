//! Tests of the device server. All test files form one program, because linking a program per file would take
//! longer than the tests.
// Each example is a program that contains its own copy of the device module.
#![allow(clippy::duplicate_mod)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

mod adapters;
mod admission;
mod builder;
mod check_and_export;
mod commands;
mod config;
mod connection;
mod defaults;
mod examples;
mod export_live;
mod fingerprint;
mod fleet_scale;
mod golden_campaigns;
mod golden_fingerprints;
mod golden_store;
mod key_proof;
mod key_store;
mod keys;
mod keys_command;
mod ledger;
mod limits;
mod lost_answers;
mod memory;
mod read_snapshot;
mod restart;
mod restart_policies;
mod round_retries;
mod sealed_updates;
mod server;
mod status_command;
mod store;
mod update_rows;
