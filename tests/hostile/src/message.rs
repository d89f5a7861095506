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
        encodes_to_itself(message, body, bytes);
        match message {
            ToServer::Update(update) => tensors::check(&update.tensors, body),
            ToServer::Hello(hello) => {
                let who = HelloPrefix::read(bytes).expect("every hello introduces itself");
                let fields = (hello.wire_version, hello.schema_hash, hello.device);
                assert_eq!((who.wire_version, who.schema_hash, who.device), fields);
            }
            _ => {}
        }
    } else {
        // The prefix of a hello with another version may still be recognised.
        let _ = HelloPrefix::read(bytes);
    }
    work(decoded.is_ok())
}

/// Runs one message of the server to a device.
pub fn to_device(bytes: &[u8]) -> Work {
    let decoded = decode::<ToDevice>(bytes);
    if let Ok((message, body)) = &decoded {
        encodes_to_itself(message, body, bytes);
        if let ToDevice::RoundOpen(open) = message {
            tensors::check(&open.tensors, body);
        }
    }
    work(decoded.is_ok())
}

fn work(accepted: bool) -> Work {
    Work { frames: 1, refused: u64::from(!accepted), steps: 1 }
}

/// Checks that a message encodes to at most as many bytes as were received, and that the result decodes to
/// the same message. (The bytes may differ from those received, since a varint may be longer than necessary.)
/// Compares bytes, since a float may be NaN.
fn encodes_to_itself<M: Message>(message: &M, body: &[u8], bytes: &[u8]) {
    assert!(message.has_body() || body.is_empty());
    let (first, second) = (payload(message, body), bytes.len());
    assert!(first.len() <= second, "{} bytes from {second}", first.len());
    let head = first.len() - body.len();
    assert!(HEADER + head + SEAL_MAX <= FRAME_LIMIT_MIN, "a head of {head} bytes");
    let (again, rest) = decode::<M>(&first).expect("what was encoded decodes");
    assert_eq!(rest, body);
    assert_eq!(payload(&again, rest), first);
}

/// Encodes like [`honest::payload`], but into a buffer that fits exactly.
fn payload<M: Message>(message: &M, body: &[u8]) -> Vec<u8> {
    let most = HEADER + FRAME_LIMIT_MIN + body.len() + SEAL_MAX;
    let mut wire = vec![0; wire_capacity(most)];
    let n = encode(message, body.len(), |place| place.copy_from_slice(body), &mut wire).expect("room");
    match Decoder::new(vec![0; most]).feed(&mut &wire[..n]) {
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
