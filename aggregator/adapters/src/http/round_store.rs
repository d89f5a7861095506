//! The state directory: rounds that are committed, updates that count. A rename is what commits, for both; what it names is
//! durable before.
//!
//! ```text
//!  round-0000/            adapter_model.safetensors, adapter_config.json: the base. round.json: what made it
//!  round-0001/            the same of the mean; changed.safetensors: what the round changed
//!  updates-0002/          CLIENT.SAMPLES.DIGEST.safetensors: whole adapters, checked; gone once the round is committed
//!  incoming/              what is being received; emptied at the start
//! ```

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::io;
use super::round_state::{AcceptedUpdates, OpenRound, UpdateSummary};
use super::{LoraMethod, ServerError};
use crate::files::{
    AdapterError, AverageJob, Inputs, Output, RoundKind, average, check, extract_trained, merge_update,
    read_layout,
};
use fedspan_files::hex;
use fedspan_files::regular;

/// Files of a committed round.
pub const MODEL: &str = "adapter_model.safetensors";
/// Its configuration, where the base has one.
pub const CONFIG: &str = "adapter_config.json";
/// What the round changed.
pub const CHANGED: &str = "changed.safetensors";
const RECORD: &str = "round.json";

/// Most bytes in memory for the interference of a plain round: a tensor of every client.
const CHECKED_MAX: u64 = 64 << 20;

/// What a committed round was made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// 0 for the base.
    pub round: u32,
    /// The method that all rounds have.
    pub method: String,
    /// What it trained; empty for the base.
    pub trained: String,
    /// SHA-256 of the base's file, as it was given.
    pub base: String,
    /// Samples and digest of every client.
    pub clients: BTreeMap<String, (u32, String)>,
    /// What the mean of factors misses of the mean of products, relative to that; none where it is not computed.
    pub interference: Option<f64>,
}

/// How a mean is made.
#[derive(Clone, Copy, Debug)]
pub struct AverageOptions<'a> {
    /// Names of clients.
    pub names: &'a [String],
    /// Whether clients count by their samples, or all with samples alike.
    pub by_samples: bool,
    /// How many threads.
    pub threads: usize,
}

/// The directory, locked for one server.
#[derive(Debug)]
pub struct RoundStore {
    directory: PathBuf,
    base: String,
    method: LoraMethod,
    /// Numbers of files that are being received.
    next: AtomicU64,
    _lock: File,
}

