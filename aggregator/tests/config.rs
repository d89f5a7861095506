//! Tests of the configuration `fleet.toml`: the example is valid, and the message for every kind of mistake
//! contains the position, the value found and the values allowed.

use std::time::Duration;

use fedspan_aggregator::config::{Fleet, Security};
use fedspan_engine::DeviceId;
use fedspan_engine::aggregate::Rule;
use fedspan_engine::algorithm::network::{FedAvg, NetworkMethod, Scaffold};
use fedspan_engine::config::{Init, Method, NetworkSection, Source, nearest};
use fedspan_engine::participation::{FractionSettings, Policy};
use proptest::prelude::*;

const EXAMPLE: &str = include_str!("../examples/fleet.toml");

const BASE: &str = "seed = 3\n[devices]\nexpected = 2\n[data]\nd = 20\noutputs = 2\n[model]\nk = 3\n\
                    [algorithm]\nname = \"fedrep\"\nrounds = 4\nstep_size = 0.5\n";

/// Returns the error message for [`BASE`] with `old` replaced by `new`, or with `new` appended if `old` is
/// empty.
fn message(old: &str, new: &str) -> String {
    let configuration = if old.is_empty() { format!("{BASE}{new}\n") } else { BASE.replacen(old, new, 1) };
    assert_ne!(configuration, BASE, "the replacement replaced nothing");
    Fleet::parse("fleet.toml", &configuration).expect_err(&configuration).to_string()
}

#[test]
fn example_is_valid() {
    let fleet = Fleet::parse("fleet.toml", EXAMPLE).unwrap();
    assert_eq!((fleet.expected, fleet.shape.features, fleet.shape.outputs, fleet.model.k), (8, 58, 7, 24));
    assert_eq!(fleet.algorithm.name(), "fedrep");
    assert_eq!(fleet.participation, Policy::FULL);
    assert_eq!(fleet.rounds.deadline, Some(Duration::from_secs(60)));
    assert_eq!(fleet.engine().representation().shape(), (58, 24));
}

/// Keys in comments of the example are valid too.
#[test]
fn example_comments_are_valid() {
    let uncommented = EXAMPLE
        .replace("# allow = [1, 2, 3, 4, 5, 6, 7, 8]", "allow = [1, 2, 3, 4, 5, 6, 7, 8]")
        .replace("init = \"random\"", "init = \"power\"")
        .replace("policy = \"full\"", "policy = \"fraction\"\nr = 0.5")
        .replace("name = \"fedrep\"", "name = \"fedavg\"")
        .replace("# [stop]", "[stop]")
        .replace("# change = 1e-4", "change = 1e-4")
        .replace("# keys =", "keys =")
        .replace("# key_file =", "key_file =");
    let fleet = Fleet::parse("fleet.toml", &uncommented).unwrap();
    assert_eq!(fleet.allowed, Some((1..=8).map(DeviceId).collect()));
    assert_eq!(fleet.model.init, Init::Power { iterations: 5 });
    assert_eq!(fleet.participation, Policy::Fraction(FractionSettings { r: 0.5 }));
    assert_eq!(fleet.stop_change, Some(1e-4));
    let keys =
        Security::Keys { store: "fedspan-state/keys".into(), key_file: Some("/etc/fedspan/key".into()) };
    assert_eq!(fleet.security, keys);
    let test_bench = Fleet::parse("fleet.toml", &EXAMPLE.replace("# plaintext = true", "plaintext = true"));
    assert_eq!(test_bench.unwrap().security, Security::Plaintext);
}

