//! Tests of the fingerprint, the text that lists the settings of a campaign: it must restore the configuration,
//! and decide whether a stored campaign may be resumed with a changed `fleet.toml`.

use std::collections::BTreeMap;

use crate::common::shapes::{parse_fleet, read_configurations};
use fedspan_aggregator::config::{Fleet, Mismatch, Resumed, difference};
use fedspan_engine::config::Source;
use proptest::prelude::*;

/// Every key of a fingerprint: keys of `fleet.toml`, and a key that is derived from `[privacy]`.
const KEYS: [&str; 67] = [
    "seed",
    "data.d",
    "data.outputs",
    "data.image",
    "model.kind",
    "model.k",
    "model.rank",
    "model.init",
    "model.power_iterations",
    "model.hidden",
    "model.filters",
    "model.side",
    "model.pool",
    "model.cells",
    "model.width",
    "model.frozen",
    "privacy.noisy_start",
    "algorithm.name",
    "algorithm.rounds",
    "algorithm.step_size",
    "algorithm.head",
    "algorithm.ridge",
    "algorithm.final_ridge",
    "algorithm.fallback_ridge",
    "algorithm.labels_per_class",
    "algorithm.head_steps",
    "algorithm.head_step_size",
    "algorithm.local_steps",
    "algorithm.iterations",
    "algorithm.decay",
    "algorithm.procrustes",
    "algorithm.reference",
    "algorithm.rows",
    "algorithm.numeric",
    "algorithm.send",
    "algorithm.momentum",
    "algorithm.batch",
    "algorithm.head_epochs",
    "algorithm.body_epochs",
    "algorithm.tuning_epochs",
    "algorithm.pull",
    "algorithm.shared_layers",
    "algorithm.inner_step",
    "algorithm.own",
    "algorithm.adaptation",
    "algorithm.part",
    "algorithm.coin",
    "algorithm.weighting",
    "algorithm.upload",
    "algorithm.download",
    "devices.expected",
    "aggregation.rule",
    "aggregation.trim",
    "participation.policy",
    "participation.r",
    "participation.n",
    "participation.n0",
    "participation.draws",
    "participation.cohort",
    "participation.draw",
    "participation.schedule",
    "participation.stage_rounds",
    "participation.contraction",
    "participation.communication",
    "participation.start",
    "participation.floor",
    "participation.by",
];

/// Keys at the end of every fingerprint; `stop.change` is present only if there is a stop rule.
const LAST: [&str; 3] = ["limits.norm", "limits.samples", "stop.change"];

/// Returns a configuration whose file sets no key.
fn without_given_keys(fleet: &Fleet) -> Fleet {
    Fleet { given: Source::parse("nothing", "", &[]).unwrap().given_keys(), ..fleet.clone() }
}

/// Returns the lines of a fingerprint: keys and values.
fn split_lines(text: &str) -> Vec<(&str, &str)> {
    text.lines().map(|line| line.split_once(" = ").unwrap()).collect()
}

/// Creates a fingerprint from keys and values.
fn join_lines<'a>(lines: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    lines.into_iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
}

