//! FedRep steps of several simulated devices side by side: one device in each lane of the host's vectors, with the same
//! operations in the same order as on one device, so that all bits are the same.
//!
//! A lane whose head cannot be computed by the normal equations, or with a value that a device skips, has no step; its
//! device computes by itself, and the other lanes do not change.

use alloc::sync::Arc;
use alloc::vec::Vec;

use fedspan_protocol::orthonormal::orthonormality_error;
use fedspan_protocol::tensor::Encoding;
use pulp::{Simd, WithSimd};

use super::sample_pass::MAGNITUDE_MAX;
use super::{HeadSolver, Usage, representation_hash};
use crate::kernel::least_squares::SMALLEST_SQUARE;
use crate::memory::Shape;
use crate::source::{Samples, Targets};

/// Largest number of lanes on any host.
pub const LANES_MAX: usize = 16;

/// Largest number of columns of the representation.
const WIDTH_MAX: usize = 64;

/// Number of devices whose steps this machine computes side by side; 1 without vectors of four or more values.
#[must_use]
pub fn lanes() -> usize {
    struct Lanes;

    impl WithSimd for Lanes {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _simd: S) -> usize {
            if (4..=LANES_MAX).contains(&S::F32_LANES) { S::F32_LANES } else { 1 }
        }
    }

    dispatch(Lanes)
}

/// Computes with the host's vectors, but of at most eight lanes on x86: with sixteen lanes the samples of a group do not
/// fit the first cache, and steps take up to 1.7 times as long.
#[inline(always)]
fn dispatch<K: WithSimd>(kernel: K) -> K::Output {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return Simd::vectorize(simd, kernel);
    }
    pulp::Arch::new().dispatch(kernel)
}

/// Memory of a group of steps, which later groups reuse. All matrices have one value for each lane in each element.
#[derive(Debug, Default)]
pub struct LaneSteps {
    shape: Shape,
    lanes: usize,
    /// Number of samples of each device.
    samples: usize,
    ridge: f32,
    /// Features, m x d.
    x: Vec<f32>,
    /// Targets, m x c; then the residuals.
    y: Vec<f32>,
    /// Projections, m x k.
    z: Vec<f32>,
    /// Normal matrix, k x k, then its Cholesky factor.
    factor: Vec<f32>,
    /// Right side, k x c, then the heads.
    head: Vec<f32>,
    /// `S`, d x c.
    residual: Vec<f32>,
    /// k values.
    scratch: Vec<f32>,
    /// 1 in the lanes that have a step, otherwise 0.
    valid: [f32; LANES_MAX],
}

