//! Store of the adapter server: the state directory with committed rounds and accepted updates.
//!
//! A rename commits a round or accepts an update. The files are synced before the rename.
//!
//! ```text
//!  round-0000/     the base: adapter_model.safetensors, round.json, and adapter_config.json if the base has one
//!  round-0001/     the mean: the same files, and changed.safetensors with the tensors that the round trained
//!  updates-0002/   CLIENT.SAMPLES.DIGEST.safetensors: accepted updates as whole adapters, validated; removed
//!                  once the round is committed
//!  incoming/       uploads in progress; emptied at the start of a server
//! ```

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::client_registry::ClientIndex;
use super::error::io_error;
use super::round_state::{AcceptedUpdates, OpenRound, UpdateSummary};
use super::upload::TempFiles;
use super::{LoraMethod, ServerError};
use crate::files::{
    AdapterError, AverageJob, Inputs, Output, RoundKind, average, check, extract_trained, merge_update,
    read_layout,
};
use fedspan_files::{FileLock, hex, regular};

/// Name of the adapter file of a committed round.
pub const MODEL: &str = "adapter_model.safetensors";
/// Name of the PEFT configuration of a committed round, which exists if the base has one.
pub const CONFIG: &str = "adapter_config.json";
/// Name of the file with the tensors that the round trained, for clients that have the previous adapter.
pub const CHANGED: &str = "changed.safetensors";
const RECORD: &str = "round.json";

/// Largest memory for the computation of the interference of a plain round, in bytes: the longest tensor of
/// the base and of every client.
const INTERFERENCE_BYTES_MAX: u64 = 64 << 20;

/// Content of `round.json`: the inputs of a committed round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// Round number; 0 is the base.
    pub round: u32,
    /// Name of the LoRA method, which is the same in all rounds.
    pub method: String,
    /// Name of the round kind; empty for the base.
    pub trained: String,
    /// SHA-256 of the base's adapter file, in hexadecimal digits.
    pub base: String,
    /// Number of samples and SHA-256 of the accepted update of every client.
    pub clients: BTreeMap<String, (u32, String)>,
    /// `|mean(B_i A_i) - mean(B) mean(A)| / |mean(B_i A_i)|`, Frobenius norms. `None` if it was not computed.
    pub interference: Option<f64>,
}

/// Settings of an average.
#[derive(Clone, Copy, Debug)]
pub struct AverageOptions<'a> {
    /// Names of all clients, in ascending order.
    pub names: &'a [String],
    /// True to weigh clients by their samples, false to give every client with samples the same weight.
    pub by_samples: bool,
    /// Number of threads.
    pub threads: usize,
}

/// State directory of one server, locked while the value lives.
#[derive(Debug)]
pub struct RoundStore {
    directory: PathBuf,
    /// SHA-256 of the configured base, in hexadecimal digits.
    base: String,
    method: LoraMethod,
    /// Number of the next pair of temporary files.
    next_temp: AtomicU64,
    _lock: FileLock,
}

impl RoundStore {
    /// Opens a state directory, or creates a directory with the base as round 0. Also returns the record of
    /// the last committed round.
    ///
    /// # Errors
    /// [`ServerError::Locked`] if another server uses the directory; [`ServerError::Adapter`] if the base is
    /// not an adapter; [`ServerError::SettingChanged`] if the directory was created with another base or
    /// method; [`ServerError::CorruptRecord`] or [`ServerError::Io`] if the directory cannot be read.
    pub fn open(
        directory: &Path,
        base: &Path,
        method: LoraMethod,
    ) -> Result<(Self, RoundRecord), ServerError> {
        create_directory(directory)?;
        let path = directory.join("lock");
        regular(&path).map_err(io_error(&path))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(io_error(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ServerError::Locked { path }),
            Err(TryLockError::Error(error)) => return Err(io_error(&path)(error)),
        }
        read_layout(base)?;
        let model = if base.is_dir() { base.join(MODEL) } else { base.to_owned() };
        let digest = file_digest(&model)?;
        let directory = directory.to_owned();
        let store = Self {
            directory,
            base: digest,
            method,
            next_temp: AtomicU64::new(0),
            _lock: FileLock::new(lock),
        };
        remove_directory(&store.incoming_directory())?;
        create_directory(&store.incoming_directory())?;
        let record = match store.latest_committed()? {
            Some(number) => store.read_record(number)?,
            None => store.commit_base(&model)?,
        };
        // After a crash, the rename that committed the last round may not be durable. It must be durable
        // before the updates of that round are removed.
        sync_directory(&store.directory)?;
        store.remove_closed_updates(record.round)?;
        create_directory(&store.updates_directory(record.round + 1))?;
        Ok((store, record))
    }