/// Returns candidate values that differ from the current value. Some may be invalid for the configuration.
fn other_values(key: &str, value: &str) -> Vec<String> {
    let allowed_values: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("model.init", &["random", "power", "moments"][..]),
        ("algorithm.name", &["fedrep", "gd-gd", "fedavg", "fedper", "ditto", "fedrep+ft", "lora"]),
        ("algorithm.head", &["least-squares", "gradient"]),
        ("algorithm.rows", &["features", "weighted"]),
        ("algorithm.numeric", &["f32", "i16", "any"]),
        ("algorithm.send", &["gradient", "representation"]),
        ("algorithm.weighting", &["uniform", "samples"]),
        ("algorithm.upload", &["f32", "f16", "i8"]),
        ("algorithm.download", &["f32", "f16", "i8"]),
        ("aggregation.rule", &["mean", "geometric-median", "projector-mean"]),
        ("participation.policy", &["full", "doubling"]),
        ("participation.draw", &["round", "stage"]),
        ("participation.schedule", &["adaptive", "fixed", "theorem"]),
        ("participation.by", &["devices", "samples"]),
    ]);
    if let Some(allowed_values) = allowed_values.get(key) {
        let allowed_values = allowed_values.iter().map(|value_text| format!("{value_text:?}"));
        return allowed_values.filter(|value_text| value_text != value).collect();
    }
    if value == "[]" {
        return vec!["[7]".to_owned()];
    }
    if let Some(list) = value.strip_prefix('[') {
        let mut reversed: Vec<&str> = list.trim_end_matches(']').split(", ").collect();
        reversed.reverse();
        return vec![format!("[7, {list}"), "[3]".to_owned(), format!("[{}]", reversed.join(", "))]
            .into_iter()
            .filter(|candidate| candidate != value)
            .collect();
    }
    match (value, value.parse::<i64>(), value.parse::<f64>()) {
        ("true", ..) => vec!["false".to_owned()],
        ("false", ..) => vec!["true".to_owned()],
        (_, Ok(integer), _) => vec![(integer + 1).to_string(), (integer - 1).to_string()],
        (_, _, Ok(number)) if number > 0.0 => vec![format!("{:?}", number * 0.5)],
        (_, _, Ok(_)) => vec!["0.125".to_owned()],
        _ => Vec::new(),
    }
}

#[test]
fn fingerprint_is_toml_with_known_keys() {
    for (text, path) in read_configurations() {
        let fleet = parse_fleet(&text);
        let fingerprint_text = fleet.fingerprint();
        let source = Source::parse("fingerprint", &fingerprint_text, &[]).unwrap();
        for (key, _) in split_lines(&fingerprint_text) {
            assert!(KEYS.contains(&key) || LAST.contains(&key), "{key} of {}", path.display());
            assert!(source.given_keys().contains(key), "{key}");
        }
        for fragment in ["{", "Some", "None", "("] {
            assert!(
                !fingerprint_text.contains(fragment),
                "the fingerprint contains Rust syntax {fragment:?}: {fingerprint_text}"
            );
        }
        // The first key is `seed`, and keys of sections are dotted.
        assert!(
            fingerprint_text.starts_with("seed = ") && fingerprint_text.contains("\nlimits.norm = "),
            "{fingerprint_text}"
        );
    }
}

#[test]
fn fingerprint_restores_configuration() {
    for (text, path) in read_configurations() {
        let original = parse_fleet(&text);
        let fingerprint_text = original.fingerprint();
        // The values of `base` differ in every setting; none of them may survive.
        let base = "[listen]\nplaintext = true\n[devices]\nexpected = 8\n[data]\nd = 2\n[model]\nk = 1\n[algorithm]\nname = \"gd-gd\"\n\
                    rounds = 9\nstep_size = 0.9\nfinal_ridge = 9\n[participation]\npolicy = \"fraction\"\nr = 0.9\n[limits]\nnorm = 9\n";
        let mut base = Fleet {
            privacy: original.privacy,
            stop_change: original.stop_change,
            ..without_given_keys(&parse_fleet(base))
        };
        base.shape.image = original.shape.image;
        let Resumed { fleet: resumed_fleet, kept } = base.resumed(&fingerprint_text).unwrap();
        assert!(kept.iter().any(|line| line.starts_with("data.d = ")), "{kept:?}");
        assert_eq!(resumed_fleet.fingerprint(), fingerprint_text, "{}", path.display());
        let mut expected = Fleet { given: resumed_fleet.given.clone(), ..original };
        // These settings apply only to shared heads and to gradient steps on heads.
        expected.algorithm.head_step_size = resumed_fleet.algorithm.head_step_size;
        expected.algorithm.local_steps = resumed_fleet.algorithm.local_steps;
        assert_eq!(resumed_fleet, expected, "{}", path.display());
        // Resuming twice changes nothing.
        assert_eq!(
            resumed_fleet.resumed(&fingerprint_text).unwrap(),
            Resumed { fleet: resumed_fleet, kept: Vec::new() }
        );
    }
}

