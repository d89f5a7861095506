//! Test bench of a device session: delivers the events of a script and checks invariants after every event.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fedspan_client::Millis;
use fedspan_client::session::{Config, Counters, Protection, Sampling, Sleep};
use fedspan_client::source::{SampleSource, Samples, Targets};
use fedspan_client::store::{Record, RecordHeader, Store, StoreError};
use fedspan_client::{Event, Linear, Memory, Progress, Session, SourceError, Task as _};
use fedspan_protocol::frame::{Decoder, FeedResult, HEADER_ANSWER, HEADER_SEALED, HEADER_SHORT};
use fedspan_protocol::limits::{CHUNKS_MAX, MISSING_MAX};
use fedspan_protocol::message::{Capabilities, Refusal, RoundId, ToDevice, ToServer, decode};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use super::server::{Server, key};
use super::{D, K, messages};
use crate::script::Script;
use crate::{Random, Work};

/// Number of samples of the device.
const M: usize = 5;
/// Largest number of passes over the samples in one script; the sample source fails after that. A server may
/// request 65535 passes in a round, which is slow but not a fault.
const PASSES: u32 = 300;

/// Key of a released message: round, stage, and, for a chunk, its tensor and offset.
type ReleaseKey = (u32, u16, Option<(u8, u32)>);

/// A device session with its simulated clock, store and sample source.
pub struct Bench<M> {
    session: Session<Linear<M>, Source, SharedStore, ChaCha8Rng>,
    /// The honest server; `None` without keys.
    pub server: Option<Server>,
    /// Allocates the memory of a session after a reset.
    memory: fn() -> M,
    config: Config,
    capabilities: Capabilities,
    passes: Rc<RefCell<u32>>,
    store: SharedStore,
    now: Millis,
    wake: Millis,
    /// Whether the session has requested to close the link; a script may ignore the request.
    close: bool,
    out: Vec<u8>,
    campaign: u64,
    /// Messages released in this campaign.
    released: BTreeMap<ReleaseKey, Vec<u8>>,
    fitting: Vec<RoundId>,
    work: Work,
}

impl<A: Memory> Bench<A> {
    /// Creates a device with the settings of a script.
    pub fn new(settings: u8, memory: fn() -> A) -> Self {
        let sampling = match settings / 3 % 2 {
            0 => Sampling::Replay,
            _ => Sampling::Stream { samples: 3 },
        };
        let frame_limit = [128, 4096, 256, 0][usize::from(settings / 6) % 4];
        let leave_when_fitted = settings / 24 % 2 == 1;
        let sleep = (settings % 5 == 4).then(|| Sleep::once_in(1_000));
        let config = Config { frame_limit, sampling, leave_when_fitted, sleep, ..Config::new(9) };
        let saves = [u32::MAX, u32::MAX, u32::MAX, 2, u32::MAX, 3][usize::from(settings / 48)];
        let server = matches!(settings / 48, 1 | 4 | 5).then(Server::default);
        let store = SharedStore(Rc::new(RefCell::new(Cell { record: None, handshakes: 0, saves })));
        let passes = Rc::new(RefCell::new(PASSES));
        let session = create_session(memory, config, server.is_some(), &passes, &store);
        let capabilities = session.task().capabilities();
        Self {
            session,
            server,
            memory,
            config,
            capabilities,
            passes,
            store,
            now: Millis::ZERO,
            wake: Millis::ZERO,
            close: false,
            out: vec![0; config.transmit_capacity()],
            campaign: 0,
            released: BTreeMap::new(),
            fitting: Vec::new(),
            work: Work::default(),
        }
    }

    pub fn link_up(&mut self) {
        self.reset_connection();
        self.handle_event(Event::LinkUp);
    }

    pub fn link_down(&mut self) {
        self.reset_connection();
        self.handle_event(Event::LinkDown);
    }

    /// Advances the clock and delivers a tick.
    pub fn advance_clock(&mut self, milliseconds: Millis) {
        self.now += milliseconds;
        self.handle_event(Event::Tick);
        assert!(
            self.close || self.wake > self.now,
            "at {} the session wants to be called at {}, which is past",
            self.now,
            self.wake
        );
    }

    /// Advances the clock to the time at which the session has asked to be called.
    pub fn advance_to_wake(&mut self) {
        if self.wake < self.now + Millis::new(2 * u64::from(u32::MAX)) {
            self.advance_clock(self.wake - self.now);
        }
    }

