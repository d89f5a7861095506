//! Tests of the store: written records are read back, and damaged, missing or foreign files cause a typed
//! error. Such files never cause a panic and are never treated as an empty store.

use std::path::Path;

use crate::common::Scratch;
use crate::common::storage::{Disk, Faults};
use fedspan_aggregator::store::{CampaignState, FILE, Row, Store, StoreError, read};
use fedspan_engine::Tensor;
use fedspan_engine::{
    Checkpoint, CountedUpdate, DeadlineState, DeviceId, Millis, OpenRoundCheckpoint, Phase, Record, Update,
};
use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::Role;
use getrandom::SysRng;
use proptest::prelude::*;

/// Returns the checkpoint of an opened round.
fn checkpoint_row(round: u32, state: Vec<f64>) -> Row {
    let open_round = Some(OpenRoundCheckpoint {
        opened_at: Millis::new(17),
        fleet: vec![DeviceId(1), DeviceId(5), DeviceId(9)],
    });
    Row::Engine(Record::Checkpoint(Checkpoint {
        id: RoundId { round, stage: 3 },
        done: Phase::Train(round - 1),
        rounds: 50,
        state,
        open: open_round,
    }))
}

/// Returns the row of a counted update.
fn counted_row(round: u32, order: u32, device: DeviceId) -> Row {
    let values = vec![order as f32, -0.0, f32::MIN_POSITIVE];
    let update = Update {
        id: RoundId { round, stage: 3 },
        samples: order + 1,
        skipped: 0,
        descriptors: Vec::new(),
        tensors: vec![Tensor { role: Role::Gradient, rows: 3, cols: 1, values }],
    };
    let counted = CountedUpdate { order, at: Millis::new(u64::from(order) + 20), update };
    Row::Engine(Record::Counted(RoundId { round, stage: 3 }, device, counted))
}

/// Writes a campaign with a row in almost every table, and returns its state.
fn write_campaign(directory: &Path) -> CampaignState {
    let mut store = Store::open(directory, SysRng).unwrap();
    assert_eq!(store.load().unwrap(), None);
    store.begin(0xdead_beef, "seed = 1\nk = 2\n").unwrap();
    store.apply(&[checkpoint_row(7, vec![0.5, -2.0, 1e300]), Row::JournalEntry(0, "{}".to_owned())]).unwrap();
    store.apply(&[counted_row(7, 0, DeviceId(9)), Row::Engine(Record::Excluded(DeviceId(5)))]).unwrap();
    let deadline = DeadlineState { deadline: Some(Millis::new(90)), asking_everyone: true };
    let deadline = Row::Engine(Record::Deadline(deadline));
    store
        .apply(&[
            counted_row(7, 1, DeviceId(1)),
            deadline,
            Row::JournalEntry(1, "[]".to_owned()),
            Row::Clock(Millis::new(33)),
        ])
        .unwrap();
    store.load().unwrap().unwrap()
}

