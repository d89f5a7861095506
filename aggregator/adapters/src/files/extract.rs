//! Functions for partial adapters: merging the tensors of a client into a copy of the base, and extracting
//! the tensors that a round trained. Files are processed block by block, so the memory does not grow with
//! their length.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::agreement::ConfigSet;
use super::dtype::{differing, not_finite};
use super::inputs::tensor_blocks;
use super::limits::{HEADER_MAX, HEADER_ROOM};
use super::source::InputFile;
use super::{AdapterError, AdapterTensor, Dtype, Fault, Layout, MergeRule, RoundKind, compare};

/// Length of a block, in bytes; a multiple of 8, so that no number is split.
const BLOCK: usize = 1 << 18;

/// Reads and validates the header of an adapter and its configuration. Returns the layout and the length of
/// the file in bytes.
///
/// # Errors
/// [`AdapterError::File`] if the file is not an adapter, or its configuration is invalid or contradicts the
/// ranks of its factors.
pub fn read_layout(path: &Path) -> Result<(Layout, u64), AdapterError> {
    let (source, header) = InputFile::open(path, true)?;
    let layout = Layout::from_header(&header).map_err(|fault| AdapterError::located(&source.path, fault))?;
    ConfigSet::default().check(&source.path, &layout)?;
    let length = header.bytes.len() as u64 + layout.bytes();
    Ok((layout, length))
}

/// Writes a copy of the base with the tensors of a client to `target`, a new file, and syncs it. The client's
/// file may lack the factors that the round freezes. Frozen factors in the file must equal those of the base
/// bit by bit. Tensors of dtypes that have no mean must also equal those of the base, so that no two clients
/// differ in them. Returns the state of SHA-256 after the bytes that were to be written, with which the file can be
/// verified.
///
/// # Errors
/// [`AdapterError::File`] for the first tensor, in the order of the base, that does not fit the base or is
/// not finite; [`AdapterError::Output`] if `target` cannot be written. After an error `target` is incomplete
/// or missing.
pub fn merge_update(
    base: &Path,
    client: &Path,
    kind: RoundKind,
    target: &Path,
) -> Result<Sha256, AdapterError> {
    let (base, header) = InputFile::open(base, true)?;
    let layout = Layout::from_header(&header).map_err(|fault| AdapterError::located(&base.path, fault))?;
    // The memory for a header grows with its length, and the file is a request body.
    let header_max = (header.bytes.len() as u64).saturating_add(HEADER_ROOM).min(HEADER_MAX);
    let (client, client_header) = InputFile::open_within(client, true, header_max)?;
    let offsets = compare::optional_offsets(&layout, &client_header, &base.path, |role| kind.freezes(role))
        .map_err(|fault| AdapterError::located(&client.path, fault))?;
    let file = create_new(target)?;
    let output_error = |error| AdapterError::Output { file: target.to_owned(), error };
    let mut hasher = Sha256::new_with_prefix(&header.bytes);
    file.write_all_at(&header.bytes, 0).map_err(output_error)?;
    let mut bytes = Vec::new();
    let mut original = Vec::new();
    for ((entry, client_offset), base_offset) in layout.tensors.iter().zip(offsets).zip(&*base.offsets) {
        let is_frozen = kind.freezes(entry.role);
        for (begin, length) in blocks(entry) {
            bytes.resize(length, 0);
            match client_offset {
                Some(offset) => client.read(&mut bytes, offset + begin)?,
                None => base.read(&mut bytes, base_offset + begin)?,
            }
            let dtype = entry.tensor.dtype;
            if client_offset.is_some() && (is_frozen || dtype.rule() == MergeRule::Equal) {
                original.resize(length, 0);
                base.read(&mut original, base_offset + begin)?;
                if let Some(in_block) = differing(dtype, &bytes, &original) {
                    let index = begin / dtype.size() as u64 + in_block as u64;
                    let fault = if is_frozen {
                        Fault::FrozenFactorChanged { role: entry.role, index, base: base.path.clone() }
                    } else {
                        values_differ(dtype, index, in_block, &bytes, &original, &base.path)
                    };
                    return Err(AdapterError::tensor(&client.path, &entry.tensor.name, fault));
                }
            }
            check_finite(entry, begin, &bytes)
                .map_err(|fault| AdapterError::tensor(&client.path, &entry.tensor.name, fault))?;
            // The tensors of the base are in the order of the file.
            hasher.update(&bytes);
            file.write_all_at(&bytes, base_offset + begin).map_err(output_error)?;
        }
    }
    client.ensure_unchanged()?;
    base.ensure_unchanged()?;
    file.sync_all().map_err(output_error)?;
    Ok(hasher)
}

