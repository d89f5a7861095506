//! Helpers of tests: unencrypted frames, and a COBS decoder that is independent of the library.

use fedspan_engine::RoundBroadcast;
use fedspan_protocol::frame::encode;
use fedspan_protocol::message::{Message, RoundOpen, ToDevice};
use fedspan_protocol::tensor::Encoding;

/// Additional capacity for the header and the framing of a frame, in bytes.
const HEADER_ROOM: usize = 400;

/// Encodes an unencrypted frame without a body.
pub fn plain<M: Message>(message: &M) -> Vec<u8> {
    let mut out = vec![0; HEADER_ROOM];
    let sent = encode(message, 0, |_| {}, &mut out).unwrap();
    out.truncate(sent);
    out
}

/// Encodes an unencrypted frame that opens a round, with its tensors.
pub fn plain_open(opening: &RoundBroadcast) -> Vec<u8> {
    let tensors = opening.request.tensors.iter().map(|t| t.descriptor(Encoding::F32)).collect();
    let task = opening.request.task;
    let message = ToDevice::RoundOpen(RoundOpen { id: opening.id, task, tensors });
    let body: Vec<u8> = opening.encoded.concat();
    let mut out = vec![0; body.len() + HEADER_ROOM];
    let sent = encode(&message, body.len(), |place| place.copy_from_slice(&body), &mut out).unwrap();
    out.truncate(sent);
    out
}

/// Decodes the COBS encoding of a frame.
pub fn uncobs(frame: &[u8]) -> Vec<u8> {
    let (mut decoded, mut rest) = (Vec::new(), frame.strip_suffix(&[0]).unwrap());
    while let Some((&code, tail)) = rest.split_first() {
        let (block, tail) = tail.split_at(usize::from(code) - 1);
        decoded.extend_from_slice(block);
        if code != 255 && !tail.is_empty() {
            decoded.push(0);
        }
        rest = tail;
    }
    decoded
}
