//! Reader of the fields of a provisioning record.

/// Returns the next `N` bytes and advances `fields`; `None` if there are fewer bytes.
pub(super) fn take<const N: usize>(fields: &mut &[u8]) -> Option<[u8; N]> {
    let (field, remaining) = fields.split_first_chunk()?;
    *fields = remaining;
    Some(*field)
}
