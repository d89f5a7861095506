//! Test helpers: directories, processes, frames, devices and gradients.
#![allow(dead_code)]

#[path = "../../engine/tests/common/campaign.rs"]
pub mod campaign;
pub mod golden;
pub mod shapes;
pub mod storage;
pub mod stored_campaign;
#[path = "../../engine/tests/common/values.rs"]
mod values;

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::message::{
    Capabilities, FITS_BY_STEPS, Hello, Model, Numeric, Privacy, ToDevice, ToServer, decode,
};

use tempfile::TempDir;
pub use values::*;

/// Directory that is removed on drop.
pub struct Scratch(TempDir);

impl Scratch {
    pub fn new() -> Self {
        // Other users may read the directory, as is usual for the parent of a state directory.
        let mode = Permissions::from_mode(0o755);
        Self(tempfile::Builder::new().prefix("fedspan-agg-").permissions(mode).tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Lock of [`lock_exclusively`].
static PROCESS_LOCK: Mutex<()> = Mutex::new(());

/// Takes the lock under which the tests close locked files, write programs and start programs. Between fork
/// and exec a new process has copies of this process's open files, and thus holds their locks.
pub fn lock_exclusively() -> MutexGuard<'static, ()> {
    PROCESS_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a program.
pub fn spawn_program(command: &mut Command) -> Child {
    let _lock = lock_exclusively();
    command.spawn().unwrap()
}

/// Runs a program to its end.
pub fn run_program(command: &mut Command) -> Output {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn_program(piped).wait_with_output().unwrap()
}

/// Returns exit code, standard output and standard error of a program.
pub fn decode_output(output: &Output) -> (i32, String, String) {
    let to_text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), to_text(&output.stdout), to_text(&output.stderr))
}

/// Reads lines up to the first line that contains `excerpt`, and returns that line. The caller must keep the
/// reader, because a program may fail to write to a closed pipe.
pub fn read_line_with(reader: &mut impl BufRead, excerpt: &str) -> String {
    let mut text = String::new();
    loop {
        let line_start = text.len();
        assert!(reader.read_line(&mut text).unwrap() > 0, "no line contains {excerpt:?}: {text}");
        if text[line_start..].contains(excerpt) {
            return text.split_off(line_start);
        }
    }
}

/// Process of `serve`, killed on drop.
pub struct ServerProcess {
    pub child: Child,
    /// Line that the program printed when it began to listen. The control socket exists from then on.
    pub line: String,
}

impl ServerProcess {
    /// Starts the program and waits until it listens.
    pub fn start(command: &mut Command) -> Self {
        Self::await_listening(spawn_program(command.stdout(Stdio::piped())))
    }

    /// Waits until a server process listens. The standard output of the process must be piped.
    pub fn await_listening(mut child: Child) -> Self {
        let line = read_line_with(&mut BufReader::new(child.stdout.take().unwrap()), "listening on ");
        Self { child, line }
    }

    /// Sends a signal to the process, waits for its end and returns the exit status.
    pub fn stop_with(mut self, signal: &str) -> ExitStatus {
        let mut kill = Command::new("kill");
        assert!(spawn_program(kill.args([signal, &self.child.id().to_string()])).wait().unwrap().success());
        self.child.wait().unwrap()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Closes a locked file by dropping its owner.
pub fn close_locked<T>(locked: T) {
    let _lock = lock_exclusively();
    drop(locked);
}

/// Returns the hello of a linear device with `d` features, width `k` and `outputs` outputs.
pub fn create_hello(device: u64, (d, k, outputs): (u16, u16, u16), frame_limit: u16) -> Hello {
    let elements = u32::from(d) * u32::from(k);
    Hello::new(
        device,
        Capabilities {
            frame_limit,
            model: Model::linear(d, k, outputs),
            tasks: 0b1111,
            roles: 0xff | FITS_BY_STEPS,
            encodings: 0b111,
            numeric: Numeric::F32,
            tensors: 2,
            tensor_elements: elements,
            total_elements: elements + u32::from(k) * u32::from(outputs),
            privacy: Privacy::None,
        },
    )
}

/// Encodes a frame of a device.
pub fn encode_frame(message: &ToServer, body: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; body.len() + 400];
    let len = encode(message, body.len(), |payload| payload.copy_from_slice(body), &mut buffer).unwrap();
    buffer.truncate(len);
    buffer
}

/// Decodes the messages in bytes from the server. Panics on an invalid frame.
pub fn decode_messages(mut bytes: &[u8]) -> Vec<(ToDevice, Vec<u8>)> {
    let mut decoder = Decoder::new(vec![0u8; 4096]);
    let mut decoded = Vec::new();
    loop {
        match decoder.feed(&mut bytes) {
            FeedResult::NeedMore => return decoded,
            FeedResult::Dropped(reason) => panic!("a bad frame from the server: {reason:?}"),
            FeedResult::Sealed(_) => panic!("a sealed frame from a server without keys"),
            FeedResult::Message(message) => {
                let (message, body) = decode::<ToDevice>(message).unwrap();
                decoded.push((message, body.to_vec()));
            }
        }
    }
}
