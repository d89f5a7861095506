//! The tests of the client: one program, since linking each file by itself takes longer than its tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[cfg(all(feature = "power", feature = "privacy"))]
#[path = "common/attack.rs"]
mod attack;
mod common;
#[cfg(feature = "privacy")]
#[path = "common/law.rs"]
mod law;
#[cfg(feature = "flash")]
#[path = "common/nor.rs"]
mod nor;
#[cfg(feature = "recorded")]
#[path = "common/recording.rs"]
mod recording;
#[cfg(any(all(feature = "power", feature = "privacy"), feature = "privacy"))]
#[path = "common/sampler.rs"]
mod sampler;
#[cfg(feature = "flash")]
#[path = "common/torn.rs"]
mod torn;

mod adapter;
mod attack_floats;
mod attack_moments;
mod audit;
mod convolution;
mod correlation;
mod cuts;
mod declined;
mod dense;
mod dense_network;
mod discrete_gaussian;
mod downloads;
mod entropy;
mod extremes;
mod falsifier;
mod fedrep_neighbours;
mod fedrep_private;
mod fixed;
mod fixed_kernels;
mod flash;
mod forged;
mod garbage;
mod handshakes;
mod head;
mod hostile;
mod images;
mod ledger;
mod ledger_flash;
mod left_out;
mod linear_adapter;
mod link;
mod malicious;
mod mechanism;
mod network;
mod network_any;
mod network_batches;
mod network_rounds;
mod noise;
mod power;
mod power_neighbours;
mod power_private;
mod power_rounds;
mod power_seeds;
mod quiet_link;
mod recording_format;
mod recording_table;
mod recording_wearer;
mod recurrent;
mod ridge_choice;
mod ridge_scores;
mod scaled;
mod session;
mod slots;
mod specified;
mod starts;
mod streaming;
mod strips;
mod timing;
mod traces;
mod unchanged;
mod units;
mod update;
