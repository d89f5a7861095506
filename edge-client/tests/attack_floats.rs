//! Tests of the floating-point attack (Mironov 2012; Jin, McMurtry, Rubinstein and Ohrimenko 2021) on the
//! uploads of a device with noise. In this attack, an output that one of two neighbours cannot have sent
//! proves that the other one sent it. The attack succeeds if noise is added in floats, and fails against this
//! mechanism.
//!
//! The mechanism resists because both neighbours can send the same outputs. The output is `f(n)`, where `n`
//! is the noisy integer and `f` divides by the public unit `2^g s` and rounds once. For either neighbour, `n`
//! can be any integer whose distance from the sum is at most `Variance::magnitude_max`, except with a
//! probability below 2^-2800. Up to a magnitude of 2^23 each float comes from only one `n`, so `f` hides
//! nothing. Above that magnitude a float may come from several integers, and the attacker tries all of them.
#![cfg(all(feature = "power", feature = "privacy"))]

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::attack::{Device, samples_from_rows};
use crate::common::power::*;
use crate::common::private::*;
use crate::common::*;
use crate::sampler::{box_muller_f32, box_muller_f64, words};
use fedspan_protocol::message::{PowerRows, PowerUpload};

/// Squared multipliers in units of 2^-16: the smallest; 1; 4^2; and 4096^2, at which integers do not fit a
/// float.
const SQUARES: [u64; 4] = [LEAST, 1 << 16, 1 << 20, 1 << 40];

/// Returns all integers that are sent as this float; the range is empty if there is none. `n as f32 / unit`
/// is monotone in n.
fn integers_of(value: f32, unit: f32) -> RangeInclusive<i64> {
    let nearest = (f64::from(value) * f64::from(unit)).round() as i64;
    // A float of 24 bits stands for up to 2^11 integers below 2^35, and for up to twice as many after the
    // division.
    let window = (nearest - (1 << 13))..=(nearest + (1 << 13));
    let first_reaching = |reaches: &dyn Fn(f32) -> bool| {
        let (mut low, mut high) = (*window.start(), *window.end());
        while low < high {
            let middle = low + (high - low) / 2;
            if reaches(middle as f32 / unit) { high = middle } else { low = middle + 1 }
        }
        low
    };
    let (start, end) = (first_reaching(&|float| float >= value), first_reaching(&|float| float > value));
    assert!(start > *window.start() && end < *window.end());
    start..=end - 1
}

/// Returns true if a device with this sum can have sent one of these integers.
/// `max_noise` is the largest magnitude of the noise.
fn reachable(integers: &RangeInclusive<i64>, sum: i128, max_noise: u64) -> bool {
    let (low, high) = (sum - i128::from(max_noise), sum + i128::from(max_noise));
    !integers.is_empty() && i128::from(*integers.start()) <= high && i128::from(*integers.end()) >= low
}

/// Returns true if `sum + noise` is `value` for some f32 noise. Such a noise is close to `value - sum`.
fn reachable_f32(value: f32, sum: f32) -> bool {
    let noise = value - sum;
    [noise, noise.next_up(), noise.next_down()].into_iter().any(|noise| sum + noise == value)
}

/// Returns true if `sum + noise` is `value` for some f64 noise.
fn reachable_f64(value: f64, sum: f64) -> bool {
    let noise = value - sum;
    [noise, noise.next_up(), noise.next_down()].into_iter().any(|noise| sum + noise == value)
}

/// Results of an attack on single numbers of uploads.
#[derive(Debug, Default, PartialEq, Eq)]
struct AttackResults {
    attacked: u64,
    /// Numbers that only the sender can have sent.
    proofs: u64,
    /// Numbers that only the other neighbour can have sent.
    false_proofs: u64,
    /// Numbers that neither can have sent, which would mean that the attacker's model of the sender is wrong.
    impossible: u64,
}

impl AttackResults {
    /// Counts a number that the sender, and the other neighbour, can or cannot have sent.
    fn count(&mut self, by_sender: bool, by_other: bool) {
        self.attacked += 1;
        match (by_sender, by_other) {
            (true, true) => {}
            (true, false) => self.proofs += 1,
            (false, true) => self.false_proofs += 1,
            (false, false) => self.impossible += 1,
        }
    }