    /// Delivers a sample; some kinds have the wrong width, values that are not finite, or the wrong type of
    /// target.
    pub fn deliver_sample(&mut self, kind: u8) {
        let (x, y) = samples();
        let (x, y) = (&x[..D], &y[..1]);
        let number = [f32::NAN; D];
        let event = match kind % 6 {
            0..=2 => Event::Sample(x, Targets::Values(y)),
            3 => Event::Sample(&x[1..], Targets::Values(y)),
            4 => Event::Sample(&number, Targets::Values(y)),
            _ => Event::Sample(x, Targets::Classes(&[kind])),
        };
        self.handle_event(event);
    }

    /// Resets the device: RAM is lost, the store is kept.
    pub fn reset_device(&mut self) {
        self.reset_connection();
        self.session =
            create_session(self.memory, self.config, self.server.is_some(), &self.passes, &self.store);
        (self.now, self.wake, self.close) = (Millis::ZERO, Millis::ZERO, false);
    }

    fn reset_connection(&mut self) {
        if let Some(server) = &mut self.server {
            server.reset_connection();
        }
    }

    /// Delivers an event of those that need keys.
    pub fn encrypted_event(&mut self, kind: u8, script: &mut Script<'_>) {
        let honest = messages::all_messages();
        let Some(server) = &mut self.server else { return };
        let mut frame = match kind {
            // Answer to a hello: welcome to one of two campaigns, or a refusal.
            12 => server.answer(&honest[script.index() % 3]),
            13 => server.replay(script.index()),
            14 => server.seal_message(&honest[usize::from(script.word()) % honest.len()]),
            15 => server.foreign_frame(script.byte(), &honest[usize::from(script.word()) % honest.len()]),
            16 => {
                let header = [HEADER_SEALED, HEADER_ANSWER, HEADER_SHORT][script.index() % 3];
                let length = script.index();
                [&[header], script.take(length)].concat()
            }
            // A frame that is damaged in transit.
            17 => {
                let mut frame = server.replay(script.index());
                script.damage(&mut frame);
                frame
            }
            18 => return self.deliver_plain(&honest[usize::from(script.word()) % honest.len()]),
            // A frame that is sealed but never arrives.
            _ => {
                server.seal_message(&honest[usize::from(script.word()) % honest.len()]);
                return;
            }
        };
        self.deliver_sealed(&mut frame);
    }

    /// Delivers a message of an honest server.
    pub fn deliver_honest(&mut self, message: &[u8]) {
        match &mut self.server {
            Some(server) => {
                let mut frame = server.seal_message(message);
                self.deliver_sealed(&mut frame);
            }
            None => self.deliver_plain(message),
        }
    }

    /// Delivers a sealed frame. The device must either accept it, or count it, zero it, and keep its state.
    fn deliver_sealed(&mut self, frame: &mut [u8]) {
        // The decoder passes on only these kinds of sealed frames.
        if !matches!(frame.first(), Some(&(HEADER_SEALED | HEADER_ANSWER | HEADER_SHORT)))
            || self.server.is_none()
        {
            return;
        }
        self.work.frames += 1;
        let (original, before) = (frame.to_vec(), self.state());
        // A device that has requested to close its link ignores frames.
        let must_accept =
            !self.close && self.server.as_ref().is_some_and(|server| server.must_open(&original));
        let (unopened_before, unexpected_before) =
            (self.session.counters().unopened, self.session.counters().unexpected);
        let progress = self.session.handle(self.now, Event::Sealed(frame), &mut self.out);
        self.work.steps += 1;
        let after = self.session.counters();
        if after.unopened > unopened_before {
            assert_eq!(after.unopened, unopened_before + 1);
            assert!(frame.iter().all(|byte| *byte == 0), "the rejected frame was not zeroed");
            // A device whose storage has failed has dropped its keys and sends no further hello.
            assert!(!must_accept || self.store.0.borrow().saves == 0, "an honest frame was not accepted");
            assert_eq!(self.state(), before, "a rejected frame changed the state");
            self.work.refused += 1;
        } else {
            let message = self
                .server
                .as_mut()
                .map(|server| server.record_accepted(&original, frame))
                .unwrap_or_default();
            self.record_accepted_message(&message, after.unexpected == unexpected_before);
        }
        let is_unfinished = self.check_progress(progress);
        self.run_until_idle(is_unfinished);
    }

    /// Returns the state that a rejected frame must not change.
    fn state(&self) -> (Counters, u32, Option<Refusal>, bool, bool, Vec<u32>) {
        let session = &self.session;
        // These counters are excluded: they count rejected frames, or depend on frames sent meanwhile.
        let counters = Counters {
            unopened: 0,
            unsealed: 0,
            declined: 0,
            unsent: 0,
            storage: 0,
            rehandshakes: 0,
            ..session.counters()
        };
        let head = session.task().head().iter().map(|value| value.to_bits()).collect();
        let (refusal, last) = (session.refusal(), session.last_round());
        (counters, last, refusal, session.is_collecting(), session.is_fitted(), head)
    }