/// For every setting of every configuration: another value changes the fingerprint, and the difference names
/// the key with both values. A file that sets the key refuses the stored value, and a file that does not set
/// the key is resumed with the stored value.
#[test]
fn changed_setting_is_named_refused_or_kept() {
    let mut resumed_count = 0;
    let mut seen_keys = BTreeMap::new();
    for (text, path) in read_configurations() {
        let configured = parse_fleet(&text);
        let fingerprint_text = configured.fingerprint();
        for (index, (key, value)) in split_lines(&fingerprint_text).into_iter().enumerate() {
            for other_value in other_values(key, value) {
                let mut changed = split_lines(&fingerprint_text);
                changed[index].1 = &other_value;
                let stored = join_lines(changed);
                let expected_difference = format!("- {key} = {other_value}\n+ {key} = {value}\n");
                assert_eq!(difference(&stored, &fingerprint_text), expected_difference, "{}", path.display());
                let resumed = configured.resumed(&stored);
                match (without_given_keys(&configured).resumed(&stored), resumed) {
                    // No file can set this value, or the key must not change.
                    (Err(_), Err(_)) => {}
                    (Ok(Resumed { fleet, kept }), resumed) => {
                        assert_eq!(kept, [format!("{key} = {other_value}")]);
                        assert_eq!(difference(&stored, &fleet.fingerprint()), "");
                        *seen_keys.entry(key.to_owned()).or_insert(0) += 1;
                        resumed_count += 1;
                        let own_table = key.replace("algorithm.", "algorithm.lg-fedavg.");
                        if configured.given.contains(key) || configured.given.contains(&own_table) {
                            assert_eq!(resumed, Err(Mismatch::Differs(expected_difference)));
                        } else {
                            assert_eq!(resumed.unwrap().kept, kept);
                        }
                    }
                    (resumed_without_keys, resumed) => {
                        panic!("{key} = {other_value}: {resumed_without_keys:?}, {resumed:?}")
                    }
                }
            }
        }
    }
    assert!(resumed_count > 900, "{resumed_count}");
    let unseen: Vec<&&str> = KEYS.iter().filter(|key| !seen_keys.contains_key(**key)).collect();
    // The exceptions are keys that determine which other keys are allowed, derived keys, and keys without a
    // default.
    let selecting = ["model.kind", "algorithm.head", "participation.policy", "participation.schedule"];
    let derived = ["privacy.noisy_start", "devices.expected", "data.image"];
    assert!(unseen.iter().all(|key| selecting.contains(key) || derived.contains(key)), "{unseen:?}");
}

/// A stored policy that the file does not set is restored with all of its keys.
#[test]
fn dependent_settings_are_kept_together() {
    let base = "[devices]\nexpected = 8\n[data]\nd = 12\n[model]\nk = 3\n[algorithm]\nname = \"fedrep\"\nrounds = 5\nstep_size = 0.3\n";
    let additions = "[participation]\npolicy = \"doubling\"\nschedule = \"fixed\"\ncohort = 5\n[aggregation]\nrule = \"trimmed-mean\"\n\
                trim = 0.3\n[limits]\nnorm = 7\n";
    let (default_fleet, policy_fleet) = (parse_fleet(base), parse_fleet(&format!("{base}{additions}")));
    let Resumed { fleet: resumed_fleet, kept } = default_fleet.resumed(&policy_fleet.fingerprint()).unwrap();
    assert_eq!(resumed_fleet, Fleet { given: default_fleet.given.clone(), ..policy_fleet.clone() });
    assert!(kept.contains(&"participation.policy = \"doubling\"".to_owned()), "{kept:?}");
    // The stored campaign has the default values, which the configuration does not set.
    let policy_without_keys = Fleet { given: default_fleet.given.clone(), ..policy_fleet.clone() };
    let Resumed { fleet: resumed_fleet, kept } =
        policy_without_keys.resumed(&default_fleet.fingerprint()).unwrap();
    assert_eq!(resumed_fleet, default_fleet);
    let changed = ["participation.policy = \"full\"", "aggregation.rule = \"mean\"", "limits.norm = 10000.0"];
    changed.iter().for_each(|line| assert!(kept.iter().any(|kept| kept == line), "{line} of {kept:?}"));
    // The fleet has become too small for the stored policy.
    let small_fleet = parse_fleet(&base.replace("expected = 8", "expected = 3"));
    let Err(Mismatch::Unreadable(problem)) = small_fleet.resumed(&policy_fleet.fingerprint()) else {
        panic!("{small_fleet:?}")
    };
    let (error, expected_end) =
        (problem.to_string(), "participation.n0: found 4, allowed: at most the fleet's 3");
    assert!(error.starts_with("the stored settings:") && error.ends_with(expected_end), "{error}");
    // The absence of a key without a default is itself a setting.
    let stopping_fleet = parse_fleet(&format!("{base}[stop]\nchange = 0.001\n"));
    assert_eq!(
        default_fleet.resumed(&stopping_fleet.fingerprint()).unwrap_err().to_string(),
        "- stop.change = 0.001\n"
    );
    assert_eq!(
        stopping_fleet.resumed(&default_fleet.fingerprint()).unwrap_err().to_string(),
        "+ stop.change = 0.001\n"
    );
    let fleet_with_cohort = |cohort: &str| {
        parse_fleet(&format!("{base}[participation]\npolicy = \"first-arrivals\"\nn = 2\n{cohort}"))
    };
    let refused = fleet_with_cohort("")
        .resumed(&fleet_with_cohort("cohort = 4\n").fingerprint())
        .unwrap_err()
        .to_string();
    assert_eq!(refused, "- participation.cohort = 4\n");
    // A key that is set to its default counts as set.
    let explicit = parse_fleet(&format!("{base}[participation]\npolicy = \"full\"\n"));
    let refused = explicit.resumed(&policy_fleet.fingerprint()).unwrap_err().to_string();
    let differs = "- participation.policy = \"doubling\"\n+ participation.policy = \"full\"\n- participation.cohort = 5\n";
    assert_eq!(refused, differs);
}

