//! One device's side of the protocol on the host, without a socket: bytes in, events out; messages in,
//! frames out. The server and the simulator drive the same one.

mod acceptor;
mod incoming;
mod outgoing;
mod secure_layer;

use std::collections::VecDeque;
use std::sync::Arc;

use fedspan_protocol::assembly::plan;
use fedspan_protocol::frame::{Decoder, Fed, FrameCounters};
use fedspan_protocol::limits::{FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, HELLO_FRAME_MAX, wire_capacity};
use fedspan_protocol::message::{
    CHOOSES_RIDGE, Decline, Descriptors, Fault, Hello, Missing, Refusal, RoundId, ToDevice, ToServer,
};
use incoming::{PartialUpdate, begin_update, discard_partial, take_chunk};
use outgoing::{Outgoing, SentRound};
use secure_layer::{Decrypted, SECURE_LAYER_MEMORY_MAX, SecureLayer};

use crate::keys::AcceptedKey;
use fedspan_engine::{Opening, Update};

pub use acceptor::Acceptor;

/// What a device said.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// It may take part, has been welcomed and, where frames are encrypted, has shown that it has its key. The same
    /// device's again: it has restarted, or has missed its welcome. What was under way before is forgotten.
    Hello(Hello),
    /// Another device says hello where one is known; it was answered with a fault and dropped.
    OtherDevice,
    /// It may not take part; the refusal is on its way. Nothing more is to be heard.
    Refused(Refusal),
    /// Its key has been revoked or replaced. Nothing more is heard or said.
    Revoked,
    /// A whole update, reassembled.
    Update(Update),
    /// An update for a round that is not open on this connection: its numbers were not read.
    UnreadUpdate(RoundId),
    /// It will not answer a round.
    Decline(Decline),
    /// It is still here.
    Alive,
    /// Something that has no place in the protocol; it was answered with a fault and dropped.
    Fault(Fault),
}

/// Bytes and drops of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes received after hello.
    pub up: u64,
    /// Bytes sent after hello: welcome and all that follows.
    pub down: u64,
    /// Messages that had no place.
    pub faults: u32,
    /// Chunks that had come before, chunks and requests for chunks of what was whole, over or replaced when they came,
    /// and half updates that began anew.
    pub stale: u32,
    /// Messages that did not fit a frame. None does, short of a bug.
    pub unsent: u32,
    /// Answers that a device did not get, as so many already waited for it.
    pub unheeded: u32,
    /// Rounds that were sent again because nothing had come that answers them.
    pub reopened: u32,
    /// Rounds that ask a device which chooses no ridge for a head with the ridge that the others take where they have none to
    /// choose.
    pub unchosen: u32,
    /// Frames received and dropped. Where frames are encrypted, those are accepted that could be opened.
    pub frames: FrameCounters,
    /// Sealed frames that came a second time, or too late to know.
    pub replayed: u32,
    /// Sealed frames that were sealed by somebody else, or came without a hello.
    pub forged: u32,
    /// Messages that were not sealed and should have been.
    pub unsealed: u32,
}

impl Traffic {
    /// What has been added since `earlier`.
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

    /// Frames that were dropped for what they are, whoever sent them.
    #[must_use]
    pub fn dropped(&self) -> u32 {
        let FrameCounters { oversize, framing, check, header, .. } = self.frames;
        [oversize, framing, check, header].into_iter().fold(0, u32::saturating_add)
    }

    /// Faults and frames that were dropped.
    #[must_use]
    pub fn protocol_errors(&self) -> u32 {
        let frames = [self.dropped(), self.replayed, self.forged, self.unsealed];
        frames.into_iter().fold(self.faults, u32::saturating_add)
    }
}

/// Messages that wait for the socket, at most, before a device gets no further answer to what it asks or gets wrong.
pub const OUTBOX_MAX: usize = 6;

/// With a round that the host opens at the same time.
const OUTBOX_CAPACITY: usize = OUTBOX_MAX + 2;

/// Places for messages that are kept while none waits.
const OUTBOX_IDLE_CAPACITY: usize = 4;

