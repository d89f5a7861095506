//! Sending half of a session: selection of the next frame, and encoding of tensors without a copy.

use core::ops::Range;

#[cfg(feature = "reports")]
use super::config::About;
#[cfg(feature = "beacons")]
use fedspan_protocol::message::RECEIVES_BEACONS;
#[cfg(feature = "key-rotation")]
use fedspan_protocol::message::RECEIVES_KEYS;
use fedspan_protocol::message::{CHOOSES_RIDGE, Chunk, Decline, DeclineReason, Hello, ToServer, Update};
#[cfg(feature = "reports")]
use fedspan_protocol::message::{Report, ReportCounters};
use fedspan_protocol::tensor::{I8_BLOCK, TensorDescriptor};
use rand_core::Rng;

use super::counters::count;
use super::state::{Phase, SessionState, UploadCursor};
use super::{Aead, Session};
use crate::event_log::log_event;
use crate::source::SampleSource;
use crate::store::{Store, StoreError};
use crate::task::Task;
use crate::time::Millis;

/// Part of the update that the body of a frame contains: the same range of elements of each of these tensors.
struct BodyRange {
    /// Indices of the tensors.
    tensors: Range<usize>,
    /// Range of elements of each tensor.
    elements: Range<usize>,
}

impl BodyRange {
    /// Range without tensors.
    const EMPTY: Self = Self { tensors: 0..0, elements: 0..0 };

    /// Returns the range, limited to the elements of `tensor`.
    fn elements_of(&self, tensor: &TensorDescriptor) -> Range<usize> {
        self.elements.start..self.elements.end.min(tensor.elements())
    }
}

impl<T: Task, S: SampleSource, P: Store, R: Rng, A: Aead + Clone> Session<T, S, P, R, A> {
    /// Encodes the next frame into `out`. Returns its length, or 0 if no frame is to be sent.
    #[inline(never)]
    pub(super) fn transmit(&mut self, now: Millis, out: &mut [u8]) -> usize {
        if self.state.is_silent(now) {
            return 0;
        }
        #[cfg(feature = "key-rotation")]
        if self.state.may_use_new_key() {
            self.state.restart_handshake();
        }
        let Some((message, range)) = self.next_frame(now) else { return 0 };
        let tensors = self.state.upload.get(range.tensors.clone()).unwrap_or_default();
        let body =
            tensors.iter().map(|tensor| tensor.encoding.byte_len(range.elements_of(tensor).len())).sum();
        #[cfg(feature = "reports")]
        let counters = matches!(message, ToServer::Report(_)).then_some(&self.state.counters);
        #[cfg(feature = "reports")]
        let body = counters.map_or(body, |counters| ReportCounters::length_of(&counters.reported()));
        let mut finite = true;
        let fill = |mut body: &mut [u8]| {
            #[cfg(feature = "reports")]
            if let Some(counters) = counters {
                ReportCounters::write(&counters.reported(), body);
                return;
            }
            for (index, tensor) in range.tensors.clone().zip(tensors) {
                let elements = range.elements_of(tensor);
                let length = tensor.encoding.byte_len(elements.len());
                let (bytes, after) = body.split_at_mut_checked(length).unwrap_or_default();
                finite &= write_elements(&self.task, index, tensor, elements, bytes);
                body = after;
            }
        };
        let encoded = self.secure.encode(&message, body, fill, out).ok();
        if !finite {
            // The frame is not sent. The next frame is a decline.
            self.state.decline_round(self.state.round, DeclineReason::UpdateNonFinite);
            return 0;
        }
        if encoded.is_some() && matches!(message, ToServer::Update(_) | ToServer::Chunk(_)) {
            self.state.last_sent_round = self.state.round.round;
            self.state.charged_unsent = false;
        }
        self.state.record_sent(now, encoded)
    }

    /// Reads the stored key, if it could not be read so far.
    #[cfg(feature = "key-rotation")]
    fn read_key(&mut self) -> Result<(), StoreError> {
        if !self.state.is_key_read {
            let stored = self.store.load_key()?;
            self.state.is_key_read = true;
            stored.into_iter().for_each(|key| self.secure.replace_key(key));
        }
        self.state.has_new_key = false;
        Ok(())
    }

