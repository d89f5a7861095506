//! Tests of the provisioning record: the golden bytes are read, and modified bytes are rejected.

use std::path::Path;

use crate::common::crc32c;
use crate::common::golden::{NOISE, PROVISIONED, provision_record, provision_with_noise};
use fedspan_protocol::secure::{
    Key, PROVISION, PROVISION_MAX, PROVISION_VERSION, PROVISION_WITH_NOISE, Provision, ProvisionError,
    ProvisionedNoise,
};
use proptest::prelude::*;

/// Returns the golden record without noise.
fn golden_record() -> Provision {
    let (device, epoch, key) = PROVISIONED;
    Provision { device, key: Key::new(epoch, key), noise: None }
}

/// Returns the golden record with noise.
fn record_with_noise_entry() -> Provision {
    Provision { noise: Some(NOISE), ..golden_record() }
}

/// Builds a record with entries, and with a correct length and check, from the table in SPEC.md alone.
fn with_entries(entries: &[u8]) -> Vec<u8> {
    let mut record = provision_record();
    record.truncate(PROVISION - 4);
    record.extend_from_slice(entries);
    let length = u16::try_from(record.len() + 4).unwrap();
    record[6..8].copy_from_slice(&length.to_le_bytes());
    record.extend_from_slice(&crc32c(&record).to_le_bytes());
    record
}

#[test]
fn record_is_written_as_golden_and_reads_back() {
    let mut page = [0xff; 4096];
    assert_eq!(golden_record().write(&mut page), Ok(PROVISION));
    assert_eq!(page[..PROVISION], provision_record());
    assert!(page[PROVISION..].iter().all(|byte| *byte == 0xff), "bytes after the record were changed");
    assert_eq!(Provision::read(&page), Ok(golden_record()));
    assert_eq!(Provision::read(&page[..PROVISION]), Ok(golden_record()));
    assert!(format!("{:?}", golden_record()).contains("bytes: secret"), "the key is not printed");
}

#[test]
fn record_with_noise_is_written_as_golden_and_reads_back() {
    let mut page = [0xff; 4096];
    assert_eq!(
        (record_with_noise_entry().write(&mut page), record_with_noise_entry().length()),
        (Ok(PROVISION_WITH_NOISE), PROVISION_WITH_NOISE)
    );
    assert_eq!(page[..PROVISION_WITH_NOISE], provision_with_noise());
    assert!(
        page[PROVISION_WITH_NOISE..].iter().all(|byte| *byte == 0xff),
        "bytes after the record were changed"
    );
    assert_eq!(Provision::read(&page), Ok(record_with_noise_entry()));
}

#[test]
fn short_buffer_is_not_written() {
    for (record, needed) in [(golden_record(), PROVISION), (record_with_noise_entry(), PROVISION_WITH_NOISE)]
    {
        for got in 0..needed {
            let mut out = vec![0xff; got];
            assert_eq!(record.write(&mut out), Err(ProvisionError::Truncated { needed, got }));
            assert!(out.iter().all(|byte| *byte == 0xff));
        }
    }
}

#[test]
fn truncated_record_is_an_error_with_its_lengths() {
    for record in [provision_record(), provision_with_noise(), with_entries(&[0x80, 3, 1, 2, 3, 0xff, 0])] {
        for got in 0..record.len() {
            let error = Provision::read(&record[..got]).unwrap_err();
            let needed = if got < 8 { PROVISION } else { record.len() };
            assert_eq!(error, ProvisionError::Truncated { needed, got });
        }
        // On a flash page, a truncated record is followed by erased flash.
        for end in 0..record.len() {
            let mut page = record[..end].to_vec();
            page.resize(PROVISION_MAX, 0xff);
            if page[..record.len()] != record {
                assert!(Provision::read(&page).is_err(), "cut after {end} bytes");
            }
        }
    }
}

/// Tests every other value of every byte, and every pair of flipped bits within 64 bits.
#[test]
fn flipped_bits_are_an_error() {
    for record in [provision_record(), provision_with_noise(), with_entries(&[0x80, 3, 1, 2, 3])] {
        let read = |flip: &dyn Fn(&mut [u8])| {
            let mut page = record.clone();
            page.resize(PROVISION_MAX, 0xff);
            flip(&mut page);
            Provision::read(&page)
        };
        for index in 0..record.len() {
            for change in 1..=255 {
                assert!(
                    read(&|page| page[index] ^= change).is_err(),
                    "byte {index} changed by {change:#04x}"
                );
            }
        }
        let bits = record.len() * 8;
        for first in 0..bits {
            for second in first + 1..bits.min(first + 65) {
                let flipped = read(&|page| {
                    page[first / 8] ^= 1 << (first % 8);
                    page[second / 8] ^= 1 << (second % 8);
                });
                assert!(flipped.is_err(), "bits {first} and {second}");
            }
        }
    }
}

