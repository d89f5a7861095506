//! The bundled smartwatch recordings as clients: wearers, their windows as features, their exercises as
//! classes. The same extractor runs on a board.

use std::io::Cursor;

use fedspan_aggregator::random::{Purpose, stream};
use fedspan_client::features::{CHANNELS, FEATURES, WINDOW, WindowFeatures};

use super::{Client, DataError, Dataset, Labels, Set, npz};

static RECORDINGS: &[u8] = include_bytes!("../../data/watch_imu.npz");

/// Samples between the starts of two windows: they overlap by half.
pub const HOP: usize = 50;
/// People in the recordings.
pub const PEOPLE: usize = 10;
/// Exercises.
pub const EXERCISES: usize = 7;
/// Largest programme.
pub const PROGRAMME_MAX: usize = 5;

/// Who is trained on what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WatchSettings {
    /// Fraction of each series' windows that is tested.
    pub test: f64,
    /// Windows dropped between training and test part. One is the least without overlap; 3 leaves a whole
    /// window unused.
    pub gap: usize,
    /// People held out of training, both sides.
    pub holdout_users: usize,
    /// Which of the `10 / holdout_users` groups is held out.
    pub fold: usize,
    /// Windows per exercise that a held-out person labels.
    pub labels_per_class: usize,
    /// Everyone has a programme of 3 to 5 exercises, numbered in an order of their own.
    pub programmes: bool,
    /// Windows per class that a training round's head is fitted on; 0 for all.
    pub head_samples_per_class: usize,
    /// Where settings are chosen instead of tested.
    pub validation: Option<Validation>,
}

/// Choosing settings without looking at the people or the windows that test them: who is held out of the
/// fold does not exist; the others' training parts are cut once more in time, and some of these people are
/// held out in their turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validation {
    /// Fraction of each training part that is scored.
    pub fraction: f64,
    /// Which group of the people who are left is held out.
    pub fold: usize,
}

/// One recorded series: one person, one side, one exercise.
#[derive(Clone, Debug)]
pub struct Series {
    /// 0 to 9.
    pub person: usize,
    /// 0 left, 1 right.
    pub side: u8,
    /// 0 to 6.
    pub exercise: u8,
    /// Samples in g and rad/s.
    pub samples: Vec<[f32; CHANNELS]>,
}

/// Reads the bundled recordings.
///
/// # Errors
/// [`DataError`]; never, short of a broken build.
pub fn recordings() -> Result<Vec<Series>, DataError> {
    const NAME: &str = "bundled watch_imu.npz";
    let mut archive = npz::open(Cursor::new(RECORDINGS), NAME)?;
    let mut read = |key: &str| npz::required(&mut archive, NAME, key).map(|array| array.values);
    let samples = read("samples")?;
    let scale = read("scale")?;
    let starts = read("series_start")?;
    let (people, sides, exercises) = (read("subject")?, read("side")?, read("exercise")?);
    let mut series = Vec::new();
    for (index, window) in starts.windows(2).enumerate() {
        let [start, end] = *window else { continue };
        let rows = samples.get(whole(start) * CHANNELS..whole(end) * CHANNELS).unwrap_or_default();
        let convert = |row: &[f64]| {
            let mut values = [0.0f32; CHANNELS];
            for ((value, raw), factor) in values.iter_mut().zip(row).zip(&scale) {
                // The product of an i16 and an f32, in f32, as a board computes it.
                *value = narrow(*raw) * narrow(*factor);
            }
            values
        };
        let label = |values: &[f64]| values.get(index).copied().unwrap_or(0.0);
        series.push(Series {
            person: whole(label(&people)).saturating_sub(1),
            side: u8::try_from(whole(label(&sides))).unwrap_or(0),
            exercise: u8::try_from(whole(label(&exercises))).unwrap_or(0),
            samples: rows.chunks_exact(CHANNELS).map(convert).collect(),
        });
    }
    Ok(series)
}

/// The features of one window of [`WINDOW`] samples.
pub type Extract = fn(&[[f32; CHANNELS]]) -> [f32; FEATURES];

/// What a device computes.
fn on_device(window: &[[f32; CHANNELS]]) -> [f32; FEATURES] {
    let (mut extractor, mut out) = (WindowFeatures::new(), [0.0; FEATURES]);
    for sample in window {
        extractor.push(sample, &mut out);
    }
    out
}

/// The features of every window of a series, as a device computes them.
#[must_use]
pub fn windows(series: &Series) -> Vec<[f32; FEATURES]> {
    windows_with(series, on_device)
}

