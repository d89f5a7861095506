//! Data set of the bundled smartwatch recordings: each wearer is a client, windows of the recordings are
//! samples, and exercises are classes. Features are computed with the extractor that runs on boards.

pub mod windows;

use std::sync::OnceLock;

use fedspan_client::features::{CHANNELS, FEATURES, WINDOW, WindowFeatures};
use fedspan_engine::random::{Purpose, stream};

use super::set::{draw_per_class, first_scarce_class};
use super::{Client, DataError, Dataset, Episode, Labels, Layout, Set, npz};

const NAME: &str = "bundled watch_imu.npz";

static RECORDINGS: &[u8] = include_bytes!("../../data/watch_imu.npz");

/// Number of samples between the starts of two consecutive windows, which overlap by half.
pub const HOP: usize = 50;
/// Number of people in the recordings.
pub const PEOPLE: usize = 10;
/// Number of exercises.
pub const EXERCISES: usize = 7;
/// Largest number of exercises in the programme of a person.
pub const PROGRAMME_MAX: usize = 5;

/// Assignment of people and windows to the training and test parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WatchSettings {
    /// Fraction of test windows in each series.
    pub test: f64,
    /// Number of windows dropped between the training part and the test part. With a gap of 1, training and
    /// test windows do not overlap; a gap of 3 separates the parts by the length of a window.
    pub gap: usize,
    /// Number of people held out of training, with the recordings of both wrists.
    pub holdout_users: usize,
    /// Index of the held-out group, from 0. There are `10 / holdout_users` groups.
    pub fold: usize,
    /// Number of labelled windows per exercise of a held-out person.
    pub labels_per_class: usize,
    /// True if each person has a programme of 3 to 5 random exercises, whose classes are numbered in an order
    /// that is specific to the person.
    pub programmes: bool,
    /// Number of windows per class that the head is fitted on in a training round; 0 for all.
    pub head_samples_per_class: usize,
    /// Split for choosing settings; `None` to score the test part.
    pub validation: Option<Validation>,
}

/// Split for choosing settings without using the test people and test windows. The people held out by
/// [`WatchSettings::fold`] are removed. The training windows of the remaining people are split again in time,
/// and a group of the remaining people is held out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validation {
    /// Fraction of scored windows in each training part.
    pub fraction: f64,
    /// Index of the held-out group among the remaining people.
    pub fold: usize,
}

/// Split of the windows of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowSplit {
    /// Number of training windows, at the start of the series.
    pub trained: usize,
    /// Indices of the scored windows.
    pub test: std::ops::Range<usize>,
}

/// Roles of the people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Numbers of the people who train, in ascending order.
    pub clients: Vec<usize>,
    /// Numbers of the people who are held out, in ascending order.
    pub newcomers: Vec<usize>,
}

impl WatchSettings {
    /// Splits a series of `n` windows.
    #[must_use]
    pub fn split(&self, n: usize) -> WindowSplit {
        #[allow(clippy::cast_precision_loss, reason = "a count of windows")]
        let count_before = |n: usize, fraction: f64| n - to_index((n as f64 * fraction).ceil()).min(n);
        let (trained, end) = match self.validation {
            None => (count_before(n, self.test), n),
            Some(validation) => {
                let training_end = count_before(n, self.test);
                (count_before(training_end, validation.fraction), training_end)
            }
        };
        WindowSplit { trained, test: (trained + self.gap).min(end)..end }
    }

    /// Assigns a role to each person.
    #[must_use]
    pub fn roles(&self) -> Roles {
        let group = |fold: usize| fold * self.holdout_users..(fold + 1) * self.holdout_users;
        let mut people: Vec<usize> = (0..PEOPLE).collect();
        let mut held_out: Vec<usize> = people.get(group(self.fold)).unwrap_or_default().to_vec();
        if let Some(validation) = self.validation {
            people.retain(|person| !held_out.contains(person));
            held_out = people.get(group(validation.fold)).unwrap_or_default().to_vec();
        }
        people.retain(|person| !held_out.contains(person));
        Roles { clients: people, newcomers: held_out }
    }
}

/// Recording of one exercise by one person with a watch on one wrist.
#[derive(Clone, Debug)]
pub struct Series {
    /// Number of the person, 0 to 9.
    pub person: usize,
    /// Wrist: 0 for left, 1 for right.
    pub side: u8,
    /// Number of the exercise, 0 to 6.
    pub exercise: u8,
    /// Recorded samples.
    pub raw: Vec<[i16; CHANNELS]>,
    /// Factor from each channel's recorded values to g and rad/s.
    pub scale: [f32; CHANNELS],
}

