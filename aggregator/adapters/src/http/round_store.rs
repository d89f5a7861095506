//! Store of the adapter server: the state directory with committed rounds and accepted updates.
//!
//! A rename commits a round or accepts an update. The files are synced before the rename. Digests of all files are
//! recorded as they are written, and verified:
//!
//! ```text
//!  each file that is written   once, before the rename
//!  files of the newest round   at the start: all; before a mean: record and adapter, and the configuration with its copy;
//!                              while served: adapter, configuration and changed.safetensors, which no mean reads
//!  accepted updates            at the start, and before a mean
//!  files of older rounds       by the check of an exchange only
//! ```
//!
//! ```text
//!  round-0000/     the base: adapter_model.safetensors, round.json, and adapter_config.json if the base has one
//!  round-0001/     the mean: the same files, and changed.safetensors with the tensors that the round trained
//!  updates-0002/   CLIENT.SAMPLES.DIGEST.SEAL.safetensors: accepted updates as whole adapters, validated; removed
//!                  once the round is committed
//!  damaged/        updates that were set aside because they are not what was accepted, and files of others
//!  incoming/       uploads in progress; emptied at the start of a server
//!  lock            lock file, beside the lock of the directory itself
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use super::client_registry::ClientIndex;
use super::disk::{Disk, compare_written, finish_hex, hash_file, hex_text, is_of_the_system, verify_written};
use super::error::io_error;
use super::round_record::RoundRecord;
use super::round_state::{AcceptedUpdates, OpenRound, UpdateSummary};
use super::stored_state::{
    CHANGED, CONFIG, Content, DAMAGED, MODEL, NO_UPDATE_NAME, RECORD, StoredUpdate, changed_setting,
    damaged_files, digest_problem, directory_numbers, entries, file_problem, hash_base, is_counted_update,
    later_updates, latest_committed, private_directories, read_record, read_updates, updates_directory,
};
use super::update_file::{UpdateName, Verification};
use super::upload::TempFiles;
use super::{LoraMethod, ServerError};
use crate::files::{
    AdapterError, AverageJob, ExtractHashes, Fault, Inputs, Output, RoundKind, average, check,
    extract_trained, merge_update,
};
use fedspan_files::{DirectoryLock, hex, open_private_directory};

/// Largest memory for the computation of the interference of a plain round, in bytes: the longest tensor of
/// the base and of every client.
const INTERFERENCE_BYTES_MAX: u64 = 64 << 20;

/// Settings of an average.
#[derive(Clone, Copy, Debug)]
pub struct AverageOptions<'a> {
    /// Names of all clients, in ascending order.
    pub names: &'a [String],
    /// True to weigh clients by their samples, false to give every client with samples the same weight.
    pub by_samples: bool,
    /// Largest number of samples that counts.
    pub samples_max: u32,
    /// Number of threads.
    pub threads: usize,
    /// Number of updates whose files may stay open.
    pub open_files: usize,
}

/// Result of [`RoundStore::commit`].
#[derive(Clone, Debug, PartialEq)]
pub enum Commit {
    /// The round is committed.
    Done(RoundRecord),
    /// Updates of these clients were damaged and have been set aside. The round is not committed.
    Damaged(Vec<ClientIndex>),
}

/// Digest of a file of a committed round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedDigest {
    /// SHA-256 in hexadecimal digits.
    Known(String),
    /// The round was committed by an earlier version, which recorded no digests.
    Unrecorded,
    /// The round has no such file.
    NoFile,
}

/// Digests of the bytes that were to be written to the files of a round, by name, in hexadecimal digits.
type WrittenDigests = BTreeMap<String, String>;

/// Accepted updates with the names and paths of their files, and the clients whose file is missing.
type UpdateFiles = (Vec<(ClientIndex, UpdateName, PathBuf)>, Vec<ClientIndex>);

/// State directory of one server, locked while the value lives.
#[derive(Debug)]
pub struct RoundStore {
    directory: PathBuf,
    /// SHA-256 of the configured base, in hexadecimal digits.
    base: String,
    method: LoraMethod,
    /// Number of the next pair of temporary files.
    next_temp: AtomicU64,
    disk: Disk,
    /// Digests of the files of the last two committed rounds.
    digests: Mutex<BTreeMap<u32, BTreeMap<String, String>>>,
    /// Updates that were not accepted and could not be removed. They are removed before the next update is accepted.
    rejected: Mutex<Vec<PathBuf>>,
    _lock: DirectoryLock,
}