fn windows_with(series: &Series, extract: Extract) -> Vec<[f32; FEATURES]> {
    let starts = (0..).map(|j| j * HOP).take_while(|start| start + WINDOW <= series.samples.len());
    starts.map(|start| extract(series.samples.get(start..start + WINDOW).unwrap_or_default())).collect()
}

/// Cuts the recordings into clients.
///
/// # Errors
/// [`DataError`]; never, short of a broken build.
pub fn dataset(settings: &WatchSettings, seed: u64) -> Result<Dataset, DataError> {
    dataset_with(settings, seed, on_device)
}

/// [`dataset`] with other features of the same windows: the same clients, labels and draws.
///
/// # Errors
/// As [`dataset`].
pub fn dataset_with(settings: &WatchSettings, seed: u64, extract: Extract) -> Result<Dataset, DataError> {
    let series = recordings()?;
    let mut people: Vec<(Set, Set)> = vec![(Set::empty(true), Set::empty(true)); PEOPLE];
    for one in &series {
        let Some((train, test)) = people.get_mut(one.person) else { continue };
        let Some(label) = programme_label(settings.programmes, seed, one.person, one.exercise) else {
            continue;
        };
        let windows = windows_with(one, extract);
        let n = windows.len();
        #[allow(clippy::cast_precision_loss, reason = "a count of windows")]
        let cut = |n: usize, fraction: f64| n - whole((n as f64 * fraction).ceil()).min(n);
        let (trained, end) = match settings.validation {
            None => (cut(n, settings.test), n),
            Some(validation) => {
                let whole = cut(n, settings.test);
                (cut(whole, validation.fraction), whole)
            }
        };
        for (index, features) in windows.iter().enumerate().take(end) {
            let part = if index < trained {
                &mut *train
            } else if index >= trained + settings.gap {
                &mut *test
            } else {
                continue;
            };
            part.x.extend_from_slice(features);
            if let Labels::Classes(classes) = &mut part.y {
                classes.push(label);
            }
        }
    }
    let group = |fold: usize| fold * settings.holdout_users..(fold + 1) * settings.holdout_users;
    let mut people: Vec<(usize, (Set, Set))> = people.into_iter().enumerate().collect();
    let mut out: Vec<usize> = group(settings.fold).collect();
    if let Some(validation) = settings.validation {
        people.retain(|(person, _)| !out.contains(person));
        out = people
            .get(group(validation.fold))
            .unwrap_or_default()
            .iter()
            .map(|(person, _)| *person)
            .collect();
    }
    let (mut clients, mut newcomers) = (Vec::new(), Vec::new());
    for (person, (train, test)) in people {
        if out.contains(&person) {
            let labelled = draw_per_class(&train, settings.labels_per_class, seed, person as u64);
            newcomers.push(Client::new(train.select(FEATURES, &labelled), test));
        } else {
            let mut client = Client::new(train, test);
            if settings.head_samples_per_class > 0 {
                client.episode = Some((settings.head_samples_per_class, seed, person as u64));
            }
            clients.push(client);
        }
    }
    Ok(Dataset {
        features: FEATURES,
        outputs: if settings.programmes { PROGRAMME_MAX } else { EXERCISES },
        classification: true,
        clients,
        newcomers,
        truth: None,
    })
}

/// The number under which a person knows an exercise, or `None` if it is not in their programme.
fn programme_label(programmes: bool, seed: u64, person: usize, exercise: u8) -> Option<u8> {
    if !programmes {
        return Some(exercise);
    }
    let mut random = stream(seed, Purpose::Partition, 1000 + person as u64);
    let size = 3 + random.below(3);
    let exercises: Vec<u8> = (0u8..).take(EXERCISES).collect();
    let programme = random.choose(&exercises, size);
    programme.iter().position(|&e| e == exercise).and_then(|place| u8::try_from(place).ok())
}

/// Indices of `count` random samples of each class that occurs.
#[must_use]
pub fn draw_per_class(set: &Set, count: usize, seed: u64, index: u64) -> Vec<usize> {
    let Labels::Classes(labels) = &set.y else { return (0..set.len()).collect() };
    let mut random = stream(seed, Purpose::Partition, 2000 + index);
    let mut chosen = Vec::new();
    for class in 0..=labels.iter().copied().max().unwrap_or(0) {
        let own: Vec<usize> =
            labels.iter().enumerate().filter(|(_, label)| **label == class).map(|(i, _)| i).collect();
        chosen.extend(random.choose(&own, count));
    }
    chosen
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "indices stored as numbers")]
fn whole(value: f64) -> usize {
    value as usize
}

#[allow(clippy::cast_possible_truncation, reason = "f32 on the device")]
fn narrow(value: f64) -> f32 {
    value as f32
}
