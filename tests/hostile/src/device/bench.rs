//! A device under test, and what holds after every event, whatever it was.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fedspan_client::Millis;
use fedspan_client::session::{Config, Counters, Protection, Sampling};
use fedspan_client::source::{SampleSource, Samples, Targets};
use fedspan_client::store::{Record, RecordHeader, Store, StoreError};
use fedspan_client::{Event, Linear, Memory, Progress, Session, SourceError, Task as _};
use fedspan_protocol::frame::{Decoder, Fed, HEADER_ANSWER, HEADER_SEALED};
use fedspan_protocol::limits::{CHUNKS_MAX, MISSING_MAX};
use fedspan_protocol::message::{Capabilities, Refusal, RoundId, ToDevice, ToServer, decode};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use super::server::{Server, key};
use super::{D, K, messages};
use crate::script::Script;
use crate::{Random, Work};

/// Samples of the device.
const M: usize = 5;
/// Passes over the samples in one script. A server may ask for 65535 of them in a round; that is work, not
/// a hang, and ends here as if the storage had failed.
const PASSES: u32 = 300;

/// What a released number belongs to: the round, and the chunk where there is one.
type Place = (u32, u16, Option<(u8, u32)>);

pub struct Bench<M> {
    session: Session<Linear<M>, Recording, Kept, ChaCha8Rng>,
    /// The honest server, where there are keys.
    pub server: Option<Server>,
    /// Makes the memory of the session after a reset.
    memory: fn() -> M,
    config: Config,
    capabilities: Capabilities,
    passes: Rc<RefCell<u32>>,
    kept: Kept,
    now: Millis,
    wake: Millis,
    /// The session wants the link closed, which a script need not do.
    close: bool,
    out: Vec<u8>,
    campaign: u64,
    /// Everything that has left in this campaign.
    released: BTreeMap<Place, Vec<u8>>,
    fitting: Vec<RoundId>,
    work: Work,
}

