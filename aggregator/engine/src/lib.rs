//! The FedSpan round engine: algorithms, participation, aggregation rules and the privacy account; no I/O.
//!
//! ```text
//!  Event -> Engine -> Action
//!             |
//!             +-- participation: the devices that a round invites, and the updates that end it
//!             +-- algorithm:     the broadcast, the checks of an update, the model after the round
//!             +-- aggregate:     order-independent sums and robust means
//!             +-- privacy:       the account of noisy releases
//! ```
//!
//! The device server, the HTTP rounds of adapters and the simulator drive the same engine.

#![forbid(unsafe_code)]

pub mod admission;
pub mod aggregate;
pub mod algorithm;
pub mod config;
pub mod linalg;
pub mod participation;
pub mod privacy;
pub mod random;
mod rounds;
mod types;

pub use participation::{Cohort, Participation};
pub use rounds::*;
pub use types::{DeviceId, Millis, Request, Tensor, Update, Weighting};
