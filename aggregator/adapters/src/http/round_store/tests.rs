//! Tests of the store with file-system calls that fail: before the call, and after it took effect.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fedspan_engine::Millis;
use fedspan_engine::participation::{Draws, Policy};
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

use super::super::round_state::{RoundRules, RoundState};
use super::*;

const NAMES: [&str; 2] = ["anton", "beate"];
/// Errors of the system: no space, and an input or output error.
const ERRORS: [i32; 2] = [28, 5];

/// Adapter of rank 1 with this up factor.
fn adapter(up: [f32; 2]) -> Vec<u8> {
    let [down, up] = [[0.5, 0.25], up].map(|values: [f32; 2]| values.map(f32::to_le_bytes).concat());
    let tensors = [
        ("model.q_proj.lora_A.weight", TensorView::new(Dtype::F32, vec![1, 2], &down).unwrap()),
        ("model.q_proj.lora_B.weight", TensorView::new(Dtype::F32, vec![2, 1], &up).unwrap()),
    ];
    safetensors::serialize(tensors, None).unwrap()
}

/// Fault that lets one call fail, or all calls from one on, or that damages a file.
#[derive(Debug, Default)]
struct Faults {
    calls: AtomicU64,
    /// Number of the call at which a bit of a file flips, and the file; `None` after it.
    flip: Mutex<Option<(u64, PathBuf)>>,
    /// Code of the error of reads of updates whose names have a text; `None` without such errors.
    unreadable: Mutex<Option<(i32, &'static str)>>,
    /// Number of the call that fails.
    failing: AtomicU64,
    /// True if all later calls fail too.
    persists: AtomicBool,
}

impl Faults {
    fn set(&self, failing: u64, persists: bool) {
        self.calls.store(0, Ordering::Relaxed);
        self.failing.store(failing, Ordering::Relaxed);
        self.persists.store(persists, Ordering::Relaxed);
    }

    /// Flips a bit of a file at a call, if the file exists then.
    fn set_flip(&self, call: u64, path: PathBuf) {
        self.set(u64::MAX, false);
        *self.flip.lock().unwrap() = Some((call, path));
    }

    /// True if a bit was to flip and no file was there.
    fn has_not_flipped(&self) -> bool {
        self.flip.lock().unwrap().take().is_some()
    }

    /// Flips the bit if it is time.
    fn flip(&self, call: u64) {
        let mut flip = self.flip.lock().unwrap();
        if let Some((_, path)) = flip.take_if(|(at, path)| *at == call && path.exists()) {
            flip_last_bit(&path);
        }
    }

    /// Number of calls since the last [`Self::set`].
    fn count(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

/// Flips the lowest bit of the last byte but one of a file, which is part of a number or of a text.
fn flip_last_bit(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let position = bytes.len() - 2;
    bytes[position] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Directory with a base, a state directory, and faults.
struct Exchange {
    directory: TempDir,
    faults: Arc<Faults>,
}

impl Exchange {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("base.safetensors"), adapter([0.0, 0.0])).unwrap();
        let config = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}"#;
        std::fs::write(directory.path().join(CONFIG), config).unwrap();
        let faults = Faults { failing: AtomicU64::new(u64::MAX), ..Faults::default() };
        Self { directory, faults: Arc::new(faults) }
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn try_open(&self) -> Result<(RoundStore, RoundRecord), ServerError> {
        let faults = Arc::clone(&self.faults);
        let reads = Arc::clone(&self.faults);
        let read_fault = Arc::new(move |path: &Path| match *reads.unreadable.lock().unwrap() {
            Some((code, name)) if path.to_string_lossy().contains(name) => {
                Err(std::io::Error::from_raw_os_error(code))
            }
            _ => Ok(()),
        });
        let fault = Arc::new(move |_: &Path| {
            let call = faults.calls.fetch_add(1, Ordering::Relaxed);
            faults.flip(call);
            let failing = faults.failing.load(Ordering::Relaxed);
            let fails = call == failing || call > failing && faults.persists.load(Ordering::Relaxed);
            if fails {
                let code = ERRORS[usize::from(call.is_multiple_of(2))];
                return Err(std::io::Error::from_raw_os_error(code));
            }
            Ok(())
        });
        let disk = Disk::with_faults(fault, read_fault);
        RoundStore::open(
            &self.state(),
            &self.directory.path().join("base.safetensors"),
            LoraMethod::FfaLora,
            disk,
        )
    }

    /// Opens the store without faults.
    fn open(&self) -> (RoundStore, RoundRecord) {
        self.faults.set(u64::MAX, false);
        self.try_open().unwrap()
    }

    /// Files of the state directory with their bytes, without those of the current round.
    fn committed_files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let round = self.state().join("round-0001");
        let names = [MODEL, CONFIG, CHANGED, RECORD].map(|name| round.join(name));
        names
            .iter()
            .map(|path| {
                let name = path.file_name().unwrap();
                (name.into(), std::fs::read(path).unwrap())
            })
            .collect()
    }
}

fn names() -> Vec<String> {
    NAMES.map(str::to_owned).to_vec()
}

fn options(names: &[String]) -> AverageOptions<'_> {
    AverageOptions { names, by_samples: true, samples_max: 100_000, threads: 2, open_files: 8 }
}

