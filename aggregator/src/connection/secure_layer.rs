//! What stands between a connection and its link: it answers hellos, opens what comes in, seals what goes out.

use std::sync::Arc;

use fedspan_protocol::Error;
use fedspan_protocol::frame::encode;
use fedspan_protocol::limits::{SCHEMA_HASH, WIRE_VERSION, wire_capacity};
use fedspan_protocol::message::{Fault, Hello, Introduction, Refusal, ToDevice, ToServer, decode};
use fedspan_protocol::secure::{Channel, Greeting, NONCE, TAG, Unopened, transcript};

use super::Acceptor;
use crate::keys::AcceptedKey;

/// What became of a frame.
pub(super) enum Decrypted<'a> {
    /// A message with its body, to act on.
    Message(ToServer, &'a [u8]),
    /// A device is who it says it is (as far as this server asks for proof), and may take part. With what it said
    /// to prove it.
    Admitted(Hello),
    /// This is to be sent, as it is.
    Reply(Vec<u8>),
    /// It may not take part. What it is told, if that is sealed; else it is told in the clear.
    Refused(Refusal, Option<Vec<u8>>),
    /// Another device has shown that it has its key.
    OtherDevice,
    /// Its key has been revoked or replaced.
    Revoked,
    /// Not for this connection, and counted.
    Dropped,
    /// Without sense.
    Fault(Fault),
}

/// A hello that was answered, and not yet confirmed.
#[derive(Debug)]
struct Pending {
    hello: Hello,
    answer: Vec<u8>,
    open: Open,
}

/// Keys that both sides have, and where they come from.
#[derive(Debug)]
struct Open {
    /// Of the hello that these keys answer.
    transcript: [u8; 32],
    channel: Channel,
    key: Arc<AcceptedKey>,
}

/// Sealed frames by what became of them, and frames that should have been sealed.
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
    pending: Option<Box<Pending>>,
    open: Option<Open>,
    /// Hellos that were answered since the last confirmation.
    answers: u32,
    answers_max: u32,
    seals: SealCounters,
}

/// Hellos of one connection that are answered before one is confirmed: each costs the derivation of keys. A device
/// says the same hello again, which is free, and a new one only after a reset.
const ANSWERS_MAX: u32 = 16;

impl SecureLayer {
    /// `persistent`: the link is as slow as a line is, and there is no other to come back on.
    pub(super) fn new(acceptor: Arc<Acceptor>, persistent: bool) -> Self {
        let answers_max = if persistent { u32::MAX } else { ANSWERS_MAX };
        Self { acceptor, answers_max, pending: None, open: None, answers: 0, seals: SealCounters::default() }
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

    /// Bytes that it has on the heap.
    pub(super) fn memory(&self) -> usize {
        self.pending.as_ref().map_or(0, |pending| size_of::<Pending>() + pending.answer.capacity())
    }

    /// The key that this connection uses.
    pub(super) fn key(&self) -> Option<Arc<AcceptedKey>> {
        self.open.as_ref().map(|open| Arc::clone(&open.key))
    }

    /// The key that this connection uses is not accepted any more.
    pub(super) fn is_revoked(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !open.key.is_accepted())
    }

    /// A frame with a checksum, which anybody may have sent.
    pub(super) fn checked<'a>(&mut self, message: &'a [u8]) -> Decrypted<'a> {
        let decrypted = match (foreign(message), decode::<ToServer>(message)) {
            (Some(refusal), _) => Decrypted::Refused(refusal, None),
            (None, Ok((ToServer::Hello(hello), body))) => self.hello(hello, body, message),
            _ if self.is_encrypted() => Decrypted::Dropped,
            (None, Ok((message, body))) => Decrypted::Message(message, body),
            (None, Err(_)) => Decrypted::Fault(Fault::Malformed),
        };
        // Who proves nothing ends no conversation of one who has.
        let harmless = matches!(decrypted, Decrypted::Reply(_)) || !self.is_encrypted();
        if matches!(decrypted, Decrypted::Dropped) || !harmless && self.open.is_some() {
            count(&mut self.seals.unsealed);
            return Decrypted::Dropped;
        }
        decrypted
    }

    fn hello(&mut self, hello: Hello, body: &[u8], bytes: &[u8]) -> Decrypted<'static> {
        let greeting = match Greeting::read(body) {
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
            (Some(_), Some(_)) if self.answers >= self.answers_max => Decrypted::Dropped,
            (Some(keys), Some(greeting)) => {
                let transcript = transcript(bytes);
                if let Some(pending) =
                    self.pending.as_ref().filter(|pending| pending.open.transcript == transcript)
                {
                    // Its answer was lost, or is late.
                    return Decrypted::Reply(pending.answer.clone());
                }
                if self.open.as_ref().is_some_and(|open| open.transcript == transcript) {
                    // The same once more, from before its answer came; or somebody has recorded it.
                    return Decrypted::Dropped;
                }
                match keys.lookup(hello.device, greeting.epoch) {
                    Some(key) => self.begin(hello, transcript, key).unwrap_or(Decrypted::Dropped),
                    None => Decrypted::Refused(Refusal::UnknownDevice, None),
                }
            }
        }
    }

    /// Answers the hello of a device whose key is known. `None` if there is no randomness to do so.
    fn begin(
        &mut self,
        hello: Hello,
        transcript: [u8; 32],
        key: Arc<AcceptedKey>,
    ) -> Option<Decrypted<'static>> {
        self.answers = self.answers.saturating_add(1);
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
        let pending = Pending { hello, answer: answer.clone(), open: Open { transcript, channel, key } };
        self.pending = Some(Box::new(pending));
        Some(Decrypted::Reply(answer))
    }

    /// A sealed frame. The first one after an answer shows that the device has its key; what it says is only that.
    /// `known`: the device that has shown it before.
    pub(super) fn sealed<'a>(&mut self, frame: &'a mut [u8], known: Option<u64>) -> Decrypted<'a> {
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
            self.answers = 0;
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
                Err(Unopened::Forged)
            }
        };
        let message = match opened {
            Ok(message) => message,
            Err(reason) => {
                let replayed = reason == Unopened::Replayed;
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

    /// Encodes a message under what protection there is. Before there is any, only what tells nothing.
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

/// The most that [`SecureLayer::memory`] says.
pub(super) const SECURE_LAYER_MEMORY_MAX: usize = size_of::<Pending>() + wire_capacity(ANSWER_MAX);

/// A frame's bytes of an answer: a header, a nonce, the longest Welcome or Refused, a tag.
const ANSWER_MAX: usize = 1 + NONCE + 1 + 1 + 1 + 10 + 5 + TAG;

/// What may be said to somebody who has proved nothing.
fn is_public(message: &ToDevice) -> bool {
    matches!(message, ToDevice::Refused(_) | ToDevice::RetryAfter { .. } | ToDevice::Fault(Fault::Greet))
}

/// The refusal for a hello of another version.
fn foreign(message: &[u8]) -> Option<Refusal> {
    // Most messages are none.
    message.first().filter(|&&tag| tag == 0)?;
    let hello = Introduction::read(message).ok()?;
    if hello.wire_version != WIRE_VERSION {
        return Some(Refusal::WireVersion { served: WIRE_VERSION });
    }
    (hello.schema_hash != SCHEMA_HASH).then_some(Refusal::Schema { served: SCHEMA_HASH })
}

fn count(counter: &mut u32) {
    *counter = counter.saturating_add(1);
}
