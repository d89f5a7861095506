//! Tests of the privacy ledger in flash. It never falls below its saved value, after a power cut at any time.
//! Blank flash belongs to a new device; flash without a valid ledger counts as spent, permanently.
#![cfg(feature = "flash")]

use crate::common::Random;
use crate::nor_flash::{Nor, PAGE, WORD};
use fedspan_client::store::{ALL_SPENT, FlashStore, Record, Store, StoreError, record_len};
use fedspan_protocol::frame::crc32c;

const K: usize = 2;
const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);

type Flash = FlashStore<Nor, BYTES>;

fn open_store(nor: &Nor) -> Flash {
    let end = u32::try_from(nor.image().len()).unwrap();
    FlashStore::new(nor.clone(), 0..end).unwrap()
}

/// Reads the store as a private session does at its start: the ledger, the record, and the handshakes if
/// there is a key.
fn boot_store(nor: &Nor, keyed: bool) -> (Flash, Result<u64, StoreError>) {
    let mut store = open_store(nor);
    let spent = store.load_spent();
    let _ = store.load(&mut [0.0; K]);
    if keyed {
        let _ = store.load_handshakes();
    }
    (store, spent)
}

fn load_spent(nor: &Nor) -> Result<u64, StoreError> {
    boot_store(nor, false).1
}

fn save_record(store: &mut Flash, round: u32) -> Result<(), StoreError> {
    store.save(&Record { campaign: 1, round, representation: 2, head: &[0.5; K] })
}

fn is_blank(nor: &Nor) -> bool {
    nor.image().iter().all(|byte| *byte == 0xFF)
}

/// Returns the bytes of a ledger in flash.
fn ledger_bytes(spent: u64) -> Vec<u8> {
    let mut bytes = [b"FSPLPAID".as_slice(), &spent.to_le_bytes()].concat();
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes
}

#[test]
fn ledger_survives_resets_and_grows() {
    for keyed in [false, true] {
        let nor = Nor::new(2);
        for n in 0..300u64 {
            let (mut store, spent) = boot_store(&nor, keyed);
            assert_eq!(spent, Ok(7 * n));
            store.save_spent(7 * (n + 1)).unwrap();
            save_record(&mut store, n as u32).unwrap();
            if keyed {
                store.save_handshakes(128 * (n + 1)).unwrap();
                assert_eq!(self::open_store(&nor).load_handshakes(), Ok(128 * (n + 1)));
            }
            // Saving a smaller value changes nothing.
            store.save_spent(n).unwrap();
            assert_eq!(store.erased(), 0);
        }
        let (mut store, _) = boot_store(&nor, keyed);
        for large in [1 << 40, 1 << 50, u64::MAX - 1] {
            store.save_spent(large).unwrap();
            assert_eq!(load_spent(&nor), Ok(large));
        }
    }
}

/// The power fails after any byte of the first start, and again in the second start. The device still counts
/// as new until it has spent budget.
#[test]
fn power_cut_at_first_start_leaves_the_device_new() {
    let mut cuts = 0;
    for pages in [2, 3, 4] {
        for power in (0..).step_by(pages - 1) {
            let nor = Nor::new(pages);
            nor.0.borrow_mut().power = power;
            let first_result = load_spent(&nor);
            let image = nor.image();
            for second_power in (power % 7..3 * PAGE).step_by(397) {
                let nor = Nor::with(image.clone());
                nor.0.borrow_mut().power = second_power;
                assert!(matches!(load_spent(&nor), Ok(0) | Err(StoreError)));
                nor.0.borrow_mut().power = usize::MAX;
                assert_eq!(load_spent(&nor), Ok(0), "{pages} pages, {power}, {second_power}");
                let mut store = boot_store(&nor, true).0;
                store.save_handshakes(128).unwrap();
                store.save_spent(5).unwrap();
                assert_eq!((load_spent(&nor), store.erased()), (Ok(5), 0));
                cuts += 1;
            }
            if first_result.is_ok() {
                assert!(power >= 20, "{power}");
                break;
            }
        }
    }
    println!("{cuts} cuts");
}

