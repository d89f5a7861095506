//! What encryption costs on this core: one line of JSON for each of two frame limits.
//!
//! `seal` is what a device spends on the frames of one update, `open` on those of the representation of one round,
//! `handshake` on its hello, the keys, the server's answer and its confirmation. `encode` and `check` are the same
//! frames in the clear: without `encode`, `seal` is encryption alone; `check` is the checksum that `open` replaces.
//! Numbers are not written into the frames, so that only framing and encryption are counted. `stack_` is what
//! a call takes beyond its caller: `hello` and `keys` are the two parts of a handshake that are not frames.
//!
//! With the words `problem=seal-256` (or `open-`, `handshake-`; or `-1024`) and `times=1` or `times=2` it is done so
//! often and nothing is measured, see [`crate::measure`].

use core::fmt::Display;
use core::hint::black_box;

use fedspan_client::secure::{Channel, HandshakeInit, Key, NONCE, answer_nonce, encode_hello, is_answer};
use fedspan_protocol::frame::{Decoder, FeedResult, crc32c, encode};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{
    Capabilities, Chunk, Descriptors, HeadSolve, Hello, Message, Model, Numeric, Privacy, RoundId, RoundOpen,
    Task, ToDevice, ToServer, Update, Upload, Welcome,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use semihosting::println;

use crate::board::{Board, Meter};
use crate::fault;
use crate::measure::{times, word};
use crate::once::Once;
use crate::problem::Generator;
use crate::shape::{D, K};
use crate::stack;

/// The usual frame limit, and one for boards with more room.
const LIMITS: [usize; 2] = [256, 1024];
const LONGEST: usize = LIMITS[1];
/// Frames of a tensor at the smaller limit, with the one that announces it.
const FRAMES: usize = (D * K).div_ceil(Encoding::F32.chunk_elements(LIMITS[0])) + 1;
/// Bytes of all of them: 64 are more than any of them has beside its numbers.
const BYTES: usize = 4 * D * K + 64 * FRAMES;
/// Bytes of the answer to hello.
const ANSWER: usize = 64;
/// Times that each is done.
const REPEATS: u32 = 16;

const ROUND: RoundId = RoundId { round: 1, stage: 0 };
const NONCES: [[u8; NONCE]; 2] = [[1; NONCE], [2; NONCE]];

/// Decoded frames, one after the other.
struct Frames {
    bytes: [u8; BYTES],
    lengths: [usize; FRAMES],
    count: usize,
}

impl Frames {
    const fn new() -> Self {
        Self { bytes: [0; BYTES], lengths: [0; FRAMES], count: 0 }
    }

    /// Takes the COBS off a frame and keeps what was in it. `None` if there is no room.
    fn keep(&mut self, wire: &[u8]) -> Option<()> {
        let used: usize = self.lengths.get(..self.count)?.iter().sum();
        let mut decoder = Decoder::new(self.bytes.get_mut(used..)?);
        let mut wire = wire;
        let FeedResult::Sealed(frame) = decoder.feed(&mut wire) else { return None };
        *self.lengths.get_mut(self.count)? = frame.len();
        self.count += 1;
        Some(())
    }

    /// Whether `work` has done with each of them.
    fn each(&mut self, mut work: impl FnMut(&mut [u8]) -> bool) -> bool {
        let mut rest = self.bytes.as_mut_slice();
        let mut done = true;
        for &length in self.lengths.get(..self.count).unwrap_or_default() {
            let (frame, after) = core::mem::take(&mut rest).split_at_mut_checked(length).unwrap_or_default();
            done &= work(frame);
            rest = after;
        }
        done
    }
}

/// What goes over a connection.
struct Room {
    out: [u8; wire_capacity(LONGEST)],
    /// One round's frames, twice, for a log of what is executed twice.
    rounds: [Frames; 2],
    answer: ([u8; ANSWER], usize),
}

static ROOM: Once<Room> = Once::new(Room {
    out: [0; wire_capacity(LONGEST)],
    rounds: [const { Frames::new() }; 2],
    answer: ([0; ANSWER], 0),
});

/// Both ends of a connection, and the frames between them.
struct Bench<'a> {
    limit: usize,
    device: Channel,
    server: Channel,
    room: &'a mut Room,
    /// Bytes on the wire: a whole handshake, one update.
    handshake: usize,
    sent: usize,
}

