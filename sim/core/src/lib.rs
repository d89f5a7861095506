//! The FedSpan simulator: whole fleets in one process, under a virtual clock.
//!
//! Every simulated device runs the client crate's own session, every round goes through the aggregator's
//! own engine and connections, byte for byte through the encoded protocol. Only the clock and the wire are
//! virtual: what is simulated is what is flashed.
//!
//! [`scenario`] reads what to do; [`data`] makes or reads samples; [`fleet`] holds the devices; [`run`] is the loop;
//! [`evaluate`] scores models, [`least_squares`] solves the baselines; [`report`] writes results; [`device`] is one virtual
//! device for a real server; [`live`] is a fleet of them in real time, [`emulate`] one of emulated boards.

#![forbid(unsafe_code)]

pub mod data;
pub mod device;
pub mod emulate;
pub mod evaluate;
pub mod fleet;
pub mod least_squares;
pub mod live;
pub mod network;
pub mod noise;
pub mod parallel;
pub mod progress;
pub mod report;
pub mod run;
pub mod scenario;
