//! Report of a client at the end of its campaign: one line of JSON.

use core::fmt;

use fedspan_client::{SampleSource, Task};
use semihosting::{println, process};

use crate::board::Board;
use crate::campaign::BoardSession;
use crate::link::Traffic;
use crate::reset_count;
use crate::serial::Uart;
use crate::stack::Painted;

/// Results of a client at the end of its campaign, except those that its session holds.
pub struct Report<'a> {
    /// Stack that was painted at the start.
    pub stack: Painted,
    /// Bytes sent and received.
    pub traffic: Traffic,
    /// Number of training samples.
    pub trained: usize,
    /// Number of test samples.
    pub tested: u32,
    /// Score of the personal model as members of the JSON object.
    pub score: fmt::Arguments<'a>,
    /// Checksums of the model as members of the JSON object.
    pub model: fmt::Arguments<'a>,
}

/// Accuracy as members of the JSON object, with four decimals, without floating-point formatting code.
pub struct Accuracy {
    /// Number of test samples whose class was predicted.
    pub correct: u32,
    /// Number of test samples.
    pub tested: u32,
}

impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { correct, tested } = self;
        let accuracy = (u64::from(*correct) * 10_000 + u64::from(*tested) / 2) / u64::from((*tested).max(1));
        let (integer_part, decimals) = (accuracy / 10_000, accuracy % 10_000);
        write!(f, "\"right\":{correct},\"accuracy\":{integer_part}.{decimals:04}")
    }
}

/// Checksums of a linear model as members of the JSON object.
pub struct LinearBits {
    /// CRC-32C of the representation.
    pub representation: u32,
    /// CRC-32C of the head.
    pub head: u32,
}

impl fmt::Display for LinearBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"representation\":\"{:08x}\",\"head\":\"{:08x}\"", self.representation, self.head)
    }
}

/// Prints the results as one line of JSON and exits with code 0.
pub fn print_and_exit<B: Board, T: Task, S: SampleSource, const N: usize, const P: usize>(
    board: &B,
    session: &BoardSession<T, S, N, P>,
    report: &Report<'_>,
) -> ! {
    let Report { stack, traffic, trained, tested, score, model } = report;
    let counters = session.counters();
    let (storage, erased) = (session.store().counters, session.store().erased());
    let ram = fedspan_memory_map::ram();
    let (statics, stack) =
        (fedspan_memory_map::stack_limit().saturating_sub(ram.start), stack.depth(ram.end));
    println!(
        "{{\"device\":{},\"board\":\"{}\",\"core\":\"{}\",{score},\"trained\":{trained},\"tested\":{tested},\
         \"round\":{},\"counted\":{},\"late\":{},\"rejected\":{},\"declined\":{},\"asked_again\":{},\
         \"storage\":{},\"sealed\":{},\"unopened\":{},\"unsealed\":{},\"resets\":{},\"restored\":{},\"unusable\":{},\"erased\":{erased},\"saved\":{},\
         \"lost\":{},\"up\":{},\"down\":{},\"milliseconds\":{},\"static\":{statics},\"stack\":{stack},{model}}}",
        session.config().device,
        B::NAME,
        B::CORE,
        session.last_round(),
        counters.counted,
        counters.late,
        counters.rejected,
        counters.declined,
        counters.asked_again,
        counters.storage,
        !session.is_plaintext(),
        counters.unopened,
        counters.unsealed,
        reset_count::resets(),
        storage.restored,
        storage.unusable,
        storage.saved,
        B::Uart::lost(),
        traffic.up,
        traffic.down,
        board.now(),
    );
    process::exit(0)
}
