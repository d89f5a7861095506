//! Secure layer between the session and the link: handshakes and sealed frames, or plaintext for tests.

use core::ops::Range;

use fedspan_protocol::Error;
#[cfg(feature = "beacons")]
use fedspan_protocol::limits::BEACON_TAG;
use fedspan_protocol::message::ToServer;
#[cfg(feature = "datagrams")]
use fedspan_protocol::secure::Seals;
pub use fedspan_protocol::secure::{Aead, ChaCha20Poly1305 as DefaultAead};
use fedspan_protocol::secure::{Channel, HandshakeInit, Key, NONCE, answer_nonce, encode_hello};
#[cfg(feature = "reports")]
use fedspan_protocol::secure::{TAG, refusal_tag};
use rand_core::Rng;

#[cfg(feature = "key-rotation")]
use crate::store::StoredKey;
use crate::store::{Store, StoreError};
#[cfg(feature = "key-rotation")]
use fedspan_protocol::secure::check_value;

/// Number of handshake numbers reserved with each write to storage.
const NUMBERS_RESERVED: u64 = 128;

/// Protection of frames.
#[derive(Clone, Debug)]
pub enum Protection {
    /// Checksum against transmission errors, without protection against attackers. For tests only: the server
    /// must allow it.
    Plaintext,
    /// Authenticated encryption with this key.
    Key(Key),
    /// Authenticated encryption with this key and short counters and tags, which save 14 bytes of each frame
    /// ([`Seals::Short`]). The server can refuse them.
    #[cfg(feature = "datagrams")]
    ShortTags(Key),
}

/// State of the handshake and of the encrypted channel of a connection.
#[derive(Debug)]
pub struct SecureLayer<A> {
    /// Algorithm that seals frames; each channel has a copy.
    aead: A,
    /// Pre-shared key; `None` for plaintext.
    key: Option<Key>,
    /// Check value of the key that the device was provisioned with.
    #[cfg(feature = "key-rotation")]
    provisioned: u32,
    /// Form of sealed frames.
    #[cfg(feature = "datagrams")]
    seals: Seals,
    /// Range of reserved but unused handshake numbers, which a reset never reuses. `None` until the range is
    /// first read from storage.
    reserved: Option<Range<u64>>,
    /// Handshake of the hello in flight.
    greeting: Option<HandshakeInit>,
    /// Hash of the hello in flight, once it has been sent.
    transcript: Option<[u8; 32]>,
    /// Encrypted channel, once the server has answered the hello.
    channel: Option<Channel<A>>,
}

impl<A: Aead + Clone> SecureLayer<A> {
    /// Creates the layer before the first connection.
    pub fn new(protection: Protection, aead: A) -> Self {
        #[cfg(feature = "datagrams")]
        let seals = match protection {
            Protection::ShortTags(_) => Seals::Short,
            Protection::Plaintext | Protection::Key(_) => Seals::Full,
        };
        let key = match protection {
            Protection::Plaintext => None,
            Protection::Key(key) => Some(key),
            #[cfg(feature = "datagrams")]
            Protection::ShortTags(key) => Some(key),
        };
        Self {
            aead,
            key,
            #[cfg(feature = "key-rotation")]
            provisioned: 0,
            #[cfg(feature = "datagrams")]
            seals,
            reserved: None,
            greeting: None,
            transcript: None,
            channel: None,
        }
    }

    /// Returns the epoch of the key; `None` for plaintext.
    #[cfg(feature = "key-rotation")]
    pub fn epoch(&self) -> Option<u16> {
        self.key.as_ref().map(Key::epoch)
    }

    /// Computes the check value of the key that this device was provisioned with. Must be called before the key is replaced.
    #[cfg(feature = "key-rotation")]
    pub fn identify(&mut self, device: u64) {
        self.provisioned = self.key.as_ref().map_or(0, |key| check_value(key, device));
    }

    /// Returns a new key as it is stored.
    #[cfg(feature = "key-rotation")]
    pub fn to_stored(&self, key: Key) -> StoredKey {
        StoredKey { key, provisioned: self.provisioned }
    }

    /// Replaces the key, if its epoch is earlier and the device is provisioned with the same key as when it stored the new one. The next
    /// handshake uses the new key.
    #[cfg(feature = "key-rotation")]
    pub fn replace_key(&mut self, new: StoredKey) {
        let is_own = new.provisioned == self.provisioned;
        if let Some(key) = self.key.as_mut().filter(|key| is_own && key.epoch() < new.key.epoch()) {
            *key = new.key;
        }
    }

