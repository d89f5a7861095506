//! Tests of the record in flash: a saved record survives a reset and a power cut at any time, foreign content is
//! replaced, and pages wear evenly.
#![cfg(feature = "flash")]

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::Random;
use crate::nor_flash::{Nor, PAGE, WORD};
use embedded_storage::nor_flash::{ErrorType, NorFlash, NorFlashErrorKind, ReadNorFlash};
use fedspan_client::store::{FlashError, FlashStore, Record, RecordHeader, Store, record_len};
use proptest::prelude::*;

const K: usize = 4;
/// Size of the buffer in bytes, for a record with a head of 4 x 1 in whole words.
const BYTES: usize = record_len(K, 1).next_multiple_of(WORD);

type Flash = FlashStore<Nor, BYTES>;

fn open_store(nor: &Nor) -> Flash {
    let end = u32::try_from(nor.image().len()).unwrap();
    FlashStore::new(nor.clone(), 0..end).unwrap()
}

/// Returns record number `n` and its head.
fn record_of(n: u32) -> (RecordHeader, [f32; K]) {
    let mut random = Random(n.into());
    let loaded = RecordHeader { campaign: random.next(), round: n, representation: random.next() as u32 };
    (loaded, [0; K].map(|_: i32| random.next() as i32 as f32))
}

fn save_record(store: &mut Flash, n: u32) -> Result<(), fedspan_client::store::StoreError> {
    let (RecordHeader { campaign, round, representation }, head) = record_of(n);
    store.save(&Record { campaign, round, representation, head: &head })
}

/// Loads the record, which must be complete, and returns its number.
fn load_record(store: &mut Flash) -> Option<u32> {
    let mut head = [7.0; K];
    let loaded = store.load(&mut head).unwrap();
    match loaded {
        Some(loaded) => assert_eq!((loaded, head), record_of(loaded.round)),
        None => assert_eq!(head, [7.0; K], "without a record the head stays unchanged"),
    }
    loaded.map(|loaded| loaded.round)
}

#[test]
fn last_record_survives_a_reset() {
    let nor = Nor::new(3);
    assert_eq!(load_record(&mut open_store(&nor)), None);
    for n in 1..=200 {
        save_record(&mut open_store(&nor), n).unwrap();
        assert_eq!(load_record(&mut open_store(&nor)), Some(n));
    }
    assert_eq!(open_store(&nor).erased(), 0);
}

/// The power fails after every possible byte of forty saves. The stored record is then the old or the new
/// one.
#[test]
fn power_cut_leaves_the_old_or_the_new_record() {
    let nor = Nor::new(2);
    for n in 1..=40 {
        let image_before = nor.image();
        let mut uncut_store = open_store(&nor);
        let written = nor.0.borrow().written;
        save_record(&mut uncut_store, n).unwrap();
        let image_after = nor.image();
        let cost = nor.0.borrow().written - written + 2 * PAGE;
        for power in 0..cost {
            let interrupted = Nor::with(image_before.clone());
            interrupted.0.borrow_mut().power = power;
            let saved = save_record(&mut open_store(&interrupted), n).is_ok();
            interrupted.0.borrow_mut().power = usize::MAX;
            let loaded = load_record(&mut open_store(&interrupted));
            if saved {
                assert_eq!(loaded, Some(n));
                break;
            }
            let previous = (n > 1).then(|| n - 1);
            assert!(loaded == Some(n) || loaded == previous, "{loaded:?} at {n}, {power}");
            // The device can save again.
            save_record(&mut open_store(&interrupted), n + 1).unwrap();
            assert_eq!(load_record(&mut open_store(&interrupted)), Some(n + 1));
        }
        assert_eq!(nor.image(), image_after);
    }
}