impl RoundStore {
    /// Opens a state directory, or creates a directory with the base as round 0. Also returns the record of
    /// the last committed round, whose files are verified.
    ///
    /// # Errors
    /// [`ServerError::NotPrivate`] if other users may write the directory; [`ServerError::Locked`] if another server
    /// uses it; [`ServerError::Adapter`] if the base is not an adapter; [`ServerError::SettingChanged`] if the
    /// directory was created with another base or method; [`ServerError::Damaged`] if the last round is not as it was
    /// committed; [`ServerError::Io`] if the directory cannot be read.
    pub fn open(
        directory: &Path,
        base: &Path,
        method: LoraMethod,
        disk: Disk,
    ) -> Result<(Self, RoundRecord), ServerError> {
        open_private(directory)?;
        let lock = DirectoryLock::exclusive(directory, |path| {
            tracing::info!(path = %path.display(), "waiting for a check");
        })?;
        if !lock.is_of_directory() {
            tracing::warn!(path = %directory.display(), "this file system cannot lock directories; do not remove the file lock");
        }
        let (model, digest) = hash_base(base)?;
        let store = Self {
            directory: directory.to_owned(),
            base: digest,
            method,
            next_temp: AtomicU64::new(0),
            disk,
            digests: Mutex::default(),
            rejected: Mutex::default(),
            _lock: lock,
        };
        private_directories(directory)?.iter().try_for_each(|path| open_private(path))?;
        store.remove_files(&store.incoming_directory(), "incoming", is_upload)?;
        store.disk.create_directory(&store.incoming_directory())?;
        let record = match latest_committed(directory)? {
            Some(number) => store.read_record(number)?,
            None => store.commit_base(&model)?,
        };
        store.verify_round(&record)?;
        store.remember_digests(&record);
        // After a crash, the rename that committed the last round may not be durable. It must be durable
        // before the updates of that round are removed.
        store.disk.sync(&store.directory)?;
        store.remove_closed_updates(&record)?;
        store.disk.create_directory(&store.updates_directory(record.round + 1))?;
        Ok((store, record))
    }

    /// Directory of a committed round.
    #[must_use]
    pub fn round(&self, number: u32) -> PathBuf {
        self.directory.join(format!("round-{number:04}"))
    }

    /// Directory of the accepted updates of a round.
    fn updates_directory(&self, number: u32) -> PathBuf {
        updates_directory(&self.directory, number)
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

    /// Digest of a file of one of the last two committed rounds.
    #[must_use]
    pub fn recorded_digest(&self, round: u32, name: &str) -> RecordedDigest {
        match self.digests().get(&round) {
            None => RecordedDigest::Unrecorded,
            Some(files) if files.is_empty() => RecordedDigest::Unrecorded,
            Some(files) => files.get(name).cloned().map_or(RecordedDigest::NoFile, RecordedDigest::Known),
        }
    }

    /// Keeps the digests of a committed round, and forgets those of rounds before the previous one.
    fn remember_digests(&self, record: &RoundRecord) {
        let mut digests = self.digests();
        digests.insert(record.round, record.files.clone());
        digests.retain(|round, _| round.saturating_add(1) >= record.round);
    }

    /// Locks the digests.
    fn digests(&self) -> MutexGuard<'_, BTreeMap<u32, BTreeMap<String, String>>> {
        self.digests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Validates an uploaded `body` against the adapter of round `base`, writes the whole adapter to `merged`
    /// and syncs it. Returns the state of SHA-256 after the bytes that were to be written.
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
    ) -> Result<Sha256, AdapterError> {
        merge_update(&self.round(base).join(MODEL), body, kind, merged)
    }

    /// Verifies the adapter of a committed round.
    ///
    /// # Errors
    /// [`ServerError::Damaged`] if the file has changed since it was committed or cannot be read, [`ServerError::Io`] for
    /// an error of the whole system.
    pub fn verify_model(&self, round: u32) -> Result<(), ServerError> {
        self.verify_file(round, MODEL)
    }

