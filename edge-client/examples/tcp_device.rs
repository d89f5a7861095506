//! Example: a complete device of a campaign over TCP, with samples from a file, a key and a store. It takes
//! part until the final head is fitted. The device has the sizes of `aggregator/examples/fleet.toml`:
//!
//! ```text
//! fedspan-aggregator keys --config fleet.toml add 1..8
//! fedspan-aggregator keys --config fleet.toml export 1..8 --flash records
//! fedspan-aggregator serve --config fleet.toml
//! cargo run --release -p fedspan-client --example tcp_device -- 127.0.0.1:4410 --record records/device-1.bin \
//!     --state device-1.state --synthetic 1                                     (and so on, to device 8)
//! ```
//!
//! Firmware differs in four places: the link is a UART or a radio's socket, `wait` is `wfi`, the store is
//! flash (`FlashStore`), and the samples come from a sensor (`own_sensor.rs`).
#![allow(missing_docs)]
#![allow(clippy::cast_possible_truncation, reason = "small counts, and milliseconds in 64 bits")]

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fedspan_client::link::{self, Buffers};
use fedspan_client::secure::Provision;
use fedspan_client::session::{Config, Protection};
use fedspan_client::store::{Record, RecordHeader, Store, StoreError};
use fedspan_client::{Linear, Millis, Recording, Session, Workspace};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Number of features of a sample. The last feature is the constant 1, which gives the model an offset.
pub const D: usize = 58;
/// Width of the representation.
pub const K: usize = 24;
/// Number of classes.
pub const C: usize = 7;

/// Text of `--help`.
pub const USAGE: &str = "\
usage: tcp_device ADDRESS [options]

ADDRESS is the server's, HOST:PORT. One of:
  --record FILE       the device's number and key, as `fedspan-aggregator keys export --flash` writes them
  --plaintext NUMBER  the device's number, without a key; the server must have `plaintext = true`
One of:
  --data FILE         samples: lines of 58 comma-separated features and a class, 0 to 6
  --synthetic SEED    20 made-up samples of each class; the seed is the device's
Optional:
  --state FILE        keeps head and counters over restarts; without it they are in memory
  --help              this text";

/// Arguments of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub address: String,
    pub identity: Identity,
    pub samples: Source,
    pub state: Option<PathBuf>,
}

/// Source of the device's number and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    Record(PathBuf),
    Plaintext(u64),
}

/// Source of the samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Synthetic(u64),
}

impl Options {
    /// Parses the arguments, without the program's name. The error is a line for the user.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut arguments = arguments.into_iter();
        let (mut address, mut identity, mut samples, mut state) = (None, None, None, None);
        while let Some(argument) = arguments.next() {
            if !argument.starts_with("--") {
                set_once(&mut address, &argument, argument.clone(), "one ADDRESS")?;
                continue;
            }
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--record" => {
                    set_once(&mut identity, &argument, Identity::Record(value()?.into()), ONE_IDENTITY)?
                }
                "--plaintext" => {
                    let device = parse_number(&argument, &value()?)?;
                    set_once(&mut identity, &argument, Identity::Plaintext(device), ONE_IDENTITY)?;
                }
                "--data" => set_once(&mut samples, &argument, Source::File(value()?.into()), ONE_SOURCE)?,
                "--synthetic" => {
                    let seed = parse_number(&argument, &value()?)?;
                    set_once(&mut samples, &argument, Source::Synthetic(seed), ONE_SOURCE)?;
                }
                "--state" => set_once(&mut state, &argument, value()?.into(), "one --state")?,
                _ => return Err(format!("found {argument}, allowed: the options of --help")),
            }
        }
        let address = address.ok_or("the server's ADDRESS is missing")?;
        let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
        if port.and_then(|port| port.parse::<u16>().ok()).is_none_or(|port| port == 0) {
            return Err(format!("found address {address}, allowed: HOST:PORT with a port from 1 to 65535"));
        }
        let identity = identity.ok_or(format!("missing: {ONE_IDENTITY}"))?;
        let samples = samples.ok_or(format!("missing: {ONE_SOURCE}"))?;
        Ok(Self { address, identity, samples, state })
    }
}

const ONE_IDENTITY: &str = "either --record or --plaintext";
const ONE_SOURCE: &str = "either --data or --synthetic";

/// Stores the value of an option, or fails if the option was given before.
fn set_once<T>(slot: &mut Option<T>, found: &str, value: T, allowed: &str) -> Result<(), String> {
    match slot.replace(value) {
        Some(_) => Err(format!("found {found} after another, allowed: {allowed}")),
        None => Ok(()),
    }
}

fn parse_number(option: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{option}: found {text:?}, allowed: a number from 0 on"))
}

/// Labelled samples, row-major, m x D.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Data {
    pub x: Vec<f32>,
    pub classes: Vec<u8>,
}

