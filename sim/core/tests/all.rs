//! Tests of the simulator as a library: scenarios and simulations that a program builds, and the examples.
//! Features that are available on the command line are tested in `sim/tests`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod builder;
mod examples;
mod newcomers;
mod non_finite_update;
mod report;
mod resume;
mod server_config;
mod without_heads;
