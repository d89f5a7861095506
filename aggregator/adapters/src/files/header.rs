//! The header of a safetensors file: eight bytes of length, JSON with every tensor's name, dtype, shape and place, then the
//! numbers, without holes.

use std::io::Read;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::error::short;
use super::tensor_name::NAME_MAX;
use super::{Dtype, Fault};

/// Longest header that is read: that of an adapter with 200 tensors is 40 kB.
pub const HEADER_MAX: u64 = 1 << 24;

/// Most sides of a shape.
pub(super) const SIDES_MAX: usize = 8;

/// Bytes of the length before the header.
const LENGTH: u64 = 8;

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Type of its numbers.
    pub dtype: Dtype,
    /// Its shape; empty for a single number.
    pub shape: Vec<u64>,
    /// Where in the file its first byte is.
    pub begin: u64,
    /// How many numbers it has.
    pub elements: u64,
}

impl Tensor {
    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.elements * self.dtype.size() as u64
    }
}

/// What a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// In the order of their places.
    pub tensors: Vec<Tensor>,
    /// The header as it is in the file, its length included.
    pub bytes: Vec<u8>,
}

/// A fault, and in which tensor.
type Found = (Option<String>, Fault);

impl Header {
    /// Reads the header of a file of `length` bytes, and nothing behind it. Of what it says everything holds: tensors have
    /// names of their own, are as long as their shapes, lie one after the other, and end where the file does.
    ///
    /// # Errors
    /// What is wrong, and in which tensor.
    pub fn read(mut file: impl Read, length: u64) -> Result<Self, Found> {
        let mut first = [0; LENGTH as usize];
        if length < LENGTH {
            return Err((None, Fault::Truncated { needed: LENGTH, got: length }));
        }
        file.read_exact(&mut first).map_err(|error| (None, error.into()))?;
        let text = u64::from_le_bytes(first);
        if text > HEADER_MAX {
            return Err((None, Fault::HeaderTooLong { length: text }));
        }
        let data = length.checked_sub(LENGTH + text);
        let data = data.ok_or((None, Fault::Truncated { needed: LENGTH + text, got: length }))?;
        let mut bytes = first.to_vec();
        file.take(text).read_to_end(&mut bytes).map_err(|error| (None, error.into()))?;
        let got = bytes.len() as u64;
        if got != LENGTH + text {
            return Err((None, Fault::Truncated { needed: LENGTH + text, got }));
        }
        let entries = entries(bytes.get(LENGTH as usize..).unwrap_or_default())?;
        Ok(Self { tensors: placed(entries, got, data)?, bytes })
    }
}

/// What the header says of one tensor.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

fn entries(text: &[u8]) -> Result<Vec<(String, Entry)>, Found> {
    // From a text: what the reader skips is checked as well.
    let text = std::str::from_utf8(text).map_err(|error| (None, serde_json::Error::custom(error).into()))?;
    let mut json = serde_json::Deserializer::from_str(text);
    let (mut found, mut current) = (Vec::new(), None);
    let read = Entries { found: &mut found, current: &mut current }.deserialize(&mut json);
    // What comes after the last tensor is not in it.
    let read = read.inspect(|()| current = None).and_then(|()| json.end());
    match read {
        Ok(()) => Ok(found),
        Err(error) => Err((current, error.into())),
    }
}

/// A map that keeps what is in it twice, and says where it was when something was wrong.
struct Entries<'a> {
    found: &'a mut Vec<(String, Entry)>,
    current: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let mut about = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut about, true) {
                    return Err(M::Error::custom("__metadata__ is there twice"));
                }
                map.next_value::<std::collections::BTreeMap<String, Words>>()?;
                continue;
            }
            if name.len() > NAME_MAX {
                let length = name.len();
                return Err(M::Error::custom(format!(
                    "a name of {length} bytes, at most {NAME_MAX} are read"
                )));
            }
            *self.current = Some(name.clone());
            let entry = map.next_value()?;
            self.found.push((name, entry));
            *self.current = None;
        }
        Ok(())
    }
}

/// Text that nobody needs.
struct Words;

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <std::borrow::Cow<'de, str>>::deserialize(deserializer).map(|_| Self)
    }
}

/// Tensors in the order of their places, for data that begins at `start` and has `length` bytes.
fn placed(entries: Vec<(String, Entry)>, start: u64, length: u64) -> Result<Vec<Tensor>, Found> {
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let Entry { dtype, shape, data_offsets: (begin, end) } = entry;
        match sized(&dtype, shape, begin, end) {
            Ok((dtype, shape, elements)) => {
                tensors.push((end, Tensor { name, dtype, shape, begin, elements }));
            }
            Err(fault) => return Err((Some(name), fault)),
        }
    }
    // Tensors without elements lie anywhere between others.
    tensors.sort_by(|(left_end, left), (right_end, right)| {
        (left.begin, left_end, &left.name).cmp(&(right.begin, right_end, &right.name))
    });
    let mut names: Vec<&str> = tensors.iter().map(|(_, tensor)| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err((Some(twice[0].to_owned()), Fault::DuplicateName));
    }
    let mut expected = 0;
    for (end, tensor) in &tensors {
        if tensor.begin != expected {
            let fault = Fault::NotAdjacent { begin: tensor.begin, end: expected };
            return Err((Some(tensor.name.clone()), fault));
        }
        expected = *end;
    }
    if expected != length {
        return Err((None, Fault::DataLength { found: length, expected }));
    }
    Ok(tensors.into_iter().map(|(_, tensor)| Tensor { begin: start + tensor.begin, ..tensor }).collect())
}

fn sized(dtype: &str, shape: Vec<u64>, begin: u64, end: u64) -> Result<(Dtype, Vec<u64>, u64), Fault> {
    let dtype = Dtype::from_name(dtype)
        .ok_or_else(|| Fault::UnknownDtype { found: short(&dtype.escape_debug().to_string()) })?;
    if shape.len() > SIDES_MAX {
        return Err(Fault::TooManyDimensions { sides: shape.len() });
    }
    let elements = shape.iter().try_fold(1_u64, |product, side| product.checked_mul(*side));
    let size = elements.and_then(|elements| Some((elements, elements.checked_mul(dtype.size() as u64)?)));
    let Some((elements, bytes)) = size else { return Err(Fault::Overflow { shape }) };
    if end.checked_sub(begin) != Some(bytes) {
        return Err(Fault::SizeMismatch { begin, end, shape, dtype, bytes });
    }
    Ok((dtype, shape, elements))
}
