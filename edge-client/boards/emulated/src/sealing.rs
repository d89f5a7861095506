//! Measurement of encryption on this core. The output is one line of JSON for each of two frame limits.
//!
//! * `seal`: the encryption of the frames of one update.
//! * `open`: the decryption of the frames of one round's representation.
//! * `handshake`: the hello, the keys, the server's answer and the confirmation.
//! * `encode`: the encoding of the frames of the update in plaintext. `seal` minus `encode` is encryption
//!   alone.
//! * `check`: the checksum of frames as long as those of the representation, which `open` replaces.
//! * `stack_seal` and others: the stack that a call uses below its caller, in bytes. `stack_hello` and
//!   `stack_keys` are the two parts of a handshake that do not seal or open frames.
//!
//! The bodies of the frames have their full length but are not filled with numbers, so that only framing and
//! encryption are counted.
//!
//! If the command line has the words `problem=seal-256` (or `open-`, `handshake-`; or `-1024`) and `times=1`
//! or `times=2`, the operation runs that often and nothing is measured, see [`crate::measure`].

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
use crate::measure::{option_value, requested_times};
use crate::once::Once;
use crate::problem::Generator;
use crate::shape::{D, K};
use crate::stack;

/// Frame limits in bytes: the default, and one for boards with more memory.
const LIMITS: [usize; 2] = [256, 1024];
/// Largest frame limit in bytes.
const LONGEST: usize = LIMITS[1];
/// Number of frames of a tensor at the smaller limit, including the frame that announces the tensor.
const FRAMES: usize = (D * K).div_ceil(Encoding::F32.chunk_elements(LIMITS[0])) + 1;
/// Size of all decoded frames in bytes: the values, and at most 64 bytes of overhead per frame.
const BYTES: usize = 4 * D * K + 64 * FRAMES;
/// Size of the buffer for the server's answer to the hello, in bytes.
const ANSWER: usize = 64;
/// Number of runs per measurement.
const REPEATS: u32 = 16;

/// Number of the measured round.
const ROUND: RoundId = RoundId { round: 1, stage: 0 };
/// Nonces of the device and of the server.
const NONCES: [[u8; NONCE]; 2] = [[1; NONCE], [2; NONCE]];

/// Decoded frames, stored one after another.
struct Frames {
    bytes: [u8; BYTES],
    lengths: [usize; FRAMES],
    count: usize,
}

impl Frames {
    const fn new() -> Self {
        Self { bytes: [0; BYTES], lengths: [0; FRAMES], count: 0 }
    }

    /// Removes the COBS encoding from a frame and stores the frame. Returns `None` if there is no room.
    fn push(&mut self, wire: &[u8]) -> Option<()> {
        let used: usize = self.lengths.get(..self.count)?.iter().sum();
        let mut decoder = Decoder::new(self.bytes.get_mut(used..)?);
        let mut wire = wire;
        let FeedResult::Sealed(frame) = decoder.feed(&mut wire) else { return None };
        *self.lengths.get_mut(self.count)? = frame.len();
        self.count += 1;
        Some(())
    }

    /// Calls `work` with each frame. Returns true if all calls succeeded.
    fn all(&mut self, mut work: impl FnMut(&mut [u8]) -> bool) -> bool {
        let mut remaining = self.bytes.as_mut_slice();
        let mut done = true;
        for &length in self.lengths.get(..self.count).unwrap_or_default() {
            let (frame, after) =
                core::mem::take(&mut remaining).split_at_mut_checked(length).unwrap_or_default();
            done &= work(frame);
            remaining = after;
        }
        done
    }
}

/// Buffers for the frames of a connection.
struct Buffers {
    out: [u8; wire_capacity(LONGEST)],
    /// Frames of one round, stored twice for an execution log of two runs, because opening a frame changes
    /// it.
    rounds: [Frames; 2],
    answer: ([u8; ANSWER], usize),
}

static BUFFERS: Once<Buffers> = Once::new(Buffers {
    out: [0; wire_capacity(LONGEST)],
    rounds: [const { Frames::new() }; 2],
    answer: ([0; ANSWER], 0),
});

/// Device and server ends of a connection, and the buffers for the frames between them.
struct Bench<'a> {
    limit: usize,
    device: Channel,
    server: Channel,
    buffers: &'a mut Buffers,
    /// Length of a whole handshake on the wire, in bytes.
    handshake: usize,
    /// Length of one update on the wire, in bytes.
    sent: usize,
}

fn example_key() -> Key {
    Key::new(0, [0x42; 32])
}

fn handshake_init() -> HandshakeInit {
    HandshakeInit { epoch: 0, handshake: 0, nonce: NONCES[0] }
}