#[test]
fn round_costs_one_small_write_and_pages_wear_evenly() {
    let nor = Nor::new(4);
    let mut store = open_store(&nor);
    const SAVES: usize = 5000;
    for n in 0..SAVES {
        let sum = || (nor.0.borrow().written, nor.0.borrow().erased.iter().sum::<usize>());
        let (written, erased) = sum();
        save_record(&mut store, n as u32).unwrap();
        let (written, erased) = (sum().0 - written, sum().1 - erased);
        // A save writes the record, and two copies of its generation to a page that begins. The first page is not erased.
        let begins = erased + usize::from(n.is_multiple_of(9) && n < 36);
        assert!(written <= BYTES + 2 * 16 * begins, "{written} bytes for record {n} of {BYTES}");
    }
    let erased = nor.0.borrow().erased.clone();
    let (min_erasures, max_erasures) = (*erased.iter().min().unwrap(), *erased.iter().max().unwrap());
    assert!(max_erasures - min_erasures <= 1, "{erased:?}");
    // A page holds (512 - 32) / 52 = 9 records, and the four pages are used in turn.
    assert!(max_erasures <= SAVES / (9 * 4) + 1, "{erased:?}");
    assert_eq!(store.erased(), 0);
}

#[test]
fn record_of_another_model_or_with_nan_is_not_loaded() {
    let nor = Nor::new(2);
    save_record(&mut open_store(&nor), 5).unwrap();
    let mut wider_head = [7.0; K + 1];
    let mut wider: FlashStore<Nor, { record_len(K + 1, 1).next_multiple_of(WORD) }> =
        FlashStore::new(nor.clone(), 0..2 * PAGE as u32).unwrap();
    assert_eq!((wider.load(&mut wider_head), wider_head), (Ok(None), [7.0; K + 1]));
    // A head with a NaN can be written, but is never loaded.
    let mut store = open_store(&nor);
    let head = [1.0, f32::NAN, 0.0, 0.0];
    store.save(&Record { campaign: 1, round: 6, representation: 0, head: &head }).unwrap();
    assert_eq!(load_record(&mut store), None);
    // A record that does not fit the buffer is an error, and the old record is kept.
    save_record(&mut store, 7).unwrap();
    let long = [1.0; 40];
    assert!(store.save(&Record { campaign: 1, round: 8, representation: 0, head: &long }).is_err());
    assert_eq!((load_record(&mut store), store.erased()), (Some(7), 0));
}

#[test]
fn unusable_flash_is_refused_with_a_reason() {
    let nor = Nor::new(4);
    let page = PAGE as u32;
    let problem = |range: std::ops::Range<u32>| FlashStore::<_, BYTES>::new(nor.clone(), range).err();
    assert_eq!(problem(4..4 + 2 * page), Some(FlashError::NotAtPage { address: 4, page: PAGE }));
    assert_eq!(problem(0..2 * page - 1), Some(FlashError::NotAtPage { address: 2 * page - 1, page: PAGE }));
    assert_eq!(problem(0..page), Some(FlashError::Range { bytes: page, needed: 2 * PAGE }));
    assert_eq!(problem(page..page), Some(FlashError::Range { bytes: 0, needed: 2 * PAGE }));
    #[allow(clippy::reversed_empty_ranges)]
    let backward = problem(2 * page..page);
    assert_eq!(backward, Some(FlashError::Range { bytes: 0, needed: 2 * PAGE }));
    let far = problem(0..8 * page);
    assert_eq!(far, Some(FlashError::Range { bytes: 8 * page, needed: 2 * PAGE }));
    assert_eq!(
        far.unwrap().to_string(),
        "the range of 4096 bytes is too short or extends beyond the flash; at least 1024 bytes inside it are needed"
    );
    assert_eq!(problem(0..4 * page), None);
}

proptest! {
    /// On data of another firmware or on noise, the store starts without a record, and works from then on.
    #[test]
    fn store_starts_clean_on_any_content(seed: u64, pages in 2usize..5, noise in 0u8..4) {
        let mut random = Random(seed);
        let mut image: Vec<u8> = (0..pages * PAGE).map(|_| random.next() as u8).collect();
        match noise {
            // The content is mostly zero, mostly erased, noise, or a valid image with some changed bytes.
            0 => image.iter_mut().for_each(|byte| if *byte < 250 { *byte = 0 }),
            1 => image.iter_mut().for_each(|byte| if *byte < 250 { *byte = 0xFF }),
            2 => {}
            _ => {
                let valid = Nor::new(pages);
                for n in 0..30 {
                    save_record(&mut open_store(&valid), n).unwrap();
                }
                image = valid.image();
                for _ in 0..1 + random.below(20) {
                    let index = random.below(image.len());
                    image[index] = random.next() as u8;
                }
            }
        }
        let nor = Nor::with(image);
        let mut first = open_store(&nor);
        // Only a complete saved record is loaded.
        let loaded = load_record(&mut first);
        prop_assert!(noise == 3 || loaded.is_none());
        for n in 100..130 {
            save_record(&mut open_store(&nor), n).unwrap();
            prop_assert_eq!(load_record(&mut open_store(&nor)), Some(n));
        }
    }
}

