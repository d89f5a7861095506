//! Recurrent layer built on the kernels of [`dense`]: long short-term memory (LSTM; Hochreiter and
//! Schmidhuber 1997, with the forget gates of Gers et al. 2000). The layer computes the same as PyTorch's,
//! but has one bias: PyTorch's second bias only doubles the step of the biases.
//!
//! A sample is a sequence: steps x channels values, row-major. The four gates of a step are the outputs of
//! one dense layer. The inputs of this layer, called a *row*, are the step's channels and the previous hidden
//! state. Let `z` be the outputs of the dense layer, `c` the state of the cells and `h` the hidden state,
//! both zero before the first step:
//!
//! ```text
//! z = [x h] W + bias     i, f, g, o = sigmoid(z1), sigmoid(z2), tanh(z3), sigmoid(z4)
//! c = f c + i g          h = o tanh(c)
//! ```
//!
//! The layer thus has (channels + cells + 1) x 4 cells values with the bias in the last row; its columns are
//! the gates in the order input, forget, candidate, output. The next layer's input is the hidden state after
//! the last step. **No ReLU** follows the layer, so its errors must be computed by
//! [`dense::backward_linear`]; [`dense::backward`] would drop the errors of negative values.
//!
//! **Reproducibility.** A sequence gives bit-identical results in every batch, and every split of a batch
//! gives a bit-identical gradient. Exponentials and hyperbolic tangents are computed by libm on every
//! machine, even with the feature `micromath`.
//!
//! **Lengths.** Batches are consecutive sequences. If lengths do not match, the functions process the whole
//! sequences that all slices contain (whole steps for the errors of the inputs), and none if the layer is too
//! short; nothing panics.

#[cfg(all(feature = "wide", not(target_os = "none")))]
mod wide_cells;

use super::dense;
#[cfg(all(feature = "wide", not(target_os = "none")))]
use super::elementary::{sigmoid, tanh};
use crate::pace::Pace;
#[cfg(all(feature = "wide", not(target_os = "none")))]
use wide_cells::{advance_cells, go_back, hidden_errors, transposed};

/// Cost of the gates of a cell in one step, in multiply-accumulates: mostly exponentials and hyperbolic tangents.
const CELL_WORK: usize = 120;

/// Cost of a cell in one step of the backward pass.
const CELL_ERROR_WORK: usize = 60;

/// Number of gates of a cell.
const GATES: usize = 4;

/// Sizes of an LSTM layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lstm {
    /// Number of steps of a sequence.
    pub steps: usize,
    /// Number of values of a step.
    pub channels: usize,
    /// Number of cells, which is the length of the hidden state.
    pub cells: usize,
}