#[test]
fn keys_and_plaintext_exclude_each_other() {
    let parse = |listen: &str, devices: &str| {
        let configuration =
            format!("state = \"here\"\n{}\n[listen]\n{listen}\n", BASE.replace("expected = 2", devices));
        Fleet::parse("fleet.toml", &configuration)
    };
    let security = |listen: &str, devices: &str| parse(listen, devices).unwrap().security;
    let keys = |store: &str, key_file: Option<&str>| Security::Keys {
        store: store.into(),
        key_file: key_file.map(Into::into),
    };
    let with_store = "expected = 2\nkeys = \"/var/keys\"";
    let with_key_file = "expected = 2\nkey_file = \"/etc/key\"";
    assert_eq!(security("", with_store), keys("/var/keys", None));
    assert_eq!(security("", with_key_file), keys("here/keys", Some("/etc/key")));
    assert_eq!(security("plaintext = false", "expected = 2"), keys("here/keys", None));
    assert_eq!(security("plaintext = true", "expected = 2"), Security::Plaintext);
    assert_eq!(
        security("", "expected = 2"),
        keys("here/keys", None),
        "a configuration without the key allowed plaintext"
    );
    for (devices, key) in [(with_store, "keys"), (with_key_file, "key_file")] {
        let error = parse("plaintext = true", devices).unwrap_err().to_string();
        let expected =
            format!(": listen.plaintext: found true, but devices.{key} asks for keys: remove one of the two");
        assert!(error.starts_with("fleet.toml:17") && error.ends_with(&expected), "{error}");
    }
    let empty_error = parse("", "expected = 2\nkeys = \"\"").unwrap_err().to_string();
    assert!(empty_error.contains("devices.keys: found \"\", allowed: a file"), "{empty_error}");
    let word_error = parse("plaintext = \"yes\"", "expected = 2").unwrap_err().to_string();
    assert!(word_error.contains("listen.plaintext: found \"yes\", allowed: true or false"), "{word_error}");
    // `serve` checks this before it listens.
    let missing_store = keys("/nowhere/keys", None).check_store().unwrap_err();
    assert!(missing_store.starts_with("/nowhere/keys: no key store"), "{missing_store}");
    assert!(
        missing_store.contains("keys add DEVICE...")
            && missing_store.contains("`plaintext = true` in [listen]")
    );
    assert_eq!(keys("/dev/null", None).check_store(), Ok(()));
    assert_eq!(Security::Plaintext.check_store(), Ok(()));
}

/// Tests that wrong settings of packets are refused in a line, and that right ones are read.
#[test]
fn settings_of_packets_are_checked() {
    for (listen, part) in [
        ("udp = \"4411\"", "listen.udp: found \"4411\", allowed: an address with a port"),
        ("udp = \"0.0.0.0:99999\"", "listen.udp: found"),
        (
            "udp = \"0.0.0.0:4411\"\npacket = 17",
            "listen.packet: found 17, allowed: an integer from 18 to 65507",
        ),
        ("packet = 244", "listen.packet: the length of packets over UDP, which needs `udp` or `beacon`"),
        ("short_tags = 8", "listen.short_tags: found 8"),
        (
            "beacon = \"239.255.70.83\"",
            "listen.beacon: found \"239.255.70.83\", allowed: an address with a port",
        ),
        ("beacon_delay = 1", "listen.beacon_delay: the time to a beacon, which needs `beacon`"),
        (
            "beacon = \"239.255.70.83:4412\"\nplaintext = true",
            "listen.beacon: beacons need keys, by which devices recognise them",
        ),
        (
            "beacon = \"239.255.70.83:4412\"\nbeacon_delay = 10",
            "listen.beacon_delay: found 10, allowed: less than 10, the time of limits.repeat",
        ),
        ("beacon = \"239.255.70.83:4412\"\nbeacon_delay = -1", "listen.beacon_delay: found -1"),
    ] {
        let found = message("", &format!("[listen]\n{listen}"));
        assert!(found.contains(part), "{found}");
    }
    let text = format!("{BASE}[listen]\nudp = \"0.0.0.0:4411\"\npacket = 244\nshort_tags = false\n");
    let fleet = Fleet::parse("fleet.toml", &text).unwrap();
    assert_eq!((fleet.udp.as_deref(), fleet.packet, fleet.short_tags), (Some("0.0.0.0:4411"), 244, false));
    assert_eq!(fleet.beacon, None);
    let text = format!("{BASE}[listen]\nbeacon = \"239.255.70.83:4412\"\nbeacon_delay = 1.5\npacket = 244\n");
    let fleet = Fleet::parse("fleet.toml", &text).unwrap();
    assert_eq!(fleet.beacon.as_deref(), Some("239.255.70.83:4412"));
    assert_eq!((fleet.beacon_delay, fleet.packet), (Duration::from_millis(1500), 244));
}