/// Accepts an update of a client with an up factor.
fn accept(store: &RoundStore, client: usize, samples: u32) -> Result<UpdateSummary, ServerError> {
    let files = store.temp_files();
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    std::fs::write(&files.body, adapter([client as f32 + 1.0, 3.0])).unwrap();
    let written = store.validate_and_merge(0, &files.body, RoundKind::Up, &files.merged).unwrap();
    let update = UpdateSummary { samples, digest: [u8::try_from(client).unwrap(); 32] };
    let name = store.seal(1, NAMES[client], update, &files.merged, written)?;
    store.accept(1, &name, &files.merged).map(|()| update)
}

/// Round 1 with these updates, closed.
fn closed_round(updates: AcceptedUpdates) -> OpenRound {
    let rules = RoundRules { method: LoraMethod::FfaLora, rounds: 3, deadline: None, minimum: 1 };
    let policy = Policy::FULL.start(Draws { seed: 1, over_select: 1.0 });
    let mut rounds = RoundState::new(rules, policy, NAMES.len(), 0, AcceptedUpdates::new());
    rounds.open(Millis::ZERO, updates);
    rounds.close(Millis::ZERO).unwrap()
}

fn commit(store: &RoundStore, round: &OpenRound) -> Result<RoundRecord, ServerError> {
    match store.commit(round, options(&names()), &|| true)? {
        Commit::Done(record) => Ok(record),
        Commit::Damaged(clients) => panic!("damaged: {clients:?}"),
    }
}

/// Store with two accepted updates, and their closed round.
fn with_updates(exchange: &Exchange) -> (RoundStore, OpenRound) {
    let (store, _) = exchange.open();
    let updates = (0..NAMES.len()).map(|client| {
        let samples = u32::try_from(client + 2).unwrap();
        (ClientIndex(client), accept(&store, client, samples).unwrap())
    });
    let round = closed_round(updates.collect());
    (store, round)
}

/// Files and number of calls of a commit without faults.
fn reference() -> (BTreeMap<PathBuf, Vec<u8>>, u64) {
    let exchange = Exchange::new();
    let (store, round) = with_updates(&exchange);
    exchange.faults.set(u64::MAX, false);
    commit(&store, &round).unwrap();
    (exchange.committed_files(), exchange.faults.count())
}

#[test]
fn commit_is_repeated_after_a_failure_of_any_call() {
    let (expected, calls) = reference();
    assert!(calls > 20, "{calls}");
    let mut failed = 0;
    for persists in [false, true] {
        for call in 0..calls {
            let exchange = Exchange::new();
            let (store, round) = with_updates(&exchange);
            exchange.faults.set(call, persists);
            let first = commit(&store, &round);
            failed += u64::from(first.is_err());
            exchange.faults.set(u64::MAX, false);
            if let Err(error) = first {
                assert!(error.is_temporary(), "call {call}: {error}");
                commit(&store, &round).unwrap_or_else(|error| panic!("call {call}: {error}"));
            }
            assert_eq!(exchange.committed_files(), expected, "call {call}");
            assert!(matches!(store.recorded_digest(1, CHANGED), RecordedDigest::Known(_)));
            assert!(store.updates_directory(2).is_dir());
            drop(store);
            let (store, record) = exchange.open();
            assert_eq!((record.round, store.updates_directory(1).exists()), (1, false));
        }
    }
    // The last six calls remove the updates and their directory, which is not needed for the commit.
    assert!(failed >= 2 * (calls - 8), "{failed} of {calls}");
}

