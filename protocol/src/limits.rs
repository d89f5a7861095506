//! Every number that bounds memory or time on the wire, with its reason.

/// Version of the wire described by `SPEC.md`. A server refuses any other with a typed reason.
pub const WIRE_VERSION: u16 = 2;

/// CRC-32C over the golden messages of this version (message and body without the frame, in the order of
/// their file names in `vectors/`; `to_server_hello` excepted, since it holds this number). A test computes
/// it anew, so a change of any message that forgets this constant fails.
pub const SCHEMA_HASH: u32 = 0x5d7c_7a53;

/// Smallest frame limit a device may ask for, in bytes of the decoded frame: hello fits.
pub const FRAME_LIMIT_MIN: usize = 128;

/// Frame limit where a device does not say otherwise: a (20, 2) representation fits one frame.
pub const FRAME_LIMIT_DEFAULT: usize = 256;

/// Largest frame limit a device may ask for: a network of a million weights comes in [`CHUNKS_MAX`] chunks.
pub const FRAME_LIMIT_MAX: usize = 16_384;

/// Bytes before the message in a decoded frame: the header.
pub const HEADER: usize = 1;

/// Bytes after the message in a decoded frame: CRC-32C, little endian.
pub const CHECK: usize = 4;

/// Bytes of a sealed frame that a plain one has not, its check aside: an 8-byte counter and a 16-byte tag. Sizes are
/// chosen as if every frame were sealed.
pub const SEAL_MAX: usize = 24;

/// Bytes that a decoded frame must leave free beside a chunk's body: header, message tag, round,
/// stage, tensor index, offset (all varints at their longest), and [`SEAL_MAX`].
pub const CHUNK_OVERHEAD: usize = HEADER + 1 + 5 + 3 + 1 + 5 + SEAL_MAX;

/// Tensors that one round may carry in one direction: the layers of LeNet-5.
pub const TENSORS_MAX: usize = 5;

/// Hidden layers of a network, at most.
pub const HIDDEN_MAX: usize = 3;

/// Layers of filters before them, at most.
pub const FILTERS_MAX: usize = 2;

/// Hidden layers after filters, at most: with these and a head there are [`TENSORS_MAX`] layers.
pub const HIDDEN_AFTER_FILTERS_MAX: usize = TENSORS_MAX - FILTERS_MAX - 1;

/// Bits of [`Capabilities::tasks`](crate::message::Capabilities::tasks), and task numbers, that no version of this wire
/// gives a meaning: a fleet's own tasks.
pub const PRIVATE_TASKS: u16 = 0xF000;

/// Ridges of one [`Task::RidgeScores`](crate::message::Task::RidgeScores), at most.
pub const RIDGES_MAX: usize = 32;

/// Draws of labelled samples in a [`Task::RidgeScores`](crate::message::Task::RidgeScores). Eight leave less noise in a
/// device's scores than devices differ by.
pub const RIDGE_DRAWS: u32 = 8;

/// Samples that [`Task::RidgeScores`](crate::message::Task::RidgeScores) looks at, at most: counts over all draws stay whole
/// numbers in binary32.
pub const RIDGE_SAMPLES_MAX: u32 = ((1 << 24) - 1) / RIDGE_DRAWS;

/// Chunks that one tensor may be cut into. Bounds the receiver's record of what has come (32 bytes).
pub const CHUNKS_MAX: usize = 256;

/// Chunk numbers that one `Missing` message may name.
pub const MISSING_MAX: usize = 16;

/// Largest frame that is read from a peer that has not been welcomed yet.
pub const HELLO_FRAME_MAX: usize = 128;

/// Most bytes that COBS adds to a frame of `n` bytes, the delimiter included.
#[must_use]
pub const fn cobs_overhead(n: usize) -> usize {
    n.div_ceil(254) + 1
}

/// Bytes of the buffer that holds any encoded frame under the limit `frame_limit`.
#[must_use]
pub const fn wire_capacity(frame_limit: usize) -> usize {
    frame_limit.saturating_add(cobs_overhead(frame_limit))
}

/// Bytes of the longest `RoundOpen` or `Update` head without its descriptors: tag, round, stage, and the
/// longest task (or the sample counts), and the number of descriptors.
pub const OPEN_HEAD_MAX: usize = 1 + 5 + 3 + 25 + 1;

/// Bytes of the longest descriptor.
pub const DESCRIPTOR_MAX: usize = 1 + 1 + 3 + 3 + 3;

/// Epochs of a network's head that stand for "until the training loss stops falling": after every [`PLATEAU_INTERVAL`] epochs the
/// mean loss of the last is compared with that of the last before; where it has not fallen by a [`PLATEAU_DIVISOR`]th of it, that
/// was all, and after [`PLATEAU_EPOCHS_MAX`] epochs it is.
pub const UNTIL_PLATEAU: u16 = u16::MAX;

/// Epochs between two looks at the loss.
pub const PLATEAU_INTERVAL: u16 = 10;

/// The part of the loss that it is to fall by from one look to the next.
pub const PLATEAU_DIVISOR: u16 = 100;

/// Most epochs of a head whose loss does not stop falling.
pub const PLATEAU_EPOCHS_MAX: u16 = 500;
