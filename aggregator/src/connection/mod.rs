//! One device's side of the protocol on the host, without a socket: bytes in, events out; messages in,
//! frames out. The server and the simulator drive the same one.

mod incoming;
mod outgoing;

use std::collections::VecDeque;
use std::sync::Arc;

use fedspan_protocol::assembly::plan;
use fedspan_protocol::frame::{Decoder, Fed, FrameCounters};
use fedspan_protocol::limits::{
    FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, HELLO_FRAME_MAX, SCHEMA_HASH, WIRE_VERSION, wire_capacity,
};
use fedspan_protocol::message::{
    Decline, Descriptors, Fault, Hello, Introduction, Missing, Refusal, RoundId, ToDevice, ToServer, decode,
};
use incoming::{Incoming, begin_update, settle, take_chunk};
use outgoing::Outgoing;

use crate::engine::{Opening, Update};

/// What a device said.
#[derive(Clone, Debug, PartialEq)]
pub enum Inbound {
    /// Its first message, or the same device's again: it has restarted, or has missed its welcome. What was
    /// under way before is forgotten.
    Hello(Hello),
    /// Another device says hello where one is known; it was answered with a fault and dropped.
    Stranger,
    /// It speaks another wire version, or a development build's other messages; it gets this refusal.
    Foreign(Refusal),
    /// A whole update, reassembled.
    Update(Update),
    /// An update for a round that is not open on this connection: its numbers were not read.
    Unread(RoundId),
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
    /// Chunks, and requests for chunks, of what was whole, over or replaced when they came.
    pub stale: u32,
    /// Messages that did not fit a frame. None does, short of a bug.
    pub unsent: u32,
    /// Rounds that were sent again because nothing had come that answers them.
    pub reopened: u32,
    /// Frames received and dropped.
    pub frames: FrameCounters,
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
            reopened: self.reopened.saturating_sub(earlier.reopened),
            frames: FrameCounters {
                accepted: now.accepted.saturating_sub(then.accepted),
                oversize: now.oversize.saturating_sub(then.oversize),
                framing: now.framing.saturating_sub(then.framing),
                check: now.check.saturating_sub(then.check),
                header: now.header.saturating_sub(then.header),
            },
        }
    }

    /// Faults and frames that were dropped.
    #[must_use]
    pub fn noise(&self) -> u32 {
        let frames = &self.frames;
        self.faults
            .saturating_add(frames.oversize)
            .saturating_add(frames.framing)
            .saturating_add(frames.check)
            .saturating_add(frames.header)
    }
}

/// Messages that wait for the socket, at most; a device that does not read is cut off above it.
pub const OUTBOX_MAX: usize = 64;

/// One device's connection.
#[derive(Debug)]
pub struct Connection {
    decoder: Decoder<Vec<u8>>,
    limit: usize,
    /// The link does not close with this connection: who speaks without a hello is asked for one.
    lasting: bool,
    greeted: bool,
    /// Who said hello.
    device: Option<u64>,
    outbox: VecDeque<Outgoing>,
    /// The round that is open on this device, and how its tensors are cut.
    open: Option<(Arc<Opening>, Descriptors)>,
    /// Nothing has come that answers the open round.
    unanswered: bool,
    incoming: Option<Incoming>,
    /// The update that was whole, declined, closed or replaced last: chunks of it may still be on their way.
    settled: Option<RoundId>,
    traffic: Traffic,
}

impl Default for Connection {
    fn default() -> Self {
        Self::new()
    }
}

impl Connection {
    /// A connection that has not said hello: frames are small until then.
    #[must_use]
    pub fn new() -> Self {
        Self {
            decoder: Decoder::new(vec![0; HELLO_FRAME_MAX]),
            limit: HELLO_FRAME_MAX,
            lasting: false,
            greeted: false,
            device: None,
            outbox: VecDeque::new(),
            open: None,
            unanswered: false,
            incoming: None,
            settled: None,
            traffic: Traffic::default(),
        }
    }

    /// The same on a link that does not close with it, such as a serial line: whoever is there is asked to say
    /// hello.
    #[must_use]
    pub fn lasting() -> Self {
        let mut connection = Self { lasting: true, ..Self::new() };
        connection.send(ToDevice::Fault(Fault::Greet));
        connection
    }

