//! Test helpers for fixed point: memory of any shape, and the error bounds stated in `kernel::fixed`.

use fedspan_client::kernel::fixed::Scale;
use fedspan_client::memory::{Fixed, Memory, Parts, PartsRef};
use fedspan_protocol::message::Numeric;

use super::{Heap, M};

/// [`Heap`] with additional integer buffers.
#[derive(Clone, Debug)]
pub struct HeapFixed {
    heap: Heap,
    scale: Scale,
    buffers: [Vec<i16>; 5],
}

impl HeapFixed {
    /// Creates memory for `d` features, `k` columns and `c` outputs.
    pub fn new(d: usize, k: usize, c: usize) -> Self {
        let buffers = [k * d, d, k, c, c * k].map(|n| vec![0; n]);
        Self { heap: Heap::new(d, k, c), scale: Scale::LEAST, buffers }
    }
}

impl Memory for HeapFixed {
    fn parts(&mut self) -> Parts<'_> {
        self.heap.parts()
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        self.heap.parts_ref()
    }

    fn numeric(&self) -> Numeric {
        Numeric::I16
    }

    fn fixed(&mut self) -> Option<(Parts<'_>, Fixed<'_>)> {
        let [representation, x, z, y, head] = &mut self.buffers;
        Some((self.heap.parts(), Fixed { representation, scale: &mut self.scale, x, z, y, head }))
    }
}

/// Returns the largest magnitude of a block, `X` in `kernel::fixed`, but at least 2^-110.
pub fn largest_magnitude(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(2f64.powi(-110), |largest, value| largest.max(value.abs()))
}

/// Returns `u(X)`, an upper bound of the distance between neighbouring integers of a block.
pub fn unit_bound(size: f64) -> f64 {
    2f64.powi(-14) * (1.0 + 2f64.powi(-15)) * size
}

/// Projections and residuals of one sample with their error bounds. The statement in `kernel::fixed` uses
/// computed values; here they are replaced by exact values plus their bounds.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Exact projections.
    pub z: Vec<f64>,
    /// Error bounds of the projections, `zeta`.
    pub zeta: Vec<f64>,
    /// Exact residuals.
    pub r: Vec<f64>,
    /// Error bounds of the residuals, `rho`.
    pub rho: Vec<f64>,
}

/// Twice the unit roundoff of f32.
const ROUNDING: f64 = f32::EPSILON as f64;

/// Computes the error bounds of one sample. `b` is d x k, `w` is k x c.
pub fn sample_bounds(x: &[f64], y: &[f64], b: &M, w: &M) -> Bounds {
    let (d, k, c) = (b.nrows(), b.ncols(), w.ncols());
    let (ux, ub) =
        (unit_bound(largest_magnitude(x.iter().copied())), unit_bound(largest_magnitude(b.iter().copied())));
    let sum_x: f64 = x.iter().map(|v| v.abs()).sum();
    let z: Vec<f64> = (0..k).map(|j| (0..d).map(|i| x[i] * b[(i, j)]).sum()).collect();
    let zeta: Vec<f64> = (0..k)
        .map(|j| {
            let sum_b: f64 = b.column(j).iter().map(|v| v.abs()).sum();
            let integers = ux / 2.0 * sum_b + ub / 2.0 * sum_x + 2.0 * d as f64 * ux * ub;
            // The computed projection differs from the exact one by at most the bound; twice the rounding
            // covers both.
            integers + 2.0 * ROUNDING * (z[j].abs() + integers)
        })
        .collect();
    let uz = unit_bound(largest_magnitude(z.iter().zip(&zeta).map(|(z, zeta)| z.abs() + zeta)));
    let uw = unit_bound(largest_magnitude(w.iter().copied()));
    let sum_z: f64 = z.iter().zip(&zeta).map(|(z, zeta)| z.abs() + zeta).sum();
    let r: Vec<f64> = (0..c).map(|c| (0..k).map(|j| z[j] * w[(j, c)]).sum::<f64>() - y[c]).collect();
    let largest_target = y.iter().fold(2f64.powi(-95), |largest_target, y| largest_target.max(y.abs()));
    let raw: Vec<f64> = (0..c)
        .map(|c| {
            let through: f64 = (0..k).map(|j| w[(j, c)].abs() * (zeta[j] + uz / 2.0)).sum();
            through + uw / 2.0 * sum_z + 3.0 * k as f64 * uz * uw + 2f64.powi(-28) * largest_target
        })
        .collect();
    let ur = unit_bound(largest_magnitude(r.iter().zip(&raw).map(|(r, rho)| r.abs() + rho)));
    Bounds { z, zeta, r, rho: raw.iter().map(|rho| rho + ur / 2.0).collect() }
}

/// Computes the exact `S = X^T (X B W - Y)` and the error bound of each element, both d x c.
pub fn gradient_bounds(x: &M, y: &M, b: &M, w: &M) -> (M, M) {
    let (d, c, m) = (b.nrows(), w.ncols(), x.nrows());
    let (mut exact, mut bound) = (M::zeros(d, c), M::zeros(d, c));
    let mut products = 0.0;
    for s in 0..m {
        let row: Vec<f64> = x.row(s).iter().copied().collect();
        let targets: Vec<f64> = y.row(s).iter().copied().collect();
        let sample_bounds = sample_bounds(&row, &targets, b, w);
        let (largest_feature, ux) =
            (largest_magnitude(row.iter().copied()), unit_bound(largest_magnitude(row.iter().copied())));
        let residuals = sample_bounds.r.iter().zip(&sample_bounds.rho);
        let largest = largest_magnitude(residuals.map(|(r, rho)| r.abs() + rho));
        products += largest_feature * largest;
        for i in 0..d {
            for j in 0..c {
                exact[(i, j)] += row[i] * sample_bounds.r[j];
                bound[(i, j)] += row[i].abs() * sample_bounds.rho[j]
                    + ux / 2.0 * (sample_bounds.r[j].abs() + sample_bounds.rho[j]);
            }
        }
    }
    let sums = (m as f64 + 2.0) * 2f64.powi(-28) * products;
    let rounded = |exact: f64, bound: f64| (bound + sums) * (1.0 + ROUNDING) + ROUNDING * exact.abs();
    let bound = exact.zip_map(&bound, rounded);
    (exact, bound)
}
