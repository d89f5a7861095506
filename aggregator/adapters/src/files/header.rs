//! Parser of safetensors headers: eight bytes of length, then JSON with name, dtype, shape and offsets of
//! every tensor. The data of the tensors follow the header without gaps.

use std::io::Read;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::error::shortened;
use super::limits::{DIMENSIONS_MAX, HEADER_MAX, NAME_MAX};
use super::{Dtype, Fault, LocatedFault};

/// Size of the length field before the JSON, in bytes.
const LENGTH_FIELD: u64 = 8;

/// Tensor of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name of the tensor.
    pub name: String,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Offset of the first byte in the file.
    pub begin: u64,
    /// Number of elements.
    pub elements: u64,
}

impl Tensor {
    /// Length of the data, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.elements * self.dtype.size() as u64
    }
}

/// Validated header of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tensors in the order of their offsets.
    pub tensors: Vec<Tensor>,
    /// Bytes of the header as they are in the file, including the length field.
    pub bytes: Vec<u8>,
}

impl Header {
    /// Reads and validates the header of a file of `length` bytes. Names must be unique. The data of every
    /// tensor must have the size of its shape, and the data of all tensors must be adjacent and end with the
    /// file. No bytes after the header are read.
    ///
    /// # Errors
    /// [`LocatedFault`] with the tensor whose entry is invalid, if there is one.
    pub fn read(file: impl Read, length: u64) -> Result<Self, LocatedFault> {
        Self::read_within(file, length, HEADER_MAX)
    }

    /// Reads a header as [`Self::read`] does, of at most `allowed` bytes.
    ///
    /// # Errors
    /// [`LocatedFault`] as for [`Self::read`].
    pub fn read_within(mut file: impl Read, length: u64, allowed: u64) -> Result<Self, LocatedFault> {
        let mut length_field = [0; LENGTH_FIELD as usize];
        if length < LENGTH_FIELD {
            return Err((None, Fault::Truncated { needed: LENGTH_FIELD, got: length }));
        }
        file.read_exact(&mut length_field).map_err(|error| (None, error.into()))?;
        let json_length = u64::from_le_bytes(length_field);
        if json_length > allowed {
            return Err((None, Fault::HeaderTooLong { length: json_length, allowed }));
        }
        let data_length = length.checked_sub(LENGTH_FIELD + json_length);
        let data_length = data_length
            .ok_or((None, Fault::Truncated { needed: LENGTH_FIELD + json_length, got: length }))?;
        let mut bytes = length_field.to_vec();
        file.take(json_length).read_to_end(&mut bytes).map_err(|error| (None, error.into()))?;
        let got = bytes.len() as u64;
        if got != LENGTH_FIELD + json_length {
            return Err((None, Fault::Truncated { needed: LENGTH_FIELD + json_length, got }));
        }
        let entries = parse_entries(bytes.get(LENGTH_FIELD as usize..).unwrap_or_default())?;
        Ok(Self { tensors: validate_entries(entries, got, data_length)?, bytes })
    }
}

/// JSON value of one tensor.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
    /// Other keys, which have no meaning. Their values are read, not skipped, so that numbers which are no f64 are refused
    /// here as elsewhere.
    #[serde(flatten)]
    _others: std::collections::BTreeMap<String, serde_json::Value>,
}

/// Parses the JSON of a header into names and entries, in the order of the file.
fn parse_entries(text: &[u8]) -> Result<Vec<(String, Entry)>, LocatedFault> {
    // Parsing a `str` ensures that the parts which serde_json skips are valid UTF-8.
    let text = std::str::from_utf8(text).map_err(|error| (None, serde_json::Error::custom(error).into()))?;
    let mut json = serde_json::Deserializer::from_str(text);
    let mut entries = Vec::new();
    let mut current = None;
    let result = Entries { entries: &mut entries, current: &mut current }.deserialize(&mut json);
    // An error after the last tensor is not attributed to a tensor.
    let result = result.inspect(|()| current = None).and_then(|()| json.end());
    match result {
        Ok(()) => Ok(entries),
        Err(error) => Err((current, error.into())),
    }
}

/// Deserializer of a map. Keeps duplicate names, and stores the name of the current tensor for errors.
struct Entries<'a> {
    entries: &'a mut Vec<(String, Entry)>,
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
        let mut has_metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut has_metadata, true) {
                    return Err(M::Error::custom("the header has __metadata__ twice"));
                }
                map.next_value::<std::collections::BTreeMap<String, IgnoredText>>()?;
                continue;
            }
            if name.len() > NAME_MAX {
                let length = name.len();
                return Err(M::Error::custom(format!(
                    "found a name of {length} bytes, allowed: at most {NAME_MAX}"
                )));
            }
            *self.current = Some(name.clone());
            let entry = map.next_value()?;
            self.entries.push((name, entry));
            *self.current = None;
        }
        Ok(())
    }
}

/// String that is checked and discarded.
struct IgnoredText;

impl<'de> Deserialize<'de> for IgnoredText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <std::borrow::Cow<'de, str>>::deserialize(deserializer).map(|_| Self)
    }
}

/// Validates the entries against data that begin at offset `start` and have `length` bytes. Returns the
/// tensors in the order of their offsets.
fn validate_entries(
    entries: Vec<(String, Entry)>,
    start: u64,
    length: u64,
) -> Result<Vec<Tensor>, LocatedFault> {
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let Entry { dtype, shape, data_offsets: (begin, end), .. } = entry;
        match validate_size(&dtype, shape, begin, end) {
            Ok((dtype, shape, elements)) => {
                tensors.push((end, Tensor { name, dtype, shape, begin, elements }));
            }
            Err(fault) => return Err((Some(name), fault)),
        }
    }
    // Tensors are sorted by their beginning. An empty tensor begins where another tensor begins, so the end
    // decides the order.
    tensors.sort_by(|(left_end, left), (right_end, right)| {
        (left.begin, left_end, &left.name).cmp(&(right.begin, right_end, &right.name))
    });
    let mut names: Vec<&str> = tensors.iter().map(|(_, tensor)| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some(duplicate) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err((Some(duplicate[0].to_owned()), Fault::DuplicateName));
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

/// Checks that dtype, shape and data offsets agree. Returns dtype, shape and number of elements.
fn validate_size(
    dtype: &str,
    shape: Vec<u64>,
    begin: u64,
    end: u64,
) -> Result<(Dtype, Vec<u64>, u64), Fault> {
    let dtype = Dtype::from_name(dtype)
        .ok_or_else(|| Fault::UnknownDtype { found: shortened(&dtype.escape_debug().to_string()) })?;
    if shape.len() > DIMENSIONS_MAX {
        return Err(Fault::TooManyDimensions { dimensions: shape.len() });
    }
    let elements = shape.iter().try_fold(1_u64, |product, side| product.checked_mul(*side));
    let size = elements.and_then(|elements| Some((elements, elements.checked_mul(dtype.size() as u64)?)));
    let Some((elements, bytes)) = size else { return Err(Fault::Overflow { shape }) };
    if end.checked_sub(begin) != Some(bytes) {
        return Err(Fault::SizeMismatch { begin, end, shape, dtype, bytes });
    }
    Ok((dtype, shape, elements))
}
