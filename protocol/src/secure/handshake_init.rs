//! Handshake initiation: the first handshake message, sent in the body of a device's hello on an encrypted
//! link.

use super::NONCE;
use super::schedule::hash;
use crate::Error;
use crate::frame::{Envelope, close_with_crc, encode_in};
use crate::limits::{CHECK, HEADER};
use crate::message::{Hello, ToServer};

/// Device's part of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeInit {
    /// [`Key::epoch`](super::Key::epoch) of the device's key.
    pub epoch: u16,
    /// Number of the handshake, counted by the device for its key. A number is never reused, even after a
    /// power loss or with a broken random generator.
    pub handshake: u64,
    /// Random bytes.
    pub nonce: [u8; NONCE],
}

/// Length of a handshake initiation, in bytes.
pub const HANDSHAKE_INIT: usize = 2 + 8 + NONCE;

impl HandshakeInit {
    /// Encodes the fields in order, little endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HANDSHAKE_INIT] {
        let mut bytes = [0; HANDSHAKE_INIT];
        let fields =
            self.epoch.to_le_bytes().into_iter().chain(self.handshake.to_le_bytes()).chain(self.nonce);
        for (target, byte) in bytes.iter_mut().zip(fields) {
            *target = byte;
        }
        bytes
    }

    /// Decodes the body of a hello. Returns `None` if the body has the wrong length.
    #[must_use]
    pub fn read(body: &[u8]) -> Option<Self> {
        let (epoch, remaining) = body.split_first_chunk()?;
        let (handshake, remaining) = remaining.split_first_chunk()?;
        let nonce = remaining.first_chunk()?;
        (body.len() == HANDSHAKE_INIT).then_some(Self {
            epoch: u16::from_le_bytes(*epoch),
            handshake: u64::from_le_bytes(*handshake),
            nonce: *nonce,
        })
    }
}

/// Returns the transcript: the SHA-256 of the message and body of a hello as sent, which are all data
/// exchanged so far.
#[must_use]
pub fn transcript(hello: &[u8]) -> [u8; 32] {
    hash(hello, &[], &[])
}

/// Encodes a hello with its handshake initiation, unencrypted. Returns the number of bytes on the wire, and
/// the transcript.
///
/// # Errors
/// [`Error::BufferTooSmall`] if the frame does not fit `out`.
pub fn encode_hello(hello: Hello, init: &HandshakeInit, out: &mut [u8]) -> Result<(usize, [u8; 32]), Error> {
    let envelope = Envelope { before: HEADER, after: CHECK };
    let body = init.to_bytes();
    let mut hello_transcript = [0; 32];
    let close = |frame: &mut [u8]| {
        let end = frame.len().saturating_sub(CHECK);
        hello_transcript = transcript(frame.get(HEADER..end).unwrap_or_default());
        close_with_crc(frame);
    };
    let fill = &mut |target: &mut [u8]| {
        for (target, byte) in target.iter_mut().zip(body) {
            *target = byte;
        }
    };
    let sent = encode_in(envelope, &ToServer::Hello(hello), HANDSHAKE_INIT, fill, close, out)?;
    Ok((sent, hello_transcript))
}
