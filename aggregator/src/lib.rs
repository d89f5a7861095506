#![doc = include_str!("../README.md")]
//!
//! ## Modules
//!
//! ```text
//!  socket <-> Connection <-> PeerSession -- PeerEvent --> ServerCore -> DurableEngine -> Engine
//!                                 ^                          |              |
//!                                 +------- Command ----------+            Store
//! ```
//!
//! * [`server`]: tokio tasks for listeners, serial ports and the control socket.
//! * [`core`]: the server without sockets, threads and clock; [`connection`]: the protocol of one device.
//! * [`durable_engine`]: the engine behind a write-ahead log; [`store`]: the database of the campaign;
//!   [`journal`]: the log of updates and rounds for other programs.
//! * [`keys`]: device keys and their encrypted file; [`config`]: `fleet.toml`.
//! * [`check`] verifies a state directory; [`export`] writes its content for other programs.

#![forbid(unsafe_code)]

pub mod check;
pub mod config;
pub mod connection;
pub mod core;
pub mod durable_engine;
pub mod export;
pub mod journal;
pub mod keys;
pub mod server;
pub mod store;
mod sync;