/// An aggregation rule that does not fit the uploads, or does not exist, is refused.
#[test]
fn rules_must_fit_uploads() {
    let rule_message = |name: &str| message("", &format!("[aggregation]\nrule = {name:?}"));
    assert_eq!(
        rule_message("projector-mean"),
        "fleet.toml:14: aggregation.rule: found \"projector-mean\", a rule for subspaces, but \"fedrep\" with send = \
         \"gradient\" uploads gradients; allowed: \"mean\", \"spectral-filter\", \"geometric-median\", \"trimmed-mean\" (or send = \
         \"representation\")"
    );
    assert!(rule_message("geometric-medain").contains("did you mean \"geometric-median\"?"));
    let trim_message = |line: &str| message("", &format!("[aggregation]\nrule = \"trimmed-mean\"\n{line}"));
    assert!(
        trim_message("trim = 0.5")
            .starts_with("fleet.toml:15: aggregation.trim: found 0.5, allowed: a number from 0.05 to 0.49")
    );
    // A trimmed mean with `trim = 0` would be the mean.
    assert!(trim_message("trim = 0").contains("found 0, allowed: a number from 0.05 to 0.49"));
    let unused_trim = message("", "[aggregation]\nrule = \"mean\"\ntrim = 0.1");
    assert!(unused_trim.starts_with("fleet.toml:15: aggregation.trim: unknown key"), "{unused_trim}");
    let sample_message = message("", "[limits]\nsamples = 0");
    assert!(
        sample_message.starts_with("fleet.toml:14: limits.samples: found 0, allowed: an integer from 1 to"),
        "{sample_message}"
    );
    let subspace = "[aggregation]\nrule = \"projector-geometric-median\"\n";
    let representation_uploads = BASE.replace("rounds = 4", "rounds = 4\nsend = \"representation\"");
    assert!(Fleet::parse("fleet.toml", &format!("{representation_uploads}{subspace}")).is_ok());
    let fedavg_uploads = representation_uploads.replace("fedrep", "fedavg");
    let error = Fleet::parse("fleet.toml", &format!("{fedavg_uploads}{subspace}")).unwrap_err().to_string();
    assert!(error.contains("\"fedavg\" uploads a model; allowed: \"mean\""), "{error}");
    // FlexLoRA factorises the mean of products, so the mean is the only possible rule.
    let parse_adapter = |name: &str, rule: &str| {
        let configuration =
            BASE.replace("fedrep", name).replace("k = 3", "kind = \"lora-mlp\"\nrank = 2\nwidth = 4");
        Fleet::parse("fleet.toml", &format!("{configuration}[aggregation]\nrule = {rule:?}\n"))
    };
    for name in ["rolora", "lora", "ffa-lora"] {
        assert!(parse_adapter(name, "geometric-median").is_ok(), "{name}");
    }
    assert!(parse_adapter("flexlora", "mean").is_ok());
    let with_base_model = BASE
        .replace("fedrep", "lora")
        .replace("k = 3", "kind = \"lora-mlp\"\nrank = 2\nwidth = 4\nbase = \"d\"");
    let error = Fleet::parse("fleet.toml", &with_base_model).unwrap_err().to_string();
    assert!(error.contains("model.base: which simulated devices read"), "{error}");
    let error = parse_adapter("flexlora", "trimmed-mean").unwrap_err().to_string();
    assert!(
        error.contains("found \"trimmed-mean\", but \"flexlora\" is a mean of products; allowed: \"mean\""),
        "{error}"
    );
}

/// The mean causes advice that names a more robust rule, and so do weights that devices declare. The rule is
/// part of the fingerprint.
#[test]
fn mean_causes_advice_and_rule_changes_fingerprint() {
    let fleet = |addition: &str| Fleet::parse("fleet.toml", &format!("{BASE}{addition}")).unwrap();
    let mean = fleet("");
    assert_eq!(mean.rule, Rule::MEAN);
    assert!(mean.advice().unwrap().contains("\"spectral-filter\" withstands a fifth of attackers"));
    let sends = BASE.replace("rounds = 4", "rounds = 4\nsend = \"representation\"");
    let subspaces = Fleet::parse("fleet.toml", &sends).unwrap();
    assert!(
        subspaces.advice().unwrap().contains("\"projector-geometric-median\" withstands more with k <= 2")
    );
    let median = fleet("[aggregation]\nrule = \"geometric-median\"");
    assert!(median.advice().unwrap().contains("worse than the mean with k >= 4 or few samples"));
    let robust = fleet("[aggregation]\nrule = \"spectral-filter\"");
    assert_eq!(robust.advice(), None);
    let by_samples = BASE.replace("rounds = 4", "rounds = 4\nweighting = \"samples\"");
    let by_samples = format!("{by_samples}[aggregation]\nrule = \"geometric-median\"");
    let advice = Fleet::parse("fleet.toml", &by_samples).unwrap().advice().unwrap();
    assert!(advice.contains("which \"geometric-median\" does not always withstand"), "{advice}");
    assert!(robust.limits.samples.relative && !mean.limits.samples.relative);
    assert!(mean.fingerprint().contains("aggregation.rule = \"mean\"\n"));
    assert!(robust.fingerprint().contains("aggregation.rule = \"spectral-filter\"\n"));
    assert!(robust.fingerprint().contains("aggregation.attackers = 0.2\n"));
    let trimmed_fingerprint =
        |trim: &str| fleet(&format!("[aggregation]\nrule = \"trimmed-mean\"\ntrim = {trim}")).fingerprint();
    assert_ne!(trimmed_fingerprint("0.1"), trimmed_fingerprint("0.2"));
}

