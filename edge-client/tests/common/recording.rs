//! Test helpers for recordings: a small recording of synthetic motion.

use fedspan_client::features::{CHANNELS, WINDOW};
use fedspan_client::recording::{Header, Series, write};
use fedspan_protocol::frame::crc32c;

use super::common::Random;

/// Distance between the starts of two windows, in samples.
pub const HOP: usize = 50;

pub const HEADER: Header = Header {
    classes: 3,
    hop: HOP as u16,
    seed: 11,
    wearer: 4,
    head_per_class: 2,
    labelled_per_class: 0,
    scale: [0.001, 0.001, 0.002, 0.01, 0.02, 0.03],
};

/// Class, number of samples and number of training windows of each series. The last series is too short for a
/// window.
pub const SHAPES: [(u8, usize, u16); 6] =
    [(0, 420, 4), (2, 300, 2), (1, 650, 6), (0, 250, 2), (1, 199, 1), (2, 99, 0)];

/// Returns the raw samples of each series.
pub fn raw_samples() -> Vec<Vec<u8>> {
    let mut random = Random(7);
    let mut motion = |samples: usize| {
        let mut value = [0i16; CHANNELS];
        let mut step = || {
            value = value.map(|v| v.wrapping_add((random.next() >> 56) as i16 - 128));
            value.into_iter().flat_map(i16::to_le_bytes).collect::<Vec<u8>>()
        };
        (0..samples).flat_map(|_| step()).collect()
    };
    SHAPES.iter().map(|(_, samples, _)| motion(*samples)).collect()
}

/// Returns the description of each series for the writer of recordings.
pub fn series_descriptions(raw: &[Vec<u8>]) -> Vec<Series<'_>> {
    let describe = |(&(class, samples, train), bytes): (&(u8, usize, u16), _)| {
        let windows =
            u16::try_from(samples.checked_sub(WINDOW).map_or(0, |hop_range| hop_range / HOP + 1)).unwrap();
        Series { class, train, test: (train + 1).min(windows)..windows, samples: bytes }
    };
    SHAPES.iter().zip(raw.iter().map(Vec::as_slice)).map(describe).collect()
}

/// Returns a partition with the whole recording and its checksum, followed by `spare` erased bytes.
pub fn recording_partition(header: &Header, spare: usize) -> Vec<u8> {
    let raw = raw_samples();
    let mut bytes = Vec::new();
    write(header, &series_descriptions(&raw), |part| bytes.extend_from_slice(part));
    append_checksum(&mut bytes);
    bytes.resize(bytes.len() + spare, 0xff);
    bytes
}

/// Appends the CRC-32C of the bytes to them.
pub fn append_checksum(bytes: &mut Vec<u8>) {
    let check = crc32c(bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
}
