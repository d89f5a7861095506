//! Sending half of a connection: queues messages and rounds in an outbox and encodes them into frames.
//! Tensors that exceed a frame are sent in chunks.

use std::sync::Arc;

use fedspan_protocol::Error;
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{
    Ack, AckOutcome, Announced, Descriptors, Fault, Missing, RoundId, RoundOpen, Task, ToDevice,
};
use fedspan_protocol::tensor::TensorDescriptor;

use super::beacon::{beacon_message, frame_length};
use super::partial_update::discard_partial;
use super::secure_layer::SecureLayer;
use super::{Connection, OUTBOX_IDLE_CAPACITY, OUTBOX_MAX};
use fedspan_engine::{RoundBroadcast, SharedFrame};

impl Connection {
    /// Queues a message.
    pub fn send(&mut self, message: ToDevice) {
        self.outbox.push_back(Outgoing::Message(message));
    }

    /// Turns a device away because no connection slot is free: replaces the unsent welcome by a retry delay
    /// in ms.
    pub fn turn_away(&mut self, milliseconds: u32) {
        self.outbox.clear();
        self.send(ToDevice::RetryAfter { milliseconds });
    }

    /// Opens a round on the device: queues `RoundOpen`, and the tensors in chunks if they do not fit one
    /// frame. A device that cannot choose the ridge of its head receives a task with the fallback ridge
    /// instead.
    pub fn open(&mut self, opening: &Arc<RoundBroadcast>) {
        let Ok(tensors) = opening.planned(self.limit) else {
            self.traffic.unsent = self.traffic.unsent.saturating_add(1);
            return;
        };
        discard_partial(&mut self.incoming, &mut self.last_update);
        self.outbox.retain(|out| matches!(out, Outgoing::Message(_)));
        let task = opening.request.task;
        let fixed_ridge_task = task.without_ridge_choice().filter(|_| !self.chooses_ridge);
        self.traffic.unchosen = self.traffic.unchosen.saturating_add(fixed_ridge_task.is_some().into());
        let opening = Arc::clone(opening);
        self.open = Some(SentRound { opening, task: fixed_ridge_task.unwrap_or(task), tensors });
        self.unanswered = true;
        match self.announcement() {
            Some(announced) => {
                self.beacon = self.open.as_ref().map(|round| Arc::clone(&round.opening));
                self.outbox.push_back(Outgoing::Announced(announced));
            }
            None => self.send_open(),
        }
        // Behind the round, after which the device uses the key.
        self.send_new_key();
    }

    /// Returns the announcement of the open round if a beacon opens it on this device: the device receives beacons, its task is that of
    /// all devices, and the beacon fits its buffer and a packet.
    fn announcement(&self) -> Option<Announced> {
        let round = self.open.as_ref().filter(|round| round.task == round.opening.request.task)?;
        let longest = self.secure.acceptor().longest_beacon(round.opening.id.round)?.min(self.limit);
        // Compared first without the message, so that no long round is encoded for nothing.
        let body: usize = round.opening.encoded.iter().map(Vec::len).sum();
        if !self.receives_beacons || body > longest {
            return None;
        }
        let message =
            beacon_message(&round.opening).filter(|message| frame_length(message.len()) <= longest)?;
        Some(Announced { id: round.opening.id, tag: self.secure.beacon_tag(message)? })
    }

    /// Returns the round whose beacon is to be sent now, once.
    pub fn take_beacon(&mut self) -> Option<Arc<RoundBroadcast>> {
        self.beacon.take()
    }

    /// Queues the open round.
    fn send_open(&mut self) {
        let Some(round) = &self.open else { return };
        let is_chunked = round.is_chunked();
        self.outbox.push_back(Outgoing::Open);
        if is_chunked {
            self.outbox.push_back(Outgoing::Chunks(0, 0));
        }
    }

