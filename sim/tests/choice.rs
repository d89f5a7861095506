//! Tests that the hyperparameter search of the demo does not use the test windows of a fold, and that its
//! recorded result is reproducible.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use fedspan_experiments::demo::PARTS;
use fedspan_experiments::demo::choice::{Choice, Features, FedRepChoice, RidgeChoice};
use fedspan_experiments::demo::choose::{Candidate, SearchSpace, choose};
use fedspan_sim_core::data::watch::{self, Validation, WatchSettings};
use fedspan_sim_core::data::{Client, Dataset, Set};
use fedspan_sim_core::progress::Progress;

/// Settings of the demo's data.
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

/// Windows, identified by the bits of their features. No two windows of the recordings are equal.
type Windows = BTreeSet<Vec<u32>>;

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|v| v.to_bits()).collect()
}

/// Windows of several sets.
fn windows<'a>(dataset: &Dataset, sets: impl Iterator<Item = &'a Set>) -> Windows {
    sets.flat_map(|set| set.x.chunks_exact(dataset.features).map(bits).collect::<Vec<_>>()).collect()
}

/// Training windows of clients.
fn trained(clients: &[Client]) -> impl Iterator<Item = &Set> {
    clients.iter().map(|client| client.train.as_ref())
}

/// Test or validation windows of clients.
fn scored(clients: &[Client]) -> impl Iterator<Item = &Set> {
    clients.iter().map(|client| client.test.as_ref())
}

#[test]
fn test_windows_do_not_influence_the_settings() {
    let recordings = watch::recordings().unwrap();
    for fold in 0..5 {
        let full = watch::dataset(&WatchSettings { fold, ..SETTINGS }, 1).unwrap();
        // Test windows are the test halves of training wearers and all windows of held-out wearers.
        let mut tests = windows(&full, scored(&full.clients));
        for series in recordings.iter().filter(|series| series.person / SETTINGS.holdout_users == fold) {
            tests.extend(watch::windows(series).iter().map(|row| bits(row)));
        }
        let mut seen_windows = Windows::new();
        for inner in 0..4 {
            let validation = Some(Validation { fraction: 0.4, fold: inner });
            let dataset = watch::dataset(&WatchSettings { fold, validation, ..SETTINGS }, 1).unwrap();
            assert_eq!((dataset.clients.len(), dataset.newcomers.len()), (6, 2));
            let (clients, newcomers) = (&dataset.clients, &dataset.newcomers);
            let used_sets =
                trained(clients).chain(trained(newcomers)).chain(scored(clients)).chain(scored(newcomers));
            assert!(windows(&dataset, used_sets).is_disjoint(&tests), "fold {fold}, inner fold {inner}");
            let scored_windows = windows(&dataset, scored(newcomers));
            assert!(scored_windows.len() >= 28, "{} windows: less than one a series", scored_windows.len());
            assert!(scored_windows.is_disjoint(&seen_windows), "a person was held out twice");
            assert!(scored_windows.is_disjoint(&windows(&dataset, trained(clients))));
            seen_windows.extend(scored_windows);
        }
    }
}

/// Progress display without output.
struct Silent;

impl Progress for Silent {
    fn advance(&self, _parts: u64, _of: u64, _what: &str) {}
}

/// Candidate of the search with the recorded hyperparameters of FedRep.
fn candidate(choice: &Choice, features: Features) -> Candidate {
    let FedRepChoice { k, step_size, head_samples_per_class, .. } = choice.fedrep(features);
    Candidate { features, k, step_size, head_samples_per_class }
}

/// The search in one fold has the recorded result with the same score, bit for bit. The search is restricted
/// to the candidates that were chosen in this fold or its neighbours, because a complete search takes minutes
/// (`fedspan-sim choose`).
#[test]
fn recorded_choice_is_reproduced_by_choosing() {
    const FOLD: usize = 2;
    let part = &PARTS[1];
    let recorded: Vec<Choice> = (0..5).map(|fold| Choice::recorded(part, fold).unwrap()).collect();
    let expected = &recorded[FOLD];
    let mut search_space = SearchSpace::all();
    let nearby_choices = recorded.get(FOLD - 1..=FOLD + 1).unwrap();
    search_space.fedrep.retain(|tried_candidate| {
        nearby_choices.iter().any(|choice| candidate(choice, tried_candidate.features) == *tried_candidate)
    });
    let plain = [
        expected.local,
        expected.local_logarithmic,
        expected.local_trained,
        expected.pooled,
        expected.pooled_trained,
    ];
    let weighted: Vec<RidgeChoice> = recorded.iter().map(|choice| choice.pooled_weighted).collect();
    search_space.baselines.retain(|tried_candidate| {
        plain
            .iter()
            .chain(&weighted)
            .any(|choice: &RidgeChoice| (choice.weight, choice.ridge) == *tried_candidate)
    });
    assert!(
        search_space.fedrep.len() >= 6 && search_space.baselines.len() >= 5,
        "too few candidates: {search_space:?}"
    );
    let chosen = choose(&search_space, part, FOLD, 1, &AtomicBool::new(false), &Silent).unwrap().unwrap();
    assert_eq!(chosen, *expected);
}

/// Every recorded choice is in the search space.
#[test]
fn recorded_choices_are_in_the_search_space() {
    let search_space = SearchSpace::all();
    for part in &PARTS {
        for choice in (0..5).map(|fold| Choice::recorded(part, fold).unwrap()) {
            for features in [Features::Device, Features::Logarithmic] {
                assert!(
                    search_space.fedrep.contains(&candidate(&choice, features)),
                    "{}: {choice:?}",
                    part.name
                );
            }
            let plain = [choice.local, choice.local_logarithmic, choice.local_trained];
            let pooled = [choice.pooled, choice.pooled_trained, choice.pooled_weighted];
            for ridge_choice in plain.iter().chain(&pooled) {
                assert!(
                    search_space.baselines.contains(&(ridge_choice.weight, ridge_choice.ridge)),
                    "{}: {ridge_choice:?}",
                    part.name
                );
            }
        }
    }
}
