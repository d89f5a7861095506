//! Test helpers: unencrypted frames, and a COBS decoder that is independent of the library.

use fedspan_engine::RoundBroadcast;
use fedspan_protocol::frame::encode;
use fedspan_protocol::message::{Message, RoundOpen, ToDevice};
use fedspan_protocol::tensor::Encoding;

/// Additional capacity for the header and the framing of a frame, in bytes.
const HEADER_ROOM: usize = 400;

/// Encodes an unencrypted frame without a body.
pub fn encode_plain<M: Message>(message: &M) -> Vec<u8> {
    let mut out = vec![0; HEADER_ROOM];
    let sent = encode(message, 0, |_| {}, &mut out).unwrap();
    out.truncate(sent);
    out
}

/// Encodes an unencrypted frame that opens a round, with its tensors.
pub fn encode_plain_round(broadcast: &RoundBroadcast) -> Vec<u8> {
    let tensors = broadcast.request.tensors.iter().map(|t| t.descriptor(Encoding::F32)).collect();
    let task = broadcast.request.task;
    let message = ToDevice::RoundOpen(RoundOpen { id: broadcast.id, task, tensors });
    let body: Vec<u8> = broadcast.encoded.concat();
    let mut out = vec![0; body.len() + HEADER_ROOM];
    let sent = encode(&message, body.len(), |buffer| buffer.copy_from_slice(&body), &mut out).unwrap();
    out.truncate(sent);
    out
}

/// Decodes the COBS encoding of a frame.
pub fn decode_cobs(frame: &[u8]) -> Vec<u8> {
    let (mut decoded, mut remaining) = (Vec::new(), frame.strip_suffix(&[0]).unwrap());
    while let Some((&code, tail)) = remaining.split_first() {
        let (block, tail) = tail.split_at(usize::from(code) - 1);
        decoded.extend_from_slice(block);
        if code != 255 && !tail.is_empty() {
            decoded.push(0);
        }
        remaining = tail;
    }
    decoded
}