impl LaneSteps {
    /// Computes the steps of devices with equally many samples on the representation `b`, d x k, with a ridge. At most
    /// [`lanes`] devices; the others are ignored. Computes nothing for shapes that lanes do not support.
    pub fn compute(
        &mut self,
        b: &[f32],
        shape: Shape,
        ridge: f32,
        solver: &LaneSolver,
        devices: &[Samples<'_>],
    ) {
        let Shape { features: d, width: k, outputs: c } = shape;
        self.valid = [0.0; LANES_MAX];
        (self.shape, self.lanes, self.ridge) = (shape, lanes(), ridge);
        let Some(first) = devices.first() else { return };
        self.samples = first.x.len() / d.max(1);
        let m = self.samples;
        let is_supported = self.lanes > 1
            && (1..=WIDTH_MAX).contains(&k)
            && c > 0
            && b.len() == d * k
            && (m >= k || ridge > 0.0)
            && m > 0;
        if !is_supported {
            return;
        }
        let devices = devices.get(..self.lanes).unwrap_or(devices);
        let lanes = self.lanes;
        let resize = |values: &mut Vec<f32>, count: usize| values.resize(count * lanes, 0.0);
        resize(&mut self.x, m * d);
        resize(&mut self.y, m * c);
        resize(&mut self.z, m * k);
        resize(&mut self.factor, k * k);
        resize(&mut self.head, k * c);
        resize(&mut self.residual, d * c);
        resize(&mut self.scratch, k);
        for (lane, device) in devices.iter().enumerate() {
            let has_targets =
                device.x.len() == m * d && spread_targets(&mut self.y, lanes, lane, *device, c, m);
            if let Some(valid) = self.valid.get_mut(lane).filter(|_| has_targets) {
                *valid = 1.0;
            }
        }
        spread_features(&mut self.x, lanes, devices);
        dispatch(Kernel { steps: self, b, ridge, limits: solver.0.limits() });
    }

    /// Returns true if the lane has a step.
    fn has_step(&self, lane: usize) -> bool {
        self.valid.get(lane).is_some_and(|valid| *valid > 0.0)
    }

    /// Copies the step of a lane. Returns false, and leaves no step, if the lane has none.
    pub fn copy_step(&self, lane: usize, step: &mut LaneStep) -> bool {
        let LaneStep { shape, usage, ridge, head, residual } = step;
        *shape = Shape::default();
        if !self.has_step(lane) {
            return false;
        }
        (*shape, *ridge) = (self.shape, self.ridge);
        *usage = Usage { samples: u32::try_from(self.samples).unwrap_or(u32::MAX), skipped: 0 };
        for (to, from) in [(head, &self.head), (residual, &self.residual)] {
            to.resize(from.len() / self.lanes.max(1), 0.0);
            for (to, from) in to.iter_mut().zip(from.chunks_exact(self.lanes.max(1))) {
                *to = from.get(lane).copied().unwrap_or(f32::NAN);
            }
        }
        true
    }
}

/// Step of one device.
#[derive(Clone, Debug, Default)]
pub struct LaneStep {
    /// Sizes of the model; zeros without a step.
    pub(super) shape: Shape,
    pub(super) usage: Usage,
    pub(super) ridge: f32,
    /// Head, k x c.
    pub(super) head: Vec<f32>,
    /// `S`, d x c.
    pub(super) residual: Vec<f32>,
}

/// Representation that was verified once for all devices that receive it.
#[derive(Clone, Debug)]
pub struct VerifiedRepresentation {
    /// Values, d x k.
    b: Arc<[f32]>,
    /// Hash by which a device identifies it.
    pub(super) hash: u32,
}

impl VerifiedRepresentation {
    /// Verifies a representation with k = `width` columns as a device does that has received it in f32. Returns `None` if its
    /// columns are not orthonormal.
    #[must_use]
    pub fn verify(b: Arc<[f32]>, width: usize) -> Option<Self> {
        let is_orthonormal = orthonormality_error(&b, width) <= Encoding::F32.orthonormality_tolerance();
        is_orthonormal.then(|| Self { hash: representation_hash(&b), b })
    }

    /// Values, d x k.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.b
    }

    /// Returns true if these values have the same bits.
    #[must_use]
    pub fn has_same_bits(&self, values: &[f32]) -> bool {
        // Without an early exit, so that the compiler can vectorise it.
        let differences = self.b.iter().zip(values).map(|(a, b)| a.to_bits() ^ b.to_bits());
        self.b.len() == values.len() && differences.fold(0, |all, one| all | one) == 0
    }
}

/// Solver of the heads of the devices, which has limits within which the normal equations are used.
#[derive(Clone, Copy, Debug)]
pub struct LaneSolver(pub(super) HeadSolver);

/// Writes the features of each device into its lane.
fn spread_features(x: &mut [f32], lanes: usize, devices: &[Samples<'_>]) {
    let are_complete = devices.iter().all(|device| device.x.len() * lanes == x.len());
    if let ([a, b, c, d, e, f, g, h], 8, true) = (devices, lanes, are_complete) {
        // Eight values at a time take half as long as one value.
        let [a, b, c, d, e, f, g, h] = [a, b, c, d, e, f, g, h].map(|device| device.x);
        let eights = x.as_chunks_mut::<8>().0;
        for ((((((((target, a), b), c), d), e), f), g), h) in
            eights.iter_mut().zip(a).zip(b).zip(c).zip(d).zip(e).zip(f).zip(g).zip(h)
        {
            *target = [*a, *b, *c, *d, *e, *f, *g, *h];
        }
        return;
    }
    for (lane, device) in devices.iter().enumerate() {
        for (target, value) in x.chunks_exact_mut(lanes).zip(device.x) {
            if let Some(target) = target.get_mut(lane) {
                *target = *value;
            }
        }
    }
}

/// Writes the targets of a device into its lane. Returns false if one is missing.
fn spread_targets(y: &mut [f32], lanes: usize, lane: usize, device: Samples<'_>, c: usize, m: usize) -> bool {
    for (number, targets) in y.chunks_exact_mut(lanes).take(m * c).enumerate() {
        let value = match device.targets {
            Targets::Values(values) => values.get(number).copied(),
            Targets::Classes(_) => device.targets.value(number / c, number % c, c),
        };
        let (Some(value), Some(target)) = (value, targets.get_mut(lane)) else { return false };
        *target = value;
    }
    true
}

/// Computation of a group.
struct Kernel<'a> {
    steps: &'a mut LaneSteps,
    b: &'a [f32],
    ridge: f32,
    limits: crate::kernel::least_squares::Limits,
}

