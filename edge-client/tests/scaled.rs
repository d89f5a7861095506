//! Tests of feature scaling: samples are scaled as they are read, and a device computes the sums from which a
//! fleet's scale is derived.
#![cfg(feature = "scale")]
#![allow(clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

use fedspan_client::Millis;
use fedspan_client::task::{Scaled, representation_hash, scaled_values};
use fedspan_client::{
    Linear, NotReady, Recording, SampleSource, Samples, SourceError, Targets, Task, Workspace,
};
use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::message::{
    DeclineReason, Descriptors, HeadSolve, RoundId, RoundOpen, Task as Wire, Upload,
};
use fedspan_protocol::tensor::{Encoding, Role, SUMS_COLUMNS, TensorDescriptor};
use proptest::prelude::*;

const D: usize = 5;
const K: usize = 2;
const VALUES: usize = scaled_values(D);
const COLUMNS: usize = SUMS_COLUMNS as usize;

type Model = Linear<Workspace<D, K>>;

fn scaled_model() -> Scaled<Model, [f32; VALUES]> {
    Scaled::new(Linear::new(Workspace::new()), [0.0; VALUES]).unwrap()
}

fn round_id(round: u32) -> RoundId {
    RoundId { round, stage: 0 }
}

fn sums_round(first: u16, count: u16) -> RoundOpen {
    RoundOpen { id: round_id(1), task: Wire::FeatureSums { first, count }, tensors: Descriptors::new() }
}

fn fed_rep(upload: Upload) -> Wire {
    let head = HeadSolve::LeastSquares { ridge: 0.0 };
    Wire::FedRep { step_size: 0.25, head, upload, encoding: Encoding::F32 }
}

/// Returns a round of this task, with or without a scale.
fn round_open(task: Wire, scale: bool) -> RoundOpen {
    let b = TensorDescriptor::inline(Role::Representation, Encoding::F32, D as u16, K as u16);
    let mut tensors = Descriptors::from_iter([b]);
    if scale {
        tensors.push(TensorDescriptor::inline(Role::Scale, Encoding::F32, 2, D as u16)).unwrap();
    }
    RoundOpen { id: round_id(2), task, tensors }
}

/// Returns the first two columns of the identity.
fn identity_basis() -> Vec<f32> {
    (0..D * K).map(|i| if i % K == i / K { 1.0 } else { 0.0 }).collect()
}

/// Source with passes only and no random access, which returns a given number of samples per call.
struct Passes<'a>(&'a [f32], &'a [f32], usize, usize);

impl SampleSource for Passes<'_> {
    fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
        self.3 = 0;
        Ok(())
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        let (first, end) = (self.3, (self.3 + self.2).min(self.1.len()));
        self.3 = end;
        (first < end).then(|| Samples {
            x: &self.0[first * D..end * D],
            targets: Targets::Values(&self.1[first..end]),
        })
    }
}

/// Exponent, sum, and sum of squares of a feature.
type Row = (i32, i128, i128);

/// Runs rounds of sums over all features. Returns the numbers of used and skipped samples, and the uploaded
/// rows.
fn download_sums(source: &mut dyn SampleSource) -> Result<(u32, u32, Vec<Row>), DeclineReason> {
    let mut rows = Vec::new();
    let mut counts = (0, 0);
    for (first, count) in [(0u16, 3u16), (3, 2)] {
        let mut model = scaled_model();
        model.open(&sums_round(first, count))?;
        model.verify()?;
        let usage = model.run(round_id(1), source)?;
        counts = (usage.samples, usage.skipped);
        let sent = model.upload();
        assert_eq!(
            (sent.len(), sent[0].role, sent[0].rows, sent[0].cols),
            (1, Role::FeatureSums, count, SUMS_COLUMNS)
        );
        let mut values = vec![0.0; usize::from(count) * COLUMNS];
        // The upload is emitted in pieces, as it is for chunks.
        for (piece, out) in values.chunks_mut(7).enumerate() {
            model.emit(0, piece * 7, out);
        }
        for row in values.chunks(COLUMNS) {
            assert!(row.iter().all(|value| value.fract() == 0.0 && value.abs() <= 4_194_304.0));
            let limbs = |limbs: &[f32]| -> i128 {
                limbs.iter().enumerate().map(|(i, limb)| (*limb as i128) << (22 * i)).sum()
            };
            rows.push((row[0] as i32, limbs(&row[1..4]), limbs(&row[4..])));
        }
    }
    Ok((counts.0, counts.1, rows))
}

