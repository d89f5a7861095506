//! Tests of items in two slots: a cut of power after any byte of any write leaves the old version or the new one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use fedspan_emulated::nor::{Broken, Medium};
use fedspan_emulated::slots::{CONTENT_MAX, SlotError, load, save};

/// Medium in memory whose power is cut after a number of written bytes.
struct Cut {
    bytes: Vec<u8>,
    left: usize,
}

impl Cut {
    fn blank() -> Self {
        Self { bytes: vec![0xff; 4096], left: usize::MAX }
    }
}

impl Medium for Cut {
    fn length(&mut self) -> Result<u64, Broken> {
        Ok(self.bytes.len() as u64)
    }

    fn read(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), Broken> {
        bytes.copy_from_slice(self.bytes.get(offset..offset + bytes.len()).ok_or(Broken)?);
        Ok(())
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Broken> {
        let written = bytes.len().min(self.left);
        self.bytes[offset..offset + written].copy_from_slice(&bytes[..written]);
        self.left -= written;
        if written == bytes.len() { Ok(()) } else { Err(Broken) }
    }
}

/// Versions of an item: of different and equal lengths, equal to the one before, and with the bytes of blank flash.
fn versions() -> Vec<Vec<u8>> {
    let mut versions =
        vec![vec![1; 12], vec![2; 12], vec![2; 12], vec![0xff; 12], vec![3; 40], vec![4; 7], vec![]];
    versions.extend((0..6).map(|n| (0..30).map(|byte| byte * n).collect()));
    versions
}

fn loaded(medium: &mut Cut, item: usize) -> Result<Option<Vec<u8>>, SlotError> {
    let mut bytes = vec![0; CONTENT_MAX];
    Ok(load(medium, item, &mut bytes)?.map(|length| bytes[..length].to_vec()))
}

/// Cuts each write at each byte, and the write that follows after the restart at each byte again.
#[test]
fn cut_leaves_the_old_version_or_the_new_one() {
    let versions = versions();
    for count in 0..versions.len() - 1 {
        let mut before = Cut::blank();
        save(&mut before, 1, b"another item").unwrap();
        versions[..count].iter().for_each(|version| save(&mut before, 0, version).unwrap());
        let old = count.checked_sub(1).map(|last| versions[last].clone());
        let length = 8 + versions[count].len();
        for cut in 0..=length {
            let mut first = Cut { bytes: before.bytes.clone(), left: cut };
            let is_saved = save(&mut first, 0, &versions[count]).is_ok();
            assert_eq!(is_saved, cut == length);
            first.left = usize::MAX;
            let kept = loaded(&mut first, 0).unwrap();
            assert!(kept == old || kept.as_ref() == Some(&versions[count]), "{count} {cut}: {kept:?}");
            assert!(!is_saved || kept.as_ref() == Some(&versions[count]), "{count} {cut}: {kept:?}");
            for again in 0..=8 + versions[count + 1].len() {
                let mut second = Cut { bytes: first.bytes.clone(), left: again };
                let is_saved = save(&mut second, 0, &versions[count + 1]).is_ok();
                second.left = usize::MAX;
                let found = loaded(&mut second, 0).unwrap();
                assert!(
                    found == kept || found.as_ref() == Some(&versions[count + 1]),
                    "{count} {cut} {again}"
                );
                assert!(!is_saved || found.as_ref() == Some(&versions[count + 1]), "{count} {cut} {again}");
            }
            assert_eq!(loaded(&mut first, 1).unwrap().unwrap(), b"another item");
        }
    }
}

#[test]
fn item_without_a_version_is_missing_or_damaged() {
    let mut medium = Cut::blank();
    assert_eq!(loaded(&mut medium, 0), Ok(None));
    let too_long = SlotError::Length { got: CONTENT_MAX + 1 };
    assert_eq!(save(&mut medium, 0, &[0; CONTENT_MAX + 1]), Err(too_long));
    save(&mut medium, 0, &[7; CONTENT_MAX]).unwrap();
    save(&mut medium, 0, &[8; 9]).unwrap();
    assert_eq!(load(&mut medium, 0, &mut [0; 8]), Err(SlotError::Length { got: 9 }));
    // Slots of 512 bytes.
    medium.bytes[0] ^= 1;
    assert_eq!(loaded(&mut medium, 0), Ok(Some(vec![8; 9])));
    medium.bytes[512 + 8] ^= 1;
    assert_eq!(loaded(&mut medium, 0), Err(SlotError::Damaged));
    assert_eq!(save(&mut medium, 0, &[1]), Err(SlotError::Damaged));
}

#[test]
fn sequence_number_wraps() {
    let mut medium = Cut::blank();
    for n in 0..70_000u32 {
        save(&mut medium, 0, &n.to_le_bytes()).unwrap();
    }
    assert_eq!(loaded(&mut medium, 0).unwrap().unwrap(), 69_999u32.to_le_bytes());
}
