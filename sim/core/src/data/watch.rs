//! The bundled smartwatch recordings as clients: wearers, their windows as features, their exercises as
//! classes. The same extractor runs on a board.

pub mod windows;

use std::sync::OnceLock;

use fedspan_client::features::{CHANNELS, FEATURES, WINDOW, WindowFeatures};
use fedspan_engine::random::{Purpose, stream};

use super::{Client, DataError, Dataset, Labels, Layout, Set, npz};

const NAME: &str = "bundled watch_imu.npz";

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

/// Which windows of a series are for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Windows before this one train.
    pub trained: usize,
    /// These are scored.
    pub test: std::ops::Range<usize>,
}

/// Who is who.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// People who train, ascending.
    pub clients: Vec<usize>,
    /// People who are held out, ascending.
    pub newcomers: Vec<usize>,
}

impl WatchSettings {
    /// Cuts a series of `n` windows.
    #[must_use]
    pub fn cut(&self, n: usize) -> Cut {
        #[allow(clippy::cast_precision_loss, reason = "a count of windows")]
        let before = |n: usize, fraction: f64| n - whole((n as f64 * fraction).ceil()).min(n);
        let (trained, end) = match self.validation {
            None => (before(n, self.test), n),
            Some(validation) => {
                let whole = before(n, self.test);
                (before(whole, validation.fraction), whole)
            }
        };
        Cut { trained, test: (trained + self.gap).min(end)..end }
    }

    /// Who trains and who is held out.
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

/// One recorded series: one person, one side, one exercise.
#[derive(Clone, Debug)]
pub struct Series {
    /// 0 to 9.
    pub person: usize,
    /// 0 left, 1 right.
    pub side: u8,
    /// 0 to 6.
    pub exercise: u8,
    /// Samples as they were recorded,
    pub raw: Vec<[i16; CHANNELS]>,
    /// and times these in g and rad/s.
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

    /// Windows of it.
    #[must_use]
    pub fn windows(&self) -> usize {
        self.raw.len().checked_sub(WINDOW).map_or(0, |rest| rest / HOP + 1)
    }
}

/// Reads the bundled recordings.
///
/// # Errors
/// [`DataError`]; never, short of a broken build.
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
        let rows = samples.get(whole(start) * CHANNELS..whole(end) * CHANNELS).unwrap_or_default();
        let convert = |row: &[f64]| {
            let mut values = [0; CHANNELS];
            for (value, raw) in values.iter_mut().zip(row) {
                *value = short(*raw);
            }
            values
        };
        let label = |values: &[f64]| values.get(index).copied().unwrap_or(0.0);
        series.push(Series {
            person: whole(label(&people)).saturating_sub(1),
            side: u8::try_from(whole(label(&sides))).unwrap_or(0),
            exercise: u8::try_from(whole(label(&exercises))).unwrap_or(0),
            raw: rows.chunks_exact(CHANNELS).map(convert).collect(),
            scale,
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
    let samples = series.samples();
    let starts = (0..series.windows()).map(|j| j * HOP);
    starts.map(|start| extract(samples.get(start..start + WINDOW).unwrap_or_default())).collect()
}

/// Cuts the recordings into clients.
///
/// # Errors
/// [`DataError`] if there are fewer windows than the settings ask for, or none that could be scored.
pub fn dataset(settings: &WatchSettings, seed: u64) -> Result<Dataset, DataError> {
    static ON_DEVICE: OnceLock<Result<Windows, DataError>> = OnceLock::new();
    match ON_DEVICE.get_or_init(|| Windows::all(on_device)) {
        Ok(windows) => dataset_of(windows, settings, seed),
        Err(error) => Err(error.clone()),
    }
}

/// [`dataset`] with windows as they were measured, brought to a common scale.
///
/// # Errors
/// As [`dataset`].
pub fn series(settings: &WatchSettings, decimation: usize, seed: u64) -> Result<Dataset, DataError> {
    dataset_of(&windows::measured(decimation)?, settings, seed).map(windows::standardised)
}

/// All windows of the recordings, or their features: they serve every cut and every draw.
#[derive(Debug)]
pub struct Windows {
    /// Values of one.
    width: usize,
    /// What they are.
    layout: Layout,
    /// Rows of each series, one after the other.
    of: Vec<(Series, Vec<f32>)>,
}

impl Windows {
    /// Extracts them.
    ///
    /// # Errors
    /// [`DataError`]; never, short of a broken build.
    pub fn all(extract: Extract) -> Result<Self, DataError> {
        let extracted = |series: Series| {
            let windows = windows_with(&series, extract).concat();
            (series, windows)
        };
        let of = recordings()?.into_iter().map(extracted).collect();
        Ok(Self { width: FEATURES, layout: Layout { shape: None, constant: true }, of })
    }
}

/// [`dataset`] with features of one's own: the same clients, labels and draws.
///
/// # Errors
/// As [`dataset`].
pub fn dataset_of(windows: &Windows, settings: &WatchSettings, seed: u64) -> Result<Dataset, DataError> {
    let mut people: Vec<(Set, Set)> = vec![(Set::empty(true), Set::empty(true)); PEOPLE];
    for (one, rows) in &windows.of {
        let Some((train_set, test_set)) = people.get_mut(one.person) else { continue };
        let Some(label) = programme_label(settings.programmes, seed, one.person, one.exercise) else {
            continue;
        };
        let Cut { trained, test } = settings.cut(one.windows());
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

/// Whether a person has the windows that the settings ask for.
fn check(
    settings: &WatchSettings,
    person: usize,
    newcomer: bool,
    train: &Set,
    test: &Set,
) -> Result<(), DataError> {
    // As the recordings number them.
    let person = person + 1;
    let (key, count) = match newcomer {
        true => ("split.labels_per_class", settings.labels_per_class),
        false => ("data.head_samples_per_class", settings.head_samples_per_class),
    };
    if let Some((class, there)) = scarce(train, count) {
        let message =
            format!("person {person} has {there} training windows of class {class}, {key} is {count}");
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

/// The first class that occurs, but fewer than `count` times: its number, and how often.
#[must_use]
pub fn scarce(set: &Set, count: usize) -> Option<(u8, usize)> {
    let Labels::Classes(labels) = &set.y else { return None };
    let mut counts = [0usize; 256];
    for label in labels {
        if let Some(place) = counts.get_mut(usize::from(*label)) {
            *place += 1;
        }
    }
    (0..=u8::MAX).zip(counts).find(|(_, there)| (1..count).contains(there))
}

/// The number under which a person knows an exercise, or `None` if it is not in their programme.
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

#[allow(clippy::cast_possible_truncation, reason = "stored as i16")]
fn short(value: f64) -> i16 {
    value as i16
}

#[allow(clippy::cast_possible_truncation, reason = "f32 on the device")]
fn narrow(value: f64) -> f32 {
    value as f32
}
