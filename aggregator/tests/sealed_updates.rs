//! Tests that stored updates are unreadable without the key of their round, and that the key is erased when
//! the round ends.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::Scratch;
use crate::common::storage::{Disk, Faults};
use fedspan_aggregator::keys::{Entropy, KeyError};
use fedspan_aggregator::store::{FILE, KEY_FILE, Row, Store, StoreError, read};
use fedspan_engine::Tensor;
use fedspan_engine::{
    Checkpoint, CountedUpdate, DeviceId, Millis, OpenRoundCheckpoint, Phase, Record, Update,
};
use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::Role;
use getrandom::SysRng;
use proptest::prelude::*;

/// Value that every update contains many times.
const MARK: f32 = 1.234_567_9;

/// Returns the checkpoint of an opened round.
fn opened_row(round: u32) -> Row {
    let open = Some(OpenRoundCheckpoint {
        opened_at: Millis::new(17),
        fleet: vec![DeviceId(1), DeviceId(5), DeviceId(9)],
    });
    let id = RoundId { round, stage: 3 };
    let checkpoint = Checkpoint { id, done: Phase::Train(round - 1), rounds: 50, state: vec![1.0], open };
    Row::Engine(Record::Checkpoint(checkpoint))
}

/// Returns the row of a counted update that contains [`MARK`].
fn counted_row(round: u32, order: u32, device: DeviceId) -> Row {
    let values = vec![MARK; 32];
    let update = Update {
        id: RoundId { round, stage: 3 },
        samples: order + 1,
        skipped: 0,
        descriptors: Vec::new(),
        tensors: vec![Tensor { role: Role::Gradient, rows: 32, cols: 1, values }],
    };
    let counted = CountedUpdate { order, at: Millis::new(20), update };
    Row::Engine(Record::Counted(RoundId { round, stage: 3 }, device, counted))
}

/// Returns true if bytes contain the values of an update in plaintext.
fn contains_plaintext(bytes: &[u8]) -> bool {
    let mark = [MARK.to_le_bytes(), MARK.to_le_bytes()].concat();
    bytes.windows(mark.len()).any(|window| window == mark)
}

/// Returns the devices whose updates are stored, in order.
fn stored_devices(store: &Store) -> Result<Vec<DeviceId>, StoreError> {
    Ok(store.load()?.unwrap().updates.iter().map(|(device, _)| *device).collect())
}

/// Reads the key file of the open round.
fn read_key_file(directory: &Path) -> Option<Vec<u8>> {
    std::fs::read(directory.join(KEY_FILE)).ok()
}

