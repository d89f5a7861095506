//! Tests of the participation policies: sizes of cohorts, distinct devices, equal cohorts for equal seeds and
//! rounds, and the stages of doubling participation.

use std::collections::BTreeSet;

use fedspan_engine::Tensor;
use fedspan_engine::linalg::Matrix;
use fedspan_engine::participation::{
    ClosedRound, DoubleBy, Doubling, DrawPer, FirstArrivals, Fraction, Full, Schedule, UpdateArrival,
    UploadLayout,
};
use fedspan_engine::{DeviceId, Millis, Participation};
use proptest::prelude::*;

/// Random fleets, in ascending order.
fn random_fleet() -> impl Strategy<Value = Vec<DeviceId>> {
    proptest::collection::btree_set(any::<u64>(), 1..60)
        .prop_map(|set| set.into_iter().map(DeviceId).collect())
}

fn fraction_policy(rate: f64, over_select: f64, seed: u64) -> Fraction {
    Fraction { rate, over_select, seed }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn fraction_invites_that_share_of_distinct_devices(
        fleet in random_fleet(), rate in 0.001f64..=1.0, over_select in 1.0f64..4.0, seed in any::<u64>(),
        round in any::<u32>()
    ) {
        let n = fleet.len();
        let cohort = fraction_policy(rate, over_select, seed).cohort(round, &fleet);
        let target = ((rate * n as f64).round() as usize).clamp(1, n);
        prop_assert_eq!(cohort.target, target);
        prop_assert_eq!(
            cohort.devices.len(),
            ((over_select * target as f64).round() as usize).clamp(target, n)
        );
        prop_assert!(
            cohort.devices.windows(2).all(|pair| pair[0] < pair[1]),
            "the devices are not ascending and distinct"
        );
        prop_assert!(cohort.devices.iter().all(|device| fleet.contains(device)));
        let exact_cohort = fraction_policy(rate, 1.0, seed).cohort(round, &fleet);
        prop_assert_eq!(exact_cohort.devices.len(), exact_cohort.target);
    }

    #[test]
    fn draws_depend_on_seed_and_round_alone(
        fleet in random_fleet(), seed in any::<u64>(), rounds in proptest::collection::vec(any::<u32>(), 1..6)
    ) {
        let mut used = fraction_policy(0.4, 1.5, seed);
        for round in rounds {
            let fresh = fraction_policy(0.4, 1.5, seed).cohort(round, &fleet);
            prop_assert_eq!(used.cohort(round, &fleet), fresh);
        }
    }

    #[test]
    fn full_participation_invites_all_devices(fleet in random_fleet(), round in any::<u32>()) {
        let cohort = Full.cohort(round, &fleet);
        prop_assert_eq!(cohort.target, fleet.len());
        prop_assert_eq!(cohort.devices, fleet);
    }
}

/// In each of 4000 rounds a tenth of 100 devices is drawn. The number of draws of a device has mean 400 and
/// standard deviation 19; the test allows 5.5 standard deviations.
#[test]
fn draws_are_uniform_and_change_each_round() {
    let fleet: Vec<DeviceId> = (0..100).map(DeviceId).collect();
    let mut counts = vec![0u32; fleet.len()];
    let mut cohorts = BTreeSet::new();
    for round in 1..=4000 {
        let cohort = fraction_policy(0.1, 1.0, 3).cohort(round, &fleet);
        for device in &cohort.devices {
            counts[device.0 as usize] += 1;
        }
        cohorts.insert(cohort.devices);
    }
    assert!(counts.iter().all(|count| (295..=505).contains(count)), "{counts:?}");
    assert!(cohorts.len() > 3990);
    let other_cohort = fraction_policy(0.1, 1.0, 4).cohort(1, &fleet);
    assert_ne!(other_cohort, fraction_policy(0.1, 1.0, 3).cohort(1, &fleet));
}

#[test]
fn empty_fleet_gives_empty_cohort() {
    let cohort = fraction_policy(0.5, 2.0, 1).cohort(1, &[]);
    assert!(cohort.devices.is_empty());
}

/// Closes a round without a change of the model.
fn close_round(policy: &mut dyn Participation) {
    let unchanged_model = Matrix::identity(3, 1);
    policy.closed(&ClosedRound {
        elapsed: Millis::new(10),
        short_of: None,
        before: &unchanged_model,
        model: &unchanged_model,
        ends_cycle: true,
    });
}

/// Runs one round, and returns its target and stage.
fn run_round(policy: &mut Doubling, number: u32, fleet: &[DeviceId]) -> (usize, u16) {
    let cohort = policy.cohort(number, fleet);
    close_round(policy);
    (cohort.target, cohort.stage)
}

