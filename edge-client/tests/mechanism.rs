//! Tests of a device with noise: its settings and the cost of a release, its capabilities and supported
//! rounds, and the data that it must not reveal.
#![cfg(feature = "privacy")]

use crate::common::*;
use fedspan_client::Millis;
use fedspan_client::privacy::{
    NoEntropy, NoiseMultiplier, PrivacySettings, PrivacySettingsError, Seed, VarianceError, sensitivity,
};
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Mechanism, NotReady, Task};
use fedspan_protocol::message::{
    CHOOSES_RIDGE, DeclineReason, FITS_BY_STEPS, HeadSolve, PowerRows, PowerUpload, Privacy, Task as Wire,
    Upload,
};
use fedspan_protocol::secure::ProvisionedNoise;
use fedspan_protocol::tensor::{Encoding, Role};

const LEAST: u64 = (1 << 14) + 1;

fn multiplier_of(square: u64) -> NoiseMultiplier {
    NoiseMultiplier::from_square(square).unwrap()
}

fn settings(square: u64, rows_max: u32) -> PrivacySettings {
    PrivacySettings::new(multiplier_of(square), 1 << 40, rows_max, Millis::new(1))
        .unwrap()
        .with_iterations(200)
}

/// Mechanism whose seed is never drawn.
#[derive(Clone, Copy, Debug)]
struct Never(PrivacySettings);

impl Mechanism for Never {
    fn settings(&self) -> Option<PrivacySettings> {
        Some(self.0)
    }

    fn draw_seed(&mut self) -> Result<Seed, NoEntropy> {
        panic!("unexpected draw of a seed")
    }
}

#[test]
fn multipliers_fit_cost_and_variance() {
    for square in [0, 1, 1 << 14, (1 << 40) + 1, u64::MAX] {
        assert_eq!(NoiseMultiplier::from_square(square).unwrap_err().square, square);
    }
    for (square, release) in [
        // The first release is ceil(2^46 / (2^14 + 1)), by long division.
        (LEAST, 4_294_705_168),
        (1 << 16, 1 << 30),
        (3 << 16, 357_913_942),
        (1 << 18, 1 << 28),
        (1 << 40, 64),
        ((1 << 40) - 1, 65),
    ] {
        assert_eq!(multiplier_of(square).release(), release, "{square}");
        let exact = (1u128 << 46).div_ceil(square.into());
        assert_eq!(u128::from(release), exact);
    }
    let mut random = Random(1);
    for _ in 0..10_000 {
        let square = LEAST + random.next() % ((1 << (17 + random.below(24))) - LEAST);
        let sensitivity = 1 + random.next() % (1 << (1 + random.below(20)));
        let exact = (u128::from(sensitivity).pow(2) * u128::from(square)).div_ceil(1 << 16) + 16;
        match multiplier_of(square).variance(sensitivity) {
            Ok(variance) => assert_eq!(variance.ratio(), (exact as u64, 1)),
            Err(error) => {
                assert!(exact >= (1 << 56) - (1 << 29), "{square} {sensitivity}");
                assert!(matches!(error, VarianceError::TooLarge { .. }));
            }
        }
    }
    for sensitivity in [1 << 28, 1 << 29, u64::MAX] {
        assert!(matches!(multiplier_of(1 << 40).variance(sensitivity), Err(VarianceError::TooLarge { .. })));
    }
}

/// The sensitivity equals its formula in f64, rounded up, and is never below it.
#[test]
fn sensitivity_equals_its_formula_rounded_up() {
    for d in [1u16, 2, 20, 58, 784, u16::MAX] {
        for r in [1u16, 2, 3, 8, 24, 64, u16::MAX] {
            for g in [0, 1, 4, 5, 10, 14, 15, 16, u32::MAX] {
                let directions = if r == 1 { 1.0 } else { 2.0 };
                let unit = f64::from(1u32 << g.min(15));
                let exact = unit * (directions * (1.0 + 2f64.powi(-10))).sqrt()
                    + unit / 32_768.0 * f64::from(r).sqrt()
                    + (f64::from(d) * f64::from(r)).sqrt();
                let computed = sensitivity(d, r, g) as f64;
                assert!(
                    computed >= exact * (1.0 - 1e-12) && computed < exact + 1.001,
                    "{d} {r} {g}: {computed} {exact}"
                );
            }
        }
    }
    assert_eq!(sensitivity(64, 4, 15), 46_382);
    assert_eq!(sensitivity(58, 1, 15), 32_793);
}

