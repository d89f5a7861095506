//! What is committed comes back; anything else in its place is a typed error, never a panic, never "nothing".
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::Scratch;
use fedspan_aggregator::engine::Phase;
use fedspan_aggregator::store::{Committed, Store, StoreError, read};
use fedspan_protocol::message::RoundId;
use proptest::prelude::*;

fn committed(round: u32, state: Vec<f64>) -> Committed {
    let id = RoundId { round, stage: 3 };
    Committed::new("seed = 1\nk = 2\n".to_owned(), 0xdead_beef, id, Phase::Train(round), state)
}

fn any_phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Waiting),
        any::<u32>().prop_map(Phase::Start),
        any::<u32>().prop_map(Phase::Train)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_committed_comes_back(
        configuration in ".{0,80}", campaign in any::<u64>(), round in any::<u32>(), stage in any::<u16>(),
        phase in any_phase(),
        state in proptest::collection::vec(proptest::num::f64::NORMAL | proptest::num::f64::ZERO, 0..200)
    ) {
        let directory = Scratch::new();
        let store = Store::open(directory.path()).unwrap();
        prop_assert_eq!(store.load().unwrap(), None);
        let id = RoundId { round, stage };
        let given = Committed::new(configuration, campaign, id, phase, state);
        store.commit(&committed(1, vec![9.0])).unwrap();
        store.commit(&given).unwrap();
        let found = store.load().unwrap().unwrap();
        prop_assert_eq!((found.round(), found.phase()), (id, phase));
        prop_assert_eq!(&found, &given);
        prop_assert_eq!(read(directory.path()).unwrap().unwrap(), given);
    }

    /// Training may end before its last round, and what was committed says so.
    #[test]
    fn the_end_of_training_comes_back(phase in any_phase(), ends in any::<bool>()) {
        let directory = Scratch::new();
        let store = Store::open(directory.path()).unwrap();
        let plain = Committed::new(String::new(), 1, RoundId::default(), phase, Vec::new());
        store.commit(&plain.ending_training(ends)).unwrap();
        let found = store.load().unwrap().unwrap();
        prop_assert_eq!(found.phase(), phase);
        prop_assert_eq!(found.ends_training(), ends && matches!(phase, Phase::Train(_)));
    }

    /// Torn, flipped, overwritten: any single damage is an error.
    #[test]
    fn damage_is_an_error(
        at in any::<prop::sample::Index>(), bit in 0u8..8, how in 0..4, noise in proptest::collection::vec(any::<u8>(), 0..300)
    ) {
        let directory = Scratch::new();
        let store = Store::open(directory.path()).unwrap();
        store.commit(&committed(7, vec![0.5, -2.0, 1e300])).unwrap();
        let path = directory.path().join("campaign.bin");
        let whole = std::fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        match how {
            0 => bytes.truncate(at.index(whole.len())),
            1 => bytes[at.index(whole.len())] ^= 1 << bit,
            2 => bytes.splice(at.index(whole.len() + 1).., [0xa5, bit]).for_each(drop),
            _ => bytes = noise,
        }
        prop_assume!(bytes != whole);
        std::fs::write(&path, &bytes).unwrap();
        for found in [store.load(), read(directory.path())] {
            prop_assert!(matches!(found, Err(StoreError::Damaged { .. })), "{:?}", found);
        }
        // It can be replaced.
        store.commit(&committed(8, vec![1.0])).unwrap();
        prop_assert_eq!(store.load().unwrap().unwrap().round().round, 8);
    }
}

#[test]
fn a_partial_file_that_a_crash_left_is_ignored() {
    let directory = Scratch::new();
    let store = Store::open(directory.path()).unwrap();
    std::fs::write(directory.path().join("campaign.partial"), b"FEDSPAN1 half").unwrap();
    assert_eq!(store.load().unwrap(), None);
    store.commit(&committed(3, vec![1.0])).unwrap();
    std::fs::write(directory.path().join("campaign.partial"), b"half of round 4").unwrap();
    assert_eq!(store.load().unwrap().unwrap().round().round, 3);
    store.commit(&committed(4, vec![1.0])).unwrap();
    assert_eq!(store.load().unwrap().unwrap().round().round, 4);
}

#[test]
fn one_server_at_a_time() {
    let directory = Scratch::new();
    let first = Store::open(directory.path()).unwrap();
    assert!(matches!(Store::open(directory.path()), Err(StoreError::Locked { .. })));
    // Reading needs no lock.
    assert_eq!(read(directory.path()).unwrap(), None);
    drop(first);
    Store::open(directory.path()).unwrap();
}

#[test]
fn values_that_are_not_finite_are_damage() {
    let directory = Scratch::new();
    let store = Store::open(directory.path()).unwrap();
    store.commit(&committed(1, vec![1.0, f64::NAN])).unwrap();
    assert!(matches!(store.load(), Err(StoreError::Damaged { .. })));
}

#[test]
fn what_is_no_directory_or_no_file_is_said_with_its_path() {
    let directory = Scratch::new();
    let file = directory.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let error = Store::open(&file).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }));
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
    std::fs::create_dir(directory.path().join("campaign.bin")).unwrap();
    assert!(matches!(read(directory.path()), Err(StoreError::Io { .. })));
    // A commit that cannot be made is an error, too.
    let store = Store::open(directory.path()).unwrap();
    assert!(matches!(store.commit(&committed(1, Vec::new())), Err(StoreError::Io { .. })));
}

/// A reader without the lock (`status`) sees the old commit or the new one, never a half.
#[test]
fn a_commit_is_seen_whole_or_not_at_all() {
    let directory = Scratch::new();
    let store = Store::open(directory.path()).unwrap();
    store.commit(&committed(1, vec![0.5; 20_000])).unwrap();
    let (done, path) = (std::sync::atomic::AtomicBool::new(false), directory.path());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 2..100 {
                store.commit(&committed(round, vec![f64::from(round); 20_000])).unwrap();
            }
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        let mut last = 0;
        while !done.load(std::sync::atomic::Ordering::Acquire) {
            let found = read(path).unwrap().unwrap().round().round;
            assert!(found >= last);
            last = found;
        }
    });
}
