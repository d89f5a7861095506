//! Tests of FedRep with noise: the upload is exactly the integers of the clipped gradient plus the noise of
//! their coordinates. Further tests check radii, supported rounds, reports and counts, and that the bits do
//! not depend on batches or chunks.
#![cfg(feature = "privacy")]

use crate::common::clipped::*;
use crate::common::private::*;
use crate::common::*;
use fedspan_client::memory::StreamingWorkspace;
use fedspan_client::privacy::{Clip, ClipCounts, ClipError, Clipped, PrivacySettingsError};
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Mechanism, NoPrivacy, NotReady, Task};
use fedspan_protocol::message::{
    CHOOSES_RIDGE, DeclineReason, FITS_BY_STEPS, HeadSolve, RoundId, Task as Wire, Upload,
};
use fedspan_protocol::tensor::{Encoding, Role};

const GRADIENT: Upload = Upload::Gradient;

fn exact_task() -> Wire {
    fed_rep(EXACT, GRADIENT, 0.25)
}

fn clip_at(radius: f32) -> Clip {
    Clip::new(radius).unwrap()
}

/// Returns samples whose gradient has about the length `size`.
fn regression(random: &mut Random, d: usize, c: usize, m: usize, size: f64) -> Sliced {
    let x = random.gaussian(m, d) * size.sqrt();
    let y = random.gaussian(m, c) * size.sqrt();
    Sliced::regression(flat(&x), flat(&y), d, c)
}

/// Replaces some values by extreme or non-finite floats.
fn spoil_samples(random: &mut Random, samples: &mut Sliced) {
    let extreme_values =
        [f32::NAN, f32::INFINITY, -3e38, 1e-40, 1e19, -1e12, 1e30, f32::from_bits(random.next() as u32)];
    for _ in 0..1 + random.below(3) {
        let index = random.below(samples.x.len());
        samples.x[index] = extreme_values[random.below(extreme_values.len())];
    }
    let Labels::Values(y) = &mut samples.labels else { panic!() };
    let index = random.below(y.len());
    y[index] = extreme_values[random.below(extreme_values.len())];
}

#[test]
fn radius_has_fifteen_bits_and_an_exponent() {
    let mut random = Random(1);
    for case in 0..20_000 {
        let radius = match case {
            0 => 2f32.powi(-40),
            1 => f32::from_bits(2f32.powi(40).to_bits() - 1),
            _ => (1.0 + random.unit() as f32) * 2f32.powi(random.below(79) as i32 - 40),
        };
        let clip = clip_at(radius);
        assert!((1 << 14..1 << 15).contains(&clip.units()));
        let rounded_radius = f64::from(clip.units()) * 2f64.powi(clip.exponent().into());
        assert!(
            rounded_radius <= f64::from(radius)
                && rounded_radius > f64::from(radius) * (1.0 - 2f64.powi(-14))
        );
        assert_eq!(f64::from(clip.unit()), 2f64.powi(clip.exponent().into()));
        assert_eq!(clip.unit() * clip.units_in_one(), 1.0);
        assert_eq!(clip.sensitivity(), 2 * u64::from(clip.units()));
    }
    let invalid_radii =
        [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, 1e-45, 2f32.powi(40), 2f32.powi(-40) * 0.999];
    for radius in invalid_radii {
        let ClipError { radius: refused_radius } = Clip::new(radius).unwrap_err();
        assert_eq!(refused_radius.to_bits(), radius.to_bits());
    }
}

