//! Secure layer between a connection and its link: answers hellos, decrypts incoming and seals outgoing frames.

use std::sync::Arc;

use fedspan_protocol::Error;
use fedspan_protocol::frame::encode;
use fedspan_protocol::limits::{SCHEMA_HASH, WIRE_VERSION, wire_capacity};
use fedspan_protocol::message::{Fault, Hello, HelloPrefix, Refusal, ToDevice, ToServer, decode};
use fedspan_protocol::secure::{Channel, HandshakeInit, NONCE, OpenError, TAG, transcript};

use super::Acceptor;
use crate::keys::AcceptedKey;
use fedspan_engine::DeviceId;

/// Result of processing one frame.
pub(super) enum Decrypted<'a> {
    /// Message with its body.
    Message(ToServer, &'a [u8]),
    /// Hello of a device that is admitted and, under encryption, has proved its key.
    Admitted(Hello),
    /// Finished frame to send in reply.
    Reply(Vec<u8>),
    /// The device is refused. The reason is sealed in the frame if there is one, and sent unencrypted
    /// otherwise.
    Refused(Refusal, Option<Vec<u8>>),
    /// Another device has proved its key.
    OtherDevice,
    /// The device's key was revoked or replaced.
    Revoked,
    /// The frame was counted and dropped.
    Dropped,
    /// The frame was authentic but malformed or not allowed.
    Fault(Fault),
}

/// Handshake whose hello was answered and whose first sealed frame is awaited.
#[derive(Debug)]
struct PendingHandshake {
    hello: Hello,
    answer: Vec<u8>,
    open: SecureSession,
}

/// Session keys and the device key they are derived from.
#[derive(Debug)]
struct SecureSession {
    /// Hash of the hello that the session keys belong to.
    transcript: [u8; 32],
    channel: Channel,
    key: Arc<AcceptedKey>,
}

/// Counters of sealed frames, and of frames that should have been sealed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SealCounters {
    pub opened: u32,
    pub replayed: u32,
    pub forged: u32,
    pub unsealed: u32,
}

#[derive(Debug)]
pub(super) struct SecureLayer {
    acceptor: Arc<Acceptor>,
    pending: Option<Box<PendingHandshake>>,
    open: Option<SecureSession>,
    /// Hellos answered since the last completed handshake.
    handshakes: u32,
    handshakes_max: u32,
    seals: SealCounters,
}

/// Hellos of one connection answered before a handshake is completed, since each derives keys. A device repeats
/// the same hello, which costs nothing, and sends another one only after a reset.
const HANDSHAKES_MAX: u32 = 16;

impl SecureLayer {
    /// Makes a secure layer. A `persistent` link answers any number of hellos: its speed bounds them, and the
    /// device has no other connection.
    pub(super) fn new(acceptor: Arc<Acceptor>, persistent: bool) -> Self {
        let handshakes_max = if persistent { u32::MAX } else { HANDSHAKES_MAX };
        Self {
            acceptor,
            handshakes_max,
            pending: None,
            open: None,
            handshakes: 0,
            seals: SealCounters::default(),
        }
    }

    pub(super) fn acceptor(&self) -> &Acceptor {
        &self.acceptor
    }

    pub(super) fn seals(&self) -> SealCounters {
        self.seals
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.acceptor.keys().is_some()
    }

    /// Returns its heap bytes.
    pub(super) fn memory(&self) -> usize {
        self.pending.as_ref().map_or(0, |pending| size_of::<PendingHandshake>() + pending.answer.capacity())
    }

    /// Returns the device key of this connection.
    pub(super) fn key(&self) -> Option<Arc<AcceptedKey>> {
        self.open.as_ref().map(|open| Arc::clone(&open.key))
    }