/// The fingerprint does not depend on the form of the file.
#[test]
fn spelling_order_and_comments_are_ignored() {
    let original = "seed = 3\n[devices]\nexpected = 2\n[data]\nd = 20\noutputs = 2\n[model]\nk = 3\n[algorithm]\nname = \"fedrep\"\nrounds = 4\n\
                step_size = 2.0\nridge = 0.5\n[limits]\nnorm = 100.0\n";
    let spellings = [
        original.replace("2.0", "2").replace("100.0", "1e2").replace("0.5", "5e-1"),
        original.replace('\n', "\r\n"),
        original.replace("rounds = 4", "rounds = 0x4 # four").replace("k = 3", "k=+3"),
        "limits = { norm = 100 }\nalgorithm = { ridge = 0.5, step_size = 2, rounds = 4, name = 'fedrep' }\nseed = 3\nmodel.k = 3\n\
         data.outputs = 2\ndata.d = 2_0\ndevices.expected = 2\n"
            .to_owned(),
        format!("{original}samples = 100_000\n[aggregation]\nrule = \"mean\"\n[participation]\npolicy = \"full\"\n"),
        original.replace("ridge = 0.5", "final_ridge = \"auto\"\nridge = 0.5\nhead_step_size = 9\ntemporary = 1")
            .replace("\ntemporary = 1", ""),
    ];
    let expected = Fleet::parse("fleet.toml", original).unwrap().fingerprint();
    for spelling in spellings {
        let respelled = Fleet::parse("fleet.toml", &spelling).unwrap().fingerprint();
        assert_eq!(respelled, expected, "{spelling}");
    }
    // The comparison does not depend on the form of the stored text.
    let mut reordered: Vec<&str> = expected.lines().rev().collect();
    reordered.insert(3, "# a comment");
    let reordered = reordered.join("\n").replace("= 100.0", "= 100").replace("= 2.0", "= 2");
    assert_eq!(difference(&reordered, &expected), "");
    assert_ne!(reordered, expected);
}