    /// Returns the bit of the capabilities that announces the algorithm.
    pub fn ability(&self) -> u32 {
        if self.key.is_some() { self.aead.suite().ability() } else { 0 }
    }

    /// Returns true if frames are not encrypted.
    pub fn is_plaintext(&self) -> bool {
        self.key.is_none()
    }

    /// Discards the keys of the connection. The next hello begins a new handshake.
    pub fn reset(&mut self) {
        self.greeting = None;
        self.transcript = None;
        self.channel = None;
    }

    /// Allocates a number for a new handshake. Does nothing if a handshake is in progress, so that a repeated
    /// hello is identical to the first.
    ///
    /// # Errors
    /// [`StoreError`] if no number can be reserved in storage.
    pub fn start_handshake(
        &mut self,
        store: &mut impl Store,
        random: &mut impl Rng,
    ) -> Result<(), StoreError> {
        let Some(key) = &self.key else { return Ok(()) };
        if self.greeting.is_some() {
            return Ok(());
        }
        let mut reserved = match self.reserved.take() {
            Some(reserved) => reserved,
            None => {
                let stored = store.load_handshakes()?;
                stored..stored
            }
        };
        if reserved.is_empty() {
            // The numbers are reserved in storage before the first of them is used.
            reserved.end = reserved.end.checked_add(NUMBERS_RESERVED).ok_or(StoreError)?;
            store.save_handshakes(reserved.end)?;
        }
        let mut nonce = [0; NONCE];
        random.fill_bytes(&mut nonce);
        self.greeting = Some(HandshakeInit { epoch: key.epoch(), handshake: reserved.start, nonce });
        reserved.start += 1;
        self.reserved = Some(reserved);
        Ok(())
    }

    /// Encodes a message, sealed if the channel has keys.
    pub fn encode(
        &mut self,
        message: &ToServer,
        body: usize,
        fill: impl FnMut(&mut [u8]),
        out: &mut [u8],
    ) -> Result<usize, Error> {
        match (message, &self.greeting, &mut self.channel) {
            _ if self.key.is_none() => fedspan_protocol::frame::encode(message, body, fill, out),
            (ToServer::Hello(hello), Some(greeting), _) => {
                let (sent, transcript) = encode_hello(*hello, greeting, out)?;
                self.transcript = Some(transcript);
                Ok(sent)
            }
            (_, _, Some(channel)) => channel.seal(message, body, fill, out),
            _ => Err(Error::Exhausted),
        }
    }

    /// Returns true if the server of this connection has computed this tag of a beacon.
    #[cfg(feature = "beacons")]
    pub fn verifies_beacon(&self, message: &[u8], tag: [u8; BEACON_TAG]) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.verifies_beacon(message, tag))
    }

    /// Returns true if one of the tags in `tags` proves that the server has refused the hello in flight by this message.
    #[cfg(feature = "reports")]
    pub fn verifies_refusal(&self, message: &[u8], tags: &[u8]) -> bool {
        let (Some(key), Some(transcript)) = (&self.key, &self.transcript) else { return false };
        let expected = refusal_tag(key, transcript, message);
        // Compares all bytes, so that the time does not depend on them.
        let is_equal = |tag: &[u8; TAG]| tag.iter().zip(expected).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0;
        tags.as_chunks().0.iter().fold(false, |found, tag| found | is_equal(tag))
    }

    /// Decrypts a sealed frame in place: the answer to the hello in flight (`awaiting_welcome`), or a later
    /// frame. Returns its message and body. Returns `None` and zeroes the frame if it does not belong to this
    /// connection or does not come from this server.
    pub fn decrypt<'a>(&mut self, frame: &'a mut [u8], awaiting_welcome: bool) -> Option<&'a [u8]> {
        match (&self.key, &self.transcript, answer_nonce(frame), &mut self.channel) {
            (Some(key), Some(transcript), Some(nonce), _) if awaiting_welcome => {
                let mut channel = Channel::device_with(self.aead.clone(), key, transcript, &nonce);
                #[cfg(feature = "datagrams")]
                {
                    channel = channel.with_seals(self.seals);
                }
                let message = channel.open(frame).ok()?;
                self.channel = Some(channel);
                Some(message)
            }
            (_, _, None, Some(channel)) if !awaiting_welcome => channel.open(frame).ok(),
            _ => {
                frame.fill(0);
                None
            }
        }
    }
}