fn key() -> Key {
    Key::new(0, [0x42; 32])
}

fn greeting() -> HandshakeInit {
    HandshakeInit { epoch: 0, handshake: 0, nonce: NONCES[0] }
}

#[allow(clippy::cast_possible_truncation, reason = "small constants")]
fn hello() -> Hello {
    let model = Model::linear(D as u16, K as u16, 1);
    let (elements, frame_limit) = ((D * K) as u32, LIMITS[0] as u16);
    let capabilities = Capabilities {
        frame_limit,
        model,
        tasks: 1,
        roles: 1,
        encodings: 1,
        numeric: Numeric::F32,
        tensors: 1,
        tensor_elements: elements,
        total_elements: elements,
        privacy: Privacy::None,
    };
    Hello::new(7, capabilities)
}

/// The tensor of a round as it travels under this limit.
#[allow(clippy::cast_possible_truncation, reason = "small constants")]
fn tensor(role: Role, limit: usize) -> TensorDescriptor {
    let chunk = Encoding::F32.chunk_elements(limit) as u16;
    TensorDescriptor { chunk, ..TensorDescriptor::inline(role, Encoding::F32, D as u16, K as u16) }
}

/// Says the chunks of a tensor, each with the bytes of its body. Says whether all went well.
fn chunks<M: Message>(
    tensor: &TensorDescriptor,
    message: impl Fn(Chunk) -> M,
    mut say: impl FnMut(&M, usize) -> bool,
) -> bool {
    (0..tensor.chunks()).filter_map(|index| tensor.chunk_range(index)).all(|elements| {
        let offset = u32::try_from(elements.start).unwrap_or(u32::MAX);
        let chunk = Chunk { id: ROUND, tensor: 0, offset };
        say(&message(chunk), tensor.encoding.byte_len(elements.len()))
    })
}

/// Says an update.
fn update(limit: usize, mut say: impl FnMut(&ToServer, usize) -> bool) -> bool {
    let tensor = tensor(Role::Gradient, limit);
    let tensors = Descriptors::from_iter([tensor]);
    let head = Update { id: ROUND, samples: 32, skipped: 0, tensors };
    say(&ToServer::Update(head), 0) && chunks(&tensor, ToServer::Chunk, say)
}

/// Says a round's representation.
fn round(limit: usize, mut say: impl FnMut(&ToDevice, usize) -> bool) -> bool {
    let tensor = tensor(Role::Representation, limit);
    let tensors = Descriptors::from_iter([tensor]);
    let head = HeadSolve::LeastSquares { ridge: 0.0 };
    let task = Task::FedRep { step_size: 0.1, head, upload: Upload::Gradient, encoding: Encoding::F32 };
    say(&ToDevice::RoundOpen(RoundOpen { id: ROUND, task, tensors }), 0)
        && chunks(&tensor, ToDevice::Chunk, say)
}