/// The power fails after every byte of a round's writes, for enough rounds to fill the pages many times.
#[test]
fn power_cut_never_lowers_the_ledger() {
    let (nor, mut cuts) = (Nor::new(2), 0u32);
    boot_store(&nor, true).1.unwrap();
    for n in 1..=40u64 {
        let before = nor.image();
        for power in 0.. {
            cuts += 1;
            let interrupted = Nor::with(before.clone());
            let (mut first, spent) = boot_store(&interrupted, true);
            assert_eq!(spent, Ok(n - 1));
            interrupted.0.borrow_mut().power = power;
            let paid = first.save_spent(n).is_ok();
            let saved = paid && save_record(&mut first, n as u32).is_ok();
            let is_complete = saved && first.save_handshakes(128 * n).is_ok();
            interrupted.0.borrow_mut().power = usize::MAX;
            assert!(!is_blank(&interrupted));
            // Both counters are found in either order of reading.
            let mut store_read_first = open_store(&Nor::with(interrupted.image()));
            let handshakes = store_read_first.load_handshakes().unwrap();
            assert!(handshakes == 128 * n || handshakes == 128 * (n - 1) && !is_complete);
            let (mut store, spent) = boot_store(&interrupted, true);
            let spent = spent.unwrap();
            assert!(spent == n || spent == n - 1 && !paid, "{spent} at {n}, {power}");
            assert_eq!(store.erased(), 0);
            store.save_spent(spent + 1).unwrap();
            assert_eq!(boot_store(&interrupted, true).1, Ok(spent + 1));
            if is_complete {
                break;
            }
        }
        let (mut store, _) = boot_store(&nor, true);
        store.save_spent(n).unwrap();
        save_record(&mut store, n as u32).unwrap();
        store.save_handshakes(128 * n).unwrap();
    }
    println!("{cuts} cuts");
}

/// In ten thousand runs of rounds, with and without keys, the power fails at any byte, also during repairs.
/// The counters are never below their saved values, and never above the attempted values unless damage has
/// made the whole budget count as spent. Pages that were used once are never blank again.
#[test]
fn no_history_lowers_the_ledger() {
    let mut random = Random(5);
    let mut runs = 0;
    let mut cuts = 0;
    let mut counted_as_spent = 0;
    while runs < 10_000 {
        let nor = Nor::new(2 + random.below(3));
        // Saved and attempted values, each of the handshakes and of the spent budget.
        let (mut saved, mut attempted) = ([0u64; 2], [0u64; 2]);
        let (damaged, mut has_started) = (random.below(10) == 0, false);
        for _ in 0..20 + random.below(60) {
            runs += 1;
            nor.0.borrow_mut().power = if random.below(3) > 0 { random.below(400) } else { usize::MAX };
            let (mut store, read_spent) = boot_store(&nor, random.below(2) == 0);
            if let Ok(spent) = read_spent {
                has_started = true;
                assert!(spent >= saved[1], "{spent} of {saved:?}");
                assert!(spent <= attempted[1] || damaged && spent == ALL_SPENT, "{spent} of {attempted:?}");
                counted_as_spent += u32::from(spent == ALL_SPENT);
                (saved[1], attempted[1]) = (spent, attempted[1].max(spent));
                for _ in 0..random.below(4) {
                    match random.below(4) {
                        0 if spent < ALL_SPENT => {
                            attempted[1] = saved[1].max(attempted[1]) + 1 + random.below(1000) as u64;
                            if store.save_spent(attempted[1]).is_ok() {
                                saved[1] = attempted[1];
                            }
                        }
                        1 => {
                            attempted[0] += 128;
                            if store.save_handshakes(attempted[0]).is_ok() {
                                saved[0] = attempted[0];
                            }
                        }
                        _ => drop(save_record(&mut store, random.next() as u32)),
                    }
                }
            }
            cuts += u32::from(nor.0.borrow().power < 8);
            assert!(!has_started || !is_blank(&nor));
            if damaged && random.below(4) == 0 {
                // Some bytes far from the counters are overwritten with noise.
                let address = random.below(nor.image().len() - 8);
                let copies = [b"FSPH".as_slice(), b"FSPL"];
                let chip = &mut nor.0.borrow_mut().bytes;
                let surroundings = address.saturating_sub(40)..(address + 40).min(chip.len());
                if !copies
                    .iter()
                    .any(|magic| chip[surroundings.clone()].windows(4).any(|window| window == *magic))
                {
                    chip[address..address + 8].fill(random.next() as u8 & 0x7F);
                }
            }
            nor.0.borrow_mut().power = usize::MAX;
            let image = Nor::with(nor.image());
            let handshakes = handshakes_of(&image);
            assert!(handshakes >= saved[0], "{handshakes} of {saved:?}");
            assert!(spent_of(&image) >= saved[1]);
        }
    }
    println!("{runs} runs, {cuts} cuts, the whole budget counted as spent {counted_as_spent} times");
}

