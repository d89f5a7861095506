//! Tests of the engine, compiled into a single program because linking a program for each file would take
//! longer than the tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

mod accountant;
mod adaptive;
mod aggregate;
mod algorithm;
mod discrete;
mod engine;
mod fedpower;
mod layers;
mod learned_prior;
mod linalg;
mod network_adapter;
mod network_prior;
mod participation;
mod patience;
mod promise;
mod records;
mod ridge;
mod robust;
mod verified;
