//! Encrypted channel: seals outgoing frames and opens incoming frames with the two keys of a connection.

use core::fmt;
use core::ops::Range;

use zeroize::Zeroize;

use super::aead::{self, Aead, ChaCha20Poly1305};
use super::schedule::Keys;
#[cfg(feature = "beacons")]
use super::schedule::derive;
use super::{COUNTER, KEY, Key, NONCE, TAG, Window};
#[cfg(feature = "short-seals")]
use super::{SHORT_COUNTER, SHORT_TAG};
use crate::Error;
#[cfg(feature = "short-seals")]
use crate::frame::HEADER_SHORT;
use crate::frame::{Envelope, HEADER_ANSWER, HEADER_SEALED, encode_in};
#[cfg(feature = "beacons")]
use crate::limits::BEACON_TAG;
use crate::limits::HEADER;
use crate::message::{Message, ToDevice};

/// Reason why a sealed frame was not opened. The channel is then unchanged, and [`Channel::open`] has zeroed
/// the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum OpenError {
    /// The counter was already used, or is below the window of accepted counters.
    Replayed,
    /// The tag is wrong: the frame was sealed with another key, or modified.
    Forged,
    /// The frame is too short, or its header is not that of a sealed frame.
    Malformed,
}

/// Counter of a channel whose algorithm has failed, and of one that has used all counters: no frame is sealed any more.
const FAILED: u64 = u64::MAX;

/// State of one side of a connection after the handshake. The keys are overwritten when the channel is
/// dropped. A channel cannot be cloned, because two copies would use the same counters, which are the nonces.
///
/// ```compile_fail
/// fn twice<T: Clone>() {}
/// twice::<fedspan_protocol::secure::Channel>();
/// ```
pub struct Channel<A = ChaCha20Poly1305> {
    /// Algorithm that seals frames in both directions.
    aead: A,
    /// Key for outgoing frames.
    outgoing_key: [u8; KEY],
    /// Key for incoming frames.
    incoming_key: [u8; KEY],
    /// Counter of the next outgoing frame.
    next: u64,
    /// Counters of accepted incoming frames.
    window: Window,
    /// Form of the frames in both directions.
    #[cfg(feature = "short-seals")]
    seals: Seals,
}

/// Form of the sealed frames of a connection.
#[cfg(feature = "short-seals")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seals {
    /// A counter of 8 bytes and a tag of 16.
    #[default]
    Full,
    /// A counter of 2 bytes and a tag of 8, for links on which each byte costs. An attacker forges a frame with probability 2^-64 at
    /// each attempt (`SECURITY.md`).
    Short,
    /// Full, until the peer has sent a short frame; then short. For a server whose devices choose.
    Either,
}

impl Channel {
    /// Creates the device's side, with [`ChaCha20Poly1305`], from the `transcript` of its hello and the `nonce` of the server's answer.
    #[must_use]
    pub fn device(key: &Key, transcript: &[u8; 32], nonce: &[u8; NONCE]) -> Self {
        Self::device_with(ChaCha20Poly1305, key, transcript, nonce)
    }

    /// Creates the server's side, with [`ChaCha20Poly1305`], from the `transcript` of the received hello and the server's `nonce`.
    #[must_use]
    pub fn server(key: &Key, transcript: &[u8; 32], nonce: &[u8; NONCE]) -> Self {
        Self::server_with(ChaCha20Poly1305, key, transcript, nonce)
    }
}

impl<A: Aead> Channel<A> {
    /// Creates the device's side, like [`Channel::device`], with the algorithm that the hello announces.
    #[must_use]
    pub fn device_with(aead: A, key: &Key, transcript: &[u8; 32], nonce: &[u8; NONCE]) -> Self {
        let keys = Keys::derive(key, transcript, nonce);
        Self {
            aead,
            outgoing_key: keys.up,
            incoming_key: keys.down,
            next: 0,
            window: Window::default(),
            #[cfg(feature = "short-seals")]
            seals: Seals::Full,
        }
    }

    /// Creates the server's side, like [`Channel::server`], with the algorithm that the hello announces.
    #[must_use]
    pub fn server_with(aead: A, key: &Key, transcript: &[u8; 32], nonce: &[u8; NONCE]) -> Self {
        let keys = Keys::derive(key, transcript, nonce);
        Self {
            aead,
            outgoing_key: keys.down,
            incoming_key: keys.up,
            next: 0,
            window: Window::default(),
            #[cfg(feature = "short-seals")]
            seals: Seals::Full,
        }
    }

    /// Returns the channel with this form of frames.
    #[cfg(feature = "short-seals")]
    #[must_use]
    pub fn with_seals(mut self, seals: Seals) -> Self {
        self.seals = seals;
        self
    }

