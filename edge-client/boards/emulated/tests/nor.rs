//! Tests that the boards' flash behaves like NOR flash, refuses unaligned and out-of-range access, and holds
//! a record.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use embedded_storage::nor_flash::{NorFlash, NorFlashErrorKind, ReadNorFlash};
use fedspan_client::store::{FlashStore, Record, Store, record_len};
use fedspan_emulated::nor::{Broken, Medium, Nor, NorError, PAGE, SIZE, WORD};

/// Medium in a memory buffer; access beyond its end fails.
struct Bytes<'a>(&'a mut Vec<u8>);

impl Medium for Bytes<'_> {
    fn length(&mut self) -> Result<u64, Broken> {
        Ok(self.0.len() as u64)
    }

    fn read(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), Broken> {
        bytes.copy_from_slice(self.0.get(offset..offset + bytes.len()).ok_or(Broken)?);
        Ok(())
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Broken> {
        self.0.get_mut(offset..offset + bytes.len()).ok_or(Broken)?.copy_from_slice(bytes);
        Ok(())
    }
}

#[test]
fn write_clears_bits_and_erase_sets_them() -> Result<(), NorFlashErrorKind> {
    let mut bytes = vec![0xff; SIZE];
    let mut nor = Nor::<_, PAGE>::new(Bytes(&mut bytes)).map_err(|_| NorFlashErrorKind::Other)?;
    assert_eq!(nor.is_blank(), Ok(true));
    // The write is longer than a block and crosses a page boundary.
    let first: Vec<u8> = (0..200).map(|i| i as u8 | 0x0f).collect();
    nor.write(PAGE as u32 - 100, &first)?;
    nor.write(PAGE as u32 - 100, &[0xf0; 200])?;
    let mut read = [0; 204];
    nor.read(PAGE as u32 - 102, &mut read)?;
    let expected: Vec<u8> = first.iter().map(|byte| byte & 0xf0).collect();
    assert_eq!((&read[..2], &read[2..202], &read[202..]), (&[0xff; 2][..], &expected[..], &[0xff; 2][..]));
    assert_eq!(nor.is_blank(), Ok(false));
    nor.erase(PAGE as u32, SIZE as u32)?;
    nor.read(PAGE as u32 - 4, &mut read[..8])?;
    assert_eq!(read[..8], [&expected[96..100], &[0xff; 4][..]].concat());
    nor.erase(0, PAGE as u32)?;
    assert_eq!(nor.is_blank(), Ok(true));
    Ok(())
}

#[test]
fn invalid_access_is_refused_and_changes_nothing() {
    use NorFlashErrorKind::{NotAligned, OutOfBounds};
    let (page, size) = (PAGE as u32, SIZE as u32);
    let mut bytes = vec![0xff; SIZE];
    let mut nor = Nor::<_, PAGE>::new(Bytes(&mut bytes)).expect("the right size");
    assert_eq!(nor.write(2, &[0; 4]), Err(NotAligned));
    assert_eq!(nor.write(0, &[0; 6]), Err(NotAligned));
    assert_eq!(nor.write(size, &[0; 4]), Err(OutOfBounds));
    assert_eq!(nor.write(u32::MAX - 3, &[0; 8]), Err(OutOfBounds));
    assert_eq!(nor.erase(0, page - 4), Err(NotAligned));
    assert_eq!(nor.erase(4, page), Err(NotAligned));
    assert_eq!(nor.erase(0, size + page), Err(OutOfBounds));
    assert_eq!(nor.erase(page, 0), Err(OutOfBounds));
    assert_eq!(nor.read(size - 1, &mut [0; 2]), Err(OutOfBounds));
    assert_eq!((nor.is_blank(), nor.capacity()), (Ok(true), SIZE));
    for length in [0, SIZE - 1, SIZE + 1] {
        let created = Nor::<_, PAGE>::new(Bytes(&mut vec![0xff; length])).map(|_| ());
        assert_eq!(created, Err(NorError::Size { got: length as u64, needed: SIZE }));
    }
    let error = NorError::Size { got: 7, needed: SIZE };
    assert_eq!(error.to_string(), "the file has 7 bytes, the flash has 8192");
}

#[test]
fn record_survives_a_restart() {
    const RECORD: usize = record_len(24, 7).next_multiple_of(WORD);
    let mut bytes = vec![0xff; SIZE];
    for round in 1..40u32 {
        let head = [round as f32; 24 * 7];
        let record = Record { campaign: 3, round, representation: 9, head: &head };
        let nor = Nor::<_, PAGE>::new(Bytes(&mut bytes)).expect("the right size");
        let mut store: FlashStore<_, RECORD> = FlashStore::new(nor, 0..SIZE as u32).expect("pages");
        store.save(&record).expect("it works");
        let nor = Nor::<_, PAGE>::new(Bytes(&mut bytes)).expect("the right size");
        let mut store: FlashStore<_, RECORD> = FlashStore::new(nor, 0..SIZE as u32).expect("pages");
        let mut loaded_head = [0.0; 24 * 7];
        let loaded = store.load(&mut loaded_head).expect("it works");
        assert_eq!((loaded.map(|loaded| loaded.round), loaded_head, store.erased()), (Some(round), head, 0));
    }
}
