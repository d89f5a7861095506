//! Receiving half of a connection: decodes frames into messages and assembles chunked updates. An update is
//! checked against the request of the open round before memory is allocated.

use fedspan_protocol::assembly::{Assembly, split_body};
use fedspan_protocol::frame::{FeedResult, FrameError};
use fedspan_protocol::limits::{FRAME_LIMIT_MAX, FRAME_LIMIT_MIN};
use fedspan_protocol::message::{
    CHOOSES_RIDGE, Chunk, Fault, Hello, Missing, NewKey, RECEIVES_BEACONS, RECEIVES_KEYS, RoundId, ToDevice,
    ToServer, Update as UpdateHead,
};
use fedspan_protocol::tensor::TensorDescriptor;

use super::partial_update::{PartialUpdate, discard_partial};
use super::secure_layer::Decrypted;
use super::send::{Outgoing, SentRound};
use super::{Connection, DeviceReport, PeerMessage};
use fedspan_engine::{Tensor, Update};

/// Tensors and descriptors of an update whose memory is kept.
pub(super) type SpareUpdate = (Vec<Tensor>, Vec<TensorDescriptor>);

/// Largest number of values of an update whose memory is kept.
const REUSED_VALUES_MAX: usize = 4096;

impl Connection {
    /// Decodes bytes from the device and appends the resulting messages to `messages`.
    pub fn receive(&mut self, bytes: &[u8], messages: &mut Vec<PeerMessage>) {
        let mut input = bytes;
        while let Some(message) = self.next_message(&mut input) {
            messages.push(message);
        }
    }

    /// Takes an update that has been processed, whose memory the next one uses if it is not large.
    pub fn reuse(&mut self, update: Update) {
        let values: usize = update.tensors.iter().map(|tensor| tensor.values.capacity()).sum();
        if values <= REUSED_VALUES_MAX {
            **self.spare.get_or_insert_default() = (update.tensors, update.descriptors);
        }
    }

    /// Returns true if [`Self::next_message`] returns a message without further input.
    #[must_use]
    pub fn has_message(&self) -> bool {
        self.report.is_some()
    }

    /// Consumes `input` up to the end of the next frame that yields a message. Returns `None` if the rest of
    /// the input yields no message.
    pub fn next_message(&mut self, input: &mut &[u8]) -> Option<PeerMessage> {
        let is_counted = self.greeted;
        let available = input.len();
        let message = self.next_message_uncounted(input);
        if is_counted {
            self.traffic.up += (available - input.len()) as u64;
        }
        message
    }