    /// Returns the number of chunk requests so far if the open round has been sent and is unanswered. While
    /// the number grows, the device is still receiving the round. If the number does not grow, the device may
    /// have restarted or may have missed the round.
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
        if self.open.as_ref().is_some_and(|round| round.opening.id == id) {
            self.outbox.retain(|out| matches!(out, Outgoing::Message(_)));
            self.unanswered = false;
        }
        // The device stops sending its update, so the missing chunks will not arrive.
        if self.incoming.as_ref().is_some_and(|update| update.head.id == id) {
            discard_partial(&mut self.incoming, &mut self.last_update);
        }
        self.send(ToDevice::RoundClosed(id));
    }

    /// Queues chunks that the device has requested again.
    pub(super) fn resend_chunks(&mut self, mut missing: Missing) -> Result<(), Fault> {
        let Some(round) = self.open.as_ref().filter(|round| round.opening.id == missing.id) else {
            self.traffic.stale = self.traffic.stale.saturating_add(1);
            return Ok(());
        };
        let tensor = round.tensors.get(usize::from(missing.tensor));
        let requested = missing.chunks.len();
        missing.chunks.retain(|&index| tensor.is_some_and(|t| t.chunk_range(index.into()).is_some()));
        let all_exist = missing.chunks.len() == requested;
        if !missing.chunks.is_empty() {
            self.queue_reply(Outgoing::Resend(missing));
        }
        if all_exist { Ok(()) } else { Err(Fault::Tensors) }
    }

    /// Queues a reply, unless too many replies are waiting. The limit is needed because a device can cause
    /// any number of replies.
    pub(super) fn queue_reply(&mut self, out: Outgoing) {
        if self.outbox.len() < OUTBOX_MAX {
            self.outbox.push_back(out);
        } else {
            self.traffic.unheeded = self.traffic.unheeded.saturating_add(1);
        }
    }

    /// Takes the next frame if it is the same for all devices, and returns its message. The frame counts as sent. A simulated
    /// device receives the message without decoding the frame once more.
    pub fn take_shared(&mut self) -> Option<SharedMessage> {
        let round = self.open.as_ref().filter(|_| !self.is_revoked())?;
        let content = round.shared(self.outbox.front()?, self.limit, &self.secure)?;
        let message = SharedMessage { round: Arc::clone(&round.opening), content };
        let length = message.frame()?.frame.len();
        let remainder = self.outbox.pop_front().and_then(|sent| sent.after_chunk(&round.tensors));
        remainder.into_iter().for_each(|remainder| self.outbox.push_front(remainder));
        self.traffic.down += if self.greeted { length as u64 } else { 0 };
        Some(message)
    }

    /// Appends the next frame to `out`, or returns false if there is none.
    pub fn next_frame(&mut self, out: &mut Vec<u8>) -> bool {
        if self.is_revoked() {
            self.outbox.clear();
        }
        let Some(next) = self.outbox.pop_front() else { return false };
        let start = out.len();
        let shared = self.open.as_ref().and_then(|round| {
            let content = round.shared(&next, self.limit, &self.secure)?;
            Some((content.frame(&round.opening)?, &round.tensors))
        });
        let (encoded, remainder) = match shared {
            Some((SharedFrame { frame, .. }, tensors)) => {
                out.extend_from_slice(frame);
                (Ok(frame.len()), next.after_chunk(tensors))
            }
            None => {
                out.resize(start + wire_capacity(next.longest_frame().min(self.limit)), 0);
                let space = out.get_mut(start..).unwrap_or_default();
                next.encode(self.open.as_ref(), &mut self.secure, space)
            }
        };
        if let Some(remainder) = remainder {
            self.outbox.push_front(remainder);
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

/// Round that is open on a device, and the chunking of its tensors.
#[derive(Debug)]
pub(super) struct SentRound {
    /// Round as the engine opened it.
    pub opening: Arc<RoundBroadcast>,
    /// Task sent to this device: the task of the round, with a fixed ridge if the device cannot choose one.
    pub task: Task,
    /// Tensors of the round, with the chunk sizes for this device.
    pub tensors: Descriptors,
}

impl SentRound {
    /// Returns what the next frame of an outbox entry contains if it is the same for all devices with this frame limit: the opening, a
    /// chunk of a tensor, or the acknowledgement of a counted update, without encryption.
    fn shared(&self, next: &Outgoing, limit: usize, secure: &SecureLayer) -> Option<SharedContent> {
        match *next {
            _ if secure.is_encrypted() => None,
            Outgoing::Open => {
                let is_same = self.task == self.opening.request.task;
                let content = if self.is_chunked() {
                    SharedContent::OpeningOfChunks { limit }
                } else {
                    SharedContent::Opening
                };
                is_same.then_some(content)
            }
            Outgoing::Chunks(tensor, index) => Some(SharedContent::Chunk { limit, tensor, index }),
            Outgoing::Message(ToDevice::Ack(Ack { id, outcome: AckOutcome::Counted }))
                if id == self.opening.id =>
            {
                Some(SharedContent::Counted)
            }
            _ => None,
        }
    }

    /// Returns true if the tensors follow the opening in chunks.
    fn is_chunked(&self) -> bool {
        self.tensors.iter().any(|tensor| tensor.chunk > 0)
    }
}

/// Content of a frame that is the same for all devices of a round without keys.
#[derive(Clone, Copy, Debug)]
enum SharedContent {
    /// Opening with all tensors.
    Opening,
    /// Opening without tensors, for a frame limit in bytes.
    OpeningOfChunks { limit: usize },
    /// Chunk `index` of a tensor, for a frame limit in bytes.
    Chunk { limit: usize, tensor: usize, index: usize },
    /// Acknowledgement of a counted update.
    Counted,
}

impl SharedContent {
    /// Returns the frame with this content; `None` if it has to be encoded for the device alone.
    fn frame(self, round: &RoundBroadcast) -> Option<&SharedFrame> {
        match self {
            Self::Opening => round.opening(),
            Self::OpeningOfChunks { limit } => round.opening_of_chunks(limit),
            Self::Chunk { limit, tensor, index } => round.chunk(limit, tensor, index),
            Self::Counted => round.counted(),
        }
    }
}

/// Message that is the same for all devices without keys.
#[derive(Clone, Debug)]
pub struct SharedMessage {
    round: Arc<RoundBroadcast>,
    content: SharedContent,
}

impl SharedMessage {
    fn frame(&self) -> Option<&SharedFrame> {
        self.content.frame(&self.round)
    }

    /// Message and body.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.frame().map_or(&[], |shared| &shared.message)
    }
}

/// Longest frame with an acknowledgement or another message of a few numbers, in bytes.
const SHORT_FRAME: usize = 128;

/// Outbox entry. Entries other than messages and frames belong to the open round and are removed when another
/// round is opened.
#[derive(Debug)]
pub(super) enum Outgoing {
    Message(ToDevice),
    /// Encoded frame.
    Encoded(Vec<u8>),
    Open,
    /// Announcement of the open round, whose beacon is sent to all devices.
    Announced(Announced),
    /// Chunks of the open round, from a tensor and chunk index to the end of the last tensor.
    Chunks(usize, usize),
    /// Chunks that the device has requested again.
    Resend(Missing),
}

impl Outgoing {
    /// Encodes the next frame of this entry, and returns the unsent part of the entry.
    pub(super) fn encode(
        self,
        open: Option<&SentRound>,
        secure: &mut SecureLayer,
        out: &mut [u8],
    ) -> (Result<usize, Error>, Option<Self>) {
        let remainder = open.and_then(|round| self.after_chunk(&round.tensors));
        match (self, open) {
            (Self::Message(message), _) => (secure.encode(&message, 0, |_| {}, out), None),
            (Self::Encoded(bytes), _) => (copy_frame(&bytes, out), None),
            (Self::Announced(announced), Some(_)) => {
                (secure.encode(&ToDevice::Announced(announced), 0, |_| {}, out), None)
            }
            (Self::Open, Some(round)) => (encode_open(round, secure, out), None),
            (Self::Chunks(tensor, index), Some(SentRound { opening, tensors, .. })) => {
                let encoded = encode_chunk(opening, tensors, tensor, index, secure, out);
                (encoded, remainder)
            }
            (Self::Resend(mut missing), Some(SentRound { opening, tensors, .. })) => {
                let mut chunks = missing.chunks.iter().copied();
                let (tensor, index) = (missing.tensor.into(), chunks.next().map_or(usize::MAX, usize::from));
                let encoded = encode_chunk(opening, tensors, tensor, index, secure, out);
                missing.chunks = chunks.collect();
                let is_unfinished = !missing.chunks.is_empty();
                (encoded, is_unfinished.then_some(Self::Resend(missing)))
            }
            (_, None) => (Err(Error::BadDescriptor), None),
        }
    }

    /// Returns the entry that remains after the next of the chunks is sent; `None` after the last chunk, and for other entries.
    fn after_chunk(&self, tensors: &Descriptors) -> Option<Self> {
        let Self::Chunks(tensor, index) = *self else { return None };
        let count = tensors.get(tensor).map_or(0, TensorDescriptor::chunks);
        let (tensor, index) = if index + 1 < count { (tensor, index + 1) } else { (tensor + 1, 0) };
        (tensor < tensors.len()).then_some(Self::Chunks(tensor, index))
    }

    /// Returns an upper bound of the length of the next frame; the largest number if there is no smaller one.
    fn longest_frame(&self) -> usize {
        match self {
            Self::Message(ToDevice::Ack(_) | ToDevice::RoundClosed(_) | ToDevice::NextRound { .. }) => {
                SHORT_FRAME
            }
            _ => usize::MAX,
        }
    }

    /// Returns the heap bytes of this entry.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Encoded(bytes) => bytes.capacity(),
            _ => 0,
        }
    }
}

