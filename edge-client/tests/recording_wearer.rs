//! Tests of the sample source over a recording: it yields the same samples in the same order as a simple
//! implementation with vectors.
#![cfg(feature = "recorded")]

use crate::recording::{HEADER, HOP, SHAPES, raw_samples, recording_partition};
use fedspan_client::features::{CHANNELS, FEATURES, WINDOW, WindowFeatures};
use fedspan_client::recording::draw::{DrawRng, round_index};
use fedspan_client::recording::{DRAW_MAX, Header, Recording, WearerSource};
use fedspan_client::source::{SampleSource, Targets};
use fedspan_protocol::message::RoundId;

type Sample = (u8, [f32; FEATURES]);

/// Returns the training windows of all series in order.
fn training_windows() -> Vec<Sample> {
    let mut windows = Vec::new();
    for ((class, _, train), bytes) in SHAPES.iter().zip(raw_samples()) {
        let rows: Vec<[f32; CHANNELS]> = bytes
            .chunks_exact(12)
            .map(|row| {
                std::array::from_fn(|c| {
                    f32::from(i16::from_le_bytes([row[2 * c], row[2 * c + 1]])) * HEADER.scale[c]
                })
            })
            .collect();
        for window in 0..usize::from(*train) {
            let (mut extractor, mut out) = (WindowFeatures::new(), [0.0; FEATURES]);
            for row in &rows[window * HOP..window * HOP + WINDOW] {
                extractor.push(row, &mut out);
            }
            windows.push((*class, out));
        }
    }
    windows
}

/// Draws `count` samples of each class, as the simulator's `draw_per_class` does.
fn draw_per_class(windows: &[Sample], count: usize, index: u64) -> Vec<Sample> {
    let mut random = DrawRng::new(HEADER.seed, index);
    let mut chosen = Vec::new();
    for class in 0..=windows.iter().map(|(class, _)| *class).max().unwrap() {
        let mut samples_of_class: Vec<&Sample> = windows.iter().filter(|(c, _)| *c == class).collect();
        for i in 0..count.min(samples_of_class.len()) {
            let j = i + random.below(samples_of_class.len() - i);
            samples_of_class.swap(i, j);
            chosen.push(*samples_of_class[i]);
        }
    }
    chosen
}

/// Returns the samples of a pass.
fn read_pass(source: &mut WearerSource<'_>) -> Vec<Sample> {
    let mut pass = Vec::new();
    while let Some(samples) = source.next() {
        let Targets::Classes(&[class]) = samples.targets else { panic!("one class") };
        pass.push((class, samples.x.try_into().unwrap()));
    }
    pass
}

/// Returns the samples by index, from the last to the first. Checks that there are no more than `count`.
fn read_backwards(source: &mut WearerSource<'_>, count: usize) -> Vec<Sample> {
    assert!(source.at(count).is_none() && source.at(usize::MAX).is_none());
    let sample = |number| {
        let samples = source.at(number).unwrap();
        let Targets::Classes(&[class]) = samples.targets else { panic!("one class") };
        (class, samples.x.try_into().unwrap())
    };
    (0..count).rev().map(sample).collect()
}

fn round_id(round: u32) -> RoundId {
    RoundId { round, stage: 0 }
}

#[test]
fn passes_yield_the_simulators_samples() {
    let bytes = recording_partition(&HEADER, 0);
    let recording = Recording::parse(&bytes).unwrap();
    for cache in [0, 15, 100] {
        let mut cache = vec![[0.0; FEATURES]; cache];
        let fits = cache.len() >= 15;
        let mut source = WearerSource::new(recording, &mut cache);
        assert_eq!((source.is_cached(), source.windows()), (fits, 15));
        for number in [1, 2, 1, 700] {
            source.rewind_for_head(round_id(number)).unwrap();
            let index = round_index(HEADER.wearer, number);
            assert_eq!(read_pass(&mut source), draw_per_class(&training_windows(), 2, index));
            source.rewind(round_id(number)).unwrap();
            assert_eq!(read_pass(&mut source), training_windows());
            // A retry of the same round draws the same windows.
            source.rewind_for_head(round_id(number)).unwrap();
            assert_eq!(read_pass(&mut source), draw_per_class(&training_windows(), 2, index));
        }
    }
}

#[test]
fn samples_are_read_in_any_order() {
    for labelled_per_class in [0, 1] {
        let bytes = recording_partition(&Header { labelled_per_class, ..HEADER }, 0);
        let recording = Recording::parse(&bytes).unwrap();
        for cache in [0, 15] {
            let mut cache = vec![[0.0; FEATURES]; cache];
            let mut source = WearerSource::new(recording, &mut cache);
            for head in [false, true] {
                let _ = if head {
                    source.rewind_for_head(round_id(3))
                } else {
                    source.rewind(round_id(3)).map(|()| false)
                };
                let mut samples = read_pass(&mut source);
                samples.reverse();
                assert_eq!(read_backwards(&mut source, samples.len()), samples);
                assert!(source.next().is_none());
            }
        }
    }
}

#[test]
fn newcomer_keeps_its_few_labelled_windows() {
    let header = Header { labelled_per_class: 1, ..HEADER };
    let bytes = recording_partition(&header, 0);
    let recording = Recording::parse(&bytes).unwrap();
    let mut cache = vec![[0.0; FEATURES]; 15];
    let mut source = WearerSource::new(recording, &mut cache);
    let expected = draw_per_class(&training_windows(), 1, HEADER.wearer);
    assert_eq!(source.windows(), 3);
    for number in [1, 2] {
        source.rewind(round_id(number)).unwrap();
        assert_eq!(read_pass(&mut source), expected);
        source.rewind_for_head(round_id(number)).unwrap();
        assert_eq!(read_pass(&mut source), expected);
    }
}

#[test]
fn draw_is_the_start_of_a_permutation() {
    for n in 0..40 {
        for count in 0..=DRAW_MAX {
            let mut permutation: Vec<usize> = (0..n).collect();
            let mut random = DrawRng::new(3, n as u64);
            for i in 0..count.min(n) {
                let j = i + random.below(n - i);
                permutation.swap(i, j);
            }
            let mut drawn = Vec::new();
            DrawRng::new(3, n as u64).sample_without_replacement(n, count, |i| drawn.push(i));
            assert_eq!(drawn, permutation[..count.min(n)]);
        }
    }
}