/// States of SHA-256 after the two files of [`extract_trained`].
#[derive(Clone, Debug)]
pub struct ExtractHashes {
    /// After the bytes of the adapter that were read: all of them.
    pub adapter: Sha256,
    /// After the bytes that were to be written.
    pub written: Sha256,
}

/// Writes the tensors of an adapter that a round does not freeze to `target`, a new file, and syncs it. Reads the whole
/// adapter, so that its hash can be compared with the recorded one.
///
/// # Errors
/// [`AdapterError::File`] if the file is not an adapter or cannot be read, [`AdapterError::Output`] if
/// `target` cannot be written.
pub fn extract_trained(
    adapter: &Path,
    kind: RoundKind,
    target: &Path,
) -> Result<ExtractHashes, AdapterError> {
    let (source, header) = InputFile::open(adapter, true)?;
    let layout = Layout::from_header(&header).map_err(|fault| AdapterError::located(&source.path, fault))?;
    let is_trained = |entry: &&AdapterTensor| !kind.freezes(entry.role);
    let mut file = create_new(target)?;
    let output_error = |error| AdapterError::Output { file: target.to_owned(), error };
    let trained_header = encode_header(layout.tensors.iter().filter(is_trained));
    let mut hashes = ExtractHashes {
        adapter: Sha256::new_with_prefix(&header.bytes),
        written: Sha256::new_with_prefix(&trained_header),
    };
    file.write_all(&trained_header).map_err(output_error)?;
    let mut bytes = Vec::new();
    for (entry, offset) in layout.tensors.iter().zip(&*source.offsets) {
        for (begin, length) in blocks(entry) {
            bytes.resize(length, 0);
            source.read(&mut bytes, offset + begin)?;
            hashes.adapter.update(&bytes);
            if is_trained(&entry) {
                hashes.written.update(&bytes);
                file.write_all(&bytes).map_err(output_error)?;
            }
        }
    }
    source.ensure_unchanged()?;
    file.sync_all().map_err(output_error)?;
    Ok(hashes)
}

/// Header of a file with these tensors.
fn encode_header<'a>(entries: impl Iterator<Item = &'a AdapterTensor>) -> Vec<u8> {
    let mut json = r#"{"__metadata__":{"format":"pt"}"#.to_owned();
    let mut begin = 0;
    for AdapterTensor { tensor, .. } in entries {
        let end = begin + tensor.bytes();
        let name = serde_json::Value::from(tensor.name.as_str());
        let entry = serde_json::json!({
            "dtype": tensor.dtype.to_string(), "shape": tensor.shape, "data_offsets": [begin, end],
        });
        json += &format!(",{name}:{entry}");
        begin = end;
    }
    json.push('}');
    // Padding aligns the data to 8 bytes.
    while !json.len().is_multiple_of(8) {
        json.push(' ');
    }
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend_from_slice(json.as_bytes());
    header
}

/// Offset and length of every block of a tensor.
fn blocks(entry: &AdapterTensor) -> impl Iterator<Item = (u64, usize)> + use<> {
    tensor_blocks(entry.tensor.bytes(), BLOCK)
}

/// Fault for two blocks that differ in one element: element `in_block` of the block, which is element `index`
/// of the tensor.
pub(super) fn values_differ(
    dtype: Dtype,
    index: u64,
    in_block: usize,
    found_block: &[u8],
    expected_block: &[u8],
    other_file: &Path,
) -> Fault {
    let format_element =
        |bytes: &[u8]| dtype.format(bytes.chunks(dtype.size()).nth(in_block).unwrap_or_default());
    Fault::ValuesDiffer {
        index,
        dtype,
        found: format_element(found_block),
        expected: format_element(expected_block),
        other: other_file.to_owned(),
    }
}

/// Checks that all values of a block are finite. `begin` is the offset of the block in the tensor, in bytes.
fn check_finite(entry: &AdapterTensor, begin: u64, bytes: &[u8]) -> Result<(), Fault> {
    let (dtype, size) = (entry.tensor.dtype, entry.tensor.dtype.size());
    match not_finite(dtype, bytes) {
        Some((index, value)) => Err(Fault::NotFinite { index: begin / size as u64 + index as u64, value }),
        None => Ok(()),
    }
}

/// Creates a file that must not exist.
fn create_new(target: &Path) -> Result<File, AdapterError> {
    let opened = OpenOptions::new().write(true).create_new(true).open(target);
    opened.map_err(|error| AdapterError::Output { file: target.to_owned(), error })
}
