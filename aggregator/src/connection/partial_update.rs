//! Update whose chunks are arriving.

use fedspan_protocol::assembly::Assembly;
use fedspan_protocol::message::{RoundId, Update as UpdateHead};

use fedspan_engine::Tensor;

/// Update whose chunks are arriving.
#[derive(Debug)]
pub(super) struct PartialUpdate {
    pub(super) head: UpdateHead,
    pub(super) assembly: Assembly,
    pub(super) tensors: Vec<Tensor>,
    /// Chunks received, without duplicates.
    pub(super) chunks: u32,
}

impl PartialUpdate {
    /// Returns its heap bytes, most of which the finished update keeps.
    pub(super) fn memory(&self) -> usize {
        let values: usize = self.tensors.iter().map(|tensor| tensor.values.capacity()).sum();
        self.tensors.capacity() * size_of::<Tensor>() + values * size_of::<f32>()
    }
}

/// Discards an unfinished update, and remembers its round as chunks may still arrive.
pub(super) fn discard_partial(partial: &mut Option<PartialUpdate>, last_update: &mut Option<RoundId>) {
    if let Some(update) = partial.take() {
        *last_update = Some(update.head.id);
    }
}
