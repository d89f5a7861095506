//! The session's sending half: which frame is next, and how a tensor becomes bytes without a copy of it.

use fedspan_protocol::frame::encode;
use fedspan_protocol::message::{Chunk, DeclineReason, Hello, ToServer, Update};
use fedspan_protocol::tensor::{I8_BLOCK, TensorDescriptor};
use rand_core::Rng;

use super::conversation::{Conversation, Outgoing, State};
use super::vocabulary::count;
use super::{Millis, Sampling, Session};
use crate::source::SampleSource;
use crate::store::Store;
use crate::task::Task;

impl<T: Task, S: SampleSource, P: Store, R: Rng> Session<T, S, P, R> {
    pub(super) fn transmit(&mut self, now: Millis, out: &mut [u8]) -> usize {
        if self.talk.close {
            return 0;
        }
        let none = |_: &mut [u8]| {};
        let encoded = match self.talk.state {
            State::Offline | State::Greeting { said: true } => return 0,
            State::Greeting { said: false } => {
                let mut capabilities = self.task.capabilities();
                capabilities.frame_limit = self.config.frame_limit;
                if let Sampling::Stream { .. } = self.config.sampling {
                    capabilities.tasks &= self.task.streamed_tasks();
                }
                self.talk.greeted(now);
                encode(&ToServer::Hello(Hello::new(self.config.device, capabilities)), 0, none, out)
            }
            _ if self.talk.decline.is_some() => match self.talk.decline.take() {
                Some(decline) => encode(&ToServer::Decline(decline), 0, none, out),
                None => return 0,
            },
            State::Receiving { ask: true } => {
                self.talk.state = State::Receiving { ask: false };
                match self.talk.assembly.missing(self.talk.round) {
                    Some(missing) => encode(&ToServer::Missing(missing), 0, none, out),
                    None => return 0,
                }
            }
            _ if self.talk.resend.is_some() => return self.send_missing_chunk(now, out),
            State::Sending { next } => return self.send_update(now, next, out),
            _ if now >= self.talk.alive_at() => encode(&ToServer::Alive, 0, none, out),
            _ => return 0,
        };
        self.talk.sent(now, encoded.ok())
    }

    fn send_update(&mut self, now: Millis, next: Outgoing, out: &mut [u8]) -> usize {
        match next {
            Outgoing::Head => {
                let inline: usize =
                    self.talk.upload.iter().filter(|t| t.chunk == 0).map(TensorDescriptor::byte_len).sum();
                let update = Update {
                    id: self.talk.round,
                    samples: self.talk.usage.samples,
                    skipped: self.talk.usage.skipped,
                    tensors: self.talk.upload.clone(),
                };
                let mut finite = true;
                let fill = |mut body: &mut [u8]| {
                    for (index, tensor) in self.talk.upload.iter().enumerate().filter(|(_, t)| t.chunk == 0) {
                        let (own, rest) = body.split_at_mut_checked(tensor.byte_len()).unwrap_or_default();
                        finite &= write_elements(&self.task, index, tensor, 0..tensor.elements(), own);
                        body = rest;
                    }
                };
                let encoded = encode(&ToServer::Update(update), inline, fill, out);
                let first =
                    self.talk.upload.iter().position(|t| t.chunk > 0).and_then(|t| u8::try_from(t).ok());
                self.talk.send_next(now, first.map(|tensor| Outgoing::Chunk { tensor, index: 0 }));
                self.sent_if_finite(now, finite, encoded.ok(), out)
            }
            Outgoing::Chunk { tensor, index } => {
                let sent = self.send_chunk(now, tensor, index, out);
                if let State::Sending { .. } = self.talk.state {
                    self.talk.send_next(now, self.talk.following(tensor, index));
                }
                sent
            }
        }
    }

    fn send_missing_chunk(&mut self, now: Millis, out: &mut [u8]) -> usize {
        let Some(missing) = &mut self.talk.resend else { return 0 };
        // In any order; taking the first would bring a panic along.
        let (tensor, index) = (missing.tensor, missing.chunks.pop());
        if missing.chunks.is_empty() {
            self.talk.resend = None;
        }
        let Some(index) = index else { return 0 };
        self.send_chunk(now, tensor, index, out)
    }

    fn send_chunk(&mut self, now: Millis, tensor: u8, index: u16, out: &mut [u8]) -> usize {
        let descriptor = self.talk.upload.get(usize::from(tensor)).copied();
        let range = descriptor.and_then(|d| d.chunk_range(usize::from(index)));
        let (Some(descriptor), Some(range)) = (descriptor, range) else {
            self.talk.unexpected();
            return 0;
        };
        let Ok(offset) = u32::try_from(range.start) else { return 0 };
        let chunk = Chunk { id: self.talk.round, tensor, offset };
        let body = descriptor.encoding.byte_len(range.len());
        let mut finite = true;
        let fill = |body: &mut [u8]| {
            finite = write_elements(&self.task, usize::from(tensor), &descriptor, range.clone(), body);
        };
        let encoded = encode(&ToServer::Chunk(chunk), body, fill, out);
        self.sent_if_finite(now, finite, encoded.ok(), out)
    }

    /// Nothing that is not finite leaves: the round is declined instead.
    fn sent_if_finite(&mut self, now: Millis, finite: bool, encoded: Option<usize>, out: &mut [u8]) -> usize {
        if finite {
            return self.talk.sent(now, encoded);
        }
        self.talk.decline_round(self.talk.round, DeclineReason::UpdateNonFinite);
        self.transmit(now, out)
    }
}

impl Conversation {
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
    range: core::ops::Range<usize>,
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