/// Usable provisioning records become settings, unusable ones errors.
#[test]
fn provisioning_records_become_settings_or_errors() {
    let noise = ProvisionedNoise {
        multiplier_square: 9 << 16,
        budget: 77,
        rows_max: 500,
        slot: 250,
        clip: 0.0,
        iterations_max: 3,
    };
    let accepted = PrivacySettings::provisioned(&noise).unwrap();
    assert_eq!(
        (accepted.release(), accepted.budget(), accepted.rows_max()),
        ((1u32 << 30).div_ceil(9), 77, 500)
    );
    assert_eq!((accepted.slot(), accepted.iterations_max()), (Millis::new(250), 3));
    for (unusable, message) in [
        (ProvisionedNoise { multiplier_square: 1 << 14, ..noise }, "16384"),
        (ProvisionedNoise { multiplier_square: u64::MAX, ..noise }, "18446744073709551615"),
        (ProvisionedNoise { rows_max: 0, ..noise }, "0 rows a round"),
        (ProvisionedNoise { rows_max: u32::MAX, ..noise }, "4294967295 rows a round"),
        (ProvisionedNoise { slot: 0, ..noise }, "a slot of 0 ms"),
    ] {
        let error = PrivacySettings::provisioned(&unusable).unwrap_err().to_string();
        assert!(error.contains(message), "{unusable:?}: {error}");
    }
}

#[test]
fn invalid_settings_are_rejected() {
    let z = multiplier_of(1 << 16);
    for rows_max in [0, (1 << 30) + 1, u32::MAX] {
        assert_eq!(
            PrivacySettings::new(z, 1, rows_max, Millis::new(1)).unwrap_err(),
            PrivacySettingsError::RowsMax { rows_max }
        );
    }
    assert_eq!(PrivacySettings::new(z, 1, 1, Millis::ZERO).unwrap_err(), PrivacySettingsError::Slot);
    for slot in [1, u64::MAX] {
        let settings = PrivacySettings::new(z, 1, 1, Millis::new(slot)).unwrap();
        assert_eq!((settings.slot(), settings.iterations_max()), (Millis::new(slot), 1));
    }
    for (rows_max, grid) in [
        (1, 15),
        (2, 15),
        (1 << 15, 15),
        ((1 << 15) + 1, 14),
        (1 << 16, 14),
        (1 << 29, 1),
        ((1 << 29) + 1, 0),
        (1 << 30, 0),
    ] {
        assert_eq!(settings(1 << 16, rows_max).grid(), grid, "{rows_max}");
    }
    // Every valid combination of sizes and multiplier has a variance.
    for rows_max in [1, 1 << 20, 1 << 30] {
        for square in [LEAST, 1 << 40] {
            for d in [1, 64, u16::MAX] {
                for r in [1, 2, 64] {
                    let settings = settings(square, rows_max);
                    let (variance, _) = settings.variance(d, r).unwrap().ratio();
                    let sensitivity = u128::from(sensitivity(d, r, settings.grid()));
                    assert_eq!(
                        u128::from(variance),
                        (sensitivity * sensitivity * u128::from(square)).div_ceil(1 << 16) + 16
                    );
                }
            }
        }
    }
    assert_eq!(settings(LEAST, 9).variance(65, 65), Err(PrivacySettingsError::Width { width: 65, most: 64 }));
    let refused = Linear::private(Heap::new(65, 65, 1), Never(settings(LEAST, 9)));
    assert_eq!(refused.unwrap_err(), PrivacySettingsError::Width { width: 65, most: 64 });
    let refused = Linear::private(Heap::new(70_000, 1, 1), Never(settings(LEAST, 9)));
    assert_eq!(refused.unwrap_err(), PrivacySettingsError::Shape { features: 70_000, width: 1 });
}

