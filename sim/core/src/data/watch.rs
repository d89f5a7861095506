//! Bundled smartwatch recordings as clients: each wearer is a client, windows are samples, exercises are
//! classes. The feature extractor is the one that runs on a board.

pub mod windows;

use std::sync::OnceLock;

use fedspan_client::features::{CHANNELS, FEATURES, WINDOW, WindowFeatures};
use fedspan_engine::random::{Purpose, stream};

use super::set::{draw_per_class, first_scarce_class};
use super::{Client, DataError, Dataset, Labels, Layout, Set, npz};

const NAME: &str = "bundled watch_imu.npz";

static RECORDINGS: &[u8] = include_bytes!("../../data/watch_imu.npz");

/// Number of samples between the starts of two windows, which overlap by half.
pub const HOP: usize = 50;
/// Number of people in the recordings.
pub const PEOPLE: usize = 10;
/// Number of exercises.
pub const EXERCISES: usize = 7;
/// Largest number of exercises in a programme.
pub const PROGRAMME_MAX: usize = 5;

/// Assignment of people and windows to training and test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WatchSettings {
    /// Fraction of test windows in each series.
    pub test: f64,
    /// Number of windows dropped between training and test part. One is the smallest gap without overlap; 3
    /// leaves a whole window unused.
    pub gap: usize,
    /// Number of people held out of training, with both wrists.
    pub holdout_users: usize,
    /// Index of the held-out group, of `10 / holdout_users` groups.
    pub fold: usize,
    /// Number of windows per exercise that a held-out person labels.
    pub labels_per_class: usize,
    /// Gives each person a programme of 3 to 5 exercises, numbered in an order of the person's own.
    pub programmes: bool,
    /// Number of windows per class that a training round's head is fitted on; 0 for all.
    pub head_samples_per_class: usize,
    /// Split for choosing settings; `None` to score the test part.
    pub validation: Option<Validation>,
}

/// Split for choosing settings without the people and windows that test them. People held out by the fold are
/// removed. The training parts of the others are split again in time, and some of these people are held out
/// in turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validation {
    /// Fraction of each training part that is scored.
    pub fraction: f64,
    /// Index of the held-out group among the remaining people.
    pub fold: usize,
}

/// Split of a series' windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowSplit {
    /// Number of training windows, at the start of the series.
    pub trained: usize,
    /// Scored windows.
    pub test: std::ops::Range<usize>,
}

/// Roles of the people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// People who train, in ascending order.
    pub clients: Vec<usize>,
    /// People who are held out, in ascending order.
    pub newcomers: Vec<usize>,
}

impl WatchSettings {
    /// Splits a series of `n` windows.
    #[must_use]
    pub fn split(&self, n: usize) -> WindowSplit {
        #[allow(clippy::cast_precision_loss, reason = "a count of windows")]
        let before = |n: usize, fraction: f64| n - to_index((n as f64 * fraction).ceil()).min(n);
        let (trained, end) = match self.validation {
            None => (before(n, self.test), n),
            Some(validation) => {
                let whole = before(n, self.test);
                (before(whole, validation.fraction), whole)
            }
        };
        WindowSplit { trained, test: (trained + self.gap).min(end)..end }
    }

    /// Assigns roles to the people.
    #[must_use]
    pub fn roles(&self) -> Roles {
        let group = |fold: usize| fold * self.holdout_users..(fold + 1) * self.holdout_users;
        let mut people: Vec<usize> = (0..PEOPLE).collect();
        let mut held: Vec<usize> = people.get(group(self.fold)).unwrap_or_default().to_vec();
        if let Some(validation) = self.validation {
            people.retain(|person| !held.contains(person));
            held = people.get(group(validation.fold)).unwrap_or_default().to_vec();
        }
        people.retain(|person| !held.contains(person));
        Roles { clients: people, newcomers: held }
    }
}

/// One recorded series: one person, one wrist, one exercise.
#[derive(Clone, Debug)]
pub struct Series {
    /// Number of the person, 0 to 9.
    pub person: usize,
    /// Wrist: 0 left, 1 right.
    pub side: u8,
    /// Number of the exercise, 0 to 6.
    pub exercise: u8,
    /// Recorded samples.
    pub raw: Vec<[i16; CHANNELS]>,
    /// Factor from each channel's recorded values to g and rad/s.
    pub scale: [f32; CHANNELS],
}

impl Series {
    /// Samples in g and rad/s: the product of an i16 and an f32, in f32, as a board computes it.
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
        self.raw.len().checked_sub(WINDOW).map_or(0, |rest| rest / HOP + 1)
    }
}