/// Strategy for values of every magnitude, and for values around an offset of 1e5 deviations.
fn any_value() -> impl Strategy<Value = f32> {
    prop_oneof![
        any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite()),
        (-3.0f32..3.0).prop_map(|value| 1e5 + value),
        Just(0.0),
        -1.0f32..1.0,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn sums_equal_those_of_the_rounded_samples(
        x in prop::collection::vec(any_value(), D..=D * 40),
        at_once in 1usize..9,
    ) {
        let m = x.len() / D;
        let x = &x[..m * D];
        let y = vec![0.5; m];
        let (samples, skipped, rows) = download_sums(&mut Recording::regression(x, &y, D, 1)).unwrap();
        prop_assert_eq!((samples, skipped), (m as u32, 0));
        for (feature, &(exponent, sum, squares)) in rows.iter().enumerate() {
            let column: Vec<f32> = x.iter().skip(feature).step_by(D).copied().collect();
            let largest = column.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let unit = 2f64.powi(exponent);
            let units: Vec<i128> =
                column.iter().map(|value| (f64::from(*value) / unit).round_ties_even() as i128).collect();
            prop_assert_eq!(sum, units.iter().sum::<i128>());
            prop_assert_eq!(squares, units.iter().map(|n| n * n).sum::<i128>());
            // The grid is as fine as the largest value allows.
            prop_assert!(f64::from(largest) < unit * f64::from(1 << 30));
            prop_assert!(exponent == -149 || f64::from(largest) >= unit * f64::from(1 << 29));
        }
        prop_assert_eq!(download_sums(&mut Passes(x, &y, at_once, 0)).unwrap().2, rows);
    }

    /// A scaled model gives the bits of the model on samples that were scaled before.
    #[test]
    fn scaled_model_equals_the_model_of_scaled_samples(
        x in prop::collection::vec(-2.0f32..2.0, D * 3..=D * 30),
        scale in prop::collection::vec(0.5f32..2.0, 2 * D),
        at_once in 1usize..5,
        by_number in any::<bool>(),
        uploads_model in any::<bool>(),
    ) {
        let m = x.len() / D;
        let raw: Vec<f32> = x[..m * D].iter().enumerate().map(|(i, v)| v * 3.0 + (i % D) as f32).collect();
        let y: Vec<f32> = raw.chunks(D).map(|row| row[0] - 0.5 * row[1]).collect();
        let scaled_x: Vec<f32> =
            raw.iter().enumerate().map(|(i, v)| (v - scale[i % D]) * scale[D + i % D]).collect();
        let task = fed_rep(if uploads_model { Upload::Representation } else { Upload::Gradient });

        let mut plain = Model::new(Workspace::new());
        plain.open(&round_open(task, false)).unwrap();
        plain.tensor_mut(0).unwrap().copy_from_slice(&identity_basis());
        plain.verify().unwrap();
        let expected = plain.run(round_id(2), &mut Recording::regression(&scaled_x, &y, D, 1)).unwrap();

        let mut scaled = scaled_model();
        scaled.open(&round_open(task, true)).unwrap();
        scaled.tensor_mut(1).unwrap().copy_from_slice(&scale);
        scaled.tensor_mut(0).unwrap().copy_from_slice(&identity_basis());
        let mut out = [0.0];
        prop_assert_eq!(scaled.predict(&raw[..D], &mut out), Err(NotReady::NoRepresentation));
        scaled.verify().unwrap();
        let usage = if by_number {
            scaled.run(round_id(2), &mut Recording::regression(&raw, &y, D, 1)).unwrap()
        } else {
            scaled.run(round_id(2), &mut Passes(&raw, &y, at_once, 0)).unwrap()
        };
        prop_assert_eq!(usage, expected);
        prop_assert_eq!(scaled.head(), plain.head());
        prop_assert_eq!(scaled.upload(), plain.upload());
        let (mut sent, mut expected_upload) = ([0.0; D * K], [0.0; D * K]);
        scaled.emit(0, 0, &mut sent);
        plain.emit(0, 0, &mut expected_upload);
        prop_assert_eq!(sent, expected_upload);
        let mut expected_prediction = [0.0];
        scaled.predict(&raw[D..2 * D], &mut out).unwrap();
        plain.predict(&scaled_x[D..2 * D], &mut expected_prediction).unwrap();
        prop_assert_eq!(out, expected_prediction);
        prop_assert_eq!(scaled.scale(), Some(&scale[..]));
    }
}

