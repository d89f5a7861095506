#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod assembly;
mod checksum;
mod cobs;
mod codec;
pub mod datagram;
mod error;
pub mod frame;
pub mod labelled;
pub mod limits;
pub mod message;
pub mod orthonormal;
mod reason;
#[cfg(feature = "encryption")]
pub mod secure;
pub mod sqrt;
pub mod tensor;
pub mod time;

pub use error::Error;