    /// Delivers a plain message with a checksum. A device with keys must ignore the message, because any
    /// sender can create one.
    pub fn deliver_plain(&mut self, bytes: &[u8]) {
        if self.server.is_some() {
            self.work.frames += 1;
            self.work.refused += 1;
            let (mut before, counters) = (self.state(), self.session.counters());
            let is_unfinished = self.deliver_event(Event::Message(bytes));
            let after = self.session.counters();
            assert_eq!(after.unsealed, counters.unsealed + 1);
            // A device that sends its hello again drops the samples of its round, as after a lost link.
            before.3 &= after.rehandshakes == counters.rehandshakes;
            assert_eq!(self.state(), before, "a plain message changed the state");
            return self.run_until_idle(is_unfinished);
        }
        self.work.frames += 1;
        let before = self.session.counters();
        let decoded = decode::<ToDevice>(bytes).map(|(message, _)| message);
        self.record_fit_head(decoded.as_ref().ok());
        let is_unfinished = self.deliver_event(Event::Message(bytes));
        let after = self.session.counters();
        assert_eq!(after.malformed, before.malformed + u32::from(decoded.is_err()));
        let refused = (after.malformed + after.unexpected) - (before.malformed + before.unexpected);
        self.work.refused += u64::from(refused.min(1));
        self.record_campaign(decoded.ok(), after.unexpected == before.unexpected);
        self.run_until_idle(is_unfinished);
    }

    fn record_fit_head(&mut self, message: Option<&ToDevice>) {
        if let Some(ToDevice::RoundOpen(open)) = message
            && let fedspan_protocol::message::Task::FitHead { .. } = open.task
        {
            self.fitting.push(open.id);
        }
    }

    /// Forgets the released messages if an accepted welcome starts another campaign.
    fn record_campaign(&mut self, message: Option<ToDevice>, expected: bool) {
        if let Some(ToDevice::Welcome(welcome)) = message
            && expected
            && welcome.campaign != self.campaign
        {
            self.campaign = welcome.campaign;
            self.released.clear();
            self.fitting.clear();
        }
    }

    /// Records the effects of a message that was sealed and accepted.
    fn record_accepted_message(&mut self, message: &[u8], expected: bool) {
        let decoded = decode::<ToDevice>(message).map(|(message, _)| message).ok();
        self.record_fit_head(decoded.as_ref());
        if let (Some(ToDevice::RetryAfter { .. }), Some(server)) = (&decoded, &mut self.server) {
            server.reset_connection();
        }
        self.record_campaign(decoded, expected);
    }

    fn handle_event(&mut self, event: Event<'_>) {
        let is_unfinished = self.deliver_event(event);
        self.run_until_idle(is_unfinished);
    }

    /// Calls the session until it has nothing more to send, in a bounded number of steps, and checks that
    /// predictions are finite.
    fn run_until_idle(&mut self, mut is_unfinished: bool) {
        let mut steps = 0;
        while is_unfinished {
            is_unfinished = self.deliver_event(Event::Tick);
            steps += 1;
            assert!(steps <= 2 * CHUNKS_MAX + MISSING_MAX + 4, "the session never stops sending");
        }
        let mut out = [0.0];
        if self.session.task_mut().predict(&samples().0[..D], &mut out).is_ok() {
            assert!(out[0].is_finite(), "predicts {}", out[0]);
        }
    }

    /// Delivers an event to the session and checks the frame it sends. Returns true if the session asks to be
    /// called again at once.
    fn deliver_event(&mut self, event: Event<'_>) -> bool {
        self.work.steps += 1;
        let progress = self.session.handle(self.now, event, &mut self.out);
        self.check_progress(progress)
    }

    /// Checks the frame that the session has sent. Returns true if the session asks to be called again at
    /// once.
    fn check_progress(&mut self, progress: Progress) -> bool {
        (self.wake, self.close) = (progress.wake, progress.close);
        if progress.sent > 0 {
            let frame = self.out[..progress.sent].to_vec();
            self.check_frame(&frame);
        }
        progress.again
    }

