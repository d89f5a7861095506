//! Tests of properties that hold for every average and every comparison of adapters.

use fedspan_adapters::files::{ChangedFactors, Dtype, RoundKind, average, check};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use crate::common::{Adapter, DOWN, Folder, SAVED, UP};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Creates random adapters of clients, as they are after a round.
fn train_clients(base: &Adapter, round: RoundKind, count: u64) -> Vec<Adapter> {
    (1..=count).map(|seed| base.trained(round, seed)).collect()
}

/// Half a unit in the last place at `value`, for a dtype.
fn half_step(dtype: Dtype, value: f64) -> f64 {
    let (digits, min_exponent) = match dtype {
        Dtype::F32 => (24, -149),
        Dtype::F16 => (11, -24),
        Dtype::Bf16 => (8, -133),
        other_dtype => panic!("factors are not {other_dtype}"),
    };
    let exponent = value.abs().max(f64::MIN_POSITIVE).log2().floor() - f64::from(digits);
    exponent.exp2().max(f64::from(min_exponent - 1).exp2()) * (1.0 + 1e-9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// mean(B_i) A equals mean(B_i A) up to the rounding of the mean, for factors of any shape.
    #[test]
    fn mean_of_trained_factor_gives_mean_of_products(
        rank in 1_usize..5, d_in in 1_usize..40, d_out in 1_usize..40, count in 1_u64..9, seed in 0_u64..1000,
        weights in prop::collection::vec(1_u64..400, 9), dtype in 0_usize..3, down in any::<bool>(),
    ) {
        let dtype = DTYPES[dtype];
        let round = if down { RoundKind::Down } else { RoundKind::Up };
        let base = Adapter::random(dtype, seed, rank, d_in, d_out);
        let adapters = train_clients(&base, round, count);
        let weights = &weights[..adapters.len()];
        let folder = Folder::new(&base, &adapters);
        folder.average(round, Some(weights)).unwrap();
        let mean_adapter = Adapter::read(&folder.file_path("next.safetensors"));
        prop_assert_eq!(mean_adapter.dtype, dtype);
        let frozen = if down { UP } else { DOWN };
        prop_assert_eq!(&mean_adapter.tensors[frozen].1.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
            &base.tensors[frozen].1.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
        let total: f64 = weights.iter().map(|weight| *weight as f64).sum();
        for row in 0..d_out {
            for column in 0..d_in {
                let product = |adapter: &Adapter| -> f64 {
                    let (a, b) = (&adapter.tensors[DOWN].1, &adapter.tensors[UP].1);
                    (0..rank).map(|r| f64::from(b[row * rank + r]) * f64::from(a[r * d_in + column])).sum()
                };
                let mean_of_products: f64 =
                    adapters
                        .iter()
                        .zip(weights)
                        .map(|(adapter, weight)| product(adapter) * *weight as f64)
                        .sum::<f64>()
                        / total;
                // Tolerance: for each element of the trained factor half a unit in the last place, multiplied
                // by the element of the other factor.
                let bound: f64 = (0..rank).map(|r| {
                    let a = f64::from(mean_adapter.tensors[DOWN].1[r * d_in + column]);
                    let b = f64::from(mean_adapter.tensors[UP].1[row * rank + r]);
                    let (trained_value, frozen_value) = if down { (a, b) } else { (b, a) };
                    half_step(dtype, trained_value) * frozen_value.abs() + 1e-12 * (1.0 + trained_value.abs()) * (1.0 + frozen_value.abs())
                }).sum();
                let averaged_product = product(&mean_adapter);
                prop_assert!(
                    (averaged_product - mean_of_products).abs() <= 1.01 * bound + 1e-11,
                    "{} {} {}",
                    averaged_product,
                    mean_of_products,
                    bound
                );
            }
        }
    }

    /// Every element of the mean is the weighted mean rounded once, and lies between the smallest and the
    /// largest value of the clients.
    #[test]
    fn elements_are_rounded_weighted_means(
        count in 1_u64..12, seed in 0_u64..1000,
        weights in prop::collection::vec(0_u64..1 << 20, 12), dtype in 0_usize..3,
    ) {
        let dtype = DTYPES[dtype];
        let base = Adapter::random(dtype, seed, 2, 9, 5);
        let adapters = train_clients(&base, RoundKind::Plain, count);
        let weights = &weights[..adapters.len()];
        prop_assume!(weights.iter().any(|weight| *weight > 0));
        let folder = Folder::new(&base, &adapters);
        folder.average(RoundKind::Plain, Some(weights)).unwrap();
        let mean_adapter = Adapter::read(&folder.file_path("next.safetensors"));
        let total: f64 = weights.iter().map(|weight| *weight as f64).sum();
        for (name, (_, values)) in &mean_adapter.tensors {
            for (index, value) in values.iter().enumerate() {
                let counted = || adapters.iter().zip(weights).filter(|(_, weight)| **weight > 0)
                    .map(|(adapter, weight)| (f64::from(adapter.tensors[name].1[index]), *weight as f64));
                let mean = counted().map(|(value, weight)| value * weight).sum::<f64>() / total;
                let size = counted().map(|(value, _)| value.abs()).fold(0.0, f64::max);
                let value = f64::from(*value);
                prop_assert!((value - mean).abs() <= half_step(dtype, mean) + 1e-13 * size, "{value} {mean}");
                let smallest = counted().map(|(value, _)| value).fold(f64::INFINITY, f64::min);
                let largest = counted().map(|(value, _)| value).fold(f64::NEG_INFINITY, f64::max);
                prop_assert!((smallest..=largest).contains(&value));
            }
        }
    }

    #[test]
    fn mean_ignores_client_order_and_threads(
        seed in 0_u64..1000, count in 2_u64..10,
        weights in prop::collection::vec(1_u64..1 << 29, 10), turn in 1_usize..9,
        dtype in 0_usize..3, large in any::<bool>(),
    ) {
        let dtype = DTYPES[dtype];
        // The tensors have one block or several blocks.
        let base = Adapter::random(dtype, seed, 3, if large { 6_000 } else { 7 }, 11);
        let adapters = train_clients(&base, RoundKind::Plain, count);
        let mut folder = Folder::new(&base, &adapters);
        let mut weights = weights[..adapters.len()].to_vec();
        let bytes = folder.average_bytes(RoundKind::Plain, Some(&weights));
        let turn = turn % adapters.len();
        folder.clients.rotate_left(turn);
        weights.rotate_left(turn);
        folder.clients.swap(0, 1);
        weights.swap(0, 1);
        prop_assert!(bytes == folder.average_bytes(RoundKind::Plain, Some(&weights)));
        let inputs = folder.open_inputs(Some(&weights)).unwrap();
        let report = average(&inputs, folder.average_job(RoundKind::Plain, 3), &|_, _| true).unwrap();
        prop_assert!(bytes == std::fs::read(folder.file_path("next.safetensors")).unwrap());
        let digest = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        prop_assert_eq!(report.sha256, digest);
    }
}

#[test]
fn single_client_is_its_own_mean() {
    for dtype in DTYPES {
        for round in [RoundKind::Up, RoundKind::Down, RoundKind::Plain] {
            let base = Adapter::random(dtype, 4, 3, 50, 20);
            let client = base.trained(round, 9);
            let folder = Folder::new(&base, std::slice::from_ref(&client));
            assert_eq!(folder.average_bytes(round, Some(&[17])), client.bytes(), "{dtype} {round:?}");
        }
    }
}

#[test]
fn weight_equals_repeated_client() {
    for dtype in DTYPES {
        let base = Adapter::random(dtype, 4, 3, 50, 20);
        let adapters = train_clients(&base, RoundKind::Up, 2);
        let repeated_adapters = [adapters[0].clone(), adapters[0].clone(), adapters[1].clone()];
        let (two_clients, three_clients) =
            (Folder::new(&base, &adapters), Folder::new(&base, &repeated_adapters));
        let bytes = three_clients.average_bytes(RoundKind::Up, None);
        assert_eq!(bytes, two_clients.average_bytes(RoundKind::Up, Some(&[2, 1])));
        assert_eq!(
            bytes,
            two_clients.average_bytes(RoundKind::Up, Some(&[400, 200])),
            "a common divisor of the weights changed the mean"
        );
        assert_ne!(bytes, two_clients.average_bytes(RoundKind::Up, None));
        let first_client_only = Folder::new(&base, &adapters[..1]);
        assert_eq!(
            two_clients.average_bytes(RoundKind::Up, Some(&[3, 0])),
            first_client_only.average_bytes(RoundKind::Up, None),
            "a client without samples changed the mean"
        );
    }
}

/// The mean is exact for values of very different magnitude, whose sums f64 cannot represent.
#[test]
fn mean_is_exact_for_extreme_magnitudes() {
    let mut base = Adapter::random(Dtype::F32, 1, 1, 4, 4);
    base.tensors.values_mut().for_each(|(_, values)| values.fill(0.0));
    let columns: [[f32; 5]; 4] = [
        [3e38, -3e38, 1e-45, 0.0, 0.0],
        [1.0, 1e-30, -1.0, 1e-45, 1e-38],
        [16_777_216.0, 1.0, 1e-20, -1e-20, 0.5],
        [f32::MAX, f32::MAX, f32::MAX, f32::MAX, f32::MAX],
    ];
    let adapters: Vec<Adapter> = (0..5)
        .map(|client| {
            let mut adapter = base.clone();
            let (_, values) = adapter.tensors.get_mut(UP).unwrap();
            values.iter_mut().zip(&columns).for_each(|(value, column)| *value = column[client]);
            adapter
        })
        .collect();
    let mut folder = Folder::new(&base, &adapters);
    let tiny_sum: f64 = [1e-30_f32, 1e-38, 1e-45].map(f64::from).iter().sum();
    for turn in 0..10 {
        folder.average(RoundKind::Up, None).unwrap();
        let mean_adapter = Adapter::read(&folder.file_path("next.safetensors"));
        let expected = [0.0, tiny_sum / 5.0, 16_777_217.5 / 5.0, f64::from(f32::MAX)];
        for (value, expected) in mean_adapter.tensors[UP].1.iter().zip(expected) {
            #[allow(clippy::cast_possible_truncation, reason = "the nearest")]
            let expected = expected as f32;
            assert_eq!(value.to_bits(), expected.to_bits(), "{value:e} {expected:e}");
        }
        folder.clients.rotate_left(1);
        if turn == 5 {
            folder.clients.swap(0, 3);
        }
    }
}

/// The interference is 0 if all clients have the same down or up factor, and equals that of dense products
/// otherwise.
#[test]
fn interference_matches_dense_products() {
    let base = Adapter::random(Dtype::F32, 3, 4, 37, 21);
    for round in [RoundKind::Up, RoundKind::Down] {
        let folder = Folder::new(&base, &train_clients(&base, round, 5));
        let checked = check(&folder.open_inputs(Some(&[3, 1, 4, 1, 5])).unwrap(), &|_, _| true).unwrap();
        assert_eq!(checked.interference, Some(0.0));
        assert!(
            checked.targets.len() == 2 && checked.targets.iter().all(|target| target.interference == 0.0)
        );
        let fits = if round == RoundKind::Up { ChangedFactors::Up } else { ChangedFactors::Down };
        assert!(checked.clients.iter().all(|client| client.fits == fits));
    }
    let adapters = train_clients(&base, RoundKind::Plain, 6);
    let weights = [3_u64, 1, 4, 1, 5, 9];
    let folder = Folder::new(&base, &adapters);
    let checked = check(&folder.open_inputs(Some(&weights)).unwrap(), &|_, _| true).unwrap();
    let total: f64 = weights.iter().map(|weight| *weight as f64).sum();
    let mut sums = [0.0; 2];
    for target in &checked.targets {
        let factor = |adapter: &Adapter, letter: &str| {
            adapter.tensors[&format!("{}.lora_{letter}.weight", target.module)].clone()
        };
        let ([_, d_in], [d_out, rank]) = (
            <[usize; 2]>::try_from(factor(&base, "A").0).unwrap(),
            <[usize; 2]>::try_from(factor(&base, "B").0).unwrap(),
        );
        let mean = |letter: &str| -> Vec<f64> {
            let length = factor(&base, letter).1.len();
            let mean_element = |index: usize| {
                let element = |adapter: &Adapter| f64::from(factor(adapter, letter).1[index]);
                adapters
                    .iter()
                    .zip(weights)
                    .map(|(adapter, weight)| element(adapter) * weight as f64)
                    .sum::<f64>()
                    / total
            };
            (0..length).map(mean_element).collect()
        };
        let to_f64 = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
        let product = |b: &[f64], a: &[f64]| -> Vec<f64> {
            let element = |row: usize, column: usize| -> f64 {
                (0..rank).map(|r| b[row * rank + r] * a[r * d_in + column]).sum()
            };
            (0..d_out * d_in).map(|index| element(index / d_in, index % d_in)).collect()
        };
        let mut dense = vec![0.0; d_out * d_in];
        for (adapter, weight) in adapters.iter().zip(weights) {
            let product_of_client = product(&to_f64(factor(adapter, "B").1), &to_f64(factor(adapter, "A").1));
            dense
                .iter_mut()
                .zip(product_of_client)
                .for_each(|(sum, value)| *sum += value * weight as f64 / total);
        }
        let product_of_means = product(&mean("B"), &mean("A"));
        let squared_error: f64 =
            dense.iter().zip(&product_of_means).map(|(exact, averaged)| (exact - averaged).powi(2)).sum();
        let squared_norm: f64 = dense.iter().map(|value| value * value).sum();
        sums = [sums[0] + squared_error, sums[1] + squared_norm];
        assert!((target.interference - (squared_error / squared_norm).sqrt()).abs() < 1e-12, "{target:?}");
        assert!(target.interference > 0.1);
    }
    assert!((checked.interference.unwrap() - (sums[0] / sums[1]).sqrt()).abs() < 1e-12);
}

#[test]
fn check_reports_changed_factors_and_norms() {
    let base = Adapter::random(Dtype::F16, 3, 2, 30, 8);
    let trained = base.trained(RoundKind::Plain, 2);
    let adapters = [
        base.trained(RoundKind::Up, 1),
        base.trained(RoundKind::Down, 2),
        trained.clone(),
        base.with_tensors_of(&trained, |name| name == SAVED),
    ];
    let folder = Folder::new(&base, &adapters);
    let checked = check(&folder.open_inputs(None).unwrap(), &|_, _| true).unwrap();
    let fits: Vec<ChangedFactors> = checked.clients.iter().map(|client| client.fits).collect();
    assert_eq!(
        fits,
        [ChangedFactors::Up, ChangedFactors::Down, ChangedFactors::Both, ChangedFactors::Nothing]
    );
    for (client, adapter) in checked.clients.iter().zip(&adapters) {
        for (name, changed) in &client.tensors {
            let (base_values, client_values) = (&base.tensors[name].1, &adapter.tensors[name].1);
            let norm = |square: f64| square.sqrt();
            let change =
                norm(base_values.iter().zip(client_values).map(|(a, b)| f64::from(b - a).powi(2)).sum());
            let base_norm = norm(base_values.iter().map(|a| f64::from(*a).powi(2)).sum());
            // The tolerance is needed because this test rounds differences to f32 and `check` does not.
            assert!((changed.change - change).abs() <= 1e-6 * change, "{name} {changed:?} {change}");
            assert!((changed.base - base_norm).abs() <= 1e-12 * base_norm);
            assert_eq!(changed.differs, base_values != client_values, "{name}");
        }
    }
}

/// Clients may store tensors in a different order. The mean has the order of the base.
#[test]
fn tensors_are_matched_by_name() {
    let base = Adapter::random(Dtype::F32, 8, 2, 12, 7);
    let adapters = train_clients(&base, RoundKind::Up, 3);
    let folder = Folder::new(&base, &adapters);
    let bytes = folder.average_bytes(RoundKind::Up, None);
    // The `safetensors` crate sorts tensors, so the test writes the file itself, in reverse order.
    for (path, client) in folder.clients.iter().zip(&adapters).take(2) {
        let mut header = Vec::new();
        let mut data = Vec::new();
        for (name, (shape, values)) in client.tensors.iter().rev() {
            let begin = data.len();
            values.iter().for_each(|value| data.extend_from_slice(&value.to_le_bytes()));
            let end = data.len();
            header.push(format!(
                r#""{name}": {{"data_offsets": [{begin}, {end}], "dtype": "F32", "shape": {shape:?}}}"#
            ));
        }
        let header = format!("{{{}}}", header.join(","));
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        std::fs::write(path, file).unwrap();
    }
    assert_eq!(bytes, folder.average_bytes(RoundKind::Up, None));
}

/// The interference is not computed if the Gram matrices, with (clients + 1) r rows, would exceed the memory
/// limit.
#[test]
fn interference_beyond_memory_limit_is_left_out() {
    let base = Adapter::random(Dtype::F16, 3, 900, 2, 3);
    let folder = Folder::new(&base, &train_clients(&base, RoundKind::Plain, 4));
    let checked = check(&folder.open_inputs(None).unwrap(), &|_, _| true).unwrap();
    assert_eq!((checked.interference, checked.targets.len(), checked.clients.len()), (None, 0, 4));
    let folder = Folder::new(&base, &train_clients(&base, RoundKind::Up, 4));
    let checked = check(&folder.open_inputs(None).unwrap(), &|_, _| true).unwrap();
    assert_eq!((checked.interference, checked.targets.len()), (Some(0.0), 2));
}
