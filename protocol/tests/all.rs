//! Integration tests of the protocol crate, linked into one program: linking each file separately would take
//! longer than running the tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

mod assembly;
mod c_check;
mod corruption;
mod datagram;
mod exhaustive;
mod frames;
mod golden;
mod messages;
mod orthonormal;
mod primitives;
mod private_use;
mod provision;
mod replay;
mod sealed;
mod smuggle;
mod tensors;