fn handshakes_of(nor: &Nor) -> u64 {
    open_store(&Nor::with(nor.image())).load_handshakes().unwrap()
}

fn spent_of(nor: &Nor) -> u64 {
    load_spent(&Nor::with(nor.image())).unwrap()
}

/// Creates the flash of a used device, with nine records, ledgers and handshake counters.
fn used_flash(pages: usize) -> Nor {
    let nor = Nor::new(pages);
    for n in 1..=9 {
        let (mut store, _) = boot_store(&nor, true);
        store.save_spent(10 * n).unwrap();
        store.save_handshakes(128 * n).unwrap();
        save_record(&mut store, n as u32).unwrap();
    }
    nor
}

/// If one byte changes, the ledger still has its saved value.
#[test]
fn damaged_byte_never_lowers_the_ledger() {
    let image = used_flash(2).image();
    let mut damages = 0;
    for index in 0..image.len() {
        for damaged in [image[index] ^ 1, image[index] ^ 0x80, 0, 0xff, !image[index]] {
            let mut bytes = image.clone();
            bytes[index] = damaged;
            damages += 1;
            let nor = Nor::with(bytes);
            assert_eq!(load_spent(&nor), Ok(90), "{index}: {damaged:02x}");
            assert_eq!(load_spent(&nor), Ok(90), "at the next start");
        }
    }
    println!("{damages} damaged bytes");
}

/// If all copies are damaged, the budget counts as spent permanently, after power cuts at any time and for
/// any order of reading.
#[test]
fn flash_without_a_valid_ledger_is_spent_permanently() {
    let mut random = Random(3);
    let mut images = Vec::new();
    for pages in [2, 3] {
        let image = used_flash(pages).image();
        let map_bytes = |change: &mut dyn FnMut(usize, u8) -> u8| -> Vec<u8> {
            image.iter().enumerate().map(|(index, byte)| change(index, *byte)).collect()
        };
        images.push(map_bytes(&mut |_, byte| !byte));
        images.push(map_bytes(&mut |_, _| 0));
        images.push(map_bytes(&mut |_, _| random.next() as u8));
        // Everything is erased except the last bytes, or the beginning of each page, or every second byte.
        let last = image.iter().rposition(|byte| *byte != 0xFF).unwrap();
        images.push(map_bytes(&mut |index, byte| if index + 10 < last { 0xFF } else { byte }));
        // The beginning of the first page alone would be the ledger of a new device.
        images
            .push(map_bytes(&mut |index, byte| if (64..84).contains(&(index % PAGE)) { byte } else { 0xFF }));
        images.push(map_bytes(&mut |index, byte| if index % 2 == 0 { 0xFF } else { byte }));
        // All bytes but one are erased. No first write of a new device leaves it.
        // (At byte 0, a bit of 0xFE is one that the first write of a new device clears.)
        for index in [1, PAGE / 2, PAGE - 1, pages * PAGE - PAGE / 2, pages * PAGE - 1] {
            for remains in [0xFE, 0x0F] {
                let mut almost_erased = vec![0xFF; pages * PAGE];
                almost_erased[index] = remains;
                images.push(almost_erased);
            }
        }
        // Each copy has one flipped bit.
        for _ in 0..12 {
            let mut bytes = image.clone();
            for index in 0..bytes.len() - 20 {
                if image[index..].starts_with(b"FSPL") {
                    bytes[index + random.below(20)] ^= 1 << random.below(8);
                }
            }
            images.push(bytes);
        }
        // The device has run without privacy before.
        for saves in [1, 2, 7, 14] {
            let nor = Nor::new(pages);
            for n in 0..saves {
                let mut store = open_store(&nor);
                match n % 2 {
                    0 => save_record(&mut store, n).unwrap(),
                    _ => store.save_handshakes(128 * u64::from(n)).unwrap(),
                }
            }
            images.push(nor.image());
        }
    }
    let mut cuts = 0;
    assert!(
        images.iter().all(|image| image.iter().any(|byte| *byte != 0xFF)),
        "an image is blank, like that of a new device"
    );
    for (number, image) in images.iter().enumerate() {
        for order in 0..3 {
            // Some of the cuts are right after the erase of a page.
            for power in (0..).filter(|power| power % 31 == 0 || power % PAGE == 0) {
                cuts += 1;
                let nor = Nor::with(image.clone());
                nor.0.borrow_mut().power = power;
                let mut store = open_store(&nor);
                // The first operation is the ledger, as in a session, or another operation that triggers
                // repairs.
                let is_complete = match order {
                    0 => store.load_spent().is_ok(),
                    1 => store.load(&mut [0.0; K]).is_ok() && save_record(&mut store, 1).is_ok(),
                    _ => store.load_handshakes().is_ok() && store.save_handshakes(1 << 20).is_ok(),
                };
                assert!(!is_blank(&nor), "image {number}, {order}, {power}");
                nor.0.borrow_mut().power = random.below(900);
                let (mut store, read_spent) = boot_store(&nor, true);
                assert!(
                    matches!(read_spent, Ok(ALL_SPENT) | Err(StoreError)),
                    "image {number}: {read_spent:?}"
                );
                let _ = save_record(&mut store, 77);
                nor.0.borrow_mut().power = usize::MAX;
                assert_eq!(load_spent(&nor), Ok(ALL_SPENT), "image {number}, {order}, {power}");
                let (mut store, _) = boot_store(&nor, true);
                store.save_handshakes(1 << 30).unwrap();
                save_record(&mut store, 78).unwrap();
                store.save_spent(5).unwrap();
                assert_eq!(load_spent(&nor), Ok(ALL_SPENT), "the ledger no longer counts as spent");
                if is_complete {
                    break;
                }
            }
        }
    }
    println!("{} images, {cuts} cuts", images.len());
}