impl Lstm {
    /// Returns the number of values of a sequence.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.steps * self.channels
    }

    /// Returns the number of values of an output: the hidden state after the last step.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        self.cells
    }

    /// Returns the number of values of a row: the inputs of a step's gates.
    #[must_use]
    pub const fn row(&self) -> usize {
        self.channels + self.cells
    }

    /// Returns the number of gates of all cells: the outputs of the dense layer.
    #[must_use]
    pub const fn gates(&self) -> usize {
        GATES * self.cells
    }

    /// Returns the number of values of the layer, (channels + cells + 1) x 4 cells.
    #[must_use]
    pub const fn layer(&self) -> usize {
        (self.row() + 1) * self.gates()
    }

    /// Returns the number of values of memory for a batch of `n` sequences, n x (steps + 1) x (channels + 6
    /// cells): rows, gates and cell states of every step, and of the current step.
    #[must_use]
    pub const fn memory(&self, n: usize) -> usize {
        n * (self.steps + 1) * (self.row() + self.gates() + self.cells)
    }

    /// Computes the hidden states after the last step of `sequences` (n x inputs): `out` receives n x
    /// outputs, and `memory` the data for [`Lstm::backward`].
    ///
    /// The sum of a gate starts with the bias; products are added in ascending order of channels, then of
    /// hidden states. A cell's state is the product of the forget gate, rounded, plus the product of the
    /// input gate.
    pub fn forward(
        &self,
        sequences: &[f32],
        layer: &[f32],
        memory: &mut [f32],
        out: &mut [f32],
        pace: Pace<'_>,
    ) {
        let Self { steps, channels, cells } = *self;
        let Some(layer) = self.complete_layer(layer) else { return };
        let Memory { capacity, rows, gates, states, row, gate, state } = Memory::split(self, memory);
        let n = (out.len() / cells).min(capacity);
        let n = sequences.len().checked_div(self.inputs()).map_or(n, |sequences| sequences.min(n));
        row.fill(0.0);
        state.fill(0.0);
        for step in 0..steps {
            for sample in 0..n {
                let (row_index, row) = (sample * steps + step, part_mut(row, sample, self.row()));
                copy_values(part(sequences, row_index, channels), row);
                copy_values(row, part_mut(rows, row_index, self.row()));
            }
            let rows = row.get(..n * self.row()).unwrap_or_default();
            let sums = gate.get_mut(..n * self.gates()).unwrap_or_default();
            dense::forward(rows, layer, self.gates(), sums, pace);
            for sample in 0..n {
                let row_index = sample * steps + step;
                let (gate, state) = (part_mut(gate, sample, self.gates()), part_mut(state, sample, cells));
                let hidden = part_mut(row, sample, self.row()).get_mut(channels..).unwrap_or_default();
                pace.spend(CELL_WORK * cells);
                advance_cells(gate, state, hidden);
                copy_values(gate, part_mut(gates, row_index, self.gates()));
                copy_values(state, part_mut(states, row_index, cells));
            }
        }
        for (sample, out) in out.chunks_exact_mut(cells).take(n).enumerate() {
            copy_values(part(row, sample, self.row()).get(channels..).unwrap_or_default(), out);
        }
    }

    /// Propagates the errors of the outputs (`delta`, n x outputs) back through all steps (Werbos 1990).
    /// Returns the rows of the batch of the last [`Lstm::forward`], n x steps x row, and the errors of their
    /// gates, n x steps x gates. From the two slices [`dense::add_gradient`] computes the gradient of the
    /// layer, and [`dense::descend`] takes a step. `out` receives the errors of the inputs, n x inputs, or is
    /// empty.
    ///
    /// `memory` must be unchanged since `forward`, and can be used for one backward pass only. Sums of errors
    /// run in ascending order of gates; sums of a gradient run in ascending order of sequences, then of
    /// steps.
    pub fn backward<'a>(
        &self,
        delta: &[f32],
        layer: &[f32],
        memory: &'a mut [f32],
        out: &mut [f32],
        pace: Pace<'_>,
    ) -> (&'a [f32], &'a [f32]) {
        let Self { steps, channels, cells } = *self;
        let Some(layer) = self.complete_layer(layer) else { return Default::default() };
        let Memory { capacity, rows, gates, states, row: hidden, gate, state } = Memory::split(self, memory);
        let n = (delta.len() / cells).min(capacity);
        copy_values(delta.get(..n * cells).unwrap_or_default(), hidden);
        state.fill(0.0);
        // Rows of weights. The last row of each slice is skipped: the bias, or the first row of the hidden
        // state.
        let (_, from_hidden) = layer.split_at_checked(channels * self.gates()).unwrap_or_default();
        #[cfg(all(feature = "wide", not(target_os = "none")))]
        let from_hidden = &transposed(from_hidden, cells, self.gates());
        let from_inputs = layer.get(..(channels + 1) * self.gates()).unwrap_or_default();
        for step in (0..steps).rev() {
            for sample in 0..n {
                let row_index = sample * steps + step;
                let before = if step > 0 { part(states, row_index - 1, cells) } else { &[] };
                let gates = part_mut(gates, row_index, self.gates());
                let errors = (part(hidden, sample, cells), part_mut(state, sample, cells));
                pace.spend(CELL_ERROR_WORK * cells);
                go_back(gates, part(states, row_index, cells), before, errors);
                copy_values(gates, part_mut(gate, sample, self.gates()));
            }
            if step > 0 {
                let errors = gate.get(..n * self.gates()).unwrap_or_default();
                let hidden = hidden.get_mut(..n * cells).unwrap_or_default();
                hidden_errors(errors, from_hidden, self.gates(), hidden, pace);
            }
        }
        let rows = rows.get(..n * steps * self.row()).unwrap_or_default();
        let errors = gates.get(..n * steps * self.gates()).unwrap_or_default();
        dense::backward_linear(errors, from_inputs, self.gates(), out, pace);
        (rows, errors)
    }

    /// Returns the layer's values, or `None` if the slice is too short.
    fn complete_layer<'a>(&self, layer: &'a [f32]) -> Option<&'a [f32]> {
        layer.get(..self.layer()).filter(|_| self.cells > 0)
    }
}

/// Buffer of [`Lstm::memory`] values, divided for as many sequences as fit.
struct Memory<'a> {
    /// Number of sequences that fit the buffer.
    capacity: usize,
    /// Rows of every step, by sequence, then by step; `gates` and `states` have the same order.
    rows: &'a mut [f32],
    gates: &'a mut [f32],
    states: &'a mut [f32],
    /// Row of the current step of each sequence; `gate` and `state` have the same order. In the backward pass
    /// the errors of hidden states replace the rows, and the errors of cells replace the states.
    row: &'a mut [f32],
    gate: &'a mut [f32],
    state: &'a mut [f32],
}