/// Copies an encoded frame to `out`.
fn copy_frame(bytes: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    let (needed, got) = (bytes.len(), out.len());
    out.get_mut(..needed).ok_or(Error::BufferTooSmall { needed, got })?.copy_from_slice(bytes);
    Ok(needed)
}

/// Encodes the first message of a round, with the tensors if they fit.
fn encode_open(sent: &SentRound, secure: &mut SecureLayer, out: &mut [u8]) -> Result<usize, Error> {
    let SentRound { opening, task, tensors } = sent;
    let is_inline = tensors.iter().all(|t| t.chunk == 0);
    let body = if is_inline { opening.encoded.iter().map(Vec::len).sum() } else { 0 };
    let round = RoundOpen { id: opening.id, task: *task, tensors: tensors.clone() };
    let message = ToDevice::RoundOpen(round);
    let fill = |mut buffer: &mut [u8]| {
        for bytes in &opening.encoded {
            if let Some((tensor_buffer, rest)) = std::mem::take(&mut buffer).split_at_mut_checked(bytes.len())
            {
                tensor_buffer.copy_from_slice(bytes);
                buffer = rest;
            }
        }
    };
    secure.encode(&message, body, fill, out)
}

/// Encodes one chunk of a tensor.
fn encode_chunk(
    opening: &RoundBroadcast,
    tensors: &Descriptors,
    tensor: usize,
    index: usize,
    secure: &mut SecureLayer,
    out: &mut [u8],
) -> Result<usize, Error> {
    let descriptor = tensors.get(tensor).ok_or(Error::BadDescriptor)?;
    let (chunk, content) = opening.chunk_message(descriptor, tensor, index).ok_or(Error::BadDescriptor)?;
    secure.encode(&ToDevice::Chunk(chunk), content.len(), |buffer| buffer.copy_from_slice(content), out)
}
