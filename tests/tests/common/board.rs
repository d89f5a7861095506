//! Test helpers: a simulated device for tests of server and client together. It consists of a session and
//! its clock, decoder and buffer.

use std::sync::LazyLock;

use fedspan_client::Millis;
use fedspan_client::secure::{Aead, ChaCha20Poly1305};
use fedspan_client::session::{Config, Progress, Protection};
use fedspan_client::store::Store;
use fedspan_client::{Event, Linear, Recording, Session, Task, Workspace};
use fedspan_hostile::Random;
use fedspan_protocol::frame::{Decoder, FeedResult};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

use super::rounds::D;

/// Features and targets of all devices.
static SAMPLES: LazyLock<(Vec<f32>, Vec<f32>)> = LazyLock::new(|| {
    let mut random = Random(1);
    let x = (0..20 * usize::from(D)).map(|_| random.unit()).collect();
    (x, (0..20).map(|_| random.unit()).collect())
});

/// Task of a device without noise.
pub type Plain = Linear<Workspace<20, 2>>;

/// Session of a device.
pub type Device<P, T = Plain, A = ChaCha20Poly1305> = Session<T, Recording<'static>, P, ChaCha20Rng, A>;

/// A device, its clock and its buffers.
pub struct Board<P, T = Plain, A = ChaCha20Poly1305> {
    pub session: Device<P, T, A>,
    pub now: u64,
    pub last_progress: Progress,
    decoder: Decoder<Vec<u8>>,
    out: Vec<u8>,
}

impl<P: Store> Board<P> {
    /// Creates a device with a frame limit of 256 bytes.
    pub fn new(device: u64, protection: Protection, store: P, seed: u64) -> Self {
        Self::with_limit(device, protection, store, seed, 256)
    }

    /// Creates a device with the given frame limit instead of 256 bytes.
    pub fn with_limit(device: u64, protection: Protection, store: P, seed: u64, frame_limit: u16) -> Self {
        let config = Config { frame_limit, ..Config::new(device) };
        Self::with_task(config, protection, Linear::new(Workspace::new()), store, seed)
    }
}

impl<P: Store, T: Task> Board<P, T> {
    /// Creates a device with the given task and configuration.
    pub fn with_task(config: Config, protection: Protection, task: T, store: P, seed: u64) -> Self {
        Self::with_aead(config, protection, ChaCha20Poly1305, task, store, seed)
    }
}

impl<P: Store, T: Task, A: Aead + Clone> Board<P, T, A> {
    /// Creates a device with the given task, configuration and algorithm.
    pub fn with_aead(config: Config, protection: Protection, aead: A, task: T, store: P, seed: u64) -> Self {
        let source = Recording::regression(&SAMPLES.0, &SAMPLES.1, D.into(), 1);
        let random = ChaCha20Rng::seed_from_u64(seed);
        let session = Session::with_aead(config, protection, aead, task, source, store, random);
        Self {
            session,
            now: 1_000,
            last_progress: Progress { sent: 0, again: false, close: false, wake: Millis::ZERO },
            decoder: Decoder::new(vec![0; config.frame_limit.into()]),
            out: vec![0; config.transmit_capacity()],
        }
    }

    /// Handles an event and all ticks that the session requests; returns the frames sent.
    pub fn handle_event(&mut self, event: Event<'_>) -> Vec<Vec<u8>> {
        let (session, out) = (&mut self.session, &mut self.out);
        handle_until_idle(session, self.now, event, out, &mut self.last_progress)
    }

    /// Connects the link; returns the frames sent.
    pub fn link_up(&mut self) -> Vec<Vec<u8>> {
        self.decoder.reset();
        self.handle_event(Event::LinkUp)
    }

    /// Replaces the link with a new one; returns the frames sent.
    pub fn reconnect(&mut self) -> Vec<Vec<u8>> {
        let sent = self.handle_event(Event::LinkDown);
        assert!(sent.is_empty());
        self.link_up()
    }

    /// Returns the number of frames and messages that were rejected.
    pub fn rejected(&self) -> u32 {
        let frames = self.decoder.counters();
        let counters = self.session.counters();
        frames.oversize
            + frames.framing
            + frames.check
            + frames.header
            + counters.unopened
            + counters.unsealed
    }

    /// Advances the clock and ticks the session; returns the frames sent.
    pub fn wait(&mut self, milliseconds: u64) -> Vec<Vec<u8>> {
        self.now += milliseconds;
        self.handle_event(Event::Tick)
    }

    /// Receives bytes; returns the frames sent.
    pub fn receive(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let mut input = bytes;
        let (session, out) = (&mut self.session, &mut self.out);
        loop {
            let event = match self.decoder.feed(&mut input) {
                FeedResult::NeedMore => return sent,
                FeedResult::Dropped(_) => continue,
                FeedResult::Message(message) => Event::Message(message),
                FeedResult::Sealed(frame) => Event::Sealed(frame),
            };
            sent.extend(handle_until_idle(session, self.now, event, out, &mut self.last_progress));
        }
    }

    /// Receives frames one after another; returns the frames sent.
    pub fn receive_all(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        frames.iter().flat_map(|frame| self.receive(frame)).collect()
    }
}

/// Handles an event and all requested ticks; returns the frames sent.
fn handle_until_idle<P: Store, T: Task, A: Aead + Clone>(
    session: &mut Device<P, T, A>,
    now: u64,
    event: Event<'_>,
    out: &mut [u8],
    last: &mut Progress,
) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    let mut next = Some(event);
    while let Some(event) = next.take() {
        let progress = session.handle(Millis::new(now), event, out);
        if progress.sent > 0 {
            sent.push(out[..progress.sent].to_vec());
        }
        if progress.again {
            next = Some(Event::Tick);
        }
        *last = progress;
        assert!(sent.len() < 1000, "the session never stops sending");
    }
    sent
}

/// Returns the number of encrypted frames that the device could not decrypt.
pub fn count_undecrypted<P: Store>(board: &Board<P>) -> u32 {
    board.session.counters().unopened
}
