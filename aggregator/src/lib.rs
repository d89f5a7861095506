//! The FedSpan aggregator: a deterministic round engine and a tokio server around it.
//!
//! ```text
//!  bytes -> Connection -> Event -> Engine -> Action -> Connection -> bytes
//!                                    |
//!                     participation: who is asked, who counts
//!                     algorithm:     what is broadcast, absorbed, finished
//!                     aggregate:     order-free sums
//! ```
//!
//! [`engine`] decides, [`algorithm`] computes, [`aggregate`] sums in fixed point so that arrival order
//! cannot matter, [`linalg`] holds the factorisations, [`privacy`] the account of noise; [`connection`] is one device's side of the protocol
//! without a socket; [`config`] reads files; [`store`] keeps what must not be forgotten, [`durable_engine`] lets nothing be done before it does, [`journal`] what was decided, [`keys`] who may
//! speak as which device; [`core`] is the server without its sockets, [`server`] adds tokio; [`check`] looks at what was kept,
//! [`export`] writes it for other programs. The simulator uses everything but [`server`]: what is simulated is what is served.
//!
//! What does *not* live here: anything of the device, except through `fedspan-protocol`.

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
