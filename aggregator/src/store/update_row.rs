//! Rows of updates: the updates that one transaction counts, encoded one after another and encrypted together.
//! For small updates, a row each would cost the database several times as much.
//!
//! The key of a row is (round, stage, device of the first update). Its content, before it is encrypted, is the
//! first update in postcard format, and then the device and the update for each further one.

use fedspan_protocol::message::RoundId;
use redb::Table;
use zeroize::Zeroize;

use super::encryption::{NONCE, TAG, UpdateCipher};
use super::error::DatabaseError;
use super::tables::{Bytes, decode_next};
use super::write::encoding_error;
use fedspan_engine::{CountedUpdate, DeviceId};

/// Longest row of several updates, in bytes. With key and page header it fits into sixteen pages of the
/// database, which allocates pages in powers of two.
const ROW_MAX: usize = (1 << 16) - 256;

/// Row that is being filled.
#[derive(Default)]
pub(super) struct UpdateRow {
    /// Round and device of the first update; `None` if the row is empty.
    key: Option<(RoundId, DeviceId)>,
    /// Space for the nonce, and the encoded updates.
    bytes: Vec<u8>,
    /// Length of the longest encoded update, in bytes.
    longest: usize,
}

impl UpdateRow {
    /// Returns true if the row is empty, or if it belongs to `round` and has room for one more update of the
    /// same length.
    pub(super) fn has_room(&self, round: RoundId) -> bool {
        let fits = self.bytes.len() + self.longest + TAG <= ROW_MAX;
        self.key.is_none_or(|(row_round, _)| row_round == round && fits)
    }

    /// Appends an update.
    pub(super) fn push(
        &mut self,
        round: RoundId,
        device: DeviceId,
        counted: &CountedUpdate,
    ) -> Result<(), DatabaseError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        let start = bytes.len();
        if self.key.is_none() {
            self.key = Some((round, device));
            bytes.resize(NONCE, 0);
        } else {
            bytes = postcard::to_extend(&device.0, bytes).map_err(encoding_error)?;
        }
        self.bytes = postcard::to_extend(counted, bytes).map_err(encoding_error)?;
        self.longest = self.longest.max(self.bytes.len() - start);
        Ok(())
    }

    /// Encrypts the row, inserts it into the table, and empties it. Does nothing if it is empty.
    pub(super) fn insert(
        &mut self,
        table: &mut Table<'_, (u32, u16, u64), Bytes>,
        cipher: &mut UpdateCipher,
    ) -> Result<(), DatabaseError> {
        let Some((round, device)) = self.key.take() else { return Ok(()) };
        cipher.ensure_key(round)?;
        cipher.seal(round, device, &mut self.bytes)?;
        table.insert((round.round, round.stage, device.0), self.bytes.as_slice())?;
        self.bytes.clear();
        self.longest = 0;
        Ok(())
    }
}

impl Drop for UpdateRow {
    fn drop(&mut self) {
        // A failed write leaves updates that are not encrypted.
        self.bytes.zeroize();
    }
}

/// Decodes the decrypted content of a row, whose key names `device`.
pub(super) fn decode_row(
    mut device: DeviceId,
    mut content: &[u8],
    updates: &mut Vec<(DeviceId, CountedUpdate)>,
) -> Result<(), DatabaseError> {
    loop {
        let (counted, rest) = decode_next("an update", content)?;
        updates.push((device, counted));
        if rest.is_empty() {
            return Ok(());
        }
        let (next_device, rest) = decode_next("a device", rest)?;
        (device, content) = (DeviceId(next_device), rest);
    }
}
