//! Secure layer between a connection and its link: answers hellos, decrypts incoming frames, and seals
//! (encrypts and authenticates) outgoing ones.

use std::sync::Arc;

use fedspan_protocol::Error;
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::limits::{BEACON_TAG, FRAME_LIMIT_MAX, SCHEMA_HASH, WIRE_VERSION, wire_capacity};
use fedspan_protocol::message::{Fault, Hello, HelloPrefix, Refusal, ToDevice, ToServer, decode};
use fedspan_protocol::secure::{
    Channel, HandshakeInit, NONCE, OpenError, Suite, TAG, refusal_tag, transcript,
};

use super::{Acceptor, DeviceReport};
use crate::keys::AcceptedKey;
use fedspan_engine::DeviceId;

/// Result of processing one frame.
pub(super) enum Decrypted<'a> {
    /// Message with its body.
    Message(ToServer, &'a [u8]),
    /// Hello of a device that is admitted and, under encryption, has proved its key. A report that proves it is the second value.
    Admitted(Hello, Option<Box<DeviceReport>>),
    /// Encoded frame to send in reply.
    Reply(Vec<u8>),
    /// The device is refused. The frame, if there is one, contains the sealed reason; without a frame the
    /// reason is sent unencrypted.
    Refused(Refusal, Option<Vec<u8>>),
    /// A second device has proved its key on the connection of another device.
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

/// Session keys, and the device key from which they are derived.
#[derive(Debug)]
struct SecureSession {
    /// Hash of the hello that the session keys belong to.
    transcript: [u8; 32],
    channel: Channel<Suite>,
    key: Arc<AcceptedKey>,
}

/// Counters of received frames under encryption.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SealCounters {
    /// Frames that were decrypted.
    pub opened: u32,
    /// Frames that were received before, or too late to decide.
    pub replayed: u32,
    /// Frames that failed authentication.
    pub forged: u32,
    /// Unsealed frames where sealing is required.
    pub unsealed: u32,
}

/// Encryption state of one connection.
#[derive(Debug)]
pub(super) struct SecureLayer {
    acceptor: Arc<Acceptor>,
    /// Longest frame that the link carries, in bytes.
    longest_frame: usize,
    pending: Option<Box<PendingHandshake>>,
    open: Option<SecureSession>,
    /// Hellos answered since the last completed handshake.
    handshakes: u32,
    handshakes_max: u32,
    seals: SealCounters,
}

/// Number of tags of a refusal: of the current key, and of the previous one while it is being replaced.
const REFUSAL_TAGS: usize = 2;

/// Largest number of hellos of one connection that are answered before a handshake is completed. Each answer
/// costs a key derivation. A device repeats the same hello, for which no keys are derived again, and sends a
/// different one only after a reset.
const HANDSHAKES_MAX: u32 = 16;

impl SecureLayer {
    /// Creates a secure layer. On a `persistent` link any number of hellos is answered: the speed of the link
    /// limits them, and the device has no other connection.
    pub(super) fn new(acceptor: Arc<Acceptor>, persistent: bool) -> Self {
        let handshakes_max = if persistent { u32::MAX } else { HANDSHAKES_MAX };
        Self {
            acceptor,
            longest_frame: FRAME_LIMIT_MAX,
            handshakes_max,
            pending: None,
            open: None,
            handshakes: 0,
            seals: SealCounters::default(),
        }
    }

    /// Returns the layer of a link that carries frames of at most this many bytes.
    pub(super) fn with_longest_frame(self, longest_frame: usize) -> Self {
        Self { longest_frame, ..self }
    }

    /// Returns the handshake parameters.
    pub(super) fn acceptor(&self) -> &Acceptor {
        &self.acceptor
    }

    /// Returns the counters of received frames.
    pub(super) fn seals(&self) -> SealCounters {
        self.seals
    }

    /// Returns true if the server requires encryption.
    pub(super) fn is_encrypted(&self) -> bool {
        self.acceptor.keys().is_some()
    }