    fn identifies_nobody(&self) -> bool {
        (self.proofs, self.false_proofs, self.impossible) == (0, 0, 0)
    }
}

/// Creates two neighbours with up to four records, of which the first one differs.
fn neighbour_devices(random: &mut Random, square: u64, rows: usize, k: usize) -> [Device; 2] {
    let d = k + 1;
    let z = flat(&random.orthonormal(d, k));
    let mut rows: Vec<Vec<f32>> = (0..=rows).map(|_| random.normals(d)).collect();
    let replaced = rows.pop().unwrap();
    let first = Device { samples: samples_from_rows(&rows), z, k, settings: settings(square, 1 << 15) };
    rows[0] = replaced;
    [first.clone(), Device { samples: samples_from_rows(&rows), ..first }]
}

/// Attacks at least `numbers` numbers that devices send. The first result uses the integers of the mechanism;
/// the second one uses sums of floats, where the sum and the output are exact floats.
fn attack_devices(numbers: u64) -> [AttackResults; 2] {
    const RELEASES: u64 = 500;
    let mut random = Random(13);
    let [mut by_integers, mut by_floats] = [AttackResults::default(), AttackResults::default()];
    for case in 0usize.. {
        if by_integers.attacked >= numbers {
            break;
        }
        let (square, rows) = (SQUARES[case % 4], 1 + case / 4 % 4);
        let devices = neighbour_devices(&mut random, square, rows, 1 + case % 3);
        let (unit, max_noise) = (devices[0].unit(), devices[0].noise_law().magnitude_max());
        let of_first_basis = devices.each_ref().map(Device::sums);
        // A round of two iterations also sends the basis of its second iteration, from which the attacker
        // computes the sums.
        let two_iterations = case % 8 == 7;
        let task = match two_iterations {
            true => fed_power(2, PowerRows::Features, PowerUpload::ProductAndBasis),
            false => fed_power(1, PowerRows::Features, PowerUpload::Product),
        };
        let exact = unit.to_bits().trailing_zeros() >= 23 && square < 1 << 40;
        for number in 0..if two_iterations { RELEASES / 10 } else { RELEASES } {
            let sender = random.below(2);
            let sent = devices[sender].answer(task, (case as u64) << 32 | number);
            let (product, basis) = sent.split_at(of_first_basis[0].len());
            let zq: Vec<i128> = basis.iter().map(|z| (f64::from(*z) * 32_768.0) as i128).collect();
            let sums: [Vec<i128>; 2] = std::array::from_fn(|i| match two_iterations {
                true => devices[i].sums_for(&zq),
                false => of_first_basis[i].clone(),
            });
            for (coordinate, &value) in product.iter().enumerate() {
                let integers = integers_of(value, unit);
                let can_send = |device: usize| reachable(&integers, sums[device][coordinate], max_noise);
                by_integers.count(can_send(sender), can_send(1 - sender));
                if exact {
                    let can_send =
                        |device: usize| reachable_f32(value, sums[device][coordinate] as f32 / unit);
                    by_floats.count(can_send(sender), can_send(1 - sender));
                }
            }
        }
    }
    println!("with the mechanism's integers: {by_integers:?}");
    println!("with sums of floats: {by_floats:?}");
    [by_integers, by_floats]
}

#[test]
fn no_number_of_four_million_identifies_the_sender() {
    let [by_integers, by_floats] = attack_devices(4_000_000);
    assert!(by_integers.attacked >= 4_000_000 && by_integers.identifies_nobody());
    assert!(by_floats.attacked > 2_000_000 && by_floats.identifies_nobody());
}