impl<'a> Bench<'a> {
    /// Shakes hands. `None` if that fails.
    fn new(limit: usize, room: &'a mut Room) -> Option<Self> {
        let mut random = Generator::new(4);
        for byte in &mut room.out {
            *byte = random.bits().to_le_bytes()[0];
        }
        let (said, transcript) = encode_hello(hello(), &greeting(), &mut room.out).ok()?;
        let mut server = Channel::server(&key(), &transcript, &NONCES[1]);
        let welcome = ToDevice::Welcome(Welcome { campaign: u64::MAX, idle_milliseconds: 60_000 });
        let answered = server.seal_answer(&NONCES[1], &welcome, &mut room.out).ok()?;
        let (answer, length) = &mut room.answer;
        let mut decoder = Decoder::new(answer.as_mut_slice());
        let FeedResult::Sealed(frame) = decoder.feed(&mut room.out.get(..answered)?) else { return None };
        *length = frame.len();
        // `shake` makes it anew.
        let device = Channel::device(&key(), &transcript, &NONCES[1]);
        let mut bench = Self { limit, device, server, room, handshake: said + answered, sent: 0 };
        let confirmed = bench.shake()?;
        bench.handshake += confirmed;
        let mut alive = [0; ANSWER];
        let mut decoder = Decoder::new(alive.as_mut_slice());
        let FeedResult::Sealed(frame) = decoder.feed(&mut bench.room.out.get(..confirmed)?) else {
            return None;
        };
        bench.server.open(frame).ok()?;
        Some(bench)
    }

    /// The device's part of a handshake; the bytes of its confirmation.
    fn shake(&mut self) -> Option<usize> {
        let (mut answer, length) = self.room.answer;
        let answer = answer.get_mut(..length)?;
        let (_, transcript) = encode_hello(black_box(hello()), &greeting(), &mut self.room.out).ok()?;
        let nonce = answer_nonce(answer)?;
        self.device = Channel::device(&key(), &transcript, &nonce);
        self.device.open(answer).ok()?;
        self.device.seal(&ToServer::Alive, 0, |_| (), &mut self.room.out).ok()
    }

    fn seal(&mut self) -> bool {
        let Self { device, room: Room { out, .. }, sent, .. } = self;
        *sent = 0;
        update(self.limit, |message, body| {
            let sealed = device.seal(message, body, |_| (), out);
            *sent += sealed.unwrap_or(0);
            sealed.is_ok()
        })
    }

    /// The same in the clear.
    fn encode(&mut self) -> bool {
        let out = &mut self.room.out;
        update(self.limit, |message, body| encode(message, body, |_| (), out).is_ok())
    }

    /// The server seals a round, twice.
    fn prepare(&mut self) -> bool {
        let Self { server, room: Room { out, rounds, .. }, limit, .. } = self;
        rounds.iter_mut().all(|frames| {
            frames.count = 0;
            round(*limit, |message, body| {
                let sealed = server.seal(message, body, |_| (), out).ok();
                sealed.and_then(|n| frames.keep(out.get(..n)?)).is_some()
            })
        })
    }

    fn open(&mut self, index: usize) -> bool {
        let Self { device, room, .. } = self;
        let frames = room.rounds.get_mut(index);
        frames.is_some_and(|frames| frames.each(|frame| device.open(frame).is_ok()))
    }

    /// The checksums of frames of the same lengths.
    fn check(&mut self) -> bool {
        let [frames, _] = &mut self.room.rounds;
        frames.each(|frame| black_box(crc32c(frame)) != 0 || !is_answer(frame))
    }

    /// What was sealed is opened at the other end.
    fn is_right(&mut self) -> bool {
        let Self { device, server, room: Room { out, rounds: [frames, _], .. }, limit, .. } = self;
        frames.count = 0;
        let sealed = update(*limit, |message, body| {
            let sealed = device.seal(message, body, |_| (), out).ok();
            sealed.and_then(|n| frames.keep(out.get(..n)?)).is_some()
        });
        sealed && frames.each(|frame| server.open(frame).is_ok())
    }
}

/// Measures and prints, or does what the command line asks for; exits if something is not opened that should be.
pub fn sealing<B: Board + Meter>(board: &B) {
    let Some(room) = ROOM.take() else { broken() };
    if let Some((problem, limit, times)) = asked() {
        let Some(mut bench) = Bench::new(limit, room) else { broken() };
        require(bench.prepare());
        for index in 0..times {
            require(match problem {
                Problem::Seal => bench.seal(),
                Problem::Open => bench.open(index as usize),
                Problem::Handshake => bench.shake().is_some(),
            });
        }
        return;
    }
    for limit in LIMITS {
        one(board, limit, room);
    }
}