#[test]
fn restart_completes_a_commit_that_failed_at_any_call() {
    let (expected, calls) = reference();
    for call in 0..calls {
        let exchange = Exchange::new();
        let (store, round) = with_updates(&exchange);
        exchange.faults.set(call, true);
        let _ = commit(&store, &round);
        drop(store);
        let (store, record) = exchange.open();
        if record.round == 0 {
            let (updates, damaged) = store.pending_updates(0, &names()).unwrap();
            assert_eq!((&updates, damaged), (&round.updates, 0), "call {call}");
            commit(&store, &closed_round(updates)).unwrap();
        }
        assert_eq!(exchange.committed_files(), expected, "call {call}");
    }
}

/// After a failure the client sends another update: that one counts, also after a restart.
#[test]
fn update_is_accepted_after_a_failure_of_any_call() {
    let exchange = Exchange::new();
    let (store, _) = exchange.open();
    exchange.faults.set(u64::MAX, false);
    accept(&store, 0, 7).unwrap();
    let calls = exchange.faults.count();
    for persists in [false, true] {
        for call in 0..calls {
            let exchange = Exchange::new();
            let (store, _) = exchange.open();
            exchange.faults.set(call, persists);
            accept(&store, 0, 7).unwrap_err();
            exchange.faults.set(u64::MAX, false);
            let update = accept(&store, 0, 8).unwrap();
            drop(store);
            let (store, _) = exchange.open();
            let pending = store.pending_updates(0, &names()).unwrap();
            assert_eq!(pending, ([(ClientIndex(0), update)].into(), 0), "call {call}");
        }
    }
}

#[test]
fn store_opens_after_a_failure_of_any_call() {
    let exchange = Exchange::new();
    exchange.open();
    let calls = exchange.faults.count();
    for call in 0..calls {
        let exchange = Exchange::new();
        exchange.faults.set(call, true);
        exchange.try_open().unwrap_err();
        let (store, record) = exchange.open();
        assert_eq!((record.round, store.pending_updates(0, &names()).unwrap().0.len()), (0, 0));
    }
}

/// A bit of a file of the mean flips after the file was written, at each of the calls of a commit. The commit fails and
/// is repeated; or it has verified the file before the flip, and the next start finds the damage.
#[test]
fn bit_that_flips_between_write_and_commit_is_not_blessed() {
    let (expected, calls) = reference();
    for name in [MODEL, CONFIG, CHANGED] {
        let mut failed = 0;
        for call in 0..calls {
            let exchange = Exchange::new();
            let (store, round) = with_updates(&exchange);
            exchange.faults.set_flip(call, exchange.state().join("round-0001.partial").join(name));
            let first = commit(&store, &round);
            let is_sound = exchange.faults.has_not_flipped();
            if let Err(error) = &first {
                assert!(
                    error.is_temporary() && error.to_string().contains(name),
                    "{name}, call {call}: {error}"
                );
                commit(&store, &round).unwrap();
                failed += 1;
            }
            if is_sound || first.is_err() {
                assert_eq!(exchange.committed_files(), expected, "{name}, call {call}");
                continue;
            }
            drop(store);
            exchange.faults.set(u64::MAX, false);
            let error = exchange.try_open().unwrap_err();
            assert!(matches!(error, ServerError::Damaged { .. }), "{name}, call {call}: {error}");
        }
        assert!(failed > 0, "{name}");
    }
}

