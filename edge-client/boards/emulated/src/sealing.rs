//! Cost of encryption on this core: one line of JSON for each of two frame limits.
//!
//! `seal` is the cost of a device for the frames of one update, `open` for those of one round's
//! representation, and `handshake` for its hello, the keys, the server's answer and the confirmation.
//! `encode` and `check` are for the same frames in plaintext: `seal` minus `encode` is encryption alone, and
//! `check` is the checksum that `open` replaces. The frames carry no numbers, so that only framing and
//! encryption are counted. `stack_` is the stack that a call uses below its caller; `hello` and `keys` are
//! the two parts of a handshake that are not frames.
//!
//! With the words `problem=seal-256` (or `open-`, `handshake-`; or `-1024`) and `times=1` or `times=2` the
//! operation runs that often and nothing is measured, see [`crate::measure`].

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

/// The default frame limit, and one for boards with more memory.
const LIMITS: [usize; 2] = [256, 1024];
const LONGEST: usize = LIMITS[1];
/// Frames of a tensor at the smaller limit, including the one that announces it.
const FRAMES: usize = (D * K).div_ceil(Encoding::F32.chunk_elements(LIMITS[0])) + 1;
/// Bytes of all frames: no frame has more than 64 besides its numbers.
const BYTES: usize = 4 * D * K + 64 * FRAMES;
/// Bytes reserved for the answer to the hello.
const ANSWER: usize = 64;
/// Repetitions of each measurement.
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

    /// Removes the COBS encoding from a frame and stores it. `None` if there is no room.
    fn push(&mut self, wire: &[u8]) -> Option<()> {
        let used: usize = self.lengths.get(..self.count)?.iter().sum();
        let mut decoder = Decoder::new(self.bytes.get_mut(used..)?);
        let mut wire = wire;
        let FeedResult::Sealed(frame) = decoder.feed(&mut wire) else { return None };
        *self.lengths.get_mut(self.count)? = frame.len();
        self.count += 1;
        Some(())
    }

    /// Calls `work` with each frame. True if all calls succeeded.
    fn all(&mut self, mut work: impl FnMut(&mut [u8]) -> bool) -> bool {
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

/// Buffers for the frames of a connection.
struct Buffers {
    out: [u8; wire_capacity(LONGEST)],
    /// The frames of one round, twice, for the execution log of two runs.
    rounds: [Frames; 2],
    answer: ([u8; ANSWER], usize),
}

static BUFFERS: Once<Buffers> = Once::new(Buffers {
    out: [0; wire_capacity(LONGEST)],
    rounds: [const { Frames::new() }; 2],
    answer: ([0; ANSWER], 0),
});

/// Both ends of a connection, and the frames between them.
struct Bench<'a> {
    limit: usize,
    device: Channel,
    server: Channel,
    buffers: &'a mut Buffers,
    /// Bytes on the wire, for a whole handshake and for one update.
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

/// The tensor of a round with its chunking under this limit.
#[allow(clippy::cast_possible_truncation, reason = "small constants")]
fn tensor(role: Role, limit: usize) -> TensorDescriptor {
    let chunk = Encoding::F32.chunk_elements(limit) as u16;
    TensorDescriptor { chunk, ..TensorDescriptor::inline(role, Encoding::F32, D as u16, K as u16) }
}

/// Passes the chunks of a tensor to `say`, each with the length of its body. True if all calls succeeded.
fn chunks<M: Message>(
    tensor: &TensorDescriptor,
    message: impl Fn(Chunk) -> M,
    mut send: impl FnMut(&M, usize) -> bool,
) -> bool {
    (0..tensor.chunks()).filter_map(|index| tensor.chunk_range(index)).all(|elements| {
        let offset = u32::try_from(elements.start).unwrap_or(u32::MAX);
        let chunk = Chunk { id: ROUND, tensor: 0, offset };
        send(&message(chunk), tensor.encoding.byte_len(elements.len()))
    })
}

/// Passes the messages of an update to `say`.
fn update(limit: usize, mut send: impl FnMut(&ToServer, usize) -> bool) -> bool {
    let tensor = tensor(Role::Gradient, limit);
    let tensors = Descriptors::from_iter([tensor]);
    let head = Update { id: ROUND, samples: 32, skipped: 0, tensors };
    send(&ToServer::Update(head), 0) && chunks(&tensor, ToServer::Chunk, send)
}

/// Passes the messages of a round's representation to `say`.
fn round(limit: usize, mut send: impl FnMut(&ToDevice, usize) -> bool) -> bool {
    let tensor = tensor(Role::Representation, limit);
    let tensors = Descriptors::from_iter([tensor]);
    let head = HeadSolve::LeastSquares { ridge: 0.0 };
    let task = Task::FedRep { step_size: 0.1, head, upload: Upload::Gradient, encoding: Encoding::F32 };
    send(&ToDevice::RoundOpen(RoundOpen { id: ROUND, task, tensors }), 0)
        && chunks(&tensor, ToDevice::Chunk, send)
}

impl<'a> Bench<'a> {
    /// Performs a handshake. `None` if it fails.
    fn new(limit: usize, buffers: &'a mut Buffers) -> Option<Self> {
        let mut random = Generator::new(4);
        for byte in &mut buffers.out {
            *byte = random.bits().to_le_bytes()[0];
        }
        let (hello_length, transcript) = encode_hello(hello(), &greeting(), &mut buffers.out).ok()?;
        let mut server = Channel::server(&key(), &transcript, &NONCES[1]);
        let welcome = ToDevice::Welcome(Welcome { campaign: u64::MAX, idle_milliseconds: 60_000 });
        let answered = server.seal_answer(&NONCES[1], &welcome, &mut buffers.out).ok()?;
        let (answer, length) = &mut buffers.answer;
        let mut decoder = Decoder::new(answer.as_mut_slice());
        let FeedResult::Sealed(frame) = decoder.feed(&mut buffers.out.get(..answered)?) else { return None };
        *length = frame.len();
        // `shake` replaces this channel.
        let device = Channel::device(&key(), &transcript, &NONCES[1]);
        let mut bench = Self { limit, device, server, buffers, handshake: hello_length + answered, sent: 0 };
        let confirmed = bench.run_handshake()?;
        bench.handshake += confirmed;
        let mut alive = [0; ANSWER];
        let mut decoder = Decoder::new(alive.as_mut_slice());
        let FeedResult::Sealed(frame) = decoder.feed(&mut bench.buffers.out.get(..confirmed)?) else {
            return None;
        };
        bench.server.open(frame).ok()?;
        Some(bench)
    }

    /// The device's part of a handshake. Returns the length of its confirmation.
    fn run_handshake(&mut self) -> Option<usize> {
        let (mut answer, length) = self.buffers.answer;
        let answer = answer.get_mut(..length)?;
        let (_, transcript) = encode_hello(black_box(hello()), &greeting(), &mut self.buffers.out).ok()?;
        let nonce = answer_nonce(answer)?;
        self.device = Channel::device(&key(), &transcript, &nonce);
        self.device.open(answer).ok()?;
        self.device.seal(&ToServer::Alive, 0, |_| (), &mut self.buffers.out).ok()
    }

    fn seal(&mut self) -> bool {
        let Self { device, buffers: Buffers { out, .. }, sent, .. } = self;
        *sent = 0;
        update(self.limit, |message, body| {
            let sealed = device.seal(message, body, |_| (), out);
            *sent += sealed.unwrap_or(0);
            sealed.is_ok()
        })
    }

    /// Encodes the same messages in plaintext.
    fn encode(&mut self) -> bool {
        let out = &mut self.buffers.out;
        update(self.limit, |message, body| encode(message, body, |_| (), out).is_ok())
    }

    /// Seals the server's messages of a round, twice.
    fn prepare(&mut self) -> bool {
        let Self { server, buffers: Buffers { out, rounds, .. }, limit, .. } = self;
        rounds.iter_mut().all(|frames| {
            frames.count = 0;
            round(*limit, |message, body| {
                let sealed = server.seal(message, body, |_| (), out).ok();
                sealed.and_then(|n| frames.push(out.get(..n)?)).is_some()
            })
        })
    }

    fn open(&mut self, index: usize) -> bool {
        let Self { device, buffers, .. } = self;
        let frames = buffers.rounds.get_mut(index);
        frames.is_some_and(|frames| frames.all(|frame| device.open(frame).is_ok()))
    }

    /// Computes the checksums of frames of the same lengths.
    fn check(&mut self) -> bool {
        let [frames, _] = &mut self.buffers.rounds;
        frames.all(|frame| black_box(crc32c(frame)) != 0 || !is_answer(frame))
    }

    /// True if the server can open the device's sealed update.
    fn round_trips(&mut self) -> bool {
        let Self { device, server, buffers: Buffers { out, rounds: [frames, _], .. }, limit, .. } = self;
        frames.count = 0;
        let sealed = update(*limit, |message, body| {
            let sealed = device.seal(message, body, |_| (), out).ok();
            sealed.and_then(|n| frames.push(out.get(..n)?)).is_some()
        });
        sealed && frames.all(|frame| server.open(frame).is_ok())
    }
}

/// Measures and prints the results, or runs the operation given on the command line. Exits if a frame does
/// not open.
pub fn sealing<B: Board + Meter>(board: &B) {
    let Some(buffers) = BUFFERS.take() else { fail() };
    if let Some((problem, limit, times)) = requested() {
        let Some(mut bench) = Bench::new(limit, buffers) else { fail() };
        require(bench.prepare());
        for index in 0..times {
            require(match problem {
                Problem::Seal => bench.seal(),
                Problem::Open => bench.open(index as usize),
                Problem::Handshake => bench.run_handshake().is_some(),
            });
        }
        return;
    }
    for limit in LIMITS {
        measure_one(board, limit, buffers);
    }
}

#[derive(Clone, Copy)]
enum Problem {
    Seal,
    Open,
    Handshake,
}

/// The operation, frame limit and number of runs, if given on the command line.
fn requested() -> Option<(Problem, usize, u32)> {
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
fn measure_one<B: Board + Meter>(board: &B, limit: usize, buffers: &mut Buffers) {
    let Some(mut bench) = Bench::new(limit, buffers) else { fail() };
    let bench = &mut bench;
    require(bench.prepare());
    let stacks = stacks(bench);

    let nothing = |_: &mut Bench<'_>| true;
    // A repeated handshake gives the same keys, so that the server's channel still fits.
    let handshake = count(board, bench, nothing, |bench| bench.run_handshake().is_some());
    let seal = count(board, bench, nothing, |bench| bench.seal());
    let encode = count(board, bench, nothing, |bench| bench.encode());
    let open = count(board, bench, |bench| bench.prepare(), |bench| bench.open(0));
    let check = count(board, bench, nothing, |bench| bench.check());
    require(bench.round_trips());

    let [round, _] = &bench.buffers.rounds;
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

/// Stack usage of each part below its caller, in bytes.
#[inline(never)]
fn stacks(bench: &mut Bench<'_>) -> impl Display + use<> {
    let (hello, greeting, key) = (hello(), greeting(), key());
    let mut transcript = None;
    let hello_stack =
        stack::peak(&mut || transcript = encode_hello(hello, &greeting, &mut bench.buffers.out).ok());
    let Some((_, transcript)) = transcript else { fail() };
    let keys = stack::peak(&mut || bench.device = Channel::device(&key, &transcript, &NONCES[1]));
    let open = stack::peak(&mut || require(bench.open(0)));
    let seal = stack::peak(&mut || require(bench.seal()));
    let encode = stack::peak(&mut || require(bench.encode()));
    core::fmt::from_fn(move |f| {
        write!(
            f,
            "\"stack_hello\":{hello_stack},\"stack_keys\":{keys},\"stack_seal\":{seal},\"stack_open\":{open},\
             \"stack_encode\":{encode}"
        )
    })
}

/// Instructions of `work`, the mean of [`REPEATS`] runs. `prepare` runs before each and is not counted.
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
        fail()
    }
}

fn fail() -> ! {
    fault::exit(fault::WRONG, &"sealing or opening a frame failed")
}
