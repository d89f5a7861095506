//! Parts of adapters: what a client trained put into the base's file, and what a round changed taken out of one. Both go
//! block by block: memory does not depend on the length of files.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::agreement::ConfigSet;
use super::dtype::{differing, not_finite};
use super::source::InputFile;
use super::{AdapterError, AdapterTensor, Dtype, Fault, Layout, MergeRule, RoundKind, compare};

/// Bytes that are read at a time; whole numbers.
const BLOCK: usize = 1 << 18;

/// Looks at an adapter without a client: what it is made of, and how long its file is.
///
/// # Errors
/// What makes it none, or the configuration beside it.
pub fn read_layout(path: &Path) -> Result<(Layout, u64), AdapterError> {
    let (source, header) = InputFile::open(path, true)?;
    let layout = Layout::from_header(&header).map_err(|found| AdapterError::found(&source.path, found))?;
    ConfigSet::default().check(&source.path, &layout)?;
    let length = header.bytes.len() as u64 + layout.bytes();
    Ok((layout, length))
}

/// Writes `to`, a new file: the base's, with the tensors of a client's in it. The client's may leave the factor out that the
/// round freezes; what it has of it must be the base's, bit by bit, and so must tensors of types that are not averaged: no
/// two clients differ in them then. Durable when this returns.
///
/// # Errors
/// What does not fit the base, the first in its order; a number that is not finite; `to` is incomplete then, or not there.
pub fn merge_update(base: &Path, client: &Path, round: RoundKind, to: &Path) -> Result<(), AdapterError> {
    let (base, header) = InputFile::open(base, true)?;
    let layout = Layout::from_header(&header).map_err(|found| AdapterError::found(&base.path, found))?;
    let (client, theirs) = InputFile::open(client, true)?;
    let places = compare::present(&layout, &theirs, &base.path, |role| round.freezes(role))
        .map_err(|found| AdapterError::found(&client.path, found))?;
    let file = new(to)?;
    let failed = |error| AdapterError::Output { file: to.to_owned(), error };
    file.write_all_at(&header.bytes, 0).map_err(failed)?;
    let (mut bytes, mut original) = (Vec::new(), Vec::new());
    for ((slot, place), own) in layout.tensors.iter().zip(places).zip(&*base.places) {
        let frozen = round.freezes(slot.role);
        for (begin, length) in blocks(slot) {
            bytes.resize(length, 0);
            match place {
                Some(place) => client.read(&mut bytes, place + begin)?,
                None => base.read(&mut bytes, own + begin)?,
            }
            let dtype = slot.tensor.dtype;
            if place.is_some() && (frozen || dtype.rule() == MergeRule::Equal) {
                original.resize(length, 0);
                base.read(&mut original, own + begin)?;
                if let Some(place) = differing(dtype, &bytes, &original) {
                    let index = begin / dtype.size() as u64 + place as u64;
                    let fault = if frozen {
                        Fault::FrozenFactorChanged { role: slot.role, index, base: base.path.clone() }
                    } else {
                        disagree(dtype, index, place, &bytes, &original, &base.path)
                    };
                    return Err(AdapterError::tensor(&client.path, &slot.tensor.name, fault));
                }
            }
            finite(slot, begin, &bytes)
                .map_err(|fault| AdapterError::tensor(&client.path, &slot.tensor.name, fault))?;
            file.write_all_at(&bytes, own + begin).map_err(failed)?;
        }
    }
    client.ensure_unchanged()?;
    base.ensure_unchanged()?;
    file.sync_all().map_err(failed)
}

/// Writes `to`, a new file: those tensors of an adapter that a round does not freeze, in their order. Durable when this returns.
///
/// # Errors
/// A file that is no adapter, or cannot be read or written.
pub fn extract_trained(adapter: &Path, round: RoundKind, to: &Path) -> Result<(), AdapterError> {
    let (source, header) = InputFile::open(adapter, true)?;
    let layout = Layout::from_header(&header).map_err(|found| AdapterError::found(&source.path, found))?;
    let kept = || layout.tensors.iter().zip(&*source.places).filter(|(slot, _)| !round.freezes(slot.role));
    let mut file = new(to)?;
    let failed = |error| AdapterError::Output { file: to.to_owned(), error };
    file.write_all(&described(kept().map(|(slot, _)| slot))).map_err(failed)?;
    let mut bytes = Vec::new();
    for (slot, place) in kept() {
        for (begin, length) in blocks(slot) {
            bytes.resize(length, 0);
            source.read(&mut bytes, place + begin)?;
            file.write_all(&bytes).map_err(failed)?;
        }
    }
    source.ensure_unchanged()?;
    file.sync_all().map_err(failed)
}

/// The header of a file of these tensors.
fn described<'a>(slots: impl Iterator<Item = &'a AdapterTensor>) -> Vec<u8> {
    let mut text = r#"{"__metadata__":{"format":"pt"}"#.to_owned();
    let mut begin = 0;
    for AdapterTensor { tensor, .. } in slots {
        let end = begin + tensor.bytes();
        let name = serde_json::Value::from(tensor.name.as_str());
        let about = serde_json::json!({
            "dtype": tensor.dtype.to_string(), "shape": tensor.shape, "data_offsets": [begin, end],
        });
        text += &format!(",{name}:{about}");
        begin = end;
    }
    text.push('}');
    // Numbers begin where a word does.
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend_from_slice(text.as_bytes());
    header
}

/// First byte and length of every block of a tensor.
fn blocks(slot: &AdapterTensor) -> impl Iterator<Item = (u64, usize)> + use<> {
    let bytes = slot.tensor.bytes();
    let length = move |begin| usize::try_from(bytes - begin).map_or(BLOCK, |rest| rest.min(BLOCK));
    (0..bytes).step_by(BLOCK).map(move |begin| (begin, length(begin)))
}

/// Two files differ in a number of a type that is not averaged.
pub(super) fn disagree(
    dtype: Dtype,
    index: u64,
    place: usize,
    own: &[u8],
    others: &[u8],
    other: &Path,
) -> Fault {
    let shown = |bytes: &[u8]| dtype.shown(bytes.chunks(dtype.size()).nth(place).unwrap_or_default());
    Fault::ValuesDiffer { index, dtype, found: shown(own), expected: shown(others), other: other.to_owned() }
}

fn finite(slot: &AdapterTensor, begin: u64, bytes: &[u8]) -> Result<(), Fault> {
    let (dtype, size) = (slot.tensor.dtype, slot.tensor.dtype.size());
    match not_finite(dtype, bytes) {
        Some((index, value)) => Err(Fault::NotFinite { index: begin / size as u64 + index as u64, value }),
        None => Ok(()),
    }
}

fn new(to: &Path) -> Result<File, AdapterError> {
    let opened = OpenOptions::new().write(true).create_new(true).open(to);
    opened.map_err(|error| AdapterError::Output { file: to.to_owned(), error })
}