/// Reads the bundled recordings.
///
/// # Errors
/// [`DataError`] only if the build included a damaged file.
pub fn recordings() -> Result<Vec<Series>, DataError> {
    let mut archive = npz::Archive::open(RECORDINGS, NAME)?;
    let mut read = |key: &str| archive.required(key).map(|array| array.values);
    let samples = read("samples")?;
    let mut scale = [0.0; CHANNELS];
    for (place, value) in scale.iter_mut().zip(read("scale")?) {
        *place = narrow(value);
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
                *value = short(*raw);
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

/// Features as a device computes them.
fn device_features(window: &[[f32; CHANNELS]]) -> [f32; FEATURES] {
    let (mut extractor, mut out) = (WindowFeatures::new(), [0.0; FEATURES]);
    for sample in window {
        extractor.push(sample, &mut out);
    }
    out
}

/// Features of every window of a series, as a device computes them.
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
/// [`DataError`] if there are fewer windows than the settings ask for, or none to score.
pub fn dataset(settings: &WatchSettings, seed: u64) -> Result<Dataset, DataError> {
    static DEVICE_FEATURES: OnceLock<Result<Windows, DataError>> = OnceLock::new();
    match DEVICE_FEATURES.get_or_init(|| Windows::all(device_features)) {
        Ok(windows) => dataset_from_windows(windows, settings, seed),
        Err(error) => Err(error.clone()),
    }
}

/// Like [`dataset`], with raw windows in place of features, standardised.
///
/// # Errors
/// [`DataError`] if there are fewer windows than the settings ask for, or none to score.
pub fn raw_dataset(settings: &WatchSettings, decimation: usize, seed: u64) -> Result<Dataset, DataError> {
    dataset_from_windows(&windows::raw_windows(decimation)?, settings, seed).map(windows::standardised)
}

/// All windows of the recordings, as raw values or features, for any split and draw.
#[derive(Debug)]
pub struct Windows {
    /// Number of values of a window.
    width: usize,
    /// Arrangement of the values.
    layout: Layout,
    /// Series, each with its windows concatenated.
    series: Vec<(Series, Vec<f32>)>,
}

impl Windows {
    /// Extracts the features of all windows.
    ///
    /// # Errors
    /// [`DataError`] only if the build included a damaged file.
    pub fn all(extract: Extract) -> Result<Self, DataError> {
        let extracted = |series: Series| {
            let windows = windows_with(&series, extract).concat();
            (series, windows)
        };
        let series = recordings()?.into_iter().map(extracted).collect();
        Ok(Self { width: FEATURES, layout: Layout { shape: None, constant: true }, series })
    }
}

/// Like [`dataset`], for given windows: the same clients, labels and draws.
///
/// # Errors
/// [`DataError`] if there are fewer windows than the settings ask for, or none to score.
pub fn dataset_from_windows(
    windows: &Windows,
    settings: &WatchSettings,
    seed: u64,
) -> Result<Dataset, DataError> {
    let mut people: Vec<(Set, Set)> = vec![(Set::empty(true), Set::empty(true)); PEOPLE];
    for (one, rows) in &windows.series {
        let Some((train_set, test_set)) = people.get_mut(one.person) else { continue };
        let Some(label) = programme_label(settings.programmes, seed, one.person, one.exercise) else {
            continue;
        };
        let WindowSplit { trained, test } = settings.split(one.windows());
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
    let Roles { clients: trained, newcomers: held } = settings.roles();
    for (person, (train, test)) in people.iter().enumerate() {
        if held.contains(&person) || trained.contains(&person) {
            check(settings, person, held.contains(&person), train, test)?;
        }
    }
    let nothing = (Set::empty(true), Set::empty(true));
    let take = |person: usize| people.get(person).unwrap_or(&nothing).clone();
    let client = |(train, test): (Set, Set), person: usize| {
        let mut client = Client::new(train, test);
        if settings.head_samples_per_class > 0 {
            client.episode = Some((settings.head_samples_per_class, seed, person as u64));
        }
        client
    };
    let clients = trained.into_iter().map(|person| client(take(person), person)).collect();
    let newcomer = |(train, test): (Set, Set), person: usize| {
        let labelled = draw_per_class(&train, settings.labels_per_class, seed, person as u64);
        Client::new(train.select(windows.width, &labelled), test)
    };
    let newcomers = held.into_iter().map(|person| newcomer(take(person), person)).collect();
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

/// Checks that a person has the windows that the settings ask for.
fn check(
    settings: &WatchSettings,
    person: usize,
    newcomer: bool,
    train: &Set,
    test: &Set,
) -> Result<(), DataError> {
    // The recordings number people from 1.
    let person = person + 1;
    let (key, count) = match newcomer {
        true => ("split.labels_per_class", settings.labels_per_class),
        false => ("data.head_samples_per_class", settings.head_samples_per_class),
    };
    if let Some((class, there)) = first_scarce_class(train, count) {
        let message =
            format!("person {person} has {there} training windows of class {class}, but {key} is {count}");
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

/// Number of an exercise in a person's programme; `None` if the programme lacks it.
#[must_use]
pub fn programme_label(programmes: bool, seed: u64, person: usize, exercise: u8) -> Option<u8> {
    if !programmes {
        return Some(exercise);
    }
    let mut random = stream(seed, Purpose::Partition, 1000 + person as u64);
    let size = 3 + random.below(3);
    let exercises: Vec<u8> = (0u8..).take(EXERCISES).collect();
    let programme = random.choose(&exercises, size);
    programme.iter().position(|&e| e == exercise).and_then(|place| u8::try_from(place).ok())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "indices stored as numbers")]
fn to_index(value: f64) -> usize {
    value as usize
}

#[allow(clippy::cast_possible_truncation, reason = "stored as i16")]
fn short(value: f64) -> i16 {
    value as i16
}

#[allow(clippy::cast_possible_truncation, reason = "f32 on the device")]
fn narrow(value: f64) -> f32 {
    value as f32
}