    /// Verifies a file of a committed round.
    fn verify_file(&self, round: u32, name: &str) -> Result<(), ServerError> {
        let recorded = match self.recorded_digest(round, name) {
            RecordedDigest::Unrecorded => return Ok(()),
            RecordedDigest::Known(recorded) => Some(recorded),
            RecordedDigest::NoFile => None,
        };
        let path = self.round(round).join(name);
        match file_problem(&path, recorded.as_deref())? {
            Some(problem) => Err(ServerError::damaged_round(path, problem, round)),
            None => Ok(()),
        }
    }

    /// Verifies that a stored request body is the one that was received.
    ///
    /// # Errors
    /// [`ServerError::Io`] if the file differs or cannot be read.
    pub fn verify_body(&self, body: &Path, update: &UpdateSummary) -> Result<(), ServerError> {
        let found = hash_file(body).map_err(io_error(body))?.finalize();
        if found[..] == update.digest {
            return Ok(());
        }
        let text = "the file differs from the request body that was received; check the disk";
        Err(io_error(body)(std::io::Error::new(std::io::ErrorKind::InvalidData, text)))
    }

    /// Reads a whole adapter back, and returns the name that it has as an accepted update. `written` is the state of
    /// SHA-256 from [`Self::validate_and_merge`].
    ///
    /// # Errors
    /// [`ServerError::Io`] if the file has other bytes, or cannot be read or made private.
    pub fn seal(
        &self,
        round: u32,
        client: &str,
        update: UpdateSummary,
        merged: &Path,
        written: Sha256,
    ) -> Result<UpdateName, ServerError> {
        self.disk.make_private(merged)?;
        verify_written(merged, written.clone())?;
        Ok(UpdateName::sealed(round, client, update, written))
    }

    /// Moves a whole adapter to the accepted updates of a round. The update is durable when the call returns.
    ///
    /// # Errors
    /// [`ServerError::Io`]; the update is not accepted in that case, and is not found after a restart unless its
    /// file can neither be synced nor removed.
    pub fn accept(&self, round: u32, name: &UpdateName, merged: &Path) -> Result<(), ServerError> {
        self.remove_rejected()?;
        let directory = self.updates_directory(round);
        let path = directory.join(name.file_name());
        let accepted = self.disk.rename(merged, &path).and_then(|()| self.disk.sync(&directory));
        accepted.inspect_err(|_| {
            self.rejected.lock().unwrap_or_else(PoisonError::into_inner).push(path);
            if let Err(error) = self.remove_rejected() {
                tracing::error!(%error, "cannot remove an update that was not accepted; trying again later");
            }
        })
    }

    /// Removes the updates that were not accepted.
    fn remove_rejected(&self) -> Result<(), ServerError> {
        let mut rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(path) = rejected.last() {
            self.disk.remove_file(path)?;
            rejected.pop();
        }
        Ok(())
    }

    /// Updates of the round after `committed` that were accepted before a restart, and the number of damaged updates
    /// that were set aside.
    ///
    /// # Errors
    /// [`ServerError::UnknownUpdate`] for two updates of one client, and for an update of a client that is
    /// not in `names`: ignoring such an update would lose an acknowledged update. A file whose name is no name of an
    /// update is set aside as damaged. [`ServerError::ClosedUpdates`] for
    /// updates of a later round. [`ServerError::Io`] if the directory cannot be read.
    pub fn pending_updates(
        &self,
        committed: u32,
        names: &[String],
    ) -> Result<(AcceptedUpdates, u64), ServerError> {
        let round = committed.saturating_add(1);
        let directory = self.updates_directory(round);
        self.disk.sync(&directory)?;
        let mut updates = AcceptedUpdates::new();
        let mut damaged = 0;
        for StoredUpdate { path, content } in read_updates(&self.directory, round, Some(names), &self.disk)? {
            let name = match content {
                Content::Sound(name) => name,
                Content::Unverifiable(name) => {
                    tracing::warn!(file = %path.display(), "update of an earlier version has no digest of its file; it cannot be verified");
                    name
                }
                Content::Damaged(problem) => {
                    self.set_aside(round, &path, &problem)?;
                    damaged += 1;
                    continue;
                }
                Content::Refused => return Err(ServerError::UnknownUpdate { path }),
            };
            // A client that is not in `names` is refused.
            if let Ok(client) = names.binary_search(&name.client) {
                updates.insert(ClientIndex(client), name.update);
            }
        }
        if let Some(error) = later_updates(&self.directory, round)?.into_iter().next() {
            return Err(error);
        }
        Ok((updates, damaged))
    }