/// With words of 1 to 32 bytes, a buffer of `record_len` rounded up to whole words is large enough for
/// heads of any size, and for the counters.
#[test]
fn buffer_fits_any_word_size() {
    check_word_size::<1>();
    check_word_size::<2>();
    check_word_size::<8>();
    check_word_size::<16>();
    check_word_size::<32>();
}

/// Checks heads of several lengths, with buffers as short as the words allow.
fn check_word_size<const BYTES_OF_WORD: usize>() {
    /// Checks heads of `K` x 1 in words of `W` bytes, with a buffer of `N` bytes.
    fn check_head<const K: usize, const W: usize, const N: usize>() {
        let bytes = Rc::new(RefCell::new(vec![0xFF; 2 * PAGE]));
        for n in 1..60 {
            let mut store =
                FlashStore::<_, N>::new(Words::<W>(Rc::clone(&bytes)), 0..2 * PAGE as u32).unwrap();
            assert_eq!(store.load_spent(), Ok(7 * u64::from(n - 1)));
            let record = Record { campaign: 1, round: n, representation: 2, head: &[n as f32; K] };
            store.save(&record).unwrap();
            store.save_handshakes(128 * u64::from(n)).unwrap();
            let mut head = [0.0; K];
            assert_eq!(store.load(&mut head).unwrap().map(|loaded| loaded.round), Some(n));
            assert_eq!((store.load_handshakes(), head[0]), (Ok(128 * u64::from(n)), n as f32));
            assert_eq!(store.erased(), 0);
            store.save_spent(7 * u64::from(n)).unwrap();
        }
    }
    match BYTES_OF_WORD {
        1 => {
            check_head::<K, 1, { record_len(K, 1) }>();
            check_head::<1, 1, { record_len(1, 1) }>();
        }
        2 => {
            check_head::<K, 2, { record_len(K, 1).next_multiple_of(2) }>();
            check_head::<1, 2, { record_len(1, 1).next_multiple_of(2) }>();
        }
        16 => check_head::<K, 16, { record_len(K, 1).next_multiple_of(16) }>(),
        32 => check_head::<K, 32, { record_len(K, 1).next_multiple_of(32) }>(),
        _ => {
            check_head::<K, 8, { record_len(K, 1).next_multiple_of(8) }>();
            check_head::<1, 8, { record_len(1, 1).next_multiple_of(8) }>();
        }
    }
}

/// Flash in memory with words of `W` bytes.
struct Words<const W: usize>(Rc<RefCell<Vec<u8>>>);

impl<const W: usize> ErrorType for Words<W> {
    type Error = NorFlashErrorKind;
}

impl<const W: usize> ReadNorFlash for Words<W> {
    const READ_SIZE: usize = 1;

    fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), Self::Error> {
        let first = offset as usize;
        bytes.copy_from_slice(&self.0.borrow()[first..first + bytes.len()]);
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.0.borrow().len()
    }
}

impl<const W: usize> NorFlash for Words<W> {
    const WRITE_SIZE: usize = W;
    const ERASE_SIZE: usize = PAGE;

    fn erase(&mut self, from: u32, to: u32) -> Result<(), Self::Error> {
        self.0.borrow_mut()[from as usize..to as usize].fill(0xFF);
        Ok(())
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Self::Error> {
        assert!((offset as usize).is_multiple_of(W) && bytes.len().is_multiple_of(W));
        for (address, byte) in (offset as usize..).zip(bytes) {
            self.0.borrow_mut()[address] &= byte;
        }
        Ok(())
    }
}