#[derive(Clone, Copy)]
enum Problem {
    Seal,
    Open,
    Handshake,
}

/// What to do under which limit how often, if the command line says so.
fn asked() -> Option<(Problem, usize, u32)> {
    let (problem, limit) = word("problem", |problem| {
        let (problem, limit) = problem.split_once('-')?;
        let problem = match problem {
            "seal" => Problem::Seal,
            "open" => Problem::Open,
            "handshake" => Problem::Handshake,
            _ => return None,
        };
        Some((problem, limit.parse().ok().filter(|limit| LIMITS.contains(limit))?))
    })?;
    Some((problem, limit, times()?))
}

#[inline(never)]
fn one<B: Board + Meter>(board: &B, limit: usize, room: &mut Room) {
    let Some(mut bench) = Bench::new(limit, room) else { broken() };
    let bench = &mut bench;
    require(bench.prepare());
    let stacks = stacks::<B>(bench);

    let nothing = |_: &mut Bench<'_>| true;
    // A handshake that is repeated gives the same keys: the server's end still fits.
    let handshake = count(board, bench, nothing, |bench| bench.shake().is_some());
    let seal = count(board, bench, nothing, |bench| bench.seal());
    let encode = count(board, bench, nothing, |bench| bench.encode());
    let open = count(board, bench, |bench| bench.prepare(), |bench| bench.open(0));
    let check = count(board, bench, nothing, |bench| bench.check());
    require(bench.is_right());

    let [round, _] = &bench.room.rounds;
    println!(
        "{{\"board\":\"{}\",\"core\":\"{}\",\"d\":{D},\"k\":{K},\"limit\":{limit},\"frames\":{},\"up\":{},\
         \"handshake_bytes\":{},\"seal\":{seal},\"encode\":{encode},\"open\":{open},\"check\":{check},\
         \"handshake\":{handshake},{stacks}}}",
        B::NAME,
        B::CORE,
        round.count,
        bench.sent,
        bench.handshake,
    );
}

/// Bytes of stack below the caller of each part.
#[inline(never)]
fn stacks<B: Board>(bench: &mut Bench<'_>) -> impl Display + use<B> {
    let peak = |work: &mut dyn FnMut()| stack::peak(B::stack_limit(), work);
    let (hello, greeting, key) = (hello(), greeting(), key());
    let mut transcript = None;
    let saying = peak(&mut || transcript = encode_hello(hello, &greeting, &mut bench.room.out).ok());
    let Some((_, transcript)) = transcript else { broken() };
    let keys = peak(&mut || bench.device = Channel::device(&key, &transcript, &NONCES[1]));
    let open = peak(&mut || require(bench.open(0)));
    let seal = peak(&mut || require(bench.seal()));
    let encode = peak(&mut || require(bench.encode()));
    core::fmt::from_fn(move |f| {
        write!(
            f,
            "\"stack_hello\":{saying},\"stack_keys\":{keys},\"stack_seal\":{seal},\"stack_open\":{open},\
             \"stack_encode\":{encode}"
        )
    })
}

/// Instructions of `work`, the mean of [`REPEATS`], each after `prepare`, which is not counted.
#[inline(never)]
fn count<M: Meter>(
    meter: &M,
    bench: &mut Bench<'_>,
    prepare: impl Fn(&mut Bench<'_>) -> bool,
    work: impl Fn(&mut Bench<'_>) -> bool,
) -> u64 {
    let mut ticks = 0;
    for _ in 0..REPEATS {
        require(prepare(bench));
        let began = meter.ticks();
        let done = work(black_box(bench));
        ticks += u64::from(meter.ticks().wrapping_sub(began) & M::MASK);
        require(done);
    }
    let (instructions, per) = M::INSTRUCTIONS_PER_TICK;
    ticks * instructions / (per * u64::from(REPEATS))
}

fn require(done: bool) {
    if !done {
        broken()
    }
}

fn broken() -> ! {
    fault::exit(fault::WRONG, &"a frame was not sealed, or not opened")
}
