//! Tests of errors of the flash driver while a store goes on or is opened again, for words of 1 to 16 bytes: no saved record or
//! counter is lost. Words of one byte are the hardest, because a copy of a counter may end with a byte that looks erased.
#![cfg(feature = "flash")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::Random;
use embedded_storage::nor_flash::{ErrorType, NorFlash, NorFlashErrorKind, ReadNorFlash};
use fedspan_client::store::{FlashError, FlashStore, Record, Store, record_len};
use fedspan_protocol::frame::crc32c;

const PAGE: usize = 512;
const K: usize = 2;
/// Length of a record, which is a multiple of all words.
const BYTES: usize = record_len(K, 1).next_multiple_of(16);

/// Flash of two pages whose write or erase number `left` fails once, after `part` bytes.
#[derive(Clone)]
struct Failing<const W: usize> {
    bytes: Rc<RefCell<Vec<u8>>>,
    left: Rc<Cell<usize>>,
    part: Rc<Cell<usize>>,
}

impl<const W: usize> Failing<W> {
    fn new() -> Self {
        let bytes = Rc::new(RefCell::new(vec![0xFF; 2 * PAGE]));
        Self { bytes, left: Rc::new(Cell::new(usize::MAX)), part: Rc::default() }
    }

    fn store(&self) -> FlashStore<Self, BYTES> {
        FlashStore::new(self.clone(), 0..2 * PAGE as u32).unwrap()
    }

    /// Returns true if this operation fails.
    fn fails(&self) -> bool {
        let left = self.left.get();
        self.left.set(if left == 0 { usize::MAX } else { left - 1 });
        left == 0
    }
}

impl<const W: usize> ErrorType for Failing<W> {
    type Error = NorFlashErrorKind;
}

impl<const W: usize> ReadNorFlash for Failing<W> {
    const READ_SIZE: usize = if W < 4 { 1 } else { 4 };

    fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), Self::Error> {
        let first = offset as usize;
        assert!(first.is_multiple_of(Self::READ_SIZE) && bytes.len().is_multiple_of(Self::READ_SIZE));
        bytes.copy_from_slice(&self.bytes.borrow()[first..first + bytes.len()]);
        Ok(())
    }

    fn capacity(&self) -> usize {
        2 * PAGE
    }
}

impl<const W: usize> NorFlash for Failing<W> {
    const WRITE_SIZE: usize = W;
    const ERASE_SIZE: usize = PAGE;

    fn erase(&mut self, from: u32, to: u32) -> Result<(), Self::Error> {
        if self.fails() {
            return Err(NorFlashErrorKind::Other);
        }
        self.bytes.borrow_mut()[from as usize..to as usize].fill(0xFF);
        Ok(())
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Self::Error> {
        assert!((offset as usize).is_multiple_of(W) && bytes.len().is_multiple_of(W));
        let fails = self.fails();
        let length = if fails { self.part.get().min(bytes.len()) } else { bytes.len() };
        for (address, byte) in (offset as usize..).zip(&bytes[..length]) {
            self.bytes.borrow_mut()[address] &= byte;
        }
        if fails { Err(NorFlashErrorKind::Other) } else { Ok(()) }
    }
}

/// Runs histories in which a driver error comes at any time, and the store goes on or is opened again.
fn check_histories<const W: usize>() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let flash = Failing::<W>::new();
        let mut store = flash.store();
        // A private device reads its ledger first.
        store.load_spent().unwrap();
        // Saved and attempted values: round of the record, spent budget, handshakes.
        let (mut saved, mut attempted) = ([0u64; 3], [0u64; 3]);
        for _ in 0..300 {
            flash.part.set(random.below(48));
            flash.left.set(if random.below(3) == 0 { random.below(6) } else { usize::MAX });
            let which = random.below(4);
            if which == 3 {
                store = flash.store();
            } else {
                attempted[which] = attempted[which].max(saved[which]) + 1 + random.below(3) as u64;
                let value = attempted[which];
                let result = match which {
                    0 => store.save(&Record {
                        campaign: 1,
                        round: value as u32,
                        representation: 2,
                        head: &[value as f32, 0.5],
                    }),
                    1 => store.save_spent(value),
                    _ => store.save_handshakes(value),
                };
                if result.is_ok() {
                    saved[which] = value;
                }
            }
            flash.left.set(usize::MAX);
            // The content that a device would read after a reset.
            let mut fresh = Failing::<W>::new();
            fresh.bytes = Rc::new(RefCell::new(flash.bytes.borrow().clone()));
            let mut fresh = fresh.store();
            let spent = fresh.load_spent().unwrap();
            let mut head = [0.0; K];
            let round = fresh.load(&mut head).unwrap().map_or(0, |loaded| u64::from(loaded.round));
            let read = [round, spent, fresh.load_handshakes().unwrap()];
            for which in 0..3 {
                assert!(
                    (saved[which]..=attempted[which]).contains(&read[which]),
                    "words of {W}, seed {seed}: {read:?} of {saved:?} and {attempted:?}"
                );
            }
        }
    }
}

#[test]
fn driver_errors_lose_nothing() {
    check_histories::<1>();
    check_histories::<2>();
    check_histories::<4>();
    check_histories::<8>();
    check_histories::<16>();
}

/// Saves every value of a counter whose copy ends with a byte that looks erased, and opens the store again each time.
#[test]
fn copy_may_end_with_a_byte_that_looks_erased() {
    let (flash, mut ends_erased) = (Failing::<1>::new(), 0);
    flash.store().load_spent().unwrap();
    for value in 1..3000u64 {
        let mut copy = [b"FSPH".as_slice(), &value.to_le_bytes()].concat();
        copy.extend(crc32c(&copy).to_le_bytes());
        ends_erased += usize::from(copy.ends_with(&[0xFF]));
        flash.store().save_handshakes(value).unwrap();
        flash.store().save_spent(value).unwrap();
        let copies = flash.bytes.borrow().windows(16).filter(|window| *window == copy).count();
        assert!(copies >= 2, "{value}: {copies}");
        let mut store = flash.store();
        assert_eq!((store.load_spent(), store.load_handshakes()), (Ok(value), Ok(value)));
    }
    assert!(ends_erased > 5, "{ends_erased}");
}

#[test]
fn words_that_are_too_large_are_refused() {
    struct Large;

    impl ErrorType for Large {
        type Error = NorFlashErrorKind;
    }

    impl ReadNorFlash for Large {
        const READ_SIZE: usize = 1;

        fn read(&mut self, _: u32, _: &mut [u8]) -> Result<(), Self::Error> {
            Ok(())
        }

        fn capacity(&self) -> usize {
            8192
        }
    }

    impl NorFlash for Large {
        const WRITE_SIZE: usize = 128;
        const ERASE_SIZE: usize = 4096;

        fn erase(&mut self, _: u32, _: u32) -> Result<(), Self::Error> {
            Ok(())
        }

        fn write(&mut self, _: u32, _: &[u8]) -> Result<(), Self::Error> {
            Ok(())
        }
    }

    let refused = FlashStore::<_, 128>::new(Large, 0..8192).err();
    assert_eq!(refused, Some(FlashError::Geometry { page: 4096, word: 128 }));
}