#[test]
fn only_noisy_tensors_may_leave() {
    let known_settings = settings(1 << 18, 100);
    for (memory, has_room) in
        [(Heap::new(4, 2, 3), false), (Heap::power(4, 2, 3), true), (Heap::streaming(4, 2, 3), true)]
    {
        let power = has_room && cfg!(feature = "power");
        let mut model = Linear::private(memory.clone(), Never(known_settings)).unwrap();
        let capabilities = model.capabilities();
        assert_eq!(capabilities.privacy, Privacy::Gaussian { release: 1 << 28, budget: 1 << 40, spent: 0 });
        let fit = Wire::FitHead { head: EXACT }.bit();
        assert_eq!(capabilities.tasks, if power { fit | 1 << 5 } else { fit });
        // The mechanism has no clipping, so no task uploads a gradient or a representation.
        let roles = capabilities.roles & !(CHOOSES_RIDGE | FITS_BY_STEPS);
        assert_eq!(roles, if power { Role::Subspace.bit() } else { 0 });
        assert_eq!(model.streamed_tasks(), fit);
        assert_eq!(Linear::new(memory).capabilities().privacy, Privacy::None);
        let encoding = Encoding::F32;
        for task in [
            fed_rep(EXACT, Upload::Gradient, 0.1),
            fed_rep(EXACT, Upload::Representation, 0.1),
            Wire::FedAvg { step_size: 0.1, head_step_size: 0.1, local_steps: 1, encoding },
            Wire::PowerStart,
            Wire::MomentRows { first: 0, count: 1 },
        ] {
            for role in [Role::Representation, Role::Subspace] {
                let round = open(1, task, role, encoding, 4, 2);
                assert_eq!(model.open(&round), Err(DeclineReason::Task), "{task:?}");
            }
            assert_eq!(model.cost(&task), 0);
        }
        assert_eq!(model.cost(&Wire::FitHead { head: EXACT }), 0);
    }
}

/// A server cannot make a computation longer than the slot allows, neither by iterations nor by gradient
/// steps.
#[test]
fn rounds_over_the_iteration_limit_are_declined() {
    let one_iteration = PrivacySettings::new(multiplier_of(1 << 18), 1 << 40, 100, Millis::new(1)).unwrap();
    for (settings, max_iterations) in
        [(Some(one_iteration), 1), (Some(one_iteration.with_iterations(3)), 3), (None, u16::MAX)]
    {
        for iterations in [1, 2, 3, 4, u16::MAX] {
            let head = HeadSolve::Gradient { steps: iterations, step_size: 0.1 };
            let fit = open(1, Wire::FitHead { head }, Role::Representation, Encoding::F32, 4, 2);
            let (rows, upload) = (PowerRows::Features, PowerUpload::Product);
            let power = Wire::FedPower { iterations, rows, upload, encoding: Encoding::F32 };
            let power = open(1, power, Role::Subspace, Encoding::F32, 4, 2);
            for round in if cfg!(feature = "power") { vec![fit, power] } else { vec![fit] } {
                let memory = Heap::power(4, 2, 1);
                let result = match settings {
                    Some(settings) => Linear::private(memory, Never(settings)).unwrap().open(&round),
                    None => Linear::new(memory).open(&round),
                };
                let expected =
                    if iterations > max_iterations { Err(DeclineReason::Parameter) } else { Ok(()) };
                assert_eq!(result, expected, "{iterations} of {max_iterations}: {:?}", round.task);
            }
        }
    }
}

