//! What is written comes back; anything else in its place is a typed error, never a panic, never "nothing".
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::path::Path;

use common::Scratch;
use common::storage::{Disk, Faults};
use fedspan_aggregator::algorithm::Tensor;
use fedspan_aggregator::engine::{Checkpoint, DeviceId, Phase, Underway, Update, Waits};
use fedspan_aggregator::store::{Counted, FILE, Record, Store, StoreError, Stored, read};
use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::Role;
use getrandom::SysRng;
use proptest::prelude::*;

fn checkpoint(round: u32, state: Vec<f64>) -> Record {
    let open = Some(Underway { at: 17, fleet: vec![1, 5, 9] });
    Record::Checkpoint(Checkpoint {
        id: RoundId { round, stage: 3 },
        done: Phase::Train(round - 1),
        rounds: 50,
        state,
        open,
    })
}

fn counted(round: u32, order: u32, device: DeviceId) -> Record {
    let values = vec![order as f32, -0.0, f32::MIN_POSITIVE];
    let update = Update {
        id: RoundId { round, stage: 3 },
        samples: order + 1,
        skipped: 0,
        descriptors: Vec::new(),
        tensors: vec![Tensor { role: Role::Gradient, rows: 3, cols: 1, values }],
    };
    Record::Counted(RoundId { round, stage: 3 }, device, Counted { order, at: u64::from(order) + 20, update })
}

fn filled(directory: &Path) -> Stored {
    let mut store = Store::open(directory, SysRng).unwrap();
    assert_eq!(store.load().unwrap(), None);
    store.begin(0xdead_beef, "seed = 1\nk = 2\n").unwrap();
    store.apply(&[checkpoint(7, vec![0.5, -2.0, 1e300]), Record::Line(0, "{}".to_owned())]).unwrap();
    store.apply(&[counted(7, 0, 9), Record::Out(5)]).unwrap();
    let waits = Record::Waits(Waits { deadline: Some(90), wanting: true });
    store.apply(&[counted(7, 1, 1), waits, Record::Line(1, "[]".to_owned()), Record::Clock(33)]).unwrap();
    store.load().unwrap().unwrap()
}

