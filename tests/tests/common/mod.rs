//! A device and a server that share keys, and the wire between them in the test's hands.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::{Arc, LazyLock};

use fedspan_aggregator::admission::Requirements;
use fedspan_aggregator::algorithm::{Request, Tensor};
use fedspan_aggregator::connection::{Connection, Gate, Inbound};
use fedspan_aggregator::engine::Opening;
use fedspan_aggregator::keys::{KeyTable, Keys};
use fedspan_client::secure::Key;
use fedspan_client::session::{Config, Millis, Progress, Protection};
use fedspan_client::store::{NoStore, Store};
use fedspan_client::{Event, Linear, Recording, Session, Workspace};
use fedspan_protocol::frame::{Decoder, Fed, encode};
use fedspan_protocol::message::{
    Ack, AckOutcome, HeadSolve, Message, Model, RoundId, Task, ToDevice, Upload, Welcome,
};
use fedspan_protocol::orthonormal::orthonormalise;
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

pub const D: u16 = 20;
pub const K: u16 = 2;
pub const DEVICE: u64 = 0x0123_4567_89ab_cdef;
pub const WELCOME: Welcome = Welcome { campaign: 0xdead_beef, idle_milliseconds: 60_000 };
pub const SECRET: [u8; 32] = [0x42; 32];

/// SplitMix64: test data that is the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True once in so many times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

static SAMPLES: LazyLock<(Vec<f32>, Vec<f32>)> = LazyLock::new(|| {
    let mut random = Random(1);
    let x = (0..20 * usize::from(D)).map(|_| random.unit()).collect();
    (x, (0..20).map(|_| random.unit()).collect())
});

/// Asks for a gradient as f32.
fn request(number: u32) -> Request {
    let mut random = Random(number.into());
    let mut values: Vec<f32> = (0..D * K).map(|_| random.unit()).collect();
    orthonormalise(&mut values, usize::from(K)).unwrap();
    let head = HeadSolve::LeastSquares { ridge: 0.0 };
    let encoding = Encoding::F32;
    Request {
        task: Task::FedRep { step_size: 0.25, head, upload: Upload::Gradient, encoding },
        tensors: vec![Tensor { role: Role::Representation, rows: D, cols: K, values }],
        encoding,
        expects: vec![TensorDescriptor::inline(Role::Gradient, encoding, D, K)],
    }
}

pub fn opening(number: u32) -> Arc<Opening> {
    Arc::new(Opening::new(RoundId { round: number, stage: 0 }, request(number)).unwrap())
}

pub fn requirements() -> Requirements {
    Requirements::new(Model::Linear { features: D, width: K, outputs: 1 }, &[request(1)], None)
}

/// A server that knows these devices' keys; `seed` is its randomness.
pub fn gate(keys: &Keys, seed: u64) -> Arc<Gate> {
    let entropy = Box::new(ChaCha20Rng::seed_from_u64(seed));
    Arc::new(Gate::encrypted(requirements(), WELCOME, keys.clone(), entropy))
}

/// Key 0 of [`DEVICE`] is [`SECRET`].
pub fn keys() -> Keys {
    Keys::new(table())
}

pub fn table() -> KeyTable {
    let mut table = KeyTable::new();
    table.insert(DEVICE, Key::new(0, SECRET), 0).unwrap();
    table
}

pub fn protected() -> Protection {
    Protection::Key(Key::new(0, SECRET))
}

pub type Device<P> = Session<Linear<Workspace<20, 2>>, Recording<'static>, P, ChaCha20Rng>;

/// A device, its clock and its buffers.
pub struct Board<P> {
    pub session: Device<P>,
    pub now: Millis,
    pub last: Progress,
    decoder: Decoder<Vec<u8>>,
    out: Vec<u8>,
}

impl<P: Store> Board<P> {
    pub fn new(device: u64, protection: Protection, store: P, seed: u64) -> Self {
        Self::with_limit(device, protection, store, seed, 256)
    }