    /// Implements [`Self::next_message`], without counting bytes.
    fn next_message_uncounted(&mut self, input: &mut &[u8]) -> Option<PeerMessage> {
        if let Some(report) = self.report.take() {
            return Some(PeerMessage::Report(report));
        }
        loop {
            let known_device = self.device;
            // The frame borrows the decoder's buffer, so it is converted to an owned value before `self` is
            // used again.
            let decrypted = match self.decoder.feed(input) {
                FeedResult::NeedMore => return None,
                FeedResult::Dropped(reason) => {
                    // A device that does not know of this connection may repeat nothing but an update that is longer than a hello.
                    if reason == FrameError::Oversize {
                        self.request_hello();
                    }
                    continue;
                }
                FeedResult::Message(message) => self.secure.process_unsealed(message),
                FeedResult::Sealed(frame) => self.secure.process_sealed(frame, known_device),
            };
            let parsed = match decrypted {
                Decrypted::Message(message, body) => {
                    if let Some(round) = self.open.as_ref().map(|round| round.opening.id) {
                        self.unanswered &= !answers_round(&message, round);
                        self.chunk_requests += u64::from(requests_chunks(&message, round));
                    }
                    let (incoming, last_update) =
                        ((&mut self.incoming, &mut self.spare), &mut self.last_update);
                    Self::dispatch(incoming, last_update, self.open.as_ref(), self.greeted, message, body)
                }
                Decrypted::Admitted(hello, report) => {
                    self.report = report;
                    Ok(Dispatch::Hello(hello))
                }
                Decrypted::Reply(answer) => Ok(Dispatch::Reply(answer)),
                Decrypted::Refused(refusal, encrypted_reason) => {
                    self.outbox.push_back(match encrypted_reason {
                        Some(answer) => Outgoing::Encoded(answer),
                        None => Outgoing::Message(ToDevice::Refused(refusal)),
                    });
                    *input = &[];
                    return Some(PeerMessage::Refused(refusal));
                }
                Decrypted::OtherDevice => {
                    self.reply_with_fault(Fault::Unexpected);
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
                Ok(Dispatch::Hello(hello)) if known_device.is_none_or(|known| known == hello.device) => {
                    self.outbox.clear();
                    (self.open, self.unanswered, self.incoming, self.last_update) = (None, false, None, None);
                    self.welcome_device(&hello);
                    return Some(PeerMessage::Hello(hello));
                }
                Ok(Dispatch::Hello(_)) => {
                    self.reply_with_fault(Fault::Unexpected);
                    return Some(PeerMessage::OtherDevice);
                }
                Ok(Dispatch::Reply(answer)) => {
                    // The device uses only the newest answer, so older unsent answers are dropped.
                    self.outbox.retain(|queued| !matches!(queued, Outgoing::Encoded(_)));
                    self.queue_reply(Outgoing::Encoded(answer));
                }
                Ok(Dispatch::Deliver(message)) => return Some(message),
                Ok(Dispatch::Resend(missing)) => {
                    if let Err(fault) = self.resend_chunks(missing) {
                        return Some(self.reply_with_fault(fault));
                    }
                }
                Ok(Dispatch::Nothing) => {}
                Ok(Dispatch::Stale) => self.traffic.stale = self.traffic.stale.saturating_add(1),
                Err(fault) => return Some(self.reply_with_fault(fault)),
            }
        }
    }

    /// Requests a hello from a device that does not know of this connection.
    fn request_hello(&mut self) {
        if self.requests_hello && !self.greeted && self.outbox.is_empty() {
            self.send(ToDevice::Fault(Fault::Greet));
        }
    }

    /// Counts a fault and replies with it, unless too many replies are waiting.
    fn reply_with_fault(&mut self, fault: Fault) -> PeerMessage {
        self.traffic.faults = self.traffic.faults.saturating_add(1);
        match self.greeted {
            true => self.queue_reply(Outgoing::Message(ToDevice::Fault(fault))),
            false => self.request_hello(),
        }
        PeerMessage::Fault(fault)
    }

    /// Checks a message and handles the parts of an update. The result is the reaction of the connection.
    fn dispatch(
        (incoming, spare): (&mut Option<PartialUpdate>, &mut Option<Box<SpareUpdate>>),
        last_update: &mut Option<RoundId>,
        open: Option<&SentRound>,
        greeted: bool,
        message: ToServer,
        body: &[u8],
    ) -> Result<Dispatch, Fault> {
        match message {
            _ if !greeted => Err(Fault::Unexpected),
            ToServer::Update(head) if open.is_none_or(|round| round.opening.id != head.id) => {
                // Without a request the update cannot be validated or decoded; only its round id is passed to
                // the engine.
                *last_update = Some(head.id);
                Ok(Dispatch::Deliver(PeerMessage::UnreadUpdate(head.id)))
            }
            ToServer::Update(head) => begin_update(incoming, spare.as_deref_mut(), open, head, body),
            ToServer::Chunk(chunk) => take_chunk(incoming, last_update, &chunk, body),
            ToServer::Missing(missing) => Ok(Dispatch::Resend(missing)),
            ToServer::Decline(decline) => {
                discard_partial(incoming, last_update);
                Ok(Dispatch::Deliver(PeerMessage::Decline(decline)))
            }
            ToServer::Report(_) => {
                let report = DeviceReport::read(&message, body).ok_or(Fault::Malformed)?;
                Ok(Dispatch::Deliver(PeerMessage::Report(Box::new(report))))
            }
            ToServer::Alive => Ok(Dispatch::Deliver(PeerMessage::Alive)),
            _ => Err(Fault::Unexpected),
        }
    }

    /// Adopts the capabilities of a device whose hello was admitted, and queues the welcome in plaintext.
    fn welcome_device(&mut self, hello: &Hello) {
        self.greeted = true;
        self.device = Some(hello.device);
        self.chooses_ridge = hello.capabilities.roles & CHOOSES_RIDGE != 0;
        self.receives_beacons = hello.capabilities.roles & RECEIVES_BEACONS != 0;
        self.limit = usize::from(hello.capabilities.frame_limit).clamp(FRAME_LIMIT_MIN, FRAME_LIMIT_MAX);
        self.decoder.set_buffer(vec![0; self.frame_capacity()]);
        if !self.secure.is_encrypted() {
            self.send(ToDevice::Welcome(self.secure.acceptor().welcome()));
        }
        self.receives_keys = hello.capabilities.roles & RECEIVES_KEYS != 0;
        self.send_new_key();
    }

    /// Sends the device its new key, if there is one: at the start of a connection, and behind each round, in case it was lost or could not be
    /// stored.
    pub(super) fn send_new_key(&mut self) {
        let Some(device) = self.device.filter(|_| self.receives_keys) else { return };
        if let Some(new) = self.secure.key_to_send(device) {
            self.send(ToDevice::NewKey(NewKey::from(new.key())));
        }
    }

    /// Requests the missing chunks of an unfinished update, if there is one.
    pub fn request_missing(&mut self) {
        let missing = self.incoming.as_ref().and_then(|update| update.assembly.missing(update.head.id));
        if let Some(missing) = missing {
            self.send(ToDevice::Missing(missing));
        }
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

/// Reaction of a connection to a message.
enum Dispatch {
    Hello(Hello),
    Reply(Vec<u8>),
    Deliver(PeerMessage),
    Resend(Missing),
    Stale,
    Nothing,
}

/// Begins an update. An update that announces more values than the open round requests is rejected before
/// memory is allocated.
fn begin_update(
    partial: &mut Option<PartialUpdate>,
    spare: Option<&mut SpareUpdate>,
    open: Option<&SentRound>,
    head: UpdateHead,
    body: &[u8],
) -> Result<Dispatch, Fault> {
    let chunks = Assembly::check(&head.tensors).map_err(|_| Fault::Tensors)?;
    let expected = open.map_or(0, |SentRound { opening, .. }| {
        opening.request.expects.iter().map(TensorDescriptor::elements).sum::<usize>()
    });
    let announced: usize = head.tensors.iter().map(TensorDescriptor::elements).sum();
    if announced > expected {
        return Err(Fault::Tensors);
    }
    let (mut tensors, mut descriptors) = spare.map(std::mem::take).unwrap_or_default();
    tensors.truncate(head.tensors.len());
    for (index, &TensorDescriptor { role, rows, cols, .. }) in head.tensors.iter().enumerate() {
        match tensors.get_mut(index) {
            Some(tensor) => (tensor.role, tensor.rows, tensor.cols) = (role, rows, cols),
            None => tensors.push(Tensor { role, rows, cols, values: Vec::new() }),
        }
    }
    for (tensor, descriptor) in tensors.iter_mut().zip(&head.tensors) {
        tensor.values.clear();
        tensor.values.resize(descriptor.elements(), 0.0);
    }
    for (index, descriptor, bytes) in split_body(&head.tensors, body).map_err(|_| Fault::Tensors)? {
        if let Some(tensor) = tensors.get_mut(index) {
            descriptor.encoding.decode(bytes, &mut tensor.values).map_err(|_| Fault::Tensors)?;
        }
    }
    if chunks == 0 {
        *partial = None;
        descriptors.clear();
        return Ok(Dispatch::Deliver(PeerMessage::Update(assemble_update(head, tensors, descriptors))));
    }
    let assembly = Assembly::new(&head.tensors).map_err(|_| Fault::Tensors)?;
    let replaced = partial.replace(PartialUpdate { head, assembly, tensors, chunks: 0 });
    Ok(if replaced.is_some() { Dispatch::Stale } else { Dispatch::Nothing })
}

/// Decodes a chunk into the unfinished update; delivers the update if it is complete.
fn take_chunk(
    partial: &mut Option<PartialUpdate>,
    last_update: &mut Option<RoundId>,
    chunk: &Chunk,
    body: &[u8],
) -> Result<Dispatch, Fault> {
    let Some(update) = partial.as_mut().filter(|update| update.head.id == chunk.id) else {
        return if *last_update == Some(chunk.id) { Ok(Dispatch::Stale) } else { Err(Fault::Unexpected) };
    };
    let Some(target) = update.assembly.accept(chunk, body.len()).map_err(|_| Fault::Tensors)? else {
        return Ok(Dispatch::Stale);
    };
    update.chunks = update.chunks.saturating_add(1);
    let encoding = update.head.tensors.get(target.tensor).map(|t| t.encoding);
    let values = update.tensors.get_mut(target.tensor).and_then(|t| t.values.get_mut(target.elements));
    if let (Some(encoding), Some(values)) = (encoding, values) {
        // The chunk counts as received, so the update cannot be completed any more.
        if encoding.decode(body, values).is_err() {
            discard_partial(partial, last_update);
            return Err(Fault::Tensors);
        }
    }
    if !update.assembly.is_complete() {
        return Ok(Dispatch::Nothing);
    }
    *last_update = Some(chunk.id);
    match partial.take() {
        Some(update) => {
            let update = assemble_update(update.head, update.tensors, Vec::new());
            Ok(Dispatch::Deliver(PeerMessage::Update(update)))
        }
        None => Ok(Dispatch::Nothing),
    }
}

/// Returns the engine's update from the first message and the decoded tensors.
fn assemble_update(head: UpdateHead, tensors: Vec<Tensor>, mut descriptors: Vec<TensorDescriptor>) -> Update {
    descriptors.extend_from_slice(&head.tensors);
    Update { id: head.id, samples: head.samples, skipped: head.skipped, descriptors, tensors }
}