/// The uploaded integers equal those of exact arithmetic on the same sums, for any samples, stored or
/// streamed, and their norm never exceeds the radius.
#[test]
fn upload_is_clipped_integers_plus_noise() {
    let mut random = Random(2);
    let mut worst = Worst::default();
    let mut totals = ClipCounts::default();
    for case in 0..4000 {
        let (k, c, m) = (1 + case % 5, 1 + case % 3, 1 + random.below(12));
        let d = k + random.below([1, 12, 40][case % 3]);
        let size = 10f64.powi(random.below(12) as i32 - 6);
        let mut samples = regression(&mut random, d, c, m, size);
        if case % 4 == 0 {
            spoil_samples(&mut random, &mut samples);
        }
        let b = flat(&random.orthonormal(d, k));
        let clip = clip_at((size * 2f64.powf(6.0 * random.unit() - 4.0)) as f32);
        let head = match case % 7 {
            0 => HeadSolve::Gradient { steps: 3, step_size: 0.1 / size as f32 },
            1 => HeadSolve::LeastSquares { ridge: 0.01 },
            _ => EXACT,
        };
        for streamed in [false, true] {
            let mut memory = Heap::streaming(d, k, c);
            let mut device = clipping_device(&mut memory, known_mechanism(case as u64), clip);
            let outcome =
                run_device(&mut device, fed_rep(head, GRADIENT, 0.1), &b, &mut samples.clone(), streamed);
            let outcome = outcome.unwrap();
            assert_eq!(outcome.usage, Usage { samples: m as u32, skipped: 0 });
            let (used, counts) = (device.usage(), device.mechanism().clipping().unwrap().counts());
            assert_eq!((used.samples + used.skipped) as usize, m);
            let expected = expected_clipped(&mut memory, used.samples, clip);
            let (expected, expected_counts) = match expected {
                // If the gradient steps diverge, there is no head and the gradient is withheld.
                Some((integers, is_clipped)) if counts.withheld == 0 => {
                    let (unclipped, clipped) = (u32::from(!is_clipped), u32::from(is_clipped));
                    (integers, ClipCounts { whole: unclipped, clipped, withheld: 0 })
                }
                _ => (vec![0; d * k], ClipCounts { withheld: 1, ..ClipCounts::default() }),
            };
            assert_eq!(outcome.integers, expected, "case {case} {streamed}");
            assert_eq!(counts, expected_counts);
            if case % 4 != 0 {
                assert_eq!(counts.withheld, 0, "case {case} {streamed}");
            }
            totals.whole += counts.whole;
            totals.clipped += counts.clipped;
            totals.withheld += counts.withheld;
            let share = (squared_norm(&outcome.integers) as f64).sqrt() / f64::from(clip.units());
            assert!(squared_norm(&outcome.integers) <= i128::from(clip.units()).pow(2));
            worst.record_largest("length over radius", share);
            if counts.clipped == 1 && case % 4 != 0 {
                assert!(share > 0.999, "{share}");
            }
        }
    }
    println!("{totals:?}");
    assert!(totals.whole > 500 && totals.clipped > 500 && totals.withheld > 20, "{totals:?}");
}

/// A gradient whose norm equals the radius is not clipped; a gradient whose squared norm in units is larger
/// by 1 is clipped.
#[test]
fn radius_bound_is_exact() {
    for radius in [1.0, 0.75, 1.999, 2f32.powi(-30), 2f32.powi(30)] {
        let clip = clip_at(radius);
        // The first sample makes the head 1. The second sample has residual 1 and determines the gradient.
        let integers_of = |units: [f32; 2]| {
            let [p, q] = units.map(|units| 2.0 * units * clip.unit());
            let samples = Sliced::regression(vec![1.0, 0.0, 0.0, 0.0, p, q], vec![1.0, -1.0], 3, 1);
            run_new_device(&samples, clip, exact_task(), &[1.0, 0.0, 0.0], false).unwrap().integers
        };
        let units = clip.units();
        for sign in [1.0, -1.0] {
            let largest = sign * f32::from(units);
            assert_eq!(integers_of([largest, 0.0]), [0, largest as i128, 0]);
            assert_eq!(integers_of([largest, 0.49]), [0, largest as i128, 0]);
            let clipped = integers_of([largest, 1.0]);
            assert!(squared_norm(&clipped) <= i128::from(units).pow(2), "{clipped:?}");
            assert_eq!(clipped[2], 1);
        }
    }
}