#[test]
fn what_is_written_comes_back() {
    let directory = Scratch::new();
    let stored = filled(directory.path());
    assert_eq!((stored.campaign, stored.configuration.as_str()), (0xdead_beef, "seed = 1\nk = 2\n"));
    let Record::Checkpoint(expected) = checkpoint(7, vec![0.5, -2.0, 1e300]) else { unreachable!() };
    assert_eq!(stored.checkpoint.as_ref(), Some(&expected));
    let of = |record| match record {
        Record::Counted(_, device, counted) => (device, counted),
        _ => unreachable!(),
    };
    assert_eq!(stored.updates, [of(counted(7, 0, 9)), of(counted(7, 1, 1))]);
    assert_eq!((stored.out.as_slice(), stored.lines, stored.clock), (&[5][..], 2, 33));
    assert_eq!(stored.waits, Some(Waits { deadline: Some(90), wanting: true }));
    assert_eq!(read(directory.path()).unwrap().as_ref(), Some(&stored));
    // A device that was out and counts after all; a new checkpoint, after which nothing of the round is left.
    let mut store = Store::open(directory.path(), SysRng).unwrap();
    store.apply(&[counted(7, 2, 5)]).unwrap();
    assert!(store.load().unwrap().unwrap().out.is_empty());
    store.apply(&[checkpoint(8, vec![1.0])]).unwrap();
    let now = store.load().unwrap().unwrap();
    assert_eq!((now.updates, now.out, now.waits, now.lines), (Vec::new(), Vec::new(), None, 2));
    assert_eq!(now.clock, 33, "it does not go back with the round");
    assert_eq!(store.journal(1).unwrap(), ["[]"]);
    // Another campaign: what happened has happened.
    store.begin(1, "seed = 2\n").unwrap();
    let now = store.load().unwrap().unwrap();
    assert_eq!((now.campaign, now.checkpoint, now.lines), (1, None, 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Torn, flipped, overwritten: the error says so, or it was a place that nothing was in.
    #[test]
    fn damage_is_an_error_or_nothing(
        at in any::<prop::sample::Index>(), bit in 0u8..8, how in 0..5, noise in proptest::collection::vec(any::<u8>(), 0..300)
    ) {
        let directory = Scratch::new();
        let stored = filled(directory.path());
        let path = directory.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        // Most of the file is empty.
        let used: Vec<usize> = (0..whole.len()).filter(|place| whole[*place] != 0).collect();
        match how {
            0 => bytes.truncate(at.index(whole.len())),
            1 => bytes[at.index(whole.len())] ^= 1 << bit,
            2 | 3 => bytes[used[at.index(used.len())]] ^= 1 << bit,
            _ => bytes = noise,
        }
        prop_assume!(bytes != whole);
        std::fs::write(&path, &bytes).unwrap();
        match read(directory.path()) {
            Ok(found) => prop_assert_eq!(found, Some(stored)),
            Err(StoreError::Damaged { path: named, .. } | StoreError::Io { path: named, .. } | StoreError::Version { path: named, .. }) => {
                prop_assert_eq!(named, path);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    /// Cuts and faults at any write: afterwards it is what was applied, and at most the one that was in the air.
    #[test]
    fn an_application_is_whole_or_not_at_all(seed in any::<u64>(), faults in prop::collection::vec(0u32..60, 1..12), waits in any::<bool>()) {
        let disk = Disk::new(seed);
        disk.store().begin(1, "").unwrap();
        let mut sure = 0;
        for after in faults {
            let mut store = disk.store();
            let lines = store.load().unwrap().unwrap().lines;
            prop_assert!(lines == sure || lines == sure + 2, "{} {}", lines, sure);
            sure = lines;
            disk.fail(Faults::After(after));
            for _ in 0..4 {
                let line = |number| Record::Line(number, "x".repeat(900));
                let two = [line(sure), line(sure + 1)];
                if store.apply(&two).is_err() {
                    if waits {
                        disk.fail(Faults::None);
                        store.apply(&two).unwrap();
                        sure += 2;
                    }
                    break;
                }
                sure += 2;
            }
            disk.fail(Faults::None);
            disk.cut();
        }
    }
}

#[test]
fn one_server_at_a_time() {
    let directory = Scratch::new();
    let first = Store::open(directory.path(), SysRng).unwrap();
    assert!(matches!(Store::open(directory.path(), SysRng), Err(StoreError::Locked { .. })));
    assert!(matches!(read(directory.path()), Err(StoreError::Locked { .. })));
    drop(first);
    Store::open(directory.path(), SysRng).unwrap();
}

#[test]
fn what_contradicts_itself_is_damage() {
    let cases: [&[Record]; 4] = [
        &[checkpoint(7, vec![1.0, f64::NAN])],
        // Of a round that is not open; the first is missing; two are the same.
        &[checkpoint(7, vec![1.0]), counted(6, 0, 1)],
        &[checkpoint(7, vec![1.0]), counted(7, 1, 1)],
        &[checkpoint(7, vec![1.0]), counted(7, 0, 1), counted(7, 0, 2)],
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
fn what_is_no_directory_or_of_another_version_is_said_with_its_path() {
    let directory = Scratch::new();
    let file = directory.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let error = Store::open(&file, SysRng).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }));
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
    std::fs::write(directory.path().join("campaign.bin"), b"FEDSPAN1").unwrap();
    for error in [Store::open(directory.path(), SysRng).unwrap_err(), read(directory.path()).unwrap_err()] {
        assert!(matches!(error, StoreError::Version { found: 1, .. }), "{error}");
        assert!(error.to_string().contains("campaign.bin: it has format 1"), "{error}");
    }
}
