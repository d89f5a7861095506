//! Errors of emulated fleets.

use std::path::PathBuf;

use fedspan_aggregator::server::ServeError;

use crate::data::DataError;
use crate::data::flash::ImageError;
use crate::scenario::AttackNotAllowed;

/// Error of an emulated fleet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulateError {
    /// The core's firmware does not support the scenario.
    #[error("{name}: boards with a {core} {wanted}")]
    Scenario {
        /// Name of the scenario.
        name: String,
        /// Description of the core.
        core: &'static str,
        /// Requirement of the firmware.
        wanted: &'static str,
    },
    /// The boards' server cannot run the scenario.
    #[error("{name}: {reason}")]
    NotServed {
        /// Name of the scenario.
        name: String,
        /// Reason, and the remedy.
        reason: &'static str,
    },
    /// The scenario has attackers, or step sizes that can only be measured in a simulation.
    #[error(transparent)]
    AttackNotAllowed(#[from] AttackNotAllowed),
    /// The samples of a client do not fit the flash of the board.
    #[error("the samples of client {client} take {needed} bytes of flash, the board has {room}")]
    Room {
        /// Number of the client, from 1.
        client: usize,
        /// Size of the samples in bytes.
        needed: usize,
        /// Size of the partition in bytes.
        room: usize,
    },
    /// A part of the network does not fit the memory of the board.
    #[error("{name}: {part} takes {needed} bytes, boards with a {core} have {available} for it")]
    Memory {
        /// Name of the scenario.
        name: String,
        /// Description of the core.
        core: &'static str,
        /// Part of the network, and its kind of memory.
        part: &'static str,
        /// Size of the part in bytes.
        needed: usize,
        /// Size of the memory in bytes.
        available: usize,
    },
    /// No board can train the scenario's network.
    #[error("{name}: {reason}")]
    Network {
        /// Name of the scenario.
        name: String,
        /// Cause, and the remedy.
        reason: String,
    },
    /// QEMU is not installed.
    #[error("found no {program} on the PATH; `tests/setup --install` installs it")]
    NoQemu {
        /// Name of QEMU's program.
        program: &'static str,
    },
    /// The firmware cannot be built.
    #[error("{}: the firmware does not build: {reason}", folder.display())]
    Build {
        /// Folder of the board.
        folder: PathBuf,
        /// Cause of the failure.
        reason: String,
    },
    /// The keys of the boards cannot be made.
    #[error("cannot make keys for the boards: {reason}")]
    Keys {
        /// Cause of the failure.
        reason: String,
    },
    /// A recording cannot be written as a flash image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The scenario's data cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// An operation on a file, a pipe or a process failed.
    #[error("{what}: {error}")]
    System {
        /// Kind of the file, pipe or process.
        what: String,
        /// Error that the system reported.
        error: std::io::Error,
    },
    /// The server failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A board ended without a report.
    #[error("board {device} ended with {code}: {last_line}")]
    Board {
        /// Device number of the board.
        device: u64,
        /// Exit status of QEMU.
        code: String,
        /// Last line that the board printed.
        last_line: String,
    },
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}
