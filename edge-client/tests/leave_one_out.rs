//! Tests of the ridge with the smallest leave-one-out error, against fits in f64 that leave out each sample
//! in turn.
#![cfg(feature = "ridge-choice")]

use crate::common::head::*;
use crate::common::*;
use fedspan_client::kernel::leave_one_out::RIDGES;
use fedspan_client::source::SampleSource;
use fedspan_client::task::HeadFit;
use fedspan_client::{Linear, Task};
use fedspan_protocol::message::{DeclineReason, HeadSolve, Task as Wire, Upload};

/// Fallback ridge of the device.
const FALLBACK_RIDGE: f32 = 0.3;
const LEAVE_ONE_OUT: HeadSolve = HeadSolve::LeaveOneOut { fallback_ridge: FALLBACK_RIDGE };

/// Solves `min |Z W - Y|^2 + m ridge |W|^2` in f64. If `constant`, the last column is constant and has no
/// ridge.
fn ridge_head(z: &M, y: &M, m_ridge: f64, constant: bool) -> M {
    let (m, k) = z.shape();
    let weight = |i: usize| if constant && i + 1 == k { 0.0 } else { m_ridge.sqrt() };
    let z = M::from_fn(m + k, k, |i, j| match i.checked_sub(m) {
        None => z[(i, j)],
        Some(row) if row == j => weight(j),
        Some(_) => 0.0,
    });
    let svd = Svd::new(&z);
    svd.minimum_norm(&y.clone().resize(m + k, y.ncols(), 0.0), 1e-9 * svd.largest())
}

/// Returns the squared leave-one-out error, by fitting a head without each sample.
fn leave_one_out_error(z: &M, y: &M, m_ridge: f64, constant: bool) -> f64 {
    (0..z.nrows())
        .map(|i| {
            let w = ridge_head(&z.clone().remove_row(i), &y.clone().remove_row(i), m_ridge, constant);
            (z.row(i) * w - y.row(i)).norm_squared()
        })
        .sum()
}

/// Returns `m` times a ridge of 1 in relative units: the mean over the columns of their squared norms.
fn unit_ridge(z: &M, constant: bool) -> f64 {
    let columns = z.ncols() - usize::from(constant);
    let sum: f64 = (0..columns)
        .map(|j| z.column(j).add_scalar(if constant { -z.column(j).mean() } else { 0.0 }).norm_squared())
        .sum();
    sum / columns as f64
}

/// Fits a head. Returns the head and the report of the fit.
fn fit_head(samples: &Sliced, head: HeadSolve) -> (Vec<f32>, HeadFit) {
    let (k, c) = (samples.features, samples.outputs);
    let mut model = Linear::new(Heap::new(k, k, c));
    model.set_representation(&identity(k)).unwrap();
    model.fit_head(head, &mut samples.clone()).unwrap();
    (head_of(&model), model.head_fits().last)
}

/// Checks that the chosen ridge has the smallest leave-one-out error, and that the head is the exact one for
/// this ridge.
fn check_chosen_ridge(samples: &Sliced, constant: bool, worst: &mut Worst) {
    let (z, y) = (samples.x64(), samples.y64());
    let (m, k) = z.shape();
    let unit = unit_ridge(&z, constant);
    let errors = RIDGES.map(|ridge| leave_one_out_error(&z, &y, f64::from(ridge) * unit, constant));
    let (w, last) = fit_head(samples, LEAVE_ONE_OUT);
    let m_ridge = f64::from(last.ridge) * m as f64;
    let chosen = RIDGES.iter().position(|&ridge| (f64::from(ridge) * unit - m_ridge).abs() <= 1e-3 * m_ridge);
    let chosen = chosen.unwrap_or_else(|| panic!("{} is none of the grid of {unit}", last.ridge));
    // With no more samples than columns, a ridge that lets a sample explain itself alone is rejected in f32,
    // so only the chosen one is compared.
    let smallest_error = errors.iter().enumerate().filter(|(i, _)| m > k || *i == chosen).map(|(_, e)| *e);
    let smallest_error = smallest_error.fold(f64::INFINITY, f64::min);
    assert!(errors[chosen] <= 1.001 * smallest_error, "k={k} m={m}: {chosen} of {errors:?}");
    let exact = ridge_head(&z, &y, m_ridge, constant);
    let difference = (&z * (matrix(k, y.ncols(), &w) - exact)).norm() / y.norm();
    assert!(difference <= 1e-4, "{difference:e} at k={k} m={m}");
    worst.record_largest("left out, predictions, relative difference", difference);
    worst.record_largest("left out, error over the least", errors[chosen] / smallest_error - 1.0);
}