    /// Begins a handshake, unless one is in progress.
    fn start_handshake(&mut self) -> Result<(), StoreError> {
        #[cfg(feature = "key-rotation")]
        if !self.secure.is_plaintext() {
            self.read_key()?;
        }
        self.secure.start_handshake(&mut self.store, &mut self.random)
    }

    /// Returns the next message to send, with the part of the update in its body.
    fn next_frame(&mut self, now: Millis) -> Option<(ToServer, BodyRange)> {
        #[cfg(feature = "reports")]
        if let Some(report) = self.next_report(now) {
            return Some((report, BodyRange::EMPTY));
        }
        if self.state.close || self.state.phase != (Phase::Greeting { hello_sent: false }) {
            return self.state.next_frame_after_hello(now);
        }
        if core::mem::take(&mut self.state.rehandshake) {
            self.secure.reset();
        }
        if self.start_handshake().is_err() {
            // Without a new handshake number no handshake is possible. A later connection may succeed if the
            // storage works again.
            count(&mut self.state.counters.storage);
            log_event!(error, "no number of a handshake can be stored");
            self.state.close = true;
            return None;
        }
        let mut capabilities = self.task.capabilities();
        capabilities.frame_limit = self.config.frame_limit;
        #[cfg(feature = "beacons")]
        if self.config.receives_beacons {
            capabilities.roles |= RECEIVES_BEACONS;
        }
        capabilities.roles |= self.secure.ability();
        #[cfg(feature = "key-rotation")]
        if self.config.receives_keys && !self.secure.is_plaintext() {
            capabilities.roles |= RECEIVES_KEYS;
        }
        capabilities.privacy = self.ledger.with_spent(capabilities.privacy);
        if self.config.sampling.streamed_samples().is_some() {
            capabilities.tasks &= self.task.streamed_tasks();
            // Leave-one-out needs a second pass over the samples.
            capabilities.roles &= !CHOOSES_RIDGE;
        }
        self.state.await_welcome(now);
        Some((ToServer::Hello(Hello::new(self.config.device, capabilities)), BodyRange::EMPTY))
    }

    /// Returns the report that is due.
    #[cfg(feature = "reports")]
    fn next_report(&mut self, now: Millis) -> Option<ToServer> {
        // The key is proved first.
        if self.state.send_key_proof
            || !self.state.is_established()
            || !core::mem::take(&mut self.state.report_due)
        {
            return None;
        }
        let About { firmware, reset } = self.config.about?;
        let uptime = u32::try_from(now.as_u64() / 1_000).unwrap_or(u32::MAX);
        self.state.last_sent_at = now;
        Some(ToServer::Report(Report { firmware, reset, uptime }))
    }
}

impl SessionState {
    /// Returns true if a handshake with a new key begins: no round is open or announced, and no decline is to be sent.
    #[cfg(feature = "key-rotation")]
    pub fn may_use_new_key(&self) -> bool {
        #[cfg(feature = "beacons")]
        if self.announced.is_some() {
            return false;
        }
        self.has_new_key && self.phase == Phase::Idle && self.decline.is_none()
    }

    /// Returns the next message to send after the hello.
    fn next_frame_after_hello(&mut self, now: Millis) -> Option<(ToServer, BodyRange)> {
        let message = match self.phase {
            _ if self.close => return None,
            Phase::Offline | Phase::Greeting { .. } => return None,
            _ if self.send_key_proof => {
                self.send_key_proof = false;
                ToServer::Alive
            }
            _ if self.decline.is_some() => {
                self.round_ended(now);
                if let Some(Decline { id, reason }) = &self.decline {
                    log_event!(warn, "round {} stage {} declined: {:?}", id.round, id.stage, reason);
                }
                ToServer::Decline(self.decline.take()?)
            }
            Phase::Receiving { ask_missing: true } => {
                count(&mut self.counters.asked_again);
                self.phase = Phase::Receiving { ask_missing: false };
                ToServer::Missing(self.assembly.missing(self.round)?)
            }
            _ if self.resend.is_some() => return self.requested_chunk_frame(),
            Phase::Sending { next: UploadCursor::Update } => return Some(self.update_frame(now)),
            Phase::Sending { next: UploadCursor::Chunk { tensor, index } } => {
                self.advance(now, self.next_cursor(tensor, index));
                return self.chunk_frame(tensor, index);
            }
            _ if now >= self.alive_at() => ToServer::Alive,
            _ => return None,
        };
        Some((message, BodyRange::EMPTY))
    }

