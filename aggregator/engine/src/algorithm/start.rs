//! Computation of the initial representation before training, called the *start*: a random basis, power
//! iterations on samples weighted by their targets, or the method of moments (Collins et al. 2021, appendix
//! B.4).
//!
//! Uploads for a start are combined by the campaign's aggregation rule, or by its counterpart for vectors
//! ([`Rule::for_vectors`]). If the initial representation is orthogonal to the true one, FedRep makes no
//! progress, so an attacker must not be able to choose it.

use fedspan_protocol::message::{HeadSolve, PowerRows, PowerUpload, Task};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use super::Algorithm;
use super::decoded::tensor;
use crate::aggregate::{RoundAggregate, Rule, UpdateWeight};
use crate::linalg::{Matrix, RankDeficient, orthonormal, random_basis, to_f32, top_eigenspace};
use crate::random::{Purpose, stream};
use crate::types::{DeviceId, Request, Tensor, Weighting};

/// Uniformly random d x k basis with orthonormal columns, the default start.
#[must_use]
pub fn random_start(d: usize, k: usize, seed: u64) -> Matrix {
    random_basis(d, k, &mut stream(seed, Purpose::Start, 0))
}

/// Distributed power iterations: each round multiplies a d x k basis by the mean of the devices'
/// `(1/m) sum |y|^2 x x^T`. A device sends only the product of its matrix and the basis. But the upload of a
/// device with a single sample reveals that sample up to scale, as a gradient would.
#[derive(Clone, Debug)]
pub struct PowerStart {
    basis: Matrix,
    iterations: u32,
    task: Task,
    round: RoundAggregate,
}

impl PowerStart {
    /// Starts from `basis` (d x k, orthonormal columns) with `iterations` rounds.
    #[must_use]
    pub fn new(basis: Matrix, iterations: u32, weighting: Weighting, rule: Rule) -> Self {
        let round = RoundAggregate::new(rule.for_vectors(), weighting, basis.len());
        Self { basis, iterations, task: Task::PowerStart, round }
    }

    /// Variant for devices that add noise. It uses FedPower's task, for which devices support noise, with
    /// rows that are samples weighted by their targets and clipped to norm 1. Each iteration is one release
    /// of each device, which the device charges to its privacy budget.
    #[must_use]
    pub fn noisy(self) -> Self {
        let (rows, upload) = (PowerRows::Weighted, PowerUpload::Product);
        Self { task: Task::FedPower { iterations: 1, rows, upload, encoding: Encoding::F32 }, ..self }
    }
}

impl Algorithm for PowerStart {
    fn request(&self) -> Request {
        let sent = tensor(Role::Subspace, &self.basis, to_f32(&self.basis));
        let expects = vec![sent.descriptor(Encoding::F32)];
        Request { task: self.task, tensors: vec![sent], encoding: Encoding::F32, expects }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        if let [_] = tensors {
            self.round.absorb(device, weight, tensors);
        }
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        let Some(mean) = self.round.take_vector(&[]) else { return Ok(()) };
        self.basis = orthonormal(&Matrix::from_row_iterator(self.basis.nrows(), self.basis.ncols(), mean))?;
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        &self.basis
    }

    fn fit_request(&self, _head: HeadSolve) -> Request {
        self.request()
    }

    fn state(&self) -> Vec<f64> {
        self.basis.iter().copied().collect()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let fits = state.len() == self.basis.len();
        if fits {
            self.basis.copy_from_slice(state);
        }
        fits
    }

    fn copy(&self) -> Option<Box<dyn Algorithm>> {
        Some(Box::new(self.clone()))
    }

    fn rounds_needed(&self) -> u32 {
        self.iterations
    }
}

/// Method of moments: the top-k eigenspace of the mean of the devices' matrices `(1/m) sum y^2 x x^T`.
/// Devices upload the upper triangle in blocks of rows. A matrix can reveal a record of its device, so this
/// start is for simulations only.
#[derive(Clone, Debug)]
pub struct MomentsStart {
    matrix: Matrix,
    basis: Matrix,
    /// First row of each block, in ascending order, followed by the number of rows d.
    blocks: Vec<usize>,
    next: usize,
    weighting: Weighting,
    rule: Rule,
    round: RoundAggregate,
}

