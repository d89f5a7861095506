//! Tests of the handshake counter in flash. After a power cut or a changed byte, the counter is never read as
//! less than its saved value; if it cannot be read, the device must not send.
#![cfg(feature = "flash")]

use crate::common;
use crate::nor_flash::{Nor, PAGE, WORD};
use fedspan_client::store::{FlashStore, Record, Store, StoreError, record_len};
use fedspan_protocol::frame::crc32c;
use proptest::prelude::*;

/// Number of handshakes that one save reserves.
const STEP: u64 = 128;
const K: usize = 2;
const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);

type Flash = FlashStore<Nor, BYTES>;

fn open_store(nor: &Nor) -> Flash {
    let end = u32::try_from(nor.0.borrow().bytes.len()).unwrap();
    FlashStore::new(nor.clone(), 0..end).unwrap()
}

/// Reads the store as a session does at its start: the record first, which erases foreign content.
fn boot_store(nor: &Nor) -> (Flash, Result<u64, StoreError>) {
    let mut store = open_store(nor);
    let _ = store.load(&mut [0.0; K]);
    let number = store.load_handshakes();
    (store, number)
}

fn save_record(store: &mut Flash, round: u32) -> Result<(), StoreError> {
    store.save(&Record { campaign: 1, round, representation: 2, head: &[0.5; K] })
}

#[test]
fn counter_survives_resets_and_grows() {
    let nor = Nor::new(2);
    for n in 0..400u64 {
        let (mut store, number) = boot_store(&nor);
        assert_eq!(number, Ok(STEP * n));
        store.save_handshakes(STEP * (n + 1)).unwrap();
        save_record(&mut store, n as u32).unwrap();
        assert_eq!(store.erased(), 0);
    }
}

/// The power is cut after each byte of each save, for enough saves to fill the pages several times. The
/// counter is never below its saved value, and the device continues from that value.
#[test]
fn power_cut_never_lowers_the_counter() {
    let (nor, mut cuts) = (Nor::new(2), 0u32);
    for n in 1..=60u64 {
        let before = nor.0.borrow().bytes.clone();
        for power in 0..4 * PAGE {
            cuts += 1;
            let interrupted = Nor::with(before.clone());
            let (mut first, number) = boot_store(&interrupted);
            assert_eq!(number, Ok(STEP * (n - 1)));
            interrupted.0.borrow_mut().power = power;
            let saved = first.save_handshakes(STEP * n).is_ok();
            let is_complete = saved && save_record(&mut first, n as u32).is_ok();
            interrupted.0.borrow_mut().power = usize::MAX;
            let (mut store, number) = boot_store(&interrupted);
            let number = number.unwrap();
            assert!(number == STEP * n || number == STEP * (n - 1) && !saved, "{number} at {n}, {power}");
            assert_eq!(store.erased(), 0);
            store.save_handshakes(number + 128).unwrap();
            assert_eq!(boot_store(&interrupted).1, Ok(number + 128));
            if is_complete {
                break;
            }
        }
        let (mut store, _) = boot_store(&nor);
        store.save_handshakes(STEP * n).unwrap();
        save_record(&mut store, n as u32).unwrap();
    }
    println!("{cuts} cuts");
}

/// One byte of the flash is changed. The counter is then read as its saved value or more, or it cannot be
/// read.
#[test]
fn damaged_byte_never_lowers_the_counter() {
    let mut damages = 0u32;
    let mut unreadable = 0u32;
    let mut lower = 0u32;
    for saves in [1u64, 2, 5, 9, 14, 20] {
        let nor = Nor::new(2);
        for n in 1..=saves {
            let (mut store, _) = boot_store(&nor);
            store.save_handshakes(STEP * n).unwrap();
            save_record(&mut store, n as u32).unwrap();
        }
        let image = nor.0.borrow().bytes.clone();
        for index in 0..image.len() {
            for damaged in [image[index] ^ 1, image[index] ^ 0x80, 0, 0xff, !image[index]] {
                let mut bytes = image.clone();
                bytes[index] = damaged;
                damages += 1;
                match boot_store(&Nor::with(bytes)).1 {
                    Ok(number) if number < STEP * saves => {
                        lower += 1;
                        if lower < 20 {
                            println!(
                                "{number} for {} at {index}: {:02x} -> {damaged:02x}",
                                STEP * saves,
                                image[index]
                            );
                        }
                    }
                    Ok(_) => {}
                    Err(StoreError) => unreadable += 1,
                }
            }
        }
    }
    println!("{damages} damaged bytes, {unreadable} unreadable, {lower} lower");
    assert_eq!(lower, 0);
}

/// Returns the bytes of a handshake counter in flash.
fn counter_bytes(number: u64) -> Vec<u8> {
    let mut bytes = [b"FSPH".as_slice(), &number.to_le_bytes()].concat();
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes
}