/// Fits a head in a round, from stored samples.
fn fit<P: Mechanism>(
    model: &mut Linear<Heap, P>,
    head: HeadSolve,
    b: &[f32],
    samples: &Sliced,
) -> Result<Usage, DeclineReason> {
    let shape = model.shape();
    let task = Wire::FitHead { head };
    let round = open(1, task, Role::Representation, Encoding::F32, shape.features, shape.width);
    receive(model, &round, &[b])?;
    assert!(model.upload().is_empty());
    model.run(round.id, &mut samples.clone().at_once(3))
}

/// Fits a head in a round, from streamed samples.
fn fit_stream<P: Mechanism>(
    model: &mut Linear<Heap, P>,
    head: HeadSolve,
    b: &[f32],
    samples: &Sliced,
) -> Result<Usage, DeclineReason> {
    let shape = model.shape();
    let task = Wire::FitHead { head };
    let round = open(1, task, Role::Representation, Encoding::F32, shape.features, shape.width);
    receive(model, &round, &[b])?;
    model.begin()?;
    for i in 0..samples.len() {
        let (x, target) = samples.get(i);
        assert_eq!(model.sample(x, target), i as u32 + 1, "a sample was not counted");
    }
    model.finish()
}

/// A head is fitted as it is without noise, and the report is the same for any samples.
#[test]
fn head_fit_reports_nothing_about_its_samples() {
    let mut random = Random(2);
    let (d, k, m) = (6, 2, 15);
    let samples = Sliced::regression(random.normals(m * d), random.normals(m), d, 1);
    let b = flat(&random.orthonormal(d, k));
    let steps = |step_size| HeadSolve::Gradient { steps: 200, step_size };
    for (head, bad_rows) in
        [(EXACT, vec![]), (EXACT, vec![4]), (EXACT, (0..m).collect()), (steps(1e9), vec![2])]
    {
        let mut dirty = samples.clone();
        for &row in &bad_rows {
            dirty.x[row * d] = f32::NAN;
        }
        let mut plain = Linear::new(Heap::streaming(d, k, 1));
        let expected = fit(&mut plain, head, &b, &samples.without(&bad_rows));
        for streamed in [false, true] {
            let mut model = Linear::private(Heap::streaming(d, k, 1), Never(settings(LEAST, 9))).unwrap();
            // The device first fits another head on another representation.
            let other_basis = identity(d)[..].chunks(d).flat_map(|row| row[..k].to_vec()).collect::<Vec<_>>();
            fit(&mut model, EXACT, &other_basis, &samples).unwrap();
            let run = if streamed { fit_stream } else { fit };
            let usage = run(&mut model, head, &b, &dirty).unwrap();
            assert_eq!(usage, Usage { samples: m as u32, skipped: 0 }, "{head:?} {bad_rows:?}");
            let prediction = model.predict(&samples.x[..d], &mut [0.0]);
            if expected.is_ok() {
                assert_eq!(prediction, Ok(()));
                assert_eq!(
                    model.usage(),
                    Usage { samples: (m - bad_rows.len()) as u32, skipped: bad_rows.len() as u32 }
                );
                if !streamed {
                    assert_eq!(bits(model.head()), bits(plain.head()));
                }
            } else {
                assert_eq!(prediction, Err(NotReady::NoHead), "{head:?} {bad_rows:?}");
            }
        }
    }
    // An absence of samples or a failure of the source is public, so the device declines.
    let no_samples = Sliced::regression(Vec::new(), Vec::new(), d, 1);
    let mut model = Linear::private(Heap::streaming(d, k, 1), Never(settings(LEAST, 9))).unwrap();
    assert_eq!(fit(&mut model, EXACT, &b, &no_samples), Err(DeclineReason::NoSamples));
    assert_eq!(fit_stream(&mut model, EXACT, &b, &no_samples), Err(DeclineReason::NoSamples));
    let failing = Sliced { failing_pass: Some(1), ..samples };
    assert_eq!(fit(&mut model, EXACT, &b, &failing), Err(DeclineReason::Device));
}