    /// Returns the server's tag of a beacon: of the message and body in its frame. Only the device of this connection can check it.
    #[cfg(feature = "beacons")]
    #[must_use]
    pub fn beacon_tag(&self, message: &[u8]) -> [u8; BEACON_TAG] {
        tag_of_beacon(&self.outgoing_key, message)
    }

    /// Returns true if the server of this connection has computed this tag of a beacon.
    #[cfg(feature = "beacons")]
    #[must_use]
    pub fn verifies_beacon(&self, message: &[u8], tag: [u8; BEACON_TAG]) -> bool {
        let expected = tag_of_beacon(&self.incoming_key, message);
        // Compares all bytes, so that the time does not depend on them.
        expected.iter().zip(tag).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }

    /// Encodes and seals `message` and its body, like [`encode`](crate::frame::encode) without keys.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`] if the frame does not fit; [`Error::Exhausted`] after 2^64 - 1 frames; [`Error::Unsealed`] if the
    /// algorithm fails.
    #[cfg_attr(target_os = "none", inline(never))]
    pub fn seal<M: Message>(
        &mut self,
        message: &M,
        body_len: usize,
        mut fill: impl FnMut(&mut [u8]),
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let counter = self.next;
        // The counter is advanced before any step that can fail, so that no counter is used twice.
        self.next = counter.checked_add(1).ok_or(Error::Exhausted)?;
        #[cfg(feature = "short-seals")]
        if self.seals == Seals::Short {
            return self.seal_short(counter, message, body_len, &mut fill, out);
        }
        let envelope = Envelope { before: HEADER + COUNTER, after: TAG };
        let sent = encode_in(envelope, message, body_len, &mut fill, |frame| self.close_frame(frame), out);
        if self.next == counter.wrapping_add(1) { sent } else { Err(Error::Unsealed) }
    }

    /// Encodes and seals the server's answer to a hello, which is the server's first frame.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`] if the answer does not fit; [`Error::Exhausted`] if the answer is not the
    /// first frame.
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
        let close = |frame: &mut [u8]| {
            set_header(frame, HEADER_ANSWER, nonce);
            self.encrypt_frame(0, envelope.before, frame);
        };
        let sent = encode_in(envelope, message, 0, &mut |_| {}, close, out);
        if self.next == 1 { sent } else { Err(Error::Unsealed) }
    }

    /// Writes the header and the counter of the newest frame, and encrypts it.
    fn close_frame(&mut self, frame: &mut [u8]) {
        let counter = self.next.wrapping_sub(1);
        set_header(frame, HEADER_SEALED, &counter.to_le_bytes());
        self.encrypt_frame(counter, HEADER + COUNTER, frame);
    }

    /// Encrypts the frame between its first `before` bytes, which are only authenticated, and the tag, and writes
    /// the tag. If that fails, zeroes the message, and the channel seals no frame any more.
    #[cfg_attr(target_os = "none", inline(never))]
    fn encrypt_frame(&mut self, counter: u64, before: usize, frame: &mut [u8]) {
        let Some((head, after_header)) = frame.split_at_mut_checked(before) else { return };
        let Some((secret, tag)) = after_header.split_last_chunk_mut::<TAG>() else { return };
        match self.aead.encrypt(&self.outgoing_key, &aead::nonce(counter), head, secret) {
            Some(computed_tag) => *tag = computed_tag,
            None => {
                secret.zeroize();
                self.next = FAILED;
            }
        }
    }

    /// Verifies and decrypts a frame in place, and returns its message and body.
    ///
    /// # Errors
    /// [`OpenError`] if the frame is a replay, forged or malformed. The frame is then zeroed, and no counter
    /// is marked as used.
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

    /// Opens a frame that may belong to another channel: an error leaves the frame unchanged. Returns the
    /// range of the message and body.
    ///
    /// # Errors
    /// [`OpenError`] for the reasons of [`Self::open`].
    pub fn try_open(&mut self, frame: &mut [u8]) -> Result<Range<usize>, OpenError> {
        #[cfg(feature = "short-seals")]
        if let Some((&HEADER_SHORT, after_header)) = frame.split_first() {
            let low = after_header.first_chunk().ok_or(OpenError::Malformed)?;
            let counter = self.window.expand(u16::from_le_bytes(*low));
            return self.try_open_short(counter, frame);
        }
        let (before, counter) = match frame.split_first() {
            Some((&HEADER_SEALED, after_header)) => {
                let counter = after_header.first_chunk().ok_or(OpenError::Malformed)?;
                (HEADER + COUNTER, u64::from_le_bytes(*counter))
            }
            Some((&HEADER_ANSWER, _)) => (HEADER + NONCE, 0),
            _ => return Err(OpenError::Malformed),
        };
        let (head, after_header) = frame.split_at_mut_checked(before).ok_or(OpenError::Malformed)?;
        let (secret, tag) = after_header.split_last_chunk_mut::<TAG>().ok_or(OpenError::Malformed)?;
        if !self.window.admits(counter) {
            return Err(OpenError::Replayed);
        }
        let end = before + secret.len();
        if !self.aead.decrypt(&self.incoming_key, &aead::nonce(counter), head, secret, tag) {
            return Err(OpenError::Forged);
        }
        self.window.accept(counter);
        Ok(before..end)
    }
}

