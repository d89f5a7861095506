//! The tests of the aggregator: one program, since linking each file by itself takes longer than its tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

mod accountant;
mod adapter;
mod adapters;
mod adaptive;
mod admission;
mod aggregate;
mod algorithm;
mod check_and_export;
mod commands;
mod config;
mod connection;
mod defaults;
mod discrete;
mod engine;
mod export_live;
mod fedpower;
mod fingerprint;
mod fleet_scale;
mod golden_campaigns;
mod golden_fingerprints;
mod golden_store;
mod key_store;
mod keys;
mod keys_command;
mod layers;
mod ledger;
mod limits;
mod linalg;
mod lost_answers;
mod memory;
mod participation;
mod patience;
mod promise;
mod read_snapshot;
mod restart;
mod restart_policies;
mod ridge;
mod robust;
mod sealed_updates;
mod server;
mod status_command;
mod store;
