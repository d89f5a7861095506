//! Tests of the robust aggregation rules: properties that each rule must have, and comparisons with
//! independent reference computations.

use crate::common::{gaussian, random};
use fedspan_engine::aggregate::{
    RoundAggregate, Rule, SampleCap, TRIM, UpdateWeight, Weighted, geometric_median,
    projector_geometric_median, projector_mean, spectral_filter, trimmed_mean,
};
use fedspan_engine::linalg::{Matrix, orthonormal, principal_angle_distance, random_basis, to_f32};
use fedspan_engine::{DeviceId, Tensor, Weighting};
use fedspan_protocol::tensor::Role;
use proptest::prelude::*;

/// All rules that a configuration can name.
const RULES: [Rule; 6] = [
    Rule::MEAN,
    Rule::SPECTRAL_FILTER,
    Rule::GEOMETRIC_MEDIAN,
    Rule::trimmed_mean(TRIM),
    Rule::PROJECTOR_MEAN,
    Rule::PROJECTOR_GEOMETRIC_MEDIAN,
];

/// Vectors of `length` standard normal values.
fn vectors(n: usize, length: usize, seed: u64) -> Vec<Vec<f32>> {
    let random = &mut random(seed);
    (0..n).map(|_| to_f32(&gaussian(1, length, random))).collect()
}

/// Vectors with their weights.
fn weighted<'a>(values: &'a [Vec<f32>], weights: &[f64]) -> Vec<Weighted<'a>> {
    values.iter().zip(weights).map(|(values, weight)| Weighted { weight: *weight, values }).collect()
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// Euclidean distance.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    norm(&a.iter().zip(b).map(|(x, y)| x - y).collect::<Vec<_>>())
}

/// Radius and points of the objective that the geometric median minimises: the weighted median of the norms,
/// and the updates clipped to it. In the objective, distances below the radius count quadratically and larger
/// distances linearly.
fn oracle(updates: &[(f64, Vec<f64>)]) -> (f64, Vec<(f64, Vec<f64>)>) {
    let total: f64 = updates.iter().map(|(w, _)| w).sum();
    let at_most = |r: f64| updates.iter().filter(|(_, v)| norm(v) <= r).map(|(w, _)| w).sum::<f64>();
    let norms = updates.iter().map(|(_, v)| norm(v));
    let radius = norms.filter(|r| at_most(*r) >= total / 2.0).fold(f64::INFINITY, f64::min);
    let clip = |v: &Vec<f64>| v.iter().map(|x| x * (radius / norm(v)).min(1.0)).collect::<Vec<_>>();
    (radius, updates.iter().map(|(w, v)| (*w, clip(v))).collect())
}

/// Minimises the objective of [`oracle`] by gradient descent with step halving.
fn minimise(radius: f64, points: &[(f64, Vec<f64>)]) -> Vec<f64> {
    let value = |z: &[f64]| -> f64 {
        let huber = |r: f64| if r <= radius { r * r / (2.0 * radius) } else { r - radius / 2.0 };
        points.iter().map(|(w, v)| w * huber(apart(v, z))).sum()
    };
    let mut z = vec![0.0; points[0].1.len()];
    let mut step = 1.0;
    for _ in 0..20_000 {
        let mut gradient = vec![0.0; z.len()];
        for (w, v) in points {
            let share = w / apart(v, &z).max(radius);
            for (g, (z, v)) in gradient.iter_mut().zip(z.iter().zip(v)) {
                *g += share * (z - v);
            }
        }
        let next: Vec<f64> = z.iter().zip(&gradient).map(|(z, g)| z - step * g).collect();
        if value(&next) < value(&z) {
            z = next;
            step *= 1.5;
        } else {
            step /= 2.0;
            if step < 1e-18 {
                break;
            }
        }
    }
    z
}

