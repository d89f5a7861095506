//! Who the device is: the provisioning record in flash, or on a bench nobody in particular.

use embedded_storage::nor_flash::ReadNorFlash;
use fedspan_client::secure::{PROVISION_MAX, Provision, ProvisionError};
use fedspan_client::session::Protection;
use zeroize::Zeroize;

/// The build for the bench: frames are in the clear, and no key is read.
pub const PLAINTEXT: bool = cfg!(feature = "plaintext");

/// Why a device has no key, or no place to keep what it must not forget. It does not join a fleet then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The flash could not be read.
    Unreadable,
    /// Nothing was flashed there.
    Unprovisioned,
    /// Something else is there.
    NoRecord,
    /// A record that this firmware is too old for.
    TooNew,
    /// A record whose check is wrong.
    Damaged,
    /// A record that wants noise on what is sent, which this firmware does not add.
    Noise,
    /// Pages that are no pages of this flash, a mistake in the board's memory map.
    Pages,
}

impl Absent {
    /// What the device says about it, a line.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unreadable => "fedspan: no key: the flash cannot be read\r\n",
            Self::Unprovisioned => "fedspan: no key: flash the provisioning record (boards/README.md)\r\n",
            Self::NoRecord => "fedspan: no key: what is in its place is no provisioning record\r\n",
            Self::TooNew => "fedspan: no key: this firmware is too old for the provisioning record\r\n",
            Self::Damaged => "fedspan: no key: the provisioning record is damaged\r\n",
            Self::Noise => "fedspan: this firmware does not add the noise that the record wants\r\n",
            Self::Pages => "fedspan: the memory map's pages for the record are wrong\r\n",
        }
    }
}

/// A record is read in whole words.
#[repr(align(4))]
struct Page([u8; PROVISION_MAX]);

/// The device's number and protection: from the record at `address` (as `flash` counts), or for the bench `number`
/// and none.
///
/// # Errors
/// [`Absent`] without a record.
pub fn identity<F: ReadNorFlash>(
    flash: &mut F,
    address: u32,
    number: u64,
) -> Result<(u64, Protection), Absent> {
    if PLAINTEXT {
        return Ok((number, Protection::Plaintext));
    }
    let mut page = Page([0; PROVISION_MAX]);
    let read = flash.read(address, &mut page.0).map_err(|_| Absent::Unreadable);
    let record = read.and_then(|()| Provision::read(&page.0).map_err(absent));
    page.0.zeroize();
    let Provision { device, key, noise } = record?;
    if noise.is_some() {
        return Err(Absent::Noise);
    }
    Ok((device, Protection::Key(key)))
}

fn absent(error: ProvisionError) -> Absent {
    match error {
        ProvisionError::Erased => Absent::Unprovisioned,
        ProvisionError::Magic { .. } => Absent::NoRecord,
        ProvisionError::Version { .. } | ProvisionError::UnknownEntry { .. } => Absent::TooNew,
        _ => Absent::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use embedded_storage::nor_flash::{ErrorType, NorFlashErrorKind};
    use fedspan_client::secure::{Key, PROVISION, ProvisionedNoise};

    use super::*;

    /// Flash of one page, at address 4096; reads whole words only.
    struct OnePage(Vec<u8>);

    impl ErrorType for OnePage {
        type Error = NorFlashErrorKind;
    }

    impl ReadNorFlash for OnePage {
        const READ_SIZE: usize = 4;

        fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), NorFlashErrorKind> {
            assert!(offset.is_multiple_of(4) && bytes.len().is_multiple_of(4));
            assert!(bytes.as_ptr().addr().is_multiple_of(4));
            let start = offset.checked_sub(4096).ok_or(NorFlashErrorKind::OutOfBounds)? as usize;
            let found = self.0.get(start..start + bytes.len()).ok_or(NorFlashErrorKind::OutOfBounds)?;
            bytes.copy_from_slice(found);
            Ok(())
        }

        fn capacity(&self) -> usize {
            8192
        }
    }

    fn page(change: impl FnOnce(&mut [u8])) -> OnePage {
        let mut page = vec![0xff; 4096];
        let provision = Provision { device: 7, key: Key::new(3, [0x42; 32]), noise: None };
        assert_eq!(provision.write(&mut page), Ok(PROVISION));
        change(&mut page);
        OnePage(page)
    }

    #[test]
    #[cfg(not(feature = "plaintext"))]
    fn the_record_says_who_the_device_is() {
        let found = identity(&mut page(|_| ()), 4096, 99);
        let Ok((7, Protection::Key(key))) = found else { unreachable!("{found:?}") };
        assert_eq!((key.epoch(), key.expose()), (3, &[0x42; 32]));
    }

    #[test]
    #[cfg(not(feature = "plaintext"))]
    fn without_a_record_there_is_no_identity() {
        let absent = |change: fn(&mut [u8])| identity(&mut page(change), 4096, 99).err();
        assert_eq!(absent(|page| page.fill(0xff)), Some(Absent::Unprovisioned));
        assert_eq!(absent(|page| page.fill(0)), Some(Absent::NoRecord));
        assert_eq!(absent(|page| page[4] = 2), Some(Absent::TooNew));
        assert_eq!(absent(|page| page[20] ^= 1), Some(Absent::Damaged));
        assert_eq!(absent(|page| page[53] ^= 1), Some(Absent::Damaged));
        assert_eq!(identity(&mut page(|_| ()), 0, 99).err(), Some(Absent::Unreadable));
        let noise = ProvisionedNoise {
            multiplier_square: 1 << 20,
            budget: 1,
            rows_max: 1,
            slot: 1,
            clip: 0.0,
            iterations_max: 1,
        };
        let noisy = Provision { device: 7, key: Key::new(3, [0x42; 32]), noise: Some(noise) };
        let written = &mut page(|page| assert!(noisy.write(page).is_ok()));
        assert_eq!(identity(written, 4096, 99).err(), Some(Absent::Noise));
    }

    #[test]
    #[cfg(feature = "plaintext")]
    fn the_bench_needs_no_record() {
        let found = identity(&mut page(|page| page.fill(0xff)), 4096, 99);
        assert!(matches!(found, Ok((99, Protection::Plaintext))), "{found:?}");
    }
}
