//! The session's sending half: which frame is next, and how a tensor becomes bytes without a copy of it.

use core::ops::Range;

use fedspan_protocol::message::{CHOOSES_RIDGE, Chunk, DeclineReason, Hello, ToServer, Update};
use fedspan_protocol::tensor::{I8_BLOCK, TensorDescriptor};
use rand_core::Rng;

use super::conversation::{Conversation, Outgoing, State};
use super::vocabulary::count;
use super::{Sampling, Session};
use crate::source::SampleSource;
use crate::store::Store;
use crate::task::Task;
use crate::time::Millis;

/// What of the update is in the body of a frame: these elements of each of these tensors.
struct Part {
    tensors: Range<usize>,
    elements: Range<usize>,
}

impl Part {
    const NOTHING: Self = Self { tensors: 0..0, elements: 0..0 };

    /// The elements of this tensor.
    fn of(&self, tensor: &TensorDescriptor) -> Range<usize> {
        self.elements.start..self.elements.end.min(tensor.elements())
    }
}

impl<T: Task, S: SampleSource, P: Store, R: Rng> Session<T, S, P, R> {
    #[inline(never)]
    pub(super) fn transmit(&mut self, now: Millis, out: &mut [u8]) -> usize {
        if self.talk.is_quiet(now) {
            return 0;
        }
        let Some((message, part)) = self.next_frame(now) else { return 0 };
        let tensors = self.talk.upload.get(part.tensors.clone()).unwrap_or_default();
        let body = tensors.iter().map(|tensor| tensor.encoding.byte_len(part.of(tensor).len())).sum();
        let mut finite = true;
        let fill = |mut body: &mut [u8]| {
            for (index, tensor) in part.tensors.clone().zip(tensors) {
                let elements = part.of(tensor);
                let length = tensor.encoding.byte_len(elements.len());
                let (own, rest) = body.split_at_mut_checked(length).unwrap_or_default();
                finite &= write_elements(&self.task, index, tensor, elements, own);
                body = rest;
            }
        };
        let encoded = self.guard.encode(&message, body, fill, out).ok();
        if !finite {
            // It does not leave; the next frame says so.
            self.talk.decline_round(self.talk.round, DeclineReason::UpdateNonFinite);
            return 0;
        }
        if encoded.is_some() && matches!(message, ToServer::Update(_) | ToServer::Chunk(_)) {
            self.talk.released = self.talk.round.round;
            self.talk.unsent = false;
        }
        self.talk.sent(now, encoded)
    }

    fn next_frame(&mut self, now: Millis) -> Option<(ToServer, Part)> {
        if self.talk.close || self.talk.state != (State::Greeting { said: false }) {
            return self.talk.next_frame(now);
        }
        if core::mem::take(&mut self.talk.anew) {
            self.guard.forget();
        }
        if self.guard.prepare(&mut self.store, &mut self.random).is_err() {
            // Without a number that is sure to be new there is no handshake; perhaps the storage works later.
            count(&mut self.talk.counters.storage);
            self.talk.close = true;
            return None;
        }
        let mut capabilities = self.task.capabilities();
        capabilities.frame_limit = self.config.frame_limit;
        capabilities.privacy = self.ledger.told(capabilities.privacy);
        if let Sampling::Stream { .. } = self.config.sampling {
            capabilities.tasks &= self.task.streamed_tasks();
            // No second pass leaves samples out.
            capabilities.roles &= !CHOOSES_RIDGE;
        }
        self.talk.greeted(now);
        Some((ToServer::Hello(Hello::new(self.config.device, capabilities)), Part::NOTHING))
    }
}

