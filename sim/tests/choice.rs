//! The demo's settings are chosen without what tests them, and the recorded choice is what choosing gives.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use fedspan_sim::data::watch::{self, Validation, WatchSettings};
use fedspan_sim::data::{Client, Dataset, Set};
use fedspan_sim::demo::choose::{Choice, choose};
use fedspan_sim::demo::{PARTS, Progress};

const SETTINGS: WatchSettings = WatchSettings {
    test: 0.5,
    gap: 3,
    holdout_users: 2,
    fold: 0,
    labels_per_class: 1,
    programmes: false,
    head_samples_per_class: 0,
    validation: None,
};

/// Windows by their bits. No two windows of the recordings are alike.
type Windows = BTreeSet<Vec<u32>>;

fn windows<'a>(dataset: &Dataset, sets: impl Iterator<Item = &'a Set>) -> Windows {
    let bits = |row: &[f32]| row.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    sets.flat_map(|set| set.x.chunks_exact(dataset.features).map(bits).collect::<Vec<_>>()).collect()
}

fn trained(clients: &[Client]) -> impl Iterator<Item = &Set> {
    clients.iter().map(|client| client.train.as_ref())
}

fn scored(clients: &[Client]) -> impl Iterator<Item = &Set> {
    clients.iter().map(|client| client.test.as_ref())
}

#[test]
fn what_tests_a_fold_has_no_say_in_its_settings() {
    for fold in 0..5 {
        let whole = watch::dataset(&WatchSettings { fold, ..SETTINGS }, 1).unwrap();
        // All windows of those who are held out, and the test halves of the others.
        let all = watch::dataset(&WatchSettings { fold, labels_per_class: 1000, ..SETTINGS }, 1).unwrap();
        let tests = trained(&all.newcomers).chain(scored(&all.newcomers)).chain(scored(&whole.clients));
        let tests = windows(&all, tests);
        let mut seen = Windows::new();
        for inner in 0..4 {
            let validation = Some(Validation { fraction: 0.4, fold: inner });
            let dataset = watch::dataset(&WatchSettings { fold, validation, ..SETTINGS }, 1).unwrap();
            assert_eq!((dataset.clients.len(), dataset.newcomers.len()), (6, 2));
            let (clients, newcomers) = (&dataset.clients, &dataset.newcomers);
            let used =
                trained(clients).chain(trained(newcomers)).chain(scored(clients)).chain(scored(newcomers));
            assert!(windows(&dataset, used).is_disjoint(&tests), "fold {fold}, inner fold {inner}");
            let own = windows(&dataset, scored(newcomers));
            assert!(own.len() >= 28, "{} windows: less than one a series", own.len());
            assert!(own.is_disjoint(&seen), "everyone is held out once");
            assert!(own.is_disjoint(&windows(&dataset, trained(clients))));
            seen.extend(own);
        }
    }
}

struct Silent;

impl Progress for Silent {
    fn advance(&self, _parts: u64, _of: u64, _what: &str) {}
}

/// One fold stands for all: choosing for all takes minutes.
#[test]
fn the_recorded_choice_is_what_choosing_gives() {
    let part = &PARTS[1];
    let chosen = choose(part, 2, 1, &AtomicBool::new(false), &Silent).unwrap().unwrap();
    assert_eq!(chosen, Choice::recorded(part, 2).unwrap());
}
