//! Tests that the split of the recordings keeps training, validation and test windows apart. Windows are
//! traced back to their raw samples.

use std::collections::BTreeMap;
use std::ops::Range;

use fedspan_client::features::WINDOW;
use fedspan_sim_core::data::watch::{self, HOP, Series, Validation, WatchSettings};
use fedspan_sim_core::data::{Client, Dataset, Labels, Set};
use fedspan_sim_core::scenario::{DataSection, Scenario};

/// Index of all recorded windows: series and raw samples of a window by the bits of its features. All windows
/// are different.
struct Windows {
    series: Vec<Series>,
    places: BTreeMap<Vec<u32>, (usize, Range<usize>)>,
}

fn bits(features: &[f32]) -> Vec<u32> {
    features.iter().map(|v| v.to_bits()).collect()
}

impl Windows {
    /// Computes the windows of all recordings.
    fn read_all() -> Self {
        let series = watch::recordings().unwrap();
        let mut places = BTreeMap::new();
        for (index, recording) in series.iter().enumerate() {
            for (j, features) in watch::windows(recording).iter().enumerate() {
                let samples = (index, j * HOP..j * HOP + WINDOW);
                assert!(places.insert(bits(features), samples).is_none(), "two windows are equal");
            }
        }
        Self { series, places }
    }

    /// Series and raw samples of the windows in a set.
    fn places_of(&self, set: &Set, d: usize) -> Vec<(usize, Range<usize>)> {
        set.x.chunks_exact(d).map(|row| self.places[&bits(row)].clone()).collect()
    }

    /// Smallest number of unused raw samples, over all series, between the end of the training windows and
    /// the start of the scored windows. The number is negative if the windows overlap or are in the wrong
    /// order.
    fn smallest_gap(&self, trained: &[(usize, Range<usize>)], scored: &[(usize, Range<usize>)]) -> i64 {
        let mut last: BTreeMap<usize, usize> = BTreeMap::new();
        for (series, range) in trained {
            let end = last.entry(*series).or_default();
            *end = range.end.max(*end);
        }
        let between = |(series, range): &(usize, Range<usize>)| {
            last.get(series).map(|end| range.start as i64 - *end as i64)
        };
        scored.iter().filter_map(between).min().unwrap()
    }
}

/// Data settings of a built-in scenario.
fn settings(name: &str, changes: &[&str]) -> WatchSettings {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    let scenario = Scenario::parse(name, Scenario::built_in(name).unwrap(), &changes).unwrap();
    match scenario.data {
        DataSection::Watch(settings) => settings,
        other => panic!("{other:?}"),
    }
}

/// Series and raw samples of the windows of several clients.
fn windows_of_clients(
    windows: &Windows,
    dataset: &Dataset,
    clients: &[Client],
    set: fn(&Client) -> &Set,
) -> Vec<(usize, Range<usize>)> {
    clients.iter().flat_map(|client| windows.places_of(set(client), dataset.features)).collect()
}

fn trained(client: &Client) -> &Set {
    &client.train
}

fn scored(client: &Client) -> &Set {
    &client.test
}

/// Number of windows of each class that occurs in a set.
fn per_class(set: &Set) -> BTreeMap<u8, usize> {
    let Labels::Classes(classes) = &set.y else { panic!("regression") };
    let mut counts = BTreeMap::new();
    for class in classes {
        *counts.entry(*class).or_default() += 1;
    }
    counts
}

#[test]
fn training_and_test_windows_are_a_window_apart() {
    let windows = Windows::read_all();
    for name in ["demo", "programmes"] {
        for fold in 0..5 {
            for seed in 1..4 {
                let dataset = watch::dataset(&WatchSettings { fold, ..settings(name, &[]) }, seed).unwrap();
                for client in dataset.clients.iter().chain(&dataset.newcomers) {
                    let (train, test) = (
                        windows.places_of(&client.train, dataset.features),
                        windows.places_of(&client.test, dataset.features),
                    );
                    let unused = windows.smallest_gap(&train, &test);
                    assert!(unused >= WINDOW as i64, "{name}, fold {fold}: {unused} samples unused");
                    let person = |window: &(usize, Range<usize>)| windows.series[window.0].person;
                    let owner = person(&test[0]);
                    assert!(train.iter().chain(&test).all(|window| person(window) == owner));
                }
            }
        }
    }
}

#[test]
fn newcomers_label_windows_of_the_first_half() {
    let windows = Windows::read_all();
    for name in ["demo", "programmes"] {
        for (fold, labels_per_class) in [(0, 1), (1, 1), (2, 2), (3, 1), (4, 5)] {
            let settings = WatchSettings { fold, labels_per_class, ..settings(name, &[]) };
            for seed in 1..4 {
                let dataset = watch::dataset(&settings, seed).unwrap();
                assert_eq!(dataset.newcomers.len(), 2);
                for newcomer in &dataset.newcomers {
                    for (series, range) in windows.places_of(&newcomer.train, dataset.features) {
                        // A window belongs to the half of the series that contains its middle, so the last
                        // training window may extend beyond the middle of the series.
                        let (middle, length) =
                            ((range.start + range.end) / 2, windows.series[series].raw.len());
                        assert!(2 * middle < length, "{name}: sample {middle} of {length}");
                    }
                    let labelled = per_class(&newcomer.train);
                    assert!(labelled.values().all(|count| *count == labels_per_class), "{labelled:?}");
                    let (labelled_classes, tested) = (labelled.keys(), per_class(&newcomer.test));
                    assert!(
                        labelled_classes.eq(tested.keys()),
                        "the labelled classes are not the tested classes"
                    );
                }
            }
        }
    }
}

