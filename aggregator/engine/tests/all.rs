//! Tests of the engine in one program, since linking each file by itself takes longer than its tests do.
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
mod linalg;
mod network_adapter;
mod participation;
mod promise;
mod records;
mod ridge;
mod robust;
