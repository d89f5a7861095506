//! Tests of the privacy ledger: budgets in ledger units, the requirements of a server, and the accounts of
//! devices' spending.

use crate::common::campaign::{Setup, honest_update, two_device_setup};
use crate::common::create_hello;
use fedspan_aggregator::config::Fleet;
use fedspan_engine::admission::Requirements;
use fedspan_engine::config::Init;
use fedspan_engine::privacy::ledger_units::{epsilon_of, max_units, provisioned};
use fedspan_engine::privacy::{
    Composition, Delta, Epsilon, Ledger, NoiseMultiplier, PrivacyRequirement, Releases, releases,
};
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis};
use fedspan_protocol::message::{
    HeadSolve, Model, PowerRows, PowerUpload, Privacy, Refusal, Requirement, Task, Upload,
};
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;

fn delta(value: f64) -> Delta {
    Delta::new(value).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The sum of ledger units is at least the exact privacy loss, and close to it.
    #[test]
    fn ledger_units_match_exact_account(z in 0.5f64..60.0, t in 1u32..300, exponent in 1i32..12) {
        let delta = delta(10f64.powi(-exponent));
        let cost = (1_073_741_824.0 / (z * z)).ceil() as u64;
        let units = epsilon_of(cost * u64::from(t), delta);
        let multiplier = NoiseMultiplier::new(z).unwrap();
        let exact = Composition::repeated(multiplier, Releases::new(t).unwrap()).epsilon(delta);
        prop_assert!(units >= exact, "{units} under {exact}");
        // Rounding up by one unit per release costs at most as much as a slightly smaller noise multiplier.
        let slightly_less_noise = NoiseMultiplier::new(z * (1.0 - 1e-5)).unwrap();
        let above = Composition::repeated(slightly_less_noise, Releases::new(t).unwrap()).epsilon(delta);
        prop_assert!(units <= above, "{units} over {above}");
    }

    /// Provisioned noise is sufficient for all releases, stays within epsilon, and is not larger than
    /// necessary.
    #[test]
    fn provisioned_noise_covers_all_releases(
        epsilon in 0.01f64..50.0,
        exponent in 1i32..12,
        releases in 1u32..100_000,
    ) {
        let (epsilon, delta) = (Epsilon::new(epsilon).unwrap(), Delta::new(10f64.powi(-exponent)).unwrap());
        let Ok((square, budget)) = provisioned(epsilon, delta, Releases::new(releases).unwrap()) else {
            // The largest multiplier has a square of 2^24.
            prop_assert!(max_units(epsilon, delta) / u64::from(releases) < 64);
            return Ok(());
        };
        prop_assert!(square > 1 << 14 && square <= 1 << 40);
        let release = |square: u64| (1u64 << 46).div_ceil(square);
        prop_assert!(
            release(square) * u64::from(releases) <= budget && epsilon_of(budget, delta) <= epsilon.get()
        );
        let smaller_square = square - 1;
        prop_assert!(
            smaller_square <= 1 << 14
                || release(smaller_square) * u64::from(releases) > budget
                || release(smaller_square) == release(square)
        );
    }

    #[test]
    fn max_units_is_the_maximum(epsilon in 0.01f64..50.0, exponent in 1i32..12) {
        let delta = delta(10f64.powi(-exponent));
        let max_budget = max_units(Epsilon::new(epsilon).unwrap(), delta);
        prop_assert!(epsilon_of(max_budget, delta) <= epsilon);
        prop_assert!(epsilon_of(max_budget + 1, delta) > epsilon);
    }
}

#[test]
fn zero_units_cost_nothing_and_overflow_is_infinite() {
    assert_eq!(epsilon_of(0, Delta::DEFAULT), 0.0);
    assert!(epsilon_of(u64::MAX, Delta::DEFAULT) > 1e6);
}

const PRIVATE: Privacy = Privacy::Gaussian { release: 100, budget: 1_000, spent: 300 };

