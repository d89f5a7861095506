//! Memory that a client needs.

use ::fedspan_client::Shape;
use fedspan_protocol::limits::wire_capacity;

use crate::client::Client;
use crate::config::fedspan_config;
use crate::memory::model_floats;
use crate::platform::RECORD_FIELDS;

/// Bytes of a client without its model and its buffers: an upper bound for processors of 32 and 64 bits.
pub const FEDSPAN_CLIENT_SIZE: usize = if size_of::<usize>() == 4 { 1280 } else { 1536 };

const _: () = assert!(size_of::<Client>() <= FEDSPAN_CLIENT_SIZE && align_of::<Client>() <= 8);

/// Offsets of the parts of a client's memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Start of the model; the client is before it.
    pub model: usize,
    /// Start of the buffer for received frames.
    pub receive: usize,
    /// Start of the buffer for outgoing frames.
    pub transmit: usize,
    /// Start of the memory for a record.
    pub record: usize,
    /// End.
    pub end: usize,
}

impl Layout {
    /// Returns the layout for a model and a frame limit. All sizes are at most 2^16, so that nothing overflows on a processor of
    /// 64 bits; on one of 32 bits a sum that does is larger than any memory.
    pub fn new(shape: Shape, frame_limit: usize) -> Self {
        let model = FEDSPAN_CLIENT_SIZE;
        let head = shape.width.saturating_mul(shape.outputs);
        let receive = model.saturating_add(model_floats(shape).saturating_mul(4));
        let transmit = receive.saturating_add(frame_limit);
        let record = transmit.saturating_add(wire_capacity(frame_limit));
        let end = record.saturating_add(RECORD_FIELDS).saturating_add(head.saturating_mul(4));
        Self { model, receive, transmit, record, end }
    }
}

/// Returns the bytes of memory that a client with these settings needs; 0 if the settings are NULL or their sizes are not allowed.
/// The macro `FEDSPAN_MEMORY_SIZE` is never less.
///
/// # Safety
/// `config` is NULL, or points to settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fedspan_memory_size(config: *const fedspan_config) -> usize {
    // SAFETY: the caller guarantees settings.
    let Some(config) = (unsafe { config.as_ref() }) else { return 0 };
    match (config.shape(), config.session()) {
        (Some(shape), Some(session)) => Layout::new(shape, usize::from(session.frame_limit)).end,
        _ => 0,
    }
}