impl Series {
    /// Converts the recorded values to g and rad/s. Each value is multiplied by the scale in f32, as on a
    /// board.
    #[must_use]
    pub fn samples(&self) -> Vec<[f32; CHANNELS]> {
        let scaled = |row: &[i16; CHANNELS]| {
            let mut values = [0.0; CHANNELS];
            for ((value, raw), scale) in values.iter_mut().zip(row).zip(self.scale) {
                *value = f32::from(*raw) * scale;
            }
            values
        };
        self.raw.iter().map(scaled).collect()
    }

    /// Number of windows.
    #[must_use]
    pub fn windows(&self) -> usize {
        self.raw.len().checked_sub(WINDOW).map_or(0, |last_start| last_start / HOP + 1)
    }
}

/// Reads the bundled recordings.
///
/// # Errors
/// [`DataError`] if the recordings in the program are damaged.
pub fn recordings() -> Result<Vec<Series>, DataError> {
    let mut archive = npz::Archive::open(RECORDINGS, NAME)?;
    let mut read = |key: &str| archive.required(key).map(|array| array.values);
    let samples = read("samples")?;
    let mut scale = [0.0; CHANNELS];
    for (entry, value) in scale.iter_mut().zip(read("scale")?) {
        *entry = narrow(value);
    }
    let starts = read("series_start")?;
    let (people, sides, exercises) = (read("subject")?, read("side")?, read("exercise")?);
    let mut series = Vec::new();
    for (index, window) in starts.windows(2).enumerate() {
        let [start, end] = *window else { continue };
        let rows = samples.get(to_index(start) * CHANNELS..to_index(end) * CHANNELS).unwrap_or_default();
        let convert = |row: &[f64]| {
            let mut values = [0; CHANNELS];
            for (value, raw) in values.iter_mut().zip(row) {
                *value = to_i16(*raw);
            }
            values
        };
        let label = |values: &[f64]| values.get(index).copied().unwrap_or(0.0);
        series.push(Series {
            person: to_index(label(&people)).saturating_sub(1),
            side: u8::try_from(to_index(label(&sides))).unwrap_or(0),
            exercise: u8::try_from(to_index(label(&exercises))).unwrap_or(0),
            raw: rows.chunks_exact(CHANNELS).map(convert).collect(),
            scale,
        });
    }
    Ok(series)
}

/// Function that computes the features of one window of [`WINDOW`] samples.
pub type Extract = fn(&[[f32; CHANNELS]]) -> [f32; FEATURES];

/// Computes the features of a window as a device does.
fn device_features(window: &[[f32; CHANNELS]]) -> [f32; FEATURES] {
    let (mut extractor, mut out) = (WindowFeatures::new(), [0.0; FEATURES]);
    for sample in window {
        extractor.push(sample, &mut out);
    }
    out
}

/// Computes the features of every window of a series as a device does.
#[must_use]
pub fn windows(series: &Series) -> Vec<[f32; FEATURES]> {
    windows_with(series, device_features)
}

fn windows_with(series: &Series, extract: Extract) -> Vec<[f32; FEATURES]> {
    let samples = series.samples();
    let starts = (0..series.windows()).map(|j| j * HOP);
    starts.map(|start| extract(samples.get(start..start + WINDOW).unwrap_or_default())).collect()
}

/// Divides the recordings into clients.
///
/// # Errors
/// [`DataError`] if a person has fewer windows than the settings require, or no windows to score.
pub fn dataset(settings: &WatchSettings, seed: u64) -> Result<Dataset, DataError> {
    static DEVICE_FEATURES: OnceLock<Result<Windows, DataError>> = OnceLock::new();
    match DEVICE_FEATURES.get_or_init(|| Windows::all(device_features)) {
        Ok(windows) => dataset_from_windows(windows, settings, seed),
        Err(error) => Err(error.clone()),
    }
}

/// Like [`dataset`], with standardised raw windows in place of features.
///
/// # Errors
/// [`DataError`] if a person has fewer windows than the settings require, or no windows to score.
pub fn raw_dataset(settings: &WatchSettings, decimation: usize, seed: u64) -> Result<Dataset, DataError> {
    dataset_from_windows(&windows::raw_windows(decimation)?, settings, seed).map(windows::standardised)
}

/// All windows of the recordings, as raw values or features. Data sets with different settings can be made
/// from them.
#[derive(Debug)]
pub struct Windows {
    /// Number of values of a window.
    width: usize,
    /// Arrangement of the values of a window.
    layout: Layout,
    /// Each series with the concatenated values of its windows.
    series: Vec<(Series, Vec<f32>)>,
}

impl Windows {
    /// Extracts the features of all windows.
    ///
    /// # Errors
    /// [`DataError`] if the recordings in the program are damaged.
    pub fn all(extract: Extract) -> Result<Self, DataError> {
        let extracted = |series: Series| {
            let windows = windows_with(&series, extract).concat();
            (series, windows)
        };
        let series = recordings()?.into_iter().map(extracted).collect();
        Ok(Self { width: FEATURES, layout: Layout { shape: None, constant: true }, series })
    }
}