impl RoundStore {
    /// Opens a directory, or makes one that begins with the base; and what was committed last in it.
    ///
    /// # Errors
    /// A base that is no adapter, or not the one it was begun with; what the system says.
    pub fn open(
        directory: &Path,
        base: &Path,
        method: LoraMethod,
    ) -> Result<(Self, RoundRecord), ServerError> {
        make(directory)?;
        let path = directory.join("lock");
        regular(&path).map_err(io(&path))?;
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ServerError::Locked { path }),
            Err(TryLockError::Error(error)) => return Err(io(&path)(error)),
        }
        read_layout(base)?;
        let model = if base.is_dir() { base.join(MODEL) } else { base.to_owned() };
        let digest = file_digest(&model)?;
        let directory = directory.to_owned();
        let store = Self { directory, base: digest, method, next: AtomicU64::new(0), _lock: lock };
        remove(&store.incoming())?;
        make(&store.incoming())?;
        let record = match store.newest()? {
            Some(number) => store.resume(number)?,
            None => store.begin(&model)?,
        };
        // A rename that is seen may not be durable yet, and what it stands for is about to go.
        sync(&store.directory)?;
        store.sweep(record.round)?;
        make(&store.updates(record.round + 1))?;
        Ok((store, record))
    }

    /// The directory of a committed round.
    #[must_use]
    pub fn round(&self, number: u32) -> PathBuf {
        self.directory.join(format!("round-{number:04}"))
    }

    fn updates(&self, number: u32) -> PathBuf {
        self.directory.join(format!("updates-{number:04}"))
    }

    fn incoming(&self) -> PathBuf {
        self.directory.join("incoming")
    }

    /// Names of two new files: for what a client sends, and for the adapter that is made of it.
    pub fn temp_paths(&self) -> [PathBuf; 2] {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        ["body", "whole"].map(|what| self.incoming().join(format!("{number}.{what}")))
    }

    /// Checks what a client sent after round `base`, and makes a whole adapter of it, durable.
    ///
    /// # Errors
    /// What does not fit; what the system says.
    pub fn validate_and_merge(
        &self,
        base: u32,
        body: &Path,
        round: RoundKind,
        whole: &Path,
    ) -> Result<(), AdapterError> {
        merge_update(&self.round(base).join(MODEL), body, round, whole)
    }

    /// Puts a whole adapter among the updates of a round: from here on it counts, whatever happens.
    ///
    /// # Errors
    /// What the system says; it does not count then.
    pub fn count(
        &self,
        round: u32,
        client: &str,
        update: &UpdateSummary,
        whole: &Path,
    ) -> Result<(), ServerError> {
        let place = self.updates(round).join(name(client, update));
        std::fs::rename(whole, &place).map_err(io(&place))?;
        sync(&self.updates(round)).inspect_err(|_| drop(std::fs::remove_file(&place)))
    }

    /// Updates of the round after `done` that were counted before a restart.
    ///
    /// # Errors
    /// One of a client that is not among `names`: it was told that it counts. Two of one client. What the system says.
    pub fn pending_updates(&self, done: u32, names: &[String]) -> Result<AcceptedUpdates, ServerError> {
        let directory = self.updates(done + 1);
        sync(&directory)?;
        let mut updates = AcceptedUpdates::new();
        for entry in std::fs::read_dir(&directory).map_err(io(&directory))? {
            let path = entry.map_err(io(&directory))?.path();
            let known = path.file_name().and_then(|file| file.to_str()).and_then(unnamed);
            let known = known.and_then(|(client, update)| Some((names.binary_search(&client).ok()?, update)));
            match known.map(|(client, update)| updates.insert(client, update)) {
                Some(None) => {}
                _ => return Err(ServerError::UnknownUpdate { path }),
            }
        }
        Ok(updates)
    }

    /// Makes the mean of a closed round, and commits it. Where no update has samples, the adapter stays as it was.
    ///
    /// # Errors
    /// What the system says; nothing is committed then. An interruption.
    pub fn commit(
        &self,
        open: &OpenRound,
        options: AverageOptions<'_>,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<RoundRecord, ServerError> {
        let names = |client: &usize| options.names.get(*client).map_or("", String::as_str);
        let files: Vec<PathBuf> = open
            .updates
            .iter()
            .map(|(client, update)| self.updates(open.number).join(name(names(client), update)))
            .collect();
        let weight = |samples: u32| u64::from(if options.by_samples { samples } else { samples.min(1) });
        let samples: Vec<u64> = open.updates.values().map(|update| weight(update.samples)).collect();
        let base = self.round(open.number - 1);
        let record = |interference| RoundRecord {
            round: open.number,
            method: self.method.name().to_owned(),
            trained: open.kind.name().to_owned(),
            base: self.base.clone(),
            clients: open
                .updates
                .iter()
                .map(|(client, update)| (names(client).to_owned(), (update.samples, digits(&update.digest))))
                .collect(),
            interference,
        };
        let record = self.put(open.number, |partial| {
            if samples.iter().all(|samples| *samples == 0) {
                copy(&base.join(MODEL), partial)?;
                extract_trained(&partial.join(MODEL), open.kind, &partial.join(CHANGED))?;
                return Ok(record(Some(0.0)));
            }
            let inputs = Inputs::open(&base, &files, Some(&samples))?;
            let job =
                AverageJob { round: open.kind, output: Output::from_path(partial), threads: options.threads };
            average(&inputs, job, &|_, _| go_on())?;
            extract_trained(&partial.join(MODEL), open.kind, &partial.join(CHANGED))?;
            let heaviest = inputs.layout().longest().saturating_mul(files.len() as u64 + 1);
            // Where a factor is everybody's nothing is lost, and nothing has to be read again for it.
            let interference = match open.kind {
                RoundKind::Plain if heaviest <= CHECKED_MAX => check(&inputs, &|_, _| go_on())?.interference,
                RoundKind::Plain => None,
                RoundKind::Down | RoundKind::Up => Some(0.0),
            };
            Ok(record(interference))
        })?;
        make(&self.updates(open.number + 1))?;
        remove(&self.updates(open.number))?;
        Ok(record)
    }

    /// Writes a round beside its place, and renames it.
    fn put(
        &self,
        number: u32,
        fill: impl FnOnce(&Path) -> Result<RoundRecord, ServerError>,
    ) -> Result<RoundRecord, ServerError> {
        let place = self.round(number);
        let partial = place.with_extension("partial");
        remove(&partial)?;
        make(&partial)?;
        let record = fill(&partial).inspect_err(|_| drop(remove(&partial)))?;
        let path = partial.join(RECORD);
        let text = serde_json::json!(record).to_string() + "\n";
        File::create(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .map_err(io(&path))?;
        sync(&partial)?;
        std::fs::rename(&partial, &place).map_err(io(&place))?;
        sync(&self.directory)?;
        Ok(record)
    }

    fn begin(&self, model: &Path) -> Result<RoundRecord, ServerError> {
        self.put(0, |partial| {
            copy(model, partial)?;
            Ok(RoundRecord {
                round: 0,
                method: self.method.name().to_owned(),
                trained: String::new(),
                base: self.base.clone(),
                clients: BTreeMap::new(),
                interference: None,
            })
        })
    }

    fn resume(&self, number: u32) -> Result<RoundRecord, ServerError> {
        let path = self.round(number).join(RECORD);
        let text = regular(&path).and_then(|()| std::fs::read(&path)).map_err(io(&path))?;
        let record: RoundRecord =
            serde_json::from_slice(&text).map_err(|error| ServerError::CorruptRecord { path, error })?;
        let settings = [
            ("the method", &record.method, self.method.name()),
            ("the base of SHA-256", &record.base, self.base.as_str()),
        ];
        let other = settings.into_iter().find(|(_, found, expected)| found != expected);
        if let Some((what, found, expected)) = other {
            let (found, expected) = (found.clone(), expected.to_owned());
            return Err(ServerError::SettingChanged { path: self.directory.clone(), what, found, expected });
        }
        Ok(record)
    }

    /// The number of the newest committed round.
    fn newest(&self) -> Result<Option<u32>, ServerError> {
        Ok(self.numbers("round-")?.into_iter().max())
    }

    /// Removes updates of rounds that are over.
    fn sweep(&self, done: u32) -> Result<(), ServerError> {
        let over = self.numbers("updates-")?.into_iter().filter(|number| *number <= done);
        over.map(|number| self.updates(number)).try_for_each(|path| remove(&path))
    }

    fn numbers(&self, prefix: &str) -> Result<Vec<u32>, ServerError> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(io(&self.directory))? {
            let file = entry.map_err(io(&self.directory))?.file_name();
            let number: Option<u32> = file.to_str().and_then(|file| file.strip_prefix(prefix)?.parse().ok());
            // Nothing but what has a name that we give.
            let is_ours = |number: &u32| file.to_str() == Some(&format!("{prefix}{number:04}"));
            numbers.extend(number.filter(is_ours));
        }
        Ok(numbers)
    }
}