#[cfg(feature = "short-seals")]
impl<A: Aead> Channel<A> {
    /// Seals a message with a short counter and a short tag.
    #[cfg_attr(target_os = "none", inline(never))]
    fn seal_short(
        &mut self,
        counter: u64,
        message: &impl Message,
        body_len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let envelope = Envelope { before: HEADER + SHORT_COUNTER, after: SHORT_TAG };
        let close = |frame: &mut [u8]| {
            set_header(
                frame,
                HEADER_SHORT,
                counter.to_le_bytes().first_chunk::<SHORT_COUNTER>().unwrap_or(&[0; SHORT_COUNTER]),
            );
            self.encrypt_short(counter, envelope.before, frame);
        };
        let sent = encode_in(envelope, message, body_len, fill, close, out);
        if self.next == counter.wrapping_add(1) { sent } else { Err(Error::Unsealed) }
    }

    /// Encrypts a frame like [`Self::encrypt_frame`], with a short tag.
    #[cfg_attr(target_os = "none", inline(never))]
    fn encrypt_short(&mut self, counter: u64, before: usize, frame: &mut [u8]) {
        let Some((head, after_header)) = frame.split_at_mut_checked(before) else { return };
        let Some((secret, tag)) = after_header.split_last_chunk_mut::<SHORT_TAG>() else { return };
        match self.aead.encrypt_short(&self.outgoing_key, &aead::nonce(counter), head, secret) {
            Some(computed_tag) => *tag = computed_tag,
            None => {
                secret.zeroize();
                self.next = FAILED;
            }
        }
    }

    /// Opens a frame with a short counter and a short tag.
    #[cfg_attr(target_os = "none", inline(never))]
    fn try_open_short(&mut self, counter: u64, frame: &mut [u8]) -> Result<Range<usize>, OpenError> {
        let before = HEADER + SHORT_COUNTER;
        let (head, after_header) = frame.split_at_mut_checked(before).ok_or(OpenError::Malformed)?;
        let (secret, tag) = after_header.split_last_chunk_mut::<SHORT_TAG>().ok_or(OpenError::Malformed)?;
        if self.seals == Seals::Full {
            return Err(OpenError::Forged);
        }
        if !self.window.admits(counter) {
            return Err(OpenError::Replayed);
        }
        let end = before + secret.len();
        if !self.aead.decrypt_short(&self.incoming_key, &aead::nonce(counter), head, secret, tag) {
            return Err(OpenError::Forged);
        }
        self.window.accept(counter);
        self.seals = Seals::Short;
        Ok(before..end)
    }
}

/// Returns true if the frame is a server's answer to a hello.
#[must_use]
pub fn is_answer(frame: &[u8]) -> bool {
    frame.first() == Some(&HEADER_ANSWER)
}

/// Returns the server's nonce in its answer to a hello; `None` for any other frame.
#[must_use]
pub fn answer_nonce(frame: &[u8]) -> Option<[u8; NONCE]> {
    match frame.split_first() {
        Some((&HEADER_ANSWER, after_header)) => after_header.first_chunk().copied(),
        _ => None,
    }
}

/// Returns the tag of a beacon under the key from the server to the device.
#[cfg(feature = "beacons")]
fn tag_of_beacon(down: &[u8; KEY], message: &[u8]) -> [u8; BEACON_TAG] {
    let full = derive(down, &[b"fedspan beacon 1", message]);
    let mut tag = [0; BEACON_TAG];
    tag.iter_mut().zip(full).for_each(|(target, byte)| *target = byte);
    tag
}

/// Writes the header byte and the bytes that follow it.
fn set_header(frame: &mut [u8], header: u8, fields: &[u8]) {
    for (target, byte) in frame.iter_mut().zip([header].iter().chain(fields)) {
        *target = *byte;
    }
}

impl<A> Drop for Channel<A> {
    fn drop(&mut self) {
        self.outgoing_key.zeroize();
        self.incoming_key.zeroize();
    }
}

impl<A> fmt::Debug for Channel<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel {{ next: {}, window: {:?}, keys: secret }}", self.next, self.window)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
