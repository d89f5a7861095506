//! Tests that no reported epsilon is above the requested epsilon, in any printed digit.

use fedspan_engine::config::PrivacySection;
use fedspan_engine::privacy::fedpower::Calibration;
use fedspan_engine::privacy::ledger_units::{epsilon_of, max_units, provisioned};
use fedspan_engine::privacy::{Delta, Epsilon, Releases, shown};
use proptest::prelude::*;

/// Ledger units (2^-30) that a device charges for a release: the inverse of the square of its noise
/// multiplier, which is in units of 2^-16, rounded up.
fn charged_units(square: u64) -> u64 {
    (1u64 << 46).div_ceil(square)
}

/// Random value between two powers of ten, with few or many digits, as a user may write it.
fn random_magnitude(from_exponent: f64, to_exponent: f64) -> impl Strategy<Value = f64> {
    let any_value = (from_exponent..to_exponent).prop_map(|exponent| libm::pow(10.0, exponent));
    // Rounds to up to 7 decimals of the mantissa, for values such as 0.5 or 0.33333.
    let short_value = (any_value.clone(), 0usize..8)
        .prop_map(|(value, digits)| format!("{value:.digits$e}").parse::<f64>().unwrap().clamp(1e-6, 1e6));
    prop_oneof![any_value.prop_map(|value| value.clamp(1e-6, 1e6)), short_value]
}

proptest! {
    #[test]
    fn scenario_report_is_within_requested_epsilon(
        requested in random_magnitude(-6.0, 6.0),
        exponent in -14.0f64..-0.5,
        releases in prop_oneof![1u32..50, 50u32..100_000],
        rank in 1u32..9,
        calibration in prop_oneof![Just(Calibration::Tight), Just(Calibration::Paper)],
    ) {
        let (epsilon, delta) =
            (Epsilon::new(requested).unwrap(), Delta::new(libm::pow(10.0, exponent)).unwrap());
        let section = PrivacySection { epsilon, delta, calibration, clip: None };
        let square = section.multiplier_square(rank, releases);
        // Devices support squares of noise multipliers in this range.
        prop_assume!(square.as_ref().is_ok_and(|square| (1 << 14..=1 << 40).contains(square)));
        let units_per_release = charged_units(square.unwrap());
        for released in [1, releases.div_ceil(3), releases] {
            let spent = epsilon_of(units_per_release * u64::from(released), delta);
            prop_assert!(spent <= requested, "{released} of {releases}: {spent} of {requested}");
            let printed: f64 = shown(spent).parse().unwrap();
            prop_assert!(
                spent <= printed && printed <= requested,
                "{spent} is printed as {printed}, asked: {requested}"
            );
        }
    }

    #[test]
    fn account_within_budget_is_within_epsilon(
        requested in random_magnitude(-6.0, 6.0),
        exponent in -14.0f64..-0.5,
        fraction in 0.0f64..1.0,
        releases in 1u32..10_000,
    ) {
        let (epsilon, delta) =
            (Epsilon::new(requested).unwrap(), Delta::new(libm::pow(10.0, exponent)).unwrap());
        let budget = max_units(epsilon, delta);
        let partly_spent = (budget as f64 * fraction) as u64;
        for spent in [budget, budget.saturating_sub(1), partly_spent.min(budget)] {
            prop_assert!(epsilon_of(spent, delta) <= requested, "{spent} of {budget}");
        }
        if let Ok((square, budget)) = provisioned(epsilon, delta, Releases::new(releases).unwrap()) {
            prop_assert!(charged_units(square) * u64::from(releases) <= budget || square == (1 << 14) + 1);
        }
    }
}

/// With many releases the rounding of the devices' charges is not negligible: a calibration that ignores it
/// exceeds the epsilon by 0.4 %.
#[test]
fn many_noisy_releases_stay_within_epsilon() {
    for requested in [0.1, 0.5, 1.0, 2.0, 10.0] {
        let (epsilon, delta) = (Epsilon::new(requested).unwrap(), Delta::new(1e-5).unwrap());
        let section = PrivacySection { epsilon, delta, calibration: Calibration::Tight, clip: None };
        for releases in [28, 1_000, 20_000, 50_000] {
            let Ok(square) = section.multiplier_square(2, releases) else { continue };
            let spent = epsilon_of(charged_units(square) * u64::from(releases), delta);
            assert!(
                spent <= requested && shown(spent).parse::<f64>().unwrap() <= requested,
                "{requested}, {releases}: {spent}"
            );
        }
    }
}
