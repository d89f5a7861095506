//! The FedSpan device client: `no_std`, no allocation, no HAL.
//!
//! A device keeps its samples and its personal head `W` (k x C). In a round it receives the shared
//! representation `B` (d x k, orthonormal columns), fits the head on its own samples, takes one gradient
//! step on `B` and sends that step. The caller owns every buffer: `size_of::<Workspace<D, K, C>>()` is
//! the RAM of the model, one frame in and one frame out is the RAM of the link.
//!
//! ```
//! use fedspan_client::{Linear, Recording, Task, Workspace};
//! use fedspan_protocol::message::HeadSolve;
//!
//! // Four samples with three features, one target each: y = 2 x0.
//! let x = [1.0, 0.0, 0.5, -1.0, 0.25, 0.0, 2.0, 1.0, -1.0, 0.5, 0.5, 0.5];
//! let y = [2.0, -2.0, 4.0, 1.0];
//! let mut samples = Recording::regression(&x, &y, 3, 1);
//!
//! // d = 3, k = 1: all the memory that training takes, in bytes.
//! let mut client = Linear::new(Workspace::<3, 1>::new());
//! assert_eq!(size_of::<Workspace<3, 1>>(), 44);
//!
//! // The first column of the identity spans the right space, so the head fits exactly.
//! client.set_representation(&[1.0, 0.0, 0.0])?;
//! client.fit_head(HeadSolve::LeastSquares { ridge: 0.0 }, &mut samples)?;
//! let mut out = [0.0];
//! client.predict(&[3.0, 0.0, 0.0], &mut out)?;
//! assert!((out[0] - 6.0).abs() < 1e-5);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! Files, from the inside out: [`kernel`] is arithmetic on slices; [`memory`] holds the buffers;
//! [`source`] is where samples come from; [`task`] is what a device computes in a round; [`session`] is
//! the sans-IO state machine that speaks the protocol; [`link`] drives it over `embedded-io` and
//! `embedded-io-async`; [`store`] is what survives a reset, the privacy ledger among it; [`features`] turns inertial windows into
//! samples; `recorded` (a feature) is a recording in flash that a device trains on. With the feature `i16` and
//! `memory::FixedWorkspace` a device computes in 16-bit fixed point: three to twelve times fewer instructions where
//! there is no floating point.
//!
//! With the feature `ridge-choice` a device chooses the ridge of its final head by leave-one-out, and scores ridges for its fleet
//! (`final_ridge = "auto"`). Without it the device says so in its hello, its head takes the ridge that the fleet has published,
//! and [`HeadSolve::LeaveOneOut`](fedspan_protocol::message::HeadSolve::LeaveOneOut) is declined. With the feature `scale`
//! samples are scaled as they are read (`task::Scaled`). The first takes about 6 kB of flash on a Cortex-M4F and the second 4.4 kB; the
//! table is in the README of the boards.
//!
//! With the feature `privacy` a model can be [private](Linear): what leaves is hidden in noise, or does not leave.
//!
//! With the feature `network` a model can be a network of dense layers (`task::Network`), whose RAM is
//! `memory::NetworkWorkspace`: for batches of `N` samples and `P` parameters (with momentum twice) that is
//! `4 (2 P + N (d + sum of h + C + 2 w)) + N` bytes, h the hidden widths and w the largest of these and C. 64-32-7 in
//! batches of ten takes 25 KB. With the features `convolution` and `recurrent` it may begin with filters over an image or a
//! signal, or with long short-term memory. Filters take a few rows of an image at a time: 28 x 28 pixels, 4 and 8 filters of
//! 5 x 5 pooled by 2, a hidden layer of 16 and 10 classes take 47 kB with momentum, a sample at a time; a signal of 25 x 6, 8
//! filters, 16 and 7 classes 35 kB in batches of ten. With the feature `adapter` its first layer may stay as it is, read from flash in
//! `f32` or as bytes, and a low-rank adapter beside it learns (LoRA): `memory::NetworkShape::adapted`.
//!
//! **Not supported**: networks whose samples are seen only once, several connections at once, differential
//! privacy of anything but FedPower and FedRep on linear models, forward secrecy.

#![no_std]
#![forbid(unsafe_code)]

mod error;
pub mod features;
pub mod kernel;
pub mod link;
mod mechanism;
pub mod memory;
#[cfg(feature = "privacy")]
pub mod privacy;
#[cfg(feature = "recorded")]
pub mod recording;
pub mod session;
pub mod source;
pub mod store;
pub mod task;
pub mod time;
#[cfg(feature = "nalgebra")]
mod views;

/// What a firmware with the feature `reveal-moments` must say when it starts; `None` without it.
pub const WARNING: Option<&str> = if cfg!(feature = "reveal-moments") {
    Some("this build can send moment matrices, which can equal a record: for simulation only")
} else {
    None
};

pub use fedspan_protocol::secure;

pub use error::{NotReady, ShapeMismatch, SourceError};
pub use mechanism::{Mechanism, Open, Release};
pub use memory::{Memory, Shape, Workspace};
pub use session::{Event, Progress, Session};
pub use source::{Recording, SampleSource, Samples, Targets};
#[cfg(feature = "network")]
pub use task::Network;
pub use task::{Linear, Task};
pub use time::Millis;
