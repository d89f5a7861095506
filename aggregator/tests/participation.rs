//! Who is asked: as many as the policy says, distinct, the same for the same seed and round.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeSet;

use fedspan_aggregator::engine::participation::{Fraction, Full};
use fedspan_aggregator::engine::{DeviceId, Participation};
use proptest::prelude::*;

fn fleet() -> impl Strategy<Value = Vec<DeviceId>> {
    proptest::collection::btree_set(any::<u64>(), 1..60).prop_map(|set| set.into_iter().collect())
}

fn fraction(rate: f64, over_select: f64, seed: u64) -> Fraction {
    Fraction { rate, over_select, seed }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_fraction_waits_for_r_n_distinct_devices_and_asks_more_where_told(
        fleet in fleet(), rate in 0.001f64..=1.0, over in 1.0f64..4.0, seed in any::<u64>(), round in any::<u32>()
    ) {
        let n = fleet.len();
        let cohort = fraction(rate, over, seed).cohort(round, &fleet);
        let target = ((rate * n as f64).round() as usize).clamp(1, n);
        prop_assert_eq!(cohort.target, target);
        prop_assert_eq!(cohort.devices.len(), ((over * target as f64).round() as usize).clamp(target, n));
        prop_assert!(cohort.devices.windows(2).all(|pair| pair[0] < pair[1]), "ascending and distinct");
        prop_assert!(cohort.devices.iter().all(|device| fleet.contains(device)));
        let without = fraction(rate, 1.0, seed).cohort(round, &fleet);
        prop_assert_eq!(without.devices.len(), without.target);
    }

    #[test]
    fn the_same_seed_and_round_draw_the_same_whatever_was_drawn_before(
        fleet in fleet(), seed in any::<u64>(), rounds in proptest::collection::vec(any::<u32>(), 1..6)
    ) {
        let mut used = fraction(0.4, 1.5, seed);
        for round in rounds {
            let fresh = fraction(0.4, 1.5, seed).cohort(round, &fleet);
            prop_assert_eq!(used.cohort(round, &fleet), fresh);
        }
    }

    #[test]
    fn full_asks_everyone(fleet in fleet(), round in any::<u32>()) {
        let cohort = Full.cohort(round, &fleet);
        prop_assert_eq!(cohort.target, fleet.len());
        prop_assert_eq!(cohort.devices, fleet);
    }
}

/// Every device has the same chance: 100 devices, 4000 rounds, a tenth each. The standard deviation of a
/// device's count is 19; 5.5 of them for the worst of 100.
#[test]
fn draws_are_even_and_change_from_round_to_round() {
    let fleet: Vec<DeviceId> = (0..100).collect();
    let mut counts = vec![0u32; fleet.len()];
    let mut cohorts = BTreeSet::new();
    for round in 1..=4000 {
        let cohort = fraction(0.1, 1.0, 3).cohort(round, &fleet);
        for device in &cohort.devices {
            counts[*device as usize] += 1;
        }
        cohorts.insert(cohort.devices);
    }
    assert!(counts.iter().all(|count| (295..=505).contains(count)), "{counts:?}");
    assert!(cohorts.len() > 3990);
    let other = fraction(0.1, 1.0, 4).cohort(1, &fleet);
    assert_ne!(other, fraction(0.1, 1.0, 3).cohort(1, &fleet));
}

#[test]
fn nobody_there_is_nobody_asked() {
    let cohort = fraction(0.5, 2.0, 1).cohort(1, &[]);
    assert!(cohort.devices.is_empty());
}