#[test]
fn ridge_has_least_error_in_regression() {
    let mut random = Random(71);
    let mut worst = Worst::default();
    for case in 0..60 {
        let k = 1 + case % 8;
        let m = k + 2 + random.below(30);
        let c = 1 + random.below(3);
        let x = random.gaussian(m, k);
        let noise = [0.1, 1.0, 4.0][case % 3];
        let y = &x * random.gaussian(k, c) + random.gaussian(m, c) * noise;
        check_chosen_ridge(&Sliced::regression(flat(&x), flat(&y), k, c), false, &mut worst);
    }
}

#[test]
fn constant_column_has_no_ridge() {
    let mut random = Random(72);
    let mut worst = Worst::default();
    for case in 0..40 {
        let k = 2 + case % 6;
        let m = k + 3 + random.below(30);
        let mut x = random.gaussian(m, k);
        x.column_mut(k - 1).fill(1.0);
        let y = &x * random.gaussian(k, 1) * 0.5 + random.gaussian(m, 1);
        for j in 0..k - 1 {
            x.column_mut(j).add_scalar_mut(10.0 * random.normal());
        }
        check_chosen_ridge(&Sliced::regression(flat(&x), flat(&y), k, 1), true, &mut worst);
    }
}

#[test]
fn ridge_has_least_error_for_classes() {
    let mut random = Random(73);
    let mut worst = Worst::default();
    for case in 0..40 {
        let (k, c) = (1 + case % 8, 3);
        let m = (k + 2).max(6) + random.below(30);
        let classes: Vec<u8> = (0..m).map(|i| (i % 3) as u8).collect();
        let means = random.gaussian(3, k);
        let x = M::from_fn(m, k, |i, j| means[(i % 3, j)] + [0.5, 2.0][case % 2] * random.normal());
        check_chosen_ridge(&Sliced::classification(flat(&x), classes, k, c), false, &mut worst);
    }
}

/// If leaving out a sample empties a class or cannot be computed, the fallback ridge is used. The bits equal
/// those of least squares with this ridge.
#[test]
fn fallback_ridge_is_used_if_nothing_can_be_left_out() {
    let mut random = Random(74);
    let (k, c) = (4, 3);
    let fallback = HeadSolve::LeastSquares { ridge: FALLBACK_RIDGE };
    let x = random.normals(k * 7);
    let single_class_member = Sliced::classification(x.clone(), vec![0, 1, 0, 2, 1, 1, 0], k, c);
    let one_sample = Sliced::regression(x[..k].to_vec(), random.normals(c), k, c);
    let zeros = Sliced::regression(vec![0.0; 7 * k], random.normals(7 * c), k, c);
    for samples in [&single_class_member, &one_sample, &zeros] {
        let [leave_one_out, least_squares] = [LEAVE_ONE_OUT, fallback].map(|head| fit_head(samples, head));
        assert_eq!(bits(&leave_one_out.0), bits(&least_squares.0));
        assert_eq!((leave_one_out.1, leave_one_out.1.ridge), (least_squares.1, FALLBACK_RIDGE));
    }
    // There are two samples of every class except the third class, which has no samples.
    let two_per_class = Sliced::classification(x.clone(), vec![0, 1, 0, 0, 1, 1, 0], k, c);
    assert!(fit_head(&two_per_class, LEAVE_ONE_OUT).1.ridge != FALLBACK_RIDGE);
    // Streamed samples allow no second pass.
    let samples = Sliced::regression(x.clone(), random.normals(7 * c), k, c);
    let [leave_one_out, least_squares] = [LEAVE_ONE_OUT, fallback].map(|head| {
        let mut model = Linear::new(Heap::streaming(k, k, c));
        fed_rep_stream(&mut model, Wire::FitHead { head }, &identity(k), &samples).unwrap();
        (bits(&head_of(&model)), model.head_fits())
    });
    assert_eq!(leave_one_out, least_squares);
    // The memory has no room for a block of rows.
    let wide = Sliced::regression(random.normals(50 * 40), random.normals(50), 40, 1);
    let [leave_one_out, least_squares] = [LEAVE_ONE_OUT, fallback].map(|head| fit_head(&wide, head));
    assert_eq!((bits(&leave_one_out.0), leave_one_out.1), (bits(&least_squares.0), least_squares.1));
    // The fixed-point model has no leave-one-out.
    #[cfg(feature = "i16")]
    {
        let [leave_one_out, least_squares] = [LEAVE_ONE_OUT, fallback].map(|head| {
            let mut model = Linear::new(fedspan_client::memory::FixedWorkspace::<4, 4, 3>::new());
            model.set_representation(&identity(k)).unwrap();
            model.fit_head(head, &mut samples.clone()).unwrap();
            (bits(model.head()), model.head_fits())
        });
        assert_eq!(leave_one_out, least_squares);
    }
}

