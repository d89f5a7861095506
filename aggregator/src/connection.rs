//! One device's side of the protocol on the host, without a socket: bytes in, events out; messages in,
//! frames out. The server and the simulator drive the same one.

use std::collections::VecDeque;
use std::sync::Arc;

use fedspan_protocol::assembly::{Assembly, plan, split_body};
use fedspan_protocol::frame::{Decoder, Fed, FrameCounters, encode};
use fedspan_protocol::limits::{
    FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, HELLO_FRAME_MAX, SCHEMA_HASH, WIRE_VERSION, wire_capacity,
};
use fedspan_protocol::message::{
    Chunk, Decline, Descriptors, Fault, Hello, Introduction, Missing, Refusal, RoundId, RoundOpen, ToDevice,
    ToServer, Update as UpdateHead, Welcome, decode,
};
use fedspan_protocol::tensor::TensorDescriptor;

use crate::algorithm::Tensor;
use crate::engine::{Opening, Update};

/// What a device said.
#[derive(Clone, Debug, PartialEq)]
pub enum Inbound {
    /// Its first message.
    Hello(Hello),
    /// It speaks another wire version, or a development build's other messages; it gets this refusal.
    Foreign(Refusal),
    /// A whole update, reassembled.
    Update(Update),
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
    /// Frames received and dropped.
    pub frames: FrameCounters,
}

/// Messages that wait for the socket, at most; a device that does not read is cut off above it.
pub const OUTBOX_MAX: usize = 64;

#[derive(Debug)]
enum Outgoing {
    Message(ToDevice),
    Open(Arc<Opening>, Descriptors),
    /// Chunks from `next` to the end of the last tensor.
    Chunks(Arc<Opening>, Descriptors, usize, usize),
    /// One chunk that was asked for again.
    Chunk(Arc<Opening>, Descriptors, usize, usize),
}

/// An update whose chunks are coming in.
#[derive(Debug)]
struct Incoming {
    head: UpdateHead,
    assembly: Assembly,
    tensors: Vec<Tensor>,
}

