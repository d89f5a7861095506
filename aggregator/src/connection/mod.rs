//! Connection: the server half of the protocol for one device, without a socket. Bytes in, messages out;
//! commands in, frames out. The server and the simulator use the same code.

mod acceptor;
mod incoming;
mod outgoing;
mod secure_layer;

use std::collections::VecDeque;
use std::sync::Arc;

use fedspan_protocol::assembly::plan;
use fedspan_protocol::frame::{Decoder, FeedResult, FrameCounters};
use fedspan_protocol::limits::{FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, HELLO_FRAME_MAX, wire_capacity};
use fedspan_protocol::message::{
    CHOOSES_RIDGE, Decline, Descriptors, Fault, Hello, Missing, Refusal, RoundId, ToDevice, ToServer,
};
use incoming::{PartialUpdate, begin_update, discard_partial, take_chunk};
use outgoing::{Outgoing, SentRound};
use secure_layer::{Decrypted, SECURE_LAYER_MEMORY_MAX, SecureLayer};

use crate::keys::AcceptedKey;
use fedspan_engine::{RoundBroadcast, Update};

pub use acceptor::Acceptor;

/// Message of a device, decrypted and validated.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// Hello of an admissible device, which has been welcomed and, under encryption, has proved its key. A
    /// repeated hello means that the device has restarted or its welcome was lost; pending messages and the
    /// open round are dropped.
    Hello(Hello),
    /// Hello of another device on a connection that has one; answered with a fault and dropped.
    OtherDevice,
    /// Hello of a device that is refused; the reason is queued, and nothing more is read.
    Refused(Refusal),
    /// The device's key was revoked or replaced; nothing more is read or sent.
    Revoked,
    /// A complete update.
    Update(Update),
    /// An update for a round that is not open on this connection; its tensors were not decoded.
    UnreadUpdate(RoundId),
    /// The device declines a round.
    Decline(Decline),
    /// Keep-alive.
    Alive,
    /// Message that the protocol does not allow at this point; answered with a fault and dropped.
    Fault(Fault),
}

/// Traffic counters of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes received after the hello.
    pub up: u64,
    /// Bytes sent after the hello, from the welcome on.
    pub down: u64,
    /// Messages that the protocol does not allow at that point.
    pub faults: u32,
    /// Repeated chunks, chunks and chunk requests for updates or rounds that were complete, closed or replaced,
    /// and updates that were restarted before they were complete.
    pub stale: u32,
    /// Messages that did not fit a frame; above 0 only after a programming error.
    pub unsent: u32,
    /// Replies dropped because too many were waiting for the device to read them.
    pub unheeded: u32,
    /// Rounds sent again because they were not answered.
    pub reopened: u32,
    /// Final heads requested with a fixed ridge, from a device that cannot choose one.
    pub unchosen: u32,
    /// Counters of the frame decoder. Under encryption `accepted` counts frames that were decrypted.
    pub frames: FrameCounters,
    /// Sealed frames received a second time, or too late to tell.
    pub replayed: u32,
    /// Sealed frames that failed authentication, or arrived before a handshake.
    pub forged: u32,
    /// Unsealed messages received where sealing is required.
    pub unsealed: u32,
}

impl Traffic {
    /// Returns the traffic since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (now, then) = (&self.frames, &earlier.frames);
        Self {
            up: self.up.saturating_sub(earlier.up),
            down: self.down.saturating_sub(earlier.down),
            faults: self.faults.saturating_sub(earlier.faults),
            stale: self.stale.saturating_sub(earlier.stale),
            unsent: self.unsent.saturating_sub(earlier.unsent),
            unheeded: self.unheeded.saturating_sub(earlier.unheeded),
            reopened: self.reopened.saturating_sub(earlier.reopened),
            unchosen: self.unchosen.saturating_sub(earlier.unchosen),
            frames: FrameCounters {
                accepted: now.accepted.saturating_sub(then.accepted),
                oversize: now.oversize.saturating_sub(then.oversize),
                framing: now.framing.saturating_sub(then.framing),
                check: now.check.saturating_sub(then.check),
                header: now.header.saturating_sub(then.header),
                sealed: now.sealed.saturating_sub(then.sealed),
            },
            replayed: self.replayed.saturating_sub(earlier.replayed),
            forged: self.forged.saturating_sub(earlier.forged),
            unsealed: self.unsealed.saturating_sub(earlier.unsealed),
        }
    }

    /// Returns the number of malformed frames.
    #[must_use]
    pub fn dropped(&self) -> u32 {
        let FrameCounters { oversize, framing, check, header, .. } = self.frames;
        [oversize, framing, check, header].into_iter().fold(0, u32::saturating_add)
    }

    /// Returns the number of faults and dropped frames.
    #[must_use]
    pub fn protocol_errors(&self) -> u32 {
        let frames = [self.dropped(), self.replayed, self.forged, self.unsealed];
        frames.into_iter().fold(self.faults, u32::saturating_add)
    }
}

