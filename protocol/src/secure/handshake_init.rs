//! What a hello says about keys: its body.

use super::NONCE;
use super::schedule::hash;
use crate::Error;
use crate::frame::{Envelope, close_with_crc, encode_in};
use crate::limits::{CHECK, HEADER};
use crate::message::{Hello, ToServer};

/// The device's part of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeInit {
    /// [`Key::epoch`](super::Key::epoch) of the key that the device has.
    pub epoch: u16,
    /// How many handshakes the device has begun with this key: never the same twice, whatever happens to its power
    /// and its randomness.
    pub handshake: u64,
    /// Random.
    pub nonce: [u8; NONCE],
}

/// Bytes of a greeting.
pub const HANDSHAKE_INIT: usize = 2 + 8 + NONCE;

impl HandshakeInit {
    /// Little endian, in the order of the fields.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HANDSHAKE_INIT] {
        let mut bytes = [0; HANDSHAKE_INIT];
        let all = self.epoch.to_le_bytes().into_iter().chain(self.handshake.to_le_bytes()).chain(self.nonce);
        for (place, byte) in bytes.iter_mut().zip(all) {
            *place = byte;
        }
        bytes
    }

    /// Reads the body of a hello. `None` if it is not a greeting.
    #[must_use]
    pub fn read(body: &[u8]) -> Option<Self> {
        let (epoch, rest) = body.split_first_chunk()?;
        let (handshake, rest) = rest.split_first_chunk()?;
        let nonce = rest.first_chunk()?;
        (body.len() == HANDSHAKE_INIT).then_some(Self {
            epoch: u16::from_le_bytes(*epoch),
            handshake: u64::from_le_bytes(*handshake),
            nonce: *nonce,
        })
    }
}

/// SHA-256 of a hello as it travels, its message and its body: what both sides have seen of each other so far.
#[must_use]
pub fn transcript(hello: &[u8]) -> [u8; 32] {
    hash(hello, &[], &[])
}

/// Encodes a hello with its greeting, in the clear. Returns the bytes on the wire, and the transcript.
///
/// # Errors
/// [`Error::BufferTooSmall`], as [`encode`](crate::frame::encode).
pub fn encode_hello(
    hello: Hello,
    greeting: &HandshakeInit,
    out: &mut [u8],
) -> Result<(usize, [u8; 32]), Error> {
    let envelope = Envelope { before: HEADER, after: CHECK };
    let body = greeting.to_bytes();
    let mut seen = [0; 32];
    let close = |frame: &mut [u8]| {
        let end = frame.len().saturating_sub(CHECK);
        seen = transcript(frame.get(HEADER..end).unwrap_or_default());
        close_with_crc(frame);
    };
    let fill = &mut |place: &mut [u8]| {
        for (place, byte) in place.iter_mut().zip(body) {
            *place = byte;
        }
    };
    let sent = encode_in(envelope, &ToServer::Hello(hello), HANDSHAKE_INIT, fill, close, out)?;
    Ok((sent, seen))
}
