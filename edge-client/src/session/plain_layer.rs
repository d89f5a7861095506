//! Layer between the session and the link in a build without the feature `encryption`: every frame is plaintext. It has the
//! functions of `secure_layer`.

use core::marker::PhantomData;

use fedspan_protocol::Error;
use fedspan_protocol::message::ToServer;

use crate::store::StoreError;

/// Protection of frames.
#[derive(Clone, Debug)]
pub enum Protection {
    /// Checksum against transmission errors, without protection against attackers. The server must allow it.
    Plaintext,
}

/// Encryption of frames, of which this build has none.
pub trait Aead {}

/// No encryption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultAead;

impl Aead for DefaultAead {}

/// Layer without keys.
#[derive(Debug)]
pub struct SecureLayer<A>(PhantomData<A>);

impl<A> SecureLayer<A> {
    /// Creates the layer.
    pub fn new(Protection::Plaintext: Protection, _aead: A) -> Self {
        Self(PhantomData)
    }

    /// Returns 0: no algorithm is announced.
    pub const fn ability(&self) -> u32 {
        0
    }

    /// Returns true: frames are not encrypted.
    pub const fn is_plaintext(&self) -> bool {
        true
    }

    /// Does nothing.
    pub const fn reset(&mut self) {}

    /// Does nothing: a hello without keys needs no number.
    ///
    /// # Errors
    /// None.
    pub const fn start_handshake<P, R>(&mut self, _store: &mut P, _random: &mut R) -> Result<(), StoreError> {
        Ok(())
    }

    /// Encodes a message.
    pub fn encode(
        &mut self,
        message: &ToServer,
        body: usize,
        fill: impl FnMut(&mut [u8]),
        out: &mut [u8],
    ) -> Result<usize, Error> {
        fedspan_protocol::frame::encode(message, body, fill, out)
    }

    /// Returns `None`: no sealed frame can be opened.
    pub fn decrypt<'a>(&mut self, _frame: &'a mut [u8], _awaiting_welcome: bool) -> Option<&'a [u8]> {
        None
    }
}
