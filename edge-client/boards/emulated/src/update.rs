//! One FedRep update of a [`Problem`], with the calls that the session makes, and a hash of its results. The
//! update also runs on the host, for comparison with the results of a board.

use fedspan_client::memory::Memory;
use fedspan_client::source::{SampleSource, Samples};
use fedspan_client::{Linear, Mechanism, Recording, SourceError, Task};
use fedspan_protocol::frame::{Crc32c, crc32c_f32};
use fedspan_protocol::message::{
    DeclineReason, Descriptors, HeadSolve, Numeric, RoundId, RoundOpen, Task as Wire, Upload,
};
use fedspan_protocol::orthonormal::orthonormalise;
use fedspan_protocol::tensor::{Encoding, I8_BLOCK, Role, TensorDescriptor};

use crate::problem::{Problem, pattern};

/// Number of the measured round.
pub const ROUND: RoundId = RoundId { round: 1, stage: 0 };

/// Results of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Name of the head solver: `normal`, `triangular`, or `left-out` for the ridge with the smallest
    /// leave-one-out error; in fixed point `i16`, or `i16-ill` if the normal equations are ill conditioned.
    pub path: &'static str,
    /// CRC-32C of the representation.
    pub representation: u32,
    /// CRC-32C of the gradient.
    pub update: u32,
    /// CRC-32C of the head.
    pub head: u32,
}

/// Solver of the head by exact least squares, without a ridge.
pub const EXACT: HeadSolve = HeadSolve::LeastSquares { ridge: 0.0 };

/// Solver of the head by least squares with the ridge that has the smallest leave-one-out error.
pub const LEFT_OUT: HeadSolve = HeadSolve::LeaveOneOut { fallback_ridge: 0.0 };

/// Samples of a problem with a counter of passes. The normal equations read the samples in two passes, the
/// other methods in three.
#[derive(Clone, Debug)]
pub struct PassCounter<'a> {
    samples: Recording<'a>,
    head: HeadSolve,
    ill: bool,
    passes: u32,
    /// Number of the next sample, if they are returned one at a time.
    single: Option<usize>,
}

impl<'a> PassCounter<'a> {
    /// Creates a source with the samples of a problem, for an update with the given head solver.
    #[must_use]
    pub fn new<const D: usize, const M: usize, const C: usize>(
        problem: &'a Problem<D, M, C>,
        head: HeadSolve,
    ) -> Self {
        let samples = Recording::regression(problem.x.as_flattened(), problem.y.as_flattened(), D, C);
        Self { samples, head, ill: problem.ill, passes: 0, single: None }
    }

    /// Returns the same source, which returns one sample at a time.
    #[must_use]
    pub fn singly(self) -> Self {
        Self { single: Some(0), ..self }
    }

    /// Returns the name of the head solver, derived from the number of passes of one update.
    #[must_use]
    pub fn path(&self, numeric: Numeric) -> &'static str {
        match (numeric, self.passes) {
            (Numeric::F32, 2) => "normal",
            (Numeric::F32, 3) if self.head == LEFT_OUT => "left-out",
            (Numeric::F32, 3) => "triangular",
            (Numeric::I16, 2) if self.ill => "i16-ill",
            (Numeric::I16, 2) => "i16",
            _ => "unknown",
        }
    }
}

impl SampleSource for PassCounter<'_> {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        self.passes += 1;
        self.single = self.single.map(|_| 0);
        self.samples.rewind(id)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        match &mut self.single {
            None => self.samples.next(),
            Some(next) => {
                *next += 1;
                self.samples.at(*next - 1)
            }
        }
    }
}

/// Opens the round with the given head solver and loads its representation.
///
/// # Errors
/// The client's reason for declining the round.
pub fn open<M: Memory>(client: &mut Linear<M>, head: HeadSolve) -> Result<(), DeclineReason> {
    let shape = client.shape();
    let dimension = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let (d, k) = (dimension(shape.features), dimension(shape.width));
    let tensor = TensorDescriptor::inline(Role::Representation, Encoding::F32, d, k);
    let task = Wire::FedRep { step_size: 0.1, head, upload: Upload::Gradient, encoding: Encoding::F32 };
    client.open(&RoundOpen { id: ROUND, task, tensors: Descriptors::from_iter([tensor]) })?;
    let b = client.tensor_mut(0).ok_or(DeclineReason::Tensors)?;
    pattern(b);
    orthonormalise(b, shape.width).map_err(|_| DeclineReason::Tensors)?;
    client.verify()
}

/// Calls `take` with the upload, d x k values, in blocks as the session encodes it.
pub fn upload<M: Memory, P: Mechanism>(client: &Linear<M, P>, take: &mut dyn FnMut(&[f32])) {
    let shape = client.shape();
    let (mut block, elements) = ([0.0; I8_BLOCK], shape.features * shape.width);
    for first in (0..elements).step_by(I8_BLOCK) {
        let values = block.get_mut(..I8_BLOCK.min(elements - first)).unwrap_or_default();
        client.emit(0, first, values);
        take(values);
    }
}

/// Returns the CRC-32C of the upload, as that of its values in one piece.
pub fn upload_checksum<M: Memory, P: Mechanism>(client: &Linear<M, P>) -> u32 {
    let mut crc = Crc32c::new();
    upload(client, &mut |values| values.iter().for_each(|value| crc.update(&value.to_le_bytes())));
    crc.finish()
}

/// Returns the results of a finished update.
pub fn outcome<M: Memory>(client: &Linear<M>, source: &PassCounter<'_>) -> Outcome {
    Outcome {
        path: source.path(client.capabilities().numeric),
        representation: crc32c_f32(client.representation().unwrap_or_default()),
        update: upload_checksum(client),
        head: crc32c_f32(client.head()),
    }
}

impl core::fmt::Display for Outcome {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { path, representation, update, head } = self;
        write!(
            f,
            "\"path\":\"{path}\",\"representation\":\"{representation:08x}\",\"update\":\"{update:08x}\",\
             \"head\":\"{head:08x}\""
        )
    }
}