#[allow(clippy::cast_possible_truncation, reason = "small constants")]
/// Returns the hello of a device with a model of the measured shape.
fn example_hello() -> Hello {
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

/// Returns the descriptor of a round's tensor, with the chunk size of this frame limit.
#[allow(clippy::cast_possible_truncation, reason = "small constants")]
fn tensor_descriptor(role: Role, limit: usize) -> TensorDescriptor {
    let chunk = Encoding::F32.chunk_elements(limit) as u16;
    TensorDescriptor { chunk, ..TensorDescriptor::inline(role, Encoding::F32, D as u16, K as u16) }
}

/// Passes the chunks of a tensor to `send`, each with the length of its body. Returns true if all calls
/// succeeded.
fn send_chunks<M: Message>(
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

/// Passes the messages of an update to `send`. Returns true if all calls succeeded.
fn send_update(limit: usize, mut send: impl FnMut(&ToServer, usize) -> bool) -> bool {
    let tensor = tensor_descriptor(Role::Gradient, limit);
    let tensors = Descriptors::from_iter([tensor]);
    let head = Update { id: ROUND, samples: 32, skipped: 0, tensors };
    send(&ToServer::Update(head), 0) && send_chunks(&tensor, ToServer::Chunk, send)
}

/// Passes the messages of a round's representation to `send`. Returns true if all calls succeeded.
fn send_round(limit: usize, mut send: impl FnMut(&ToDevice, usize) -> bool) -> bool {
    let tensor = tensor_descriptor(Role::Representation, limit);
    let tensors = Descriptors::from_iter([tensor]);
    let head = HeadSolve::LeastSquares { ridge: 0.0 };
    let task = Task::FedRep { step_size: 0.1, head, upload: Upload::Gradient, encoding: Encoding::F32 };
    send(&ToDevice::RoundOpen(RoundOpen { id: ROUND, task, tensors }), 0)
        && send_chunks(&tensor, ToDevice::Chunk, send)
}

impl<'a> Bench<'a> {
    /// Creates both ends and performs a handshake. Returns `None` if it fails.
    fn new(limit: usize, buffers: &'a mut Buffers) -> Option<Self> {
        let mut random = Generator::new(4);
        for byte in &mut buffers.out {
            *byte = random.bits().to_le_bytes()[0];
        }
        let (hello_length, transcript) =
            encode_hello(example_hello(), &handshake_init(), &mut buffers.out).ok()?;
        let mut server = Channel::server(&example_key(), &transcript, &NONCES[1]);
        let welcome = ToDevice::Welcome(Welcome { campaign: u64::MAX, idle_milliseconds: 60_000 });
        let answered = server.seal_answer(&NONCES[1], &welcome, &mut buffers.out).ok()?;
        let (answer, length) = &mut buffers.answer;
        let mut decoder = Decoder::new(answer.as_mut_slice());
        let FeedResult::Sealed(frame) = decoder.feed(&mut buffers.out.get(..answered)?) else { return None };
        *length = frame.len();
        // `run_handshake` replaces this channel.
        let device = Channel::device(&example_key(), &transcript, &NONCES[1]);
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

    /// Performs the device's part of a handshake, and returns the length of its confirmation.
    fn run_handshake(&mut self) -> Option<usize> {
        let (mut answer, length) = self.buffers.answer;
        let answer = answer.get_mut(..length)?;
        let (_, transcript) =
            encode_hello(black_box(example_hello()), &handshake_init(), &mut self.buffers.out).ok()?;
        let nonce = answer_nonce(answer)?;
        self.device = Channel::device(&example_key(), &transcript, &nonce);
        self.device.open(answer).ok()?;
        self.device.seal(&ToServer::Alive, 0, |_| (), &mut self.buffers.out).ok()
    }

    /// Seals the messages of an update, and counts their bytes.
    fn seal(&mut self) -> bool {
        let Self { device, buffers: Buffers { out, .. }, sent, .. } = self;
        *sent = 0;
        send_update(self.limit, |message, body| {
            let sealed = device.seal(message, body, |_| (), out);
            *sent += sealed.unwrap_or(0);
            sealed.is_ok()
        })
    }

    /// Encodes the messages of an update in plaintext.
    fn encode(&mut self) -> bool {
        let out = &mut self.buffers.out;
        send_update(self.limit, |message, body| encode(message, body, |_| (), out).is_ok())
    }

    /// Seals the server's messages of a round, twice.
    fn prepare(&mut self) -> bool {
        let Self { server, buffers: Buffers { out, rounds, .. }, limit, .. } = self;
        rounds.iter_mut().all(|frames| {
            frames.count = 0;
            send_round(*limit, |message, body| {
                let sealed = server.seal(message, body, |_| (), out).ok();
                sealed.and_then(|n| frames.push(out.get(..n)?)).is_some()
            })
        })
    }

    /// Opens the frames of round `index`. Returns true if all frames are valid.
    fn open(&mut self, index: usize) -> bool {
        let Self { device, buffers, .. } = self;
        let frames = buffers.rounds.get_mut(index);
        frames.is_some_and(|frames| frames.all(|frame| device.open(frame).is_ok()))
    }

    /// Computes the checksums of the frames of a round.
    fn check(&mut self) -> bool {
        let [frames, _] = &mut self.buffers.rounds;
        frames.all(|frame| black_box(crc32c(frame)) != 0 || !is_answer(frame))
    }

    /// Returns true if the server can open the device's sealed update.
    fn round_trips(&mut self) -> bool {
        let Self { device, server, buffers: Buffers { out, rounds: [frames, _], .. }, limit, .. } = self;
        frames.count = 0;
        let sealed = send_update(*limit, |message, body| {
            let sealed = device.seal(message, body, |_| (), out).ok();
            sealed.and_then(|n| frames.push(out.get(..n)?)).is_some()
        });
        sealed && frames.all(|frame| server.open(frame).is_ok())
    }
}

/// Measures encryption and prints the results, or runs the operation that the command line requests. Exits if
/// a frame cannot be opened.
pub fn sealing<B: Board + Meter>(board: &B) {
    let Some(buffers) = BUFFERS.take() else { fail() };
    if let Some((problem, limit, times)) = requested_operation() {
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

/// Operation that the command line can request.
#[derive(Clone, Copy)]
enum Problem {
    Seal,
    Open,
    Handshake,
}

/// Returns the requested operation, frame limit and number of runs, if given on the command line.
fn requested_operation() -> Option<(Problem, usize, u32)> {
    let (problem, limit) = option_value("problem", |problem| {
        let (problem, limit) = problem.split_once('-')?;
        let problem = match problem {
            "seal" => Problem::Seal,
            "open" => Problem::Open,
            "handshake" => Problem::Handshake,
            _ => return None,
        };
        Some((problem, limit.parse().ok().filter(|limit| LIMITS.contains(limit))?))
    })?;
    Some((problem, limit, requested_times()?))
}

#[inline(never)]
fn measure_one<B: Board + Meter>(board: &B, limit: usize, buffers: &mut Buffers) {
    let Some(mut bench) = Bench::new(limit, buffers) else { fail() };
    let bench = &mut bench;
    require(bench.prepare());
    let stack_usage_members = stack_usage(bench);

    let no_preparation = |_: &mut Bench<'_>| true;
    // A repeated handshake derives the same keys, so the frames of the server remain valid.
    let handshake = count_instructions(board, bench, no_preparation, |bench| bench.run_handshake().is_some());
    let seal = count_instructions(board, bench, no_preparation, |bench| bench.seal());
    let encode = count_instructions(board, bench, no_preparation, |bench| bench.encode());
    let open = count_instructions(board, bench, |bench| bench.prepare(), |bench| bench.open(0));
    let check = count_instructions(board, bench, no_preparation, |bench| bench.check());
    require(bench.round_trips());

    let [round, _] = &bench.buffers.rounds;
    println!(
        "{{\"board\":\"{}\",\"core\":\"{}\",\"d\":{D},\"k\":{K},\"limit\":{limit},\"frames\":{},\"up\":{},\
         \"handshake_bytes\":{},\"seal\":{seal},\"encode\":{encode},\"open\":{open},\"check\":{check},\
         \"handshake\":{handshake},{stack_usage_members}}}",
        B::NAME,
        B::CORE,
        round.count,
        bench.sent,
        bench.handshake,
    );
}

/// Returns the stack usage of each operation below its caller, in bytes.
#[inline(never)]
fn stack_usage(bench: &mut Bench<'_>) -> impl Display + use<> {
    let (hello, greeting, key) = (example_hello(), handshake_init(), example_key());
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

/// Returns the mean number of instructions of [`REPEATS`] runs of `work`. `prepare` runs before each and is
/// not counted.
#[inline(never)]
fn count_instructions<M: Meter>(
    meter: &M,
    bench: &mut Bench<'_>,
    prepare: impl Fn(&mut Bench<'_>) -> bool,
    work: impl Fn(&mut Bench<'_>) -> bool,
) -> u64 {
    let mut ticks = 0;
    for _ in 0..REPEATS {
        require(prepare(bench));
        let start = meter.ticks();
        let done = work(black_box(bench));
        ticks += u64::from(meter.ticks().wrapping_sub(start) & M::MASK);
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