    /// Moves a damaged update to the directory of damaged updates, so that it is never counted and its client can
    /// send the update again.
    fn set_aside(&self, round: u32, path: &Path, problem: &str) -> Result<(), ServerError> {
        let target = self.move_away(path, &format!("{round:04}"))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let client = name.split('.').next().unwrap_or_default();
        tracing::error!(file = %path.display(), problem, moved_to = %target.display(), client,
            "damaged update set aside; its client must send it again, and the disk should be checked");
        Ok(())
    }

    /// Moves a file or a directory to the directory of damaged updates, under its name behind a prefix. Returns the path
    /// there.
    fn move_away(&self, path: &Path, prefix: &str) -> Result<PathBuf, ServerError> {
        let directory = self.directory.join(DAMAGED);
        self.disk.create_directory(&directory)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let target = free_path(&directory.join(format!("{prefix}.{name}")));
        self.disk.rename(path, &target)?;
        self.disk.sync(&directory)?;
        self.disk.sync(path.parent().unwrap_or(&self.directory))?;
        Ok(target)
    }

    /// Removes a directory with the files in it that `is_own` accepts by their names. Everything else in it is moved to
    /// the directory of damaged updates, with this prefix, because this server has not written it.
    fn remove_files(
        &self,
        directory: &Path,
        prefix: &str,
        is_own: impl Fn(&str) -> bool,
    ) -> Result<(), ServerError> {
        let paths = match entries(directory) {
            Err(ServerError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(());
            }
            paths => paths?,
        };
        for path in paths {
            let is_file = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
            let name = path.file_name().and_then(|name| name.to_str());
            if is_file && name.is_some_and(&is_own) {
                self.disk.remove_file(&path)?;
                continue;
            }
            let target = self.move_away(&path, prefix)?;
            tracing::warn!(path = %path.display(), moved_to = %target.display(),
                "found a file that the server would not have written here, and kept it; remove it if it is not needed");
        }
        self.disk.remove_directory(directory)
    }