/// `[stop]` is a section of simulations. A server supports only one of its keys and refuses the others with
/// the reason.
#[test]
fn simulation_targets_are_refused_with_reason() {
    for (key, reason) in [
        ("distance = 0.01", "only a simulation knows the true representation"),
        ("accuracy = 0.9", "a server sees no samples, only a simulation does"),
        ("loss = 0.1", "a server sees no samples, only a simulation does"),
        ("simulated_time = 50", "only a simulation has such a clock"),
    ] {
        let name = key.split(' ').next().unwrap();
        let expected =
            |line| format!("fleet.toml:{line}: stop.{name}: {reason}; a server can stop by \"change\"");
        assert_eq!(message("", &format!("[stop]\n{key}")), expected(14));
        assert_eq!(message("", &format!("[stop]\nchange = 1e-4\n{key}")), expected(15));
    }
    let range = "fleet.toml:14: stop.change: found 0, allowed: a number from 1e-12 to 1";
    assert_eq!(message("", "[stop]\nchange = 0"), range);
    let unknown = "fleet.toml:14: stop.chnage: unknown key (did you mean \"change\"?), allowed: change";
    assert_eq!(message("", "[stop]\nchnage = 1"), unknown);
}

#[test]
fn every_mistake_has_a_message() {
    let cases = [
        // Unknown keys; the message suggests the nearest known key.
        (
            "step_size = 0.5",
            "step_sise = 0.5",
            "fleet.toml:12: algorithm.step_sise: unknown key (did you mean \"step_size\"?), allowed: a number from 0 to 1000000",
        ),
        (
            "step_size = 0.5",
            "",
            "fleet.toml:9: algorithm.step_size is missing, allowed: a number from 0 to 1000000",
        ),
        (
            "",
            "roundz = 5",
            "fleet.toml:13: algorithm.roundz: unknown key (did you mean \"rounds\"?), allowed: ",
        ),
        (
            "seed = 3",
            "sead = 3",
            "fleet.toml:1: sead: unknown key (did you mean \"seed\"?), allowed: aggregation, algorithm, data, devices, ",
        ),
        ("[data]", "[dada]", "fleet.toml: data.d is missing, allowed: an integer from 1 to 65535"),
        (
            "",
            "[limitz]\nidle = 1",
            "fleet.toml:13: limitz: unknown key (did you mean \"limits\"?), allowed: ",
        ),
        ("", "[participation]\nr = 0.5", "fleet.toml:14: participation.r: unknown key"),
        // Values of a wrong type.
        (
            "k = 3",
            "k = \"three\"",
            "fleet.toml:8: model.k: found \"three\", allowed: an integer from 1 to 1024",
        ),
        ("k = 3", "k = 3.0", "fleet.toml:8: model.k: found 3.0, allowed: an integer from 1 to 1024"),
        (
            "rounds = 4",
            "rounds = true",
            "fleet.toml:11: algorithm.rounds: found true, allowed: an integer from 1 to 10000000",
        ),
        (
            "name = \"fedrep\"",
            "name = 7",
            "fleet.toml:10: algorithm.name: found 7, allowed: \"fedrep\", \"gd-gd\"",
        ),
        (
            "step_size = 0.5",
            "step_size = \"0.5\"",
            "fleet.toml:12: algorithm.step_size: found \"0.5\", allowed: a number from 0",
        ),
        ("seed = 3", "seed = 3\nlimits = 3", "fleet.toml:2: limits: found 3, allowed: a table"),
        ("", "[devices.allow]", "devices.allow: found a table, allowed: a list of device numbers from 0"),
        (
            "expected = 2",
            "expected = 2\nallow = [1, \"two\"]",
            "fleet.toml:4: devices.allow: found [1, \"two\"], allowed: a list of device numbers from 0",
        ),
        (
            "expected = 2",
            "expected = 2\nallow = [1, -2]",
            "fleet.toml:4: devices.allow: found [1, -2], allowed: ",
        ),
        // Values out of range.
        ("d = 20", "d = 0", "fleet.toml:5: data.d: found 0, allowed: an integer from 1 to 65535"),
        ("d = 20", "d = 65536", "fleet.toml:5: data.d: found 65536, allowed: an integer from 1 to 65535"),
        ("k = 3", "k = -3", "fleet.toml:8: model.k: found -3, allowed: an integer from 1 to 1024"),
        (
            "rounds = 4",
            "rounds = 0",
            "fleet.toml:11: algorithm.rounds: found 0, allowed: an integer from 1 to 10000000",
        ),
        (
            "step_size = 0.5",
            "step_size = -0.5",
            "fleet.toml:12: algorithm.step_size: found -0.5, allowed: a number from 0 to 1000000",
        ),
        ("step_size = 0.5", "step_size = nan", "found nan, allowed: a number from 0 to 1000000"),
        ("step_size = 0.5", "step_size = inf", "found inf, allowed: a number from 0 to 1000000"),
        (
            "",
            "[participation]\npolicy = \"fraction\"\nr = 1.5",
            "fleet.toml:15: participation.r: found 1.5, allowed: a number from",
        ),
        (
            "",
            "[participation]\npolicy = \"doubling\"\nn0 = 30",
            "fleet.toml:15: participation.n0: found 30, allowed: at most the fleet's 2",
        ),
        (
            "",
            "[participation]\npolicy = \"doubling\"\nn0 = 3\ncohort = 2",
            "fleet.toml:15: participation.n0: 3 is more than the cohort of 2",
        ),
        ("", "[participation]\npolicy = \"first-arrivals\"\ncohort = 2", "participation.n is missing"),
        (
            "",
            "[participation]\npolicy = \"doubling\"\nschedule = \"optimal\"",
            "participation.communication is missing",
        ),
        (
            "",
            "[participation]\npolicy = \"fraction\"\nr = 0",
            "fleet.toml:15: participation.r: found 0, allowed: a number from",
        ),
        (
            "",
            "[rounds]\nover_select = 0.5",
            "fleet.toml:14: rounds.over_select: found 0.5, allowed: a number from 1 to 10",
        ),
        (
            "",
            "[rounds]\npatience = 3\ndeadline = 0",
            "fleet.toml:14: rounds.patience: found 3, allowed: 0 with deadline = 0, since no device misses a deadline; give a deadline",
        ),
        (
            "",
            "[rounds]\npatience = -1",
            "fleet.toml:14: rounds.patience: found -1, allowed: an integer from 0 to 1000000",
        ),
        ("", "[limits]\nnorm = 1e9", "fleet.toml:14: limits.norm: found 1e9, allowed: a number from"),
        (
            "",
            "[limits]\nconnections = 0",
            "fleet.toml:14: limits.connections: found 0, allowed: an integer from 1 to 1000000",
        ),
        // Unknown names; the message suggests the nearest known name.
        (
            "\"fedrep\"",
            "\"fedrap\"",
            "fleet.toml:10: algorithm.name: found \"fedrap\", allowed: \"fedrep\", \"gd-gd\", \"fedavg\", \"fedpower\", \"learned-prior\", \"local-only\", \"pooled\" (did you mean \"fedrep\"?)",
        ),
        (
            "\"fedrep\"",
            "\"zzz\"",
            "found \"zzz\", allowed: \"fedrep\", \"gd-gd\", \"fedavg\", \"fedpower\", \"learned-prior\", \"local-only\", \"pooled\"",
        ),
        (
            "k = 3",
            "k = 3\ninit = \"sideways\"",
            "fleet.toml:9: model.init: found \"sideways\", allowed: \"random\", \"power\"",
        ),
        (
            "step_size = 0.5",
            "step_size = 0.5\nupload = \"f61\"",
            "fleet.toml:13: algorithm.upload: found \"f61\", allowed: \"f32\", \"f16\", \"i8\"",
        ),
        (
            "step_size = 0.5",
            "step_size = 0.5\nnumeric = \"i8\"",
            "fleet.toml:13: algorithm.numeric: found \"i8\", allowed: \"f32\", \"i16\", \"any\"",
        ),
        // Missing required keys.
        ("k = 3\n", "", "fleet.toml:7: model.k is missing, allowed: an integer from 1 to 1024"),
        ("name = \"fedrep\"\n", "", "fleet.toml:9: algorithm.name is missing, allowed: \"fedrep\""),
        (
            "expected = 2\n",
            "",
            "fleet.toml:2: devices.expected is missing, allowed: an integer from 1 to 1000000",
        ),
        (
            "",
            "[participation]\npolicy = \"fraction\"",
            "fleet.toml:13: participation.r is missing, allowed: a number",
        ),
        // Texts that are not TOML.
        ("d = 20", "d = ", "fleet.toml:5: "),
        ("d = 20", "d = 20\nd = 21", "fleet.toml:6: "),
        ("[model]", "[model", "fleet.toml:7: "),
        // Contradictions between keys.
        (
            "k = 3",
            "k = 21",
            "fleet.toml:8: model.k: found 21, allowed: an integer from 1 to 20, the number of features",
        ),
        (
            "k = 3",
            "k = 3\ninit = \"moments\"",
            "fleet.toml:9: model.init: allowed for a real fleet: \"random\", \"power\" (moments reveal records)",
        ),
        ("k = 3", "k = 3\ninit = \"truth-sine:0.5\"", "fleet.toml:9: model.init: allowed for a real fleet"),
        (
            "name = \"fedrep\"",
            "numeric = \"i16\"\nname = \"fedavg\"",
            "fleet.toml:10: algorithm.numeric: found \"i16\", \"fedavg\" is computed in \"f32\" only",
        ),
        (
            "name = \"fedrep\"",
            "upload = \"i8-top-k\"\nsend = \"representation\"\nname = \"fedrep\"",
            "fleet.toml:10: algorithm.upload: found \"i8-top-k\", but \"fedrep\" uploads no gradients",
        ),
        (
            "name = \"fedrep\"",
            "download = \"i8-top-k\"\nname = \"fedrep\"",
            "fleet.toml:10: algorithm.download: found \"i8-top-k\", allowed: \"f32\", \"f16\", \"i8\"",
        ),
        ("\"fedrep\"", "\"pooled\"", "fleet.toml:10: algorithm.name: \"pooled\" has no rounds to serve"),
        (
            "expected = 2",
            "expected = 2\nallow = [7]",
            "fleet.toml:4: devices.allow: found 1, 2 devices are expected",
        ),
        (
            "expected = 2",
            "expected = 2\nallow = [7, 7]",
            "fleet.toml:4: devices.allow: found 1, 2 devices are expected",
        ),
        (
            "[model]",
            "[rounds]\nmin_count = 3\n[participation]\npolicy = \"first-arrivals\"\nn = 2\n[model]",
            "fleet.toml:8: rounds.min_count: found 3, but with 3 devices the first rounds of policy \"first-arrivals\" wait for 2: \
             allowed: at most 2",
        ),
        (
            "expected = 2",
            "expected = 2\nallow = [7, 8]\n[rounds]\nmin_count = 3",
            "rounds.min_count: found 3, allowed: at most 2, the devices that are trained on",
        ),
        ("[model]", "[rounds]\nevery = -1\n[model]", "fleet.toml:8: rounds.every: found -1"),
        (
            "d = 20\noutputs = 2\n[model]\nk = 3",
            "d = 2000\noutputs = 2\n[model]\nk = 600",
            "fleet.toml:8: model.k: found 600, ",
        ),
    ];
    for (old, new, expected) in cases {
        let actual = message(old, new);
        assert!(actual.contains(expected), "{old:?} -> {new:?}\nfound:    {actual}\nexpected: {expected}");
        assert_eq!(actual.lines().count(), 1, "the message has several lines: {actual:?}");
        assert!(actual.starts_with("fleet.toml"), "{actual}");
    }
    let unrelated_name = message("\"fedrep\"", "\"zzz\"");
    assert!(!unrelated_name.contains("did you mean"), "{unrelated_name}");
}