#[test]
fn non_finite_sample_is_skipped_and_counted() {
    let mut x = vec![1.0f32; 4 * D];
    for (i, value) in x.iter_mut().enumerate() {
        *value = i as f32;
    }
    let y = [1.0, f32::NAN, 1.0, 1.0];
    x[2 * D + 3] = f32::INFINITY;
    let (samples, skipped, rows) = download_sums(&mut Recording::regression(&x, &y, D, 1)).unwrap();
    assert_eq!((samples, skipped), (2, 2));
    // The values are 0 and 15, so the unit is 2^(3 - 29).
    assert_eq!(rows[0], (-26, 15 << 26, 225 << 52));
    let result = download_sums(&mut Recording::regression(&x[..D], &[f32::NAN], D, 1));
    assert_eq!(result, Err(DeclineReason::NoSamples));
}

#[test]
fn invalid_sums_and_scales_are_declined() {
    let mut model = scaled_model();
    for (first, count) in [(0, 0), (0, 4), (5, 1), (4, 2), (u16::MAX, u16::MAX)] {
        assert_eq!(model.open(&sums_round(first, count)), Err(DeclineReason::Parameter), "{first} {count}");
    }
    let mut with_tensor = sums_round(0, 1);
    with_tensor.tensors = round_open(fed_rep(Upload::Gradient), false).tensors;
    assert_eq!(model.open(&with_tensor), Err(DeclineReason::Tensors));
    for (encoding, rows, cols) in [(Encoding::F16, 2, D), (Encoding::F32, 1, D), (Encoding::F32, 2, D + 1)] {
        let mut open = round_open(fed_rep(Upload::Gradient), false);
        open.tensors.push(TensorDescriptor::inline(Role::Scale, encoding, rows, cols as u16)).unwrap();
        assert_eq!(model.open(&open), Err(DeclineReason::Tensors));
    }
    for (index, value, reason) in [
        (0, f32::NAN, DeclineReason::NonFinite),
        (D, f32::INFINITY, DeclineReason::NonFinite),
        (D + 1, 0.0, DeclineReason::Parameter),
    ] {
        model.open(&round_open(fed_rep(Upload::Gradient), true)).unwrap();
        model.tensor_mut(0).unwrap().copy_from_slice(&identity_basis());
        model.tensor_mut(1).unwrap().fill(1.0);
        model.tensor_mut(1).unwrap()[index] = value;
        assert_eq!(model.verify(), Err(reason));
        assert_eq!(model.predict(&[0.0; D], &mut [0.0]), Err(NotReady::NoRepresentation));
    }
    // A model without feature scaling accepts no scale and computes no sums.
    let mut plain = Model::new(Workspace::new());
    assert_eq!(plain.open(&round_open(fed_rep(Upload::Gradient), true)), Err(DeclineReason::Tensors));
    assert_eq!(plain.open(&sums_round(0, 1)), Err(DeclineReason::Task));
    // Streamed samples do not allow sums.
    model.open(&sums_round(0, 1)).unwrap();
    assert_eq!(model.begin(), Err(DeclineReason::Task));
    assert_eq!(model.streamed_tasks() & sums_round(0, 1).task.bit(), 0);
    let too_short = Scaled::new(Model::new(Workspace::new()), [0.0; VALUES - 1]);
    assert!(too_short.is_err());
}

/// A source without random access that returns more samples per call than fit is declined.
#[test]
fn too_many_samples_per_call_are_declined() {
    let x: Vec<f32> = (0..5 * D).map(|i| (i * i % 7) as f32).collect();
    let y = [1.0, 2.0, 3.0, 4.0, 5.0];
    let mut model = scaled_model();
    model.open(&round_open(fed_rep(Upload::Gradient), true)).unwrap();
    model.tensor_mut(0).unwrap().copy_from_slice(&identity_basis());
    model.tensor_mut(1).unwrap().fill(1.0);
    model.verify().unwrap();
    let before = model.head().to_vec();
    assert_eq!(model.run(round_id(2), &mut Passes(&x, &y, 5, 0)), Err(DeclineReason::Device));
    assert_eq!(model.head(), before);
}