/// Writes an adapter, and the configuration beside it, into a directory. It is its own client: every number is looked at.
fn copy(model: &Path, to: &Path) -> Result<(), ServerError> {
    merge_update(model, model, RoundKind::Plain, &to.join(MODEL))?;
    let config = model.with_file_name(CONFIG);
    if config.is_file() {
        let place = to.join(CONFIG);
        std::fs::copy(&config, &place).map_err(io(&config))?;
        File::open(&place).and_then(|file| file.sync_all()).map_err(io(&place))?;
    }
    Ok(())
}

/// The updates that a record tells of.
#[must_use]
pub fn updates(record: &RoundRecord, names: &[String]) -> AcceptedUpdates {
    let known = record.clients.iter().filter_map(|(client, (samples, digest))| {
        let client = names.binary_search(client).ok()?;
        Some((client, UpdateSummary { samples: *samples, digest: *hex::decode(digest)? }))
    });
    known.collect()
}

fn digits(digest: &[u8; 32]) -> String {
    let mut text = String::new();
    hex::encode(digest, &mut text);
    text
}

fn name(client: &str, update: &UpdateSummary) -> String {
    format!("{client}.{}.{}.safetensors", update.samples, digits(&update.digest))
}

fn unnamed(file: &str) -> Option<(String, UpdateSummary)> {
    let mut parts = file.strip_suffix(".safetensors")?.split('.');
    let (client, samples, digest) = (parts.next()?, parts.next()?.parse().ok()?, hex::decode(parts.next()?)?);
    parts.next().is_none().then(|| (client.to_owned(), UpdateSummary { samples, digest: *digest }))
}

fn file_digest(path: &Path) -> Result<String, ServerError> {
    let mut file = File::open(path).map_err(io(path))?;
    let (mut sum, mut block) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut block).map_err(io(path))? {
            0 => return Ok(digits(&sum.finalize().into())),
            read => sum.update(&block[..read]),
        }
    }
}

/// Makes a directory, and those above it; durable when this returns.
fn make(directory: &Path) -> Result<(), ServerError> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make(parent)?;
    DirBuilder::new().mode(0o700).create(directory).map_err(io(directory))?;
    sync(parent)
}

fn remove(directory: &Path) -> Result<(), ServerError> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(directory)(error)),
        _ => Ok(()),
    }
}

fn sync(directory: &Path) -> Result<(), ServerError> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(io(directory))
}