/// The same for the base and its configuration.
#[test]
fn bit_of_the_base_that_flips_while_it_is_stored_is_not_blessed() {
    let exchange = Exchange::new();
    exchange.open();
    let calls = exchange.faults.count();
    let (mut failed, mut sound) = (0, 0);
    for name in [MODEL, CONFIG] {
        for call in 0..calls {
            let exchange = Exchange::new();
            exchange.faults.set_flip(call, exchange.state().join("round-0000.partial").join(name));
            let first = exchange.try_open();
            if exchange.faults.has_not_flipped() {
                sound += u64::from(first.is_ok());
                continue;
            }
            match first {
                Ok(_) => panic!("{name}, call {call}: not found"),
                // The bit has flipped after the file was read back, and is found when the round is verified.
                Err(ServerError::Damaged { .. }) => {}
                Err(error) => {
                    assert!(
                        error.is_temporary() && error.to_string().contains(name),
                        "{name} {call}: {error}"
                    );
                    failed += 1;
                    exchange.open();
                }
            }
        }
    }
    assert!(failed > 2 && sound > 0, "{failed} {sound}");
}

/// An update whose file has changed since it was merged is not accepted.
#[test]
fn bit_of_an_update_that_flips_before_its_acceptance_is_not_blessed() {
    let exchange = Exchange::new();
    let (store, _) = exchange.open();
    exchange.faults.set_flip(0, exchange.state().join("incoming/0.whole"));
    let error = accept(&store, 0, 7).unwrap_err();
    assert!(!exchange.faults.has_not_flipped() && error.to_string().contains("0.whole"), "{error}");
    let update = accept(&store, 0, 7).unwrap();
    assert_eq!(store.pending_updates(0, &names()).unwrap(), ([(ClientIndex(0), update)].into(), 0));
}

/// An update that changes between its verification and the mean is not counted.
#[test]
fn mean_reads_the_bytes_that_were_verified() {
    let exchange = Exchange::new();
    let (store, round) = with_updates(&exchange);
    let (files, missing) = store.update_files(&round, &names()).unwrap();
    assert!(missing.is_empty());
    let paths: Vec<PathBuf> = files.into_iter().map(|(_, _, path)| path).collect();
    let mut inputs = Inputs::open(&store.round(0), &paths, Some(&[1, 1])).unwrap();
    inputs.hash(RoundKind::Up, 1).unwrap();
    // The modification time is restored, so that only the content shows the change.
    let path = paths.first().unwrap();
    let modified = std::fs::metadata(path).unwrap().modified().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let end = file.metadata().unwrap().len();
    std::os::unix::fs::FileExt::write_all_at(&file, &9.0_f32.to_le_bytes(), end - 4).unwrap();
    file.set_modified(modified).unwrap();
    let output = exchange.directory.path().join("mean.safetensors");
    let job = AverageJob { kind: RoundKind::Up, output: Output::from_path(&output), threads: 1 };
    let error = average(&inputs, job, &|_, _| true).unwrap_err();
    assert!(error.is_temporary() && error.input_file() == Some(path), "{error}");
    assert!(!output.exists());
    // The next attempt of the round finds the damage.
    assert_eq!(
        store.commit(&round, options(&names()), &|| true).unwrap(),
        Commit::Damaged(vec![ClientIndex(0)])
    );
}

/// Path of the accepted update of a client in round 1.
fn update_path(exchange: &Exchange, client: &str) -> PathBuf {
    let paths = entries(&exchange.state().join("updates-0001")).unwrap();
    paths.into_iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with(client)).unwrap()
}

/// Puts something that cannot be read in the place of an update: a directory, or a file whose reads fail with an input
/// or output error.
fn make_unreadable(path: &Path, is_directory: bool) {
    std::fs::remove_file(path).unwrap();
    match is_directory {
        true => std::fs::create_dir(path).unwrap(),
        false => std::os::unix::fs::symlink("/proc/self/mem", path).unwrap(),
    }
}

/// An update that cannot be read is set aside before the mean, and its client sends it again.
#[test]
fn unreadable_update_is_set_aside_before_the_mean() {
    let (expected, _) = reference();
    for is_directory in [false, true] {
        let exchange = Exchange::new();
        let (store, round) = with_updates(&exchange);
        make_unreadable(&update_path(&exchange, "beate"), is_directory);
        // A failure of the rename remains an error, which is repeated.
        exchange.faults.set(0, true);
        let error = store.commit(&round, options(&names()), &|| true).unwrap_err();
        assert!(error.is_temporary(), "{error}");
        exchange.faults.set(u64::MAX, false);
        let result = store.commit(&round, options(&names()), &|| true).unwrap();
        assert_eq!(result, Commit::Damaged(vec![ClientIndex(1)]));
        assert_eq!(entries(&exchange.state().join(DAMAGED)).unwrap().len(), 1);
        accept(&store, 1, 3).unwrap();
        commit(&store, &round).unwrap();
        assert_eq!(exchange.committed_files(), expected);
    }
}

