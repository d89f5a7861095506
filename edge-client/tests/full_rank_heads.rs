//! Tests of the limits of the normal equations, and of models that solve nothing else, as builds without the feature
//! `minimum-norm` do: they decline what does not determine a head.
#![cfg(feature = "i16")]

use fedspan_client::kernel::least_squares::Limits;
use fedspan_client::memory::FixedWorkspace;
use fedspan_client::{Linear, Memory, Recording, Task, Workspace};
use fedspan_protocol::message::{DeclineReason, HeadSolve};
use proptest::prelude::*;

use crate::common::head::fit_by_normal_equations;
use crate::common::{M, Random, flat, matrix};

const D: usize = 6;
const K: usize = 4;
const EXACT: HeadSolve = HeadSolve::LeastSquares { ridge: 0.0 };

/// Returns the first `K` columns of the identity, with which the projection of a sample is its first `K` values.
fn basis() -> Vec<f32> {
    flat(&M::identity(D, K))
}

/// Fits a head on samples whose first `K` values are the rows of `z`.
fn fit<T: Memory>(
    mut model: Linear<T>,
    z: &[f32],
    y: &[f32],
    head: HeadSolve,
) -> Result<Vec<f32>, DeclineReason> {
    let x: Vec<f32> = z.chunks(K).flat_map(|row| row.iter().copied().chain([0.0; D - K])).collect();
    model.set_representation(&basis()).unwrap();
    model.fit_head(head, &mut Recording::regression(&x, y, D, 1))?;
    Ok(model.head().to_vec())
}

fn full() -> Linear<Workspace<D, K>> {
    Linear::new(Workspace::new())
}

fn lean() -> Linear<Workspace<D, K>> {
    full().with_normal_equations_only()
}

/// Returns `m` rows whose last column is the first one plus `distance` times another.
fn dependent(m: usize, distance: f32, seed: u64) -> Vec<f32> {
    let mut z = Random(seed).normals(m * K);
    for row in z.chunks_mut(K) {
        row[K - 1] = row[0] + distance * row[K - 1];
    }
    z
}

#[test]
fn undetermined_heads_are_declined_and_the_old_head_stays() {
    let targets = Random(2).normals(20);
    let cases = [
        ("fewer samples than columns", Random(1).normals((K - 1) * K), EXACT),
        ("a column is another one", dependent(20, 0.0, 3), EXACT),
        ("a column is nearly another one", dependent(20, 1e-3, 3), EXACT),
        (
            "a column of zeros",
            dependent(20, 1.0, 4).chunks(K).flat_map(|row| [row[0], row[1], row[2], 0.0]).collect(),
            EXACT,
        ),
        ("a ridge that is too small", dependent(20, 0.0, 3), HeadSolve::LeastSquares { ridge: 1e-7 }),
    ];
    for (name, z, head) in cases {
        let y = &targets[..z.len() / K];
        assert!(fit(full(), &z, y, head).is_ok(), "{name}");
        assert_eq!(fit(lean(), &z, y, head), Err(DeclineReason::Undetermined), "{name}");
        let fixed = || Linear::new(FixedWorkspace::<D, K>::new());
        assert!(fit(fixed(), &z, y, head).is_ok(), "{name}");
        assert_eq!(
            fit(fixed().with_normal_equations_only(), &z, y, head),
            Err(DeclineReason::Undetermined),
            "{name}, in fixed point"
        );
    }
    // The head of an earlier fit stays.
    let mut model = lean();
    model.set_representation(&basis()).unwrap();
    let good = Random(5).normals(20 * D);
    model.fit_head(EXACT, &mut Recording::regression(&good, &targets, D, 1)).unwrap();
    let head = model.head().to_vec();
    let few = &good[..D];
    let declined = model.fit_head(EXACT, &mut Recording::regression(few, &targets[..1], D, 1));
    assert_eq!((declined, model.head()), (Err(DeclineReason::Undetermined), &head[..]));
    assert_eq!(model.head_fits().last.rank, K as u16, "a declined fit is no fit");
    // A ridge that is large enough determines every head.
    let ridge = HeadSolve::LeastSquares { ridge: 0.1 };
    assert!(fit(lean(), few, &targets[..few.len() / K], ridge).is_ok());
}

