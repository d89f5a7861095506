//! Memory that a client needs.

use ::fedspan_client::Shape;
use ::fedspan_client::memory::SliceMemory;

use crate::client::Client;
use crate::config::fedspan_config;
use crate::platform::{RECORD_FIELDS, Shared};

/// Bytes of a client without its model and its buffers: an upper bound for processors of 32 and 64 bits.
pub const FEDSPAN_CLIENT_SIZE: usize = if size_of::<usize>() == 4 { 1312 } else { 1600 };

/// Bytes of the client; what its parts share follows.
pub const CLIENT_SIZE: usize = FEDSPAN_CLIENT_SIZE - size_of::<Shared>().next_multiple_of(8);

const _: () =
    assert!(size_of::<Client>() <= CLIENT_SIZE && align_of::<Client>() <= 8 && CLIENT_SIZE.is_multiple_of(8));

/// Returns the bytes of a model, saturating: the largest sizes overflow a processor of 32 bits.
fn model_size(shape: Shape) -> usize {
    SliceMemory::values(shape).saturating_mul(size_of::<f32>())
}

/// Returns the bytes of a record.
pub fn record_size(shape: Shape) -> usize {
    RECORD_FIELDS + size_of::<f32>() * shape.width * shape.outputs
}

/// Returns the bytes of memory that a client with these settings needs; 0 if the settings are NULL or their sizes are not allowed.
/// The macro `FEDSPAN_MEMORY_SIZE` is never less.
///
/// # Safety
/// `config` is NULL, or points to settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_memory_size(config: *const fedspan_config) -> usize {
    // SAFETY: the caller guarantees settings.
    match unsafe { config.as_ref() } {
        Some(config) if config.is_allowed() => {
            let (shape, session) = (config.shape(), config.session());
            let buffers = usize::from(session.frame_limit) + session.transmit_capacity();
            model_size(shape).saturating_add(FEDSPAN_CLIENT_SIZE + buffers + record_size(shape))
        }
        _ => 0,
    }
}