/// Without its noise, the upload is the clipped gradient at the exact head, computed in f64.
#[test]
fn upload_without_its_noise_is_the_clipped_gradient() {
    let mut random = Random(3);
    let mut worst = Worst::default();
    for case in 0..300 {
        let (k, c) = (1 + case % 4, 1 + case % 2);
        let (d, m) = (k + 1 + random.below(20), 4 * k + random.below(40));
        let samples = regression(&mut random, d, c, m, 1.0);
        let b = random.orthonormal(d, k);
        let (x, y) = (samples.x64(), samples.y64());
        let z = &x * &b;
        let w = Svd::new(&z).minimum_norm(&y, 0.0);
        let gradient = x.transpose() * (z * &w - y) * w.transpose() / m as f64;
        let clip = clip_at((gradient.norm() * [0.3, 0.99, 1.01, 3.0][case % 4]) as f32);
        let radius = f64::from(clip.units());
        let unclipped = gradient * 2f64.powi(-i32::from(clip.exponent()));
        let clipped = &unclipped * (radius / unclipped.norm()).min(1.0);
        for streamed in [false, true] {
            let outcome = run_new_device(&samples, clip, exact_task(), &flat(&b), streamed).unwrap();
            let difference =
                matrix(d, k, &outcome.integers.iter().map(|&q| q as f32).collect::<Vec<_>>()) - &clipped;
            // The tolerance is half a unit for each element, plus f32 rounding and the margin of clipping.
            let bound = 0.5 * ((d * k) as f64).sqrt() + radius * 2e-4;
            worst.record_largest("share of the bound", difference.norm() / bound);
            assert!(difference.norm() <= bound, "case {case} {streamed}: {} over {bound}", difference.norm());
        }
    }
}

/// The mean of many releases is the clipped gradient, with the stated variance.
#[test]
fn noise_has_mean_zero_and_the_stated_variance() {
    let mut random = Random(4);
    let (d, k, draws) = (6, 2, 4000u32);
    let samples = regression(&mut random, d, 1, 30, 1.0);
    let b = flat(&random.orthonormal(d, k));
    let clip = clip_at(0.5);
    let expected = run_new_device(&samples, clip, exact_task(), &b, false).unwrap().integers;
    let variance = settings(LEAST, 1).multiplier().variance(clip.sensitivity()).unwrap();
    let sigma = (variance.ratio().0 as f64).sqrt();
    let (mut sums, mut squares) = (vec![0.0; d * k], 0.0);
    let mut memory = Heap::power(d, k, 1);
    for number in 0..draws {
        let mut device = clipping_device(&mut memory, known_mechanism(number.into()), clip);
        let sent = fed_rep_round(&mut device, exact_task(), &b, &mut samples.clone()).unwrap().1;
        for ((sum, sent), q) in sums.iter_mut().zip(sent).zip(&expected) {
            let error = f64::from(sent / clip.unit()) - *q as f64;
            *sum += error;
            squares += error * error;
        }
    }
    let draws = f64::from(draws);
    for sum in sums {
        assert!((sum / draws).abs() <= 4.5 * sigma / draws.sqrt(), "{:e} of {sigma:e}", sum / draws);
    }
    let count = draws * (d * k) as f64;
    let spread = squares / count / (sigma * sigma) - 1.0;
    assert!(spread.abs() <= 5.0 * (2.0 / count).sqrt(), "{spread:e}");
}

