//! Simulation of disasters: the real server core with its store on a failing disk, real peer sessions, and
//! real devices with their flash, driven by one event queue and one seed. Time is virtual, nothing sleeps,
//! and a seed always gives the same world.
//!
//! ```text
//!  Device (session, flash) <-- Link --> Server (peer sessions, core) -- Disk (tears and loses writes)
//!          \_________________ World: event queue, faults _________________/
//!                                       |
//!               History: every promise, checked against the durable state
//! ```
//!
//! Not simulated: sockets, connection slots, and the tasks that carry bytes, messages and commands. The
//! module `server_tasks` replaces these tasks.

mod device;
mod fault_injection;
mod fault_schedule;
mod history;
mod link;
mod plan;
mod queue;
mod reference;
mod report;
mod server;
mod server_tasks;
mod shadow_counters;
mod violation;
mod world;

#[path = "../../../edge-client/tests/common/nor_flash.rs"]
#[allow(clippy::all, clippy::unwrap_used, clippy::indexing_slicing, missing_docs, unreachable_pub)]
mod nor_flash;
#[path = "../../../aggregator/tests/common/storage.rs"]
#[allow(clippy::all, clippy::unwrap_used, clippy::indexing_slicing, missing_docs, unreachable_pub, dead_code)]
mod storage;

pub use plan::Kind;
pub use report::{Faults, NoWatcher, Report, Watcher};
pub use violation::Violation;
pub use world::run;
