//! Identity of a real device: its provisioning record in flash, or the device number of a bench build.

use embedded_storage::nor_flash::ReadNorFlash;
use fedspan_client::secure::{PROVISION_MAX, Provision, ProvisionError};
use fedspan_client::session::Protection;
use zeroize::Zeroize;

/// True in a bench build, which sends frames in plaintext and reads no key.
pub const PLAINTEXT: bool = cfg!(feature = "plaintext");

/// Reason for which a device cannot join a fleet: it has no key, or no usable flash for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The flash could not be read.
    Unreadable,
    /// The page of the provisioning record is blank.
    Unprovisioned,
    /// The page does not contain a provisioning record.
    NoRecord,
    /// The provisioning record is too new for this firmware.
    TooNew,
    /// The checksum of the provisioning record does not match.
    Damaged,
    /// The provisioning record demands noise on updates, which this firmware does not add.
    Noise,
    /// The pages of the session's record do not fit the flash, because the memory map is wrong.
    Pages,
}

impl StartError {
    /// Returns the reason as one line of text for the serial line.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unreadable => "fedspan: no key: the flash cannot be read\r\n",
            Self::Unprovisioned => "fedspan: no key: flash the provisioning record (boards/README.md)\r\n",
            Self::NoRecord => "fedspan: no key: the content of its page is not a provisioning record\r\n",
            Self::TooNew => "fedspan: no key: this firmware is too old for the provisioning record\r\n",
            Self::Damaged => "fedspan: no key: the provisioning record is damaged\r\n",
            Self::Noise => {
                "fedspan: the provisioning record demands noise, which this firmware does not add\r\n"
            }
            Self::Pages => "fedspan: the pages of the record in the memory map do not fit the flash\r\n",
        }
    }
}

/// Buffer aligned for flash drivers that read whole words.
#[repr(align(4))]
struct Page([u8; PROVISION_MAX]);

/// Returns the device's number and protection. Reads them from the provisioning record at `address` of
/// `flash`; in a bench build they are `number` and plaintext.
///
/// # Errors
/// The [`StartError`] that describes the missing or unusable record.
pub fn identity<F: ReadNorFlash>(
    flash: &mut F,
    address: u32,
    number: u64,
) -> Result<(u64, Protection), StartError> {
    if PLAINTEXT {
        return Ok((number, Protection::Plaintext));
    }
    let mut page = Page([0; PROVISION_MAX]);
    let read = flash.read(address, &mut page.0).map_err(|_| StartError::Unreadable);
    let record = read.and_then(|()| Provision::read(&page.0).map_err(start_error));
    page.0.zeroize();
    let Provision { device, key, noise } = record?;
    if noise.is_some() {
        return Err(StartError::Noise);
    }
    Ok((device, Protection::Key(key)))
}

/// Returns the start error for a provisioning record that cannot be used.
fn start_error(error: ProvisionError) -> StartError {
    match error {
        ProvisionError::Erased => StartError::Unprovisioned,
        ProvisionError::Magic { .. } => StartError::NoRecord,
        ProvisionError::Version { .. } | ProvisionError::UnknownEntry { .. } => StartError::TooNew,
        _ => StartError::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use embedded_storage::nor_flash::{ErrorType, NorFlashErrorKind};
    use fedspan_client::secure::{Key, PROVISION};

    use super::*;

    /// Flash for tests with one page at address 4096, which can only be read in whole words.
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
            let content = self.0.get(start..start + bytes.len()).ok_or(NorFlashErrorKind::OutOfBounds)?;
            bytes.copy_from_slice(content);
            Ok(())
        }

        fn capacity(&self) -> usize {
            8192
        }
    }

    /// Returns flash with the record of device 7, modified by `change`.
    fn provisioned_flash(change: impl FnOnce(&mut [u8])) -> OnePage {
        let mut page = vec![0xff; 4096];
        let provision = Provision { device: 7, key: Key::new(3, [0x42; 32]), noise: None };
        assert_eq!(provision.write(&mut page), Ok(PROVISION));
        change(&mut page);
        OnePage(page)
    }

    #[test]
    #[cfg(not(feature = "plaintext"))]
    fn record_identifies_the_device() {
        let identified = identity(&mut provisioned_flash(|_| ()), 4096, 99);
        let Ok((7, Protection::Key(key))) = identified else { unreachable!("{identified:?}") };
        assert_eq!((key.epoch(), key.expose()), (3, &[0x42; 32]));
    }

    #[test]
    #[cfg(not(feature = "plaintext"))]
    fn unusable_record_gives_no_identity() {
        let start_error_after =
            |change: fn(&mut [u8])| identity(&mut provisioned_flash(change), 4096, 99).err();
        assert_eq!(start_error_after(|page| page.fill(0xff)), Some(StartError::Unprovisioned));
        assert_eq!(start_error_after(|page| page.fill(0)), Some(StartError::NoRecord));
        assert_eq!(start_error_after(|page| page[4] = 2), Some(StartError::TooNew));
        assert_eq!(start_error_after(|page| page[20] ^= 1), Some(StartError::Damaged));
        assert_eq!(start_error_after(|page| page[53] ^= 1), Some(StartError::Damaged));
        assert_eq!(identity(&mut provisioned_flash(|_| ()), 0, 99).err(), Some(StartError::Unreadable));
        let noise = fedspan_client::secure::ProvisionedNoise {
            multiplier_square: 1 << 20,
            budget: 1,
            rows_max: 1,
            slot: 1,
            clip: 0.0,
            iterations_max: 1,
        };
        let noisy = Provision { device: 7, key: Key::new(3, [0x42; 32]), noise: Some(noise) };
        let written = &mut provisioned_flash(|page| assert!(noisy.write(page).is_ok()));
        assert_eq!(identity(written, 4096, 99).err(), Some(StartError::Noise));
    }

    #[test]
    #[cfg(feature = "plaintext")]
    fn bench_build_needs_no_record() {
        let identified = identity(&mut provisioned_flash(|page| page.fill(0xff)), 4096, 99);
        assert!(matches!(identified, Ok((99, Protection::Plaintext))), "{identified:?}");
    }
}