/// The same at the start, and before a mean without weights.
#[test]
fn unreadable_update_is_set_aside_at_the_start() {
    for code in [5, 13, 21] {
        let exchange = Exchange::new();
        let (store, round) = with_updates(&exchange);
        *exchange.faults.unreadable.lock().unwrap() = Some((code, "anton"));
        let (updates, damaged) = store.pending_updates(0, &names()).unwrap();
        assert_eq!((updates.keys().collect::<Vec<_>>(), damaged), (vec![&ClientIndex(1)], 1));
        *exchange.faults.unreadable.lock().unwrap() = Some((code, "beate"));
        let mut weightless = round;
        weightless.updates.retain(|client, _| *client == ClientIndex(1));
        let names = names();
        let settings = AverageOptions { samples_max: 0, ..options(&names) };
        let result = store.commit(&weightless, settings, &|| true).unwrap();
        assert_eq!(result, Commit::Damaged(vec![ClientIndex(1)]));
        assert_eq!(entries(&exchange.state().join(DAMAGED)).unwrap().len(), 2);
    }
    let exchange = Exchange::new();
    drop(with_updates(&exchange));
    make_unreadable(&update_path(&exchange, "anton"), true);
    assert_eq!(exchange.open().0.pending_updates(0, &names()).unwrap().1, 1);
}

/// Errors of the whole system say nothing about an update, which stays: the call is repeated.
#[test]
fn update_stays_when_the_system_lacks_something() {
    // EINTR, EAGAIN, ENOMEM, ENFILE, EMFILE, ENOSPC, ESTALE, EDQUOT.
    for code in [4, 11, 12, 23, 24, 28, 116, 122] {
        let exchange = Exchange::new();
        let (store, round) = with_updates(&exchange);
        *exchange.faults.unreadable.lock().unwrap() = Some((code, "anton"));
        let names = names();
        let settings = AverageOptions { samples_max: 0, ..options(&names) };
        let error = store.commit(&round, settings, &|| true).unwrap_err();
        assert!(error.is_temporary(), "{code}: {error}");
        store.pending_updates(0, &names).unwrap_err();
        *exchange.faults.unreadable.lock().unwrap() = None;
        assert_eq!(store.pending_updates(0, &names).unwrap(), (round.updates.clone(), 0), "{code}");
        assert!(!exchange.state().join(DAMAGED).exists());
    }
}

/// Files of the directory of damaged updates with their bytes; of a directory the bytes of its file `inside`.
fn set_aside_files(exchange: &Exchange) -> BTreeMap<String, Vec<u8>> {
    let directory = exchange.state().join(DAMAGED);
    let paths = if directory.exists() { entries(&directory).unwrap() } else { Vec::new() };
    let read = |path: &Path| std::fs::read(if path.is_dir() { path.join("inside") } else { path.to_owned() });
    paths
        .iter()
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), read(path).unwrap()))
        .collect()
}

