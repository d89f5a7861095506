//! Load generator: a fleet in one process, with devices that only speak the protocol, and with hostile peers.
//!
//! ```text
//!   SynchronisedClients -- start signal --> Device x N  \
//!   LoopbackBaseline (echo of this machine)           >  one server: a child process, or a task of a test
//!   Hostile x M, switched on and off                 /
//! ```

mod device;
mod fleet;
mod hostile;
mod loopback_baseline;
mod machine;
mod quantiles;
mod server;
mod synchronised_clients;

pub use device::{Device, Identity, Shape, capabilities};
pub use fleet::Plan;
pub use hostile::{ConnectedPeer, Hostile, Kind, Target};
pub use loopback_baseline::LoopbackBaseline;
pub use machine::{CpuTime, Memory, fsync, memory_of, processor_seconds};
pub use quantiles::Quantiles;
pub use server::ServerProcess;
pub use synchronised_clients::{Pace, RoundResult, SynchronisedClients};