/// A retry sends the same bits, in pieces of any size and order. Other batches of the same samples, or
/// another type of memory, give the same bits too.
#[test]
fn chunks_batches_and_memory_change_no_bit() {
    let mut random = Random(5);
    for (d, k, c) in [(9, 4, 2), (23, 3, 1), (7, 7, 1), (40, 8, 3)] {
        let samples = regression(&mut random, d, c, 30, 1.0);
        let b = flat(&random.orthonormal(d, k));
        for upload in [GRADIENT, Upload::Representation] {
            let task = fed_rep(EXACT, upload, 0.5);
            for radius in [0.01, 100.0] {
                let mut memory = Heap::power(d, k, c);
                let mut device = clipping_device(&mut memory, known_mechanism(5), clip_at(radius));
                let sent = fed_rep_round(&mut device, task, &b, &mut samples.clone()).unwrap().1;
                for piece in [1, 2, 3, 5, 16, 31, 32, d * k] {
                    assert_eq!(bits(&collect_upload(&device, piece)), bits(&sent), "{piece}");
                }
                for _ in 0..20 {
                    let first = random.below(d * k);
                    let mut part = vec![f32::NAN; 1 + random.below(d * k - first)];
                    device.emit(0, first, &mut part);
                    assert_eq!(bits(&part), bits(&sent[first..first + part.len()]));
                }
                for at_once in [1, 3, 4, 7] {
                    let source = &mut samples.clone().at_once(at_once);
                    let repeated = fed_rep_round(&mut device, task, &b, source).unwrap().1;
                    assert_eq!(bits(&repeated), bits(&sent), "{at_once}");
                }
                if (d, k, c) == (9, 4, 2) {
                    let memory = StreamingWorkspace::<9, 4, 2>::new();
                    let mechanism = Clipped::new(known_mechanism(5), clip_at(radius));
                    let mut model = Linear::private(memory, mechanism).unwrap();
                    let repeated = fed_rep_round(&mut model, task, &b, &mut samples.clone()).unwrap().1;
                    assert_eq!(bits(&repeated), bits(&sent));
                }
            }
        }
    }
}

/// An uploaded representation is one step along the noisy gradient.
#[test]
fn representation_is_a_step_along_the_noisy_gradient() {
    let mut random = Random(6);
    let (d, k) = (12, 3);
    let samples = regression(&mut random, d, 1, 20, 1.0);
    let b = flat(&random.orthonormal(d, k));
    let sent = |upload| {
        let mut memory = Heap::power(d, k, 1);
        let mut device = clipping_device(&mut memory, known_mechanism(6), clip_at(0.5));
        fed_rep_round(&mut device, fed_rep(EXACT, upload, 0.3), &b, &mut samples.clone()).unwrap().1
    };
    let (gradient, representation) = (sent(GRADIENT), sent(Upload::Representation));
    for ((r, b), g) in representation.iter().zip(&b).zip(&gradient) {
        assert_eq!(r.to_bits(), (b - 0.3f32 * g).to_bits());
    }
}

/// The seed is drawn once per round, before any sample is read. If drawing it fails, no sample is read.
#[test]
fn seed_is_drawn_before_any_sample_is_read() {
    let mut random = Random(7);
    let (d, k) = (5, 2);
    let samples = regression(&mut random, d, 1, 8, 1.0);
    let b = flat(&random.orthonormal(d, k));
    let round = open(1, exact_task(), Role::Representation, Encoding::F32, d, k);
    for entropy_fails in [false, true] {
        let known = Known { entropy_fails, ..known_mechanism(7) };
        let log = known.log.clone();
        let mut source = Watched { samples: samples.clone(), log: log.clone() };
        let mut memory = Heap::streaming(d, k, 1);
        let mut device = clipping_device(&mut memory, known, clip_at(1.0));
        receive(&mut device, &round, &[&b]).unwrap();
        assert!(log.borrow().is_empty());
        // No update has been computed, so there is none to send.
        assert!(collect_upload(&device, 4).iter().all(|v| v.is_nan()));
        let result = device.run(round.id, &mut source);
        assert_eq!(log.borrow()[0], "seed");
        assert_eq!(log.borrow().iter().filter(|&&event| event == "seed").count(), 1);
        if entropy_fails {
            assert_eq!((result, log.borrow().len()), (Err(DeclineReason::Entropy), 1));
            assert!(collect_upload(&device, 4).iter().all(|v| v.is_nan()));
        }
        // With streamed samples, the seed is drawn at the beginning.
        receive(&mut device, &round, &[&b]).unwrap();
        log.borrow_mut().clear();
        let begun = device.begin();
        assert_eq!(*log.borrow(), ["seed"]);
        assert_eq!(begun, if entropy_fails { Err(DeclineReason::Entropy) } else { Ok(()) });
    }
}