/// A power of two as unit of all features, and the batches of samples, change no bit.
#[test]
fn common_units_and_batches_change_nothing() {
    let mut random = Random(75);
    for case in 0..40 {
        let k = 1 + case % 8;
        let m = k + 2 + random.below(30);
        let (x, y) = (random.normals(m * k), random.normals(m));
        let samples = Sliced::regression(x.clone(), y.clone(), k, 1);
        let (w, last) = fit_head(&samples, LEAVE_ONE_OUT);
        let (batched_head, batched_fit) = fit_head(&samples.clone().at_once(1 + case % 5), LEAVE_ONE_OUT);
        assert_eq!((bits(&w), last), (bits(&batched_head), batched_fit));
        let factor = 2f32.powi(case as i32 % 41 - 20);
        let scaled_x = x.iter().map(|x| x * factor).collect();
        let (scaled_head, scaled_fit) = fit_head(&Sliced::regression(scaled_x, y, k, 1), LEAVE_ONE_OUT);
        let expected: Vec<f32> = w.iter().map(|w| w / factor).collect();
        assert_eq!((bits(&scaled_head), scaled_fit.ridge), (bits(&expected), last.ridge * factor * factor));
    }
}

#[test]
fn unusable_samples_are_ignored() {
    let mut random = Random(76);
    let (k, c) = (3, 2);
    let mut x = random.normals(12 * k);
    x[4] = f32::NAN;
    let mut classes = vec![0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 7];
    let samples = Sliced::classification(x, classes.clone(), k, c);
    let clean = samples.without(&[1, 11]);
    assert_eq!(bits(&fit_head(&samples, LEAVE_ONE_OUT).0), bits(&fit_head(&clean, LEAVE_ONE_OUT).0));
    // Only one sample of this set is given, and it is unusable.
    classes[5] = 1;
    let unusable = Sliced::classification(vec![f32::NAN; k], vec![0], k, c);
    let mut model = Linear::new(Heap::new(k, k, c));
    model.set_representation(&identity(k)).unwrap();
    assert_eq!(model.fit_head(LEAVE_ONE_OUT, &mut unusable.clone()), Err(DeclineReason::NoSamples));
}

/// A failed source keeps the previous head. Rounds with a leave-one-out head are checked as with any head.
#[test]
fn rounds_accept_leave_one_out_heads() {
    let mut random = Random(77);
    let (d, k, m) = (6, 2, 20);
    let samples = Sliced::regression(random.normals(m * d), random.normals(m), d, 1);
    let b = flat(&random.orthonormal(d, k));
    let mut model = Linear::new(Heap::new(d, k, 1));
    model.set_representation(&b).unwrap();
    model.fit_head(EXACT, &mut samples.clone()).unwrap();
    let before = head_of(&model);
    for pass in 1..=2 {
        let mut failing = Sliced { failing_pass: Some(pass), ..samples.clone() };
        assert_eq!(model.fit_head(LEAVE_ONE_OUT, &mut failing), Err(DeclineReason::Device));
        assert_eq!(bits(&head_of(&model)), bits(&before));
    }
    let mut source = samples.clone();
    assert!(source.rewind(Default::default()).is_ok());
    let task = |fallback_ridge| fed_rep(HeadSolve::LeaveOneOut { fallback_ridge }, Upload::Gradient, 0.0);
    fed_rep_round(&mut model, task(0.1), &b, &mut samples.clone()).unwrap();
    assert_eq!(usize::from(model.head_fits().last.rank), k);
    for fallback_ridge in [-1.0, f32::NAN, f32::INFINITY] {
        let result = fed_rep_round(&mut model, task(fallback_ridge), &b, &mut samples.clone());
        assert_eq!(result.map(|_| ()), Err(DeclineReason::Parameter));
    }
}
