//! Wire protocol between a FedSpan device and its aggregator: frames, messages, tensors and encryption.
//!
//! ```text
//!   device                                             aggregator
//!     | -- Hello (version, schema, id, capabilities) -->  |
//!     | <------------- Welcome, or a typed Refused -----  |
//!     | <-- RoundOpen (task, descriptors, small tensors)  |   one frame when it fits,
//!     | <-- Chunk ... Chunk ----------------------------  |   chunks when it does not
//!     |     ... solves the head, takes one gradient step  |
//!     | -- Update (descriptors, small tensors) -------->  |
//!     | -- Chunk ... Chunk ---------------------------->  |
//!     | <-- Ack (counted | duplicate | late | rejected)   |
//! ```
//!
//! Layers, bottom up: [`frame`] turns a byte stream into checked frames (COBS, length limit, CRC-32C); [`message`]
//! defines the messages, encoded with postcard; [`tensor`] describes and encodes matrices and cuts them into
//! chunks; [`assembly`] tracks which chunks have arrived; [`orthonormal`] is the QR factorisation that both sides
//! run with equal bits, because the meaning of a quantised representation depends on it; [`secure`] encrypts
//! frames; [`limits`] has every number that bounds memory.
//!
//! `SPEC.md` in this crate has the byte tables, `vectors/` the golden bytes.
//!
//! Sockets, timers, model arithmetic and key storage are in other crates. This one does not allocate, has no
//! `unsafe` code, and does not panic on outside input.
//!
//! ```
//! use fedspan_protocol::frame::{Decoder, FeedResult, encode};
//! use fedspan_protocol::message::{ToDevice, RoundId, decode};
//!
//! let closed = ToDevice::RoundClosed(RoundId { round: 7, stage: 0 });
//! let mut wire = [0u8; 64];
//! let n = encode(&closed, 0, |_| {}, &mut wire)?;
//!
//! let mut decoder = Decoder::new([0u8; 128]);
//! let mut input = &wire[..n];
//! let FeedResult::Message(bytes) = decoder.feed(&mut input) else { panic!("one whole frame") };
//! let (message, body): (ToDevice, &[u8]) = decode(bytes)?;
//! assert_eq!(message, closed);
//! assert!(body.is_empty());
//! # Ok::<(), fedspan_protocol::Error>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod assembly;
mod checksum;
mod cobs;
mod codec;
mod error;
pub mod frame;
pub mod labelled;
pub mod limits;
pub mod message;
pub mod orthonormal;
mod reason;
pub mod secure;
pub mod tensor;

pub use error::Error;
