//! A connection's two keys at work: sealing what goes out, opening what comes in.

use core::fmt;
use core::ops::Range;

use zeroize::Zeroize;

use super::schedule::Keys;
use super::{COUNTER, KEY, Key, NONCE, TAG, Window, aead};
use crate::Error;
use crate::frame::{Envelope, HEADER_ANSWER, HEADER_SEALED, encode_in};
use crate::limits::HEADER;
use crate::message::{Message, ToDevice};

/// Why a sealed frame was not opened. Nothing has changed but its bytes, which are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// Its counter was used before, or is too far behind to know.
    Replayed,
    /// Its tag is wrong: another key, or other bytes than were sealed.
    Forged,
    /// It is too short, or its header is not that of a sealed frame.
    Malformed,
}

/// The state of one side of a connection after the handshake. Its keys are overwritten when it is dropped. It cannot be
/// cloned: both would use the same counters, which are the nonces.
///
/// ```compile_fail
/// fn twice<T: Clone>() {}
/// twice::<fedspan_protocol::secure::Channel>();
/// ```
pub struct Channel {
    own: [u8; KEY],
    peer: [u8; KEY],
    /// Counter of the next frame that goes out.
    next: u64,
    window: Window,
}

impl Channel {
    /// The device's side: `transcript` of the hello that it said, `nonce` of the answer.
    #[must_use]
    pub fn device(key: &Key, transcript: &[u8; 32], nonce: &[u8; NONCE]) -> Self {
        let keys = Keys::derive(key, transcript, nonce);
        Self { own: keys.up, peer: keys.down, next: 0, window: Window::default() }
    }

    /// The server's side: `transcript` of the hello that it heard, `nonce` of its own.
    #[must_use]
    pub fn server(key: &Key, transcript: &[u8; 32], nonce: &[u8; NONCE]) -> Self {
        let keys = Keys::derive(key, transcript, nonce);
        Self { own: keys.down, peer: keys.up, next: 0, window: Window::default() }
    }

    /// Encodes and seals `message` and its body, as [`encode`](crate::frame::encode) does without keys.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`] as there; [`Error::Exhausted`] after 2^64 - 1 frames.
    #[cfg_attr(target_os = "none", inline(never))]
    pub fn seal<M: Message>(
        &mut self,
        message: &M,
        body_len: usize,
        mut fill: impl FnMut(&mut [u8]),
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let counter = self.next;
        // Whatever comes of it: no counter is used twice.
        self.next = counter.checked_add(1).ok_or(Error::Exhausted)?;
        let envelope = Envelope { before: HEADER + COUNTER, after: TAG };
        let key = &self.own;
        let close = |frame: &mut [u8]| {
            set_header(frame, HEADER_SEALED, &counter.to_le_bytes());
            encrypt(key, counter, HEADER + COUNTER, frame);
        };
        encode_in(envelope, message, body_len, &mut fill, close, out)
    }

    /// Encodes and seals the server's answer to a hello, its first frame.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`]; [`Error::Exhausted`] if it is not the first.
    pub fn seal_answer(
        &mut self,
        nonce: &[u8; NONCE],
        message: &ToDevice,
        out: &mut [u8],
    ) -> Result<usize, Error> {
        if self.next != 0 {
            return Err(Error::Exhausted);
        }
        self.next = 1;
        let envelope = Envelope { before: HEADER + NONCE, after: TAG };
        let key = &self.own;
        let close = |frame: &mut [u8]| {
            set_header(frame, HEADER_ANSWER, nonce);
            encrypt(key, 0, HEADER + NONCE, frame);
        };
        encode_in(envelope, message, 0, &mut |_| {}, close, out)
    }

    /// Verifies and decrypts a frame in place; its message and body are what is at the returned place.
    ///
    /// # Errors
    /// [`OpenError`]. The frame is overwritten with zeros, and the counter of no frame has been used up.
    #[cfg_attr(target_os = "none", inline(never))]
    pub fn open<'a>(&mut self, frame: &'a mut [u8]) -> Result<&'a [u8], OpenError> {
        match self.try_open(frame) {
            Ok(message) => Ok(frame.get(message).unwrap_or_default()),
            Err(reason) => {
                frame.zeroize();
                Err(reason)
            }
        }
    }

    /// [`Self::open`] for a frame that may be another channel's: it stays as it is if it is not this one's.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn try_open(&mut self, frame: &mut [u8]) -> Result<Range<usize>, OpenError> {
        let (before, counter) = match frame.split_first() {
            Some((&HEADER_SEALED, rest)) => {
                let counter = rest.first_chunk().ok_or(OpenError::Malformed)?;
                (HEADER + COUNTER, u64::from_le_bytes(*counter))
            }
            Some((&HEADER_ANSWER, _)) => (HEADER + NONCE, 0),
            _ => return Err(OpenError::Malformed),
        };
        let (head, rest) = frame.split_at_mut_checked(before).ok_or(OpenError::Malformed)?;
        let (secret, tag) = rest.split_last_chunk_mut::<TAG>().ok_or(OpenError::Malformed)?;
        if !self.window.admits(counter) {
            return Err(OpenError::Replayed);
        }
        let end = before + secret.len();
        if !aead::decrypt(&self.peer, &aead::nonce(counter), head, secret, tag) {
            return Err(OpenError::Forged);
        }
        self.window.accept(counter);
        Ok(before..end)
    }
}

/// Whether this is the frame with which a server answers a hello.
#[must_use]
pub fn is_answer(frame: &[u8]) -> bool {
    frame.first() == Some(&HEADER_ANSWER)
}

/// The server's nonce in its answer to a hello. `None` if the frame is something else.
#[must_use]
pub fn answer_nonce(frame: &[u8]) -> Option<[u8; NONCE]> {
    match frame.split_first() {
        Some((&HEADER_ANSWER, rest)) => rest.first_chunk().copied(),
        _ => None,
    }
}

fn set_header(frame: &mut [u8], header: u8, rest: &[u8]) {
    for (place, byte) in frame.iter_mut().zip([header].iter().chain(rest)) {
        *place = *byte;
    }
}

/// Encrypts what is between the first `before` bytes, which are authenticated with it, and the tag.
#[cfg_attr(target_os = "none", inline(never))]
fn encrypt(key: &[u8; KEY], counter: u64, before: usize, frame: &mut [u8]) {
    let Some((head, rest)) = frame.split_at_mut_checked(before) else { return };
    let Some((secret, tag)) = rest.split_last_chunk_mut::<TAG>() else { return };
    match aead::encrypt(key, &aead::nonce(counter), head, secret) {
        Some(made) => *tag = made,
        None => secret.zeroize(),
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.own.zeroize();
        self.peer.zeroize();
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel {{ next: {}, window: {:?}, keys: secret }}", self.next, self.window)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