/// One device's connection.
#[derive(Debug)]
pub struct Connection {
    decoder: Decoder<Vec<u8>>,
    limit: usize,
    greeted: bool,
    /// Who said hello.
    device: Option<u64>,
    /// What it was answered.
    welcome: Option<Welcome>,
    outbox: VecDeque<Outgoing>,
    /// The round that is open on this device, and how its tensors are cut.
    open: Option<(Arc<Opening>, Descriptors)>,
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
            greeted: false,
            device: None,
            welcome: None,
            outbox: VecDeque::new(),
            open: None,
            incoming: None,
            settled: None,
            traffic: Traffic::default(),
        }
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
                Ok(Parsed::HelloAgain(device)) => match self.welcome {
                    // The welcome was lost, or crossed with this.
                    Some(welcome) if self.device == Some(device) => self.send(ToDevice::Welcome(welcome)),
                    _ => said.push(self.fault(Fault::Unexpected)),
                },
                Ok(Parsed::Stale) => self.traffic.stale = self.traffic.stale.saturating_add(1),
                Err(fault) => said.push(self.fault(fault)),
            }
        }
    }

    /// Counts a fault and answers it, unless the device lets its answers pile up.
    fn fault(&mut self, fault: Fault) -> Inbound {
        self.traffic.faults = self.traffic.faults.saturating_add(1);
        if self.greeted && self.outbox.len() < OUTBOX_MAX {
            self.send(ToDevice::Fault(fault));
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
            ToServer::Hello(hello) => Ok(Parsed::HelloAgain(hello.device)),
            ToServer::Update(head) if open.is_none_or(|(opening, _)| opening.id != head.id) => {
                // Of another round: its numbers are of no use, what became of it is the engine's to say.
                *settled = Some(head.id);
                let tensors = Descriptors::new();
                Ok(Parsed::Say(Inbound::Update(whole(UpdateHead { tensors, ..head }, Vec::new()))))
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
        if let ToDevice::Welcome(welcome) = message {
            self.welcome = Some(welcome);
        }
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
        self.open = Some((Arc::clone(opening), tensors.clone()));
        let chunked = tensors.iter().any(|t| t.chunk > 0);
        self.outbox.push_back(Outgoing::Open(Arc::clone(opening), tensors.clone()));
        if chunked {
            self.outbox.push_back(Outgoing::Chunks(Arc::clone(opening), tensors, 0, 0));
        }
    }

    /// Tells the device that a round is over.
    pub fn close_round(&mut self, id: RoundId) {
        if self.open.as_ref().is_some_and(|(opening, _)| opening.id == id) {
            self.outbox.retain(|out| matches!(out, Outgoing::Message(_)));
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
        let encoded = match next {
            Outgoing::Message(message) => encode(&message, 0, |_| {}, space),
            Outgoing::Open(opening, tensors) => encode_open(&opening, tensors, space),
            Outgoing::Chunk(opening, tensors, tensor, index) => {
                encode_chunk(&opening, &tensors, tensor, index, space)
            }
            Outgoing::Chunks(opening, tensors, tensor, index) => {
                let encoded = encode_chunk(&opening, &tensors, tensor, index, space);
                let count = tensors.get(tensor).map_or(0, TensorDescriptor::chunks);
                if index + 1 < count {
                    self.outbox.push_front(Outgoing::Chunks(opening, tensors, tensor, index + 1));
                } else if tensor + 1 < tensors.len() {
                    self.outbox.push_front(Outgoing::Chunks(opening, tensors, tensor + 1, 0));
                }
                encoded
            }
        };
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

enum Parsed {
    Say(Inbound),
    Resend(Missing),
    HelloAgain(u64),
    Stale,
    Nothing,
}

/// Forgets an unfinished update, but not that its chunks may still come.
fn settle(incoming: &mut Option<Incoming>, settled: &mut Option<RoundId>) {
    if let Some(update) = incoming.take() {
        *settled = Some(update.head.id);
    }
}

/// Only what was asked for is given memory.
fn begin_update(
    incoming: &mut Option<Incoming>,
    open: Option<&(Arc<Opening>, Descriptors)>,
    head: UpdateHead,
    body: &[u8],
) -> Result<Parsed, Fault> {
    let assembly = Assembly::new(&head.tensors).map_err(|_| Fault::Tensors)?;
    let expected = open.map_or(0, |(opening, _)| {
        opening.request.expects.iter().map(TensorDescriptor::elements).sum::<usize>()
    });
    let announced: usize = head.tensors.iter().map(TensorDescriptor::elements).sum();
    if announced > expected {
        return Err(Fault::Tensors);
    }
    let empty = |t: &TensorDescriptor| Tensor {
        role: t.role,
        rows: t.rows,
        cols: t.cols,
        values: vec![0.0; t.elements()],
    };
    let mut tensors: Vec<Tensor> = head.tensors.iter().map(empty).collect();
    for (index, descriptor, bytes) in split_body(&head.tensors, body).map_err(|_| Fault::Tensors)? {
        if let Some(tensor) = tensors.get_mut(index) {
            descriptor.encoding.decode(bytes, &mut tensor.values).map_err(|_| Fault::Tensors)?;
        }
    }
    if assembly.is_complete() {
        *incoming = None;
        return Ok(Parsed::Say(Inbound::Update(whole(head, tensors))));
    }
    *incoming = Some(Incoming { head, assembly, tensors });
    Ok(Parsed::Nothing)
}

fn take_chunk(
    incoming: &mut Option<Incoming>,
    settled: &mut Option<RoundId>,
    chunk: &Chunk,
    body: &[u8],
) -> Result<Parsed, Fault> {
    let Some(update) = incoming.as_mut().filter(|update| update.head.id == chunk.id) else {
        return if *settled == Some(chunk.id) { Ok(Parsed::Stale) } else { Err(Fault::Unexpected) };
    };
    let Some(place) = update.assembly.accept(chunk, body.len()).map_err(|_| Fault::Tensors)? else {
        return Ok(Parsed::Nothing);
    };
    let encoding = update.head.tensors.get(place.tensor).map(|t| t.encoding);
    let values = update.tensors.get_mut(place.tensor).and_then(|t| t.values.get_mut(place.elements));
    if let (Some(encoding), Some(values)) = (encoding, values) {
        encoding.decode(body, values).map_err(|_| Fault::Tensors)?;
    }
    if !update.assembly.is_complete() {
        return Ok(Parsed::Nothing);
    }
    *settled = Some(chunk.id);
    match incoming.take() {
        Some(update) => Ok(Parsed::Say(Inbound::Update(whole(update.head, update.tensors)))),
        None => Ok(Parsed::Nothing),
    }
}

fn whole(head: UpdateHead, tensors: Vec<Tensor>) -> Update {
    Update {
        id: head.id,
        samples: head.samples,
        skipped: head.skipped,
        descriptors: head.tensors.to_vec(),
        tensors,
    }
}

fn encode_open(
    opening: &Opening,
    tensors: Descriptors,
    out: &mut [u8],
) -> Result<usize, fedspan_protocol::Error> {
    let inline = tensors.iter().all(|t| t.chunk == 0);
    let body = if inline { opening.encoded.iter().map(Vec::len).sum() } else { 0 };
    let message = ToDevice::RoundOpen(RoundOpen { id: opening.id, task: opening.request.task, tensors });
    let fill = |mut place: &mut [u8]| {
        for bytes in &opening.encoded {
            if let Some((own, rest)) = std::mem::take(&mut place).split_at_mut_checked(bytes.len()) {
                own.copy_from_slice(bytes);
                place = rest;
            }
        }
    };
    encode(&message, body, fill, out)
}

fn encode_chunk(
    opening: &Opening,
    tensors: &Descriptors,
    tensor: usize,
    index: usize,
    out: &mut [u8],
) -> Result<usize, fedspan_protocol::Error> {
    use fedspan_protocol::Error::BadDescriptor;
    let descriptor = tensors.get(tensor).ok_or(BadDescriptor)?;
    let range = descriptor.chunk_range(index).ok_or(BadDescriptor)?;
    let first = descriptor.encoding.byte_len(range.start);
    let len = descriptor.encoding.byte_len(range.len());
    let bytes = opening.encoded.get(tensor).and_then(|b| b.get(first..first + len)).ok_or(BadDescriptor)?;
    let chunk = Chunk {
        id: opening.id,
        tensor: u8::try_from(tensor).map_err(|_| BadDescriptor)?,
        offset: u32::try_from(range.start).map_err(|_| BadDescriptor)?,
    };
    encode(&ToDevice::Chunk(chunk), len, |place| place.copy_from_slice(bytes), out)
}