    /// Verifies that the record of a committed round is still the one with which the server works.
    fn verify_record(&self, round: u32) -> Result<(), ServerError> {
        let record = self.read_record(round)?;
        match self.digests().get(&round) {
            Some(files) if *files != record.files => {
                let path = self.round(round).join(RECORD);
                let problem = "found the digests of other files than before".to_owned();
                Err(ServerError::damaged_round(path, problem, round))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Averages the updates of a closed round and commits the mean. If the number of samples of every update
    /// is 0, the adapter remains unchanged. After any error the call can be repeated, with the same result.
    ///
    /// # Errors
    /// [`ServerError::Damaged`] if the base of the round is damaged; [`ServerError::Adapter`] or [`ServerError::Io`];
    /// [`ServerError::Adapter`] if `keep_going` returns false.
    pub fn commit(
        &self,
        open: &OpenRound,
        options: AverageOptions<'_>,
        keep_going: &(dyn Fn() -> bool + Sync),
    ) -> Result<Commit, ServerError> {
        let record = self.new_record(open, options);
        self.verify_record(open.number - 1)?;
        self.verify_file(open.number - 1, CONFIG)?;
        // An earlier attempt may have failed after the rename that commits the round.
        let committed = match self.round(open.number).exists() {
            true => Some(self.read_record(open.number)?).filter(|stored| stored.clients == record.clients),
            false => None,
        };
        let record = match committed {
            Some(committed) => committed,
            None => match self.average_round(open, options, record, keep_going)? {
                Commit::Done(record) => record,
                Commit::Damaged(clients) => return Ok(Commit::Damaged(clients)),
            },
        };
        self.disk.sync(&self.directory)?;
        self.remember_digests(&record);
        self.disk.create_directory(&self.updates_directory(open.number + 1))?;
        if let Err(error) = self.remove_updates(open.number, Some(&record)) {
            // The updates are part of the committed mean. The next start removes them.
            tracing::warn!(%error, "cannot remove the updates of a committed round");
        }
        Ok(Commit::Done(record))
    }

    /// Record of a round that is being committed, without interference and digests.
    fn new_record(&self, open: &OpenRound, options: AverageOptions<'_>) -> RoundRecord {
        let clients = open.updates.iter().map(|(client, update)| {
            (client_name(options.names, *client).to_owned(), (update.samples, hex_text(&update.digest)))
        });
        RoundRecord {
            round: open.number,
            method: self.method.name().to_owned(),
            trained: open.kind.name().to_owned(),
            base: self.base.clone(),
            clients: clients.collect(),
            interference: None,
            samples_max: Some(options.samples_max),
            files: BTreeMap::new(),
            digest: String::new(),
        }
    }

    /// Averages a round, and renames the result to the directory of the round.
    fn average_round(
        &self,
        open: &OpenRound,
        options: AverageOptions<'_>,
        record: RoundRecord,
        keep_going: &(dyn Fn() -> bool + Sync),
    ) -> Result<Commit, ServerError> {
        let (files, missing) = self.update_files(open, options.names)?;
        if !missing.is_empty() {
            return Ok(Commit::Damaged(missing));
        }
        let weight = |update: &UpdateSummary| match options.by_samples {
            true => u64::from(update.samples.min(options.samples_max)),
            false => u64::from(update.samples.min(1)),
        };
        let samples: Vec<u64> = open.updates.values().map(weight).collect();
        let base = self.round(open.number - 1);
        if samples.iter().all(|samples| *samples == 0) {
            let damaged = self.find_damaged(open.number, &files)?;
            if !damaged.is_empty() {
                return Ok(Commit::Damaged(damaged));
            }
            let record = self.write_round(RoundRecord { interference: Some(0.0), ..record }, |partial| {
                let mut written =
                    self.disk.call(&partial.join(MODEL), || copy_adapter(&base.join(MODEL), partial))?;
                self.compare_digest(open.number - 1, MODEL, written.get(MODEL).map(String::as_str))?;
                self.extract(partial, open.kind, &mut written)?;
                Ok(written)
            })?;
            return Ok(Commit::Done(record));
        }
        let paths: Vec<PathBuf> = files.iter().map(|(_, _, path)| path.clone()).collect();
        let opened = Inputs::open_within(&base, &paths, Some(&samples), options.open_files);
        let hashed = opened.and_then(|mut inputs| {
            let hashes = inputs.hash(open.kind, options.threads)?;
            Ok((inputs, hashes))
        });
        let (inputs, (base_hash, client_hashes)) = match hashed {
            Ok(hashed) => hashed,
            Err(error) => return self.explain_failure(open.number, &files, error),
        };
        self.verify_base(open.number - 1, &finish_hex(base_hash))?;
        let mut damaged = Vec::new();
        for ((client, name, path), hash) in files.iter().zip(client_hashes) {
            if let Verification::Damaged(problem) = name.verify(open.number, hash) {
                self.set_aside(open.number, path, &problem)?;
                damaged.push(*client);
            }
        }
        if !damaged.is_empty() {
            return Ok(Commit::Damaged(damaged));
        }
        let mut interference = None;
        let fill = |partial: &Path| {
            let job =
                AverageJob { kind: open.kind, output: Output::from_path(partial), threads: options.threads };
            let report =
                self.disk.call(&partial.join(MODEL), || Ok(average(&inputs, job, &|_, _| keep_going())?))?;
            let mut written = WrittenDigests::from([(MODEL.to_owned(), report.sha256)]);
            written.extend(report.config_sha256.map(|digest| (CONFIG.to_owned(), digest)));
            self.extract(partial, open.kind, &mut written)?;
            let longest_of_all = inputs.layout().longest_tensor().saturating_mul(files.len() as u64 + 1);
            // In an up or down round all clients have the same frozen factor, so the interference is 0 and
            // the files need not be read again.
            interference = match open.kind {
                RoundKind::Plain if longest_of_all <= INTERFERENCE_BYTES_MAX => {
                    check(&inputs, &|_, _| keep_going())?.interference
                }
                RoundKind::Plain => None,
                RoundKind::Down | RoundKind::Up => Some(0.0),
            };
            Ok(written)
        };
        match self.fill_round(open.number, fill) {
            Ok((partial, files)) => {
                Ok(Commit::Done(self.finish_round(RoundRecord { interference, files, ..record }, &partial)?))
            }
            Err(ServerError::Adapter(error)) => self.explain_failure(open.number, &files, error),
            Err(error) => Err(error),
        }
    }

    /// Finds out whether an average failed because of updates that are damaged or cannot be read, and sets them aside.
    fn explain_failure(
        &self,
        round: u32,
        files: &[(ClientIndex, UpdateName, PathBuf)],
        error: AdapterError,
    ) -> Result<Commit, ServerError> {
        // The cause is not in an input, or says nothing about the file.
        if error.input_file().is_none() || error.io_error().is_some_and(is_of_the_system) {
            return Err(error.into());
        }
        // A difference between the base and an update is reported for the update.
        self.verify_model(round.saturating_sub(1))?;
        let mut damaged = self.find_damaged(round, files)?;
        // Every update was valid when it was accepted, so an update that is not valid has changed. That also holds for
        // an update of an earlier version, which has no digest.
        let invalid =
            files.iter().find(|(_, _, path)| !error.is_temporary() && error.input_file() == Some(path));
        if let Some((client, _, path)) = invalid.filter(|(client, _, _)| !damaged.contains(client)) {
            self.set_aside(round, path, &error.to_string())?;
            damaged.push(*client);
        }
        if damaged.is_empty() { Err(error.into()) } else { Ok(Commit::Damaged(damaged)) }
    }

    /// Verifies updates one by one, and sets the damaged ones aside.
    fn find_damaged(
        &self,
        round: u32,
        files: &[(ClientIndex, UpdateName, PathBuf)],
    ) -> Result<Vec<ClientIndex>, ServerError> {
        let mut damaged = Vec::new();
        for (client, name, path) in files {
            if let Verification::Damaged(problem) =
                name.verify_file(round, path, &self.disk).map_err(io_error(path))?
            {
                self.set_aside(round, path, &problem)?;
                damaged.push(*client);
            }
        }
        Ok(damaged)
    }

    /// Files of the accepted updates of a round, in the order of the clients, and the clients whose file is missing.
    fn update_files(&self, open: &OpenRound, names: &[String]) -> Result<UpdateFiles, ServerError> {
        let directory = self.updates_directory(open.number);
        let mut stored = BTreeMap::new();
        for path in entries(&directory)? {
            match path.file_name().and_then(|file| file.to_str()).and_then(UpdateName::parse) {
                Some(name) => {
                    stored
                        .insert((name.client.clone(), name.update.samples, name.update.digest), (name, path));
                }
                // The next start would find the file again.
                None => self.set_aside(open.number, &path, NO_UPDATE_NAME)?,
            }
        }
        let (mut files, mut missing) = (Vec::new(), Vec::new());
        for (client, update) in &open.updates {
            let name = client_name(names, *client);
            match stored.remove(&(name.to_owned(), update.samples, update.digest)) {
                Some((stored_name, path)) => files.push((*client, stored_name, path)),
                None => {
                    let directory = directory.display();
                    tracing::error!(%directory, client = name,
                        "accepted update is missing; its client must send it again, and the disk should be checked");
                    missing.push(*client);
                }
            }
        }
        Ok((files, missing))
    }

    /// Writes the tensors that a round trained to a file of their own. The adapter is read back for that, and must
    /// have the digest in `written`.
    fn extract(
        &self,
        partial: &Path,
        kind: RoundKind,
        written: &mut WrittenDigests,
    ) -> Result<(), ServerError> {
        let (model, changed) = (partial.join(MODEL), partial.join(CHANGED));
        let hashes = self.disk.call(&changed, || Ok(extract_trained(&model, kind, &changed)?))?;
        let ExtractHashes { adapter, written: trained } = hashes;
        compare_written(&model, written.get(MODEL).map_or("", String::as_str), &finish_hex(adapter))?;
        written.insert(CHANGED.to_owned(), finish_hex(trained));
        Ok(())
    }

    /// Writes a round to a temporary directory, syncs it, and commits it by a rename.
    fn write_round(
        &self,
        record: RoundRecord,
        fill: impl FnOnce(&Path) -> Result<WrittenDigests, ServerError>,
    ) -> Result<RoundRecord, ServerError> {
        let (partial, files) = self.fill_round(record.round, fill)?;
        self.finish_round(RoundRecord { files, ..record }, &partial)
    }

    /// Creates the temporary directory of a round and fills it. After an error the directory is removed.
    fn fill_round(
        &self,
        number: u32,
        fill: impl FnOnce(&Path) -> Result<WrittenDigests, ServerError>,
    ) -> Result<(PathBuf, WrittenDigests), ServerError> {
        let partial = self.round(number).with_extension("partial");
        let remove = || self.remove_files(&partial, &format!("round-{number:04}.partial"), is_round_file);
        remove()?;
        self.disk.create_directory(&partial)?;
        let written = fill(&partial).inspect_err(|_| drop(remove()))?;
        Ok((partial, written))
    }

    /// Adds the record to a temporary directory, and commits the directory. The digests in the record are those of the
    /// bytes that were to be written. Each file is read back once, so that no digest is recorded of a file that has
    /// other bytes.
    fn finish_round(&self, record: RoundRecord, partial: &Path) -> Result<RoundRecord, ServerError> {
        let is_extracted = record.files.contains_key(CHANGED);
        for (name, digest) in &record.files {
            let path = partial.join(name);
            self.disk.make_private(&path)?;
            // The extraction of the trained tensors has read the adapter back.
            if name != MODEL || !is_extracted {
                let found = hash_file(&path).map(finish_hex).map_err(io_error(&path))?;
                compare_written(&path, digest, &found)?;
            }
        }
        // The configuration is a copy of that of the round before, which may have been damaged since.
        if let Some(before) = record.round.checked_sub(1) {
            self.compare_digest(before, CONFIG, record.files.get(CONFIG).map(String::as_str))?;
        }
        let path = self.round(record.round);
        let text = record.to_text().map_err(|error| io_error(&path)(error.into()))?;
        self.disk.write_new(&partial.join(RECORD), text.as_bytes())?;
        self.disk.sync(partial)?;
        self.disk.rename(partial, &path)?;
        self.disk.sync(&self.directory)?;
        Ok(record)
    }

    /// Checks that the adapter of a committed round has the digest that was recorded, if one was.
    fn verify_base(&self, round: u32, found: &str) -> Result<(), ServerError> {
        self.compare_digest(round, MODEL, Some(found))
    }

    /// Compares the digest of a file of a committed round with the recorded one; `None` stands for no file.
    fn compare_digest(&self, round: u32, name: &str, found: Option<&str>) -> Result<(), ServerError> {
        let path = self.round(round).join(name);
        let recorded = match self.recorded_digest(round, name) {
            RecordedDigest::Unrecorded => return Ok(()),
            RecordedDigest::Known(recorded) => Some(recorded),
            RecordedDigest::NoFile => None,
        };
        match digest_problem(recorded.as_deref(), found) {
            Some(problem) => Err(ServerError::damaged_round(path, problem, round)),
            None => Ok(()),
        }
    }

    /// Commits the base as round 0.
    fn commit_base(&self, model: &Path) -> Result<RoundRecord, ServerError> {
        let record = RoundRecord {
            round: 0,
            method: self.method.name().to_owned(),
            trained: String::new(),
            base: self.base.clone(),
            clients: BTreeMap::new(),
            interference: None,
            samples_max: None,
            files: BTreeMap::new(),
            digest: String::new(),
        };
        self.write_round(record, |partial| {
            let written = self.disk.call(&partial.join(MODEL), || copy_adapter(model, partial))?;
            // The copy has the bytes of the base, unless the base has changed since the start.
            if written.get(MODEL) != Some(&self.base) {
                let fault = Box::new(Fault::ChangedDuringRead);
                return Err(AdapterError::File { file: model.to_owned(), tensor: None, fault }.into());
            }
            Ok(written)
        })
    }

    /// Reads the record of a round, and checks that method and base are the configured ones.
    fn read_record(&self, number: u32) -> Result<RoundRecord, ServerError> {
        let record = read_record(&self.directory, number)?;
        if let Some(error) = changed_setting(&self.directory, &record, self.method, &self.base) {
            return Err(error);
        }
        Ok(record)
    }

    /// Verifies the files of a committed round.
    fn verify_round(&self, record: &RoundRecord) -> Result<(), ServerError> {
        let directory = self.round(record.round);
        if record.files.is_empty() {
            tracing::warn!(directory = %directory.display(), "round of an earlier version has no digests; its files cannot be verified");
            return Ok(());
        }
        match damaged_files(&directory, record)?.into_iter().next() {
            Some((path, problem)) => Err(ServerError::damaged_round(path, problem, record.round)),
            None => Ok(()),
        }
    }

    /// Removes the updates of committed rounds, the last of which has this record.
    fn remove_closed_updates(&self, newest: &RoundRecord) -> Result<(), ServerError> {
        for number in directory_numbers(&self.directory, "updates-")? {
            match number {
                number if number > newest.round => {}
                number if number == newest.round => self.remove_updates(number, Some(newest))?,
                // The operator may have removed the round with its record.
                number => self.remove_updates(number, read_record(&self.directory, number).ok().as_ref())?,
            }
        }
        Ok(())
    }

    /// Removes the updates of a committed round that are part of its mean according to its record. Everything else is
    /// kept: without a record nothing is removed.
    fn remove_updates(&self, round: u32, record: Option<&RoundRecord>) -> Result<(), ServerError> {
        let is_counted = |file: &str| record.is_some_and(|record| is_counted_update(record, file));
        self.remove_files(&self.updates_directory(round), &format!("{round:04}"), is_counted)
    }
}

/// True for the name of a temporary file of an upload.
fn is_upload(file: &str) -> bool {
    let number = file.strip_suffix(".body").or_else(|| file.strip_suffix(".whole"));
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// True for the name of a file of a round, also while it is written.
fn is_round_file(file: &str) -> bool {
    [MODEL, CONFIG, CHANGED, RECORD].contains(&file.strip_suffix(".partial").unwrap_or(file))
}

/// This path, or the first one with a number behind it that does not exist.
fn free_path(path: &Path) -> PathBuf {
    let numbered = (1_u64..).map(|number| fedspan_files::with_suffix(path, &format!(".{number}")));
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    std::iter::once(path.to_owned()).chain(numbered).find(is_free).unwrap_or_else(|| path.to_owned())
}

/// Name of a client.
fn client_name(names: &[String], client: ClientIndex) -> &str {
    names.get(client.0).map_or("", String::as_str)
}

/// Checks that a directory is private, and logs the files whose access was taken from other users.
fn open_private(directory: &Path) -> Result<(), ServerError> {
    for file in open_private_directory(directory)? {
        tracing::warn!(file = %file.display(), "other users could read this file, now only its owner can");
    }
    Ok(())
}

/// Copies an adapter, and its configuration if there is one, into a directory. The adapter is copied by
/// merging it with itself, which checks that all values are finite. Returns the digests of what was to be written.
fn copy_adapter(model: &Path, directory: &Path) -> Result<WrittenDigests, ServerError> {
    let hash = merge_update(model, model, RoundKind::Plain, &directory.join(MODEL))?;
    let mut written = WrittenDigests::from([(MODEL.to_owned(), finish_hex(hash))]);
    let config = model.with_file_name(CONFIG);
    if config.is_file() {
        let target = directory.join(CONFIG);
        let bytes = std::fs::read(&config).map_err(io_error(&config))?;
        Disk::default().write_new(&target, &bytes)?;
        written.insert(CONFIG.to_owned(), finish_hex(Sha256::new_with_prefix(&bytes)));
    }
    Ok(written)
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

#[cfg(test)]
mod tests;