/// Reports have the same form for any records.
#[test]
fn neighbours_send_equal_reports() {
    let mut random = Random(8);
    for case in 0..3000 {
        let (k, m) = (1 + case % 4, 1 + random.below(6));
        let d = k + 1 + random.below(6);
        let size = 10f64.powi(random.below(30) as i32 - 15);
        let mut samples = regression(&mut random, d, 1, m, size);
        for _ in 0..random.below(4) {
            spoil_samples(&mut random, &mut samples);
        }
        let b = flat(&random.orthonormal(d, k));
        let steps = HeadSolve::Gradient { steps: 40, step_size: [0.01, 1e9][case % 2] };
        for head in [EXACT, HeadSolve::LeastSquares { ridge: 1.0 }, steps] {
            for streamed in [false, true] {
                let outcome =
                    run_new_device(&samples, clip_at(1.0), fed_rep(head, GRADIENT, 0.1), &b, streamed)
                        .unwrap();
                assert_eq!(outcome.usage, Usage { samples: m as u32, skipped: 0 });
                assert!(squared_norm(&outcome.integers) <= i128::from(clip_at(1.0).units()).pow(2));
            }
        }
    }
}

/// Source that offers only its first `head` batches for the fit of the head.
struct Selected {
    samples: Sliced,
    head: usize,
    remaining: usize,
}

impl fedspan_client::SampleSource for Selected {
    fn rewind(&mut self, id: RoundId) -> Result<(), fedspan_client::SourceError> {
        self.remaining = usize::MAX;
        self.samples.rewind(id)
    }

    fn rewind_for_head(&mut self, id: RoundId) -> Result<bool, fedspan_client::SourceError> {
        self.remaining = self.head;
        self.samples.rewind(id).map(|()| true)
    }

    fn next(&mut self) -> Option<fedspan_client::Samples<'_>> {
        self.remaining = self.remaining.checked_sub(1)?;
        self.samples.next()
    }
}

/// The head is fitted on its selection of samples. All samples are reported, even if the selection determines
/// no head.
#[test]
fn head_uses_its_selection_of_samples() {
    let mut random = Random(9);
    let (d, k, m) = (6, 2, 12);
    let samples = regression(&mut random, d, 1, m, 1.0).at_once(1);
    let b = flat(&random.orthonormal(d, k));
    for unusable in [false, true] {
        let mut samples = samples.clone();
        if unusable {
            samples.x[..5 * d].fill(f32::NAN);
        }
        let mut memory = Heap::power(d, k, 1);
        let mut plain = Linear::new(Heap::new(d, k, 1));
        let source = || Selected { samples: samples.clone(), head: 5, remaining: 0 };
        let without_privacy = fed_rep_round(&mut plain, exact_task(), &b, &mut source());
        let mut device = clipping_device(&mut memory, known_mechanism(9), clip_at(100.0));
        let (usage, sent) = fed_rep_round(&mut device, exact_task(), &b, &mut source()).unwrap();
        assert_eq!(usage, Usage { samples: m as u32, skipped: 0 });
        let integers = without_noise(&sent, &known_mechanism(9), clip_at(100.0));
        match without_privacy {
            Ok(_) => assert_eq!(bits(device.head()), bits(plain.head())),
            Err(reason) => {
                assert_eq!((reason, unusable), (DeclineReason::NoSamples, true));
                assert!(integers.iter().all(|&q| q == 0));
                assert_eq!(device.usage(), Usage { samples: 0, skipped: m as u32 });
            }
        }
        assert_eq!(integers.iter().all(|&q| q == 0), unusable);
    }
}