    /// A device with another frame limit.
    pub fn with_limit(device: u64, protection: Protection, store: P, seed: u64, frame_limit: u16) -> Self {
        let config = Config { frame_limit, ..Config::new(device) };
        let source = Recording::regression(&SAMPLES.0, &SAMPLES.1, D.into(), 1);
        let random = ChaCha20Rng::seed_from_u64(seed);
        let session = Session::new(config, protection, Linear::new(Workspace::new()), source, store, random);
        Self {
            session,
            now: 1_000,
            last: Progress { sent: 0, again: false, close: false, wake: 0 },
            decoder: Decoder::new(vec![0; config.frame_limit.into()]),
            out: vec![0; config.transmit_capacity()],
        }
    }

    /// One event and all that follows from it at once: whole frames.
    pub fn event(&mut self, event: Event<'_>) -> Vec<Vec<u8>> {
        let (session, out) = (&mut self.session, &mut self.out);
        handle(session, self.now, event, out, &mut self.last)
    }

    pub fn link_up(&mut self) -> Vec<Vec<u8>> {
        self.decoder.reset();
        self.event(Event::LinkUp)
    }

    /// The link is lost and there is a new one.
    pub fn reconnect(&mut self) -> Vec<Vec<u8>> {
        let silent = self.event(Event::LinkDown);
        assert!(silent.is_empty());
        self.link_up()
    }

    /// Frames and messages that came and were not believed.
    pub fn drops(&self) -> u32 {
        let frames = self.decoder.counters();
        let own = self.session.counters();
        frames.oversize + frames.framing + frames.check + frames.header + own.unopened + own.unsealed
    }

    /// Lets time pass.
    pub fn wait(&mut self, milliseconds: Millis) -> Vec<Vec<u8>> {
        self.now += milliseconds;
        self.event(Event::Tick)
    }

    /// Bytes from the wire.
    pub fn hear(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut said = Vec::new();
        let mut input = bytes;
        let (session, out) = (&mut self.session, &mut self.out);
        loop {
            let event = match self.decoder.feed(&mut input) {
                Fed::NeedMore => return said,
                Fed::Dropped(_) => continue,
                Fed::Message(message) => Event::Message(message),
                Fed::Sealed(frame) => Event::Sealed(frame),
            };
            said.extend(handle(session, self.now, event, out, &mut self.last));
        }
    }

    /// The server has said welcome: there is nothing else that a device answers at once.
    pub fn hear_all(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        frames.iter().flat_map(|frame| self.hear(frame)).collect()
    }
}

fn handle<P: Store>(
    session: &mut Device<P>,
    now: Millis,
    event: Event<'_>,
    out: &mut [u8],
    last: &mut Progress,
) -> Vec<Vec<u8>> {
    let mut said = Vec::new();
    let mut next = Some(event);
    while let Some(event) = next.take() {
        let progress = session.handle(now, event, out);
        if progress.sent > 0 {
            said.push(out[..progress.sent].to_vec());
        }
        if progress.again {
            next = Some(Event::Tick);
        }
        *last = progress;
        assert!(said.len() < 1000, "it never ends");
    }
    said
}

/// A server's end of one link.
pub struct Host {
    pub connection: Connection,
    pub said: Vec<Inbound>,
}

impl Host {
    pub fn new(gate: &Arc<Gate>) -> Self {
        Self { connection: Connection::new(Arc::clone(gate)), said: Vec::new() }
    }

    pub fn lasting(gate: &Arc<Gate>) -> Self {
        Self { connection: Connection::lasting(Arc::clone(gate)), said: Vec::new() }
    }

    /// Frames from the wire; the frames that go back.
    pub fn hear(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for frame in frames {
            self.connection.receive(frame, &mut self.said);
        }
        self.frames()
    }

    /// The frames that wait.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let mut frame = Vec::new();
            if !self.connection.next_frame(&mut frame) {
                return all;
            }
            if !frame.is_empty() {
                all.push(frame);
            }
        }
    }

    pub fn joined(&self) -> usize {
        self.said.iter().filter(|said| matches!(said, Inbound::Hello(_))).count()
    }

    pub fn updates(&self) -> usize {
        self.said.iter().filter(|said| matches!(said, Inbound::Update(_))).count()
    }
}

/// Carries frames to and fro until nobody has anything to say. What crossed the wire, up and down.
pub fn converse<P: Store>(
    board: &mut Board<P>,
    host: &mut Host,
    mut up: Vec<Vec<u8>>,
) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut all_up, mut all_down) = (Vec::new(), Vec::new());
    loop {
        let down = host.hear(&up);
        all_up.append(&mut up);
        up = board.hear_all(&down);
        all_down.extend(down);
        if up.is_empty() {
            return (all_up, all_down);
        }
        assert!(all_up.len() < 1000, "it never ends");
    }
}