impl WithSimd for Kernel<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { steps, b, ridge, limits } = self;
        if S::F32_LANES != steps.lanes {
            steps.valid = [0.0; LANES_MAX];
            return;
        }
        let Shape { features: d, width: k, outputs: c } = steps.shape;
        let (x, y) = (S::as_simd_f32s(&steps.x).0, S::as_mut_simd_f32s(&mut steps.y).0);
        let z = S::as_mut_simd_f32s(&mut steps.z).0;
        let factor = S::as_mut_simd_f32s(&mut steps.factor).0;
        let head = S::as_mut_simd_f32s(&mut steps.head).0;
        let residual = S::as_mut_simd_f32s(&mut steps.residual).0;
        let scratch = S::as_mut_simd_f32s(&mut steps.scratch).0;
        #[allow(clippy::cast_precision_loss, reason = "as on a device")]
        let samples = steps.samples as f32;
        let lanes = Lanes { simd, k, c };
        for (x, z) in x.chunks(4 * d).zip(z.chunks_mut(4 * k)) {
            lanes.project(x, b, d, z);
        }
        let mut valid =
            lanes.within(z, simd.less_than_or_equal_f32s(simd.splat_f32s(0.0), simd.splat_f32s(0.0)));
        valid = lanes.within(y, valid);
        lanes.normal_equations(z, y, factor, head);
        for diagonal in factor.iter_mut().step_by(k + 1) {
            *diagonal = simd.add_f32s(*diagonal, simd.splat_f32s(ridge * samples));
        }
        valid = lanes.solve(factor, head, scratch, limits, valid);
        lanes.subtract_targets(z, head, y);
        lanes.residuals(x, y, d, residual);
        let ones = simd.select_f32s(valid, simd.splat_f32s(1.0), simd.splat_f32s(0.0));
        if let Some(target) = S::as_mut_simd_f32s(&mut steps.valid).0.first_mut() {
            *target = simd.mul_f32s(*target, ones);
        }
    }
}

