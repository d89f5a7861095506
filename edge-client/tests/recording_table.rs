//! Tests of the format of tables: a written table is read back, and any other content of the partition is refused.
#![cfg(feature = "recorded")]

use crate::common::Random;
use fedspan_client::recording::FormatError;
use fedspan_client::recording::table::{HEADER, Rows, Split, Table, write};
use fedspan_client::source::{SampleSource, Targets};
use fedspan_protocol::frame::crc32c;
use fedspan_protocol::message::RoundId;

const D: usize = 3;

/// Returns the features and targets of `rows` rows of distinct numbers.
fn distinct_values(rows: usize, first: f32) -> (Vec<f32>, Vec<f32>) {
    let count = |n: usize, first: f32| (0..n).map(|i| first + i as f32).collect();
    (count(rows * D, first), count(rows, -first))
}

fn append_checksum(bytes: &mut Vec<u8>) {
    let check = crc32c(bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
}

/// Returns a table with these numbers of training and test rows.
fn table_bytes(training: usize, test: usize) -> Vec<u8> {
    let (a, b) = (distinct_values(training, 1.0), distinct_values(test, 1000.0));
    let mut bytes = Vec::new();
    write(D as u16, (&a.0, &a.1), (&b.0, &b.1), |part| bytes.extend_from_slice(part));
    append_checksum(&mut bytes);
    bytes
}

/// Reads all rows of a part, and checks that they can be read in any order.
fn read_rows<const N: usize>(table: &Table<'_>, part: Split) -> (Vec<f32>, Vec<f32>) {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    let mut rows = Rows::<N>::new(table, part).unwrap();
    // The rows are read twice, since a table can be replayed.
    for _ in 0..2 {
        (x, y) = (Vec::new(), Vec::new());
        rows.rewind(RoundId::default()).unwrap();
        while let Some(samples) = rows.next() {
            let Targets::Values(value) = samples.targets else { panic!("values") };
            x.extend_from_slice(samples.x);
            y.extend_from_slice(value);
        }
    }
    // The rows are read in another order.
    for row in (0..y.len()).rev() {
        let samples = rows.at(row).unwrap();
        assert_eq!(samples.x, &x[row * N..(row + 1) * N]);
        assert!(matches!(samples.targets, Targets::Values(value) if *value == [y[row]]));
    }
    for out_of_range in [y.len(), usize::MAX / 4, usize::MAX] {
        assert!(rows.at(out_of_range).is_none());
    }
    (x, y)
}

#[test]
fn written_table_is_read_back() {
    for (training, test) in [(5, 4), (1, 0), (0, 2), (0, 0)] {
        let mut bytes = table_bytes(training, test);
        bytes.resize(bytes.len() + 100, 0xff);
        let table = Table::parse(&bytes).unwrap();
        assert_eq!(
            (table.features(), table.rows(Split::Training), table.rows(Split::Test)),
            (D, training, test)
        );
        assert_eq!(read_rows::<D>(&table, Split::Training), distinct_values(training, 1.0));
        assert_eq!(read_rows::<D>(&table, Split::Test), distinct_values(test, 1000.0));
        assert!(
            Rows::<{ D + 1 }>::new(&table, Split::Training).is_none(),
            "a table with another number of features was accepted"
        );
    }
}

#[test]
fn any_damage_is_detected() {
    let table = table_bytes(4, 3);
    for index in 0..table.len() {
        let mut bytes = table.clone();
        bytes[index] ^= 1 << (index % 8);
        assert!(Table::parse(&bytes).is_err(), "byte {index}");
    }
    for length in 0..table.len() {
        assert!(Table::parse(&table[..length]).is_err(), "length {length}");
    }
}

#[test]
fn other_content_is_refused_with_a_reason() {
    let parse_error = |bytes: &[u8]| Table::parse(bytes).unwrap_err();
    assert_eq!(parse_error(&[]), FormatError::Length { needed: HEADER, got: 0 });
    assert_eq!(parse_error(&[0; 64]), FormatError::Blank);
    assert_eq!(parse_error(&[0xff; 64]), FormatError::Blank);
    assert_eq!(parse_error(&[7; 64]), FormatError::Magic);
    // The checksum is valid and a header field is not.
    let error_of_change = |offset: usize, bytes_at_offset: &[u8]| {
        let mut bytes = table_bytes(2, 1);
        bytes.truncate(bytes.len() - 4);
        bytes[offset..offset + bytes_at_offset.len()].copy_from_slice(bytes_at_offset);
        append_checksum(&mut bytes);
        parse_error(&bytes)
    };
    assert_eq!(error_of_change(4, &[2, 0]), FormatError::Version(2));
    assert_eq!(error_of_change(6, &[0, 0]), FormatError::Header("the number of features"));
    assert_eq!(error_of_change(6, &[4, 0]), FormatError::Header("the number of test rows"));
    assert_eq!(error_of_change(12, &[4, 0, 0, 0]), FormatError::Header("the number of training rows"));
    assert_eq!(error_of_change(12, &[0xff; 4]), FormatError::Header("the number of training rows"));
    assert_eq!(error_of_change(16, &[0xff; 4]), FormatError::Header("the number of test rows"));
    assert_eq!(
        error_of_change(8, &[0xff; 4]),
        FormatError::Length { needed: u32::MAX as usize + 4, got: 72 }
    );
    // The header claims a length that is smaller than the header.
    let mut short_length = table_bytes(0, 0);
    short_length[8..12].copy_from_slice(&8u32.to_le_bytes());
    assert_eq!(parse_error(&short_length), FormatError::Check);
}

#[test]
fn noise_is_never_a_table() {
    let mut random = Random(5);
    for length in (0..400).step_by(7) {
        let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        assert!(Table::parse(&bytes).is_err());
        // The magic and the version are valid, the rest is noise.
        if let Some(head) = bytes.get_mut(..6) {
            head.copy_from_slice(b"FSTB\x01\x00");
        }
        assert!(Table::parse(&bytes).is_err());
    }
}
