//! Flash of an emulated board, kept in a host file. Each change is in the file when the call returns, so the
//! content survives a reset of the board and a sudden end of the emulator, as real flash survives a power
//! cut.

use semihosting::fs::{File, OpenOptions};
use semihosting::io::{Read as _, Seek as _, SeekFrom, Write as _};

use crate::nor::{Broken, Medium, Nor, NorError, flash_size};
use crate::settings::Name;

/// File with the content of the flash.
#[derive(Debug)]
pub struct FlashFile(File);

/// Opens the flash with pages of `P` bytes. Creates a missing file, with all bytes erased.
///
/// # Errors
/// [`NorError`] if the file cannot be used or its size is not that of the flash.
pub fn open<const P: usize>(name: &Name) -> Result<Nor<FlashFile, P>, NorError> {
    Nor::new(FlashFile::open(name, flash_size(P))?)
}

impl FlashFile {
    /// Opens the file. Creates a missing one, with `size` bytes, all of them erased.
    ///
    /// # Errors
    /// [`NorError::Broken`] if the file cannot be used.
    pub fn open(name: &Name, size: usize) -> Result<Self, NorError> {
        let existing = OpenOptions::new().read(true).write(true).open(name.as_c_str());
        if let Ok(file) = existing {
            return Ok(Self(file));
        }
        let mut options = OpenOptions::new();
        let created = options.read(true).write(true).create(true).truncate(true).open(name.as_c_str());
        let mut file = Self(created.map_err(|_| NorError::Broken)?);
        for offset in (0..size).step_by(64) {
            file.write(offset, &[0xff; 64]).map_err(|Broken| NorError::Broken)?;
        }
        Ok(file)
    }

    fn seek(&mut self, offset: usize) -> Result<(), Broken> {
        self.0.seek(SeekFrom::Start(offset as u64)).map(|_| ()).map_err(|_| Broken)
    }
}

impl Medium for FlashFile {
    fn length(&mut self) -> Result<u64, Broken> {
        self.0.metadata().map(|metadata| metadata.len()).map_err(|_| Broken)
    }

    fn read(&mut self, offset: usize, mut bytes: &mut [u8]) -> Result<(), Broken> {
        self.seek(offset)?;
        while !bytes.is_empty() {
            let n = self.0.read(bytes).map_err(|_| Broken)?;
            let (_, remaining) = core::mem::take(&mut bytes).split_at_mut_checked(n).ok_or(Broken)?;
            if n == 0 {
                return Err(Broken);
            }
            bytes = remaining;
        }
        Ok(())
    }

    fn write(&mut self, offset: usize, mut bytes: &[u8]) -> Result<(), Broken> {
        self.seek(offset)?;
        while !bytes.is_empty() {
            let n = self.0.write(bytes).map_err(|_| Broken)?;
            if n == 0 {
                return Err(Broken);
            }
            bytes = bytes.get(n..).ok_or(Broken)?;
        }
        Ok(())
    }
}