/// Each fold holds out two people with both wrists and all exercises, and each person is held out in exactly
/// one fold.
#[test]
fn folds_hold_each_person_out_once() {
    let windows = Windows::read_all();
    let mut held_out = Vec::new();
    for fold in 0..5 {
        let dataset = watch::dataset(&WatchSettings { fold, ..settings("demo", &[]) }, 1).unwrap();
        let people = |clients: &[Client]| {
            let places = windows_of_clients(&windows, &dataset, clients, scored);
            let mut people: Vec<usize> = places.iter().map(|place| windows.series[place.0].person).collect();
            people.sort_unstable();
            people.dedup();
            people
        };
        let (training_people, newcomer_people) = (people(&dataset.clients), people(&dataset.newcomers));
        assert_eq!((training_people.len(), newcomer_people.len()), (8, 2));
        assert!(training_people.iter().all(|person| !newcomer_people.contains(person)));
        let tested = windows_of_clients(&windows, &dataset, &dataset.newcomers, scored);
        let mut series: Vec<usize> = tested.iter().map(|place| place.0).collect();
        series.dedup();
        assert_eq!(series.len(), 28, "the series are not those of 2 people x 2 sides x 7 exercises");
        held_out.extend(newcomer_people);
    }
    held_out.sort_unstable();
    assert_eq!(held_out, (0..watch::PEOPLE).collect::<Vec<_>>());
}

/// Training, validation and test windows are separated by at least the length of a window.
#[test]
fn validation_windows_are_apart_from_test_windows() {
    let windows = Windows::read_all();
    for name in ["demo", "programmes"] {
        for fold in 0..5 {
            let full = watch::dataset(&WatchSettings { fold, ..settings(name, &[]) }, 1).unwrap();
            let tests = windows_of_clients(&windows, &full, &full.clients, scored);
            for inner in 0..4 {
                let validation = Some(Validation { fraction: 0.4, fold: inner });
                let settings = WatchSettings { fold, validation, ..settings(name, &[]) };
                let dataset = watch::dataset(&settings, 1).unwrap();
                for client in dataset.clients.iter().chain(&dataset.newcomers) {
                    let train = windows.places_of(&client.train, dataset.features);
                    let validate = windows.places_of(&client.test, dataset.features);
                    assert!(windows.smallest_gap(&train, &validate) >= WINDOW as i64);
                    assert!(windows.smallest_gap(&validate, &tests) >= WINDOW as i64);
                    assert!(windows.smallest_gap(&train, &tests) >= WINDOW as i64);
                }
                for newcomer in &dataset.newcomers {
                    assert!(per_class(&newcomer.train).values().all(|count| *count == 1));
                }
            }
        }
    }
}

#[test]
fn gap_setting_widens_the_gap() {
    let windows = Windows::read_all();
    for gap in 1..6 {
        let dataset = watch::dataset(&WatchSettings { gap, ..settings("demo", &[]) }, 1).unwrap();
        let train = windows_of_clients(&windows, &dataset, &dataset.clients, trained);
        let test = windows_of_clients(&windows, &dataset, &dataset.clients, scored);
        // Windows overlap by half, so the first dropped window leaves no unused samples.
        assert_eq!(windows.smallest_gap(&train, &test), ((gap - 1) * HOP) as i64, "gap {gap}");
    }
}

/// Raw windows have the same split as feature windows, and their scale is computed from training windows
/// only.
#[test]
fn raw_windows_equal_the_windows_of_features() {
    let settings = settings("demo", &[]);
    let (features, raw) =
        (watch::dataset(&settings, 3).unwrap(), watch::raw_dataset(&settings, 2, 3).unwrap());
    assert_eq!((raw.features, raw.outputs), (50 * 6 + 1, features.outputs));
    let counts = |clients: &[Client]| {
        clients.iter().map(|c| (c.train.y.clone(), c.test.y.clone())).collect::<Vec<_>>()
    };
    assert_eq!(counts(&raw.clients), counts(&features.clients));
    assert_eq!(counts(&raw.newcomers), counts(&features.newcomers));
    for channel in 0..6 {
        let values = |sets: &mut dyn Iterator<Item = &Set>| {
            let values_of = |set: &Set| {
                let rows = set.x.chunks_exact(301).flat_map(|row| row[..300].chunks(6));
                rows.map(|step| f64::from(step[channel])).collect::<Vec<_>>()
            };
            let all_values: Vec<f64> = sets.flat_map(values_of).collect();
            let mean = all_values.iter().sum::<f64>() / all_values.len() as f64;
            (
                mean,
                (all_values.iter().map(|value| (value - mean).powi(2)).sum::<f64>()
                    / all_values.len() as f64)
                    .sqrt(),
            )
        };
        let (mean, deviation) = values(&mut raw.clients.iter().map(trained));
        assert!(mean.abs() < 1e-4 && (deviation - 1.0).abs() < 1e-4, "{channel}: {mean}, {deviation}");
        let (mean, deviation) = values(&mut raw.clients.iter().chain(&raw.newcomers).map(scored));
        assert!(
            mean.abs() > 1e-4 || (deviation - 1.0).abs() > 1e-4,
            "{channel}: the scale depends on the test windows"
        );
    }
    // Scaling is affine, so averages over two time steps have the same scale as single time steps.
    let undecimated = watch::raw_dataset(&settings, 1, 3).unwrap();
    let (a, b) = (&undecimated.clients[0].train.x, &raw.clients[0].train.x);
    let slope = |i: usize, j: usize| f64::from((a[i] + a[i + 6]) - (a[j] + a[j + 6])) / 2.0;
    let ratio = slope(0, 240) / f64::from(b[0] - b[120]);
    assert!((slope(120, 480) / f64::from(b[60] - b[240]) / ratio - 1.0).abs() < 1e-3);
}