#[test]
fn records_are_read_back() {
    let directory = Scratch::new();
    let stored = write_campaign(directory.path());
    assert_eq!((stored.campaign, stored.configuration.as_str()), (0xdead_beef, "seed = 1\nk = 2\n"));
    let Row::Engine(Record::Checkpoint(expected)) = checkpoint_row(7, vec![0.5, -2.0, 1e300]) else {
        unreachable!()
    };
    assert_eq!(stored.checkpoint.as_ref(), Some(&expected));
    let counted_update = |record| match record {
        Row::Engine(Record::Counted(_, device, counted)) => (device, counted),
        _ => unreachable!(),
    };
    assert_eq!(
        stored.updates,
        [counted_update(counted_row(7, 0, DeviceId(9))), counted_update(counted_row(7, 1, DeviceId(1)))]
    );
    assert_eq!(
        (stored.excluded.as_slice(), stored.next_journal_line, stored.clock),
        (&[DeviceId(5)][..], 2, Millis::new(33))
    );
    assert_eq!(
        stored.deadline,
        Some(DeadlineState { deadline: Some(Millis::new(90)), asking_everyone: true })
    );
    assert_eq!(read(directory.path()).unwrap().as_ref(), Some(&stored));
    // An excluded device whose update counts is not excluded any more. A new checkpoint ends the round.
    let mut store = Store::open(directory.path(), SysRng).unwrap();
    store.apply(&[counted_row(7, 2, DeviceId(5))]).unwrap();
    assert!(store.load().unwrap().unwrap().excluded.is_empty());
    store.apply(&[checkpoint_row(8, vec![1.0])]).unwrap();
    let loaded = store.load().unwrap().unwrap();
    assert_eq!(
        (loaded.updates, loaded.excluded, loaded.deadline, loaded.next_journal_line),
        (Vec::new(), Vec::new(), None, 2)
    );
    assert_eq!(loaded.clock, Millis::new(33), "a new checkpoint reset the clock");
    assert_eq!(store.journal(1).unwrap(), ["[]"]);
    // A new campaign keeps the journal.
    store.begin(1, "seed = 2\n").unwrap();
    let loaded = store.load().unwrap().unwrap();
    assert_eq!((loaded.campaign, loaded.checkpoint, loaded.next_journal_line), (1, None, 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// After truncation or changed bytes, reading returns an error, or the original content if the bytes were
    /// unused.
    #[test]
    fn damage_is_an_error_or_unused_space(
        position in any::<prop::sample::Index>(), bit in 0u8..8, damage_kind in 0..5,
        noise in proptest::collection::vec(any::<u8>(), 0..300)
    ) {
        let directory = Scratch::new();
        let stored = write_campaign(directory.path());
        let path = directory.path().join(FILE);
        let original = std::fs::read(&path).unwrap();
        let mut bytes = original.clone();
        // Most of the file is unused, so the test also damages bytes that are used.
        let used: Vec<usize> = (0..original.len()).filter(|index| original[*index] != 0).collect();
        match damage_kind {
            0 => bytes.truncate(position.index(original.len())),
            1 => bytes[position.index(original.len())] ^= 1 << bit,
            2 | 3 => bytes[used[position.index(used.len())]] ^= 1 << bit,
            _ => bytes = noise,
        }
        prop_assume!(bytes != original);
        std::fs::write(&path, &bytes).unwrap();
        match read(directory.path()) {
            Ok(loaded) => prop_assert_eq!(loaded, Some(stored)),
            Err(StoreError::Damaged { path: reported_path, .. } | StoreError::Io { path: reported_path, .. } | StoreError::Version { path: reported_path, .. }) => {
                prop_assert_eq!(reported_path, path);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    /// After power cuts and faults at any write, the store contains all applied rows, and possibly those of
    /// the interrupted call.
    #[test]
    fn apply_is_atomic(
        seed in any::<u64>(), faults in prop::collection::vec((0u32..60, any::<bool>()), 1..12),
        waits in any::<bool>(),
    ) {
        let disk = Disk::new(seed);
        disk.store().begin(1, "").unwrap();
        let mut confirmed_lines = 0;
        for (writes, syncs) in faults {
            let mut store = disk.store();
            let lines = store.load().unwrap().unwrap().next_journal_line;
            prop_assert!(
                lines == confirmed_lines || lines == confirmed_lines + 2,
                "{} {}",
                lines,
                confirmed_lines
            );
            confirmed_lines = lines;
            // After a failed sync, unlike a failed write, the data are visible but not on disk.
            disk.fail(if syncs { Faults::Sync(writes / 8) } else { Faults::After(writes) });
            for _ in 0..4 {
                let line = |number| Row::JournalEntry(number, "x".repeat(900));
                let two_rows = [line(confirmed_lines), line(confirmed_lines + 1)];
                if store.apply(&two_rows).is_err() {
                    if waits {
                        disk.fail(Faults::None);
                        store.apply(&two_rows).unwrap();
                        confirmed_lines += 2;
                    }
                    break;
                }
                confirmed_lines += 2;
            }
            disk.fail(Faults::None);
            disk.cut();
        }
    }
}

/// Writes fail while the database of an open store is removed or replaced by another file. When the original
/// file is back, writes succeed again.
#[test]
fn removed_database_is_a_transient_error() {
    let (scratch, other_campaign) = (Scratch::new(), Scratch::new());
    drop(write_campaign(scratch.path()));
    drop(write_campaign(other_campaign.path()));
    let (path, aside) = (scratch.path().join(FILE), scratch.path().join("aside"));
    let line = |number| [Row::JournalEntry(number, "{}".to_owned())];
    let mut store = Store::open(scratch.path(), SysRng).unwrap();
    std::fs::copy(&path, scratch.path().join("older")).unwrap();
    store.apply(&line(2)).unwrap();
    std::fs::rename(&path, &aside).unwrap();
    for _ in 0..3 {
        let error = store.apply(&line(3)).unwrap_err();
        assert!(error.may_pass() && error.to_string().contains(FILE), "{error}");
        assert!(!path.exists(), "the database was created again");
    }
    std::fs::rename(&aside, &path).unwrap();
    store.apply(&line(3)).unwrap();
    assert_eq!(store.load().unwrap().unwrap().next_journal_line, 4);
    // The other files are a database of another campaign with the same number of transactions, an older copy
    // of this database, and an empty database.
    let mut empty = redb::Database::create(scratch.path().join("empty")).unwrap();
    assert!(empty.check_integrity().unwrap());
    drop(empty);
    for replacement in
        [other_campaign.path().join(FILE), scratch.path().join("older"), scratch.path().join("empty")]
    {
        std::fs::rename(&path, &aside).unwrap();
        std::fs::rename(&replacement, &path).unwrap();
        let mut error = store.apply(&line(4)).unwrap_err();
        if error.may_pass() {
            error = store.apply(&line(4)).unwrap_err();
        }
        assert!(matches!(error, StoreError::Damaged { .. }), "{}: {error}", replacement.display());
        std::fs::rename(&aside, &path).unwrap();
    }
    store.apply(&line(4)).unwrap();
    drop(store);
    assert_eq!(read(scratch.path()).unwrap().unwrap().next_journal_line, 5);
}

/// A server that finds other files of a campaign does not begin a new one.
#[test]
fn campaign_without_database_is_not_replaced() {
    let scratch = Scratch::new();
    drop(write_campaign(scratch.path()));
    std::fs::remove_file(scratch.path().join(FILE)).unwrap();
    let error = Store::open(scratch.path(), SysRng).unwrap_err();
    assert!(matches!(&error, StoreError::Missing { beside, .. } if beside.ends_with("round.key")), "{error}");
    std::fs::remove_file(scratch.path().join("round.key")).unwrap();
    std::fs::write(scratch.path().join("arrivals.jsonl"), "{}\n").unwrap();
    // A reader reports the missing database too.
    for error in [Store::open(scratch.path(), SysRng).unwrap_err(), read(scratch.path()).unwrap_err()] {
        assert!(
            matches!(&error, StoreError::Missing { beside, .. } if beside.ends_with("arrivals.jsonl")),
            "{error}"
        );
    }
    assert!(!scratch.path().join(FILE).exists());
    std::fs::remove_file(scratch.path().join("arrivals.jsonl")).unwrap();
    Store::open(scratch.path(), SysRng).unwrap();
}

/// A non-empty database without a format is refused.
#[test]
fn tables_without_format_are_damage() {
    let scratch = Scratch::new();
    let database = redb::Database::create(scratch.path().join(FILE)).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(redb::TableDefinition::<u64, &str>::new("journal")).unwrap().insert(0, "{}").unwrap();
    write.commit().unwrap();
    drop(database);
    for error in [Store::open(scratch.path(), SysRng).unwrap_err(), read(scratch.path()).unwrap_err()] {
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
}

/// A database that was not closed is repaired when it is opened: unsynced transactions are rolled back. With
/// the single exception asserted below, a flipped bit rolls back no synced transaction.
#[test]
fn flipped_bit_after_crash_rolls_back_only_as_the_newest_slot() {
    let (running, copy) = (Scratch::new(), Scratch::new());
    drop(write_campaign(running.path()));
    let mut store = Store::open(running.path(), SysRng).unwrap();
    store.apply(&[counted_row(7, 2, DeviceId(12)), Row::JournalEntry(2, "x".repeat(300))]).unwrap();
    store.apply(&[counted_row(7, 3, DeviceId(14)), Row::JournalEntry(3, "y".repeat(300))]).unwrap();
    let expected = store.load().unwrap().unwrap();
    let original = std::fs::read(running.path().join(FILE)).unwrap();
    std::fs::copy(running.path().join("round.key"), copy.path().join("round.key")).unwrap();
    let path = copy.path().join(FILE);
    let read_copy = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        read(copy.path())
    };
    assert_eq!(
        read_copy(&original).unwrap(),
        Some(expected.clone()),
        "synced data are missing after a crash"
    );
    let header = (0..512 * 8).map(|bit| (bit / 8, bit % 8));
    let used = original.iter().enumerate().skip(512).filter(|(_, byte)| **byte != 0).map(|(index, _)| index);
    let pages = used.step_by(37).map(|index| (index, index % 8));
    let mut refused_flips = 0;
    let mut harmless_flips = 0;
    let mut rolled_back = Vec::new();
    for (index, bit) in header.chain(pages) {
        let mut bytes = original.clone();
        bytes[index] ^= 1 << bit;
        match read_copy(&bytes) {
            Ok(stored) if stored.as_ref() == Some(&expected) => harmless_flips += 1,
            Ok(_) => rolled_back.push((index, bit)),
            Err(_) => refused_flips += 1,
        }
    }
    println!("{refused_flips} refused, {harmless_flips} changed nothing");
    // The exception is the bit that selects the newer of the two slots with the last transactions. No
    // checksum covers this bit.
    assert_eq!(rolled_back, [(9, 0)]);
    assert!(refused_flips > 1000, "{refused_flips} refused, {harmless_flips} changed nothing");
}

#[test]
fn store_admits_one_server() {
    let directory = Scratch::new();
    let open_store = Store::open(directory.path(), SysRng).unwrap();
    assert!(matches!(Store::open(directory.path(), SysRng), Err(StoreError::Locked { .. })));
    assert!(matches!(read(directory.path()), Err(StoreError::Locked { .. })));
    drop(open_store);
    Store::open(directory.path(), SysRng).unwrap();
}

#[test]
fn contradictions_are_damage() {
    let cases: [&[Row]; 4] = [
        &[checkpoint_row(7, vec![1.0, f64::NAN])],
        // An update of a round that is not open; updates without the first one; two updates with the same
        // order.
        &[checkpoint_row(7, vec![1.0]), counted_row(6, 0, DeviceId(1))],
        &[checkpoint_row(7, vec![1.0]), counted_row(7, 1, DeviceId(1))],
        &[checkpoint_row(7, vec![1.0]), counted_row(7, 0, DeviceId(1)), counted_row(7, 0, DeviceId(2))],
    ];
    for records in cases {
        let mut store = Disk::new(1).store();
        store.begin(1, "").unwrap();
        store.apply(records).unwrap();
        let error = store.load().unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
}

#[test]
fn open_errors_name_their_path() {
    let directory = Scratch::new();
    let file = directory.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let error = Store::open(&file, SysRng).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }));
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
    std::fs::write(directory.path().join("campaign.bin"), b"FEDSPAN1").unwrap();
    for error in [Store::open(directory.path(), SysRng).unwrap_err(), read(directory.path()).unwrap_err()] {
        assert!(matches!(error, StoreError::Version { found: 1, .. }), "{error}");
        assert!(error.to_string().contains("campaign.bin: format 1"), "{error}");
    }
}