fn tensor(role: Role, rows: usize, cols: usize, values: Vec<f32>) -> Tensor {
    Tensor { role, rows: rows as u16, cols: cols as u16, values }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The result is bit-identical for any order of arrival.
    #[test]
    fn rules_are_independent_of_arrival_order(seed in any::<u64>(), n in 1usize..12, which in 0usize..6, by_samples in any::<bool>()) {
        let (d, k) = (5, 2);
        let random = &mut random(seed);
        let reference = random_basis(d, k, random);
        let weighting = if by_samples { Weighting::Samples } else { Weighting::Uniform };
        let updates: Vec<(u64, u32, Tensor)> = (0..n as u64)
            .map(|device| {
                let near = &reference + gaussian(d, k, random) * 0.3;
                (device, 1 + random.below(50) as u32, tensor(Role::Representation, d, k, to_f32(&near)))
            })
            .collect();
        let rule = RULES[which];
        let result = |order: &[usize]| {
            let mut round = RoundAggregate::new(rule, weighting, d * k);
            for &index in order {
                let (device, samples, update) = &updates[index];
                round.absorb(DeviceId(*device), UpdateWeight::from_samples(*samples), std::slice::from_ref(update));
            }
            let values: Vec<f64> = if rule.is_for_subspaces() {
                round.take_subspace(&reference).unwrap().unwrap().iter().copied().collect()
            } else {
                round.take_vector(&[]).unwrap()
            };
            // Taking the result empties the round.
            assert!(round.take_vector(&[]).is_none() && round.take_subspace(&reference).unwrap().is_none());
            values.into_iter().map(f64::to_bits).collect::<Vec<_>>()
        };
        let straight: Vec<usize> = (0..n).collect();
        let expected = result(&straight);
        for _ in 0..4 {
            prop_assert_eq!(&result(&random.choose(&straight, n)), &expected);
        }
    }

    /// Two devices with the same update have the same effect as one device with their total weight. The spectral
    /// filter is not among the rules: it compares each device with the mean of the others.
    #[test]
    fn duplicate_equals_double_weight(seed in any::<u64>(), n in 1usize..10, weights in proptest::collection::vec(1u32..9, 10)) {
        let values = vectors(n, 6, seed);
        let weights: Vec<f64> = weights.iter().take(n).map(|w| f64::from(*w)).collect();
        let once = weighted(&values, &weights);
        let twice: Vec<Weighted<'_>> = once
            .iter()
            .flat_map(|one| [Weighted { weight: one.weight / 2.0, ..*one }, Weighted { weight: one.weight / 2.0, ..*one }])
            .collect();
        prop_assert!(apart(&geometric_median(&once, &[]), &geometric_median(&twice, &[])) < 1e-8);
        prop_assert!(apart(&trimmed_mean(&once, 0.3), &trimmed_mean(&twice, 0.3)) < 1e-10);
        let random = &mut random(seed);
        let reference = random_basis(6, 2, random);
        let near = |random: &mut _| orthonormal(&(&reference + gaussian(6, 2, random) * 0.3)).unwrap();
        let once: Vec<(f64, Matrix)> = weights.iter().map(|w| (*w, near(random))).collect();
        let twice: Vec<(f64, Matrix)> =
            once.iter().flat_map(|(w, b)| [(w / 2.0, b.clone()), (w / 2.0, b.clone())]).collect();
        for rule in [projector_mean, projector_geometric_median] {
            let distance = (rule(&once, &reference).unwrap() - rule(&twice, &reference).unwrap()).amax();
            prop_assert!(distance < 1e-6, "{distance:e}");
        }
    }

    #[test]
    fn geometric_median_matches_oracle_minimum(
        seed in any::<u64>(), n in 1usize..15, length in 1usize..8, weights in proptest::collection::vec(1u32..9, 15)
    ) {
        let values = vectors(n, length, seed);
        let weights: Vec<f64> = weights.iter().take(n).map(|w| f64::from(*w)).collect();
        let center: Vec<f64> = (0..length).map(|i| i as f64 * 0.25 - 1.0).collect();
        let found = geometric_median(&weighted(&values, &weights), &center);
        let wide = |v: &Vec<f32>| v.iter().zip(&center).map(|(v, c)| f64::from(*v) - c).collect();
        let (radius, points) = oracle(&weights.iter().copied().zip(values.iter().map(wide)).collect::<Vec<_>>());
        let expected: Vec<f64> = minimise(radius, &points).iter().zip(&center).map(|(z, c)| z + c).collect();
        prop_assert!(apart(&found, &expected) < 1e-5 * radius, "{found:?} {expected:?}");
    }

    /// A minority of attackers with arbitrarily large updates cannot make the median longer than the longest
    /// honest update.
    #[test]
    fn minority_moves_geometric_median_within_bound(seed in any::<u64>(), size in 1f32..1e6) {
        let (honest, length) = (11, 6);
        let values = vectors(20, length, seed);
        let all: Vec<Vec<f32>> = values
            .iter()
            .enumerate()
            .map(|(i, v)| if i < honest { v.clone() } else { vec![size; length] })
            .collect();
        let longest = values[..honest]
            .iter()
            .map(|v| norm(&v.iter().map(|x| f64::from(*x)).collect::<Vec<_>>()))
            .fold(0.0, f64::max);
        let median = geometric_median(&weighted(&all, &[1.0; 20]), &[]);
        prop_assert!(norm(&median) <= longest * (1.0 + 1e-9), "{} {longest}", norm(&median));
        // If the trimmed mean cuts off as much weight as the attackers have, each coordinate lies between
        // honest values.
        let trimmed = trimmed_mean(&weighted(&all, &[1.0; 20]), 0.45);
        for (i, value) in trimmed.iter().enumerate() {
            let own: Vec<f64> = values[..honest].iter().map(|v| f64::from(v[i])).collect();
            let (low, high) = own.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
            prop_assert!((low - 1e-9..=high + 1e-9).contains(value));
        }
    }

    /// The reference repeats each value according to its integer weight, sorts the copies, and averages the
    /// middle part.
    #[test]
    fn trimmed_mean_matches_sorted_oracle(
        seed in any::<u64>(), weights in proptest::collection::vec(1usize..6, 1..10), cut in 0usize..10
    ) {
        let values = vectors(weights.len(), 3, seed);
        let total: usize = weights.iter().sum();
        let cut = cut.min((total - 1) / 2);
        let trim = cut as f64 / total as f64;
        let wide: Vec<f64> = weights.iter().map(|w| *w as f64).collect();
        let found = trimmed_mean(&weighted(&values, &wide), trim);
        for (index, found) in found.iter().enumerate() {
            let mut copies: Vec<f64> = values
                .iter()
                .zip(&weights)
                .flat_map(|(v, w)| std::iter::repeat_n(f64::from(v[index]), *w))
                .collect();
            copies.sort_by(f64::total_cmp);
            let left = &copies[cut..total - cut];
            let expected = left.iter().sum::<f64>() / left.len() as f64;
            prop_assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
    }

    /// A fifth of the devices, with the largest sample counts, send arbitrary values. Every coordinate of the
    /// result lies between honest values.
    #[test]
    fn trimmed_mean_withstands_heaviest_devices(
        seed in any::<u64>(), mut samples in proptest::collection::vec(1u32..40, 5..30), lie in -1e6f32..1e6
    ) {
        samples.sort_unstable_by(|a, b| b.cmp(a));
        let liars = samples.len() / 5;
        samples[..liars].iter_mut().for_each(|samples| *samples = samples.saturating_mul(1 << 25));
        let mut values = vectors(samples.len(), 3, seed);
        values[..liars].iter_mut().for_each(|values| values.fill(lie));
        let mut round = RoundAggregate::new(Rule::trimmed_mean(TRIM), Weighting::Samples, 3);
        for (device, (values, samples)) in (0..).zip(values.iter().zip(&samples)) {
            round.absorb(DeviceId(device), UpdateWeight::from_samples(*samples), &[tensor(Role::Gradient, 3, 1, values.clone())]);
        }
        for (index, found) in round.take_vector(&[]).unwrap().iter().enumerate() {
            let honest = || values[liars..].iter().map(|values| f64::from(values[index]));
            let (least, most) = (honest().fold(f64::MAX, f64::min), honest().fold(f64::MIN, f64::max));
            prop_assert!((least - 1e-9..=most + 1e-9).contains(found), "{found} of {least} to {most}");
        }
    }

    /// Tests the bound for random declared sample counts.
    #[test]
    fn heaviest_fifth_has_at_most_quarter_of_weight(mut declared in proptest::collection::vec(1u32.., 1..60), shift in 0u32..31) {
        declared.iter_mut().for_each(|count| *count = (*count >> shift).max(1));
        declared.sort_unstable();
        let n = declared.len();
        let cap = SampleCap { max_samples: u32::MAX, relative: true };
        let quarter = |bound: u32| {
            let sum = |counts: &[u32]| counts.iter().map(|count| u64::from((*count).min(bound))).sum::<u64>();
            4 * sum(&declared[n - n / 5..]) <= sum(&declared)
        };
        let (bound, median) = (cap.bound(&declared), declared[(n - 1) / 2]);
        prop_assert!(bound >= 1 && bound <= median && quarter(bound), "{bound}");
        // The bound is the median, or a larger bound would give the heaviest fifth more than a quarter.
        prop_assert!(bound == median || !quarter(bound + 1), "{bound}, {median}");
    }

    /// The result does not depend on the basis in which a device expresses its subspace.
    #[test]
    fn subspace_rules_are_independent_of_device_rotation(seed in any::<u64>(), n in 1usize..8, k in 1usize..4) {
        let (d, random) = (7, &mut random(seed));
        let reference = random_basis(d, k, random);
        let bases: Vec<(f64, Matrix)> = (0..n)
            .map(|i| (1.0 + i as f64, orthonormal(&(&reference + gaussian(d, k, random) * 0.2)).unwrap()))
            .collect();
        let turned: Vec<(f64, Matrix)> =
            bases.iter().map(|(w, b)| (*w, b * random_basis(k, k, random))).collect();
        for rule in [projector_mean, projector_geometric_median] {
            let (one, other) = (rule(&bases, &reference).unwrap(), rule(&turned, &reference).unwrap());
            prop_assert!((one - other).amax() < 1e-7);
        }
    }

    /// Compares with a computation on d x d projectors.
    #[test]
    fn projector_median_matches_dense_median(seed in any::<u64>(), n in 2usize..8) {
        let (d, k, random) = (6, 2, &mut random(seed));
        let reference = random_basis(d, k, random);
        let bases: Vec<(f64, Matrix)> = (0..n)
            .map(|i| (1.0 + (i % 3) as f64, orthonormal(&(&reference + gaussian(d, k, random) * 0.3)).unwrap()))
            .collect();
        let projectors: Vec<(f64, Vec<f64>)> =
            bases.iter().map(|(w, b)| (*w, (b * b.transpose()).iter().copied().collect())).collect();
        let total: f64 = bases.iter().map(|(w, _)| w).sum();
        let near = |i: usize, r: f64| -> f64 {
            projectors.iter().filter(|(_, p)| apart(p, &projectors[i].1) <= r + 1e-12).map(|(w, _)| w).sum()
        };
        let all = (0..n).flat_map(|i| (0..n).map(move |j| (i, j)));
        let spread = all
            .filter_map(|(i, j)| {
                let r = apart(&projectors[i].1, &projectors[j].1);
                (near(i, r) >= total / 2.0).then_some(r)
            })
            .fold(f64::INFINITY, f64::min);
        prop_assume!(spread > 1e-6);
        let median = Matrix::from_column_slice(d, d, &minimise(spread, &projectors));
        let eigen = median.symmetric_eigen();
        let mut order: Vec<usize> = (0..d).collect();
        order.sort_by(|a, b| eigen.eigenvalues[*b].total_cmp(&eigen.eigenvalues[*a]));
        let expected =
            Matrix::from_columns(&order[..k].iter().map(|i| eigen.eigenvectors.column(*i).into_owned()).collect::<Vec<_>>());
        let found = projector_geometric_median(&bases, &reference).unwrap();
        prop_assert!(principal_angle_distance(&expected, &found) < 1e-4);
    }

    #[test]
    fn rules_return_common_update_unchanged(seed in any::<u64>(), n in 1usize..9) {
        let one = &vectors(1, 6, seed)[0];
        let all = vec![one.clone(); n];
        let exact: Vec<f64> = one.iter().map(|v| f64::from(*v)).collect();
        let weights: Vec<f64> = (1..=n).map(|w| w as f64).collect();
        prop_assert!(apart(&geometric_median(&weighted(&all, &weights), &[]), &exact) < 1e-12);
        prop_assert!(apart(&trimmed_mean(&weighted(&all, &weights), 0.2), &exact) < 1e-12);
        prop_assert!(apart(&spectral_filter(&weighted(&all, &weights), &[], 0.2), &exact) < 1e-12);
        let random = &mut random(seed);
        let basis = random_basis(300, 3, random);
        let near = orthonormal(&(&basis + gaussian(300, 3, random) * 0.01)).unwrap();
        // The first case uses block iteration, since d = 300 is above the largest size that is decomposed
        // densely.
        for (basis, near) in [(basis, near), (random_basis(6, 2, random), random_basis(6, 2, random))] {
            let same: Vec<(f64, Matrix)> = weights.iter().map(|w| (*w, basis.clone())).collect();
            for rule in [projector_mean, projector_geometric_median] {
                prop_assert!(principal_angle_distance(&rule(&same, &near).unwrap(), &basis) < 1e-7);
            }
            // If the reference is a basis of the same subspace, the result equals the reference, so that
            // existing heads still fit.
            prop_assert!((projector_mean(&same, &basis).unwrap() - &basis).amax() < 1e-9);
        }
    }
}

/// Rank-one updates with personal heads: `n` honest gradients `M w w^T + noise` (d x k) for unit heads `w`, and
/// `M` itself, of norm 1. The noise has `noise` times the norm of the signal.
fn personal_gradients(n: usize, d: usize, k: usize, noise: f64, seed: u64) -> (Matrix, Vec<Matrix>) {
    let random = &mut random(seed);
    let common = random_basis(d, k, random) / (k as f64).sqrt();
    let gradients = (0..n)
        .map(|_| {
            let head = gaussian(k, 1, random);
            let head = &head / head.norm();
            let signal = &common * &head;
            let noise = gaussian(d, 1, random) * (noise * signal.norm() / (d as f64).sqrt());
            (signal + noise) * head.transpose()
        })
        .collect();
    (common, gradients)
}

/// Fraction of the honest progress that remains: the inner product of a rule's result with the common matrix,
/// relative to that of the honest mean.
fn progress(result: &[f64], common: &Matrix, honest: &Matrix) -> f64 {
    let along = |values: &mut dyn Iterator<Item = f64>| -> f64 {
        values.zip(common.iter()).map(|(value, common)| value * common).sum()
    };
    // `to_f32` writes rows first, so the transposed matrix has the order of the result.
    along(&mut Matrix::from_row_slice(common.nrows(), common.ncols(), result).iter().copied())
        / along(&mut honest.iter().copied())
}

/// A fifth of colluding attackers that push against the common direction of personal gradients: the spectral
/// filter keeps more than half of the progress for any k, while the geometric median loses most or all of it for
/// k = 4 and more.
#[test]
fn spectral_filter_keeps_the_direction_of_personal_gradients() {
    let (n, attackers) = (40, 8);
    for (d, k, noise) in [(20, 1, 1.0), (20, 2, 1.5), (20, 4, 1.5), (57, 8, 1.5), (128, 16, 1.0)] {
        let mut worst = (f64::INFINITY, f64::INFINITY);
        for seed in 1..=10 {
            let (common, mut gradients) = personal_gradients(n, d, k, noise, seed);
            let honest = &gradients[attackers..];
            let mean = honest.iter().fold(Matrix::zeros(d, k), |sum, g| sum + g) / honest.len() as f64;
            let mut norms: Vec<f64> = honest.iter().map(Matrix::norm).collect();
            norms.sort_by(f64::total_cmp);
            let attack = &mean * (-norms[norms.len() / 2] / mean.norm());
            gradients[..attackers].fill(attack);
            let values: Vec<Vec<f32>> = gradients.iter().map(to_f32).collect();
            let updates = weighted(&values, &vec![1.0; n]);
            let filtered = progress(&spectral_filter(&updates, &[], 0.2), &common, &mean);
            let median = progress(&geometric_median(&updates, &[]), &common, &mean);
            worst = (worst.0.min(filtered), worst.1.min(median));
        }
        println!("d {d}, k {k}: spectral filter {:.2}, geometric median {:.2}", worst.0, worst.1);
        assert!(worst.0 > 0.5, "d {d}, k {k}: {:.3} of the honest progress remain", worst.0);
        assert!(k < 4 || worst.1 < 0.2, "d {d}, k {k}: the attack is too weak to compare with");
    }
}

/// If honest updates are alike, the filter removes the attackers and returns the honest mean, in whichever
/// direction they push.
#[test]
fn spectral_filter_removes_attackers_from_alike_updates() {
    for seed in 1..=20 {
        let base = &vectors(1, 30, seed)[0];
        let mut values: Vec<Vec<f32>> = vectors(40, 30, seed + 100)
            .iter()
            .map(|noise| base.iter().zip(noise).map(|(base, noise)| base + 0.01 * noise).collect())
            .collect();
        let attack: Vec<f32> = vectors(1, 30, seed + 200)[0].clone();
        for value in values.iter_mut().take(8) {
            *value = attack.clone();
        }
        let result = spectral_filter(&weighted(&values, &[1.0; 40]), &[], 0.2);
        let exact: Vec<f64> = base.iter().map(|v| f64::from(*v)).collect();
        assert!(apart(&result, &exact) < 0.005 * norm(&exact), "{}", apart(&result, &exact) / norm(&exact));
    }
}

/// 45 % of the devices send the same plane, orthogonal to the true one. The distance of the median is at most
/// 1.6 times the distance without an attack.
#[test]
fn forty_five_percent_attackers_on_orthogonal_plane_lose() {
    let (n, d, k) = (40, 20, 2);
    let (mut clean, mut attacked, mut mean) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 1..=20 {
        let random = &mut random(seed);
        let both = random_basis(d, 2 * k, random);
        let (truth, plane) = (both.columns(0, k).into_owned(), both.columns(k, k).into_owned());
        let honest: Vec<(f64, Matrix)> =
            (0..n).map(|_| (1.0, orthonormal(&(&truth + gaussian(d, k, random) * 0.05)).unwrap())).collect();
        let mut bad = honest.clone();
        for (_, basis) in bad.iter_mut().take(18) {
            *basis = plane.clone();
        }
        let off = |basis: Matrix| principal_angle_distance(&truth, &basis);
        clean.push(off(projector_mean(&honest, &truth).unwrap()));
        attacked.push(off(projector_geometric_median(&bad, &truth).unwrap()));
        let values: Vec<Matrix> = bad.iter().map(|(_, basis)| basis.clone()).collect();
        mean.push(off(orthonormal(&values.iter().fold(Matrix::zeros(d, k), |sum, b| sum + b)).unwrap()));
    }
    let average = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    assert!(average(&attacked) <= 1.6 * average(&clean), "{} {}", average(&attacked), average(&clean));
    assert!(average(&mean) > 10.0 * average(&clean), "the attack is none: {}", average(&mean));
}

/// If steps are shorter than the rounding of an encoding, honest bases are bit-identical, or nearly so. A
/// fifth of attackers must not determine the result then.
#[test]
fn fifth_of_attackers_loses_against_exact_agreement() {
    for jitter in [0.0, 1e-7, 1e-3] {
        let at = |angle: f64| Matrix::from_column_slice(3, 1, &[angle.cos(), angle.sin(), 0.0]);
        let honest = (0..8).map(|n| at(jitter * f64::from(n - 4)));
        let bases: Vec<(f64, Matrix)> =
            honest.chain([at(0.785), at(0.785)]).map(|basis| (1.0, basis)).collect();
        let found = projector_geometric_median(&bases, &at(0.0)).unwrap();
        let off = principal_angle_distance(&found, &at(0.0));
        assert!(off < 3.0 * jitter + 1e-5, "{jitter}: {off}");
    }
}

#[test]
fn block_iteration_matches_decomposition() {
    let random = &mut random(7);
    let (d, k) = (260, 3);
    let truth = random_basis(d, k, random);
    let bases: Vec<(f64, Matrix)> = (0..6)
        .map(|i| (1.0 + f64::from(i), orthonormal(&(&truth + gaussian(d, k, random) * 0.02)).unwrap()))
        .collect();
    let sum = bases.iter().fold(Matrix::zeros(d, d), |sum, (w, b)| sum + b * b.transpose() * *w);
    let expected = fedspan_engine::linalg::top_eigenspace(&sum, k);
    let found = projector_mean(&bases, &truth).unwrap();
    assert!(principal_angle_distance(&expected, &found) < 1e-8);
}

#[test]
fn declared_samples_are_bounded_by_other_devices() {
    let relative = SampleCap { max_samples: 100, relative: true };
    assert_eq!(relative.bound(&[]), 100);
    assert_eq!(relative.bound(&[7]), 7);
    // Among devices of equal size, one device in five that declares far more or far fewer samples does not
    // change the bound.
    assert_eq!(relative.bound(&[40, 40, 40, 40, 1_000_000_000]), 40);
    assert_eq!(relative.bound(&[1, 40, 40, 40, 40]), 40);
    assert_eq!(relative.total(&[40, 40, 40, 40, 1_000_000_000]), 200);
    assert_eq!(relative.bound(&[200, 300, 400]), 100);
    // The median is 10. With this bound the two devices with false counts would have 20 of 64 samples, more
    // than a quarter.
    let unequal = [1, 1, 1, 1, 10, 10, 10, 10, 1_000_000_000, 1_000_000_000];
    assert_eq!((relative.bound(&unequal), relative.total(&unequal)), (2, 16));
    let absolute = SampleCap { max_samples: 100, relative: false };
    assert_eq!((absolute.bound(&[7]), absolute.total(&[7, 90, 100])), (100, 197));
}

/// Four devices declare 40 samples and one declares a billion. Under a robust rule its update has the same
/// weight as the others.
#[test]
fn billion_declared_samples_count_as_one() {
    let update = |value: f32| [tensor(Role::Gradient, 1, 1, vec![value])];
    for rule in [Rule::SPECTRAL_FILTER, Rule::GEOMETRIC_MEDIAN, Rule::trimmed_mean(0.0)] {
        let value = |lie: u32| {
            let mut round = RoundAggregate::new(rule, Weighting::Samples, 1);
            for device in 0..4 {
                round.absorb(DeviceId(device), UpdateWeight::from_samples(40), &update(1.0));
            }
            round.absorb(DeviceId(4), UpdateWeight::from_samples(lie), &update(-1.0));
            round.take_vector(&[]).unwrap()[0]
        };
        assert_eq!(value(1_000_000_000), value(40));
        assert!(value(40) > 0.5, "{}", value(40));
    }
}

#[test]
fn rank_deficient_representation_is_not_admitted() {
    let good = [tensor(Role::Representation, 3, 2, vec![1.0, 0.0, 0.0, 1.0, 0.0, 0.0])];
    let bad = [tensor(Role::Representation, 3, 2, vec![1.0, 2.0, 0.0, 0.0, 0.0, 0.0])];
    let round = |rule| RoundAggregate::new(rule, Weighting::Uniform, 6);
    for rule in RULES {
        assert!(round(rule).admits(&good) && round(rule).admits(&[]));
        assert!(!round(rule).admits(&bad));
        // An upload of another role may be rank deficient.
        assert!(round(rule).admits(&bad.clone().map(|tensor| Tensor { role: Role::Gradient, ..tensor })));
    }
}
