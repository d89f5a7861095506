//! Fuzz targets for the messages of both directions: a message that decodes must encode to itself, and its
//! tensors must be consistent.

use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::limits::{FRAME_LIMIT_MIN, HEADER, SEAL_MAX, wire_capacity};
use fedspan_protocol::message::{HelloPrefix, Message, ToDevice, ToServer, decode};

use crate::{Work, honest, tensors};

/// Runs one message of a device to the server.
pub fn to_server(bytes: &[u8]) -> Work {
    let decoded = decode::<ToServer>(bytes);
    if let Ok((message, body)) = &decoded {
        check_reencoding(message, body, bytes);
        match message {
            ToServer::Update(update) => tensors::check(&update.tensors, body),
            ToServer::Hello(hello) => {
                let prefix = HelloPrefix::read(bytes).expect("every hello introduces itself");
                let fields = (hello.wire_version, hello.schema_hash, hello.device);
                assert_eq!((prefix.wire_version, prefix.schema_hash, prefix.device), fields);
            }
            _ => {}
        }
    } else {
        // The prefix of a hello with another version may still be recognised.
        let _ = HelloPrefix::read(bytes);
    }
    work_of(decoded.is_ok())
}

/// Runs one message of the server to a device.
pub fn to_device(bytes: &[u8]) -> Work {
    let decoded = decode::<ToDevice>(bytes);
    if let Ok((message, body)) = &decoded {
        check_reencoding(message, body, bytes);
        if let ToDevice::RoundOpen(open) = message {
            tensors::check(&open.tensors, body);
        }
    }
    work_of(decoded.is_ok())
}

fn work_of(accepted: bool) -> Work {
    Work { frames: 1, refused: u64::from(!accepted), steps: 1 }
}

/// Checks that a message encodes to at most as many bytes as were received, and that the result decodes to
/// the same message. (The bytes may differ from those received, since a varint may be longer than necessary.)
/// Compares bytes, since a float may be NaN.
fn check_reencoding<M: Message>(message: &M, body: &[u8], bytes: &[u8]) {
    assert!(message.has_body() || body.is_empty());
    let (encoded, received) = (encode_exactly(message, body), bytes.len());
    assert!(encoded.len() <= received, "{} bytes from {received}", encoded.len());
    let head = encoded.len() - body.len();
    assert!(HEADER + head + SEAL_MAX <= FRAME_LIMIT_MIN, "a head of {head} bytes");
    let (decoded_again, decoded_body) = decode::<M>(&encoded).expect("what was encoded decodes");
    assert_eq!(decoded_body, body);
    assert_eq!(encode_exactly(&decoded_again, decoded_body), encoded);
}

/// Encodes like [`honest::payload`], but into a buffer that fits exactly.
fn encode_exactly<M: Message>(message: &M, body: &[u8]) -> Vec<u8> {
    let capacity = HEADER + FRAME_LIMIT_MIN + body.len() + SEAL_MAX;
    let mut wire = vec![0; wire_capacity(capacity)];
    let length = encode(message, body.len(), |buffer| buffer.copy_from_slice(body), &mut wire).expect("room");
    match Decoder::new(vec![0; capacity]).feed(&mut &wire[..length]) {
        FeedResult::Message(bytes) => bytes.to_vec(),
        other => panic!("an encoded message decodes to {other:?}"),
    }
}

pub fn to_server_seeds() -> Vec<Vec<u8>> {
    honest::golden_messages_of("to_server")
}

pub fn to_device_seeds() -> Vec<Vec<u8>> {
    honest::golden_messages_of("to_device")
}