/// One device's connection.
#[derive(Debug)]
pub struct Connection {
    decoder: Decoder<Vec<u8>>,
    secure: SecureLayer,
    limit: usize,
    /// The link does not close with this connection: who speaks without a hello is asked for one.
    persistent: bool,
    greeted: bool,
    /// Who said hello.
    device: Option<u64>,
    /// It chooses ridges.
    chooses_ridge: bool,
    outbox: VecDeque<Outgoing>,
    /// The round that is open on this device, and how its tensors are cut.
    open: Option<SentRound>,
    /// Nothing has come that answers the open round.
    unanswered: bool,
    /// Times that chunks of a round that was open were asked for.
    chunk_requests: u64,
    incoming: Option<PartialUpdate>,
    /// The update that was whole, declined, closed or replaced last: chunks of it may still be on their way.
    last_update: Option<RoundId>,
    traffic: Traffic,
}

impl Connection {
    /// A connection that has not said hello: frames are small until then.
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

    /// The same on a link that does not close with it, such as a serial line: whoever is there is asked to say
    /// hello.
    #[must_use]
    pub fn persistent(acceptor: Arc<Acceptor>) -> Self {
        let mut connection = Self::on(acceptor, true);
        connection.send(ToDevice::Fault(Fault::Greet));
        connection
    }

    /// The link does not close with this connection.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Bytes and drops so far.
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

    /// Bytes of memory that it takes, itself and what it has on the heap, without an update that is coming in and the
    /// round, which all connections share.
    #[must_use]
    pub fn memory(&self) -> usize {
        let outbox = self.outbox.capacity() * size_of::<Outgoing>();
        let answers: usize = self.outbox.iter().map(Outgoing::memory).sum();
        size_of::<Self>() + self.frame_capacity() + outbox + answers + self.secure.memory()
    }

    /// The most that [`Self::memory`] comes to, whatever the device sends, if what the host has to say is sent
    /// before it says more.
    #[must_use]
    pub fn memory_max(&self) -> usize {
        let outbox = OUTBOX_CAPACITY * size_of::<Outgoing>();
        let answer = SECURE_LAYER_MEMORY_MAX;
        size_of::<Self>() + self.secure.acceptor().longest_frame(FRAME_LIMIT_MAX) + outbox + 2 * answer
    }

    /// Bytes of an update that is coming in, decoded.
    #[must_use]
    pub fn update_memory(&self) -> usize {
        self.incoming.as_ref().map_or(0, PartialUpdate::memory)
    }

    /// Bytes of the longest frame that is listened to.
    fn frame_capacity(&self) -> usize {
        if self.greeted { self.secure.acceptor().longest_frame(self.limit) } else { HELLO_FRAME_MAX }
    }

    /// Starts counting bytes anew: hello and welcome do not belong to a round.
    pub fn reset_traffic(&mut self) {
        self.traffic = Traffic { up: 0, down: 0, ..self.traffic };
    }

    /// Asks for the chunks of an update that has begun and not ended, if there is one.
    pub fn request_missing(&mut self) {
        let missing = self.incoming.as_ref().and_then(|update| update.assembly.missing(update.head.id));
        if let Some(missing) = missing {
            self.send(ToDevice::Missing(missing));
        }
    }

    /// Takes bytes from the device and appends what they say.
    pub fn receive(&mut self, bytes: &[u8], messages: &mut Vec<PeerMessage>) {
        let mut input = bytes;
        while let Some(message) = self.next_message(&mut input) {
            messages.push(message);
        }
    }

