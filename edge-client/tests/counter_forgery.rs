//! Tests that counters in flash cannot be forged: no record that a malicious server can choose, together with the bytes around it,
//! contains the start of a copy of a privacy ledger, a handshake counter or a generation.
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

/// Returns the content of flash after a record was saved behind counters, for words of 4 bytes.
fn image_with(record: &Record<'_>, pages: usize) -> Vec<u8> {
    const BYTES: usize = record_len(80, 1).next_multiple_of(WORD);
    let nor = Nor::new(pages);
    let mut store = FlashStore::<_, BYTES>::new(nor.clone(), 0..(pages * PAGE) as u32).unwrap();
    store.load_spent().unwrap();
    store.save_handshakes(128).unwrap();
    // A record for which there is no mask is refused.
    let _ = store.save(record);
    store.save_handshakes(256).unwrap();
    nor.image()
}

/// Returns the positions at which bytes look like the start of a magic of this family of formats.
fn magics(image: &[u8]) -> impl Iterator<Item = usize> {
    let is_magic = |window: &[u8]| window == b"FSP" || window == b"FSG";
    image.windows(3).enumerate().filter(move |(_, window)| is_magic(window)).map(|(position, _)| position)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// For any record that a malicious server chooses, the start of a magic is in the flash only where the device has written one:
    /// at the start of a word, and followed by a letter of this version.
    #[test]
    fn no_record_contains_the_start_of_a_magic(
        seed in any::<u64>(),
        k in 0usize..=80,
        density in 0usize..4,
    ) {
        let mut random = crate::common::Random(seed);
        // Mostly letters of magics, XORed with a mask that changes at random places.
        let mut mask = 0;
        let mut byte = |random: &mut crate::common::Random| {
            if random.below(1 + density * 8) == 0 {
                mask = random.next() as u8;
            }
            b"FSPHLPAIDGRN"[random.below(12)] ^ mask
        };
        let mut word = |random: &mut crate::common::Random| {
            let bytes = [(); 4].map(|()| byte(random));
            f32::from_le_bytes(bytes)
        };
        let head: Vec<f32> = (0..k).map(|_| word(&mut random)).collect();
        let head: Vec<f32> = head.into_iter().map(|v| if v.is_finite() { v } else { 0.0 }).collect();
        let mut wide = || u64::from(word(&mut random).to_bits()) << 32 | u64::from(word(&mut random).to_bits());
        let record = Record {
            campaign: wide(),
            round: (wide() >> 32) as u32,
            representation: wide() as u32,
            head: &head,
        };
        let image = image_with(&record, 4);
        for position in magics(&image) {
            prop_assert!(position.is_multiple_of(WORD), "at {}", position);
            prop_assert!(b"HLNR".contains(&image[position + 3]), "{:?}", &image[position..position + 8]);
        }
        prop_assert!(image.windows(4).filter(|window| *window == b"FSPR").count() <= 1);
    }
}

/// The checksum of a record can be the start of a magic, if a server tries enough records. The mask then is another one.
#[test]
fn checksum_is_no_start_of_a_magic_either() {
    let (mut rejected, mut random) = (0, crate::common::Random(1));
    for _ in 0..200_000 {
        let campaign = random.next();
        // With mask 0, as a server would expect.
        let mut bytes = b"FSPR\x12\x00\xed\xff\x02\x00".to_vec();
        bytes.extend(campaign.to_le_bytes().into_iter().chain([0; 8]));
        if crc32c(&bytes).to_le_bytes()[..2] != *b"FS" {
            continue;
        }
        // One in 256 of these would be a start.
        rejected += 1;
        let image = image_with(&Record { campaign, round: 0, representation: 0, head: &[] }, 2);
        assert!(magics(&image).all(|position| position.is_multiple_of(WORD)));
    }
    assert!(rejected > 0);
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