impl Data {
    /// Parses lines of D features and a class. Empty lines and lines that begin with # are skipped.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut data = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            let Some((class, features)) = fields.split_last().filter(|(_, features)| features.len() == D)
            else {
                let found = fields.len();
                return Err(format!(
                    "line {number}: found {found} values, allowed: {D} features and a class"
                ));
            };
            for field in features {
                let value = field.parse().ok().filter(|value: &f32| value.is_finite());
                let value = value.ok_or_else(|| {
                    format!("line {number}: found feature {field:?}, allowed: a finite number")
                })?;
                data.x.push(value);
            }
            let class_number = class.parse().ok().filter(|&class: &u8| usize::from(class) < C);
            let class_number = class_number
                .ok_or_else(|| format!("line {number}: found class {class:?}, allowed: 0 to {}", C - 1))?;
            data.classes.push(class_number);
        }
        if data.classes.is_empty() { Err("no samples in it".to_owned()) } else { Ok(data) }
    }

    /// Creates 20 samples of each class: the centre of the class, which all devices share, plus the device's
    /// noise.
    #[must_use]
    pub fn synthetic(seed: u64) -> Self {
        let (mut shared, mut noise) = (ChaCha20Rng::seed_from_u64(0), ChaCha20Rng::seed_from_u64(seed));
        let uniform = |random: &mut ChaCha20Rng| random.next_u32() as f32 / u32::MAX as f32 - 0.5;
        let centres: Vec<f32> = (0..C * (D - 1)).map(|_| uniform(&mut shared)).collect();
        let mut data = Self::default();
        for number in 0..20 * C {
            let class = number % C;
            let centre = centres.iter().skip(class * (D - 1)).take(D - 1);
            data.x.extend(centre.map(|centre| centre + uniform(&mut noise)));
            data.x.push(1.0);
            data.classes.push(class as u8);
        }
        data
    }
}

/// Store in a file, which is replaced as a whole and synced before a call returns. Without a path the store
/// is in memory. Firmware has `FlashStore` instead.
#[derive(Debug, Default)]
pub struct FileStore {
    path: Option<PathBuf>,
    handshakes: u64,
    spent: u64,
    record: Option<(RecordHeader, Vec<f32>)>,
}

/// Size of the counters in bytes: four numbers of 8 bytes. They are the handshakes, the spent budget, the
/// campaign, and the last round with the hash of its representation. The values of the head follow.
const COUNTERS: usize = 32;

impl FileStore {
    /// Opens a store. A file that does not exist is the store of a new device.
    pub fn open(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else { return Ok(Self::default()) };
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Self { path: Some(path.to_owned()), ..Self::default() });
            }
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let counters = bytes.first_chunk::<COUNTERS>();
        let counters = counters.filter(|_| bytes.len().is_multiple_of(4)).ok_or_else(|| {
            format!("{}: {} bytes are not a store; use another file", path.display(), bytes.len())
        })?;
        let counter_at = |offset: usize| {
            let bytes = counters.get(offset..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        let (rounds, head) = (counter_at(24), bytes.get(COUNTERS..).unwrap_or_default());
        let header = RecordHeader {
            campaign: counter_at(16),
            round: rounds as u32,
            representation: (rounds >> 32) as u32,
        };
        let (values, _) = head.as_chunks();
        let head: Vec<f32> = values.iter().copied().map(f32::from_le_bytes).collect();
        let record = (!head.is_empty()).then_some((header, head));
        Ok(Self { path: Some(path.to_owned()), handshakes: counter_at(0), spent: counter_at(8), record })
    }

    /// Writes the store to a new file, syncs it, and renames it to the path.
    fn write(&self) -> Result<(), StoreError> {
        let Some(path) = &self.path else { return Ok(()) };
        let (header, head) = match &self.record {
            Some((header, head)) => (*header, head.as_slice()),
            None => (RecordHeader::default(), &[][..]),
        };
        let rounds = u64::from(header.round) | u64::from(header.representation) << 32;
        let mut bytes = [self.handshakes, self.spent, header.campaign, rounds].map(u64::to_le_bytes).concat();
        bytes.extend(head.iter().flat_map(|value| value.to_le_bytes()));
        let next_path = path.with_extension("next");
        let replace_file = || -> io::Result<()> {
            let mut file = File::create(&next_path)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&next_path, path)
        };
        replace_file().map_err(|_| StoreError)
    }
}

impl Store for FileStore {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let Record { campaign, round, representation, head } = *record;
        self.record = Some((RecordHeader { campaign, round, representation }, head.to_vec()));
        self.write()
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        let stored = self.record.as_ref().filter(|(_, stored)| stored.len() == head.len());
        Ok(stored.map(|(header, stored)| {
            head.copy_from_slice(stored);
            *header
        }))
    }

    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        self.handshakes = reserved;
        self.write()
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        Ok(self.handshakes)
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        self.spent = spent;
        self.write()
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        Ok(self.spent)
    }
}

/// Link over TCP.
#[derive(Debug)]
pub struct Tcp(TcpStream);

impl Tcp {
    pub fn connect(address: &str) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        // A server that does not read must not stop the device for ever.
        socket.set_write_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self(socket))
    }

    /// Returns a second handle of the socket, with which the program waits while the session uses the first.
    pub fn waiter(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Waits until a byte is available, the link is closed, or `span` is over.
    pub fn wait(&self, span: Millis) {
        let span = Duration::from_millis(span.as_u64().clamp(1, 1000));
        // An error or the end of the stream is reported by the next read.
        let _ = self.0.set_read_timeout(Some(span)).and_then(|()| self.0.peek(&mut [0]));
    }
}

