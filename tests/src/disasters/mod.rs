//! Disasters, simulated: the real host with its store on a disk that fails, the real conversations, and real devices with their
//! flash, under one queue of events and one seed. Time is virtual, nothing sleeps, and the same seed is the same world.
//!
//! ```text
//!  Device (session, flash) <-- Link (loses, repeats, damages, delays) --> Server (conversations, host) -- Disk (tears, forgets)
//!                      \_____________________ World: queue, chaos ______________________/
//!                                                  |
//!                                               History: what was promised, and what must be true of it
//! ```
//!
//! What is not the real thing: sockets, their places, and the tasks that carry bytes, messages and commands (`running`).

mod befall;
mod chaos;
mod device;
mod history;
mod link;
mod plan;
mod queue;
mod reference;
mod report;
mod running;
mod server;
mod tally;
mod world;

#[path = "../../../edge-client/tests/common/nor_flash.rs"]
#[allow(clippy::all, clippy::unwrap_used, clippy::indexing_slicing, missing_docs, unreachable_pub)]
mod nor_flash;
#[path = "../../../aggregator/tests/common/storage.rs"]
#[allow(clippy::all, clippy::unwrap_used, clippy::indexing_slicing, missing_docs, unreachable_pub, dead_code)]
mod storage;

pub use history::Violation;
pub use plan::Kind;
pub use report::{Faults, Report, Unwatched, Watcher};
pub use world::run;

/// Milliseconds of virtual time.
type Millis = u64;