impl MomentsStart {
    /// Creates the start for d features and width k. A block is at most as large as a device's d x k buffer,
    /// and as a tensor descriptor of one row allows.
    #[must_use]
    pub fn new(d: usize, k: usize, weighting: Weighting, rule: Rule) -> Self {
        let rule = rule.for_vectors();
        let block_max = (d * k).min(usize::from(u16::MAX));
        let mut blocks = vec![0];
        let mut room = block_max;
        for row in 0..d {
            if d - row > room {
                blocks.push(row);
                room = block_max;
            }
            room -= d - row;
        }
        blocks.push(d);
        let mut start = Self {
            matrix: Matrix::zeros(d, d),
            basis: Matrix::identity(d, k),
            blocks,
            next: 0,
            weighting,
            rule,
            round: RoundAggregate::new(rule, weighting, 0),
        };
        start.begin_block();
        start
    }

    /// Rows of the matrix in the next block.
    fn block_rows(&self) -> std::ops::Range<usize> {
        let first_row = |i: usize| self.blocks.get(i).copied().unwrap_or(self.matrix.nrows());
        first_row(self.next)..first_row(self.next + 1)
    }

    /// Number of elements of the next block: the part of its rows in the upper triangle.
    fn block_len(&self) -> usize {
        self.block_rows().map(|row| self.matrix.nrows() - row).sum()
    }

    /// Creates an empty aggregate for the next block.
    fn begin_block(&mut self) {
        self.round = RoundAggregate::new(self.rule, self.weighting, self.block_len());
    }
}

impl Algorithm for MomentsStart {
    fn request(&self) -> Request {
        let rows = self.block_rows();
        let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        Request {
            task: Task::MomentRows { first: to_u16(rows.start), count: to_u16(rows.len()) },
            tensors: Vec::new(),
            encoding: Encoding::F32,
            expects: vec![TensorDescriptor::inline(Role::Moment, Encoding::F32, 1, to_u16(self.block_len()))],
        }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        if let [_] = tensors {
            self.round.absorb(device, weight, tensors);
        }
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        let Some(mean) = self.round.take_vector(&[]) else { return Ok(()) };
        let d = self.matrix.nrows();
        let indices = self.block_rows().flat_map(|row| (row..d).map(move |column| (row, column)));
        for ((row, column), value) in indices.zip(mean) {
            self.matrix[(row, column)] = value;
            self.matrix[(column, row)] = value;
        }
        if self.next + 2 >= self.blocks.len() {
            self.basis = orthonormal(&top_eigenspace(&self.matrix, self.basis.ncols()))?;
        }
        self.next += 1;
        self.begin_block();
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        &self.basis
    }

    fn fit_request(&self, _head: HeadSolve) -> Request {
        self.request()
    }

    #[allow(clippy::cast_precision_loss, reason = "a block number")]
    fn state(&self) -> Vec<f64> {
        [self.next as f64]
            .into_iter()
            .chain(self.matrix.iter().copied())
            .chain(self.basis.iter().copied())
            .collect()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let Some((next, matrices)) = state.split_first() else { return false };
        let Some((matrix, basis)) = matrices.split_at_checked(self.matrix.len()) else { return false };
        if basis.len() != self.basis.len() {
            return false;
        }
        self.matrix.copy_from_slice(matrix);
        self.basis.copy_from_slice(basis);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "written by `state`")]
        let next = *next as usize;
        self.next = next.min(self.blocks.len());
        self.begin_block();
        true
    }

    fn copy(&self) -> Option<Box<dyn Algorithm>> {
        Some(Box::new(self.clone()))
    }

    fn rounds_needed(&self) -> u32 {
        u32::try_from(self.blocks.len() - 1).unwrap_or(u32::MAX)
    }
}