/// Messages waiting for the socket at which further replies to the device are dropped.
pub const OUTBOX_MAX: usize = 6;

/// Most messages in the outbox: replies, and a round that the core opens at the same time.
const OUTBOX_CAPACITY: usize = OUTBOX_MAX + 2;

/// Slots of the outbox that are kept while it is empty.
const OUTBOX_IDLE_CAPACITY: usize = 4;

/// Server half of the protocol for one device.
#[derive(Debug)]
pub struct Connection {
    decoder: Decoder<Vec<u8>>,
    secure: SecureLayer,
    limit: usize,
    /// Whether the link outlasts this connection; such a link asks for a hello when a device sends anything
    /// else.
    persistent: bool,
    greeted: bool,
    /// Device that has said hello.
    device: Option<u64>,
    /// Whether the device can choose the ridge of its final head.
    chooses_ridge: bool,
    outbox: VecDeque<Outgoing>,
    /// Round that is open on this device, and the chunking of its tensors.
    open: Option<SentRound>,
    /// Whether the open round has had no answer.
    unanswered: bool,
    /// Requests for chunks of open rounds.
    chunk_requests: u64,
    incoming: Option<PartialUpdate>,
    /// Round of the update that was last completed, declined, closed or replaced; its chunks may still arrive.
    last_update: Option<RoundId>,
    traffic: Traffic,
}

impl Connection {
    /// Makes a connection before its hello; frames are short until then.
    #[must_use]
    pub fn new(acceptor: Arc<Acceptor>) -> Self {
        Self::on(acceptor, false)
    }

    fn on(acceptor: Arc<Acceptor>, persistent: bool) -> Self {
        Self {
            decoder: Decoder::new(vec![0; HELLO_FRAME_MAX]),
            secure: SecureLayer::new(acceptor, persistent),
            limit: HELLO_FRAME_MAX,
            persistent,
            greeted: false,
            device: None,
            chooses_ridge: false,
            outbox: VecDeque::new(),
            open: None,
            unanswered: false,
            chunk_requests: 0,
            incoming: None,
            last_update: None,
            traffic: Traffic::default(),
        }
    }

    /// Makes a connection on a link that outlasts it, such as a serial port. It begins by asking for a hello.
    #[must_use]
    pub fn persistent(acceptor: Arc<Acceptor>) -> Self {
        let mut connection = Self::on(acceptor, true);
        connection.send(ToDevice::Fault(Fault::Greet));
        connection
    }