#[test]
fn stages_double_up_to_whole_fleet() {
    let fleet: Vec<DeviceId> = (0..30).map(DeviceId).collect();
    let mut policy = Doubling::new(4, None, Schedule::Fixed(2), DoubleBy::Devices, 1);
    let rounds: Vec<(usize, u16)> = (1..=9).map(|number| run_round(&mut policy, number, &fleet)).collect();
    assert_eq!(rounds, [(4, 0), (4, 0), (8, 1), (8, 1), (16, 2), (16, 2), (30, 3), (30, 3), (30, 3)]);
    // If the fleet is smaller than the target of the first stage, the first stage waits for all devices.
    assert_eq!(
        run_round(&mut Doubling::new(64, None, Schedule::Fixed(2), DoubleBy::Devices, 1), 1, &fleet),
        (30, 0)
    );
    // The target of a stage decreases with the fleet.
    assert_eq!(run_round(&mut policy, 10, &fleet[..5]), (5, 3));
    let mut policy = Doubling::new(4, None, Schedule::Fixed(2), DoubleBy::Devices, 1);
    let fleets = [30, 30, 30, 7, 5, 3, 30];
    let rounds: Vec<_> =
        (1..).zip(fleets).map(|(number, n)| run_round(&mut policy, number, &fleet[..n])).collect();
    // When the devices return, the schedule continues from the interrupted stage.
    assert_eq!(rounds, [(4, 0), (4, 0), (8, 1), (7, 1), (5, 1), (3, 1), (16, 2)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// A cohort that is drawn for a stage stays the same during the stage, even after a restart.
    #[test]
    fn stage_keeps_cohort_over_restart(
        fleet in random_fleet(), first_target in 1usize..20, cohort in 1usize..80, stage_rounds in 1u32..4,
        seed in any::<u64>(), restart_after in 0u32..12
    ) {
        let fresh = || {
            Doubling::new(first_target, Some(cohort), Schedule::Fixed(stage_rounds), DoubleBy::Devices, seed).drawn_per(DrawPer::Stage)
        };
        let mut policy = fresh();
        let mut resumed = fresh();
        let mut previous: Option<(u16, Vec<DeviceId>)> = None;
        for number in 1..=12 {
            let drawn = policy.cohort(number, &fleet);
            prop_assert_eq!(drawn.devices.len(), cohort.min(fleet.len()));
            prop_assert!(drawn.target >= 1 && drawn.target <= drawn.devices.len());
            if let Some((stage, devices)) = &previous {
                prop_assert!(*stage <= drawn.stage);
                prop_assert!(*stage != drawn.stage || *devices == drawn.devices);
            }
            if number > restart_after {
                prop_assert_eq!(resumed.cohort(number, &fleet), drawn.clone());
                close_round(&mut resumed);
            }
            previous = Some((drawn.stage, drawn.devices));
            close_round(&mut policy);
            if number == restart_after {
                resumed = fresh();
                prop_assert!(resumed.restore(&policy.state()));
            }
        }
    }
}

/// An outage after which fewer devices are present than a stage waits for does not advance the schedule.
#[test]
fn schedule_survives_shrunken_fleet() {
    let fleet: Vec<DeviceId> = (0..64).map(DeviceId).collect();
    let fleets = [64, 64, 3, 1, 64, 64];
    let run = |schedule| {
        let mut policy = Doubling::new(4, None, schedule, DoubleBy::Devices, 1);
        let rounds = (1..).zip(fleets).map(|(number, n)| run_round(&mut policy, number, &fleet[..n]).0);
        rounds.collect::<Vec<_>>()
    };
    assert_eq!(run(Schedule::Fixed(10)), [4, 4, 3, 1, 4, 4]);
    assert_eq!(run(Schedule::Theorem { contraction: 0.05 }), [4, 4, 3, 1, 4, 4]);
}

/// When stages double by samples, a single device cannot complete a round by declaring a huge sample count.
#[test]
fn inflated_sample_count_completes_no_round_alone() {
    let fleet: Vec<DeviceId> = (0..10).map(DeviceId).collect();
    let mut policy = Doubling::new(3, None, Schedule::Fixed(2), DoubleBy::Samples, 1);
    run_rounds_with_sizes(&mut policy, &[10; 10], 3);
    let sample_target = policy.cohort(4, &fleet).sample_target.unwrap();
    assert_eq!((sample_target.samples, sample_target.answers), (60, 3));
}

/// If a cohort is drawn for every round, every device is eventually invited. Each cohort equals the cohort
/// that [`Fraction`] draws with the same seed.
#[test]
fn cohort_is_drawn_for_every_round() {
    let fleet: Vec<DeviceId> = (0..40).map(DeviceId).collect();
    let mut policy = Doubling::new(4, Some(8), Schedule::Fixed(100), DoubleBy::Devices, 5);
    let mut invited = BTreeSet::new();
    for number in 1..=60 {
        let cohort = policy.cohort(number, &fleet);
        assert_eq!((cohort.target, cohort.stage), (4, 0));
        assert_eq!(cohort.devices, fraction_policy(0.2, 1.0, 5).cohort(number, &fleet).devices);
        invited.extend(cohort.devices);
        close_round(&mut policy);
    }
    assert_eq!(invited.len(), 40);
}

#[test]
fn invalid_state_is_refused() {
    let mut policy = Doubling::new(4, None, Schedule::Fixed(2), DoubleBy::Devices, 1);
    for state in [
        vec![],
        vec![1.0, 4.0],
        vec![0.5, 4.0, 0.0, 4.0, 9.0],
        vec![-1.0, 4.0, 0.0, 4.0, 9.0],
        vec![0.0, f64::NAN, 0.0, 4.0, 9.0],
        vec![1e9, 4.0, 0.0, 4.0, 9.0],
        vec![1.0, 4.0, 0.0, 4.0, 9.0, 1.0],
    ] {
        assert!(!policy.restore(&state), "{state:?}");
    }
    assert_eq!(policy.state(), [0.0; 5]);
}

/// Runs rounds of devices with a fixed order of arrival and fixed sample counts `sizes`. Returns the number
/// of participants and the stage of each round.
fn run_rounds_with_sizes(policy: &mut Doubling, sizes: &[u32], rounds: u32) -> Vec<(usize, u16)> {
    let fleet: Vec<DeviceId> = (0..sizes.len() as u64).map(DeviceId).collect();
    let mut counted = Vec::new();
    for number in 1..=rounds {
        let cohort = policy.cohort(number, &fleet);
        assert_eq!(cohort.devices, fleet);
        let mut answers = 0;
        let mut samples = 0;
        for (arrival, size) in sizes.iter().enumerate() {
            let enough = cohort.sample_target.is_some_and(|e| samples >= e.samples && answers >= e.answers);
            if answers == cohort.target || enough {
                break;
            }
            answers += 1;
            samples += u64::from(*size);
            let b = Matrix::identity(3, 1);
            let answer = UpdateArrival {
                elapsed: Millis::new(arrival as u64),
                samples,
                tensors: &[] as &[Tensor],
                model: &b,
                layout: UploadLayout::Representation,
            };
            policy.counted(&answer);
        }
        close_round(policy);
        counted.push((answers, cohort.stage));
    }
    counted
}

/// The first two devices have 10 samples together, so the stages wait for 10, 20, 40, 80 and all 100 samples.
#[test]
fn doubling_by_samples_doubles_sample_count() {
    let sizes = [3, 7, 10, 5, 5, 5, 5, 20, 20, 20];
    let mut policy = Doubling::new(2, None, Schedule::Fixed(2), DoubleBy::Samples, 1);
    let counted = run_rounds_with_sizes(&mut policy, &sizes, 11);
    let expected = [2, 2, 3, 3, 7, 7, 9, 9, 10, 10, 10];
    let stages: Vec<u16> = vec![0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4];
    assert_eq!(counted, expected.into_iter().zip(stages).collect::<Vec<_>>());
    // If all devices have the same number of samples, doubling by samples waits for as many devices as
    // doubling by devices.
    let mut by_samples = Doubling::new(4, None, Schedule::Fixed(1), DoubleBy::Samples, 1);
    let mut by_devices = Doubling::new(4, None, Schedule::Fixed(1), DoubleBy::Devices, 1);
    assert_eq!(
        run_rounds_with_sizes(&mut by_samples, &[6; 30], 8),
        run_rounds_with_sizes(&mut by_devices, &[6; 30], 8)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// For any sample counts, the number of participants never decreases, the last stage includes all
    /// devices, and a restart changes nothing.
    #[test]
    fn doubling_by_samples_ends_with_all_devices(
        sizes in proptest::collection::vec(1u32..1000, 1..40), first_target in 1usize..8,
        restart_after in 0u32..20
    ) {
        let fresh = || Doubling::new(first_target, None, Schedule::Fixed(1), DoubleBy::Samples, 1);
        let mut policy = fresh();
        let rounds_before = run_rounds_with_sizes(&mut policy, &sizes, restart_after);
        let mut resumed = fresh();
        prop_assert!(resumed.restore(&policy.state()));
        let rounds_after = run_rounds_with_sizes(&mut resumed, &sizes, 40 - restart_after);
        prop_assert_eq!(
            run_rounds_with_sizes(&mut fresh(), &sizes, 40),
            [rounds_before, rounds_after.clone()].concat()
        );
        prop_assert_eq!(rounds_after.last().unwrap().0, sizes.len());
        prop_assert!(rounds_after.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }

    #[test]
    fn first_arrivals_wait_for_n_of_cohort(
        fleet in random_fleet(), n in 1usize..40, cohort in proptest::option::of(1usize..40),
        round in any::<u32>()
    ) {
        let drawn = FirstArrivals { n, cohort, seed: 3 }.cohort(round, &fleet);
        prop_assert_eq!(drawn.devices.len(), cohort.unwrap_or(usize::MAX).min(fleet.len()));
        prop_assert_eq!(drawn.target, n.min(drawn.devices.len()));
        prop_assert!(
            drawn.devices.windows(2).all(|pair| pair[0] < pair[1]),
            "the devices are not ascending and distinct"
        );
        prop_assert!(drawn.devices.iter().all(|device| fleet.contains(device)));
    }
}