impl<'a> Memory<'a> {
    /// Divides the buffer for the sizes of a layer.
    fn split(lstm: &Lstm, memory: &'a mut [f32]) -> Self {
        let capacity = memory.len().checked_div(lstm.memory(1)).unwrap_or(0);
        let mut remaining = memory;
        let mut take_buffer = |length: usize| {
            let (buffer, after) =
                core::mem::take(&mut remaining).split_at_mut_checked(length).unwrap_or_default();
            remaining = after;
            buffer
        };
        let total_steps = capacity * lstm.steps;
        let [rows, gates, states] =
            [lstm.row(), lstm.gates(), lstm.cells].map(|length| take_buffer(total_steps * length));
        let [row, gate, state] =
            [lstm.row(), lstm.gates(), lstm.cells].map(|length| take_buffer(capacity * length));
        Self { capacity, rows, gates, states, row, gate, state }
    }
}

/// Computes the errors of hidden states (n x cells) from those of the gates.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
fn hidden_errors(errors: &[f32], from_hidden: &[f32], gates: usize, hidden: &mut [f32], pace: Pace<'_>) {
    dense::backward_linear(errors, from_hidden, gates, hidden, pace);
}

/// Computes one step of one sequence: turns sums into gates, and updates `state` and `hidden`.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
fn advance_cells(gates: &mut [f32], state: &mut [f32], hidden: &mut [f32]) {
    let [inputs, forgets, candidates, outputs] = split_gates(gates);
    let gates = inputs.iter_mut().zip(forgets).zip(candidates.iter_mut().zip(outputs));
    for (((i, f), (g, o)), (c, h)) in gates.zip(state.iter_mut().zip(hidden)) {
        advance_cell([i, f, g, o], c, h);
    }
}

/// Computes one step of a cell: turns sums into gates, and updates `state` and `hidden`.
#[inline(always)]
fn advance_cell([i, f, g, o]: [&mut f32; GATES], state: &mut f32, hidden: &mut f32) {
    (*i, *f, *g, *o) = (sigmoid(*i), sigmoid(*f), tanh(*g), sigmoid(*o));
    *state = *f * *state + *i * *g;
    *hidden = *o * tanh(*state);
}

/// Propagates errors back through one step of one sequence, and replaces the gates by the errors of their
/// sums. `states` and `before` are the states of the cells after and before the step (`before` is empty for
/// states of zero). The first slice of `errors` are the errors of the hidden state; the second, the errors of
/// the cells, is replaced by the errors before the step.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
fn go_back(gates: &mut [f32], states: &[f32], before: &[f32], errors: (&[f32], &mut [f32])) {
    let before = before.iter().copied().chain(core::iter::repeat(0.0));
    let [inputs, forgets, candidates, outputs] = split_gates(gates);
    let gates = inputs.iter_mut().zip(forgets).zip(candidates.iter_mut().zip(outputs));
    let states = states.iter().zip(before);
    for ((((i, f), (g, o)), (c, before)), (dh, dc)) in gates.zip(states).zip(errors.0.iter().zip(errors.1)) {
        go_back_in_cell([i, f, g, o], *c, before, *dh, dc);
    }
}

/// Propagates errors back through one step of a cell: from the error of its hidden state, and the error of its
/// state, to the errors of the gates' sums and of the state before the step.
#[inline(always)]
fn go_back_in_cell([i, f, g, o]: [&mut f32; GATES], state: f32, before: f32, dh: f32, dc: &mut f32) {
    let out = tanh(state);
    *dc += dh * *o * (1.0 - out * out);
    let (di, df, dg) = (*dc * *g, *dc * before, *dc * *i);
    *dc *= *f;
    *o = dh * out * (*o * (1.0 - *o));
    *f = df * (*f * (1.0 - *f));
    *g = dg * (1.0 - *g * *g);
    *i = di * (*i * (1.0 - *i));
}

/// Returns `1 / (1 + exp(-x))`, a value from 0 to 1; 0 if the exponential is infinite.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + libm::expf(-x))
}

/// Returns the hyperbolic tangent of x.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
fn tanh(x: f32) -> f32 {
    libm::tanhf(x)
}

/// Splits the gates of all cells into the four kinds of gates.
fn split_gates(gates: &mut [f32]) -> [&mut [f32]; GATES] {
    let mut quarters = gates.chunks_exact_mut((gates.len() / GATES).max(1));
    core::array::from_fn(|_| quarters.next().unwrap_or_default())
}

/// Returns the part with this index: `width` values from index `index * width` on.
fn part(values: &[f32], index: usize, width: usize) -> &[f32] {
    values.get(index * width..(index + 1) * width).unwrap_or_default()
}

/// Returns the same part as [`part`], mutable.
fn part_mut(values: &mut [f32], index: usize, width: usize) -> &mut [f32] {
    values.get_mut(index * width..(index + 1) * width).unwrap_or_default()
}

/// Copies values up to the end of the shorter slice.
fn copy_values(values: &[f32], targets: &mut [f32]) {
    for (target, value) in targets.iter_mut().zip(values) {
        *target = *value;
    }
}
