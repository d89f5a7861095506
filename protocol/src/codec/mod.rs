//! Messages as bytes, for serde: the format is postcard's, and every number is read and written by postcard.
//!
//! postcard's own walk puts a loop into each of a hundred fields and hands an error up through every struct:
//! 7 kB of a device's flash. Here each kind of number is read and written in one place (on a device; a host has room),
//! whether all went well is looked at once, at the end, and only what messages are made of is known: unsigned
//! numbers, `f32`, structs, enums and sequences.

mod read;
mod write;

use core::fmt;

use serde::de::DeserializeOwned;
use serde::{Serialize, de, ser};

use crate::Error;

/// Reads a `T` from the start of `bytes` and returns it with the rest.
#[cfg_attr(target_os = "none", inline(never))]
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), Error> {
    let mut reader = read::Reader::new(bytes);
    let value = T::deserialize(&mut reader).map_err(|Unsuitable| Error::Malformed)?;
    Ok((value, reader.finish().ok_or(Error::Malformed)?))
}

/// Writes `value` to the front of `out` and returns its length, or `None` if there is not enough room.
#[cfg_attr(target_os = "none", inline(never))]
pub fn write<T: Serialize>(value: &T, out: &mut [u8]) -> Option<usize> {
    let mut writer = write::Writer::new(out);
    value.serialize(&mut writer).ok()?;
    writer.finish()
}

/// A value that cannot be: the number of no variant, a sequence that is too long, a type that no message has.
#[derive(Debug)]
pub struct Unsuitable;

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unsuitable value")
    }
}

impl core::error::Error for Unsuitable {}

impl de::Error for Unsuitable {
    fn custom<T: fmt::Display>(_message: T) -> Self {
        Self
    }
}

impl ser::Error for Unsuitable {
    fn custom<T: fmt::Display>(_message: T) -> Self {
        Self
    }
}
