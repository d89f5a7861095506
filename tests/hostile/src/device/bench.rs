//! Test bench of a device session: delivers the events of a script and checks invariants after every event.

use std::collections::BTreeMap;

use fedspan_client::Millis;
use fedspan_client::session::{Config, Counters, Protection, Sampling, Sleep};
use fedspan_client::source::Targets;
use fedspan_client::{Event, Progress, Session};
use fedspan_protocol::assembly::split_body;
use fedspan_protocol::frame::{Decoder, FeedResult, HEADER_ANSWER, HEADER_SEALED, HEADER_SHORT};
use fedspan_protocol::limits::{CHUNKS_MAX, MISSING_MAX};
use fedspan_protocol::message::{
    Ack, AckOutcome, Announced, Capabilities, DeclineReason, Descriptors, NewKey, Privacy, Refusal, RoundId,
    ToDevice, ToServer, Welcome, decode,
};
use fedspan_protocol::secure::Suite;
use fedspan_protocol::tensor::TensorDescriptor;

use super::messages::{Catalogue, Kind, key_of_epoch, new_key};
use super::models::{MemoryKind, Model, OTHER_MODELS};
use super::parts::{Content, Entropy, SharedStore, Source};
use super::server::{Server, key};
use crate::Work;
use crate::honest::payload;
use crate::script::Script;

/// Time at which a clock of 32 bits starts, in milliseconds: it wraps after 40 seconds.
const BEFORE_WRAP: u64 = (1 << 32) - 40_000;

/// Key of a released message: round, stage, and, for a chunk, its tensor and offset.
type ReleaseKey = (u32, u16, Option<(u8, u32)>);

/// Settings of a script.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Memory, sampling, frame limit, key and storage.
    pub first: u8,
    /// Model, samples, clock, entropy, new keys and beacons.
    pub second: u8,
    /// Tasks around the model, form of seals, memory or noise of a linear model, and samples one by one.
    pub third: u8,
}

impl Settings {
    /// Returns the number of the model; 0 for the linear one.
    pub fn model(self) -> usize {
        usize::from(self.second) % (1 + OTHER_MODELS)
    }

    /// Settings of samples, clock and entropy.
    fn flags(self) -> usize {
        usize::from(self.second) / (1 + OTHER_MODELS)
    }

    /// Returns true if the memory of a learned prior has room for a metric.
    pub fn has_metric_buffer(self) -> bool {
        self.third / 16 % 2 == 1
    }

    pub fn has_stuck_entropy(self) -> bool {
        self.flags() / 4 % 2 == 1
    }

    /// Returns true if uploads may leave values out. Networks have no such uploads.
    pub fn has_error_feedback(self) -> bool {
        self.model() == 0 && self.third % 2 == 1
    }

    pub fn is_scaled(self) -> bool {
        self.third / 2 % 2 == 1
    }

    fn has_short_seals(self) -> bool {
        self.third / 4 % 2 == 1
    }

    fn suite(self) -> Suite {
        [Suite::ChaCha20Poly1305, Suite::Aes128Ccm][usize::from(self.third / 8 % 2)]
    }

    /// Returns the kind of memory of the linear model.
    pub fn memory(self) -> MemoryKind {
        [MemoryKind::Plain, MemoryKind::Gathering, MemoryKind::Power, MemoryKind::Power]
            [usize::from(self.third / 16 % 4)]
    }

    /// Returns true if the updates of the linear model have noise.
    pub fn is_private(self) -> bool {
        self.model() == 0 && self.third / 16 % 4 == 3
    }

    fn kind(self) -> Kind {
        Kind {
            model: self.model(),
            has_error_feedback: self.has_error_feedback(),
            is_scaled: self.is_scaled(),
            has_power: self.model() == 0 && matches!(self.memory(), MemoryKind::Power),
        }
    }

    /// Returns the protection of a device with or without a key.
    fn protection(self, has_key: bool) -> Protection {
        match (has_key, self.has_short_seals()) {
            (false, _) => Protection::Plaintext,
            (true, false) => Protection::Key(key()),
            (true, true) => Protection::ShortTags(key()),
        }
    }
}