/// A head is valid for one representation and one scale.
#[test]
fn head_of_another_scale_is_not_used() {
    let x: Vec<f32> = (0..8 * D).map(|i| ((i * i) % 11) as f32).collect();
    let y: Vec<f32> = (0..8u8).map(f32::from).collect();
    let fit = Wire::FitHead { head: HeadSolve::LeastSquares { ridge: 0.0 } };
    let open = |model: &mut Scaled<Model, [f32; VALUES]>, factor: Option<f32>| {
        model.open(&round_open(fit, factor.is_some())).unwrap();
        model.tensor_mut(0).unwrap().copy_from_slice(&identity_basis());
        if let Some(factor) = factor {
            model.tensor_mut(1).unwrap().fill(factor);
        }
        model.verify().unwrap();
    };
    let mut out = [0.0];
    let mut model = scaled_model();
    open(&mut model, Some(0.5));
    model.run(round_id(2), &mut Recording::regression(&x, &y, D, 1)).unwrap();
    model.predict(&x[..D], &mut out).unwrap();
    let stored = (model.head().to_vec(), model.head_fitted_on().unwrap());
    for other_factor in [Some(0.25), None] {
        open(&mut model, other_factor);
        assert_eq!(model.predict(&x[..D], &mut out), Err(NotReady::NoHead));
        open(&mut model, Some(0.5));
        model.predict(&x[..D], &mut out).unwrap();
    }
    // After a reset the stored head is valid for its representation and scale, and for no others.
    for (factor, expected) in
        [(Some(0.5), Ok(())), (Some(0.25), Err(NotReady::NoHead)), (None, Err(NotReady::NoHead))]
    {
        let mut restarted = self::scaled_model();
        restarted.head_mut().copy_from_slice(&stored.0);
        restarted.restore_head(stored.1);
        open(&mut restarted, factor);
        assert_eq!(restarted.predict(&x[..D], &mut out), expected);
    }
    // A record of an earlier version has a CRC-32C in place of the hash of the representation.
    let b = model.task().representation().unwrap();
    let earlier = stored.1 ^ representation_hash(b) ^ crc32c_f32(b);
    let mut restarted = self::scaled_model();
    restarted.head_mut().copy_from_slice(&stored.0);
    restarted.restore_head(earlier);
    open(&mut restarted, Some(0.5));
    restarted.predict(&x[..D], &mut out).unwrap();
    assert_eq!(restarted.head_fitted_on(), Some(stored.1));
}

/// A model with feature scaling announces the scale and the sums.
#[cfg(feature = "privacy")]
#[test]
fn capabilities_list_scale_and_sums() {
    use fedspan_protocol::message::Privacy;

    let capabilities = scaled_model().capabilities();
    let bits = (sums_round(0, 1).task.bit(), Role::FeatureSums.bit(), Role::Scale.bit());
    assert_eq!(capabilities.privacy, Privacy::None);
    assert_eq!((capabilities.tasks & bits.0, capabilities.roles & bits.1), (bits.0, bits.1));
    assert_ne!(capabilities.roles & bits.2, 0);
    assert!(capabilities.tensors >= 2 && capabilities.total_elements as usize >= D * K + 2 * D);
    assert!(capabilities.tensor_elements as usize >= COLUMNS * D.div_ceil(2));
}

/// The sums reveal a device's means, so a device with noise declines them for any server. It accepts a scale
/// that was computed elsewhere.
#[cfg(feature = "privacy")]
#[test]
fn device_with_noise_sends_no_sums() {
    use fedspan_client::Mechanism;
    use fedspan_client::privacy::{NoEntropy, NoiseMultiplier, PrivacySettings, Seed};

    /// Mechanism that only announces its settings.
    struct Noise(PrivacySettings);

    impl Mechanism for Noise {
        fn settings(&self) -> Option<PrivacySettings> {
            Some(self.0)
        }

        fn draw_seed(&mut self) -> Result<Seed, NoEntropy> {
            Err(NoEntropy)
        }
    }

    let multiplier = NoiseMultiplier::from_square(1 << 16).unwrap();
    let settings = PrivacySettings::new(multiplier, 1 << 40, 100, Millis::new(5000)).unwrap();
    let private = Linear::private(Workspace::<D, K>::new(), Noise(settings)).unwrap();
    let mut model = Scaled::new(private, [0.0; VALUES]).unwrap();
    let capabilities = model.capabilities();
    assert_eq!(capabilities.tasks & sums_round(0, 1).task.bit(), 0);
    assert_eq!(capabilities.roles & Role::FeatureSums.bit(), 0);
    assert_ne!(capabilities.roles & Role::Scale.bit(), 0);
    assert_eq!(model.open(&sums_round(0, 1)), Err(DeclineReason::Task));
    let fit = Wire::FitHead { head: HeadSolve::LeastSquares { ridge: 0.0 } };
    assert_eq!(model.open(&round_open(fit, true)), Ok(()));
}