#[test]
fn each_mistake_has_its_error() {
    let error_with = |offset: usize, bytes: &[u8]| {
        let mut record = provision_record();
        record[offset..offset + bytes.len()].copy_from_slice(bytes);
        Provision::read(&record).unwrap_err()
    };
    assert_eq!(Provision::read(&[0xff; 4096]), Err(ProvisionError::Erased));
    assert_eq!(Provision::read(&[0; 64]), Err(ProvisionError::Magic { found: [0; 4] }));
    assert_eq!(error_with(4, &[2, 0]), ProvisionError::Version { found: PROVISION_VERSION + 1 });
    assert_eq!(error_with(6, &[53, 0]), ProvisionError::Length { found: 53 });
    assert_eq!(error_with(6, &[1, 2]), ProvisionError::Length { found: 513 });
    assert_eq!(error_with(6, &[55, 0]), ProvisionError::Truncated { needed: 55, got: 54 });
    assert!(matches!(error_with(20, &[0]), ProvisionError::Check));
}

#[test]
fn skippable_entries_are_skipped_others_rejected() {
    for skipped in [&[][..], &[0x80, 0], &[0x80, 1, 9, 0x81, 2, 9, 9], &[0xff, 1, 7]] {
        assert_eq!(Provision::read(&with_entries(skipped)), Ok(golden_record()), "{skipped:?}");
    }
    for (entries, error) in [
        (&[0x00, 0][..], ProvisionError::UnknownEntry { tag: 0 }),
        (&[0x7f, 1, 7], ProvisionError::UnknownEntry { tag: 0x7f }),
        (&[0x80, 0, 0x7f, 0], ProvisionError::Entry { offset: 52 }),
        (&[0x80, 0, 0x80, 0], ProvisionError::Entry { offset: 52 }),
        (&[0x80], ProvisionError::Entry { offset: 50 }),
        (&[0x80, 1], ProvisionError::Entry { offset: 50 }),
        (&[0x80, 0, 0x81, 255, 1, 2], ProvisionError::Entry { offset: 52 }),
    ] {
        assert_eq!(Provision::read(&with_entries(entries)), Err(error), "{entries:?}");
    }
    // In this version the noise entry has only one valid length.
    for length in (0..=255).filter(|length| *length != 30) {
        let entry = [&[1, length][..], &vec![0; length.into()]].concat();
        assert_eq!(Provision::read(&with_entries(&entry)), Err(ProvisionError::Entry { offset: 50 }));
    }
    for clip in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, -1.0] {
        let mut entry = provision_with_noise()[50..82].to_vec();
        entry[26..30].copy_from_slice(&clip.to_le_bytes());
        assert_eq!(Provision::read(&with_entries(&entry)), Err(ProvisionError::Entry { offset: 50 }));
    }
    let longest = [&[0x80, 255][..], &[1; 255], &[0x81, 199], &[2; 199]].concat();
    assert_eq!(with_entries(&longest[..457]).len(), 511);
    let fits = [&[0x80, 255][..], &[1; 255], &[0x81, 199], &[2; 199]].concat();
    assert_eq!(with_entries(&fits).len(), PROVISION_MAX);
    assert_eq!(Provision::read(&with_entries(&fits)), Ok(golden_record()));
}

/// Strategy for noise entries with any numbers; the clipping norm is not negative.
fn any_noise() -> impl Strategy<Value = ProvisionedNoise> {
    let clip = any::<f32>().prop_map(f32::abs);
    (any::<(u64, u64, u32, u32, u16)>(), clip).prop_map(|(numbers, clip)| {
        let (multiplier_square, budget, rows_max, slot, iterations_max) = numbers;
        ProvisionedNoise { multiplier_square, budget, rows_max, slot, clip, iterations_max }
    })
}

proptest! {
    #[test]
    fn any_record_round_trips(device: u64, epoch: u16, key: [u8; 32], noise in prop::option::of(any_noise())) {
        let provision = Provision { device, key: Key::new(epoch, key), noise };
        let mut bytes = [0; PROVISION_WITH_NOISE];
        provision.write(&mut bytes).unwrap();
        prop_assert_eq!(Provision::read(&bytes), Ok(provision));
    }

    #[test]
    fn random_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(Provision::read(&bytes).is_err());
    }

    /// Tests that reading terminates for any entries, and that an accepted record has the same fixed fields
    /// as without entries.
    #[test]
    fn random_entries_are_read_or_rejected(entries in prop::collection::vec(any::<u8>(), 0..=458)) {
        if let Ok(read) = Provision::read(&with_entries(&entries)) {
            prop_assert_eq!(Provision { noise: None, ..read }, golden_record());
        }
    }
}

/// Tests that the bytes in SPEC.md are those of the records.
#[test]
fn specification_shows_the_records() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("SPEC.md")).unwrap();
    let shown_bytes = |number: usize| -> Vec<u8> {
        let block = text.split("```provision\n").nth(number).unwrap().split("```").next().unwrap();
        let hex = block.lines().flat_map(|line| line.split(';').next().unwrap().split_whitespace());
        hex.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    };
    assert_eq!(shown_bytes(1), provision_record());
    assert_eq!(shown_bytes(2), provision_with_noise()[50..]);
}