/// If the samples determine no head, the device sends only noise and has no head for this representation.
#[test]
fn missing_head_is_not_revealed() {
    let mut random = Random(10);
    let (d, k, m) = (6, 2, 9);
    let usable_samples = regression(&mut random, d, 1, m, 1.0);
    let b = flat(&random.orthonormal(d, k));
    let non_finite = Sliced { x: vec![f32::NAN; m * d], ..usable_samples.clone() };
    for streamed in [false, true] {
        let mut memory = Heap::streaming(d, k, 1);
        let mut device = clipping_device(&mut memory, known_mechanism(10), clip_at(1.0));
        let other_basis = flat(&random.orthonormal(d, k));
        run_device(&mut device, exact_task(), &other_basis, &mut usable_samples.clone(), streamed).unwrap();
        let head = device.head().to_vec();
        assert_eq!(device.predict(&usable_samples.x[..d], &mut [0.0]), Ok(()));
        let outcome = run_device(&mut device, exact_task(), &b, &mut non_finite.clone(), streamed).unwrap();
        assert_eq!(outcome.usage, Usage { samples: m as u32, skipped: 0 });
        assert!(outcome.integers.iter().all(|&q| q == 0));
        assert_eq!(bits(device.head()), bits(&head));
        assert_eq!(device.predict(&usable_samples.x[..d], &mut [0.0]), Err(NotReady::NoHead));
        let counts = device.mechanism().clipping().unwrap().counts();
        assert_eq!((counts.whole + counts.clipped, counts.withheld), (1, 1));
    }
    // The samples also determine no head if the gradient steps diverge.
    let diverging = fed_rep(HeadSolve::Gradient { steps: 200, step_size: 1e9 }, GRADIENT, 0.1);
    for streamed in [false, true] {
        let mut memory = Heap::streaming(d, k, 1);
        let mut device = clipping_device(&mut memory, known_mechanism(10), clip_at(1.0));
        let outcome = run_device(&mut device, diverging, &b, &mut usable_samples.clone(), streamed).unwrap();
        assert_eq!(outcome.usage, Usage { samples: m as u32, skipped: 0 });
        assert!(outcome.integers.iter().all(|&q| q == 0));
        let withheld = ClipCounts { withheld: 1, ..ClipCounts::default() };
        assert_eq!(device.mechanism().clipping().unwrap().counts(), withheld);
    }
    // Nor does a device reveal that it has no solver for its samples, in a round and in the fit of the final head.
    let dependent = Sliced { x: vec![1.0; m * d], ..usable_samples.clone() };
    let mut memory = Heap::power(d, k, 1);
    let mut device =
        clipping_device(&mut memory, known_mechanism(10), clip_at(1.0)).with_normal_equations_only();
    let fit = Wire::FitHead { head: EXACT };
    for task in [exact_task(), fit] {
        let (usage, _) = fed_rep_round(&mut device, task, &b, &mut dependent.clone()).unwrap();
        assert_eq!(usage, Usage { samples: m as u32, skipped: 0 });
        assert_eq!(device.predict(&usable_samples.x[..d], &mut [0.0]), Err(NotReady::NoHead));
    }
    assert_eq!(device.mechanism().clipping().unwrap().counts().withheld, 1);
    // An absence of samples or a failure of the source is public, so the device declines.
    let no_samples = Sliced::regression(Vec::new(), Vec::new(), d, 1);
    for streamed in [false, true] {
        let outcome = run_new_device(&no_samples, clip_at(1.0), exact_task(), &b, streamed);
        assert_eq!(outcome.unwrap_err(), DeclineReason::NoSamples);
    }
    for failing_pass in 1..=2 {
        let mut source = Sliced { failing_pass: Some(failing_pass), ..usable_samples.clone() };
        let mut memory = Heap::power(d, k, 1);
        let mut device = clipping_device(&mut memory, known_mechanism(10), clip_at(1.0));
        let outcome = fed_rep_round(&mut device, exact_task(), &b, &mut source);
        assert_eq!(outcome.unwrap_err(), DeclineReason::Device);
        // The memory does not match the round, so nothing can be sent.
        assert!(collect_upload(&device, 4).iter().all(|v| v.is_nan()));
    }
}

