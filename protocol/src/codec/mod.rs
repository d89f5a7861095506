//! Serde format for messages: the same bytes as postcard, but using postcard's code only for numbers.
//!
//! postcard's own serializer puts a loop into each of a hundred fields and returns an error through every
//! struct, which costs 7 kB of a device's flash. This format reads and writes each kind of number in one
//! function (on a device), records errors and reports them once at the end, and supports only the types of
//! messages: unsigned numbers, `f32`, structs, enums and sequences.

mod read;
mod write;

use core::fmt;

use serde::de::DeserializeOwned;
use serde::{Serialize, de, ser};

use crate::Error;

/// Decodes a `T` from the start of `bytes`, and returns the value and the remaining bytes.
#[cfg_attr(target_os = "none", inline(never))]
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), Error> {
    let mut reader = read::Reader::new(bytes);
    let value = T::deserialize(&mut reader).map_err(|Unsuitable| Error::Malformed)?;
    Ok((value, reader.finish().ok_or(Error::Malformed)?))
}

/// Encodes `value` to the front of `out` and returns the encoded length, or `None` if `out` is too short.
#[cfg_attr(target_os = "none", inline(never))]
pub fn write<T: Serialize>(value: &T, out: &mut [u8]) -> Option<usize> {
    let mut writer = write::Writer::new(out);
    value.serialize(&mut writer).ok()?;
    writer.finish()
}

/// Error of a value that cannot occur in a message: an unknown variant number, a sequence that is too long,
/// or an unsupported type.
#[derive(Debug)]
pub struct Unsuitable;

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("value does not occur in messages")
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

/// Refuses a value that this build cannot read. Attribute of the variants that a [feature](crate) adds.
#[allow(dead_code, reason = "a build with every task refuses none")]
pub fn refuse<'de, D: de::Deserializer<'de>, T>(_: D) -> Result<T, D::Error> {
    Err(de::Error::custom("this build lacks the task"))
}
