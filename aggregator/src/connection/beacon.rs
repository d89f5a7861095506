//! Beacons: one frame with a checksum that opens a round on many devices. Each device also gets an announcement that is sealed for
//! it, with a tag of the beacon.

use fedspan_engine::RoundBroadcast;
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::limits::{CHECK, FRAME_LIMIT_MAX, HEADER, wire_capacity};
use fedspan_protocol::message::{Descriptors, RoundOpen, ToDevice};

/// Encodes the beacon of a round, as on a stream. Returns `None` if it is longer than the longest frame.
#[must_use]
pub fn beacon(round: &RoundBroadcast) -> Option<Vec<u8>> {
    let tensors: Descriptors =
        round.request.tensors.iter().map(|t| t.descriptor(round.request.encoding)).collect();
    let message = ToDevice::RoundOpen(RoundOpen { id: round.id, task: round.request.task, tensors });
    let content = round.encoded.concat();
    let mut out = vec![0; wire_capacity(FRAME_LIMIT_MAX)];
    let length = encode(&message, content.len(), |body| body.copy_from_slice(&content), &mut out).ok()?;
    out.truncate(length);
    Some(out)
}

/// Returns the message and body of a round's beacon, of which the tag is computed.
pub(super) fn beacon_message(round: &RoundBroadcast) -> Option<Vec<u8>> {
    let encoded = beacon(round)?;
    let mut decoder = Decoder::new(vec![0; FRAME_LIMIT_MAX]);
    match decoder.feed(&mut encoded.as_slice()) {
        FeedResult::Message(message) => Some(message.to_vec()),
        _ => None,
    }
}

/// Returns the length of the decoded frame with this message and body, in bytes.
pub(super) const fn frame_length(message: usize) -> usize {
    HEADER + message + CHECK
}
