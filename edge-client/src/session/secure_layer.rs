//! What stands between the session and the link: keys, or on the bench nothing.

use core::ops::Range;

use fedspan_protocol::Error;
use fedspan_protocol::message::ToServer;
use fedspan_protocol::secure::{Channel, Greeting, Key, NONCE, answer_nonce, encode_hello};
use rand_core::Rng;

use crate::store::{Store, StoreError};

/// Handshakes that are numbered between two writes to storage.
const NUMBERS_RESERVED: u64 = 128;

/// How frames are protected.
#[derive(Clone, Debug)]
pub enum Protection {
    /// A checksum against noise, and nothing against people. For the bench: the server has to be asked for it, too.
    Plaintext,
    /// Authenticated encryption with this key.
    Key(Key),
}

#[derive(Debug)]
pub struct SecureLayer {
    key: Option<Key>,
    /// Numbers of handshakes that no reset brings back: the next one, up to what is stored. `None` until they are
    /// read for the first time.
    numbers: Option<Range<u64>>,
    /// The hello that is on its way, and its hash once it has left.
    greeting: Option<Greeting>,
    transcript: Option<[u8; 32]>,
    channel: Option<Channel>,
}

impl SecureLayer {
    pub fn new(protection: Protection) -> Self {
        let key = match protection {
            Protection::Plaintext => None,
            Protection::Key(key) => Some(key),
        };
        Self { key, numbers: None, greeting: None, transcript: None, channel: None }
    }

    pub fn is_plaintext(&self) -> bool {
        self.key.is_none()
    }

    /// Forgets the connection's keys: the next hello begins a new handshake.
    pub fn reset(&mut self) {
        self.greeting = None;
        self.transcript = None;
        self.channel = None;
    }

    /// Numbers a new handshake, unless one is under way: a hello that is repeated is repeated as it was.
    pub fn start_handshake(
        &mut self,
        store: &mut impl Store,
        random: &mut impl Rng,
    ) -> Result<(), StoreError> {
        let Some(key) = &self.key else { return Ok(()) };
        if self.greeting.is_some() {
            return Ok(());
        }
        let mut numbers = match self.numbers.take() {
            Some(numbers) => numbers,
            None => {
                let stored = store.load_handshakes()?;
                stored..stored
            }
        };
        if numbers.is_empty() {
            // Before the first of them is used.
            numbers.end = numbers.end.checked_add(NUMBERS_RESERVED).ok_or(StoreError)?;
            store.save_handshakes(numbers.end)?;
        }
        let mut nonce = [0; NONCE];
        random.fill_bytes(&mut nonce);
        self.greeting = Some(Greeting { epoch: key.epoch(), handshake: numbers.start, nonce });
        numbers.start += 1;
        self.numbers = Some(numbers);
        Ok(())
    }

    /// Encodes one message under what protection there is.
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

    /// Opens a sealed frame: the answer to the hello that is on its way (`greeting`), or a frame after that. Its
    /// message and body; `None`, and zeros, if it is not for this connection or not from this server.
    pub fn decrypt<'a>(&mut self, frame: &'a mut [u8], greeting: bool) -> Option<&'a [u8]> {
        match (&self.key, &self.transcript, answer_nonce(frame), &mut self.channel) {
            (Some(key), Some(transcript), Some(nonce), _) if greeting => {
                let mut channel = Channel::device(key, transcript, &nonce);
                let message = channel.open(frame).ok()?;
                self.channel = Some(channel);
                Some(message)
            }
            (_, _, None, Some(channel)) if !greeting => channel.open(frame).ok(),
            _ => {
                frame.fill(0);
                None
            }
        }
    }
}