    /// Takes bytes from the device up to the end of the first frame that says something. `None` when they are used up.
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
            // The decoder lends its buffer; what was read from it is owned before `self` is needed again.
            let decrypted = match self.decoder.feed(input) {
                Fed::NeedMore => return None,
                Fed::Dropped(_) => continue,
                Fed::Message(message) => self.secure.checked(message),
                Fed::Sealed(frame) => self.secure.sealed(frame, known),
            };
            let parsed = match decrypted {
                Decrypted::Message(message, body) => {
                    if let Some(round) = self.open.as_ref().map(|cut| cut.opening.id) {
                        self.unanswered &= !answers(&message, round);
                        self.chunk_requests += u64::from(asks(&message, round));
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
                    // Of several, the device takes the last.
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

    /// On a link that outlasts conversations: whoever speaks without a hello is asked for one.
    fn request_hello(&mut self) {
        if self.persistent && !self.greeted && self.outbox.is_empty() {
            self.send(ToDevice::Fault(Fault::Greet));
        }
    }

    /// Counts a fault and answers it, unless the device lets its answers pile up.
    fn fault(&mut self, fault: Fault) -> PeerMessage {
        self.traffic.faults = self.traffic.faults.saturating_add(1);
        match self.greeted {
            true => self.queue(Outgoing::Message(ToDevice::Fault(fault))),
            false => self.request_hello(),
        }
        PeerMessage::Fault(fault)
    }

    /// Queues what a device can ask for as often as it likes, unless it lets it pile up.
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
                // Its numbers cannot be checked against anything; what becomes of it is the engine's to say.
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

    /// The device's key has been revoked or replaced: nothing more is heard or said.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.secure.is_revoked()
    }

    /// The key that what was heard last was sealed with; `None` before there is one, and in plaintext.
    #[must_use]
    pub fn key(&self) -> Option<Arc<AcceptedKey>> {
        self.secure.key()
    }

    /// Queues a message.
    pub fn send(&mut self, message: ToDevice) {
        self.outbox.push_back(Outgoing::Message(message));
    }

    /// Takes a welcome back that has not been sent: there is no room for the device now.
    pub fn turn_away(&mut self, milliseconds: u32) {
        self.outbox.clear();
        self.send(ToDevice::RetryAfter { milliseconds });
    }

    /// Opens a round on the device: `RoundOpen`, and its tensors in chunks if they do not fit the frame. A device that chooses
    /// no ridge is not asked to: its head takes the one that comes with the choice.
    pub fn open(&mut self, opening: &Arc<Opening>) {
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
        let plain = task.without_choice().filter(|_| !self.chooses_ridge);
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

    /// A round is open on the device, all of it was sent, and nothing has come that answers it: it may never
    /// have arrived. Says how often chunks were asked for: a device for which that grows is still receiving it. One for which it
    /// does not may have asked before it began anew.
    #[must_use]
    pub fn unanswered(&self) -> Option<u64> {
        (self.unanswered && self.outbox.is_empty()).then_some(self.chunk_requests)
    }

    /// Sends the open round again, if nothing has come that answers it.
    pub fn resend_round(&mut self) {
        if self.unanswered().is_some() {
            self.traffic.reopened = self.traffic.reopened.saturating_add(1);
            self.send_open();
        }
    }

    /// Tells the device that a round is over.
    pub fn close_round(&mut self, id: RoundId) {
        if self.open.as_ref().is_some_and(|cut| cut.opening.id == id) {
            self.outbox.retain(|out| matches!(out, Outgoing::Message(_)));
            self.unanswered = false;
        }
        // The device stops sending its update; waiting for the rest would look as if it were slow.
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

    /// A frame, or an update in chunks, has begun and not ended.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.decoder.is_mid_frame() || self.is_mid_update()
    }

    /// An update in chunks has begun and not ended.
    #[must_use]
    pub fn is_mid_update(&self) -> bool {
        self.incoming.is_some()
    }

    /// Chunks of the update that has begun, each counted once.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.incoming.as_ref().map_or(0, |update| update.chunks)
    }

    /// Messages that wait to be sent.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.outbox.len()
    }

    /// Appends the next frame to `out`. False if there is none.
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

/// Whether a message says what becomes of a round.
fn answers(message: &ToServer, round: RoundId) -> bool {
    match message {
        ToServer::Update(update) => update.id == round,
        ToServer::Decline(decline) => decline.id == round,
        _ => false,
    }
}

/// Whether a message asks for chunks of a round.
fn asks(message: &ToServer, round: RoundId) -> bool {
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
