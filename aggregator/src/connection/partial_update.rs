//! Assembly of an update that a device sends in chunks.

use fedspan_protocol::assembly::Assembly;
use fedspan_protocol::message::{RoundId, Update as UpdateHead};

use fedspan_engine::Tensor;

/// Update whose chunks are arriving.
#[derive(Debug)]
pub(super) struct PartialUpdate {
    /// First message of the update, which lists the tensors.
    pub(super) head: UpdateHead,
    /// Record of the chunks that have arrived.
    pub(super) assembly: Assembly,
    /// Decoded values; zero where chunks are missing.
    pub(super) tensors: Vec<Tensor>,
    /// Number of distinct chunks received.
    pub(super) chunks: u32,
}

impl PartialUpdate {
    /// Returns the size of the heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        let values: usize = self.tensors.iter().map(|tensor| tensor.values.capacity()).sum();
        self.tensors.capacity() * size_of::<Tensor>() + values * size_of::<f32>()
    }
}

/// Discards an unfinished update and stores its round in `last_update`, because further chunks may arrive.
pub(super) fn discard_partial(partial: &mut Option<PartialUpdate>, last_update: &mut Option<RoundId>) {
    if let Some(update) = partial.take() {
        *last_update = Some(update.head.id);
    }
}