    /// Returns the update message. Its body contains all tensors, or no tensor if they follow in chunks.
    fn update_frame(&mut self, now: Millis) -> (ToServer, BodyRange) {
        let chunked = self.upload.iter().any(|t| t.chunk > 0);
        self.advance(now, chunked.then_some(UploadCursor::Chunk { tensor: 0, index: 0 }));
        let update = Update {
            id: self.round,
            samples: self.usage.samples,
            skipped: self.usage.skipped,
            tensors: self.upload.clone(),
        };
        let range = if chunked {
            BodyRange::EMPTY
        } else {
            BodyRange { tensors: 0..self.upload.len(), elements: 0..usize::MAX }
        };
        (ToServer::Update(update), range)
    }

    /// Moves to the next position of the update, or to waiting for the acknowledgement.
    fn advance(&mut self, now: Millis, next: Option<UploadCursor>) {
        match next {
            Some(next) => self.enter(Phase::Sending { next }),
            None => self.await_ack(now),
        }
    }

    /// Returns the position of the chunk after chunk `index` of `tensor`.
    fn next_cursor(&self, tensor: u8, index: u16) -> Option<UploadCursor> {
        let chunks = self.upload.get(usize::from(tensor)).map_or(0, TensorDescriptor::chunks);
        if usize::from(index) + 1 < chunks {
            return Some(UploadCursor::Chunk { tensor, index: index + 1 });
        }
        (usize::from(tensor) + 1 < self.upload.len())
            .then_some(UploadCursor::Chunk { tensor: tensor + 1, index: 0 })
    }

    /// Returns the next of the chunks that the server has requested again.
    fn requested_chunk_frame(&mut self) -> Option<(ToServer, BodyRange)> {
        let missing = self.resend.as_mut()?;
        // Taken from the end, because removing the first would add a panic branch. The order of chunks does
        // not matter.
        let (tensor, index) = (missing.tensor, missing.chunks.pop());
        if missing.chunks.is_empty() {
            self.resend = None;
        }
        self.chunk_frame(tensor, index?)
    }

    /// Returns the message of one chunk of the update.
    fn chunk_frame(&mut self, tensor: u8, index: u16) -> Option<(ToServer, BodyRange)> {
        let number = usize::from(tensor);
        let elements = self.upload.get(number).and_then(|d| d.chunk_range(usize::from(index)));
        let offset = elements.as_ref().and_then(|elements| u32::try_from(elements.start).ok());
        let (Some(elements), Some(offset)) = (elements, offset) else {
            self.unexpected();
            return None;
        };
        let chunk = Chunk { id: self.round, tensor, offset };
        Some((ToServer::Chunk(chunk), BodyRange { tensors: number..number + 1, elements }))
    }

    /// Records the time and the result of sending a frame.
    fn record_sent(&mut self, now: Millis, encoded: Option<usize>) -> usize {
        // The time is recorded even if nothing was sent: an immediate retry would not help.
        self.last_sent_at = now;
        match encoded {
            Some(bytes) => bytes,
            None => {
                count(&mut self.counters.unsent);
                0
            }
        }
    }
}

/// Number of values that are computed at a time: one block of the encoding, and more on hosts.
const BLOCK: usize =
    if cfg!(all(feature = "wide", not(target_os = "none"))) { 8 * I8_BLOCK } else { I8_BLOCK };

/// Encodes elements `range` of an outgoing tensor, some blocks at a time. Returns false if a value is
/// not finite.
fn write_elements(
    task: &impl Task,
    index: usize,
    descriptor: &TensorDescriptor,
    range: Range<usize>,
    out: &mut [u8],
) -> bool {
    let mut block = [0.0f32; BLOCK];
    let stride = descriptor.encoding.byte_len(BLOCK);
    let mut remaining = range;
    for bytes in out.chunks_mut(stride) {
        let values = block.get_mut(..BLOCK.min(remaining.len())).unwrap_or_default();
        task.emit(index, remaining.start, values);
        if descriptor.encoding.encode(values, bytes).is_err() {
            return false;
        }
        remaining.start += values.len();
    }
    true
}
