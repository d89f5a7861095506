//! Tests of the client, as one program, because linking one program per file would take longer than running
//! the tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[cfg(all(feature = "power", feature = "privacy"))]
#[path = "common/attack.rs"]
mod attack;
mod common;
#[cfg(feature = "privacy")]
#[path = "common/law.rs"]
mod law;
#[cfg(feature = "flash")]
#[path = "common/nor_flash.rs"]
mod nor_flash;
#[path = "../examples/own_device_task.rs"]
mod own_device_task;
#[cfg(feature = "recorded")]
#[path = "common/recording.rs"]
mod recording;
#[cfg(any(all(feature = "power", feature = "privacy"), feature = "privacy"))]
#[path = "common/sampler.rs"]
mod sampler;
#[cfg(feature = "flash")]
#[path = "common/torn_flash.rs"]
mod torn_flash;

mod adapter;
mod async_flash;
mod attack_floats;
mod attack_moments;
mod audit;
mod beacons;
mod convolution;
mod convolution_strips;
mod correlation;
mod counter_forgery;
mod data_starts;
mod declined_rounds;
mod dense;
mod dense_network;
mod discrete_gaussian;
mod driver;
mod entropy;
mod error_feedback;
mod extremes;
mod falsifier;
mod fedrep_neighbours;
mod fedrep_private;
mod fixed;
mod fixed_kernels;
mod flash_driver_errors;
mod flash_images;
mod flash_store;
mod full_rank_heads;
mod generators;
mod groups;
mod handshake_counter;
mod head;
mod hostile;
mod lanes;
mod learned_prior;
mod leave_one_out;
mod linear_adapter;
mod link;
mod local_use;
mod log;
mod malformed_messages;
mod malicious_server;
mod mechanism;
mod network;
mod network_any;
mod network_batches;
mod network_rounds;
mod network_slices;
mod new_keys;
mod noise;
mod pauses;
mod power;
mod power_cuts;
mod power_neighbours;
mod power_private;
mod power_rounds;
mod power_seeds;
mod prior_network;
mod privacy_ledger;
mod privacy_ledger_flash;
mod recording_format;
mod recording_network;
mod recording_table;
mod recording_wearer;
mod recurrent;
mod rejected_input;
mod reports;
mod representation_downloads;
mod response_slots;
mod ridge_choice;
mod ridge_scores;
mod scaled;
mod session;
mod silent_link;
mod sleep;
mod streaming;
mod tasks;
mod timing;
mod traffic_traces;
mod units;
mod update;
mod worked_examples;