    /// Returns true if the link outlasts the connection.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Returns the traffic counters.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let seals = self.secure.seals();
        let mut frames = self.decoder.counters();
        if self.secure.is_encrypted() {
            frames.accepted = seals.opened;
        }
        let (replayed, forged, unsealed) = (seals.replayed, seals.forged, seals.unsealed);
        Traffic { frames, replayed, forged, unsealed, ..self.traffic }
    }

    /// Returns the memory of the connection in bytes, without an incoming update and without the open round,
    /// which connections share.
    #[must_use]
    pub fn memory(&self) -> usize {
        let outbox = self.outbox.capacity() * size_of::<Outgoing>();
        let answers_round: usize = self.outbox.iter().map(Outgoing::memory).sum();
        size_of::<Self>() + self.frame_capacity() + outbox + answers_round + self.secure.memory()
    }

    /// Returns an upper bound of [`Self::memory`] over all inputs, provided that the core's commands are sent
    /// before the next ones are queued.
    #[must_use]
    pub fn memory_max(&self) -> usize {
        let outbox = OUTBOX_CAPACITY * size_of::<Outgoing>();
        let answer = SECURE_LAYER_MEMORY_MAX;
        size_of::<Self>() + self.secure.acceptor().longest_frame(FRAME_LIMIT_MAX) + outbox + 2 * answer
    }

    /// Returns the memory of the incoming update in bytes, decoded.
    #[must_use]
    pub fn update_memory(&self) -> usize {
        self.incoming.as_ref().map_or(0, PartialUpdate::memory)
    }

    /// Returns the length of the longest frame that is accepted.
    fn frame_capacity(&self) -> usize {
        if self.greeted { self.secure.acceptor().longest_frame(self.limit) } else { HELLO_FRAME_MAX }
    }

    /// Resets the byte counters, as hello and welcome belong to no round.
    pub fn reset_traffic(&mut self) {
        self.traffic = Traffic { up: 0, down: 0, ..self.traffic };
    }

    /// Requests the missing chunks of an unfinished update, if there is one.
    pub fn request_missing(&mut self) {
        let missing = self.incoming.as_ref().and_then(|update| update.assembly.missing(update.head.id));
        if let Some(missing) = missing {
            self.send(ToDevice::Missing(missing));
        }
    }

    /// Takes bytes from the device and appends its messages.
    pub fn receive(&mut self, bytes: &[u8], messages: &mut Vec<PeerMessage>) {
        let mut input = bytes;
        while let Some(message) = self.next_message(&mut input) {
            messages.push(message);
        }
    }

    /// Takes bytes up to the end of the next frame that yields a message. `None` once the input is used up.
    pub fn next_message(&mut self, input: &mut &[u8]) -> Option<PeerMessage> {
        let (counts, before) = (self.greeted, input.len());
        let messages = self.next(input);
        if counts {
            self.traffic.up += (before - input.len()) as u64;
        }
        messages
    }

    fn next(&mut self, input: &mut &[u8]) -> Option<PeerMessage> {
        loop {
            let known = self.device;
            // The decoder lends its buffer, so the frame is converted to an owned value before `self` is used
            // again.
            let decrypted = match self.decoder.feed(input) {
                FeedResult::NeedMore => return None,
                FeedResult::Dropped(_) => continue,
                FeedResult::Message(message) => self.secure.process_unsealed(message),
                FeedResult::Sealed(frame) => self.secure.process_sealed(frame, known),
            };
            let parsed = match decrypted {
                Decrypted::Message(message, body) => {
                    if let Some(round) = self.open.as_ref().map(|cut| cut.opening.id) {
                        self.unanswered &= !answers_round(&message, round);
                        self.chunk_requests += u64::from(requests_chunks(&message, round));
                    }
                    let (incoming, last_update) = (&mut self.incoming, &mut self.last_update);
                    Self::dispatch(incoming, last_update, self.open.as_ref(), self.greeted, message, body)
                }
                Decrypted::Admitted(hello) => Ok(Dispatch::Hello(hello)),
                Decrypted::Reply(answer) => Ok(Dispatch::Reply(answer)),
                Decrypted::Refused(refusal, sealed) => {
                    self.outbox.push_back(match sealed {
                        Some(answer) => Outgoing::Encoded(answer),
                        None => Outgoing::Message(ToDevice::Refused(refusal)),
                    });
                    *input = &[];
                    return Some(PeerMessage::Refused(refusal));
                }
                Decrypted::OtherDevice => {
                    self.fault(Fault::Unexpected);
                    return Some(PeerMessage::OtherDevice);
                }
                Decrypted::Revoked => {
                    self.outbox.clear();
                    *input = &[];
                    return Some(PeerMessage::Revoked);
                }
                Decrypted::Dropped => {
                    self.request_hello();
                    continue;
                }
                Decrypted::Fault(fault) => Err(fault),
            };
            match parsed {
                Ok(Dispatch::Hello(hello)) if known.is_none_or(|known| known == hello.device) => {
                    self.outbox.clear();
                    (self.open, self.unanswered, self.incoming, self.last_update) = (None, false, None, None);
                    self.greet(&hello);
                    return Some(PeerMessage::Hello(hello));
                }
                Ok(Dispatch::Hello(_)) => {
                    self.fault(Fault::Unexpected);
                    return Some(PeerMessage::OtherDevice);
                }
                Ok(Dispatch::Reply(answer)) => {
                    // The device uses the last of several answers.
                    self.outbox.retain(|out| !matches!(out, Outgoing::Encoded(_)));
                    self.queue(Outgoing::Encoded(answer));
                }
                Ok(Dispatch::Deliver(message)) => return Some(message),
                Ok(Dispatch::Resend(missing)) => {
                    if let Err(fault) = self.resend(missing) {
                        return Some(self.fault(fault));
                    }
                }
                Ok(Dispatch::Nothing) => {}
                Ok(Dispatch::Stale) => self.traffic.stale = self.traffic.stale.saturating_add(1),
                Err(fault) => return Some(self.fault(fault)),
            }
        }
    }

    /// Asks for a hello on a persistent link.
    fn request_hello(&mut self) {
        if self.persistent && !self.greeted && self.outbox.is_empty() {
            self.send(ToDevice::Fault(Fault::Greet));
        }
    }

    /// Counts a fault and replies with it, unless too many replies are waiting.
    fn fault(&mut self, fault: Fault) -> PeerMessage {
        self.traffic.faults = self.traffic.faults.saturating_add(1);
        match self.greeted {
            true => self.queue(Outgoing::Message(ToDevice::Fault(fault))),
            false => self.request_hello(),
        }
        PeerMessage::Fault(fault)
    }

    /// Queues a reply, unless too many are waiting: the device can cause any number of them.
    fn queue(&mut self, out: Outgoing) {
        if self.outbox.len() < OUTBOX_MAX {
            self.outbox.push_back(out);
        } else {
            self.traffic.unheeded = self.traffic.unheeded.saturating_add(1);
        }
    }

    fn dispatch(
        incoming: &mut Option<PartialUpdate>,
        last_update: &mut Option<RoundId>,
        open: Option<&SentRound>,
        greeted: bool,
        message: ToServer,
        body: &[u8],
    ) -> Result<Dispatch, Fault> {
        match message {
            _ if !greeted => Err(Fault::Unexpected),
            ToServer::Update(head) if open.is_none_or(|cut| cut.opening.id != head.id) => {
                // There is no request to validate the update against; the engine decides what to do with it.
                *last_update = Some(head.id);
                Ok(Dispatch::Deliver(PeerMessage::UnreadUpdate(head.id)))
            }
            ToServer::Update(head) => begin_update(incoming, open, head, body),
            ToServer::Chunk(chunk) => take_chunk(incoming, last_update, &chunk, body),
            ToServer::Missing(missing) => Ok(Dispatch::Resend(missing)),
            ToServer::Decline(decline) => {
                discard_partial(incoming, last_update);
                Ok(Dispatch::Deliver(PeerMessage::Decline(decline)))
            }
            ToServer::Alive => Ok(Dispatch::Deliver(PeerMessage::Alive)),
            _ => Err(Fault::Unexpected),
        }
    }

    fn greet(&mut self, hello: &Hello) {
        self.greeted = true;
        self.device = Some(hello.device);
        self.chooses_ridge = hello.capabilities.roles & CHOOSES_RIDGE != 0;
        self.limit = usize::from(hello.capabilities.frame_limit).clamp(FRAME_LIMIT_MIN, FRAME_LIMIT_MAX);
        self.decoder.set_buffer(vec![0; self.frame_capacity()]);
        if !self.secure.is_encrypted() {
            self.send(ToDevice::Welcome(self.secure.acceptor().welcome()));
        }
    }

    /// Returns true if the device's key was revoked or replaced: nothing more is read or sent.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.secure.is_revoked()
    }

    /// Returns the key of the last message; `None` before the handshake and in plaintext.
    #[must_use]
    pub fn key(&self) -> Option<Arc<AcceptedKey>> {
        self.secure.key()
    }

    /// Queues a message.
    pub fn send(&mut self, message: ToDevice) {
        self.outbox.push_back(Outgoing::Message(message));
    }

    /// Replaces an unsent welcome by a retry delay, as no connection slot is free.
    pub fn turn_away(&mut self, milliseconds: u32) {
        self.outbox.clear();
        self.send(ToDevice::RetryAfter { milliseconds });
    }

    /// Opens a round on the device: queues `RoundOpen`, and its tensors in chunks if they do not fit the frame.
    /// A device that cannot choose a ridge is asked for a head with the fallback ridge instead.
    pub fn open(&mut self, opening: &Arc<RoundBroadcast>) {
        let encoding = opening.request.encoding;
        let mut tensors: Descriptors =
            opening.request.tensors.iter().map(|t| t.descriptor(encoding)).collect();
        if plan(&mut tensors, self.limit).is_err() {
            self.traffic.unsent = self.traffic.unsent.saturating_add(1);
            return;
        }
        discard_partial(&mut self.incoming, &mut self.last_update);
        self.outbox.retain(|out| matches!(out, Outgoing::Message(_)));
        let task = opening.request.task;
        let plain = task.without_ridge_choice().filter(|_| !self.chooses_ridge);
        self.traffic.unchosen = self.traffic.unchosen.saturating_add(plain.is_some().into());
        let opening = Arc::clone(opening);
        self.open = Some(SentRound { opening, task: plain.unwrap_or(task), tensors });
        self.unanswered = true;
        self.send_open();
    }

    fn send_open(&mut self) {
        let Some(cut) = &self.open else { return };
        let chunks = cut.tensors.iter().any(|t| t.chunk > 0);
        self.outbox.push_back(Outgoing::Open);
        if chunks {
            self.outbox.push_back(Outgoing::Chunks(0, 0));
        }
    }

    /// Returns the number of chunk requests so far if the open round has been sent and not been answered. While
    /// the number grows the device is still receiving the round; if it stays the device may have restarted or
    /// never received it.
    #[must_use]
    pub fn unanswered(&self) -> Option<u64> {
        (self.unanswered && self.outbox.is_empty()).then_some(self.chunk_requests)
    }

    /// Sends the open round again if it has not been answered.
    pub fn resend_round(&mut self) {
        if self.unanswered().is_some() {
            self.traffic.reopened = self.traffic.reopened.saturating_add(1);
            self.send_open();
        }
    }

    /// Closes a round on the device.
    pub fn close_round(&mut self, id: RoundId) {
        if self.open.as_ref().is_some_and(|cut| cut.opening.id == id) {
            self.outbox.retain(|out| matches!(out, Outgoing::Message(_)));
            self.unanswered = false;
        }
        // The device stops sending its update, so waiting for the rest would end in a timeout.
        if self.incoming.as_ref().is_some_and(|update| update.head.id == id) {
            discard_partial(&mut self.incoming, &mut self.last_update);
        }
        self.send(ToDevice::RoundClosed(id));
    }

    fn resend(&mut self, mut missing: Missing) -> Result<(), Fault> {
        let Some(cut) = self.open.as_ref().filter(|cut| cut.opening.id == missing.id) else {
            self.traffic.stale = self.traffic.stale.saturating_add(1);
            return Ok(());
        };
        let tensor = cut.tensors.get(usize::from(missing.tensor));
        let chunk_requests = missing.chunks.len();
        missing.chunks.retain(|&index| tensor.is_some_and(|t| t.chunk_range(index.into()).is_some()));
        let all = missing.chunks.len() == chunk_requests;
        if !missing.chunks.is_empty() {
            self.queue(Outgoing::Resend(missing));
        }
        if all { Ok(()) } else { Err(Fault::Tensors) }
    }

    /// Returns true while a frame or a chunked update is incomplete.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.decoder.is_mid_frame() || self.is_mid_update()
    }

    /// Returns true while a chunked update is incomplete.
    #[must_use]
    pub fn is_mid_update(&self) -> bool {
        self.incoming.is_some()
    }

    /// Returns the number of chunks received of the incomplete update, without duplicates.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.incoming.as_ref().map_or(0, |update| update.chunks)
    }

    /// Returns the number of messages waiting to be sent.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.outbox.len()
    }

    /// Appends the next frame to `out`, or returns false if there is none.
    pub fn next_frame(&mut self, out: &mut Vec<u8>) -> bool {
        if self.is_revoked() {
            self.outbox.clear();
        }
        let Some(next) = self.outbox.pop_front() else { return false };
        let start = out.len();
        out.resize(start + wire_capacity(self.limit), 0);
        let space = out.get_mut(start..).unwrap_or_default();
        let (encoded, more) = next.encode(self.open.as_ref(), &mut self.secure, space);
        if let Some(more) = more {
            self.outbox.push_front(more);
        } else if self.outbox.is_empty() && self.outbox.capacity() > OUTBOX_IDLE_CAPACITY {
            self.outbox.shrink_to(OUTBOX_IDLE_CAPACITY);
        }
        let sent = encoded.unwrap_or(0);
        if encoded.is_err() {
            self.traffic.unsent = self.traffic.unsent.saturating_add(1);
        }
        out.truncate(start + sent);
        if self.greeted {
            self.traffic.down += sent as u64;
        }
        true
    }
}

/// Returns true if a message answers a round.
fn answers_round(message: &ToServer, round: RoundId) -> bool {
    match message {
        ToServer::Update(update) => update.id == round,
        ToServer::Decline(decline) => decline.id == round,
        _ => false,
    }
}

/// Returns true if a message requests chunks of a round.
fn requests_chunks(message: &ToServer, round: RoundId) -> bool {
    matches!(message, ToServer::Missing(missing) if missing.id == round)
}

enum Dispatch {
    Hello(Hello),
    Reply(Vec<u8>),
    Deliver(PeerMessage),
    Resend(Missing),
    Stale,
    Nothing,
}
