//! Tests that counters in flash cannot be forged: no record that a malicious server can choose, together with
//! the bytes that the storage library puts around it, contains a valid copy of a privacy ledger, a handshake
//! counter or an erase intent.
#![cfg(feature = "flash")]

use crate::nor_flash::{Nor, PAGE, WORD};
use fedspan_client::store::{ALL_SPENT, FlashStore, Record, Store, record_len};
use fedspan_protocol::frame::crc32c;
use proptest::prelude::*;

/// Returns the bytes of a ledger in flash.
fn ledger_bytes(spent: u64) -> Vec<u8> {
    let mut bytes = [b"FSPLPAID".as_slice(), &spent.to_le_bytes()].concat();
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes
}

/// Computes the checksum of a length in the library's items (Koopman's CRC-16F/4.2, reflected, inverted).
fn length_checksum(length: u16) -> [u8; 2] {
    let mut crc = 0xFFFFu16;
    for byte in length.to_le_bytes() {
        crc ^= u16::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x1A2E } else { crc >> 1 };
        }
    }
    let crc = crc ^ 0xFFFF;
    if crc == 0xFFFF { 0xFFFE } else { crc }.to_le_bytes()
}

/// Returns the bytes in front of a record in flash with words of `word` bytes: the last seven bytes of the
/// preceding item, the CRC-32 and the header of the record's item, and the key. `None` stands for a byte that
/// a server may be able to choose, which are the first seven bytes and the CRC-32.
fn bytes_before_record(length: u16, word: usize) -> Vec<Option<u8>> {
    let mut bytes = vec![None; 7 + 4];
    bytes.extend(length.to_le_bytes().into_iter().chain(length_checksum(length)).map(Some));
    bytes.resize(7 + 8usize.next_multiple_of(word), Some(0xFF));
    // Key of the item.
    bytes.push(Some(0));
    bytes
}

/// For every possible record length, no copy of a counter can begin in front of a record and continue in the
/// record's bytes, which a server may have chosen.
#[test]
fn no_copy_begins_in_front_of_a_record() {
    let (mut positions, mut matches) = (0u32, 0);
    for word in [1, 2, 4, 8, 16, 32] {
        for length in (record_len(0, 0)..=usize::from(u16::MAX)).step_by(4) {
            let mut bytes = bytes_before_record(length as u16, word);
            let record = bytes.len();
            // A record starts with version 2, and its other bytes are arbitrary.
            bytes.push(Some(2));
            bytes.resize(record + 40, None);
            for (magic, maximum) in
                [(&b"FSPLPAID"[..], None), (b"FSPH", Some(1u64 << 40)), (b"FSPE", Some(1 << 40))]
            {
                // The preceding record contains at most three bytes of a magic.
                for start in 4..record {
                    positions += 1;
                    let fits = |offset: usize, byte: u8| bytes[offset].is_none_or(|known| known == byte);
                    if !magic.iter().enumerate().all(|(offset, byte)| fits(start + offset, *byte)) {
                        continue;
                    }
                    // Smallest value that could be read at this place.
                    let number = start + magic.len()..start + magic.len() + 8;
                    let smallest_value =
                        bytes[number].iter().rev().fold(0, |n, byte| n << 8 | u64::from(byte.unwrap_or(0)));
                    matches += 1;
                    let maximum = maximum.expect("a ledger cannot begin here");
                    assert!(
                        smallest_value >= maximum,
                        "{smallest_value} at {start}, record of {length}, words of {word}"
                    );
                }
            }
        }
    }
    // The checks found cases in which the checksum of the record is the magic of the handshake counter.
    assert!(matches > 0);
    println!("{positions} places; in {matches} of them the value exceeds its maximum");
}

/// The layout that this file assumes is that of the storage library.
#[test]
fn library_layout_is_as_assumed() {
    const BYTES: usize = record_len(2, 1).next_multiple_of(WORD);
    let nor = Nor::new(2);
    let mut store = FlashStore::<_, BYTES>::new(nor.clone(), 0..2 * PAGE as u32).unwrap();
    store.save(&Record { campaign: 1, round: 2, representation: 3, head: &[0.5; 2] }).unwrap();
    let image = nor.image();
    let expected = bytes_before_record(record_len(2, 1) as u16, WORD);
    // The item starts after the mark of the page.
    let header = &image[WORD..WORD + expected.len() - 7 + 1];
    for (index, byte) in expected[7..].iter().chain(&[Some(2)]).enumerate() {
        assert!(byte.is_none_or(|byte| byte == header[index]), "byte {index} of {header:02x?}");
    }
}

#[test]
fn server_cannot_forge_a_ledger() {
    const K: usize = 2;
    const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);
    // The record's campaign, round, representation hash and head are the bytes of a ledger.
    let forged = ledger_bytes(ALL_SPENT);
    let (campaign, remaining) = forged.split_first_chunk().unwrap();
    let (round, remaining) = remaining.split_first_chunk().unwrap();
    let (representation, remaining) = remaining.split_first_chunk().unwrap();
    let head = [f32::from_le_bytes(remaining.try_into().unwrap()), 0.5];
    let record = Record {
        campaign: u64::from_le_bytes(*campaign),
        round: u32::from_le_bytes(*round),
        representation: u32::from_le_bytes(*representation),
        head: &head,
    };
    let nor = Nor::new(2);
    let store = || FlashStore::<_, BYTES>::new(nor.clone(), 0..2 * PAGE as u32).unwrap();
    assert_eq!(store().load_spent(), Ok(0));
    store().save_spent(5).unwrap();
    store().save(&record).unwrap();
    assert_eq!((store().load_spent(), store().load_handshakes()), (Ok(5), Ok(0)));
    let loaded = store().load(&mut [0.0; K]).unwrap().unwrap();
    assert_eq!((loaded.campaign, loaded.round), (record.campaign, record.round));
}

proptest! {
    /// The head is full of copies of a ledger, each XORed with a different mask.
    #[test]
    fn head_cannot_forge_a_ledger(masks in prop::collection::vec(any::<u8>(), 16), shift in 0usize..4) {
        const K: usize = 80;
        const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);
        let hidden = masks.iter().enumerate().flat_map(|(n, mask)| {
            let mask = if n == 0 { 0 } else { mask & 0x3f };
            ledger_bytes(0x3f_3f3f_0000).into_iter().map(move |byte| byte ^ mask)
        });
        let bytes: Vec<u8> = std::iter::repeat_n(0, shift).chain(hidden).collect();
        let words = bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap()));
        let mut head: Vec<f32> = words.map(|value| if value.is_finite() { value } else { 0.0 }).collect();
        head.resize(K, 1.0);
        let nor = Nor::new(4);
        let store = || FlashStore::<_, BYTES>::new(nor.clone(), 0..4 * PAGE as u32).unwrap();
        prop_assert_eq!(store().load_spent(), Ok(0));
        store().save_spent(5).unwrap();
        store().save_handshakes(128).unwrap();
        store().save(&Record { campaign: 1, round: 2, representation: 3, head: &head }).unwrap();
        let mut loaded = [0.0; K];
        prop_assert!(store().load(&mut loaded).unwrap().is_some());
        prop_assert_eq!(loaded.as_slice(), head.as_slice());
        prop_assert_eq!((store().load_spent(), store().load_handshakes()), (Ok(5), Ok(128)));
    }
}