#[test]
fn key_lives_as_long_as_its_round() {
    let directory = Scratch::new();
    let path = directory.path();
    let mut store = Store::open(path, SysRng).unwrap();
    store.begin(1, "").unwrap();
    store.apply(&[opened_row(7)]).unwrap();
    assert_eq!(read_key_file(path), None, "a key exists before the first update");
    store.apply(&[counted_row(7, 0, DeviceId(9))]).unwrap();
    let first_key = read_key_file(path).expect("round 7 has no key");
    assert_eq!(std::fs::metadata(path.join(KEY_FILE)).unwrap().permissions().mode() & 0o777, 0o600);
    drop(store);
    // The next server loads the key.
    let mut store = Store::open(path, SysRng).unwrap();
    store.apply(&[counted_row(7, 1, DeviceId(5))]).unwrap();
    assert_eq!(
        (stored_devices(&store).unwrap(), read_key_file(path)),
        ([9, 5].map(DeviceId).to_vec(), Some(first_key.clone()))
    );
    let backup = std::fs::read(path.join(FILE)).unwrap();
    assert!(!contains_plaintext(&backup), "an update is stored in plaintext");
    store.apply(&[opened_row(8)]).unwrap();
    assert_eq!(read_key_file(path), None);
    store.apply(&[counted_row(8, 0, DeviceId(9)), Row::JournalEntry(0, "{}".to_owned())]).unwrap();
    let second_key = read_key_file(path).expect("round 8 has no key");
    assert_ne!(first_key, second_key);
    // One call closes a round, opens the next round and counts updates in both rounds.
    store
        .apply(&[
            counted_row(8, 1, DeviceId(1)),
            opened_row(9),
            counted_row(9, 0, DeviceId(5)),
            counted_row(9, 1, DeviceId(1)),
        ])
        .unwrap();
    assert_eq!(stored_devices(&store).unwrap(), [5, 1].map(DeviceId));
    assert!(read_key_file(path).is_some_and(|third_key| third_key != second_key));
    drop(store);
    assert!(!contains_plaintext(&std::fs::read(path.join(FILE)).unwrap()));

    // The backup of round 7 is read without a key, with another key, and with the key of round 7.
    let backup_directory = Scratch::new();
    std::fs::write(backup_directory.path().join(FILE), &backup).unwrap();
    let error = read(backup_directory.path()).unwrap_err().to_string();
    assert!(error.contains("missing or damaged, although updates of round 7"), "{error}");
    std::fs::write(backup_directory.path().join(KEY_FILE), &second_key).unwrap();
    let error = read(backup_directory.path()).unwrap_err().to_string();
    assert!(error.contains("key of round 8, stage 3, but updates of round 7, stage 3 are stored"), "{error}");
    for index in 0..first_key.len() {
        let mut flipped = first_key.clone();
        flipped[index] ^= 1;
        std::fs::write(backup_directory.path().join(KEY_FILE), &flipped).unwrap();
        assert!(matches!(read(backup_directory.path()), Err(StoreError::Damaged { .. })), "byte {index}");
    }
    for length in [0, 1, first_key.len() - 1, 5000] {
        std::fs::write(backup_directory.path().join(KEY_FILE), vec![7; length]).unwrap();
        assert!(matches!(read(backup_directory.path()), Err(StoreError::Damaged { .. })), "{length} bytes");
    }
    std::fs::write(backup_directory.path().join(KEY_FILE), &first_key).unwrap();
    assert_eq!(read(backup_directory.path()).unwrap().unwrap().updates.len(), 2);
}

/// A key whose write failed may nevertheless exist, and may disappear in a power cut. No update is encrypted
/// with such a key before the key is durable.
#[test]
fn found_key_is_synced_before_use() {
    let mut surviving_keys = 0;
    for seed in 0..300 {
        let disk = Disk::new(seed);
        let mut store = disk.store();
        store.begin(1, "").unwrap();
        store.apply(&[opened_row(7)]).unwrap();
        disk.fail(Faults::After(0));
        store.apply(&[counted_row(7, 0, DeviceId(9))]).unwrap_err();
        surviving_keys += usize::from(disk.keys().0.is_some());
        disk.fail(Faults::None);
        store.apply(&[counted_row(7, 0, DeviceId(9))]).unwrap();
        disk.cut();
        assert_eq!(stored_devices(&disk.store()).unwrap(), [DeviceId(9)], "seed {seed}");
    }
    assert!(surviving_keys > 50, "{surviving_keys}");
}

/// An invalid key file is ignored while no update is counted, and is replaced with the first update.
#[test]
fn leftovers_are_replaced() {
    let directory = Scratch::new();
    let path = directory.path();
    let mut store = Store::open(path, SysRng).unwrap();
    store.begin(1, "").unwrap();
    store.apply(&[opened_row(7)]).unwrap();
    for name in [KEY_FILE, "round.key.partial"] {
        std::fs::write(path.join(name), b"half a key").unwrap();
    }
    assert!(stored_devices(&store).unwrap().is_empty());
    store.apply(&[counted_row(7, 0, DeviceId(9))]).unwrap();
    assert_eq!(stored_devices(&store).unwrap(), [DeviceId(9)]);
    assert!(!path.join("round.key.partial").exists());
    store.begin(2, "").unwrap();
    assert_eq!(read_key_file(path), None, "the key of the former campaign exists");
    // A directory in place of the key file cannot be erased.
    store.apply(&[opened_row(7)]).unwrap();
    std::fs::create_dir(path.join(KEY_FILE)).unwrap();
    let error = store.apply(&[counted_row(7, 0, DeviceId(9))]).unwrap_err();
    assert!(error.may_pass() && error.to_string().contains(KEY_FILE), "{error}");
    std::fs::remove_dir(path.join(KEY_FILE)).unwrap();
    store.apply(&[counted_row(7, 0, DeviceId(9))]).unwrap();
    assert_eq!(stored_devices(&store).unwrap(), [DeviceId(9)]);
}