/// A device and its server, connected and welcome.
pub fn joined<P: Store>(gate: &Arc<Gate>, store: P, seed: u64) -> (Board<P>, Host) {
    let (mut board, mut host) = (Board::new(DEVICE, protected(), store, seed), Host::new(gate));
    let hello = board.link_up();
    converse(&mut board, &mut host, hello);
    assert!(matches!(host.said[..], [Inbound::Hello(_)]), "{:?}", host.said);
    host.said.clear();
    (board, host)
}

/// A frame in the clear.
pub fn plain<M: Message>(message: &M) -> Vec<u8> {
    let mut out = vec![0; 400];
    let sent = encode(message, 0, |_| {}, &mut out).unwrap();
    out.truncate(sent);
    out
}

/// A frame in the clear with a body.
pub fn plain_open(opening: &Opening) -> Vec<u8> {
    let tensors = opening.request.tensors.iter().map(|t| t.descriptor(Encoding::F32)).collect();
    let task = opening.request.task;
    let message = ToDevice::RoundOpen(fedspan_protocol::message::RoundOpen { id: opening.id, task, tensors });
    let body: Vec<u8> = opening.encoded.concat();
    let mut out = vec![0; body.len() + 400];
    let sent = encode(&message, body.len(), |place| place.copy_from_slice(&body), &mut out).unwrap();
    out.truncate(sent);
    out
}

/// What is left of a frame without COBS.
pub fn uncobs(frame: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::new(), frame.strip_suffix(&[0]).unwrap());
    while let Some((&code, tail)) = rest.split_first() {
        let (block, tail) = tail.split_at(usize::from(code) - 1);
        plain.extend_from_slice(block);
        if code != 255 && !tail.is_empty() {
            plain.push(0);
        }
        rest = tail;
    }
    plain
}

pub const OTHER: u64 = 77;

/// What a server's engine does, as far as one device sees it.
pub fn react(host: &mut Host, round: u32, done: &mut u32) {
    for said in std::mem::take(&mut host.said) {
        match said {
            Inbound::Hello(_) => host.connection.open(&opening(round)),
            Inbound::Update(update) => {
                let outcome = if *done == 0 { AckOutcome::Counted } else { AckOutcome::Duplicate };
                *done += 1;
                host.connection.send(ToDevice::Ack(Ack { id: update.id, outcome }));
            }
            Inbound::Alive => {}
            other => panic!("{other:?}"),
        }
    }
}

/// One round on both ends, which are welcome. What crossed the wire, up and down.
pub fn round<P: Store>(board: &mut Board<P>, host: &mut Host, number: u32) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    host.connection.open(&opening(number));
    let (mut up, mut down) = converse(board, host, Vec::new());
    let [Inbound::Update(update)] = &host.said[..] else { panic!("{:?}", host.said) };
    let ack = Ack { id: update.id, outcome: AckOutcome::Counted };
    host.said.clear();
    host.connection.send(ToDevice::Ack(ack));
    let (more_up, more_down) = converse(board, host, Vec::new());
    up.extend(more_up);
    down.extend(more_down);
    (up, down)
}

/// A whole conversation, recorded: hello, answer, confirmation, three rounds.
pub fn recording(gate: &Arc<Gate>, seed: u64) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut board, mut host) = (Board::new(DEVICE, protected(), NoStore, seed), Host::new(gate));
    let hello = board.link_up();
    let (mut up, mut down) = converse(&mut board, &mut host, hello);
    host.said.clear();
    for number in 1..=3 {
        let (more_up, more_down) = round(&mut board, &mut host, number);
        up.extend(more_up);
        down.extend(more_down);
    }
    (up, down)
}

pub fn unopened<P: Store>(board: &Board<P>) -> u32 {
    board.session.counters().unopened
}

/// The table's clone withdraws keys from under connections.
pub fn withdrawable() -> (KeyTable, Keys) {
    let table = table();
    let keys = Keys::new(table.clone());
    (table, keys)
}
