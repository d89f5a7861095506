//! Flash images that hold a client's samples for a board: the recordings of a smartwatch wearer, with the
//! same windows, classes and draws as the simulated client, or a table of samples, with a network or without.

use fedspan_client::recording::network::NetworkSettings;
use fedspan_client::recording::{self, table};
use fedspan_client::recording::{DRAW_MAX, Header, Series, write};
use fedspan_protocol::frame::crc32c;

use super::watch::{EXERCISES, HOP, PROGRAMME_MAX, WatchSettings, programme_label, recordings};
use super::{Client, DataError, Labels};

/// Reason why a flash image cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ImageError {
    /// The scenario has no such wearer.
    #[error("found wearer {wearer}, allowed: 1 to {count}")]
    Wearer {
        /// Requested number of the wearer, from 1.
        wearer: usize,
        /// Number of wearers in the scenario.
        count: usize,
    },
    /// The number of windows to draw from a class exceeds the limit of a board.
    #[error("{key} is {found}, allowed: at most {DRAW_MAX}, the windows of a class that a board can draw")]
    Draw {
        /// Key of the setting.
        key: &'static str,
        /// Value of the setting.
        found: usize,
    },
    /// The recordings cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
}

/// Builds the flash image of a wearer. Wearers are numbered from 1: training wearers first, then newcomers.
///
/// # Errors
/// [`ImageError`] if the scenario has no such wearer, a draw is too large, or the recordings cannot be read.
pub fn image(settings: &WatchSettings, seed: u64, wearer: usize) -> Result<Vec<u8>, ImageError> {
    let roles = settings.roles();
    let wearers = || roles.clients.iter().chain(&roles.newcomers).copied();
    let missing = ImageError::Wearer { wearer, count: wearers().count() };
    let person = wearer.checked_sub(1).and_then(|index| wearers().nth(index)).ok_or(missing)?;
    let trains = roles.clients.contains(&person);
    let draw = |key, found: usize| {
        u16::try_from(found).ok().filter(|_| found <= DRAW_MAX).ok_or(ImageError::Draw { key, found })
    };
    let head = draw("data.head_samples_per_class", if trains { settings.head_samples_per_class } else { 0 })?;
    let labelled = draw("split.labels_per_class", if trains { 0 } else { settings.labels_per_class })?;
    let recordings = recordings()?;
    let recorded: Vec<_> = recordings
        .iter()
        .filter(|series| series.person == person)
        .filter_map(|series| {
            let class = programme_label(settings.programmes, seed, person, series.exercise)?;
            let bytes: Vec<u8> = series.raw.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
            Some((class, series, bytes))
        })
        .collect();
    let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let series: Vec<Series<'_>> = recorded
        .iter()
        .map(|(class, series, bytes)| {
            let split = settings.split(series.windows());
            let (train, test) = (to_u16(split.trained), to_u16(split.test.start)..to_u16(split.test.end));
            Series { class: *class, train, test, samples: bytes }
        })
        .collect();
    let header = Header {
        classes: to_u16(if settings.programmes { PROGRAMME_MAX } else { EXERCISES }),
        hop: to_u16(HOP),
        seed,
        wearer: person as u64,
        head_per_class: head,
        labelled_per_class: labelled,
        scale: recorded.first().map(|(_, series, _)| series.scale).unwrap_or_default(),
    };
    let mut image = Vec::new();
    write(&header, &series, |part| image.extend_from_slice(part));
    Ok(with_crc(image))
}

/// Builds the flash image of a client's samples with `d` features, as a regression table. Class numbers are
/// written as values, and missing targets as zeros.
#[must_use]
pub fn table(client: &Client, d: usize) -> Vec<u8> {
    let values = |labels: &Labels| match labels {
        Labels::Values { values, .. } | Labels::Absent(values) => values.clone(),
        Labels::Classes(classes) => classes.iter().map(|&class| f32::from(class)).collect(),
    };
    let (y, y_test) = (values(&client.train.y), values(&client.test.y));
    let mut image = Vec::new();
    let (training, test) = ((client.train.x.as_slice(), &y[..]), (client.test.x.as_slice(), &y_test[..]));
    let features = u16::try_from(d).unwrap_or(u16::MAX);
    table::write(features, training, test, |part| image.extend_from_slice(part));
    with_crc(image)
}

/// Builds the first part of the flash image of a network, which a [`table()`] follows: the settings, the initial
/// parameters of all layers, and the frozen layer, which is empty without one.
#[must_use]
pub fn network(settings: &NetworkSettings, start: &[f32], frozen: &[f32]) -> Vec<u8> {
    let mut image = Vec::new();
    recording::network::write(settings, start, frozen, |part| image.extend_from_slice(part));
    with_crc(image)
}

/// Appends the CRC-32C of an image to the image.
fn with_crc(mut image: Vec<u8>) -> Vec<u8> {
    let check = crc32c(&image);
    image.extend_from_slice(&check.to_le_bytes());
    image
}