/// A device session with its simulated clock, store and sample source.
pub struct Bench<'a, T> {
    session: Session<T, Source, SharedStore, Entropy, Suite>,
    settings: Settings,
    /// The honest server; `None` without keys.
    pub server: Option<Server>,
    pub messages: &'static Catalogue,
    /// Creates the model after a reset; `None` if there is no cleared memory left.
    model: Box<dyn FnMut() -> Option<T> + 'a>,
    config: Config,
    capabilities: Capabilities,
    source: Source,
    store: SharedStore,
    /// True if the device's clock has 32 bits.
    wraps: bool,
    now: Millis,
    wake: Millis,
    /// Whether the session has requested to close the link; a script may ignore the request.
    close: bool,
    out: Vec<u8>,
    campaign: u64,
    /// Messages released in this campaign.
    released: BTreeMap<ReleaseKey, Vec<u8>>,
    /// Tensors of the last update.
    uploaded: Descriptors,
    fitting: Vec<RoundId>,
    /// Round that was announced on this connection, with the beacon that opens it, if there is one.
    announced: Option<(RoundId, Option<Vec<u8>>)>,
    /// Beacons that the server has announced to the device, with their announcements.
    beacons: Vec<(Announced, Vec<u8>)>,
    /// True if the stored key could not be read since the reset, so that the device may not know it yet.
    key_is_unread: bool,
    clock_jumps: u32,
    /// Number of hellos since the reset.
    hellos: u32,
    /// Round of the last update or decline, and the reason of a decline.
    answered: Option<(RoundId, Option<DeclineReason>)>,
    /// Number of rounds whose update was sent.
    releases: u64,
    work: Work,
}

impl<'a, T: Model> Bench<'a, T> {
    /// Creates a device with the settings of a script.
    pub fn new(settings: Settings, mut model: Box<dyn FnMut() -> Option<T> + 'a>) -> Self {
        let Settings { first, second, third } = settings;
        let sampling = match first / 3 % 2 {
            0 => Sampling::Replay,
            _ => Sampling::Stream { samples: 3 },
        };
        let frame_limit = [128, 4096, 256, 0][usize::from(first / 6) % 4];
        let leave_when_fitted = first / 24 % 2 == 1;
        let sleep = (first % 5 == 4).then(|| Sleep::once_in(1_000));
        let config = Config {
            frame_limit,
            sampling,
            leave_when_fitted,
            sleep,
            receives_keys: second >= 128,
            receives_beacons: second % 2 == 0,
            ..Config::new(9)
        };
        let saves = [u32::MAX, u32::MAX, u32::MAX, 2, u32::MAX, 3][usize::from(first / 48)];
        let server = matches!(first / 48, 1 | 4 | 5)
            .then(|| Server::new(settings.suite(), settings.has_short_seals()));
        let store = SharedStore::default();
        store.0.borrow_mut().saves = saves;
        let task = model().expect("the first model");
        let flags = settings.flags();
        let content = Content::new((flags % 4) as u8, task.sizes(), settings.model() > 0);
        let source = Source::new(content, if third / 64 % 2 == 1 { 1 } else { usize::MAX });
        let session = create_session(task, config, settings, server.is_some(), &source, &store);
        let capabilities = session.task().capabilities();
        let mut bench = Self {
            session,
            settings,
            server,
            messages: Catalogue::of(settings.kind()),
            model,
            config,
            capabilities,
            source,
            store,
            wraps: flags / 8 % 2 == 1,
            now: Millis::ZERO,
            wake: Millis::ZERO,
            close: false,
            out: vec![0; config.transmit_capacity()],
            campaign: 0,
            released: BTreeMap::new(),
            uploaded: Descriptors::new(),
            fitting: Vec::new(),
            announced: None,
            beacons: Vec::new(),
            key_is_unread: false,
            clock_jumps: 0,
            hellos: 0,
            answered: None,
            releases: 0,
            work: Work::default(),
        };
        bench.start_clock();
        bench
    }