/// The upload is complete before its first byte is sent, so a later change of the head has no effect.
#[test]
fn noisy_gradient_is_fixed_before_it_is_sent() {
    let mut random = Random(11);
    let (d, k) = (6, 2);
    let samples = regression(&mut random, d, 1, 9, 1.0);
    let b = flat(&random.orthonormal(d, k));
    let mut memory = Heap::power(d, k, 1);
    let mut device = clipping_device(&mut memory, known_mechanism(11), clip_at(1.0));
    let (_, sent) = fed_rep_round(&mut device, exact_task(), &b, &mut samples.clone()).unwrap();
    device.head_mut()[0] = 1e30;
    assert_eq!(bits(&collect_upload(&device, 4)), bits(&sent));
    device.fit_head(HeadSolve::LeastSquares { ridge: 0.0 }, &mut samples.clone()).unwrap();
    assert_eq!(bits(&collect_upload(&device, 4)), bits(&sent));
    // A declined round changes nothing. An opened round replaces the upload.
    let (_, sent) = fed_rep_round(&mut device, exact_task(), &b, &mut samples.clone()).unwrap();
    assert!(device.open(&open(2, exact_task(), Role::Gradient, Encoding::F32, d, k)).is_err());
    assert_eq!(bits(&collect_upload(&device, 4)), bits(&sent));
    device.open(&open(2, exact_task(), Role::Representation, Encoding::F32, d, k)).unwrap();
    assert!(collect_upload(&device, 4).iter().all(|v| v.is_nan()));
}

/// A clipping mechanism makes the device support FedRep, at the cost of one release, and no other task.
#[test]
fn clipping_adds_fedrep_and_no_other_task() {
    let fit = Wire::FitHead { head: EXACT };
    let encoding = Encoding::F32;
    let fed_rep_open = || open(1, exact_task(), Role::Representation, encoding, 4, 2);
    for has_second_matrix in [false, true] {
        let mut memory = if has_second_matrix { Heap::power(4, 2, 3) } else { Heap::new(4, 2, 3) };
        let known = Known::new(settings(1 << 18, 100), 1);
        let mut device = clipping_device(&mut memory, known, clip_at(1.0));
        let capabilities = device.capabilities();
        let power = has_second_matrix && cfg!(feature = "power");
        // Uploads need the second matrix of the memory.
        let tasks = if has_second_matrix { fit.bit() | exact_task().bit() } else { fit.bit() };
        assert_eq!(capabilities.tasks, if power { tasks | 1 << 5 } else { tasks });
        let roles = if has_second_matrix { Role::Gradient.bit() | Role::Representation.bit() } else { 0 };
        let abilities = if cfg!(feature = "ridge-choice") { CHOOSES_RIDGE } else { 0 };
        let roles = roles | FITS_BY_STEPS | abilities;
        assert_eq!(capabilities.roles, if power { roles | Role::Subspace.bit() } else { roles });
        assert_eq!(device.streamed_tasks(), tasks);
        assert_eq!(
            (device.cost(&exact_task()), device.cost(&fit)),
            (if has_second_matrix { 1 << 28 } else { 0 }, 0)
        );
        for task in [
            Wire::FedAvg { step_size: 0.1, head_step_size: 0.1, local_steps: 1, encoding },
            Wire::PowerStart,
            Wire::MomentRows { first: 0, count: 1 },
        ] {
            for role in [Role::Representation, Role::Subspace] {
                assert_eq!(device.open(&open(1, task, role, encoding, 4, 2)), Err(DeclineReason::Task));
            }
        }
        if !has_second_matrix {
            assert_eq!(device.open(&fed_rep_open()), Err(DeclineReason::Task));
            continue;
        }
        // Streamed samples need more memory than the second matrix.
        device.open(&fed_rep_open()).unwrap();
        assert_eq!(device.begin(), Err(DeclineReason::Task));
    }
    let refused = Linear::private(Heap::power(4, 2, 1), Clipped::new(NoPrivacy, clip_at(1.0)));
    assert_eq!(refused.unwrap_err(), PrivacySettingsError::ClipWithoutNoise);
    // Every combination of radius and multiplier has a valid variance.
    for radius in [1.0, 1.999_99, 2f32.powi(-40), 2f32.powi(39)] {
        for square in [LEAST, 1 << 40] {
            let known = Known::new(settings(square, 100), 1);
            assert!(Linear::private(Heap::new(4, 2, 1), Clipped::new(known, clip_at(radius))).is_ok());
        }
    }
}

