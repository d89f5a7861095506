//! Numbers in a partition, and the frame that every format there has.

use fedspan_protocol::frame::crc32c;

use super::Problem;

/// What every format here begins and ends with: magic, version, and at offset 8 the length of all that is
/// checked, which is returned; a CRC-32C behind it.
pub(super) fn check_whole<'a>(
    partition: &'a [u8],
    header: usize,
    magic: &[u8; 4],
    version: u16,
) -> Result<&'a [u8], Problem> {
    let got = partition.len();
    let head = partition.get(..header).ok_or(Problem::Length { needed: header, got })?;
    if head.iter().all(|&b| b == 0) || head.iter().all(|&b| b == 0xff) {
        return Err(Problem::Blank);
    }
    if head.get(..4) != Some(magic.as_slice()) {
        return Err(Problem::Magic);
    }
    let found = u16_at(head, 4);
    if found != version {
        return Err(Problem::Version(found));
    }
    let length = usize::try_from(u32_at(head, 8)).unwrap_or(usize::MAX);
    let needed = length.saturating_add(4);
    let whole = partition.get(..needed).ok_or(Problem::Length { needed, got })?;
    let (checked, check) = whole.split_at_checked(length).ok_or(Problem::Check)?;
    if crc32c(checked).to_le_bytes() == check { Ok(checked) } else { Err(Problem::Check) }
}

/// `N` bytes, zeros where there are none.
pub(super) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes.get(at..).unwrap_or_default()))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes.get(at..).unwrap_or_default()))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes.get(at..).unwrap_or_default()))
}
