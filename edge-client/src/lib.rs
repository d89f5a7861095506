#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(all(feature = "wide", not(target_os = "none")))]
extern crate alloc;

mod error;
mod event_log;
pub mod features;
#[cfg(feature = "reports")]
mod firmware;
pub mod kernel;
pub mod link;
mod mechanism;
pub mod memory;
pub mod pace;
#[cfg(feature = "privacy")]
pub mod privacy;
#[cfg(feature = "recorded")]
pub mod recording;
mod release;
pub mod session;
pub mod source;
pub mod store;
pub mod task;
pub use fedspan_protocol::time;
#[cfg(feature = "nalgebra")]
mod views;

/// Warning that firmware with the feature `reveal-moments` must print when it starts; `None` without it.
pub const WARNING: Option<&str> = if cfg!(feature = "reveal-moments") {
    Some("this build can send moment matrices, which can equal a record: for simulation only")
} else {
    None
};

pub use fedspan_protocol::message::{HeadSolve, RoundId};
#[cfg(feature = "encryption")]
pub use fedspan_protocol::secure;

pub use error::{NotReady, RepresentationError, ShapeMismatch, SourceError};
pub use mechanism::{Mechanism, NoPrivacy};
pub use memory::{Memory, Shape, Workspace};
pub use release::Release;
pub use session::{Event, Progress, Session};
pub use source::{Recording, SampleSource, Samples, Targets};
#[cfg(feature = "network")]
pub use task::Network;
pub use task::{Linear, Task};
pub use time::Millis;