/// Source of randomness that fails repeatedly.
struct FailingEntropy(u32);

impl Entropy for FailingEntropy {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError> {
        self.0 += 1;
        if self.0.is_multiple_of(3) { SysRng.fill(bytes) } else { Err(KeyError::NoEntropy) }
    }
}

#[test]
fn failing_entropy_writes_nothing() {
    let directory = Scratch::new();
    let mut store = Store::open(directory.path(), FailingEntropy(0)).unwrap();
    store.begin(1, "").unwrap();
    store.apply(&[opened_row(7)]).unwrap();
    let mut failed = 0;
    while let Err(error) = store.apply(&[counted_row(7, 0, DeviceId(9))]) {
        assert!(matches!(error, StoreError::NoEntropy) && error.may_pass(), "{error}");
        failed += 1;
        assert!(failed < 10);
    }
    assert!(failed > 0);
    assert_eq!(stored_devices(&store).unwrap(), [DeviceId(9)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// For random rounds on a disk with faults and power cuts: applied updates can be read, a key exists only
    /// during its round, no key is used for two rounds, and no update is stored in plaintext.
    #[test]
    fn keys_follow_their_rounds(
        seed in any::<u64>(),
        steps in prop::collection::vec((0u8..4, prop::option::weighted(0.3, 0u32..25), any::<bool>()), 1..40),
    ) {
        let disk = Disk::new(seed);
        let mut store = disk.store();
        store.begin(1, "").unwrap();
        store.apply(&[opened_row(1)]).unwrap();
        let mut round = 1;
        let mut count = 0;
        for (updates, fault, waits) in steps {
            let mut records = Vec::new();
            let (round_before, count_before) = (round, count);
            for _ in 0..updates {
                records.push(counted_row(round, count, DeviceId(count.into())));
                count += 1;
            }
            if updates % 2 == 0 {
                round += 1;
                records.push(opened_row(round));
                count = 0;
                if updates == 2 {
                    records.push(counted_row(round, 0, DeviceId(0)));
                    count = 1;
                }
            }
            if let Some(writes) = fault {
                disk.fail(Faults::After(writes));
            }
            let applied = store.apply(&records);
            disk.fail(Faults::None);
            if applied.is_err() && waits {
                store.apply(&records).unwrap();
            } else if applied.is_err() {
                disk.cut();
                store = disk.store();
                let stored = store.load().unwrap().unwrap();
                // Either all records are stored, or none, or only those up to the end of the first round.
                let reached = (stored.open_round().unwrap().round, stored.updates.len() as u32);
                prop_assert!(
                    [(round_before, count_before), (round, count), (round, 0)].contains(&reached),
                    "{reached:?}"
                );
                (round, count) = reached;
            }
            let (key, _) = disk.keys();
            if applied.is_ok() || waits {
                prop_assert_eq!(key.is_some(), count > 0, "round {} with {} updates", round, count);
            }
            let devices: Vec<DeviceId> = (0..count.into()).map(DeviceId).collect();
            prop_assert_eq!(stored_devices(&store).unwrap(), devices);
            prop_assert!(!contains_plaintext(&disk.image()));
        }
        let (_, keys) = disk.keys();
        let distinct: BTreeSet<&Vec<u8>> = keys.iter().collect();
        prop_assert_eq!(distinct.len(), keys.len(), "a key was used for two rounds");
    }
}
