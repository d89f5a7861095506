//! Tests of the format of recordings: a written recording is read back, and any other content of the
//! partition is refused.
#![cfg(feature = "recorded")]

use crate::common::Random;
use crate::recording::{
    HEADER, SHAPES, append_checksum, raw_samples, recording_partition, series_descriptions,
};
use fedspan_client::features::FEATURES;
use fedspan_client::recording::{FormatError, Recording};

/// Reads all windows that a recording contains, and returns their number.
fn read_all(recording: &Recording<'_>) -> usize {
    let mut out = [0.0; FEATURES];
    let mut windows = 0;
    for part in [Recording::training, Recording::test] {
        for number in 0.. {
            let Some(window) = part(recording, number) else { break };
            recording.features(&window, &mut out);
            windows += 1;
        }
    }
    for class in 0..=u8::MAX {
        let _ = recording.number_of(class, recording.windows_of(class));
    }
    windows
}

#[test]
fn written_recording_is_read_back() {
    let bytes = recording_partition(&HEADER, 1000);
    let recording = Recording::parse(&bytes).unwrap();
    let raw = raw_samples();
    assert_eq!(*recording.header(), HEADER);
    assert_eq!(recording.series().collect::<Vec<_>>(), series_descriptions(&raw));
    assert_eq!(recording.training_windows(), 15);
    assert_eq!([0, 1, 2].map(|class| recording.windows_of(class)), [6, 7, 2]);
    // The fifth window of class 0 is the first one of the second series of this class, after 4 + 2 + 6 other
    // windows.
    assert_eq!(recording.number_of(0, 4), Some(12));
    assert_eq!(recording.number_of(0, 6), None);
    let tests: usize = series_descriptions(&raw).iter().map(|s| s.test.len()).sum();
    assert_eq!(read_all(&recording), 15 + tests);
    for number in 0..15 {
        let (mut samples_before, mut class) = (0, 0);
        for (c, _, train) in SHAPES {
            if number >= samples_before && number < samples_before + usize::from(train) {
                class = c;
            }
            samples_before += usize::from(train);
        }
        assert_eq!(recording.training(number).unwrap().class, class);
    }
}

#[test]
fn any_damage_is_detected() {
    let partition = recording_partition(&HEADER, 0);
    for index in 0..partition.len() {
        let mut bytes = partition.clone();
        bytes[index] ^= 1 << (index % 8);
        assert!(Recording::parse(&bytes).is_err(), "byte {index}");
    }
    for length in 0..partition.len() {
        assert!(Recording::parse(&partition[..length]).is_err(), "length {length}");
    }
}

#[test]
fn partition_without_a_recording_is_refused_with_a_reason() {
    assert_eq!(Recording::parse(&[0xff; 4096]).unwrap_err(), FormatError::Blank);
    assert_eq!(Recording::parse(&[0; 4096]).unwrap_err(), FormatError::Blank);
    assert_eq!(Recording::parse(&[]).unwrap_err(), FormatError::Length { needed: 64, got: 0 });
    let mut random = Random(1);
    for _ in 0..2000 {
        let noise: Vec<u8> = (0..512).flat_map(|_| random.next().to_le_bytes()).collect();
        assert_eq!(Recording::parse(&noise).unwrap_err(), FormatError::Magic);
    }
}

/// A header with a valid checksum and arbitrary fields is refused, or all windows that it describes are in
/// bounds.
#[test]
fn invalid_fields_are_refused_or_harmless() {
    let mut partition = recording_partition(&HEADER, 0);
    partition.truncate(partition.len() - 4);
    let header_end = 64 + 16 * SHAPES.len();
    let mut random = Random(2);
    let mut accepted = 0;
    for round in 0..20_000usize {
        let mut bytes = partition.clone();
        for _ in 0..=round % 3 {
            let index = 6 + usize::try_from(random.next() % (header_end as u64 - 6)).unwrap();
            // The length field stays unchanged, because it determines the bytes that the checksum covers.
            if !(8..12).contains(&index) {
                bytes[index] = (random.next() >> 32) as u8;
            }
        }
        append_checksum(&mut bytes);
        if let Ok(recording) = Recording::parse(&bytes) {
            accepted += 1;
            if round % 20 == 0 {
                read_all(&recording);
            }
        }
    }
    assert!(accepted > 100, "too few headers were accepted to test the reader");
}