impl Conversation {
    /// What is to be said now, hello excepted.
    fn next_frame(&mut self, now: Millis) -> Option<(ToServer, Part)> {
        let message = match self.state {
            _ if self.close => return None,
            State::Offline | State::Greeting { .. } => return None,
            _ if self.confirm => {
                self.confirm = false;
                ToServer::Alive
            }
            _ if self.decline.is_some() => ToServer::Decline(self.decline.take()?),
            State::Receiving { ask: true } => {
                self.state = State::Receiving { ask: false };
                ToServer::Missing(self.assembly.missing(self.round)?)
            }
            _ if self.resend.is_some() => return self.missing_chunk(),
            State::Sending { next: Outgoing::Head } => return Some(self.update(now)),
            State::Sending { next: Outgoing::Chunk { tensor, index } } => {
                self.send_next(now, self.following(tensor, index));
                return self.chunk(tensor, index);
            }
            _ if now >= self.alive_at() => ToServer::Alive,
            _ => return None,
        };
        Some((message, Part::NOTHING))
    }

    /// The update's head; all tensors are in its body, or all in chunks.
    fn update(&mut self, now: Millis) -> (ToServer, Part) {
        let chunked = self.upload.iter().any(|t| t.chunk > 0);
        self.send_next(now, chunked.then_some(Outgoing::Chunk { tensor: 0, index: 0 }));
        let update = Update {
            id: self.round,
            samples: self.usage.samples,
            skipped: self.usage.skipped,
            tensors: self.upload.clone(),
        };
        let part = if chunked {
            Part::NOTHING
        } else {
            Part { tensors: 0..self.upload.len(), elements: 0..usize::MAX }
        };
        (ToServer::Update(update), part)
    }

    fn send_next(&mut self, now: Millis, next: Option<Outgoing>) {
        match next {
            Some(next) => self.enter(State::Sending { next }),
            None => self.await_ack(now),
        }
    }

    fn following(&self, tensor: u8, index: u16) -> Option<Outgoing> {
        let chunks = self.upload.get(usize::from(tensor)).map_or(0, TensorDescriptor::chunks);
        if usize::from(index) + 1 < chunks {
            return Some(Outgoing::Chunk { tensor, index: index + 1 });
        }
        (usize::from(tensor) + 1 < self.upload.len())
            .then_some(Outgoing::Chunk { tensor: tensor + 1, index: 0 })
    }

    fn missing_chunk(&mut self) -> Option<(ToServer, Part)> {
        let missing = self.resend.as_mut()?;
        // In any order; taking the first would bring a panic along.
        let (tensor, index) = (missing.tensor, missing.chunks.pop());
        if missing.chunks.is_empty() {
            self.resend = None;
        }
        self.chunk(tensor, index?)
    }

    fn chunk(&mut self, tensor: u8, index: u16) -> Option<(ToServer, Part)> {
        let number = usize::from(tensor);
        let elements = self.upload.get(number).and_then(|d| d.chunk_range(usize::from(index)));
        let offset = elements.as_ref().and_then(|elements| u32::try_from(elements.start).ok());
        let (Some(elements), Some(offset)) = (elements, offset) else {
            self.unexpected();
            return None;
        };
        let chunk = Chunk { id: self.round, tensor, offset };
        Some((ToServer::Chunk(chunk), Part { tensors: number..number + 1, elements }))
    }

    fn sent(&mut self, now: Millis, encoded: Option<usize>) -> usize {
        // Also where nothing was sent: trying again at once would not help.
        self.last_sent = now;
        match encoded {
            Some(bytes) => bytes,
            None => {
                count(&mut self.counters.unsent);
                0
            }
        }
    }
}

/// Writes elements `range` of an outgoing tensor, encoded, through a buffer of one encoding block. False
/// if a value is not finite.
fn write_elements(
    task: &impl Task,
    index: usize,
    descriptor: &TensorDescriptor,
    range: Range<usize>,
    out: &mut [u8],
) -> bool {
    let mut block = [0.0f32; I8_BLOCK];
    let stride = descriptor.encoding.byte_len(I8_BLOCK);
    let mut rest = range;
    for bytes in out.chunks_mut(stride) {
        let values = block.get_mut(..I8_BLOCK.min(rest.len())).unwrap_or_default();
        task.emit(index, rest.start, values);
        if descriptor.encoding.encode(values, bytes).is_err() {
            return false;
        }
        rest.start += values.len();
    }
    true
}