/// The updates of a committed round that its record has are removed. Everything else is kept.
#[test]
fn only_counted_updates_of_a_committed_round_are_removed() {
    for while_running in [false, true] {
        let exchange = Exchange::new();
        let (store, round) = with_updates(&exchange);
        let updates = exchange.state().join("updates-0001");
        let counted = update_path(&exchange, "anton");
        let bytes = std::fs::read(&counted).unwrap();
        let name = counted.file_name().unwrap().to_string_lossy().into_owned();
        if !while_running {
            commit(&store, &round).unwrap();
            std::fs::create_dir(&updates).unwrap();
            std::fs::write(&counted, &bytes).unwrap();
        }
        let of_another = name.replace("anton", "carla");
        let with_other_samples = name.replace("anton.2.", "anton.7.");
        let with_other_body = name.replace(".0000", ".1111");
        let mut expected = BTreeMap::new();
        // Before a mean, a name that is not that of an update is set aside with the damaged updates.
        for file in [&of_another, &with_other_samples, &with_other_body, "notes.txt"] {
            std::fs::write(updates.join(file), file).unwrap();
            expected.insert(format!("0001.{file}"), file.as_bytes().to_vec());
        }
        std::fs::create_dir(updates.join("folder")).unwrap();
        std::fs::write(updates.join("folder/inside"), "x").unwrap();
        expected.insert("0001.folder".to_owned(), b"x".to_vec());
        // The record of round 0 has no clients.
        let of_round_0 = exchange.state().join("updates-0000");
        std::fs::create_dir(&of_round_0).unwrap();
        std::fs::write(of_round_0.join(&name), "y").unwrap();
        if while_running {
            commit(&store, &round).unwrap();
            assert_eq!(set_aside_files(&exchange), expected);
        }
        drop(store);
        drop(exchange.open());
        expected.insert(format!("0000.{name}"), b"y".to_vec());
        assert_eq!(set_aside_files(&exchange), expected);
        assert!(!updates.exists() && !of_round_0.exists());
        // Without its record, nothing is known about the updates of a round.
        std::fs::remove_dir_all(exchange.state().join("round-0000")).unwrap();
        for path in [&updates, &of_round_0] {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join(&name), &bytes).unwrap();
        }
        drop(exchange.open());
        expected.insert(format!("0000.{name}.1"), bytes);
        assert_eq!(set_aside_files(&exchange), expected);
    }
}

/// Directories of temporary files are emptied of what the server writes to them, and of nothing else.
#[test]
fn only_temporary_files_are_removed() {
    let exchange = Exchange::new();
    let (store, round) = with_updates(&exchange);
    drop(store);
    let mut expected = BTreeMap::new();
    for (directory, kept, removed) in [
        ("incoming", "notes.txt", ["0.body", "17.whole"]),
        ("round-0001.partial", "notes.txt", ["adapter_model.safetensors.partial", RECORD]),
    ] {
        let path = exchange.state().join(directory);
        std::fs::create_dir_all(&path).unwrap();
        removed.iter().for_each(|file| std::fs::write(path.join(file), "x").unwrap());
        std::fs::write(path.join(kept), directory).unwrap();
        expected.insert(format!("{directory}.{kept}"), directory.as_bytes().to_vec());
    }
    let (store, _) = exchange.open();
    commit(&store, &round).unwrap();
    assert_eq!(set_aside_files(&exchange), expected);
    assert!(!exchange.state().join("round-0001.partial").exists());
}

/// A file of the newest round that is missing or cannot be read ends the server with what to do, at the start and before
/// a mean.
#[test]
fn unreadable_file_of_the_newest_round_is_damage() {
    for name in [MODEL, CONFIG, RECORD] {
        for is_directory in [false, true] {
            let exchange = Exchange::new();
            let (store, round) = with_updates(&exchange);
            let path = exchange.state().join("round-0000").join(name);
            std::fs::remove_file(&path).unwrap();
            if is_directory {
                std::fs::create_dir(&path).unwrap();
            }
            let error = store.commit(&round, options(&names()), &|| true).unwrap_err();
            assert!(matches!(error, ServerError::Damaged { .. }), "{name} {is_directory}: {error:?}");
            drop(store);
            let error = exchange.try_open().unwrap_err();
            assert!(matches!(error, ServerError::Damaged { .. }), "{name} {is_directory}: {error:?}");
        }
    }
}

/// A mean takes no more descriptors than it may, since those of the connections are needed for the next round.
#[test]
fn mean_keeps_as_many_files_open_as_it_may() {
    let (expected, _) = reference();
    for open_files in [0, 1, 2] {
        let exchange = Exchange::new();
        let (store, round) = with_updates(&exchange);
        let updates = exchange.state().canonicalize().unwrap().join("updates-0001");
        let most = AtomicU64::new(0);
        let count_open = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap();
            let open = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
            most.fetch_max(open.filter(|path| path.starts_with(&updates)).count() as u64, Ordering::Relaxed);
            true
        };
        let names = names();
        let settings = AverageOptions { threads: 1, open_files, ..options(&names) };
        store.commit(&round, settings, &count_open).unwrap();
        assert_eq!(most.load(Ordering::Relaxed), open_files as u64);
        assert_eq!(exchange.committed_files(), expected);
    }
}
