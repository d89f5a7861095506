//! What crosses the wire between a FedSpan device and its aggregator, and nothing else.
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
//! Layers, bottom up: [`frame`] turns a byte stream into checked frames (COBS, length limit, CRC-32C);
//! [`message`] is the vocabulary, encoded with postcard; [`tensor`] says how matrices are described,
//! encoded and cut into chunks, [`assembly`] how a receiver keeps the books on chunks; [`orthonormal`] is the one QR that both sides run where the meaning of
//! a quantised representation depends on it; [`limits`] holds every number that bounds memory.
//!
//! `SPEC.md` beside this crate holds the byte tables, `vectors/` the golden bytes.
//!
//! What does *not* live here: sockets, timers, model arithmetic, keys. There is no allocation and no
//! `unsafe`, and nothing panics on outside input.
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