/// Where the other solver is not needed, both models compute the same bits.
#[test]
fn heads_of_well_conditioned_samples_have_the_same_bits() {
    for seed in 0..50 {
        let (z, y) = (Random(seed).normals(40 * K), Random(seed + 100).normals(40));
        assert_eq!(fit(full(), &z, &y, EXACT), fit(lean(), &z, &y, EXACT));
    }
}

/// Samples of a fit: dependent columns, singular values that fall, or a triangular factor whose pivots hide the condition.
#[derive(Clone, Copy, Debug)]
enum Samples {
    NearlyDependent,
    FallingSingularValues,
    Kahan,
}

/// Returns an m x k matrix of these samples, with columns `severity` times closer to dependence than independent ones.
fn samples(kind: Samples, m: usize, k: usize, severity: f64, random: &mut Random) -> M {
    match kind {
        Samples::NearlyDependent => {
            let mut z = random.gaussian(m, k);
            for column in 1..k {
                let mixed = z.column(0) + z.column(column) / severity;
                z.set_column(column, &mixed);
            }
            z
        }
        Samples::FallingSingularValues => {
            let values: Vec<f64> = (0..k).map(|i| severity.powf(-(i as f64) / (k - 1) as f64)).collect();
            random.with_singular_values(m, &values)
        }
        // Kahan 1966: with angles near pi/2 the pivots are much larger than the least singular value.
        Samples::Kahan => {
            let (sine, cosine) = (1.0 - 0.5 / severity, (1.0f64 - (1.0 - 0.5 / severity).powi(2)).sqrt());
            let factor = M::from_fn(k, k, |i, j| {
                let size = sine.powi(i as i32);
                if i == j {
                    size
                } else if i < j {
                    -size * cosine
                } else {
                    0.0
                }
            });
            random.orthonormal(m, k) * factor
        }
    }
}

/// Limits, with the largest error of predictions for the training samples, relative to the norm of the targets.
const BOUNDS: [(Limits, f64); 2] = [(Limits::WITH_TRIANGULAR, 1e-4), (Limits::ALONE, 1e-3)];

proptest! {
    /// Heads within the limits predict the training targets like the exact head, for columns of any scale, up to a width of 24.
    #[test]
    fn heads_within_the_limits_predict_like_the_exact_one(
        seed in 0u64..1_000_000,
        kind in prop::sample::select(vec![Samples::NearlyDependent, Samples::FallingSingularValues, Samples::Kahan]),
        exponent in 0.0f64..3.0,
        k in 2usize..=24,
        more in 0usize..60,
        powers in prop::collection::vec(-20i32..20, 24),
    ) {
        let (m, random) = (k + more, &mut Random(seed));
        // Scales are powers of two, so that they do not round.
        let z = samples(kind, m, k, 10f64.powf(exponent), random);
        let z32: Vec<f32> = (0..m * k).map(|i| z[(i / k, i % k)] as f32 * 2f32.powi(powers[i % k])).collect();
        let y = random.normals(m);
        let columns = M::from_fn(m, k, |row, column| f64::from(z32[row * k + column]) / 2f64.powi(powers[column]));
        let targets = matrix(m, 1, &y);
        let q = columns.clone().qr().q();
        let exact = &q * (q.transpose() * &targets);
        for (limits, largest) in BOUNDS {
            let Some(head) = fit_by_normal_equations(&z32, &y, k, 1, limits) else { continue };
            let scaled_head =
                M::from_fn(k, 1, |column, _| f64::from(head[column]) * 2f64.powi(powers[column]));
            let error = (&columns * scaled_head - &exact).norm() / targets.norm();
            prop_assert!(error < largest, "{limits:?}, {kind:?}, k = {k}, m = {m}: error {error:e}");
        }
    }
}