/// Fingerprints are compared by key and not by position.
#[test]
fn difference_lists_changed_keys() {
    let stored = "seed = 1\nmodel.filters = [3, 6]\nalgorithm.rounds = 4\nlast = \"a = b\"\n";
    for (given, expected) in [
        (stored.to_owned(), ""),
        (stored.replace("[3, 6]", "[ 3, 6.0 ]").replace("seed = 1\n", "seed = 1.0 # comment\n"), ""),
        (stored.replace("last", "aggregation.rule = \"x\"\nlast"), "+ aggregation.rule = \"x\"\n"),
        (stored.replace("seed = 1\n", ""), "- seed = 1\n"),
        (stored.replace("a = b", "a = c"), "- last = \"a = b\"\n+ last = \"a = c\"\n"),
        (
            stored.replace("model.filters = [3, 6]\n", "new = 1\n").replace("rounds = 4", "rounds = 5"),
            "- model.filters = [3, 6]\n- algorithm.rounds = 4\n+ algorithm.rounds = 5\n+ new = 1\n",
        ),
        (stored.replace("3, 6", "6, 3"), "- model.filters = [3, 6]\n+ model.filters = [6, 3]\n"),
        // Lines that are no settings are compared as unknown keys.
        (
            "what is this\nseed = 1\n".to_owned(),
            "- model.filters = [3, 6]\n- algorithm.rounds = 4\n- last = \"a = b\"\n+ what is this = \n",
        ),
    ] {
        assert_eq!(difference(stored, &given), expected, "{given}");
    }
}

/// Unknown settings of a later version are refused and not ignored.
#[test]
fn unknown_settings_are_refused() {
    let fleet = parse_fleet(&read_configurations()[0].0);
    let current = fleet.fingerprint();
    for stored in [format!("{current}algorithm.later = 3\n"), format!("later.still = \"x\"\n{current}")] {
        let refused = fleet.resumed(&stored).unwrap_err();
        assert!(refused.to_string().contains("later"), "{refused}");
    }
    // The stored text lacks a key that the file does not set.
    let lacking: Vec<(&str, &str)> =
        split_lines(&current).into_iter().filter(|(key, _)| *key != "algorithm.weighting").collect();
    let refused = without_given_keys(&fleet).resumed(&join_lines(lacking)).unwrap_err().to_string();
    assert_eq!(refused, "+ algorithm.weighting = \"uniform\"\n");
}

proptest! {
    /// Settings of type f32 and f64 are restored bit for bit.
    #[test]
    fn numbers_are_restored_bit_for_bit(bits in 1u32..0x4974_2400, step_size in 1e-12f64..1e6) {
        let (narrow, ridge) = (f32::from_bits(bits), f64::from(f32::from_bits(bits)));
        let configuration = format!(
            "[devices]\nexpected = 2\n[data]\nd = 20\n[model]\nk = 3\n[algorithm]\nname = \"fedrep\"\nrounds = 4\n\
             step_size = {step_size:?}\nridge = {ridge:?}\n"
        );
        let precise = Fleet::parse("fleet.toml", &configuration).unwrap();
        let base =
            Fleet::parse("fleet.toml", &configuration.replace(&format!("{step_size:?}"), "0.5")).unwrap();
        let resumed = without_given_keys(&base).resumed(&precise.fingerprint()).unwrap().fleet;
        prop_assert_eq!(&resumed.algorithm, &fedspan_engine::config::AlgorithmSection {
            head_step_size: resumed.algorithm.head_step_size, ..precise.algorithm.clone()
        });
        prop_assert!(precise.fingerprint().contains("ridge"), "{}", narrow);
    }

    /// Any stored text yields a configuration or an error, without a panic.
    #[test]
    fn no_stored_text_causes_a_panic(
        choice in any::<prop::sample::Index>(), is_legacy in any::<bool>(),
        cut_len in any::<prop::sample::Index>(),
        noise in "[\\[\\]{}()=\"a-zS0-9., \n-]{0,20}", position in any::<prop::sample::Index>()
    ) {
        let configurations = read_configurations();
        let (configuration, path) = choice.get(&configurations);
        let fleet = parse_fleet(configuration);
        let mut stored = match is_legacy {
            true => std::fs::read_to_string(path.with_extension("txt")).unwrap(),
            false => fleet.fingerprint(),
        };
        stored.insert_str(position.index(stored.len()), &noise);
        stored.truncate(stored.len() - cut_len.index(stored.len()) / 8);
        let (with_keys, without_keys) = (fleet.resumed(&stored), without_given_keys(&fleet).resumed(&stored));
        for fleet in [with_keys, without_keys].into_iter().flatten() {
            prop_assert_eq!(difference(&stored, &fleet.fleet.fingerprint()), "");
        }
    }
}