    /// Returns the size of the heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.pending.as_ref().map_or(0, |pending| size_of::<PendingHandshake>() + pending.answer.capacity())
    }

    /// Returns the device key of this connection.
    pub(super) fn key(&self) -> Option<Arc<AcceptedKey>> {
        self.open.as_ref().map(|session| Arc::clone(&session.key))
    }

    /// Returns the key that is to be sent to the device of this connection, because it uses the previous one.
    pub(super) fn key_to_send(&self, device: u64) -> Option<Arc<AcceptedKey>> {
        let session = self.open.as_ref()?;
        self.acceptor.keys()?.key_to_send(DeviceId(device), session.key.epoch())
    }

    /// Returns the tag of a beacon for this device; `None` if frames are not encrypted.
    pub(super) fn beacon_tag(&self, message: &[u8]) -> Option<[u8; BEACON_TAG]> {
        self.open.as_ref().map(|session| session.channel.beacon_tag(message))
    }

    /// Returns true if the device key of this connection was revoked or replaced.
    pub(super) fn is_revoked(&self) -> bool {
        self.open.as_ref().is_some_and(|session| !session.key.is_accepted())
    }

    /// Processes an unsealed frame, which is not authenticated.
    pub(super) fn process_unsealed<'a>(&mut self, message: &'a [u8]) -> Decrypted<'a> {
        let decrypted = match (version_refusal(message), decode::<ToServer>(message)) {
            (Some(refusal), _) => Decrypted::Refused(refusal, self.tagged_refusal(refusal, message)),
            (None, Ok((ToServer::Hello(hello), body))) => self.process_hello(hello, body, message),
            _ if self.is_encrypted() => Decrypted::Dropped,
            (None, Ok((message, body))) => Decrypted::Message(message, body),
            (None, Err(_)) => Decrypted::Fault(Fault::Malformed),
        };
        // An unauthenticated frame must not end an authenticated session.
        let is_harmless = matches!(decrypted, Decrypted::Reply(_)) || !self.is_encrypted();
        if matches!(decrypted, Decrypted::Dropped) || !is_harmless && self.open.is_some() {
            increment(&mut self.seals.unsealed);
            return Decrypted::Dropped;
        }
        decrypted
    }

    /// Encodes a refusal of the wire version with a tag for each key of the device, so that the device can distinguish it from one of a
    /// stranger. Returns `None` without a key of this device.
    ///
    /// The answer is no longer than the hello, and its number is limited like that of handshakes: a sender may be forged.
    fn tagged_refusal(&mut self, refusal: Refusal, hello: &[u8]) -> Option<Vec<u8>> {
        if self.open.is_some() || self.handshakes >= self.handshakes_max {
            return None;
        }
        let device = HelloPrefix::read(hello).ok()?.device;
        let (refused, transcript) = (ToDevice::Refused(refusal), transcript(hello));
        let message = encoded_message(&refused)?;
        if hello.len() < message.len() + REFUSAL_TAGS * TAG {
            return None;
        }
        let keys = self.acceptor.keys()?.keys_of(DeviceId(device));
        let newest = keys.first()?;
        self.handshakes = self.handshakes.saturating_add(1);
        let mut tags: Vec<u8> =
            keys.iter().flat_map(|key| refusal_tag(key.key(), &transcript, &message)).collect();
        // So that the answer does not reveal whether the device's key is being replaced.
        while tags.len() < REFUSAL_TAGS * TAG {
            tags.extend(refusal_tag(newest.key(), &transcript, &tags));
        }
        let mut out = vec![0; wire_capacity(ANSWER_MAX)];
        let length = encode(&refused, tags.len(), |body| body.copy_from_slice(&tags), &mut out).ok()?;
        out.truncate(length);
        Some(out)
    }

    /// Checks a hello, and answers it under encryption.
    fn process_hello(&mut self, hello: Hello, body: &[u8], hello_bytes: &[u8]) -> Decrypted<'static> {
        let handshake = match HandshakeInit::read(body) {
            None if !body.is_empty() => return Decrypted::Fault(Fault::Malformed),
            handshake => handshake,
        };
        match (self.acceptor.keys(), handshake) {
            (None, None) => match self.acceptor.admit(&hello, self.longest_frame) {
                Ok(()) => Decrypted::Admitted(hello, None),
                Err(refusal) => Decrypted::Refused(refusal, None),
            },
            (None, Some(_)) => Decrypted::Refused(Refusal::NoKeysHere, None),
            (Some(_), None) => Decrypted::Refused(Refusal::KeyNeeded, None),
            (Some(_), Some(_)) if self.handshakes >= self.handshakes_max => Decrypted::Dropped,
            (Some(keys), Some(handshake)) => {
                let transcript = transcript(hello_bytes);
                if let Some(pending) =
                    self.pending.as_ref().filter(|pending| pending.open.transcript == transcript)
                {
                    // A repeated hello: the answer was lost, or is still in transit.
                    return Decrypted::Reply(pending.answer.clone());
                }
                if self.open.as_ref().is_some_and(|session| session.transcript == transcript) {
                    // This hello began the current session; the copy was delayed by the network or replayed
                    // by an attacker.
                    return Decrypted::Dropped;
                }
                match keys.lookup(DeviceId(hello.device), handshake.epoch) {
                    Some(key) => self.answer_hello(hello, transcript, key).unwrap_or(Decrypted::Dropped),
                    None => Decrypted::Refused(Refusal::UnknownDevice, None),
                }
            }
        }
    }

    /// Answers the hello of a known device; returns `None` if the source of randomness fails.
    fn answer_hello(
        &mut self,
        hello: Hello,
        transcript: [u8; 32],
        key: Arc<AcceptedKey>,
    ) -> Option<Decrypted<'static>> {
        self.handshakes = self.handshakes.saturating_add(1);
        let nonce = self.acceptor.nonce()?;
        let suite = Suite::announced(hello.capabilities.roles);
        let channel = Channel::server_with(suite, key.key(), &transcript, &nonce);
        let mut channel = channel.with_seals(self.acceptor.seals());
        let admission = self.acceptor.admit(&hello, self.longest_frame);
        let message = match admission {
            Ok(()) => ToDevice::Welcome(self.acceptor.welcome()),
            Err(refusal) => ToDevice::Refused(refusal),
        };
        let mut answer = vec![0; wire_capacity(ANSWER_MAX)];
        let sent = channel.seal_answer(&nonce, &message, &mut answer).ok()?;
        answer.truncate(sent);
        answer.shrink_to_fit();
        if let Err(refusal) = admission {
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

    /// Processes a sealed frame. The first sealed frame after an answer completes the handshake. Its content is ignored, except for
    /// a report: that comes first if the proof before it is lost, and the next one comes many rounds later. `known_device` is the device
    /// that has completed an earlier handshake on the connection.
    pub(super) fn process_sealed<'a>(
        &mut self,
        frame: &'a mut [u8],
        known_device: Option<u64>,
    ) -> Decrypted<'a> {
        let proof = self.pending.as_mut().and_then(|pending| pending.open.channel.try_open(frame).ok());
        if let Some(pending) = self.pending.take_if(|_| proof.is_some()) {
            increment(&mut self.seals.opened);
            if !pending.open.key.is_accepted() {
                return Decrypted::Revoked;
            }
            if known_device.is_some_and(|known| known != pending.hello.device) {
                return Decrypted::OtherDevice;
            }
            self.handshakes = 0;
            self.open = Some(pending.open);
            let proof = proof.and_then(|range| frame.get(range)).unwrap_or_default();
            let report = decode(proof).ok().and_then(|(message, body)| DeviceReport::read(&message, body));
            return Decrypted::Admitted(pending.hello, report.map(Box::new));
        }
        if self.is_revoked() {
            return Decrypted::Revoked;
        }
        let opened = match &mut self.open {
            Some(session) => session.channel.open(frame),
            None => {
                frame.fill(0);
                Err(OpenError::Forged)
            }
        };
        let message = match opened {
            Ok(message) => message,
            Err(reason) => {
                let replayed = reason == OpenError::Replayed;
                increment(if replayed { &mut self.seals.replayed } else { &mut self.seals.forged });
                return Decrypted::Dropped;
            }
        };
        increment(&mut self.seals.opened);
        match decode::<ToServer>(message) {
            Ok((message, body)) => Decrypted::Message(message, body),
            Err(_) => Decrypted::Fault(Fault::Malformed),
        }
    }

    /// Encodes a message; seals it once the handshake is completed. Before the handshake only messages
    /// without private content are encoded.
    pub(super) fn encode(
        &mut self,
        message: &ToDevice,
        body: usize,
        fill: impl FnMut(&mut [u8]),
        out: &mut [u8],
    ) -> Result<usize, Error> {
        match (&mut self.open, self.acceptor.keys()) {
            (Some(session), _) => session.channel.seal(message, body, fill, out),
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

/// Returns the bytes of a message without a body.
fn encoded_message(message: &ToDevice) -> Option<Vec<u8>> {
    let mut frame = vec![0; wire_capacity(ANSWER_MAX)];
    let length = encode(message, 0, |_| {}, &mut frame).ok()?;
    match Decoder::new(vec![0; ANSWER_MAX]).feed(&mut frame.get(..length)?) {
        FeedResult::Message(message) => Some(message.to_vec()),
        _ => None,
    }
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

/// Increments a counter, which saturates.
fn increment(counter: &mut u32) {
    *counter = counter.saturating_add(1);
}