impl<A: Memory> Bench<A> {
    pub fn new(settings: u8, memory: fn() -> A) -> Self {
        let sampling = match settings / 3 % 2 {
            0 => Sampling::Replay,
            _ => Sampling::Stream { samples: 3 },
        };
        let frame_limit = [128, 4096, 256, 0][usize::from(settings / 6) % 4];
        let leave_when_fitted = settings / 24 % 2 == 1;
        let config = Config { frame_limit, sampling, leave_when_fitted, ..Config::new(9) };
        let saves = [u32::MAX, u32::MAX, u32::MAX, 2, u32::MAX, 3][usize::from(settings / 48)];
        let server = matches!(settings / 48, 1 | 4 | 5).then(Server::default);
        let kept = Kept(Rc::new(RefCell::new(Cell { record: None, handshakes: 0, saves })));
        let passes = Rc::new(RefCell::new(PASSES));
        let session = session(memory, config, server.is_some(), &passes, &kept);
        let capabilities = session.task().capabilities();
        Self {
            session,
            server,
            memory,
            config,
            capabilities,
            passes,
            kept,
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
        self.cut();
        self.handle(Event::LinkUp);
    }

    pub fn link_down(&mut self) {
        self.cut();
        self.handle(Event::LinkDown);
    }

    /// Time passes, and nothing happens.
    pub fn pass(&mut self, milliseconds: Millis) {
        self.now += milliseconds;
        self.handle(Event::Tick);
        assert!(self.close || self.wake > self.now, "awake at {} for something at {}", self.now, self.wake);
    }

    /// Time passes until the session wants to be called.
    pub fn wake(&mut self) {
        if self.wake < self.now + Millis::new(2 * u64::from(u32::MAX)) {
            self.pass(self.wake - self.now);
        }
    }

    pub fn sample(&mut self, kind: u8) {
        let (x, y) = samples();
        let (x, y) = (&x[..D], &y[..1]);
        let number = [f32::NAN; D];
        let event = match kind % 6 {
            0..=2 => Event::Sample(x, Targets::Values(y)),
            3 => Event::Sample(&x[1..], Targets::Values(y)),
            4 => Event::Sample(&number, Targets::Values(y)),
            _ => Event::Sample(x, Targets::Classes(&[kind])),
        };
        self.handle(event);
    }

    /// The device loses its memory, but not its flash.
    pub fn reset(&mut self) {
        self.cut();
        self.session = session(self.memory, self.config, self.server.is_some(), &self.passes, &self.kept);
        (self.now, self.wake, self.close) = (Millis::ZERO, Millis::ZERO, false);
    }

    fn cut(&mut self) {
        if let Some(server) = &mut self.server {
            server.cut();
        }
    }

    /// What only happens where there are keys.
    pub fn keyed(&mut self, kind: u8, script: &mut Script<'_>) {
        let honest = messages::all();
        let Some(server) = &mut self.server else { return };
        let mut frame = match kind {
            // Welcome to one campaign or another, or a refusal.
            12 => server.answer(&honest[script.index() % 3]),
            13 => server.earlier(script.index()),
            14 => server.seal(&honest[usize::from(script.word()) % honest.len()]),
            15 => server.elsewhere(script.byte(), &honest[usize::from(script.word()) % honest.len()]),
            16 => {
                let header = [HEADER_SEALED, HEADER_ANSWER][script.index() % 2];
                let length = script.index();
                [&[header], script.take(length)].concat()
            }
            // Damaged on the line.
            17 => {
                let mut frame = server.earlier(script.index());
                script.damage(&mut frame);
                frame
            }
            18 => return self.message(&honest[usize::from(script.word()) % honest.len()]),
            // On its way for longer.
            _ => {
                server.seal(&honest[usize::from(script.word()) % honest.len()]);
                return;
            }
        };
        self.sealed(&mut frame);
    }

    /// What an honest server says.
    pub fn say(&mut self, message: &[u8]) {
        match &mut self.server {
            Some(server) => {
                let mut frame = server.seal(message);
                self.sealed(&mut frame);
            }
            None => self.message(message),
        }
    }

    /// A frame that says it is sealed: it is believed, or it is counted, zeros, and has changed nothing.
    fn sealed(&mut self, frame: &mut [u8]) {
        // The decoder hands on no others.
        if !matches!(frame.first(), Some(&(HEADER_SEALED | HEADER_ANSWER))) || self.server.is_none() {
            return;
        }
        self.work.frames += 1;
        let (copy, before) = (frame.to_vec(), self.state());
        // A device that wants its link closed has done with it.
        let due = !self.close && self.server.as_ref().is_some_and(|server| server.is_due(&copy));
        let (open, campaigns) = (self.session.counters().unopened, self.session.counters().unexpected);
        let progress = self.session.handle(self.now, Event::Sealed(frame), &mut self.out);
        self.work.steps += 1;
        let after = self.session.counters();
        if after.unopened > open {
            assert_eq!(after.unopened, open + 1);
            assert!(frame.iter().all(|byte| *byte == 0), "not zeros");
            // A device whose storage fails has forgotten its keys and says no new hello.
            assert!(!due || self.kept.0.borrow().saves == 0, "an honest frame was not believed");
            assert_eq!(self.state(), before, "changed by a frame of nobody");
            self.work.refused += 1;
        } else {
            let message =
                self.server.as_mut().map(|server| server.believed(&copy, frame)).unwrap_or_default();
            self.heard(&message, after.unexpected == campaigns);
        }
        let again = self.follow(progress);
        self.drain(again);
    }

    /// What must not change by what is not believed.
    fn state(&self) -> (Counters, u32, Option<Refusal>, bool, bool, Vec<u32>) {
        let session = &self.session;
        // These say that something was not believed, or come from what is sent meanwhile.
        let (unopened, unsealed, declined, unsent, storage, rehandshakes) = (0, 0, 0, 0, 0, 0);
        let counters =
            Counters { unopened, unsealed, declined, unsent, storage, rehandshakes, ..session.counters() };
        let head = session.task().head().iter().map(|value| value.to_bits()).collect();
        let (refusal, last) = (session.refusal(), session.last_round());
        (counters, last, refusal, session.is_collecting(), session.is_fitted(), head)
    }

    /// A message in a frame with a checksum. Where there are keys, anybody may have sent it.
    pub fn message(&mut self, bytes: &[u8]) {
        if self.server.is_some() {
            self.work.frames += 1;
            self.work.refused += 1;
            let (mut before, counters) = (self.state(), self.session.counters());
            let again = self.step(Event::Message(bytes));
            let after = self.session.counters();
            assert_eq!(after.unsealed, counters.unsealed + 1);
            // Who says hello again has done with the samples of a round, as where the link is lost.
            before.3 &= after.rehandshakes == counters.rehandshakes;
            assert_eq!(self.state(), before, "changed by what is not sealed");
            return self.drain(again);
        }
        self.work.frames += 1;
        let before = self.session.counters();
        let decoded = decode::<ToDevice>(bytes).map(|(message, _)| message);
        self.fits(decoded.as_ref().ok());
        let first = self.step(Event::Message(bytes));
        let after = self.session.counters();
        assert_eq!(after.malformed, before.malformed + u32::from(decoded.is_err()));
        let refused = (after.malformed + after.unexpected) - (before.malformed + before.unexpected);
        self.work.refused += u64::from(refused.min(1));
        self.joins(decoded.ok(), after.unexpected == before.unexpected);
        self.drain(first);
    }

    fn fits(&mut self, message: Option<&ToDevice>) {
        if let Some(ToDevice::RoundOpen(open)) = message
            && let fedspan_protocol::message::Task::FitHead { .. } = open.task
        {
            self.fitting.push(open.id);
        }
    }

    fn joins(&mut self, message: Option<ToDevice>, expected: bool) {
        if let Some(ToDevice::Welcome(welcome)) = message
            && expected
            && welcome.campaign != self.campaign
        {
            self.campaign = welcome.campaign;
            self.released.clear();
            self.fitting.clear();
        }
    }

    /// A message that was sealed and believed.
    fn heard(&mut self, message: &[u8], expected: bool) {
        let decoded = decode::<ToDevice>(message).map(|(message, _)| message).ok();
        self.fits(decoded.as_ref());
        if let (Some(ToDevice::RetryAfter { .. }), Some(server)) = (&decoded, &mut self.server) {
            server.cut();
        }
        self.joins(decoded, expected);
    }

    fn handle(&mut self, event: Event<'_>) {
        let again = self.step(event);
        self.drain(again);
    }

    /// Lets the session say all it has to say. That comes to an end.
    fn drain(&mut self, mut again: bool) {
        let mut steps = 0;
        while again {
            again = self.step(Event::Tick);
            steps += 1;
            assert!(steps <= 2 * CHUNKS_MAX + MISSING_MAX + 4, "no end of frames");
        }
        let mut out = [0.0];
        if self.session.task_mut().predict(&samples().0[..D], &mut out).is_ok() {
            assert!(out[0].is_finite(), "predicts {}", out[0]);
        }
    }

    /// One call; the frame that it sends is checked. True if there is more to say.
    fn step(&mut self, event: Event<'_>) -> bool {
        self.work.steps += 1;
        let progress = self.session.handle(self.now, event, &mut self.out);
        self.follow(progress)
    }

    fn follow(&mut self, progress: Progress) -> bool {
        (self.wake, self.close) = (progress.wake, progress.close);
        if progress.sent > 0 {
            let frame = self.out[..progress.sent].to_vec();
            self.sent(&frame);
        }
        progress.again
    }

    fn sent(&mut self, frame: &[u8]) {
        let limit = usize::from(self.config.frame_limit).max(128);
        let mut decoder = Decoder::new(vec![0; limit]);
        let mut input = frame;
        let bytes = match (decoder.feed(&mut input), &mut self.server) {
            (Fed::Message(bytes), None) => bytes.to_vec(),
            (Fed::Sealed(sealed), Some(server)) => server.open(sealed),
            (Fed::Message(bytes), Some(server)) => {
                let (message, body) = decode::<ToServer>(bytes).expect("a message");
                assert!(matches!(message, ToServer::Hello(_)), "in the clear: {message:?}");
                return server.greeted(bytes, body);
            }
            (other, _) => panic!("{other:?} from {frame:x?}"),
        };
        assert!(input.is_empty(), "more than a frame");
        let (message, body) = decode::<ToServer>(&bytes).expect("a message");
        let place = match &message {
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
        if let Some(place) = place {
            self.release(place, &bytes);
        }
    }

    /// What leaves for a round is the same however often it leaves, and rounds do not go backward.
    fn release(&mut self, place: Place, bytes: &[u8]) {
        let (round, stage, _) = place;
        // The final head uploads nothing, and may be fitted again.
        if self.fitting.contains(&RoundId { round, stage }) {
            return;
        }
        let before = self.released.entry(place).or_insert_with(|| bytes.to_vec());
        assert!(before == bytes, "round {round} was released twice, with other content");
        let last = self.released.last_key_value().map(|((last, ..), _)| *last);
        assert!(last.is_none_or(|last| last <= round), "round {round} was released after {last:?}");
    }

    pub fn finish(self) -> Work {
        self.work
    }
}

fn session<A: Memory>(
    memory: fn() -> A,
    config: Config,
    with_key: bool,
    passes: &Rc<RefCell<u32>>,
    kept: &Kept,
) -> Session<Linear<A>, Recording, Kept, ChaCha8Rng> {
    let source = Recording { done: true, passes: Rc::clone(passes) };
    let random = ChaCha8Rng::seed_from_u64(1);
    let protection = if with_key { Protection::Key(key()) } else { Protection::Plaintext };
    Session::new(config, protection, Linear::new(memory()), source, kept.clone(), random)
}

/// `M` samples of `D` features, and their targets.
fn samples() -> &'static ([f32; M * D], [f32; M]) {
    static SAMPLES: std::sync::OnceLock<([f32; M * D], [f32; M])> = std::sync::OnceLock::new();
    SAMPLES.get_or_init(|| {
        let mut random = Random(7);
        ([(); M * D].map(|()| random.unit()), [(); M].map(|()| random.unit()))
    })
}

/// The device's samples, until it has had enough of them.
struct Recording {
    done: bool,
    passes: Rc<RefCell<u32>>,
}

impl SampleSource for Recording {
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

/// Flash that holds one record, and outlives a reset.
#[derive(Clone)]
struct Kept(Rc<RefCell<Cell>>);

struct Cell {
    record: Option<(RecordHeader, [f32; K])>,
    handshakes: u64,
    /// Saves before it fails.
    saves: u32,
}

impl Store for Kept {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let mut cell = self.0.borrow_mut();
        cell.saves = cell.saves.checked_sub(1).ok_or(StoreError)?;
        let Record { campaign, round, representation, head } = *record;
        let head = head.try_into().map_err(|_| StoreError)?;
        cell.record = Some((RecordHeader { campaign, round, representation }, head));
        Ok(())
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        Ok(self.0.borrow().record.map(|(loaded, kept)| {
            head.copy_from_slice(&kept);
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
