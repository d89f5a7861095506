//! Tests of the format of network images: a written image is read back, and any other content is refused.
#![cfg(all(feature = "network", feature = "recorded"))]

use fedspan_client::memory::{NetworkShape, ShapeError};
use fedspan_client::recording::network::{HEADER, NetworkImage, NetworkSettings, memory_size, write};
use fedspan_client::recording::table::{self, ClassRows, Split};
use fedspan_client::recording::{FormatError, network};
use fedspan_client::source::{SampleSource, Targets};
use fedspan_client::{ShapeMismatch, Task as _};
use fedspan_protocol::frame::{crc32c, crc32c_f32};
use fedspan_protocol::message::{DeclineReason, Model, RoundId};

const D: usize = 3;
/// Number of parameters of the network 3-4-2.
const P: usize = (D + 1) * 4 + 5 * 2;

fn settings() -> NetworkSettings {
    let model = Model::network(D as u16, [4, 0, 0], 2);
    NetworkSettings { model, batch: 5, momentum: true, seed: 0x0123_4567_89ab_cdef, frame_limit: 512 }
}

fn start(count: usize) -> Vec<f32> {
    (0..count).map(|i| i as f32 / 8.0).collect()
}

fn append_checksum(bytes: &mut Vec<u8>) {
    let check = crc32c(bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
}

/// Returns a table with four training and two test rows, and these targets of the training rows.
fn samples(features: usize, targets: [f32; 4]) -> Vec<u8> {
    let x: Vec<f32> = (0..6 * features).map(|i| i as f32).collect();
    let (train, test) = x.split_at(4 * features);
    let mut bytes = Vec::new();
    table::write(features as u16, (train, &targets), (test, &[1.0, 0.0]), |part| {
        bytes.extend_from_slice(part)
    });
    append_checksum(&mut bytes);
    bytes
}

/// Returns the part of an image before its table.
fn network_part(settings: &NetworkSettings, start: &[f32], frozen: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(settings, start, frozen, |part| bytes.extend_from_slice(part));
    append_checksum(&mut bytes);
    bytes
}

fn image() -> Vec<u8> {
    [network_part(&settings(), &start(P), &[]), samples(D, [0.0, 1.0, 1.0, 0.0])].concat()
}

#[test]
fn written_image_is_read_back() {
    let mut bytes = image();
    bytes.resize(bytes.len() + 100, 0xff);
    let image = NetworkImage::parse(&bytes).unwrap();
    assert_eq!((image.settings, image.shape), (settings(), NetworkShape::new(D, &[4], 2, 5)));
    let expected: Vec<u8> = start(P).iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!((image.start, image.frozen), (&expected[..], &[][..]));
    let mut row = [0.0; D];
    let mut rows = ClassRows::new(&image.samples, Split::Training, &mut row).unwrap();
    // The rows are read twice, and then in another order.
    for _ in 0..2 {
        let mut classes = Vec::new();
        rows.rewind(RoundId::default()).unwrap();
        while let Some(sample) = rows.next() {
            let Targets::Classes(class) = sample.targets else { panic!("a class") };
            assert_eq!(sample.x[0], (classes.len() * D) as f32);
            classes.extend_from_slice(class);
        }
        assert_eq!(classes, [0, 1, 1, 0]);
    }
    assert!(matches!(rows.at(2).unwrap().targets, Targets::Classes(&[1])));
    assert_eq!(rows.at(3).unwrap().x, [9.0, 10.0, 11.0]);
    for out_of_range in [4, usize::MAX / 4, usize::MAX] {
        assert!(rows.at(out_of_range).is_none());
    }
    let mismatch = ClassRows::new(&image.samples, Split::Test, &mut [0.0; 2]).map(|_| ());
    assert_eq!(mismatch, Err(ShapeMismatch { expected: D, got: 2 }));
}

/// Tests that a target that is no class number makes its sample unusable, and the others are used.
#[test]
fn targets_that_are_no_classes_are_skipped() {
    use crate::common::network::{NetworkHeap, descent, fit_head_task, network};
    use fedspan_protocol::message::{Descriptors, RoundOpen};

    let usage = |targets| {
        let bytes = [network_part(&settings(), &start(P), &[]), samples(D, targets)].concat();
        let image = NetworkImage::parse(&bytes).unwrap();
        let mut row = [0.0; D];
        let mut rows = ClassRows::new(&image.samples, Split::Training, &mut row).unwrap();
        let mut network = network(NetworkHeap::new(image.shape), &start(P));
        let (id, task) = (RoundId::default(), fit_head_task(descent(0.001, 0.0, 2), 1));
        network.open(&RoundOpen { id, task, tensors: Descriptors::new() }).unwrap();
        network.run(id, &mut rows).map(|usage| (usage.samples, usage.skipped))
    };
    assert_eq!(usage([0.0, 1.0, 1.0, 0.0]), Ok((4, 0)));
    // A class without an output, a fraction, a negative number.
    assert_eq!(usage([0.0, 2.0, 0.5, -1.0]), Ok((1, 3)));
    assert_eq!(usage([f32::NAN, f32::INFINITY, 1e9, 256.0]), Err(DeclineReason::NoSamples));
}

#[test]
fn any_damage_is_detected() {
    let image = image();
    for index in 0..image.len() {
        let mut bytes = image.clone();
        bytes[index] ^= 1 << (index % 8);
        assert!(NetworkImage::parse(&bytes).is_err(), "byte {index}");
    }
    for length in 0..image.len() {
        assert!(NetworkImage::parse(&image[..length]).is_err(), "length {length}");
    }
}

#[test]
fn other_content_is_refused_with_a_reason() {
    let parse_error = |bytes: &[u8]| NetworkImage::parse(bytes).map(|_| ()).unwrap_err();
    assert_eq!(parse_error(&[]), FormatError::Length { needed: HEADER, got: 0 });
    assert_eq!(parse_error(&[0xff; 64]), FormatError::Blank);
    assert_eq!(parse_error(&samples(D, [0.0; 4])), FormatError::Magic);
    // The checksum is valid and a header field is not.
    let error_of_change = |offset: usize, bytes_at_offset: &[u8]| {
        let mut bytes = network_part(&settings(), &start(P), &[]);
        bytes.truncate(bytes.len() - 4);
        bytes[offset..offset + bytes_at_offset.len()].copy_from_slice(bytes_at_offset);
        append_checksum(&mut bytes);
        parse_error(&[bytes, samples(D, [0.0; 4])].concat())
    };
    assert_eq!(error_of_change(4, &[network::VERSION as u8 + 1, 0]), FormatError::Version(2));
    assert_eq!(error_of_change(6, &[0, 0]), FormatError::Shape(ShapeError::Empty));
    assert_eq!(error_of_change(12, &[9, 0]), FormatError::Header("the model"));
    assert_eq!(error_of_change(12, &[0, 0]), FormatError::Header("the model"));
    assert_eq!(error_of_change(32, &[1, 0]), FormatError::Header("the model"));
    assert_eq!(error_of_change(34, &[127, 0]), FormatError::Header("the frame limit"));
    assert_eq!(error_of_change(34, &[1, 0x40]), FormatError::Header("the frame limit"));
    assert_eq!(error_of_change(36, &[2]), FormatError::Header("the momentum"));
    for count in [&[0; 4], &[0xff; 4]] {
        assert_eq!(error_of_change(48, count), FormatError::Header("the number of parameters"));
    }
    assert_eq!(error_of_change(52, &[1]), FormatError::Header("the frozen layer"));
    assert_eq!(error_of_change(52, &[0xff; 4]), FormatError::Header("the frozen layer"));
    // Layers with another number of parameters, or of features.
    assert_eq!(error_of_change(16, &[5, 0]), FormatError::Header("the number of parameters"));
    let other_samples = [network_part(&settings(), &start(P), &[]), samples(D + 1, [0.0; 4])].concat();
    assert_eq!(parse_error(&other_samples), FormatError::Header("the number of features"));
    let without_samples = network_part(&settings(), &start(P), &[]);
    assert!(matches!(parse_error(&without_samples), FormatError::Length { got: 0, .. }));
    // A frozen layer of a network without an adapter.
    let frozen = [network_part(&settings(), &start(P), &[1.0]), samples(D, [0.0; 4])].concat();
    assert_eq!(parse_error(&frozen), FormatError::Header("the frozen layer"));
}

#[cfg(feature = "adapter")]
#[test]
fn frozen_layer_must_be_the_one_that_the_model_names() {
    const WIDTH: usize = 4;
    const RANK: usize = 2;
    let frozen = start((D + 1) * WIDTH);
    let parameters = start(D * RANK + RANK * WIDTH + (WIDTH + 1) * 2);
    let parse = |checksum, frozen: &[f32]| {
        let model = Model::adapted(D as u16, RANK as u16, WIDTH as u16, [0; 3], 2, checksum);
        let settings = NetworkSettings { model, ..settings() };
        let bytes = [network_part(&settings, &parameters, frozen), samples(D, [0.0; 4])].concat();
        NetworkImage::parse(&bytes).map(|image| image.frozen.len())
    };
    assert_eq!(parse(crc32c_f32(&frozen), &frozen), Ok(4 * (D + 1) * WIDTH));
    assert_eq!(parse(0, &[]), Ok(0));
    for (checksum, frozen) in
        [(1, &frozen[..]), (0, &frozen), (crc32c_f32(&frozen[1..]), &frozen[1..]), (1, &[])]
    {
        assert_eq!(parse(checksum, frozen), Err(FormatError::Header("the frozen layer")));
    }
}

#[test]
fn memory_holds_the_network_and_two_rows() {
    let shape = NetworkShape::new(D, &[4], 2, 5);
    let (velocity, bytes) = (4 * P, 5usize.next_multiple_of(4));
    assert_eq!(memory_size(shape, false), 4 * (P + shape.scratch() + 2 * D) + bytes);
    assert_eq!(memory_size(shape, true) - memory_size(shape, false), velocity);
}