#[test]
fn less_noise_than_required_is_refused() {
    let minimum = PrivacyRequirement { epsilon: Epsilon::new(0.5).unwrap(), delta: delta(1e-4) };
    let max_budget = minimum.budget();
    let model = Model::linear(6, 2, 1);
    let requirements = Requirements::new(model, &[], None).with_privacy(Some(max_budget));
    let admit_with = |privacy: Privacy| {
        let mut hello = create_hello(1, (6, 2, 1), 256);
        hello.capabilities.privacy = privacy;
        requirements.admit(&hello)
    };
    let noise = |budget| Privacy::Gaussian { release: 10, budget, spent: 0 };
    assert_eq!(admit_with(noise(max_budget)), Ok(()));
    assert_eq!(admit_with(noise(1)), Ok(()));
    let refusal = Refusal::Capability(Requirement::Privacy(max_budget));
    let refused = Err(refusal);
    assert_eq!(admit_with(noise(max_budget + 1)), refused);
    assert_eq!(admit_with(Privacy::None), refused);
    let error = refusal.to_string();
    assert!(error.contains("noise in updates, with a privacy budget of at most 0.0"), "{error}");
    // Without requirements every device is admitted.
    let without_requirements = Requirements::new(model, &[], None);
    assert_eq!(without_requirements.admit(&create_hello(1, (6, 2, 1), 256)), Ok(()));
}

