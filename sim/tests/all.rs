//! Tests of the simulator: the root of the integration tests. All files are linked into one program, because
//! linking one program for each file takes longer than running the tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

mod bad_data;
mod bad_scenarios;
mod baselines;
mod byzantine;
mod capabilities;
mod choice;
mod clients_without_samples;
mod commands;
mod comparisons;
mod convergence;
mod data_files;
mod device;
mod documented;
mod dropout;
mod eigenspaces;
mod energy;
mod expect;
mod exported_model;
mod fedpower;
mod fedrep_private;
mod fixed;
mod flash;
mod fleet_scale;
mod grid;
mod head_solver;
mod heterogeneity;
mod hostile_files;
mod init;
mod least_squares;
mod live;
mod named_classes;
mod networks;
mod npz_clients;
mod npz_variants;
mod partitions;
mod predictions;
mod record;
mod reference;
mod reproduce;
mod results;
mod resume;
mod ridge;
mod rolora;
mod scales;
mod sleeping_fleet;
mod speedup;
mod split;
mod stragglers;
mod table_variants;
mod theory;
mod warnings;
mod wide_samples;
