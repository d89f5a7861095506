//! Messages of honest peers, read from the golden frames of the protocol or encoded from message types.

use std::path::Path;

use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::Message;

use crate::reference;

/// Returns all golden frames with their names, without the extension. Empty if the directory does not exist.
fn named_golden_frames() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocol/vectors");
    let mut frames = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(".bin").filter(|name| name.starts_with("to_")) {
            frames.push((name.to_owned(), std::fs::read(entry.path()).unwrap_or_default()));
        }
    }
    frames.sort();
    frames
}

/// Returns the golden frames of both directions.
pub fn golden_frames() -> Vec<Vec<u8>> {
    named_golden_frames().into_iter().map(|(_, frame)| frame).collect()
}

/// Returns the messages of the golden frames whose name has this prefix.
pub fn golden_messages_of(direction: &str) -> Vec<Vec<u8>> {
    let frames = named_golden_frames().into_iter().filter(|(name, _)| name.starts_with(direction));
    frames.filter_map(|(_, frame)| reference::open(&frame[..frame.len() - 1], usize::MAX)).collect()
}

/// Returns the messages of the golden frames of both directions.
pub fn golden_messages() -> Vec<Vec<u8>> {
    golden_messages_of("to_")
}

/// Returns the bytes of a message and its body, as a receiver gets them from the decoder.
pub fn payload<M: Message>(message: &M, body: &[u8]) -> Vec<u8> {
    let mut wire = vec![0; wire_capacity(body.len() + 400)];
    let length = encode(message, body.len(), |buffer| buffer.copy_from_slice(body), &mut wire).unwrap();
    let mut decoder = Decoder::new(vec![0; body.len() + 400]);
    match decoder.feed(&mut &wire[..length]) {
        FeedResult::Message(bytes) => bytes.to_vec(),
        other => panic!("an encoded message decodes to {other:?}"),
    }
}
