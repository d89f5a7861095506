//! Test helpers for the session: a fake server, a device with its clock, and a link that loses, duplicates
//! and delays frames on request.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use fedspan_client::Millis;
use fedspan_client::session::{Config, Event, Progress, Protection, Session};
#[cfg(feature = "key-rotation")]
use fedspan_client::store::StoredKey;
use fedspan_client::store::{Record, RecordHeader, Store, StoreError};
use fedspan_client::{Linear, SampleSource, Task};
use fedspan_protocol::assembly::{Assembly, plan};
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{
    Ack, AckOutcome, Chunk, Decline, Descriptors, Missing, RoundId, RoundOpen, Task as Wire, ToDevice,
    ToServer, Update, Welcome, decode,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::Heap;

/// Encodes a message as a frame on the wire.
pub fn encode_frame(message: &ToDevice, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0; wire_capacity(5000)];
    let n = encode(message, body.len(), |buffer| buffer.copy_from_slice(body), &mut out).unwrap();
    out.truncate(n);
    out
}

/// Returns message and body in the form in which a frame decoder returns them.
pub fn payload(message: &ToDevice, body: &[u8]) -> Vec<u8> {
    let bytes = encode_frame(message, body);
    match Decoder::new(vec![0; 5000]).feed(&mut &bytes[..]) {
        FeedResult::Message(message) => message.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Returns true if a device of this build can read a message: one without the features of a task drops the task's messages as
/// malformed.
pub fn is_readable(message: &ToDevice, body: &[u8]) -> bool {
    decode::<ToDevice>(&payload(message, body)).is_ok()
}

/// Decodes the only frame that a device sent in one step, with the device's frame limit.
pub fn decode_frame(out: &[u8], limit: usize) -> (ToServer, Vec<u8>) {
    let mut input = out;
    match Decoder::new(vec![0; limit]).feed(&mut input) {
        FeedResult::Message(message) => {
            assert!(input.is_empty(), "more than one frame was passed");
            let (message, body) = decode::<ToServer>(message).unwrap();
            (message, body.to_vec())
        }
        other => panic!("{other:?} under a limit of {limit}"),
    }
}

/// Store in memory that survives its session and fails on request.
#[derive(Clone, Debug, Default)]
pub struct Flash(pub Rc<RefCell<FlashState>>);

/// Content of the store, its requested failures, and a log of calls.
#[derive(Clone, Debug, Default)]
pub struct FlashState {
    pub record: Option<(RecordHeader, Vec<f32>)>,
    pub handshakes: u64,
    pub spent: u64,
    #[cfg(feature = "key-rotation")]
    pub key: Option<StoredKey>,
    /// Number of saved records.
    pub saves: usize,
    pub fail_save: bool,
    pub fail_spent: bool,
    /// True if `save_spent` reports an error after it has written the value.
    pub fail_spent_after: bool,
    pub fail_load: bool,
    spent_uncertain: bool,
    /// Names of the successful writes and of all reads of the spent budget, in order.
    pub calls: Vec<&'static str>,
}

impl Store for Flash {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let mut state = self.0.borrow_mut();
        if state.fail_save {
            return Err(StoreError);
        }
        let Record { campaign, round, representation, head } = *record;
        state.calls.push("save");
        state.saves += 1;
        state.record = Some((RecordHeader { campaign, round, representation }, head.to_vec()));
        Ok(())
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        let state = self.0.borrow();
        if state.fail_load {
            return Err(StoreError);
        }
        Ok(state.record.clone().filter(|(_, stored)| stored.len() == head.len()).map(|(loaded, stored)| {
            head.copy_from_slice(&stored);
            loaded
        }))
    }

    fn save_handshakes(&mut self, numbered: u64) -> Result<(), StoreError> {
        let mut state = self.0.borrow_mut();
        if state.fail_save {
            return Err(StoreError);
        }
        state.calls.push("save_handshakes");
        state.handshakes = numbered;
        Ok(())
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        let state = self.0.borrow();
        if state.fail_load { Err(StoreError) } else { Ok(state.handshakes) }
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        let mut state = self.0.borrow_mut();
        if state.fail_spent {
            return Err(StoreError);
        }
        // Writing the same value again is allowed only after a failed write.
        assert!(
            spent > state.spent || state.spent_uncertain && spent == state.spent,
            "{spent} after {}",
            state.spent
        );
        state.calls.push("save_spent");
        state.spent = spent;
        state.spent_uncertain = state.fail_spent_after;
        if state.spent_uncertain { Err(StoreError) } else { Ok(()) }
    }

    #[cfg(feature = "key-rotation")]
    fn save_key(&mut self, key: &StoredKey) -> Result<(), StoreError> {
        let mut state = self.0.borrow_mut();
        if state.fail_save {
            return Err(StoreError);
        }
        state.key = Some(key.clone());
        Ok(())
    }

    #[cfg(feature = "key-rotation")]
    fn load_key(&mut self) -> Result<Option<StoredKey>, StoreError> {
        let state = self.0.borrow();
        if state.fail_load { Err(StoreError) } else { Ok(state.key.clone()) }
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        let mut state = self.0.borrow_mut();
        state.calls.push("load_spent");
        if state.fail_load { Err(StoreError) } else { Ok(state.spent) }
    }
}

/// Session of a device over a store in memory.
pub type Device<S, T = Linear<Heap>> = Session<T, S, Flash, ChaCha8Rng>;

/// Device with its clock and transmit buffer.
#[derive(Debug)]
pub struct Bench<S, T = Linear<Heap>> {
    pub session: Device<S, T>,
    pub limit: usize,
    pub now: u64,
    /// Result of the last event.
    pub last: Progress,
    out: Vec<u8>,
}

impl<S: SampleSource> Bench<S> {
    /// Creates a device with a linear model.
    pub fn new(config: Config, memory: Heap, source: S, flash: Flash) -> Self {
        Self::with_task(config, Linear::new(memory), source, flash)
    }
}

impl<S: SampleSource, T: Task> Bench<S, T> {
    /// Creates a device with the given task, without a key. Its time starts at 1 s.
    pub fn with_task(config: Config, task: T, source: S, flash: Flash) -> Self {
        let (random, protection) = (ChaCha8Rng::seed_from_u64(1), Protection::Plaintext);
        let session = Session::new(config, protection, task, source, flash, random);
        let last = Progress { sent: 0, again: false, close: false, wake: Millis::ZERO };
        let limit = usize::from(config.frame_limit);
        Self { session, limit, now: 1_000, last, out: vec![0xEE; config.transmit_capacity()] }
    }

    /// Passes one event to the session. Returns at most one frame.
    pub fn handle_event(&mut self, event: Event<'_>) -> Option<(ToServer, Vec<u8>)> {
        self.last = self.session.handle(Millis::new(self.now), event, &mut self.out);
        assert!(self.last.sent <= self.out.len());
        (self.last.sent > 0).then(|| decode_frame(&self.out[..self.last.sent], self.limit))
    }

    /// Passes one event to the session and ticks until no action is due at once. Returns all frames.
    pub fn handle_until_idle(&mut self, event: Event<'_>) -> Vec<(ToServer, Vec<u8>)> {
        let mut sent: Vec<_> = self.handle_event(event).into_iter().collect();
        while self.last.again {
            sent.extend(self.handle_event(Event::Tick));
            assert!(sent.len() < 1000, "the session sends frames without end");
        }
        sent
    }

    /// Passes a message of the server to the session. Returns all frames that the device sends.
    pub fn receive_message(&mut self, message: &ToDevice, body: &[u8]) -> Vec<(ToServer, Vec<u8>)> {
        self.handle_until_idle(Event::Message(&payload(message, body)))
    }

    /// Advances the clock to the next wake-up time and ticks. Returns all frames.
    pub fn wake_up(&mut self) -> Vec<(ToServer, Vec<u8>)> {
        self.now = self.now.max(self.last.wake.as_u64());
        self.handle_until_idle(Event::Tick)
    }

    /// Opens the link, expects a hello, and answers with a Welcome. Returns the frames that follow.
    pub fn connect(&mut self, campaign: u64, idle_milliseconds: u32) -> Vec<(ToServer, Vec<u8>)> {
        let sent = self.handle_until_idle(Event::LinkUp);
        assert!(matches!(sent[..], [(ToServer::Hello(_), _)]), "{sent:?}");
        self.receive_message(&ToDevice::Welcome(Welcome { campaign, idle_milliseconds }), &[])
    }
}

/// Server with one round, and a log of the answers to that round.
#[derive(Clone, Debug)]
pub struct Server {
    pub open: RoundOpen,
    pub tensors: Vec<Vec<f32>>,
    pub idle_milliseconds: u32,
    incoming: Option<(Update, Assembly, Vec<Vec<u8>>)>,
    /// Complete updates, each with its message and the bytes of its tensors.
    pub updates: Vec<(Update, Vec<Vec<u8>>)>,
    pub declined: Vec<Decline>,
    /// Number of requests for missing chunks.
    pub chunk_requests: usize,
}

impl Server {
    /// Creates a server whose round sends `tensors`, each with role, rows, columns and values.
    pub fn new(
        round: u32,
        task: Wire,
        encoding: Encoding,
        limit: usize,
        tensors: Vec<(Role, usize, usize, Vec<f32>)>,
    ) -> Self {
        let mut descriptors: Descriptors = tensors
            .iter()
            .map(|(role, rows, cols, _)| {
                TensorDescriptor::inline(*role, encoding, *rows as u16, *cols as u16)
            })
            .collect();
        plan(&mut descriptors, limit).unwrap();
        Self {
            open: RoundOpen { id: RoundId { round, stage: 0 }, task, tensors: descriptors },
            tensors: tensors.into_iter().map(|(_, _, _, values)| values).collect(),
            idle_milliseconds: 60_000,
            incoming: None,
            updates: Vec::new(),
            declined: Vec::new(),
            chunk_requests: 0,
        }
    }

    /// Returns a chunk of a tensor and its encoded values, or `None` if there is no such chunk.
    pub fn chunk(&self, tensor: usize, index: usize) -> Option<(Chunk, Vec<u8>)> {
        let descriptor = self.open.tensors.get(tensor)?;
        let range = descriptor.chunk_range(index)?;
        let chunk = Chunk { id: self.open.id, tensor: tensor as u8, offset: range.start as u32 };
        let values = &self.tensors[tensor][range];
        let mut body = vec![0; descriptor.encoding.byte_len(values.len())];
        descriptor.encoding.encode(values, &mut body).unwrap();
        Some((chunk, body))
    }

    /// Returns the `RoundOpen` and all chunks.
    pub fn opening_messages(&self) -> Vec<(ToDevice, Vec<u8>)> {
        let mut body = Vec::new();
        for (descriptor, values) in self.open.tensors.iter().zip(&self.tensors) {
            if descriptor.chunk == 0 {
                let mut bytes = vec![0; descriptor.byte_len()];
                descriptor.encoding.encode(values, &mut bytes).unwrap();
                body.extend(bytes);
            }
        }
        let mut messages = vec![(ToDevice::RoundOpen(self.open.clone()), body)];
        for (tensor, descriptor) in self.open.tensors.iter().enumerate() {
            for index in 0..descriptor.chunks() {
                let (chunk, body) = self.chunk(tensor, index).unwrap();
                messages.push((ToDevice::Chunk(chunk), body));
            }
        }
        messages
    }

    /// Handles a message of the device. Returns the server's messages.
    pub fn handle_message(&mut self, message: ToServer, body: Vec<u8>) -> Vec<(ToDevice, Vec<u8>)> {
        match message {
            ToServer::Hello(_) => {
                self.incoming = None;
                let welcome = Welcome { campaign: 7, idle_milliseconds: self.idle_milliseconds };
                let mut messages = vec![(ToDevice::Welcome(welcome), Vec::new())];
                messages.extend(self.opening_messages());
                messages
            }
            ToServer::Missing(missing) => {
                self.chunk_requests += 1;
                if missing.id != self.open.id {
                    return Vec::new();
                }
                let tensor = usize::from(missing.tensor);
                let chunks = missing.chunks.iter();
                chunks
                    .map(|&index| self.chunk(tensor, index.into()).unwrap())
                    .map(|(chunk, body)| (ToDevice::Chunk(chunk), body))
                    .collect()
            }
            ToServer::Update(update) => {
                assert_eq!(update.id, self.open.id);
                let assembly = Assembly::new(&update.tensors).unwrap();
                let mut parts: Vec<_> = update.tensors.iter().map(|t| vec![0xAA; t.byte_len()]).collect();
                let mut inline_bytes = &body[..];
                for (part, _) in parts.iter_mut().zip(&update.tensors).filter(|(_, t)| t.chunk == 0) {
                    let (inline, tail) = inline_bytes.split_at(part.len());
                    part.copy_from_slice(inline);
                    inline_bytes = tail;
                }
                assert!(inline_bytes.is_empty());
                if self.incoming.as_ref().is_none_or(|(known, _, _)| *known != update) {
                    self.incoming = Some((update, assembly, parts));
                }
                self.acknowledge_if_complete()
            }
            ToServer::Chunk(chunk) => {
                let Some((update, assembly, parts)) = &mut self.incoming else { return Vec::new() };
                if let Some(target) = assembly.accept(&chunk, body.len()).unwrap() {
                    let encoding = update.tensors[target.tensor].encoding;
                    let first = encoding.byte_len(target.elements.start);
                    parts[target.tensor][first..first + body.len()].copy_from_slice(&body);
                }
                self.acknowledge_if_complete()
            }
            ToServer::Decline(decline) => {
                self.declined.push(decline);
                Vec::new()
            }
            ToServer::Alive => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    /// Acknowledges the update if it is complete.
    fn acknowledge_if_complete(&mut self) -> Vec<(ToDevice, Vec<u8>)> {
        if !self.incoming.as_ref().is_some_and(|(_, assembly, _)| assembly.is_complete()) {
            return Vec::new();
        }
        let outcome = if self.updates.is_empty() { AckOutcome::Counted } else { AckOutcome::Duplicate };
        let (update, _, parts) = self.incoming.take().unwrap();
        self.updates.push((update, parts));
        vec![(ToDevice::Ack(Ack { id: self.open.id, outcome }), Vec::new())]
    }

    /// Returns a request for missing chunks if an update is incomplete.
    pub fn missing_chunks(&self) -> Option<Missing> {
        self.incoming.as_ref().and_then(|(_, assembly, _)| assembly.missing(self.open.id))
    }

    /// Returns the decoded values of all tensors of update `index`.
    pub fn update_values(&self, index: usize) -> Vec<f32> {
        let (update, parts) = &self.updates[index];
        let mut all_values = Vec::new();
        for (descriptor, bytes) in update.tensors.iter().zip(parts) {
            let mut values = vec![0.0; descriptor.elements()];
            descriptor.encoding.decode(bytes, &mut values).unwrap();
            all_values.extend(values);
        }
        all_values
    }
}

/// Effect of the link on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Deliver,
    Lose,
    Twice,
    /// The frame is delivered after the next one.
    Later,
    /// The link goes down before the frame arrives.
    CutBefore,
    /// The link goes down after the frame has arrived.
    CutAfter,
}

/// Runs device and server, starting offline, until both are idle or `steps` are used up. `fate` decides the
/// effect of the link on each frame of either direction. If no frame is sent for a while, the server opens
/// its round again. Returns the number of frames until both were idle for the first time.
pub fn run_link<S: SampleSource, T: Task>(
    bench: &mut Bench<S, T>,
    server: &mut Server,
    steps: usize,
    mut fate: impl FnMut(usize) -> Fate,
) -> usize {
    let mut down: VecDeque<(ToDevice, Vec<u8>)> = VecDeque::new();
    let mut up: VecDeque<(ToServer, Vec<u8>)> = bench.handle_until_idle(Event::LinkUp).into();
    let mut frames = 0;
    let mut frames_until_idle = None;
    let mut idle_steps = 0;
    let mut idle_steps_after_answer = 0;
    for _ in 0..steps {
        let is_uplink = !up.is_empty();
        if !is_uplink && down.is_empty() {
            frames_until_idle.get_or_insert(frames);
            idle_steps += 1;
            idle_steps_after_answer += usize::from(!server.updates.is_empty() || !server.declined.is_empty());
            if idle_steps_after_answer > 8 {
                break;
            }
            up.extend(bench.wake_up());
            if let Some(missing) = server.missing_chunks() {
                down.push_back((ToDevice::Missing(missing), Vec::new()));
            } else if idle_steps % 4 == 0 && idle_steps_after_answer == 0 {
                down.extend(server.opening_messages());
            }
            continue;
        }
        let fate = fate(frames);
        frames += 1;
        let copies = match fate {
            Fate::Lose | Fate::CutBefore => 0,
            Fate::Twice => 2,
            _ => 1,
        };
        if fate == Fate::Later {
            match is_uplink {
                true if up.len() > 1 => up.swap(0, 1),
                false if down.len() > 1 => down.swap(0, 1),
                _ => {}
            }
        }
        if is_uplink {
            let (message, body) = up.pop_front().unwrap();
            for _ in 0..copies {
                down.extend(server.handle_message(message.clone(), body.clone()));
            }
        } else {
            let (message, body) = down.pop_front().unwrap();
            for _ in 0..copies {
                up.extend(bench.receive_message(&message, &body));
            }
        }
        if matches!(fate, Fate::CutBefore | Fate::CutAfter) {
            up.clear();
            down.clear();
            bench.handle_until_idle(Event::LinkDown);
            bench.now = bench.now.max(bench.last.wake.as_u64());
            up.extend(bench.handle_until_idle(Event::LinkUp));
        }
    }
    frames_until_idle.unwrap_or(frames)
}