    /// Returns true if the device key of this connection was revoked or replaced.
    pub(super) fn is_revoked(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !open.key.is_accepted())
    }

    /// Processes an unsealed frame, which is not authenticated.
    pub(super) fn process_unsealed<'a>(&mut self, message: &'a [u8]) -> Decrypted<'a> {
        let decrypted = match (version_refusal(message), decode::<ToServer>(message)) {
            (Some(refusal), _) => Decrypted::Refused(refusal, None),
            (None, Ok((ToServer::Hello(hello), body))) => self.hello(hello, body, message),
            _ if self.is_encrypted() => Decrypted::Dropped,
            (None, Ok((message, body))) => Decrypted::Message(message, body),
            (None, Err(_)) => Decrypted::Fault(Fault::Malformed),
        };
        // An unauthenticated frame must not end an authenticated session.
        let is_harmless = matches!(decrypted, Decrypted::Reply(_)) || !self.is_encrypted();
        if matches!(decrypted, Decrypted::Dropped) || !is_harmless && self.open.is_some() {
            count(&mut self.seals.unsealed);
            return Decrypted::Dropped;
        }
        decrypted
    }

    fn hello(&mut self, hello: Hello, body: &[u8], bytes: &[u8]) -> Decrypted<'static> {
        let greeting = match HandshakeInit::read(body) {
            None if !body.is_empty() => return Decrypted::Fault(Fault::Malformed),
            greeting => greeting,
        };
        match (self.acceptor.keys(), greeting) {
            (None, None) => match self.acceptor.admit(&hello) {
                Ok(()) => Decrypted::Admitted(hello),
                Err(refusal) => Decrypted::Refused(refusal, None),
            },
            (None, Some(_)) => Decrypted::Refused(Refusal::NoKeysHere, None),
            (Some(_), None) => Decrypted::Refused(Refusal::KeyNeeded, None),
            (Some(_), Some(_)) if self.handshakes >= self.handshakes_max => Decrypted::Dropped,
            (Some(keys), Some(greeting)) => {
                let transcript = transcript(bytes);
                if let Some(pending) =
                    self.pending.as_ref().filter(|pending| pending.open.transcript == transcript)
                {
                    // The answer was lost or is on its way.
                    return Decrypted::Reply(pending.answer.clone());
                }
                if self.open.as_ref().is_some_and(|open| open.transcript == transcript) {
                    // A copy of the hello that began this session: delayed, or recorded by an attacker.
                    return Decrypted::Dropped;
                }
                match keys.lookup(DeviceId(hello.device), greeting.epoch) {
                    Some(key) => self.answer_hello(hello, transcript, key).unwrap_or(Decrypted::Dropped),
                    None => Decrypted::Refused(Refusal::UnknownDevice, None),
                }
            }
        }
    }

    /// Answers the hello of a known device. `None` if the source of randomness fails.
    fn answer_hello(
        &mut self,
        hello: Hello,
        transcript: [u8; 32],
        key: Arc<AcceptedKey>,
    ) -> Option<Decrypted<'static>> {
        self.handshakes = self.handshakes.saturating_add(1);
        let nonce = self.acceptor.nonce()?;
        let mut channel = Channel::server(key.key(), &transcript, &nonce);
        let judged = self.acceptor.admit(&hello);
        let message = match judged {
            Ok(()) => ToDevice::Welcome(self.acceptor.welcome()),
            Err(refusal) => ToDevice::Refused(refusal),
        };
        let mut answer = vec![0; wire_capacity(ANSWER_MAX)];
        let sent = channel.seal_answer(&nonce, &message, &mut answer).ok()?;
        answer.truncate(sent);
        answer.shrink_to_fit();
        if let Err(refusal) = judged {
            return Some(Decrypted::Refused(refusal, Some(answer)));
        }
        let pending = PendingHandshake {
            hello,
            answer: answer.clone(),
            open: SecureSession { transcript, channel, key },
        };
        self.pending = Some(Box::new(pending));
        Some(Decrypted::Reply(answer))
    }

    /// Processes a sealed frame. The first one after an answer completes the handshake, and its content is not
    /// looked at. `known` is the device that has completed an earlier handshake.
    pub(super) fn process_sealed<'a>(&mut self, frame: &'a mut [u8], known: Option<u64>) -> Decrypted<'a> {
        let confirmed =
            self.pending.as_mut().is_some_and(|pending| pending.open.channel.try_open(frame).is_ok());
        if let Some(pending) = self.pending.take_if(|_| confirmed) {
            count(&mut self.seals.opened);
            if !pending.open.key.is_accepted() {
                return Decrypted::Revoked;
            }
            if known.is_some_and(|known| known != pending.hello.device) {
                return Decrypted::OtherDevice;
            }
            self.handshakes = 0;
            self.open = Some(pending.open);
            return Decrypted::Admitted(pending.hello);
        }
        if self.is_revoked() {
            return Decrypted::Revoked;
        }
        let opened = match &mut self.open {
            Some(open) => open.channel.open(frame),
            None => {
                frame.fill(0);
                Err(OpenError::Forged)
            }
        };
        let message = match opened {
            Ok(message) => message,
            Err(reason) => {
                let replayed = reason == OpenError::Replayed;
                count(if replayed { &mut self.seals.replayed } else { &mut self.seals.forged });
                return Decrypted::Dropped;
            }
        };
        count(&mut self.seals.opened);
        match decode::<ToServer>(message) {
            Ok((message, body)) => Decrypted::Message(message, body),
            Err(_) => Decrypted::Fault(Fault::Malformed),
        }
    }

    /// Encodes a message, sealed once the handshake is completed. Before that only messages without private
    /// content are encoded.
    pub(super) fn encode(
        &mut self,
        message: &ToDevice,
        body: usize,
        fill: impl FnMut(&mut [u8]),
        out: &mut [u8],
    ) -> Result<usize, Error> {
        match (&mut self.open, self.acceptor.keys()) {
            (Some(open), _) => open.channel.seal(message, body, fill, out),
            (None, Some(_)) if !is_public(message) => Err(Error::Exhausted),
            _ => encode(message, body, fill, out),
        }
    }
}

/// Upper bound of [`SecureLayer::memory`].
pub(super) const SECURE_LAYER_MEMORY_MAX: usize = size_of::<PendingHandshake>() + wire_capacity(ANSWER_MAX);

/// Longest answer in bytes: header, nonce, longest Welcome or Refused, tag.
const ANSWER_MAX: usize = 1 + NONCE + 1 + 1 + 1 + 10 + 5 + TAG;

/// Returns true if a message may be sent to an unauthenticated peer.
fn is_public(message: &ToDevice) -> bool {
    matches!(message, ToDevice::Refused(_) | ToDevice::RetryAfter { .. } | ToDevice::Fault(Fault::Greet))
}

/// Returns the refusal of a hello with another wire version or schema.
fn version_refusal(message: &[u8]) -> Option<Refusal> {
    // A hello has tag 0.
    message.first().filter(|&&tag| tag == 0)?;
    let hello = HelloPrefix::read(message).ok()?;
    if hello.wire_version != WIRE_VERSION {
        return Some(Refusal::WireVersion { served: WIRE_VERSION });
    }
    (hello.schema_hash != SCHEMA_HASH).then_some(Refusal::Schema { served: SCHEMA_HASH })
}

fn count(counter: &mut u32) {
    *counter = counter.saturating_add(1);
}