    /// Directory of a committed round.
    #[must_use]
    pub fn round(&self, number: u32) -> PathBuf {
        self.directory.join(format!("round-{number:04}"))
    }

    /// Directory of the accepted updates of a round.
    fn updates_directory(&self, number: u32) -> PathBuf {
        self.directory.join(format!("updates-{number:04}"))
    }

    /// Directory of uploads in progress.
    fn incoming_directory(&self) -> PathBuf {
        self.directory.join("incoming")
    }

    /// Returns temporary paths for an upload: one for the body, and one for the whole adapter that is built
    /// from the body.
    pub fn temp_files(&self) -> TempFiles {
        let number = self.next_temp.fetch_add(1, Ordering::Relaxed);
        let path = |part: &str| self.incoming_directory().join(format!("{number}.{part}"));
        TempFiles { body: path("body"), merged: path("whole") }
    }

    /// Validates an uploaded `body` against the adapter of round `base`, writes the whole adapter to `merged`
    /// and syncs it.
    ///
    /// # Errors
    /// [`AdapterError::File`] if the body does not fit the base, [`AdapterError::Output`] if `merged` cannot
    /// be written.
    pub fn validate_and_merge(
        &self,
        base: u32,
        body: &Path,
        kind: RoundKind,
        merged: &Path,
    ) -> Result<(), AdapterError> {
        merge_update(&self.round(base).join(MODEL), body, kind, merged)
    }

    /// Moves a whole adapter to the accepted updates of a round. The update is durable when the call returns.
    ///
    /// # Errors
    /// [`ServerError::Io`]; the update is not accepted in that case.
    pub fn accept(
        &self,
        round: u32,
        client: &str,
        update: &UpdateSummary,
        merged: &Path,
    ) -> Result<(), ServerError> {
        let path = self.updates_directory(round).join(update_file_name(client, update));
        std::fs::rename(merged, &path).map_err(io_error(&path))?;
        sync_directory(&self.updates_directory(round)).inspect_err(|_| drop(std::fs::remove_file(&path)))
    }

    /// Updates of the round after `committed` that were accepted before a restart.
    ///
    /// # Errors
    /// [`ServerError::UnknownUpdate`] for two updates of one client, and for an update of a client that is
    /// not in `names`: ignoring such an update would lose an acknowledged update. [`ServerError::Io`] if the
    /// directory cannot be read.
    pub fn pending_updates(&self, committed: u32, names: &[String]) -> Result<AcceptedUpdates, ServerError> {
        let directory = self.updates_directory(committed + 1);
        sync_directory(&directory)?;
        let mut updates = AcceptedUpdates::new();
        for entry in std::fs::read_dir(&directory).map_err(io_error(&directory))? {
            let path = entry.map_err(io_error(&directory))?.path();
            let parsed = path.file_name().and_then(|file| file.to_str()).and_then(parse_update_file_name);
            let parsed =
                parsed.and_then(|(client, update)| Some((names.binary_search(&client).ok()?, update)));
            match parsed.map(|(client, update)| updates.insert(ClientIndex(client), update)) {
                Some(None) => {}
                _ => return Err(ServerError::UnknownUpdate { path }),
            }
        }
        Ok(updates)
    }

