//! The cells of an LSTM on a host: as many at once as its vectors have lanes, with the bits of one after the other.

use alloc::vec;
use alloc::vec::Vec;

use super::super::dense;
use super::super::dense::transpose::transpose;
use super::super::elementary::LANES;
use super::{GATES, advance_cell, go_back_in_cell, split_gates};

/// Values of as many cells.
type Lanes = [f32; LANES];

/// Loads the values of the cells from `first` on; zeros after the last one.
#[inline(always)]
fn load(values: &[f32], first: usize) -> Lanes {
    let values = values.get(first..).unwrap_or_default();
    if let Some(lanes) = values.first_chunk() {
        return *lanes;
    }
    let mut lanes = [0.0; LANES];
    for (lane, value) in lanes.iter_mut().zip(values) {
        *lane = *value;
    }
    lanes
}

/// Stores the values of the cells from `first` on.
#[inline(always)]
fn store(values: &mut [f32], first: usize, lanes: &Lanes) {
    let values = values.get_mut(first..).unwrap_or_default();
    match values.first_chunk_mut() {
        Some(values) => *values = *lanes,
        None => values.iter_mut().zip(lanes).for_each(|(value, lane)| *value = *lane),
    }
}

/// Returns the transposed weights of the hidden states, gates x cells. All steps use them.
pub fn transposed(from_hidden: &[f32], cells: usize, gates: usize) -> Vec<f32> {
    let mut transposed = vec![0.0; cells * gates];
    transpose(from_hidden.get(..cells * gates).unwrap_or_default(), gates, &mut transposed);
    transposed
}

/// Computes the errors of hidden states (n x cells) from those of the gates, with the sums of
/// [`dense::backward_linear`].
pub fn hidden_errors(
    errors: &[f32],
    transposed: &[f32],
    gates: usize,
    hidden: &mut [f32],
    pace: crate::pace::Pace<'_>,
) {
    hidden.fill(0.0);
    dense::add_product(errors, transposed, transposed.len() / gates.max(1), hidden, pace);
}

/// Computes one step of one sequence: turns sums into gates, and updates `state` and `hidden`.
pub fn advance_cells(gates: &mut [f32], state: &mut [f32], hidden: &mut [f32]) {
    struct Advance<'a>([&'a mut [f32]; GATES], &'a mut [f32], &'a mut [f32]);

    impl pulp::WithSimd for Advance<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) {
            let Self([inputs, forgets, candidates, outputs], state, hidden) = self;
            for first in (0..state.len()).step_by(LANES) {
                let [mut i, mut f] = [load(inputs, first), load(forgets, first)];
                let [mut g, mut o] = [load(candidates, first), load(outputs, first)];
                let [mut c, mut h] = [load(state, first), [0.0; LANES]];
                for lane in 0..LANES {
                    advance_cell(
                        [&mut i[lane], &mut f[lane], &mut g[lane], &mut o[lane]],
                        &mut c[lane],
                        &mut h[lane],
                    );
                }
                store(inputs, first, &i);
                store(forgets, first, &f);
                store(candidates, first, &g);
                store(outputs, first, &o);
                store(state, first, &c);
                store(hidden, first, &h);
            }
        }
    }

    pulp::Arch::new().dispatch(Advance(split_gates(gates), state, hidden));
}

/// Propagates errors back through one step of one sequence, and replaces the gates by the errors of their
/// sums. `states` and `before` are the states of the cells after and before the step (`before` is empty for
/// states of zero). The first slice of `errors` are the errors of the hidden state; the second, the errors of
/// the cells, is replaced by the errors before the step.
pub fn go_back(gates: &mut [f32], states: &[f32], before: &[f32], errors: (&[f32], &mut [f32])) {
    struct GoBack<'a>([&'a mut [f32]; GATES], &'a [f32], &'a [f32], (&'a [f32], &'a mut [f32]));

    impl pulp::WithSimd for GoBack<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) {
            let Self([inputs, forgets, candidates, outputs], states, before, (dh, dc)) = self;
            for first in (0..states.len()).step_by(LANES) {
                let [mut i, mut f] = [load(inputs, first), load(forgets, first)];
                let [mut g, mut o] = [load(candidates, first), load(outputs, first)];
                let [c, before, dh] = [load(states, first), load(before, first), load(dh, first)];
                let mut errors = load(dc, first);
                for lane in 0..LANES {
                    let gates = [&mut i[lane], &mut f[lane], &mut g[lane], &mut o[lane]];
                    go_back_in_cell(gates, c[lane], before[lane], dh[lane], &mut errors[lane]);
                }
                store(inputs, first, &i);
                store(forgets, first, &f);
                store(candidates, first, &g);
                store(outputs, first, &o);
                store(dc, first, &errors);
            }
        }
    }

    pulp::Arch::new().dispatch(GoBack(split_gates(gates), states, before, errors));
}