    /// Bytes and drops so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic { frames: self.decoder.counters(), ..self.traffic }
    }

    /// Starts counting bytes anew: hello and welcome do not belong to a round.
    pub fn forget_traffic(&mut self) {
        self.traffic = Traffic { up: 0, down: 0, ..self.traffic };
    }

    /// Asks for the chunks of an update that has begun and not ended, if there is one.
    pub fn ask_missing(&mut self) {
        let missing = self.incoming.as_ref().and_then(|update| update.assembly.missing(update.head.id));
        if let Some(missing) = missing {
            self.send(ToDevice::Missing(missing));
        }
    }

    /// Takes bytes from the device and appends what they say.
    pub fn receive(&mut self, bytes: &[u8], said: &mut Vec<Inbound>) {
        if self.greeted {
            self.traffic.up += bytes.len() as u64;
        }
        let mut input = bytes;
        loop {
            // The decoder lends its buffer; what was read from it is owned before `self` is needed again.
            let parsed = match self.decoder.feed(&mut input) {
                Fed::NeedMore => return,
                Fed::Dropped(_) => continue,
                Fed::Message(message) if !self.greeted && foreign(message).is_some() => Ok(Parsed::Say(
                    foreign(message).map_or(Inbound::Fault(Fault::Malformed), Inbound::Foreign),
                )),
                Fed::Message(message) => match decode::<ToServer>(message) {
                    Ok((message, body)) => {
                        if self.open.as_ref().is_some_and(|(opening, _)| answers(&message, opening.id)) {
                            self.unanswered = false;
                        }
                        let (incoming, settled) = (&mut self.incoming, &mut self.settled);
                        Self::interpret(incoming, settled, self.open.as_ref(), self.greeted, message, body)
                    }
                    Err(_) => Err(Fault::Malformed),
                },
            };
            match parsed {
                Ok(Parsed::Say(Inbound::Hello(hello))) => {
                    self.greet(&hello);
                    self.traffic.up += input.len() as u64;
                    said.push(Inbound::Hello(hello));
                }
                Ok(Parsed::Say(inbound)) => said.push(inbound),
                Ok(Parsed::Resend(missing)) => {
                    if let Err(fault) = self.resend(&missing) {
                        said.push(self.fault(fault));
                    }
                }
                Ok(Parsed::Nothing) => {}
                Ok(Parsed::HelloAgain(hello)) if self.device == Some(hello.device) => {
                    self.outbox.clear();
                    (self.open, self.unanswered, self.incoming, self.settled) = (None, false, None, None);
                    self.greet(&hello);
                    said.push(Inbound::Hello(hello));
                }
                Ok(Parsed::HelloAgain(_)) => {
                    self.fault(Fault::Unexpected);
                    said.push(Inbound::Stranger);
                }
                Ok(Parsed::Stale) => self.traffic.stale = self.traffic.stale.saturating_add(1),
                Err(fault) => said.push(self.fault(fault)),
            }
        }
    }

    /// Counts a fault and answers it, unless the device lets its answers pile up.
    fn fault(&mut self, fault: Fault) -> Inbound {
        self.traffic.faults = self.traffic.faults.saturating_add(1);
        if self.outbox.len() < OUTBOX_MAX {
            match self.greeted {
                true => self.send(ToDevice::Fault(fault)),
                false if self.lasting => self.send(ToDevice::Fault(Fault::Greet)),
                false => {}
            }
        }
        Inbound::Fault(fault)
    }

    fn interpret(
        incoming: &mut Option<Incoming>,
        settled: &mut Option<RoundId>,
        open: Option<&(Arc<Opening>, Descriptors)>,
        greeted: bool,
        message: ToServer,
        body: &[u8],
    ) -> Result<Parsed, Fault> {
        let takes_body = matches!(message, ToServer::Update(_) | ToServer::Chunk(_));
        if !takes_body && !body.is_empty() {
            return Err(Fault::Malformed);
        }
        match message {
            ToServer::Hello(hello) if !greeted => Ok(Parsed::Say(Inbound::Hello(hello))),
            _ if !greeted => Err(Fault::Unexpected),
            ToServer::Hello(hello) => Ok(Parsed::HelloAgain(hello)),
            ToServer::Update(head) if open.is_none_or(|(opening, _)| opening.id != head.id) => {
                // Its numbers cannot be checked against anything; what becomes of it is the engine's to say.
                *settled = Some(head.id);
                Ok(Parsed::Say(Inbound::Unread(head.id)))
            }
            ToServer::Update(head) => begin_update(incoming, open, head, body),
            ToServer::Chunk(chunk) => take_chunk(incoming, settled, &chunk, body),
            ToServer::Missing(missing) => Ok(Parsed::Resend(missing)),
            ToServer::Decline(decline) => {
                settle(incoming, settled);
                Ok(Parsed::Say(Inbound::Decline(decline)))
            }
            ToServer::Alive => Ok(Parsed::Say(Inbound::Alive)),
            _ => Err(Fault::Unexpected),
        }
    }

    fn greet(&mut self, hello: &Hello) {
        self.greeted = true;
        self.device = Some(hello.device);
        self.limit = usize::from(hello.capabilities.frame_limit).clamp(FRAME_LIMIT_MIN, FRAME_LIMIT_MAX);
        self.decoder.set_buffer(vec![0; self.limit]);
    }

    /// Queues a message.
    pub fn send(&mut self, message: ToDevice) {
        self.outbox.push_back(Outgoing::Message(message));
    }

    /// Queues a refusal; the caller closes the connection once it is sent.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.send(ToDevice::Refused(refusal));
    }

    /// Opens a round on the device: `RoundOpen`, and its tensors in chunks if they do not fit the frame.
    pub fn open(&mut self, opening: &Arc<Opening>) {
        let encoding = opening.request.encoding;
        let mut tensors: Descriptors =
            opening.request.tensors.iter().map(|t| t.descriptor(encoding)).collect();
        if plan(&mut tensors, self.limit).is_err() {
            self.traffic.unsent = self.traffic.unsent.saturating_add(1);
            return;
        }
        settle(&mut self.incoming, &mut self.settled);
        self.outbox.retain(|out| matches!(out, Outgoing::Message(_)));
        self.open = Some((Arc::clone(opening), tensors));
        self.unanswered = true;
        self.send_open();
    }

    fn send_open(&mut self) {
        let Some((opening, tensors)) = &self.open else { return };
        self.outbox.push_back(Outgoing::Open(Arc::clone(opening), tensors.clone()));
        if tensors.iter().any(|t| t.chunk > 0) {
            self.outbox.push_back(Outgoing::Chunks(Arc::clone(opening), tensors.clone(), 0, 0));
        }
    }

    /// A round is open on the device, all of it was sent, and nothing has come that answers it: it may never
    /// have arrived.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        self.unanswered && self.outbox.is_empty()
    }

    /// Sends the open round again, if nothing has come that answers it.
    pub fn open_again(&mut self) {
        if self.is_unanswered() {
            self.traffic.reopened = self.traffic.reopened.saturating_add(1);
            self.send_open();
        }
    }

    /// Tells the device that a round is over.
    pub fn close_round(&mut self, id: RoundId) {
        if self.open.as_ref().is_some_and(|(opening, _)| opening.id == id) {
            self.outbox.retain(|out| matches!(out, Outgoing::Message(_)));
            self.unanswered = false;
        }
        // The device stops sending its update; waiting for the rest would look as if it were slow.
        if self.incoming.as_ref().is_some_and(|update| update.head.id == id) {
            settle(&mut self.incoming, &mut self.settled);
        }
        self.send(ToDevice::RoundClosed(id));
    }

    fn resend(&mut self, missing: &Missing) -> Result<(), Fault> {
        let Some((opening, tensors)) = self.open.as_ref().filter(|(opening, _)| opening.id == missing.id)
        else {
            self.traffic.stale = self.traffic.stale.saturating_add(1);
            return Ok(());
        };
        let tensor = usize::from(missing.tensor);
        let exists = |index: usize| tensors.get(tensor).is_some_and(|t| t.chunk_range(index).is_some());
        let mut all = Ok(());
        for index in missing.chunks.iter().map(|&index| usize::from(index)) {
            if !exists(index) {
                all = Err(Fault::Tensors);
            } else if self.outbox.len() < OUTBOX_MAX {
                self.outbox.push_back(Outgoing::Chunk(Arc::clone(opening), tensors.clone(), tensor, index));
            }
        }
        all
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

    /// Messages that wait to be sent.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.outbox.len()
    }

    /// Appends the next frame to `out`. False if there is none.
    pub fn next_frame(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(next) = self.outbox.pop_front() else { return false };
        let start = out.len();
        out.resize(start + wire_capacity(self.limit), 0);
        let space = out.get_mut(start..).unwrap_or_default();
        let (encoded, more) = next.encode(space);
        if let Some(more) = more {
            self.outbox.push_front(more);
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

/// The refusal for a hello of another version.
fn foreign(message: &[u8]) -> Option<Refusal> {
    let hello = Introduction::read(message).ok()?;
    if hello.wire_version != WIRE_VERSION {
        return Some(Refusal::WireVersion { served: WIRE_VERSION });
    }
    (hello.schema_hash != SCHEMA_HASH).then_some(Refusal::Schema { served: SCHEMA_HASH })
}

/// Whether a message shows that the device has heard of a round.
fn answers(message: &ToServer, round: RoundId) -> bool {
    match message {
        ToServer::Update(update) => update.id == round,
        ToServer::Decline(decline) => decline.id == round,
        ToServer::Missing(missing) => missing.id == round,
        _ => false,
    }
}

enum Parsed {
    Say(Inbound),
    Resend(Missing),
    HelloAgain(Hello),
    Stale,
    Nothing,
}