    /// Averages the updates of a closed round and commits the mean. If the number of samples of every update
    /// is 0, the adapter remains unchanged.
    ///
    /// # Errors
    /// [`ServerError::Adapter`] or [`ServerError::Io`]; [`ServerError::Adapter`] if `keep_going` returns
    /// false.
    pub fn commit(
        &self,
        open: &OpenRound,
        options: AverageOptions<'_>,
        keep_going: &(dyn Fn() -> bool + Sync),
    ) -> Result<RoundRecord, ServerError> {
        let client_name = |client: &ClientIndex| options.names.get(client.0).map_or("", String::as_str);
        let files: Vec<PathBuf> = open
            .updates
            .iter()
            .map(|(client, update)| {
                self.updates_directory(open.number).join(update_file_name(client_name(client), update))
            })
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
                .map(|(client, update)| {
                    (client_name(client).to_owned(), (update.samples, hex_text(&update.digest)))
                })
                .collect(),
            interference,
        };
        let record = self.write_round(open.number, |partial| {
            if samples.iter().all(|samples| *samples == 0) {
                copy_adapter(&base.join(MODEL), partial)?;
                extract_trained(&partial.join(MODEL), open.kind, &partial.join(CHANGED))?;
                return Ok(record(Some(0.0)));
            }
            let inputs = Inputs::open(&base, &files, Some(&samples))?;
            let job =
                AverageJob { kind: open.kind, output: Output::from_path(partial), threads: options.threads };
            average(&inputs, job, &|_, _| keep_going())?;
            extract_trained(&partial.join(MODEL), open.kind, &partial.join(CHANGED))?;
            let longest_of_all = inputs.layout().longest_tensor().saturating_mul(files.len() as u64 + 1);
            // In an up or down round all clients have the same frozen factor, so the interference is 0 and
            // the files need not be read again.
            let interference = match open.kind {
                RoundKind::Plain if longest_of_all <= INTERFERENCE_BYTES_MAX => {
                    check(&inputs, &|_, _| keep_going())?.interference
                }
                RoundKind::Plain => None,
                RoundKind::Down | RoundKind::Up => Some(0.0),
            };
            Ok(record(interference))
        })?;
        create_directory(&self.updates_directory(open.number + 1))?;
        remove_directory(&self.updates_directory(open.number))?;
        Ok(record)
    }

    /// Writes a round to a temporary directory, syncs it, and commits it by a rename.
    fn write_round(
        &self,
        number: u32,
        fill: impl FnOnce(&Path) -> Result<RoundRecord, ServerError>,
    ) -> Result<RoundRecord, ServerError> {
        let path = self.round(number);
        let partial = path.with_extension("partial");
        remove_directory(&partial)?;
        create_directory(&partial)?;
        let record = fill(&partial).inspect_err(|_| drop(remove_directory(&partial)))?;
        let record_path = partial.join(RECORD);
        let json = serde_json::json!(record).to_string() + "\n";
        File::create(&record_path)
            .and_then(|mut file| file.write_all(json.as_bytes()).and_then(|()| file.sync_all()))
            .map_err(io_error(&record_path))?;
        sync_directory(&partial)?;
        std::fs::rename(&partial, &path).map_err(io_error(&path))?;
        sync_directory(&self.directory)?;
        Ok(record)
    }

    /// Commits the base as round 0.
    fn commit_base(&self, model: &Path) -> Result<RoundRecord, ServerError> {
        self.write_round(0, |partial| {
            copy_adapter(model, partial)?;
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

    /// Reads the record of a round, and checks that method and base are the configured ones.
    fn read_record(&self, number: u32) -> Result<RoundRecord, ServerError> {
        let path = self.round(number).join(RECORD);
        let json = regular(&path).and_then(|()| std::fs::read(&path)).map_err(io_error(&path))?;
        let record: RoundRecord =
            serde_json::from_slice(&json).map_err(|error| ServerError::CorruptRecord { path, error })?;
        let settings = [
            ("the method", &record.method, self.method.name()),
            ("the base of SHA-256", &record.base, self.base.as_str()),
        ];
        let changed = settings.into_iter().find(|(_, found, expected)| found != expected);
        if let Some((setting, found, expected)) = changed {
            let (found, expected) = (found.clone(), expected.to_owned());
            return Err(ServerError::SettingChanged {
                path: self.directory.clone(),
                setting,
                found,
                expected,
            });
        }
        Ok(record)
    }

    /// Number of the last committed round; `None` in an empty directory.
    fn latest_committed(&self) -> Result<Option<u32>, ServerError> {
        Ok(self.directory_numbers("round-")?.into_iter().max())
    }

    /// Removes the updates of committed rounds.
    fn remove_closed_updates(&self, committed: u32) -> Result<(), ServerError> {
        let closed = self.directory_numbers("updates-")?.into_iter().filter(|number| *number <= committed);
        closed.map(|number| self.updates_directory(number)).try_for_each(|path| remove_directory(&path))
    }

    /// Numbers of the directories whose names begin with `prefix`.
    fn directory_numbers(&self, prefix: &str) -> Result<Vec<u32>, ServerError> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(io_error(&self.directory))? {
            let file = entry.map_err(io_error(&self.directory))?.file_name();
            let number: Option<u32> = file.to_str().and_then(|file| file.strip_prefix(prefix)?.parse().ok());
            // Names that this server does not write, such as `round-7`, are ignored.
            let is_written_form = |number: &u32| file.to_str() == Some(&format!("{prefix}{number:04}"));
            numbers.extend(number.filter(is_written_form));
        }
        Ok(numbers)
    }
}

/// Copies an adapter, and its configuration if there is one, into a directory. The adapter is copied by
/// merging it with itself, which checks that all values are finite.
fn copy_adapter(model: &Path, directory: &Path) -> Result<(), ServerError> {
    merge_update(model, model, RoundKind::Plain, &directory.join(MODEL))?;
    let config = model.with_file_name(CONFIG);
    if config.is_file() {
        let target = directory.join(CONFIG);
        std::fs::copy(&config, &target).map_err(io_error(&config))?;
        File::open(&target).and_then(|file| file.sync_all()).map_err(io_error(&target))?;
    }
    Ok(())
}

/// Accepted updates of a record, without clients that are not in `names`.
#[must_use]
pub fn updates_of_record(record: &RoundRecord, names: &[String]) -> AcceptedUpdates {
    let updates = record.clients.iter().filter_map(|(client, (samples, digest))| {
        let client = names.binary_search(client).ok()?;
        Some((ClientIndex(client), UpdateSummary { samples: *samples, digest: *hex::decode(digest)? }))
    });
    updates.collect()
}

/// Digest in hexadecimal digits.
fn hex_text(digest: &[u8; 32]) -> String {
    let mut text = String::new();
    hex::encode(digest, &mut text);
    text
}

/// Name of the file of an accepted update.
fn update_file_name(client: &str, update: &UpdateSummary) -> String {
    format!("{client}.{}.{}.safetensors", update.samples, hex_text(&update.digest))
}

/// Client and summary from the name of an update file; `None` if the name is invalid.
fn parse_update_file_name(file: &str) -> Option<(String, UpdateSummary)> {
    let mut parts = file.strip_suffix(".safetensors")?.split('.');
    let client = parts.next()?;
    let samples = parts.next()?.parse().ok()?;
    let digest = hex::decode(parts.next()?)?;
    parts.next().is_none().then(|| (client.to_owned(), UpdateSummary { samples, digest: *digest }))
}

/// SHA-256 of a file, in hexadecimal digits.
fn file_digest(path: &Path) -> Result<String, ServerError> {
    let mut file = File::open(path).map_err(io_error(path))?;
    let mut hasher = Sha256::new();
    let mut block = vec![0; 1 << 16];
    loop {
        match file.read(&mut block).map_err(io_error(path))? {
            0 => return Ok(hex_text(&hasher.finalize().into())),
            read => hasher.update(&block[..read]),
        }
    }
}

/// Creates a directory with its missing parents, and syncs them.
fn create_directory(directory: &Path) -> Result<(), ServerError> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_directory(parent)?;
    DirBuilder::new().mode(0o700).create(directory).map_err(io_error(directory))?;
    sync_directory(parent)
}

/// Removes a directory with its content, if it exists.
fn remove_directory(directory: &Path) -> Result<(), ServerError> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error(directory)(error)),
        _ => Ok(()),
    }
}

/// Syncs a directory.
fn sync_directory(directory: &Path) -> Result<(), ServerError> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(io_error(directory))
}