#[test]
fn privacy_section_is_validated() {
    let parse = |privacy: &str| {
        let configuration = format!(
            "[devices]\nexpected = 2\n[data]\nd = 6\n[model]\nk = 2\n[algorithm]\nname = \"fedpower\"\n{privacy}"
        );
        Fleet::parse("fleet.toml", &configuration)
    };
    assert_eq!(parse("").unwrap().privacy, None);
    let fleet = parse("[privacy]\nepsilon = 0.5\ndelta = 1e-4\n").unwrap();
    let minimum = fleet.privacy.unwrap();
    assert_eq!((minimum.epsilon.get(), minimum.delta.get()), (0.5, 1e-4));
    for (section, expected) in [
        ("[privacy]\nepsilon = 0\ndelta = 1e-4\n", "privacy.epsilon: found 0, allowed: a number from"),
        ("[privacy]\nepsilon = -1.0\ndelta = 1e-4\n", "privacy.epsilon: found -1.0, allowed: a number from"),
        ("[privacy]\nepsilon = 1\ndelta = 0.0\n", "privacy.delta: found 0.0, allowed: a number from"),
        ("[privacy]\nepsilon = 1\ndelta = 1.0\n", "privacy.delta: found 1.0, allowed: a number from"),
        ("[privacy]\nepsilon = nan\ndelta = 1e-4\n", "privacy.epsilon: found nan, allowed: a number from"),
        ("[privacy]\nepsilon = 1\n", "privacy.delta"),
        ("[privacy]\nepsilon = 1\ndelta = 1e-4\ncalibration = \"tight\"\n", "privacy.calibration"),
    ] {
        let error = parse(section).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// With privacy, an initialisation without noise is replaced by one with noise, and an algorithm without
/// noise is refused.
#[test]
fn private_requests_carry_noise() {
    let parse = |algorithm: &str, model: &str, privacy: &str| {
        let configuration = format!(
            "[devices]\nexpected = 2\n[data]\nd = 6\n[model]\nk = 2\n{model}[algorithm]\nname = \"{algorithm}\"\n\
             rounds = 3\nstep_size = 0.1\n{privacy}"
        );
        Fleet::parse("fleet.toml", &configuration)
    };
    let privacy = "[privacy]\nepsilon = 1\ndelta = 1e-5\n";
    let power = "init = \"power\"\npower_iterations = 2\n";
    for algorithm in ["fedrep", "gd-gd"] {
        let fleet = parse(algorithm, power, privacy).unwrap();
        assert_eq!(fleet.model.init, Init::NoisyPower { iterations: 2 });
        assert_eq!(fleet.model.init.releases(), 2);
        assert!(fleet.fingerprint().contains("model.power_iterations = 2\nprivacy.noisy_start = true\n"));
        let requests = fleet.engine().requests();
        let tasks: u32 = requests.iter().map(|request| releases(&request.task)).sum();
        assert!(requests.iter().any(|request| matches!(
            request.task,
            Task::FedPower { iterations: 1, rows: PowerRows::Weighted, upload: PowerUpload::Product, .. }
        )));
        assert_eq!(tasks, 2, "not every kind of round except that of heads has one release");
        assert_eq!(parse(algorithm, power, "").unwrap().model.init, Init::Power { iterations: 2 });
    }
    for (algorithm, model, expected) in [
        ("fedavg", "", "algorithm.name: \"fedavg\" adds no noise; allowed with [privacy]: \"fedrep\""),
        ("fedrep", "init = \"moments\"\n", "model.init: allowed for a real fleet: \"random\", \"power\""),
    ] {
        let error = parse(algorithm, model, privacy).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = parse("fedrep", "", &format!("{privacy}clip = 1.0\n")).unwrap_err().to_string();
    assert!(error.contains("privacy.clip"), "{error}");
}

#[test]
fn account_is_last_report_plus_later_updates() {
    let mut ledger = Ledger::default();
    ledger.record_hello(DeviceId(1), Privacy::None);
    assert!(ledger.accounts().is_empty());
    ledger.charge_update(DeviceId(1), 1, 5);
    assert!(ledger.accounts().is_empty(), "a device without noise has an account");
    ledger.record_hello(DeviceId(7), PRIVATE);
    assert_eq!(ledger.accounts()[&DeviceId(7)].spent, 300);
    for _ in 0..3 {
        ledger.charge_update(DeviceId(7), 4, 2);
        assert_eq!((ledger.accounts()[&DeviceId(7)].spent, ledger.fell_back()), (500, 0), "once a round");
    }
    // The device has charged itself for an update that never arrived.
    ledger.record_hello(DeviceId(7), Privacy::Gaussian { release: 100, budget: 1_000, spent: 700 });
    assert_eq!((ledger.accounts()[&DeviceId(7)].spent, ledger.fell_back()), (700, 0));
    // The device reports less spending than before: its storage was replaced, or the report is false.
    ledger.record_hello(DeviceId(7), PRIVATE);
    assert_eq!((ledger.accounts()[&DeviceId(7)].spent, ledger.fell_back()), (700, 1));
    ledger.record_hello(DeviceId(3), Privacy::Gaussian { release: 1, budget: u64::MAX, spent: u64::MAX });
    ledger.charge_update(DeviceId(3), 1, u32::MAX);
    let (per_device, largest) = ledger.epsilons(Delta::DEFAULT);
    assert_eq!(per_device.iter().map(|(device, _)| *device).collect::<Vec<_>>(), [3, 7].map(DeviceId));
    assert_eq!(largest, per_device[0].1);
    assert_eq!(per_device[1].1, epsilon_of(700, Delta::DEFAULT));
}

/// A device that computes an update and loses its link reports the charge in its next hello, and sends the
/// update afterwards. The server charges the update again on arrival; the next hello corrects the account and
/// is not counted as a report of less spending. Fault simulation found this case.
#[test]
fn update_charged_before_hello_is_not_charged_again() {
    let report = |spent| Privacy::Gaussian { release: 100, budget: 1_000, spent };
    let mut ledger = Ledger::default();
    ledger.record_hello(DeviceId(7), report(0));
    // The device has charged itself for round 1 and lost its link; the update arrives after the hello.
    ledger.record_hello(DeviceId(7), report(100));
    ledger.charge_update(DeviceId(7), 1, 1);
    assert_eq!(ledger.accounts()[&DeviceId(7)].spent, 200, "the update was not charged on arrival");
    ledger.charge_update(DeviceId(7), 2, 1);
    assert_eq!(ledger.accounts()[&DeviceId(7)].spent, 300);
    // The device repeats the report of 200 units, which is true: it has paid for both updates.
    for _ in 0..2 {
        ledger.record_hello(DeviceId(7), report(200));
        assert_eq!((ledger.accounts()[&DeviceId(7)].spent, ledger.fell_back()), (200, 0));
    }
    // The report is below the spending that the server has observed since the last hello.
    ledger.charge_update(DeviceId(7), 3, 1);
    ledger.charge_update(DeviceId(7), 4, 1);
    ledger.record_hello(DeviceId(7), report(299));
    assert_eq!((ledger.accounts()[&DeviceId(7)].spent, ledger.fell_back()), (400, 1));
}

proptest! {
    /// For an honest device that loses links, updates and acknowledgements, the account is never below the
    /// true spending, and equals it after every hello.
    #[test]
    fn account_equals_truth_after_every_hello(steps in prop::collection::vec((0u8..4, 1u32..4), 1..60)) {
        let mut ledger = Ledger::default();
        // `spent` is the number of spent units; `unsent` is the unsent update with its round and number of
        // releases.
        let mut spent = 0u64;
        let mut unsent = None;
        let mut round = 0u32;
        ledger.record_hello(DeviceId(7), Privacy::Gaussian { release: 10, budget: u64::MAX, spent: 0 });
        for (step, releases) in steps {
            match step {
                0 => {
                    ledger.record_hello(
                        DeviceId(7),
                        Privacy::Gaussian { release: 10, budget: u64::MAX, spent },
                    );
                    prop_assert_eq!(ledger.accounts()[&DeviceId(7)].spent, spent);
                }
                // A round is opened, and an unsent update for an earlier round is discarded.
                1 => {
                    round += 1;
                    spent += 10 * u64::from(releases);
                    unsent = Some((round, releases));
                }
                // The update arrives, for the first time or as a repetition.
                _ => {
                    if let Some((round, releases)) = unsent {
                        ledger.charge_update(DeviceId(7), round, releases);
                    }
                }
            }
            prop_assert_eq!(ledger.fell_back(), 0);
        }
        ledger.record_hello(DeviceId(7), Privacy::Gaussian { release: 10, budget: u64::MAX, spent });
        prop_assert_eq!((ledger.accounts()[&DeviceId(7)].spent, ledger.fell_back()), (spent, 0));
    }
}

#[test]
fn releases_are_counted_by_task() {
    let head = HeadSolve::LeastSquares { ridge: 0.0 };
    assert_eq!(releases(&Task::FitHead { head }), 0);
    let (rows, upload, encoding) = (PowerRows::Features, PowerUpload::Product, Encoding::F32);
    assert_eq!(releases(&Task::FedPower { iterations: 7, rows, upload, encoding }), 7);
    assert_eq!(releases(&Task::PowerStart), 1);
    let (head, upload) = (HeadSolve::LeastSquares { ridge: 0.0 }, Upload::Gradient);
    assert_eq!(releases(&Task::FedRep { step_size: 1.0, head, upload, encoding }), 1);
}

/// Every received update is charged once, whether it counts or not.
#[test]
fn engine_charges_received_updates() {
    let mut engine = Setup { fleet_size: 3, min_count: 2, ..two_device_setup() }.engine();
    let mut actions = Vec::new();
    for device in 0..3 {
        engine.record_privacy(
            DeviceId(device),
            Privacy::Gaussian { release: 10, budget: 100, spent: 0 },
            &mut actions,
        );
        engine.handle(Millis::ZERO, Event::Joined(DeviceId(device)), &mut actions);
    }
    let take_opening = |actions: &mut Vec<Action>| {
        let opening = actions.drain(..).find_map(|action| match action {
            Action::Open(_, opening) => Some(opening),
            _ => None,
        });
        opening.unwrap()
    };
    let spent = |engine: &Engine| -> Vec<u64> {
        engine.ledger().accounts().values().map(|account| account.spent).collect()
    };
    let first_round = take_opening(&mut actions);
    for device in [0, 0, 1, 1] {
        engine.handle(
            Millis::new(1),
            Event::Update(DeviceId(device), honest_update(DeviceId(device), &first_round)),
            &mut actions,
        );
    }
    assert_eq!(spent(&engine), [10, 10, 0], "a repeated update was charged");
    // A rejected update is charged, because it has left the device.
    let mut oversized = honest_update(DeviceId(2), &first_round);
    oversized.tensors[0].values.fill(1e5);
    engine.handle(Millis::new(2), Event::Update(DeviceId(2), oversized), &mut actions);
    assert_eq!(spent(&engine), [10, 10, 10]);
    assert_eq!(engine.counters().norm_over_bound, 1);
    // After the end of the round, a late update is charged, and an update for a round that was never sent is
    // not.
    let second_round = take_opening(&mut actions);
    assert_ne!(first_round.id, second_round.id);
    engine.handle(
        Millis::new(3),
        Event::Update(DeviceId(2), honest_update(DeviceId(2), &first_round)),
        &mut actions,
    );
    assert_eq!((spent(&engine), engine.counters().late), (vec![10, 10, 10], 1));
    let mut never_sent = honest_update(DeviceId(1), &second_round);
    never_sent.id.round = 77;
    engine.handle(Millis::new(3), Event::Update(DeviceId(1), never_sent), &mut actions);
    assert_eq!(spent(&engine), [10, 10, 10]);
    // An update that is too late for its round is charged, because it has left the device; decoded or not.
    for device in [0, 1] {
        engine.handle(
            Millis::new(4),
            Event::Update(DeviceId(device), honest_update(DeviceId(device), &second_round)),
            &mut actions,
        );
    }
    engine.handle(Millis::new(200), Event::Tick, &mut actions);
    assert_ne!(
        engine.open_round().map(|round| round.broadcast.id),
        Some(second_round.id),
        "the round is open after its deadline"
    );
    engine.handle(Millis::new(201), Event::Unread(DeviceId(2), second_round.id), &mut actions);
    assert_eq!(spent(&engine), [20, 20, 20]);
    engine.handle(
        Millis::new(202),
        Event::Update(DeviceId(2), honest_update(DeviceId(2), &second_round)),
        &mut actions,
    );
    assert_eq!(spent(&engine), [20, 20, 20]);
}