/// A malicious server chooses campaign, round and representation hash so that their bytes equal a stored
/// counter.
#[test]
fn server_cannot_forge_a_counter_in_the_record() {
    let forged = counter_bytes(u64::MAX);
    let (campaign, remaining) = forged.split_first_chunk().unwrap();
    let (round, representation) = remaining.split_first_chunk().unwrap();
    let record = Record {
        campaign: u64::from_le_bytes(*campaign),
        round: u32::from_le_bytes(*round),
        representation: u32::from_le_bytes(representation.try_into().unwrap()),
        head: &[0.25, -7.0],
    };
    let nor = Nor::new(2);
    let (mut store, _) = boot_store(&nor);
    store.save_handshakes(STEP).unwrap();
    store.save(&record).unwrap();
    assert_eq!(boot_store(&nor).1, Ok(STEP));
    let mut head = [0.0; K];
    let loaded = self::open_store(&nor).load(&mut head).unwrap().unwrap();
    assert_eq!((loaded.campaign, loaded.round), (record.campaign, record.round));
    assert_eq!((loaded.representation, head.as_slice()), (record.representation, record.head));
}

proptest! {
    /// The head is full of counters, each XORed with a different mask.
    #[test]
    fn head_cannot_forge_a_counter(masks in prop::collection::vec(any::<u8>(), 16), shift in 0usize..4) {
        const K: usize = 64;
        const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);
        // The first copy is not masked. All values are finite floats.
        let hidden = masks.iter().enumerate().flat_map(|(n, mask)| {
            let mask = if n == 0 { 0 } else { mask & 0x3f };
            counter_bytes(0x3f_3f3f_0000).into_iter().map(move |byte| byte ^ mask)
        });
        let bytes: Vec<u8> = std::iter::repeat_n(0, shift).chain(hidden).collect();
        let words = bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap()));
        let mut head: Vec<f32> = words.map(|value| if value.is_finite() { value } else { 0.0 }).collect();
        head.resize(K, 1.0);
        let nor = Nor::new(4);
        let open_whole = || FlashStore::<_, BYTES>::new(nor.clone(), 0..4 * PAGE as u32).unwrap();
        open_whole().save_handshakes(STEP).unwrap();
        open_whole().save(&Record { campaign: 1, round: 2, representation: 3, head: &head }).unwrap();
        let mut loaded = [0.0; K];
        prop_assert!(open_whole().load(&mut loaded).unwrap().is_some());
        prop_assert_eq!(loaded.as_slice(), head.as_slice());
        prop_assert_eq!(open_whole().load_handshakes(), Ok(STEP));
    }
}

/// The flash holds random bytes and one valid counter, which is readable. The power fails twice while the
/// store erases the flash, and the counter must survive.
#[test]
fn erasing_never_loses_the_counter() {
    let mut random = common::Random(1);
    let (mut erasures, mut readable) = (0, 0);
    for pages in [2, 2, 3, 4].repeat(10) {
        let mut image: Vec<u8> = (0..pages * PAGE).map(|_| random.next() as u8).collect();
        // The library never writes a copy across a page boundary.
        let counter_start = random.below(pages) * PAGE + random.below(PAGE - 15);
        image[counter_start..counter_start + 16].copy_from_slice(&counter_bytes(10 * STEP));
        let second_cut = random.below(400);
        let mut erased = 0;
        for power in (0..).step_by(7) {
            let nor = Nor::with(image.clone());
            let mut is_complete = false;
            for power in [power, second_cut, usize::MAX] {
                nor.0.borrow_mut().power = power;
                let (mut store, number) = boot_store(&nor);
                assert!(
                    number == Ok(10 * STEP) || power < usize::MAX && number == Err(StoreError),
                    "{number:?}"
                );
                is_complete |= save_record(&mut store, 1).is_ok() && power < usize::MAX;
                erased = erased.max(store.erased());
            }
            let (mut store, number) = boot_store(&nor);
            assert_eq!(number, Ok(10 * STEP), "{pages} pages, {counter_start}, {power}, {second_cut}");
            let last = nor.0.borrow().bytes[(pages - 1) * PAGE..].to_vec();
            let begun = last[..WORD].iter().any(|byte| *byte != 0xFF);
            assert!(begun || last.iter().all(|byte| *byte == 0xFF), "a page looks blank but is not");
            store.save_handshakes(11 * STEP).unwrap();
            save_record(&mut store, 2).unwrap();
            assert_eq!(boot_store(&nor).1, Ok(11 * STEP));
            if is_complete && power > second_cut {
                break;
            }
        }
        erasures += usize::from(erased > 0);
        readable += usize::from(erased == 0);
    }
    assert!(erasures > 10, "{erasures} images were erased, {readable} were readable");
}
