//! Readers of little-endian fields, and of the envelope that all partition formats share.

use fedspan_protocol::frame::crc32c;

use super::FormatError;

/// Checks the envelope that all formats share: magic, version, the length of the checked bytes at offset 8,
/// and the CRC-32C that follows the checked bytes. Returns the checked bytes.
///
/// # Errors
/// [`FormatError::Blank`], [`Magic`](FormatError::Magic), [`Version`](FormatError::Version),
/// [`Length`](FormatError::Length) and [`Check`](FormatError::Check), in this order of precedence, except
/// that a partition shorter than the header is always a `Length` error.
pub(super) fn verify_envelope<'a>(
    partition: &'a [u8],
    header: usize,
    magic: &[u8; 4],
    version: u16,
) -> Result<&'a [u8], FormatError> {
    let partition_length = partition.len();
    let head =
        partition.get(..header).ok_or(FormatError::Length { needed: header, got: partition_length })?;
    if head.iter().all(|&b| b == 0) || head.iter().all(|&b| b == 0xff) {
        return Err(FormatError::Blank);
    }
    if head.get(..4) != Some(magic.as_slice()) {
        return Err(FormatError::Magic);
    }
    let found_version = u16_at(head, 4);
    if found_version != version {
        return Err(FormatError::Version(found_version));
    }
    let length = usize::try_from(u32_at(head, 8)).unwrap_or(usize::MAX);
    let needed = length.saturating_add(4);
    let envelope = partition.get(..needed).ok_or(FormatError::Length { needed, got: partition_length })?;
    let (checked, check) = envelope.split_at_checked(length).ok_or(FormatError::Check)?;
    if crc32c(checked).to_le_bytes() == check { Ok(checked) } else { Err(FormatError::Check) }
}

/// Returns the first `N` bytes, or zeros if the slice is shorter.
pub(super) fn leading_bytes<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}

/// Reads a u16 at `offset`; bytes beyond the end count as zeros.
pub(super) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(leading_bytes(bytes.get(offset..).unwrap_or_default()))
}

/// Reads a u32 at `offset`; bytes beyond the end count as zeros.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(leading_bytes(bytes.get(offset..).unwrap_or_default()))
}

/// Reads a u64 at `offset`; bytes beyond the end count as zeros.
pub(super) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(leading_bytes(bytes.get(offset..).unwrap_or_default()))
}