/// Divides given windows into clients, with the same clients, labels and draws as [`dataset`].
///
/// # Errors
/// [`DataError`] if a person has fewer windows than the settings require, or no windows to score.
pub fn dataset_from_windows(
    windows: &Windows,
    settings: &WatchSettings,
    seed: u64,
) -> Result<Dataset, DataError> {
    let mut people: Vec<(Set, Set)> = vec![(Set::empty(true), Set::empty(true)); PEOPLE];
    for (series, rows) in &windows.series {
        let Some((train_set, test_set)) = people.get_mut(series.person) else { continue };
        let Some(label) = programme_label(settings.programmes, seed, series.person, series.exercise) else {
            continue;
        };
        let WindowSplit { trained, test } = settings.split(series.windows());
        for (index, features) in rows.chunks_exact(windows.width.max(1)).enumerate() {
            let part = if index < trained {
                &mut *train_set
            } else if test.contains(&index) {
                &mut *test_set
            } else {
                continue;
            };
            part.x.extend_from_slice(features);
            if let Labels::Classes(classes) = &mut part.y {
                classes.push(label);
            }
        }
    }
    let Roles { clients: trained, newcomers: held_out } = settings.roles();
    for (person, (train, test)) in people.iter().enumerate() {
        if held_out.contains(&person) || trained.contains(&person) {
            check_person(settings, person, held_out.contains(&person), train, test)?;
        }
    }
    let nothing = (Set::empty(true), Set::empty(true));
    let take = |person: usize| people.get(person).unwrap_or(&nothing).clone();
    let client = |(train, test): (Set, Set), person: usize| {
        let mut client = Client::new(train, test);
        if settings.head_samples_per_class > 0 {
            client.episode = Some(Box::new(Episode {
                samples_per_class: settings.head_samples_per_class,
                seed,
                client: person as u64,
            }));
        }
        client
    };
    let clients = trained.into_iter().map(|person| client(take(person), person)).collect();
    let newcomer = |(train, test): (Set, Set), person: usize| {
        let labelled = draw_per_class(&train, settings.labels_per_class, seed, person as u64);
        Client::new(train.select(windows.width, &labelled), test)
    };
    let newcomers = held_out.into_iter().map(|person| newcomer(take(person), person)).collect();
    Ok(Dataset {
        features: windows.width,
        outputs: if settings.programmes { PROGRAMME_MAX } else { EXERCISES },
        classification: true,
        clients,
        newcomers,
        truth: None,
        layout: windows.layout,
        ..Dataset::default()
    })
}

/// Checks that a person has as many windows as the settings require, and windows to score.
fn check_person(
    settings: &WatchSettings,
    person: usize,
    newcomer: bool,
    train: &Set,
    test: &Set,
) -> Result<(), DataError> {
    // In the recordings, people are numbered from 1.
    let person = person + 1;
    let (key, count) = match newcomer {
        true => ("split.labels_per_class", settings.labels_per_class),
        false => ("data.head_samples_per_class", settings.head_samples_per_class),
    };
    if let Some((class, available)) = first_scarce_class(train, count) {
        let message = format!(
            "person {person} has {available} training windows of class {class}, but {key} is {count}"
        );
        return Err(DataError::new(NAME, message));
    }
    if test.is_empty() {
        let WatchSettings { test, gap, validation, .. } = settings;
        let fraction = match validation {
            None => format!("split.test = {test}"),
            Some(validation) => format!("split.validation = {} of the training part", validation.fraction),
        };
        let message = format!(
            "person {person}: no window is left to score ({fraction}, less split.gap = {gap} windows)"
        );
        return Err(DataError::new(NAME, message));
    }
    Ok(())
}

/// Class number of an exercise in the programme of a person; `None` if the programme does not include the
/// exercise.
#[must_use]
pub fn programme_label(programmes: bool, seed: u64, person: usize, exercise: u8) -> Option<u8> {
    if !programmes {
        return Some(exercise);
    }
    let mut random = stream(seed, Purpose::Partition, 1000 + person as u64);
    let size = 3 + random.below(3);
    let exercises: Vec<u8> = (0u8..).take(EXERCISES).collect();
    let programme = random.choose(&exercises, size);
    programme.iter().position(|&e| e == exercise).and_then(|index| u8::try_from(index).ok())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "indices stored as numbers")]
fn to_index(value: f64) -> usize {
    value as usize
}

#[allow(clippy::cast_possible_truncation, reason = "stored as i16")]
fn to_i16(value: f64) -> i16 {
    value as i16
}

#[allow(clippy::cast_possible_truncation, reason = "f32 on the device")]
fn narrow(value: f64) -> f32 {
    value as f32
}