/// Operations on all lanes of matrices with k and c columns.
#[derive(Clone, Copy)]
struct Lanes<S> {
    simd: S,
    k: usize,
    c: usize,
}

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn zero(self) -> S::f32s {
        self.simd.splat_f32s(0.0)
    }

    /// Computes `sum + a b`, rounded twice as on a device.
    #[inline(always)]
    fn add_product(self, sum: S::f32s, a: S::f32s, b: S::f32s) -> S::f32s {
        self.simd.add_f32s(sum, self.simd.mul_f32s(a, b))
    }

    /// Projects up to four samples.
    #[inline(always)]
    fn project(self, x: &[S::f32s], b: &[f32], d: usize, z: &mut [S::f32s]) {
        let k = self.k;
        if x.len() == 4 * d {
            let (x0, x) = x.split_at(d);
            let (x1, x) = x.split_at(d);
            let (x2, x3) = x.split_at(d);
            let mut column = 0;
            while column + 2 <= k {
                self.project_tile::<4, 2>([x0, x1, x2, x3], b, column, z);
                column += 2;
            }
            if column < k {
                self.project_tile::<4, 1>([x0, x1, x2, x3], b, column, z);
            }
            return;
        }
        for (x, z) in x.chunks_exact(d).zip(z.chunks_exact_mut(k)) {
            for column in 0..k {
                self.project_tile::<1, 1>([x], b, column, z);
            }
        }
    }

    /// Projects `R` samples onto `C` columns.
    #[inline(always)]
    fn project_tile<const R: usize, const C: usize>(
        self,
        x: [&[S::f32s]; R],
        b: &[f32],
        column: usize,
        z: &mut [S::f32s],
    ) {
        let mut sums = [[self.zero(); C]; R];
        for (feature, row) in b.chunks_exact(self.k).enumerate() {
            let Some(row) = row.get(column..).and_then(|row| row.first_chunk::<C>()) else { return };
            let factors = row.map(|value| self.simd.splat_f32s(value));
            for (sums, x) in sums.iter_mut().zip(x) {
                let Some(x) = x.get(feature) else { return };
                for (sum, factor) in sums.iter_mut().zip(factors) {
                    *sum = self.add_product(*sum, *x, factor);
                }
            }
        }
        for (sums, z) in sums.iter().zip(z.chunks_exact_mut(self.k)) {
            if let Some(z) = z.get_mut(column..column + C) {
                z.copy_from_slice(sums);
            }
        }
    }

    /// Removes the lanes in which a magnitude is too large or NaN.
    #[inline(always)]
    fn within(self, values: &[S::f32s], mut valid: S::m32s) -> S::m32s {
        let limit = self.simd.splat_f32s(MAGNITUDE_MAX);
        for value in values {
            let small = self.simd.less_than_or_equal_f32s(self.simd.abs_f32s(*value), limit);
            valid = self.simd.and_m32s(valid, small);
        }
        valid
    }

    /// Computes the lower triangle of `Z^T Z`, and `Z^T Y`.
    #[inline(always)]
    fn normal_equations(self, z: &[S::f32s], y: &[S::f32s], gram: &mut [S::f32s], rhs: &mut [S::f32s]) {
        let (k, c) = (self.k, self.c);
        for (i, (gram, rhs)) in gram.chunks_exact_mut(k).zip(rhs.chunks_exact_mut(c)).enumerate() {
            self.sums_of_products(gram.get_mut(..=i).unwrap_or_default(), z, i, k, z, k);
            self.sums_of_products(rhs, z, i, k, y, c);
        }
    }

    /// Computes, for each of the first columns of `right`, the sum over all rows of its products with column `column` of `left`:
    /// four columns at a time, whose sums stay in registers.
    #[inline(always)]
    fn sums_of_products(
        self,
        sums: &mut [S::f32s],
        left: &[S::f32s],
        column: usize,
        left_columns: usize,
        right: &[S::f32s],
        right_columns: usize,
    ) {
        let (fours, others) = sums.as_chunks_mut::<4>();
        let mut first = 0;
        for sums in fours {
            *sums = self.tile_of_products(left, column, left_columns, right, first, right_columns);
            first += 4;
        }
        for sum in others {
            [*sum] = self.tile_of_products(left, column, left_columns, right, first, right_columns);
            first += 1;
        }
    }

    /// Sums over all rows of the products of column `column` of `left` with the columns `first..first + N` of `right`.
    #[inline(always)]
    fn tile_of_products<const N: usize>(
        self,
        left: &[S::f32s],
        column: usize,
        left_columns: usize,
        right: &[S::f32s],
        first: usize,
        right_columns: usize,
    ) -> [S::f32s; N] {
        let mut sums = [self.zero(); N];
        for (left, right) in left.chunks_exact(left_columns).zip(right.chunks_exact(right_columns)) {
            let right = right.get(first..).and_then(<[S::f32s]>::first_chunk::<N>);
            let (Some(left), Some(right)) = (left.get(column), right) else { break };
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = self.add_product(*sum, *left, *right);
            }
        }
        sums
    }

    /// Computes the dot product of two vectors in ascending order.
    #[inline(always)]
    fn dot<'a>(
        self,
        a: impl IntoIterator<Item = &'a S::f32s>,
        b: impl IntoIterator<Item = &'a S::f32s>,
    ) -> S::f32s {
        a.into_iter().zip(b).fold(self.zero(), |sum, (a, b)| self.add_product(sum, *a, *b))
    }

    /// Solves the normal equations like [`solve_normal`](crate::kernel::least_squares::solve_normal). Returns the lanes
    /// within the limits and with a finite head.
    #[inline(always)]
    fn solve(
        self,
        gram: &mut [S::f32s],
        rhs: &mut [S::f32s],
        scratch: &mut [S::f32s],
        limits: crate::kernel::least_squares::Limits,
        mut valid: S::m32s,
    ) -> S::m32s {
        let (simd, k, c) = (self.simd, self.k, self.c);
        let largest = simd.splat_f32s(f32::MAX);
        for j in 0..k {
            let (above, row) = gram.split_at_mut(j * k);
            for i in 0..j {
                let l = &above[i * k..i * k + i + 1];
                let (done, rest) = row.split_at_mut(i);
                rest[0] = simd.div_f32s(simd.sub_f32s(rest[0], self.dot(&l[..i], &*done)), l[i]);
            }
            let (done, rest) = row.split_at_mut(j);
            let pivot = rest[0];
            let square = simd.sub_f32s(pivot, self.dot(&*done, &*done));
            let conditions = [
                simd.less_than_or_equal_f32s(simd.splat_f32s(SMALLEST_SQUARE), square),
                simd.less_than_or_equal_f32s(
                    simd.mul_f32s(simd.splat_f32s(limits.pivot_ratio), pivot),
                    square,
                ),
                simd.less_than_or_equal_f32s(simd.abs_f32s(pivot), largest),
            ];
            valid = conditions.into_iter().fold(valid, |valid, condition| simd.and_m32s(valid, condition));
            rest[0] = simd.sqrt_f32s(square);
        }
        let amplification = self.amplification(gram, scratch);
        let limit = simd.splat_f32s(limits.amplification);
        valid = simd.and_m32s(valid, simd.less_than_or_equal_f32s(amplification, limit));
        for j in 0..k {
            let l = &gram[j * k..j * k + j + 1];
            let (above, row) = rhs.split_at_mut(j * c);
            for (output, value) in row[..c].iter_mut().enumerate() {
                let known = self.dot(&l[..j], above.iter().skip(output).step_by(c));
                *value = simd.div_f32s(simd.sub_f32s(*value, known), l[j]);
            }
        }
        for j in (0..k).rev() {
            let l = &gram[j * k..j * k + j + 1];
            let (above, row) = rhs.split_at_mut(j * c);
            for (output, value) in row[..c].iter_mut().enumerate() {
                *value = simd.div_f32s(*value, l[j]);
                for (target, l) in above.iter_mut().skip(output).step_by(c).zip(l) {
                    *target = simd.sub_f32s(*target, simd.mul_f32s(*value, *l));
                }
            }
        }
        for value in rhs {
            valid = simd.and_m32s(valid, simd.less_than_or_equal_f32s(simd.abs_f32s(*value), largest));
        }
        valid
    }

    /// Amplification of errors by the lower factor `l`.
    #[inline(always)]
    fn amplification(self, l: &[S::f32s], scratch: &mut [S::f32s]) -> S::f32s {
        let (simd, k) = (self.simd, self.k);
        let mut sum = self.zero();
        for i in 0..k {
            let column = &l[i * k..i * k + i + 1];
            let mut right = simd.splat_f32s(1.0);
            for j in i..k {
                let (done, target) = scratch.split_at_mut(j);
                let row = &l[j * k + i..j * k + j + 1];
                target[0] = simd.div_f32s(simd.sub_f32s(right, self.dot(&done[i..], row)), row[j - i]);
                right = self.zero();
            }
            let squares = self.dot(&scratch[i..], &scratch[i..]);
            sum = self.add_product(sum, self.dot(column, column), squares);
        }
        sum
    }

    /// Computes `y <- W^T z - y` for all samples.
    #[inline(always)]
    fn subtract_targets(self, z: &[S::f32s], w: &[S::f32s], y: &mut [S::f32s]) {
        for (z, y) in z.chunks_exact(self.k).zip(y.chunks_exact_mut(self.c)) {
            for (output, y) in y.iter_mut().enumerate() {
                let prediction = self.dot(z, w.iter().skip(output).step_by(self.c));
                *y = self.simd.sub_f32s(prediction, *y);
            }
        }
    }

    /// Computes `S = X^T R`.
    #[inline(always)]
    fn residuals(self, x: &[S::f32s], r: &[S::f32s], d: usize, s: &mut [S::f32s]) {
        let c = self.c;
        for output in 0..c {
            let mut feature = 0;
            while feature + 8 <= d {
                self.residual_tile::<8>(x, r, d, (feature, output), s);
                feature += 8;
            }
            while feature + 4 <= d {
                self.residual_tile::<4>(x, r, d, (feature, output), s);
                feature += 4;
            }
            while feature < d {
                self.residual_tile::<1>(x, r, d, (feature, output), s);
                feature += 1;
            }
        }
    }

    /// Computes `N` rows of `S` for one output, from a feature on.
    #[inline(always)]
    fn residual_tile<const N: usize>(
        self,
        x: &[S::f32s],
        r: &[S::f32s],
        d: usize,
        (feature, output): (usize, usize),
        s: &mut [S::f32s],
    ) {
        let sums: [S::f32s; N] = self.tile_of_products(r, output, self.c, x, feature, d);
        for (row, sum) in s.chunks_exact_mut(self.c).skip(feature).zip(sums) {
            if let Some(target) = row.get_mut(output) {
                *target = sum;
            }
        }
    }
}