impl embedded_io::ErrorType for Tcp {
    type Error = io::Error;
}

impl embedded_io::Read for Tcp {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl embedded_io::ReadReady for Tcp {
    fn read_ready(&mut self) -> io::Result<bool> {
        self.0.set_nonblocking(true)?;
        let peeked = self.0.peek(&mut [0]);
        self.0.set_nonblocking(false)?;
        match peeked {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl embedded_io::WriteReady for Tcp {
    /// Always true: a write ends with an error after the time limit of the socket.
    fn write_ready(&mut self) -> io::Result<bool> {
        Ok(true)
    }
}

impl embedded_io::Write for Tcp {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Session of the device.
pub type Device<'a> = Session<Linear<Workspace<D, K, C>>, Recording<'a>, FileStore, ChaCha20Rng>;

/// Takes part in the campaign of the server at `address` until the final head is fitted.
///
/// # Errors
/// A line for the user, if no server can be reached or the server refuses the device.
pub fn take_part<'a>(
    address: &str,
    device: u64,
    protection: Protection,
    samples: Recording<'a>,
    store: FileStore,
    random: ChaCha20Rng,
) -> Result<Device<'a>, String> {
    let start = Instant::now();
    let clock = || Millis::from(start.elapsed());
    // README
    let model = Linear::new(Workspace::<D, K, C>::new()); // all the memory of the model
    let config = Config { leave_when_fitted: true, ..Config::new(device) };
    let mut session = Session::new(config, protection, model, samples, store, random);
    let (mut rx, mut tx) = ([0; 256], [0; 262]); // one frame in, one frame out
    while !session.is_fitted() {
        let mut tcp = connect(address, &session)?;
        let socket = tcp.waiter().map_err(|error| error.to_string())?;
        let wait = |until: Millis| socket.wait(until - clock()); // in firmware: wfi, if the link is not ready
        let buffers = Buffers { receive: &mut rx, transmit: &mut tx };
        let closed = link::run(&mut session, &mut tcp, buffers, clock, wait);
        if let Some(refusal) = session.refusal() {
            return Err(format!("refused: {refusal}"));
        }
        std::thread::sleep(Duration::from_millis((closed.retry_at - clock()).as_u64().min(60_000)));
    }
    // end
    Ok(session)
}

/// Connects to the server. A device that has finished a round of the campaign retries while the server is
/// unreachable.
fn connect(address: &str, session: &Device<'_>) -> Result<Tcp, String> {
    loop {
        match Tcp::connect(address) {
            Ok(tcp) => return Ok(tcp),
            Err(error) if session.last_round() == 0 => {
                return Err(format!("{address}: {error}; a server must listen there"));
            }
            Err(_) => std::thread::sleep(Duration::from_secs(1)),
        }
    }
}

/// Runs the program, and returns a line for the user.
///
/// # Errors
/// A line for the user.
pub fn run(options: &Options) -> Result<String, String> {
    let file_error = |path: &Path, problem: &dyn std::fmt::Display| format!("{}: {problem}", path.display());
    let (device, protection) = match &options.identity {
        Identity::Plaintext(device) => (*device, Protection::Plaintext),
        Identity::Record(path) => {
            let bytes = fs::read(path).map_err(|error| file_error(path, &error))?;
            let provision = Provision::read(&bytes).map_err(|error| file_error(path, &error))?;
            if provision.noise.is_some() {
                return Err(file_error(path, &"the device must add noise, and this program cannot"));
            }
            (provision.device, Protection::Key(provision.key))
        }
    };
    let data = match &options.samples {
        Source::Synthetic(seed) => Data::synthetic(*seed),
        Source::File(path) => {
            let text = fs::read_to_string(path).map_err(|error| file_error(path, &error))?;
            Data::parse(&text).map_err(|error| file_error(path, &error))?
        }
    };
    let store = FileStore::open(options.state.as_deref())?;
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| format!("no randomness: {error}"))?;
    let random = ChaCha20Rng::from_seed(seed);
    let samples = Recording::classification(&data.x, &data.classes, D);
    let mut session = take_part(&options.address, device, protection, samples, store, random)?;
    let mut correct = 0;
    for (x, &class) in data.x.chunks(D).zip(&data.classes) {
        let mut scores = [0.0f32; C];
        session.task_mut().predict(x, &mut scores).map_err(|error| error.to_string())?;
        let best = (0u8..).zip(scores).max_by(|(_, a), (_, b)| a.total_cmp(b));
        correct += usize::from(best.is_some_and(|(best, _)| best == class));
    }
    let round = session.last_round();
    let counted = session.counters().counted;
    let total = data.classes.len();
    Ok(format!(
        "device {device}: finished round {round}, {counted} answers counted, {correct} of {total} own samples right"
    ))
}

#[allow(dead_code, reason = "tests include this file")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("tcp_device: {problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("tcp_device: {problem}");
            ExitCode::FAILURE
        }
    }
}
