//! Limits of the wire protocol: the numbers that bound memory or time, with their reasons.

/// Version of the wire protocol that `SPEC.md` describes. A server refuses any other version with a typed
/// reason.
pub const WIRE_VERSION: u16 = 2;

/// Schema hash: the CRC-32C over the golden messages of this version (message and body without the frame, in
/// the order of their file names in `vectors/`). Three kinds of golden messages are excluded:
/// `to_server_hello`, which contains this number, the tasks for private use and for learned priors, which not every peer
/// has to support, and messages that a peer may ignore (`to_device_next_round`) or need not know
/// (`to_server_update_gradient_i8_top_k` and `to_device_announced`, for devices that say that they do, and
/// `to_server_report`). A test recomputes the hash, so a change
/// of a message without a new hash fails.
pub const SCHEMA_HASH: u32 = 0xc35a_84d0;

/// Smallest frame limit that a device may request, in bytes of the decoded frame: a hello fits.
pub const FRAME_LIMIT_MIN: usize = 128;

/// Default frame limit, in bytes: a 20 x 2 representation fits one frame.
pub const FRAME_LIMIT_DEFAULT: usize = 256;

/// Largest frame limit that a device may request, in bytes: a network of a million weights fits
/// [`CHUNKS_MAX`] chunks.
pub const FRAME_LIMIT_MAX: usize = 16_384;

/// Length of the header before the message in a decoded frame, in bytes.
pub const HEADER: usize = 1;

/// Length of the check after the message in a decoded frame, in bytes: CRC-32C, little endian.
pub const CHECK: usize = 4;

/// Number of bytes that sealing adds to a frame, in addition to the check: an 8-byte counter and a 16-byte
/// tag. Chunk lengths reserve these bytes for plain frames too.
pub const SEAL_MAX: usize = 24;

/// Number of bytes of a decoded frame that a chunk's body cannot use: header, message tag, round, stage,
/// tensor index and offset (all varints at their longest), and [`SEAL_MAX`].
pub const CHUNK_OVERHEAD: usize = HEADER + 1 + 5 + 3 + 1 + 5 + SEAL_MAX;

/// Maximum number of tensors of a round in one direction: one for each layer of LeNet-5.
pub const TENSORS_MAX: usize = 5;

/// Maximum number of hidden layers of a network.
pub const HIDDEN_MAX: usize = 3;

/// Maximum number of convolutional layers before the hidden layers.
pub const FILTERS_MAX: usize = 2;

/// Maximum number of hidden layers after convolutional layers: including the head there are [`TENSORS_MAX`]
/// layers.
pub const HIDDEN_AFTER_FILTERS_MAX: usize = TENSORS_MAX - FILTERS_MAX - 1;

/// Bits in [`Capabilities::tasks`](crate::message::Capabilities::tasks) of the tasks for private use, 12
/// to 15. No version of the wire protocol defines their meaning.
pub const PRIVATE_TASKS: u32 = 0xF000;

/// Number of parameters of a [`PrivateTask`](crate::message::PrivateTask). With one more parameter the task
/// would be longer than any other task ([`OPEN_HEAD_MAX`]).
pub const PRIVATE_PARAMETERS: usize = 5;

/// Maximum number of ridges of one [`Task::RidgeScores`](crate::message::Task::RidgeScores).
pub const RIDGES_MAX: usize = 32;

/// Maximum number of priors of one [`Task::PriorEvidence`](crate::message::Task::PriorEvidence).
pub const PRIORS_MAX: usize = 32;

/// Number of draws of labelled samples in a [`Task::RidgeScores`](crate::message::Task::RidgeScores). With
/// eight draws the noise in a device's scores is smaller than the differences between devices.
pub const RIDGE_DRAWS: u32 = 8;

/// Maximum number of samples of a [`Task::RidgeScores`](crate::message::Task::RidgeScores). Up to this
/// number, counts over all draws are exact in binary32.
pub const RIDGE_SAMPLES_MAX: u32 = ((1 << 24) - 1) / RIDGE_DRAWS;

/// Maximum total number of chunks of all tensors. This limit bounds the receiver's bitmap of received chunks
/// (32 bytes).
pub const CHUNKS_MAX: usize = 256;

/// Maximum number of chunk numbers in one `Missing` message.
pub const MISSING_MAX: usize = 16;

/// Largest frame that is read from a peer before it is welcomed, in bytes.
pub const HELLO_FRAME_MAX: usize = 128;

/// Maximum number of counters in a report.
pub const REPORT_COUNTERS_MAX: usize = 24;

/// Length of the tag of a beacon, in bytes.
pub const BEACON_TAG: usize = 8;

/// Returns the maximum number of bytes that COBS adds to a frame of `n` bytes, including the delimiter.
#[must_use]
pub const fn cobs_overhead(n: usize) -> usize {
    n.div_ceil(254) + 1
}

/// Returns the size in bytes of a buffer that can hold any encoded frame under the limit `frame_limit`.
#[must_use]
pub const fn wire_capacity(frame_limit: usize) -> usize {
    frame_limit.saturating_add(cobs_overhead(frame_limit))
}

/// Length of the longest `RoundOpen` or `Update` without its descriptors, in bytes: tag, round, stage, the
/// longest task (or the sample counts), and the number of descriptors.
pub const OPEN_HEAD_MAX: usize = 1 + 5 + 3 + 25 + 1;

/// Length of the longest descriptor, in bytes.
pub const DESCRIPTOR_MAX: usize = 1 + 1 + 3 + 3 + 3;

/// Number of head epochs with the special meaning "until the training loss stops decreasing". Every
/// [`PLATEAU_INTERVAL`] epochs the loss of the last epoch is compared with the loss of the previous
/// comparison. Training stops when the loss has decreased by less than one part in [`PLATEAU_DIVISOR`], and
/// after [`PLATEAU_EPOCHS_MAX`] epochs at the latest.
pub const UNTIL_PLATEAU: u16 = u16::MAX;

/// Number of epochs between two comparisons of the loss.
pub const PLATEAU_INTERVAL: u16 = 10;

/// Reciprocal of the smallest relative decrease of the loss between two comparisons that continues training.
pub const PLATEAU_DIVISOR: u16 = 100;

/// Maximum number of epochs of a head whose loss continues to decrease.
pub const PLATEAU_EPOCHS_MAX: u16 = 500;
