//! Why a fleet of emulated boards did not get anywhere.

use std::path::PathBuf;

use fedspan_aggregator::server::ServeError;

use crate::data::DataError;
use crate::data::flash::ImageError;
use crate::scenario::Attacked;

/// A fleet that did not get anywhere.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulateError {
    /// The firmware is made for other data.
    #[error("{name}: boards with a {core} {wanted}")]
    Scenario {
        /// The scenario.
        name: String,
        /// The core.
        core: &'static str,
        /// What the firmware is made for.
        wanted: &'static str,
    },
    /// The scenario has attackers.
    #[error(transparent)]
    Attacked(#[from] Attacked),
    /// Samples that do not fit the board's flash.
    #[error("the samples of client {client} take {needed} bytes of flash, the board has {room}")]
    Room {
        /// Whose samples, from 1.
        client: usize,
        /// Bytes they take.
        needed: usize,
        /// Bytes there are.
        room: usize,
    },
    /// No emulator.
    #[error("{program} is not on the PATH; `tests/setup --install` fetches it")]
    NoQemu {
        /// Which program.
        program: &'static str,
    },
    /// No firmware.
    #[error("{}: the firmware does not build: {reason}", folder.display())]
    Build {
        /// Where.
        folder: PathBuf,
        /// Why.
        reason: String,
    },
    /// No keys.
    #[error("keys for the boards: {reason}")]
    Keys {
        /// Why.
        reason: String,
    },
    /// No recording.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// No data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A file, a pipe or a process.
    #[error("{what}: {error}")]
    System {
        /// What it was about.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The server.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A board that ended without a report.
    #[error("board {device} ended with {code}: {said}")]
    Board {
        /// Which one.
        device: u64,
        /// How.
        code: String,
        /// Its last words.
        said: String,
    },
    /// Somebody ended it.
    #[error("interrupted")]
    Interrupted,
}