/// Repeats the attack on firmware that adds the noise in floats to its output. The attacker does not use the
/// method by which these floats are drawn.
#[test]
fn noise_added_in_floats_identifies_senders() {
    let mut random = Random(13);
    let mut words = words(5);
    for square in [1 << 20, 1 << 16, LEAST] {
        let [mut single, mut double] = [AttackResults::default(), AttackResults::default()];
        for case in 0..400 {
            let devices = neighbour_devices(&mut random, square, 1 + case % 4, 1 + case % 3);
            let sigma = devices[0].variance().sqrt() / f64::from(devices[0].unit());
            let task = fed_power(1, PowerRows::Features, PowerUpload::Product);
            let sums = devices
                .each_ref()
                .map(|device| run_power_round(&device.samples, task, &device.z, device.k).unwrap().1);
            for _ in 0..100 {
                let sender = random.below(2);
                for (sender_sum, other_sum) in sums[sender].iter().zip(&sums[1 - sender]) {
                    let sent = sender_sum + sigma as f32 * box_muller_f32(&mut words);
                    single.count(reachable_f32(sent, *sender_sum), reachable_f32(sent, *other_sum));
                    let (sender_sum, other_sum) = (f64::from(*sender_sum), f64::from(*other_sum));
                    let sent = sender_sum + sigma * box_muller_f64(&mut words);
                    double.count(reachable_f64(sent, sender_sum), reachable_f64(sent, other_sum));
                }
            }
        }
        let z = (square as f64 / 65_536.0).sqrt();
        for (name, results) in [("f32", single), ("f64", double)] {
            let rate = results.proofs as f64 / results.attacked as f64;
            println!("z = {z:.2}, {name}: {:.2} % of {} numbers are proofs", 100.0 * rate, results.attacked);
            assert!(rate > 0.005, "z = {z}, {name}: {rate}");
            assert_eq!((results.false_proofs, results.impossible), (0, 0));
        }
    }
}

/// On the coarsest grid, each neighbour sends every integer within three standard deviations.
#[test]
fn both_neighbours_send_every_integer() {
    let coarse_settings = settings(LEAST, 1 << 30);
    let z = identity_columns(2, 1);
    let device = |record: Vec<f32>| Device {
        samples: samples_from_rows(&[record]),
        z: z.clone(),
        k: 1,
        settings: coarse_settings,
    };
    let devices = [device(vec![1.0, 0.0]), device(vec![0.0, 0.0])];
    let sums = devices.each_ref().map(Device::sums);
    assert_eq!(sums, [[1, 0], [0, 0]]);
    let three_sigma = (3.0 * devices[0].variance().sqrt()) as i64;
    let sent_integers = devices.each_ref().map(|device| {
        let mut sent_integers = [BTreeSet::new(), BTreeSet::new()];
        for number in 0..60_000 {
            for (sent_integers, value) in sent_integers.iter_mut().zip(device.release(number)) {
                let integers = integers_of(value, device.unit());
                assert_eq!(integers.start(), integers.end());
                sent_integers.insert(*integers.start());
            }
        }
        sent_integers
    });
    for sent_integers in sent_integers.iter().flatten() {
        assert!(
            (-three_sigma..=three_sigma).all(|n| sent_integers.contains(&n)),
            "{three_sigma}: {sent_integers:?}"
        );
    }
}

/// The set of integers that are decoded from a float contains exactly those that are sent as this float.
#[test]
fn float_decodes_to_all_its_integers() {
    let mut random = Random(3);
    for case in 0..20_000 {
        let unit = (1u64 << (case % 16)) as f32 * (1 + case % 7) as f32;
        let n = (random.next() >> (30 + random.below(34))) as i64 * [1, -1][case % 2];
        let integers = integers_of(n as f32 / unit, unit);
        assert!(integers.contains(&n));
        let is_same_float = |n: i64| n as f32 / unit == *integers.start() as f32 / unit;
        assert!(integers.clone().all(is_same_float));
        assert!(!is_same_float(integers.start() - 1) && !is_same_float(integers.end() + 1));
        assert!(n.abs() > 1 << 23 || integers.start() == integers.end());
        // No integer is sent as a value half a unit away.
        if n.abs() < 1 << 20 && unit == 1.0 {
            assert!(integers_of(n as f32 + 0.5, unit).is_empty());
        }
    }
}