    /// Sets the clock to its time after a reset, and delivers a tick.
    fn start_clock(&mut self) {
        self.now = Millis::new(if self.wraps { BEFORE_WRAP } else { 0 });
        self.handle_event(Event::Tick);
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
        self.set_clock(self.now + milliseconds);
    }

    /// Sets the clock to a time before or after the present one, and delivers a tick.
    pub fn set_clock(&mut self, time: Millis) {
        let before = self.now;
        self.now = if self.wraps { Millis::new(time.as_u64() % (1 << 32)) } else { time };
        self.clock_jumps += u32::from(self.now < before);
        self.handle_event(Event::Tick);
        assert_eq!(self.session.counters().clock_jumps, self.clock_jumps);
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

    /// Advances the clock to the end of the silence of a device with noise, if it is silent. If the clock wraps in between, the slot
    /// begins again.
    fn advance_to_end_of_silence(&mut self) {
        for _ in 0..2 {
            if self.session.is_silent(self.now) {
                self.advance_to_wake();
            }
        }
        assert!(!self.session.is_silent(self.now), "the silence never ends");
    }

    /// Delivers a sample; some kinds have the wrong width, values that are not finite, or the wrong type of
    /// target.
    pub fn deliver_sample(&mut self, kind: u8) {
        let source = self.source.clone();
        let content = source.content();
        // A device without samples of its own still has those of the firmware.
        let (x, y) = (vec![0.5; content.features], vec![0.5; content.outputs]);
        let x = content.x.get(..content.features).unwrap_or(&x);
        let y = content.values.get(..content.outputs).unwrap_or(&y);
        let number = vec![f32::NAN; content.features];
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
        let Some(task) = (self.model)() else { return };
        self.reset_connection();
        self.key_is_unread = self.store.0.borrow().failing_reads > 0;
        self.session = create_session(
            task,
            self.config,
            self.settings,
            self.server.is_some(),
            &self.source,
            &self.store,
        );
        let counters = self.session.counters();
        if counters.storage > 0 {
            // Without its record a device does not know which rounds it has answered.
            assert!(self.key_is_unread, "{counters:?}");
            self.released.clear();
        }
        (self.close, self.clock_jumps, self.hellos) = (false, 0, 0);
        self.start_clock();
        self.check_key();
    }

    /// Sets the number of writes after which the storage fails (zero for none that fails), and the number of reads that fail.
    pub fn fail_storage(&mut self, writes: u8, failing_reads: u8) {
        let mut cell = self.store.0.borrow_mut();
        cell.saves = u32::from(writes).checked_sub(1).unwrap_or(u32::MAX);
        cell.failing_reads = u32::from(failing_reads % 8);
    }

    fn reset_connection(&mut self) {
        self.announced = None;
        if let Some(server) = &mut self.server {
            server.reset_connection();
        }
    }

    /// Delivers an event of those that need keys.
    pub fn encrypted_event(&mut self, kind: u8, script: &mut Script<'_>) {
        let honest = &self.messages.all;
        let Some(server) = &mut self.server else { return };
        let mut frame = match kind {
            // Answer to a hello: welcome to one of two campaigns, or a refusal.
            14 => server.answer(&honest[script.index() % 3]),
            15 => server.replay(script.index()),
            16 => server.seal_message(&honest[usize::from(script.word()) % honest.len()]),
            17 => server.foreign_frame(script.byte(), &honest[usize::from(script.word()) % honest.len()]),
            18 => {
                let header = [HEADER_SEALED, HEADER_ANSWER, HEADER_SHORT][script.index() % 3];
                let length = script.index();
                [&[header], script.take(length)].concat()
            }
            // A frame that is damaged in transit.
            19 => {
                let mut frame = server.replay(script.index());
                script.damage(&mut frame);
                frame
            }
            20 => return self.deliver_plain(&honest[usize::from(script.word()) % honest.len()]),
            // A frame that is sealed but never arrives.
            21 => {
                server.seal_message(&honest[usize::from(script.word()) % honest.len()]);
                return;
            }
            // The announcement of a round, whose beacon may follow.
            22 => {
                let beacon = &self.messages.round(script.index())[0];
                let Some(tag) = server.beacon_tag(beacon) else { return };
                let Ok((ToDevice::RoundOpen(open), _)) = decode::<ToDevice>(beacon) else { return };
                let announced = Announced { id: open.id, tag };
                self.beacons.push((announced, beacon.clone()));
                server.seal_message(&payload(&ToDevice::Announced(announced), &[]))
            }
            // The beacon of the last announcement.
            23 => {
                let beacon = self.beacons.last().map(|(_, beacon)| beacon.clone());
                return beacon.iter().for_each(|beacon| self.deliver_plain(beacon));
            }
            _ => server.seal_message(&payload(&new_key(script.byte()), &[])),
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
        if self.session.is_silent(self.now) {
            return self.deliver_in_silence(Event::Sealed(frame));
        }
        let (original, before) = (frame.to_vec(), self.state());
        // A device that has requested to close its link ignores frames.
        let must_accept =
            !self.close && self.server.as_ref().is_some_and(|server| server.must_open(&original));
        let counters = self.session.counters();
        let unopened_before = counters.unopened;
        let progress = self.session.handle(self.now, Event::Sealed(frame), &mut self.out);
        self.work.steps += 1;
        let after = self.session.counters();
        if after.unopened > unopened_before {
            assert_eq!(after.unopened, unopened_before + 1);
            assert!(frame.iter().all(|byte| *byte == 0), "the rejected frame was not zeroed");
            assert!(!must_accept, "an honest frame was not accepted");
            assert_eq!(self.state(), before, "a rejected frame changed the state");
            self.work.refused += 1;
        } else {
            let message = self
                .server
                .as_mut()
                .map(|server| server.record_accepted(&original, frame))
                .unwrap_or_default();
            self.record_accepted_message(&message, counters, after);
        }
        let is_unfinished = self.check_progress(progress);
        self.run_until_idle(is_unfinished);
    }

    /// Delivers a frame to a device with noise that computes or waits for the end of its slot: it is dropped and counted.
    fn deliver_in_silence(&mut self, event: Event<'_>) {
        let (state, before) = (self.state(), self.session.counters());
        let is_unfinished = self.deliver_event(event);
        let dropped = before.dropped_while_silent + 1;
        assert_eq!(self.session.counters(), Counters { dropped_while_silent: dropped, ..before });
        let counters = Counters { dropped_while_silent: dropped, ..state.counters };
        assert_eq!(self.state(), State { counters, ..state }, "a frame in silence changed the state");
        assert!(!is_unfinished && !self.close);
        self.work.refused += 1;
    }

    /// Returns the state that a rejected frame must not change.
    fn state(&self) -> State {
        let session = &self.session;
        // These counters are excluded: they count rejected frames, or depend on frames sent meanwhile.
        let counters = Counters {
            unopened: 0,
            unsealed: 0,
            declined: 0,
            unsent: 0,
            storage: 0,
            rehandshakes: 0,
            beacons_ignored: 0,
            ..session.counters()
        };
        State {
            counters,
            last: session.last_round(),
            refusal: session.refusal(),
            is_collecting: session.is_collecting(),
            is_fitted: session.is_fitted(),
            head: session.task().head().iter().map(|value| value.to_bits()).collect(),
            key: self.store.0.borrow().key.as_ref().map(|stored| stored.key.epoch()),
        }
    }

    /// Delivers a plain message with a checksum. A device with keys must ignore the message, because any
    /// sender can create one, unless it is the beacon that the server has announced to this device.
    pub fn deliver_plain(&mut self, bytes: &[u8]) {
        self.work.frames += 1;
        let before = self.session.counters();
        if self.session.is_silent(self.now) {
            return self.deliver_in_silence(Event::Message(bytes));
        }
        let decoded = decode::<ToDevice>(bytes).map(|(message, _)| message);
        if self.server.is_some() {
            return self.deliver_to_keyed_device(bytes, decoded.ok(), before);
        }
        self.record_fit_head(decoded.as_ref().ok());
        let is_unfinished = self.deliver_event(Event::Message(bytes));
        let after = self.session.counters();
        assert_eq!(after.malformed, before.malformed + u32::from(decoded.is_err()));
        let refused = (after.malformed + after.unexpected) - (before.malformed + before.unexpected);
        self.work.refused += u64::from(refused.min(1));
        self.record_campaign(decoded.ok(), after.unexpected == before.unexpected);
        self.run_until_idle(is_unfinished);
    }

    fn deliver_to_keyed_device(&mut self, bytes: &[u8], message: Option<ToDevice>, before: Counters) {
        let mut state = self.state();
        self.work.steps += 1;
        let progress = self.session.handle(self.now, Event::Message(bytes), &mut self.out);
        let after = self.session.counters();
        if after.beacons == before.beacons {
            self.work.refused += 1;
            let ignored = after.beacons_ignored - before.beacons_ignored;
            assert_eq!(after.unsealed + ignored, before.unsealed + 1);
            // A device that sends its hello again drops the samples of its round, as after a lost link.
            state.is_collecting &= after.rehandshakes == before.rehandshakes;
            assert_eq!(self.state(), state, "a plain message changed the state");
            let beacon = self.announced.as_ref().and_then(|(_, beacon)| beacon.as_deref());
            assert!(self.close || beacon != Some(bytes), "the announced beacon opened no round");
        } else {
            assert_eq!(after.unsealed, before.unsealed);
            let (_, beacon) =
                self.announced.take().expect("a beacon was accepted although none was announced");
            assert!(beacon.as_deref() == Some(bytes), "another beacon than the announced one was accepted");
            self.record_fit_head(message.as_ref());
        }
        if after.rehandshakes > before.rehandshakes {
            self.announced = None;
        }
        let is_unfinished = self.check_progress(progress);
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
    fn record_accepted_message(&mut self, message: &[u8], before: Counters, after: Counters) {
        let decoded = decode::<ToDevice>(message).map(|(message, _)| message).ok();
        self.record_fit_head(decoded.as_ref());
        let expected = after.unexpected == before.unexpected;
        match &decoded {
            Some(ToDevice::RetryAfter { .. }) => self.reset_connection(),
            Some(ToDevice::Fault(_)) if after.rehandshakes > before.rehandshakes => self.announced = None,
            // Any opening of a round ends the announcement.
            Some(ToDevice::RoundOpen(_)) => self.announced = None,
            Some(ToDevice::RoundClosed(id)) => {
                self.announced = self.announced.take().filter(|(announced, _)| announced != id);
            }
            Some(ToDevice::Announced(announced)) if expected => {
                let beacon = self.beacons.iter().rev().find(|(known, _)| known == announced);
                self.announced = Some((announced.id, beacon.map(|(_, beacon)| beacon.clone())));
            }
            Some(ToDevice::NewKey(new)) => self.record_new_key(new, before, after),
            _ => {}
        }
        self.record_campaign(decoded, expected);
    }

    /// Checks that the device keeps a later key, or counts why it does not.
    fn record_new_key(&mut self, new: &NewKey, before: Counters, after: Counters) {
        let (key, epoch) = (new.key(), self.session.key_epoch().expect("a key"));
        let stored = self.store.0.borrow().key.clone();
        if stored.as_ref().is_some_and(|stored| stored.key == key) && after.storage == before.storage {
            let is_repeated = after.unexpected > before.unexpected;
            assert!(self.config.receives_keys && epoch == key.epoch());
            if !is_repeated && let Some(server) = &mut self.server {
                assert!(!server.has_key(key.epoch()), "two keys of an epoch");
                server.add_key(key);
            }
        } else {
            let counted = (after.unexpected + after.storage) - (before.unexpected + before.storage);
            assert!(counted == 1, "a new key was dropped without a count");
            let is_wanted = self.config.receives_keys && key.epoch() > epoch;
            let is_failed = after.storage > before.storage;
            // A device that has requested to close its link does not expect a key.
            assert!(is_failed == is_wanted || self.close && !is_failed, "{key:?} at epoch {epoch}");
        }
    }

    /// Checks that the device has the key that it has stored, if it could read it.
    fn check_key(&self) {
        if self.server.is_some() {
            let epoch = self.session.key_epoch();
            let is_provisioned = epoch == Some(key().epoch());
            assert!(
                epoch == Some(self.stored_epoch()) || self.key_is_unread && is_provisioned,
                "a key of epoch {epoch:?}, stored {}",
                self.stored_epoch()
            );
        }
    }

    /// Returns the epoch of the key that the device has stored, or else was provisioned with.
    fn stored_epoch(&self) -> u16 {
        self.store.0.borrow().key.as_ref().map_or(key().epoch(), |stored| stored.key.epoch())
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
        self.check_key();
        let head = self.session.task().head();
        assert!(head.iter().all(|value| value.is_finite()), "the head {head:?} is kept");
        let (features, outputs) = self.session.task().sizes();
        let mut out = vec![0.0; outputs];
        if self.session.task_mut().predict(&vec![0.25; features], &mut out).is_ok() {
            assert!(out.iter().all(|value| value.is_finite()), "predicts {out:?}");
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
        if self.session.is_silent(self.now) {
            assert!(progress.sent == 0 && !progress.close, "the silence is broken: {progress:?}");
        }
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
                let stored = self.store.0.borrow();
                let epoch = stored.key.as_ref().map_or(key().epoch(), |stored| stored.key.epoch());
                // The key is read before a hello, at the latest.
                (self.key_is_unread, self.hellos) = (false, self.hellos + 1);
                return server.record_hello(bytes, body, epoch);
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
                for (_, tensor, bytes) in split_body(&update.tensors, body).expect("the whole body") {
                    check_values(tensor, tensor.elements(), bytes);
                }
                (self.uploaded, self.answered) = (update.tensors.clone(), Some((update.id, None)));
                Some((update.id.round, update.id.stage, None))
            }
            ToServer::Chunk(chunk) => {
                let tensor = self.uploaded.get(usize::from(chunk.tensor)).expect("a tensor of the update");
                let index = chunk.offset as usize / usize::from(tensor.chunk).max(1);
                let range = tensor.chunk_range(index).expect("a chunk of the tensor");
                assert_eq!(range.start, chunk.offset as usize);
                check_values(tensor, range.len(), body);
                Some((chunk.id.round, chunk.id.stage, Some((chunk.tensor, chunk.offset))))
            }
            ToServer::Missing(missing) => {
                assert!(!missing.chunks.is_empty());
                None
            }
            _ => {
                assert!(body.is_empty());
                match message {
                    ToServer::Hello(_) => self.hellos += 1,
                    ToServer::Decline(decline) => self.answered = Some((decline.id, Some(decline.reason))),
                    _ => {}
                }
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
        let (round, stage, chunk) = key;
        // Rounds that fit the final head upload nothing and may be repeated.
        if self.fitting.contains(&RoundId { round, stage }) {
            return;
        }
        if chunk.is_none() && !self.released.contains_key(&key) {
            self.releases += 1;
            let spent = self.store.0.borrow().spent;
            if let Privacy::Gaussian { release, budget, .. } = self.capabilities.privacy {
                assert!(spent >= self.releases * u64::from(release), "a release was not charged");
                assert!(spent <= budget, "{spent} of {budget} spent");
            }
        }
        let first_release = self.released.entry(key).or_insert_with(|| bytes.to_vec());
        assert!(first_release == bytes, "round {round} was released twice with different content");
        let last = self.released.last_key_value().map(|((last, ..), _)| *last);
        assert!(last.is_none_or(|last| last <= round), "round {round} was released after {last:?}");
    }

    /// Checks that the server reaches the device, and returns the work.
    pub fn into_work(mut self) -> Work {
        self.check_recovery();
        self.work
    }

    /// Checks that a device whose storage and samples can be read again is not stuck: it connects in bounded time, answers a round
    /// of a new campaign, and uses a new key.
    fn check_recovery(&mut self) {
        self.fail_storage(0, 0);
        self.source.restore();
        self.link_down();
        assert!(
            self.wake < self.now + Millis::new(2 * u64::from(u32::MAX)),
            "the device never connects again"
        );
        self.advance_to_wake();
        self.advance_to_end_of_silence();
        self.connect_again();
        let opening = self.messages.last_round();
        let Ok((ToDevice::RoundOpen(open), _)) = decode::<ToDevice>(&opening[0]) else {
            panic!("an opening of a round")
        };
        self.answered = None;
        let (hellos, epoch) = (self.hellos, self.stored_epoch());
        let receives_keys = self.server.is_some() && self.config.receives_keys;
        for (index, message) in opening.iter().enumerate() {
            self.deliver_honest(message);
            // A new key in the middle of the round, or behind it.
            if index == 0 && receives_keys {
                self.deliver_honest(&payload(&key_of_epoch(epoch + 1, 0x98), &[]));
                assert!(self.stored_epoch() > epoch || self.close, "the new key was not stored");
            }
        }
        for _ in 0..4 {
            if self.session.is_collecting() {
                self.deliver_sample(0);
            }
        }
        // A device with noise answers at the end of its slot.
        self.advance_to_end_of_silence();
        // Samples that are NaN are not usable, so that the round stays open.
        assert!(
            matches!(self.answered, Some((id, _)) if id == open.id) || self.session.is_collecting(),
            "round {:?} was not answered: {:?}",
            open.id,
            self.session.counters()
        );
        if matches!(self.answered, Some((_, Some(DeclineReason::Task)))) {
            let announced = self.capabilities.tasks & open.task.bit() != 0;
            let is_streamed = !matches!(self.config.sampling, Sampling::Replay);
            assert!(!announced || is_streamed, "the device declines a task that it has announced");
        }
        let uses_key = |bench: &Self| !receives_keys || bench.close || bench.hellos == hellos + 1;
        assert!(
            !matches!(self.answered, Some((_, Some(_)))) || uses_key(self),
            "the new key is not used after a decline"
        );
        let outcome = AckOutcome::Counted;
        self.deliver_honest(&payload(&ToDevice::Ack(Ack { id: open.id, outcome }), &[]));
        self.deliver_honest(&payload(&ToDevice::RoundClosed(open.id), &[]));
        assert!(uses_key(self), "the new key is not used after a round");
    }

    /// Connects the device to a server with a new campaign.
    fn connect_again(&mut self) {
        let hellos = self.hellos;
        self.link_up();
        assert_eq!(self.hellos, hellos + 1, "a device with a link sends a hello");
        let welcome = payload(&ToDevice::Welcome(Welcome { campaign: 77, idle_milliseconds: 5_000 }), &[]);
        match &mut self.server {
            Some(server) => {
                let mut frame = server.answer(&welcome);
                self.deliver_sealed(&mut frame);
                assert!(
                    self.server.as_ref().is_some_and(Server::is_open),
                    "an honest answer was not accepted"
                );
            }
            None => self.deliver_plain(&welcome),
        }
        assert_eq!(self.campaign, 77, "a welcome was not accepted");
    }
}

/// State that a rejected frame must not change.
#[derive(Debug, PartialEq)]
struct State {
    counters: Counters,
    last: u32,
    refusal: Option<Refusal>,
    is_collecting: bool,
    is_fitted: bool,
    head: Vec<u32>,
    /// Epoch of the stored key.
    key: Option<u16>,
}

/// Checks that the encoded values of a tensor, or of a part of it, are finite and complete.
fn check_values(tensor: &TensorDescriptor, elements: usize, bytes: &[u8]) {
    tensor.encoding.decode(bytes, &mut vec![0.0; elements]).expect("complete and finite values");
}

/// Creates a session in the state after a reset: only the store is kept.
fn create_session<T: Model>(
    task: T,
    config: Config,
    settings: Settings,
    has_key: bool,
    source: &Source,
    store: &SharedStore,
) -> Session<T, Source, SharedStore, Entropy, Suite> {
    let (protection, entropy) = (settings.protection(has_key), Entropy::new(settings.has_stuck_entropy()));
    let (source, store) = (source.clone(), store.clone());
    Session::with_aead(config, protection, settings.suite(), task, source, store, entropy)
}