/// Flash full of noise that contains both counters is erased, and the power fails after any byte of the
/// erase. The handshake counter survives, and the ledger survives or counts as spent.
#[test]
fn erasing_never_loses_a_counter() {
    let mut random = Random(1);
    let mut erasures = 0;
    let mut lost = 0;
    let mut tried = 0;
    for pages in [2, 2, 3, 4].repeat(12) {
        let mut image: Vec<u8> = (0..pages * PAGE).map(|_| random.next() as u8).collect();
        let mut handshakes = [b"FSPH".as_slice(), &1280u64.to_le_bytes()].concat();
        handshakes.extend(crc32c(&handshakes).to_le_bytes());
        let first = random.below(pages) * PAGE + random.below(PAGE / 2 - 20);
        let second = random.below(pages) * PAGE + PAGE / 2 + random.below(PAGE / 2 - 20);
        image[first..first + 16].copy_from_slice(&handshakes);
        image[second..second + 20].copy_from_slice(&ledger_bytes(90));
        for power in (0..).step_by(11) {
            tried += 1;
            let nor = Nor::with(image.clone());
            nor.0.borrow_mut().power = power;
            let (mut store, spent) = boot_store(&nor, true);
            let saved = spent.is_ok() && save_record(&mut store, 1).is_ok();
            erasures += usize::from(saved && store.erased() > 0);
            nor.0.borrow_mut().power = usize::MAX;
            assert!(!is_blank(&nor));
            let (mut store, spent) = boot_store(&nor, true);
            assert_eq!(store.load_handshakes(), Ok(1280), "{pages} pages, {first}, {second}, {power}");
            // The ledger counts as spent only if there are two pages and each of them holds one counter.
            let apart = pages == 2 && first / PAGE != second / PAGE;
            assert!(spent == Ok(90) || apart && !saved && spent == Ok(ALL_SPENT), "{spent:?}");
            lost += u32::from(spent == Ok(ALL_SPENT));
            save_record(&mut store, 2).unwrap();
            if saved {
                break;
            }
        }
    }
    assert!(erasures > 10, "{erasures}");
    println!("{tried} cuts, {lost} of them left the whole budget spent");
}