/// Devices that sleep between rounds must not be given up before the next round by default.
#[test]
fn interval_between_rounds_sets_the_defaults_of_absence_and_deadline() {
    let base = "[devices]\nexpected = 2\n[data]\nd = 20\n[model]\nk = 3\n[algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 1.0\n";
    for (rounds, absence, deadline, every) in [
        ("", 30, Some(60), None),
        ("[rounds]\nevery = 10", 30, Some(60), Some(10)),
        ("[rounds]\nevery = 3600", 7200, Some(3600), Some(3600)),
        ("[rounds]\nevery = 3600\ndeadline = 0", 7200, None, Some(3600)),
    ] {
        let fleet = Fleet::parse("f", &format!("{base}{rounds}")).unwrap();
        let seconds = std::time::Duration::from_secs;
        assert_eq!(
            (fleet.absence, fleet.rounds.deadline, fleet.rounds.every),
            (seconds(absence), deadline.map(seconds), every.map(seconds)),
            "{rounds}"
        );
    }
}

#[test]
fn command_line_changes_win_and_are_named() {
    let parse_with_changes = |changes: &[&str]| {
        let changes: Vec<String> = changes.iter().map(|&c| c.to_owned()).collect();
        Source::parse("s.toml", "a = 1\n[model]\nk = 3\n", &changes)
    };
    let source =
        parse_with_changes(&["model.k=5", "a = 2", "new.deep.word=fast", "model.flag=true", "x=1.5"])
            .unwrap();
    let root = source.root();
    assert_eq!(root.integer("a", None, 0..=9).unwrap(), 2);
    let model = root.section("model").unwrap();
    assert_eq!(model.integer("k", None, 0..=9).unwrap(), 5);
    assert!(model.boolean("flag", false).unwrap());
    let deep = root.section("new").unwrap().section("deep").unwrap();
    assert_eq!(deep.string("word", None, "a word").unwrap(), "fast");
    assert_eq!(root.number("x", None, 0.0..=9.0).unwrap(), 1.5);
    root.finish().unwrap();
    model.finish().unwrap();
    // The text of the effective configuration parses to the same configuration.
    let reparsed = Source::parse("again", &source.effective(), &[]).unwrap();
    assert_eq!(reparsed.root().section("model").unwrap().integer("k", None, 0..=9).unwrap(), 5);
    assert_eq!(reparsed.root().integer("a", None, 0..=9).unwrap(), 2);

    let source = parse_with_changes(&["model.k=50"]).unwrap();
    let problem = source.root().section("model").unwrap().integer("k", None, 0..=9).unwrap_err();
    assert_eq!(problem.to_string(), "--set model.k: found 50, allowed: an integer from 0 to 9");
    let source = parse_with_changes(&["model.q=50"]).unwrap();
    let model = source.root().section("model").unwrap();
    model.integer("k", None, 0..=9).unwrap();
    assert!(model.finish().unwrap_err().to_string().starts_with("--set model.q: unknown key"));

    for (invalid, expected) in [
        ("model.k", "--set model.k: expected KEY=VALUE, no '=' found"),
        ("=3", "is not a dotted key of this file"),
        ("a..b=3", "is not a dotted key of this file"),
        ("a.b=3", "is not a dotted key of this file"),
    ] {
        let error = parse_with_changes(&[invalid]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn fingerprint_covers_campaign_not_server() {
    let fingerprint_of = |text: &str| Fleet::parse("f", text).unwrap().fingerprint();
    let base = fingerprint_of(BASE);
    for (old, new) in [
        ("seed = 3", "seed = 4"),
        ("d = 20", "d = 21"),
        ("outputs = 2", "outputs = 3"),
        ("k = 3", "k = 4"),
        ("k = 3", "k = 3\ninit = \"power\""),
        ("rounds = 4", "rounds = 5"),
        ("step_size = 0.5", "step_size = 0.25"),
        ("step_size = 0.5", "step_size = 0.5\nweighting = \"samples\""),
        ("step_size = 0.5", "step_size = 0.5\nnumeric = \"i16\""),
        ("[model]", "[participation]\npolicy = \"fraction\"\nr = 0.5\n[model]"),
        ("[model]", "[limits]\nnorm = 5\n[model]"),
        ("[model]", "[limits]\nsamples = 5\n[model]"),
    ] {
        assert_ne!(fingerprint_of(&BASE.replacen(old, new, 1)), base, "{new}");
    }
    // SCAFFOLD divides by the number of expected devices, so the number is part of the fingerprint. For other
    // methods the number may grow.
    let network = BASE.replacen("k = 3", "kind = \"mlp\"\nhidden = [4]", 1);
    let network = Fleet::parse("f", &network).unwrap();
    let fingerprint_with = |method: NetworkMethod, expected| {
        let mut fleet = Fleet { expected, ..network.clone() };
        let section = fleet.algorithm.network().unwrap();
        fleet.algorithm.method = Method::Network(NetworkSection { method, ..section });
        fleet.fingerprint()
    };
    assert_ne!(
        fingerprint_with(NetworkMethod::Scaffold(Scaffold), 2),
        fingerprint_with(NetworkMethod::Scaffold(Scaffold), 3)
    );
    assert_eq!(
        fingerprint_with(NetworkMethod::FedAvg(FedAvg), 2),
        fingerprint_with(NetworkMethod::FedAvg(FedAvg), 3)
    );
    // Campaigns that were begun before the key `numeric` existed can be resumed.
    assert_eq!(
        fingerprint_of(&BASE.replacen("step_size = 0.5", "step_size = 0.5\nnumeric = \"f32\"", 1)),
        base
    );
    let moved = format!("state = \"elsewhere\"\n{BASE}[listen]\ntcp = \"127.0.0.1:1\"\n[limits]\nidle = 3\n");
    assert_eq!(fingerprint_of(&moved), base);
}

proptest! {
    /// Any text yields a configuration or an error message, without a panic.
    #[test]
    fn no_file_causes_a_panic(
        cut in any::<prop::sample::Index>(), noise in "[\\[\\]=\"a-z0-9.\n #{}-]{0,30}",
        insert in any::<prop::sample::Index>()
    ) {
        let mut configuration = EXAMPLE.to_owned();
        let insert_index = insert.index(configuration.len());
        if configuration.is_char_boundary(insert_index) {
            configuration.insert_str(insert_index, &noise);
        }
        let mut truncated_len = cut.index(configuration.len() + 1);
        while !configuration.is_char_boundary(truncated_len) {
            truncated_len -= 1;
        }
        configuration.truncate(truncated_len);
        if let Err(problem) = Fleet::parse("fleet.toml", &configuration) {
            let message = problem.to_string();
            prop_assert!(message.starts_with("fleet.toml"), "{}", message);
            prop_assert_eq!(message.lines().count(), 1, "{}", message);
        }
    }

    #[test]
    fn suggestion_is_one_edit_away(index in 0usize..6, letter in "[a-z]") {
        let mut word = "fedavg".to_owned();
        word.replace_range(index..=index, &letter);
        prop_assert_eq!(nearest(&word, &["pooled", "fedavg", "local-only"]), Some("fedavg"));
    }
}

#[test]
fn distant_words_get_no_suggestion() {
    assert_eq!(nearest("qqqqqq", &["fedrep", "fedavg"]), None);
    assert_eq!(nearest("", &["fedrep"]), None);
    assert_eq!(nearest("x", &[]), None);
}

/// Very deep nesting of keys, tables and lists is refused with one line, without a stack overflow during
/// parsing or dropping.
#[test]
fn deep_nesting_is_refused_in_one_line() {
    let long_key = "a.".repeat(20_000);
    let chain = |depth: usize| format!("{}b", "a.".repeat(depth));
    let nested = (0..79).fold("1".to_owned(), |inner, _| format!("{{ {} = {inner} }}", chain(78)));
    for configuration in [
        format!("{long_key}b = 1\n"),
        format!("[{long_key}b]\nc = 1\n"),
        format!("[[{long_key}b]]\nc = 1\n"),
        format!("seed = {}\n", "[".repeat(100_000)),
        format!("seed = {}1{}\n", "[".repeat(100_000), "]".repeat(100_000)),
        format!("seed = {}\n", "{a=".repeat(100_000)),
        format!("seed = {}1{}\n", "{a=".repeat(100_000), "}".repeat(100_000)),
        format!("[{}]\n{} = {nested}\n", chain(78), chain(78)),
        "a.".repeat(500_000),
        "[".repeat(1_000_000),
        "[a]\n".repeat(200_000),
        "a = 1\n".repeat(200_000),
        "\"".repeat(1_000_000),
    ] {
        let message = Fleet::parse("fleet.toml", &configuration).unwrap_err().to_string();
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.len() < 400, "{} characters", message.len());
    }
    for change in [
        format!("{long_key}b=1"),
        format!("{long_key}=1"),
        format!("{}=1", ".".repeat(20_000)),
        format!("seed={}", "[".repeat(100_000)),
        format!("seed={}1{}", "[".repeat(100_000), "]".repeat(100_000)),
        "a".repeat(100_000),
        format!("{}=1", "a".repeat(100_000)),
        format!("{}=1", "é\"\n".repeat(100_000)),
        format!("{}.b=1", "a".repeat(100_000)),
    ] {
        let source = Source::parse("s.toml", "seed = 1\n", std::slice::from_ref(&change));
        let result = source.and_then(|source| {
            let root = source.root();
            root.integer("seed", None, 0..=9)?;
            root.finish()
        });
        let message = result.unwrap_err().to_string();
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.len() < 400, "{} characters", message.len());
    }
}