/// The fixed-point model cannot add noise to gradients, so the device declines the task.
#[cfg(feature = "i16")]
#[test]
fn fixed_point_declines_noisy_gradients() {
    let memory = fedspan_client::memory::FixedWorkspace::<4, 2, 3>::new();
    let mut model = Linear::private(memory, Clipped::new(known_mechanism(1), clip_at(1.0))).unwrap();
    assert_eq!(model.capabilities().tasks & exact_task().bit(), 0);
    assert_eq!((model.streamed_tasks() & exact_task().bit(), model.cost(&exact_task())), (0, 0));
    let round = open(1, exact_task(), Role::Representation, Encoding::F32, 4, 2);
    assert_eq!(model.open(&round), Err(DeclineReason::Task));
}

/// A round has the same bits on every core. The samples are powers of two, so that the gradient is exact: the
/// head is (2, 1), and only the third feature has residuals.
#[test]
fn golden_round_has_the_same_bits() {
    let x = vec![
        1.0, 0.0, 0.5, 0.0, // y = 2
        -1.0, 0.0, 0.5, 0.25, // y = -2
        0.0, 1.0, 0.0, 0.0, // y = 1 + 1
        0.0, 1.0, 0.5, 0.0, // y = 1 - 1
    ];
    let samples = Sliced::regression(x, vec![2.0, -2.0, 2.0, 0.0], 4, 1);
    let b = power::identity_columns(4, 2);
    // S = X^T R with R = (0, 0, -1, 1) is (0, 0, 1/2, 0), up to sign. G = S W^T / 4.
    for (radius, expected, clipped) in [
        (1.0, vec![0, 0, 0, 0, 4096, 2048, 0, 0], false),
        (0.125, vec![0, 0, 0, 0, 14_653, 7327, 0, 0], true),
    ] {
        let outcome = run_new_device(&samples, clip_at(radius), exact_task(), &b, false).unwrap();
        assert_eq!(outcome.integers, expected);
        assert_eq!(squared_norm(&outcome.integers) > 268_300_000, clipped);
        let golden: [u32; 8] = if clipped { CLIPPED_BITS } else { UNCLIPPED_BITS };
        assert_eq!(bits(&outcome.sent), golden, "{:08x?}", bits(&outcome.sent));
    }
}

const UNCLIPPED_BITS: [u32; 8] =
    [0xbedb_a800, 0xbea0_4800, 0xbfb1_dc00, 0x3d17_c000, 0x3f83_8400, 0x3e36_7000, 0x3efc_0000, 0x3ea7_4000];
const CLIPPED_BITS: [u32; 8] =
    [0xbd5b_a800, 0xbd20_4800, 0xbe31_dc00, 0x3b97_c000, 0x3e55_fe00, 0x3d80_1800, 0x3d7c_0000, 0x3d27_4000];