    /// Checks that a sent frame decodes, is encrypted if the device has keys, and contains no tensor that
    /// must stay on the device.
    fn check_frame(&mut self, frame: &[u8]) {
        let limit = usize::from(self.config.frame_limit).max(128);
        let mut decoder = Decoder::new(vec![0; limit]);
        let mut input = frame;
        let bytes = match (decoder.feed(&mut input), &mut self.server) {
            (FeedResult::Message(bytes), None) => bytes.to_vec(),
            (FeedResult::Sealed(sealed), Some(server)) => server.open(sealed),
            (FeedResult::Message(bytes), Some(server)) => {
                let (message, body) = decode::<ToServer>(bytes).expect("a message");
                assert!(matches!(message, ToServer::Hello(_)), "in the clear: {message:?}");
                return server.record_hello(bytes, body);
            }
            (other, _) => panic!("{other:?} from {frame:x?}"),
        };
        assert!(input.is_empty(), "the session sent more than one frame");
        let (message, body) = decode::<ToServer>(&bytes).expect("a message");
        let release_key = match &message {
            ToServer::Update(update) => {
                for tensor in &update.tensors {
                    assert!(tensor.role.bit() & self.capabilities.roles != 0, "{tensor:?} left");
                }
                Some((update.id.round, update.id.stage, None))
            }
            ToServer::Chunk(chunk) => {
                Some((chunk.id.round, chunk.id.stage, Some((chunk.tensor, chunk.offset))))
            }
            ToServer::Missing(missing) => {
                assert!(!missing.chunks.is_empty());
                None
            }
            _ => {
                assert!(body.is_empty());
                None
            }
        };
        if let Some(release_key) = release_key {
            self.check_release(release_key, &bytes);
        }
    }

    /// Checks that a message of a round has the same bytes whenever it is sent, and that round numbers do not
    /// decrease.
    fn check_release(&mut self, key: ReleaseKey, bytes: &[u8]) {
        let (round, stage, _) = key;
        // Rounds that fit the final head upload nothing and may be repeated.
        if self.fitting.contains(&RoundId { round, stage }) {
            return;
        }
        let first_release = self.released.entry(key).or_insert_with(|| bytes.to_vec());
        assert!(first_release == bytes, "round {round} was released twice with different content");
        let last = self.released.last_key_value().map(|((last, ..), _)| *last);
        assert!(last.is_none_or(|last| last <= round), "round {round} was released after {last:?}");
    }

    pub fn into_work(self) -> Work {
        self.work
    }
}

/// Creates a session in the state after a reset: only the store is kept.
fn create_session<A: Memory>(
    memory: fn() -> A,
    config: Config,
    with_key: bool,
    passes: &Rc<RefCell<u32>>,
    store: &SharedStore,
) -> Session<Linear<A>, Source, SharedStore, ChaCha8Rng> {
    let source = Source { done: true, passes: Rc::clone(passes) };
    let random = ChaCha8Rng::seed_from_u64(1);
    let protection = if with_key { Protection::Key(key()) } else { Protection::Plaintext };
    Session::new(config, protection, Linear::new(memory()), source, store.clone(), random)
}

/// Returns `M` samples of `D` features (row-major), and their targets.
fn samples() -> &'static ([f32; M * D], [f32; M]) {
    static SAMPLES: std::sync::OnceLock<([f32; M * D], [f32; M])> = std::sync::OnceLock::new();
    SAMPLES.get_or_init(|| {
        let mut random = Random(7);
        ([(); M * D].map(|()| random.unit()), [(); M].map(|()| random.unit()))
    })
}

/// Sample source of the device; fails after a number of passes.
struct Source {
    done: bool,
    passes: Rc<RefCell<u32>>,
}

impl SampleSource for Source {
    fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
        let mut passes = self.passes.borrow_mut();
        *passes = passes.checked_sub(1).ok_or(SourceError::Device)?;
        self.done = false;
        Ok(())
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        let first = !std::mem::replace(&mut self.done, true);
        let (x, y) = samples();
        first.then_some(Samples { x, targets: Targets::Values(y) })
    }
}

/// Store that survives a reset.
#[derive(Clone)]
struct SharedStore(Rc<RefCell<Cell>>);

/// Contents of the store.
struct Cell {
    record: Option<(RecordHeader, [f32; K])>,
    handshakes: u64,
    /// Number of writes before the store fails.
    saves: u32,
}

impl Store for SharedStore {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let mut cell = self.0.borrow_mut();
        cell.saves = cell.saves.checked_sub(1).ok_or(StoreError)?;
        let Record { campaign, round, representation, head } = *record;
        let head = head.try_into().map_err(|_| StoreError)?;
        cell.record = Some((RecordHeader { campaign, round, representation }, head));
        Ok(())
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        Ok(self.0.borrow().record.map(|(loaded, store)| {
            head.copy_from_slice(&store);
            loaded
        }))
    }

    fn save_handshakes(&mut self, numbered: u64) -> Result<(), StoreError> {
        let mut cell = self.0.borrow_mut();
        cell.saves = cell.saves.checked_sub(1).ok_or(StoreError)?;
        assert!(numbered > cell.handshakes, "{numbered} after {}", cell.handshakes);
        cell.handshakes = numbered;
        Ok(())
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        Ok(self.0.borrow().handshakes)
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        panic!("{spent} spent without privacy");
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        panic!("a ledger without privacy");
    }
}
