//! Fuzz targets for the code that reads untrusted bytes. Each attack surface has one *fuzz target*: a
//! function that takes any bytes and panics if an invariant is broken. The same fuzz targets are run by the
//! fuzzer (`tests/fuzz`), by the tests of this crate (seeds, corpus, seeded mutations) and by the program
//! `hostile`, which feeds a hundred million frames.
//!
//! Invariants: nothing panics; an accepted message encodes to itself; every frame is counted, as accepted or
//! dropped; buffers and queues keep their bounds; the work for an input is bounded by its length, measured in
//! steps instead of time.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a fuzz target fails by panicking"
)]

mod adapters;
mod async_chip;
pub mod bulk;
mod chip;
mod datagrams;
mod device;
mod files;
mod flash;
mod honest;
mod host;
mod message;
pub mod mutate;
mod packets;
mod random;
pub mod reference;
mod script;
mod sealed;
mod secrets;
mod stream;
mod tensors;

use std::path::Path;

pub use adapters::adapter_files;
pub use datagrams::datagram_sessions;
pub use device::device_session;
pub use files::data_files;
pub use flash::flash_image;
pub use host::host_connection;
pub use message::{to_device, to_server};
pub use packets::packets;
pub use random::Random;
pub use sealed::sealed;
pub use secrets::{key_lines, provision};
pub use stream::{accumulator, frame};

/// Work that a fuzz target has done for its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of frames, messages or images in the input.
    pub frames: u64,
    /// Number of frames that were dropped because they were malformed or not allowed in the current state.
    pub refused: u64,
    /// Number of calls into the code under test, or of its flash operations.
    pub steps: u64,
}

/// An attack surface.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the fuzz target and of its corpus.
    pub name: &'static str,
    /// Runs one input. Panics if an invariant is broken.
    pub run: fn(&[u8]) -> Work,
    /// Returns inputs that reach most of the code: messages of honest peers.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Target {
    /// Writes the seeds to files.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn write_seeds(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        for (index, seed) in (self.seeds)().iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{index:04}")), seed)?;
        }
        Ok(())
    }
}

/// Writes the seeds of a target to the directory in the environment variable `FEDSPAN_FUZZ_SEEDS`, if it is
/// set. Called at the start of a fuzzer.
pub fn seed_fuzzer(name: &str) {
    let folder = std::env::var_os("FEDSPAN_FUZZ_SEEDS");
    if let (Some(folder), Some(target)) = (folder, TARGETS.iter().find(|target| target.name == name)) {
        target.write_seeds(Path::new(&folder)).expect("the directory of the seeds is writable");
    }
}

/// All attack surfaces.
pub const TARGETS: [Target; 14] = [
    Target { name: "frame", run: frame, seeds: stream::frame_seeds },
    Target { name: "accumulator", run: accumulator, seeds: stream::accumulator_seeds },
    Target { name: "packets", run: packets, seeds: packets::seeds },
    Target { name: "to_server", run: to_server, seeds: message::to_server_seeds },
    Target { name: "to_device", run: to_device, seeds: message::to_device_seeds },
    Target { name: "device_session", run: device_session, seeds: device::seeds },
    Target { name: "datagram_sessions", run: datagram_sessions, seeds: datagrams::seeds },
    Target { name: "host_connection", run: host_connection, seeds: host::seeds },
    Target { name: "flash_image", run: flash_image, seeds: flash::seeds },
    Target { name: "sealed", run: sealed, seeds: sealed::seeds },
    Target { name: "provision", run: provision, seeds: secrets::provision_seeds },
    Target { name: "key_lines", run: key_lines, seeds: secrets::key_lines_seeds },
    Target { name: "data_files", run: data_files, seeds: files::seeds },
    Target { name: "adapter_files", run: adapter_files, seeds: adapters::seeds },
];
