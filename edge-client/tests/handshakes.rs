//! The number of handshakes in flash never falls behind what was promised, whenever the power went and whatever one
//! byte has become: it grows, or the device is silent.
#![cfg(feature = "flash")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "common/nor.rs"]
mod nor;

use fedspan_client::store::{FlashStore, Record, Store, StoreError, record_len};
use nor::{Nor, PAGE, WORD};

const K: usize = 2;
const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);

type Flash = FlashStore<Nor, BYTES>;

fn store(nor: &Nor) -> Flash {
    let end = u32::try_from(nor.0.borrow().bytes.len()).unwrap();
    FlashStore::new(nor.clone(), 0..end).unwrap()
}

/// As a session begins: the record first, which may find that the flash is not ours.
fn boot(nor: &Nor) -> (Flash, Result<u64, StoreError>) {
    let mut store = store(nor);
    let _ = store.load(&mut [0.0; K]);
    let number = store.load_handshakes();
    (store, number)
}

fn save(store: &mut Flash, round: u32) -> Result<(), StoreError> {
    store.save(&Record { campaign: 1, round, representation: 2, head: &[0.5; K] })
}

#[test]
fn a_number_is_there_after_a_reset_and_grows() {
    let nor = Nor::new(2);
    for n in 0..400u64 {
        let (mut store, number) = boot(&nor);
        assert_eq!(number, Ok(128 * n));
        store.save_handshakes(128 * (n + 1)).unwrap();
        save(&mut store, n as u32).unwrap();
        assert_eq!(store.erased(), 0);
    }
}

/// The power goes after every byte of saves that fill the pages many times over: what is there is never less than what
/// was durable, and life goes on from there.
#[test]
fn power_that_goes_never_lowers_the_number() {
    let (nor, mut tried) = (Nor::new(2), 0u32);
    for n in 1..=60u64 {
        let before = nor.0.borrow().bytes.clone();
        for power in 0..4 * PAGE {
            tried += 1;
            let cut = Nor::with(before.clone());
            let (mut first, number) = boot(&cut);
            assert_eq!(number, Ok(128 * (n - 1)));
            cut.0.borrow_mut().power = power;
            let saved = first.save_handshakes(128 * n).is_ok();
            let whole = saved && save(&mut first, n as u32).is_ok();
            cut.0.borrow_mut().power = usize::MAX;
            let (mut store, number) = boot(&cut);
            let number = number.unwrap();
            assert!(number == 128 * n || number == 128 * (n - 1) && !saved, "{number} at {n}, {power}");
            assert_eq!(store.erased(), 0);
            store.save_handshakes(number + 128).unwrap();
            assert_eq!(boot(&cut).1, Ok(number + 128));
            if whole {
                break;
            }
        }
        let (mut store, _) = boot(&nor);
        store.save_handshakes(128 * n).unwrap();
        save(&mut store, n as u32).unwrap();
    }
    println!("{tried} cuts");
}

/// One byte of the flash becomes another: the number is right, or higher, or there is none.
#[test]
fn a_spoilt_byte_never_lowers_the_number() {
    let (mut tried, mut silent, mut lower) = (0u32, 0u32, 0u32);
    for saves in [1u64, 2, 5, 9, 14, 20] {
        let nor = Nor::new(2);
        for n in 1..=saves {
            let (mut store, _) = boot(&nor);
            store.save_handshakes(128 * n).unwrap();
            save(&mut store, n as u32).unwrap();
        }
        let image = nor.0.borrow().bytes.clone();
        for at in 0..image.len() {
            for spoilt in [image[at] ^ 1, image[at] ^ 0x80, 0, 0xff, !image[at]] {
                let mut bytes = image.clone();
                bytes[at] = spoilt;
                tried += 1;
                match boot(&Nor::with(bytes)).1 {
                    Ok(number) if number < 128 * saves => {
                        lower += 1;
                        if lower < 20 {
                            println!(
                                "{number} for {} at {at}: {:02x} -> {spoilt:02x}",
                                128 * saves,
                                image[at]
                            );
                        }
                    }
                    Ok(_) => {}
                    Err(StoreError) => silent += 1,
                }
            }
        }
    }
    println!("{tried} spoilt bytes, {silent} silent, {lower} lower");
    assert_eq!(lower, 0);
}
