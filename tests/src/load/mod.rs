//! A fleet in one process, to load a server with: devices that only speak the protocol, and peers that mean no good.
//!
//! ```text
//!   Choir -- go, one slot each --> Device x N  \
//!   Floor (an echo, for the noise)              >  one server: a child process, or a task of a test
//!   Hostile x M, switched on and off           /
//! ```

mod choir;
mod device;
mod fleet;
mod floor;
mod hostile;
mod machine;
mod numbers;
mod server;

pub use choir::{Choir, Pace, Taken};
pub use device::{Device, Identity, capabilities};
pub use fleet::{FEATURES, Plan, WIDTH};
pub use floor::Floor;
pub use hostile::{Entered, Ground, Hostile, Kind};
pub use machine::{Busy, Memory, fsync, memory_of};
pub use numbers::Spread;
pub use server::ServerProcess;
