//! Tests that `SCENARIOS.md` documents exactly the keys that the scenario reader accepts, with the same
//! defaults.

use std::collections::{BTreeMap, BTreeSet};

use fedspan_engine::config::GivenKeys;
use fedspan_sim_core::scenario::Scenario;

/// Documentation of scenarios.
const PAGE: &str = include_str!("../SCENARIOS.md");

/// Minimal model and algorithm for data with targets.
const REST: &str = "[model]\nk = 1\n[algorithm]\nname = \"fedrep\"\nrounds = 1\nstep_size = 0.1\n";
const LINEAR: &str = "[data]\nkind = \"linear-regression\"\nclients = 5\nd = 4\nk = 1\nsamples = 3\n";
/// Minimal model and algorithm for data without targets.
const PRINCIPAL: &str = "[model]\nk = 1\n[algorithm]\nname = \"fedpower\"\n";
const LOW_RANK: &str = "[data]\nkind = \"low-rank-regression\"\nclients = 5\nd = 4\nsamples = 3\n\
                        [model]\nkind = \"lora-linear\"\nrank = 1\n\
                        [algorithm]\nname = \"rolora\"\nrounds = 1\nstep_size = 0.1\n";
const POWER: &str = "[data]\nkind = \"spiked-covariance\"\nclients = 5\nd = 4\nk = 1\nsamples = 3\n\
                     [model]\nk = 1\n[algorithm]\nname = \"fedpower\"\n";
const GRAPHS: &str = "[data]\nkind = \"stochastic-block-model\"\nclients = 5\nd = 4\nk = 1\n";
const CSV: &str =
    "[data]\nkind = \"csv\"\npath = \"f\"\nclient = \"c\"\ntarget = \"y\"\nfeatures = [\"a\"]\n";
const NPZ: &str = "[data]\nkind = \"npz\"\npath = \"f\"\n";
const WATCH: &str = "[data]\nkind = \"watch-imu\"\n";
const LEAF: &str = "[data]\nkind = \"leaf\"\npath = \"f\"\n";
const CIFAR: &str = "[data]\nkind = \"cifar\"\npath = \"d\"\n";
const DIGITS: &str = "[data]\nkind = \"digits\"\n";

/// Scenario with a network and the given algorithm.
fn scenario_with_network(name: &str) -> String {
    format!("{DIGITS}[model]\nkind = \"mlp\"\nhidden = [4]\n[algorithm]\nname = \"{name}\"\nrounds = 1\n")
}

/// Scenario with the given keys of section `[model]`.
fn scenario_with_model(model: &str) -> String {
    scenario_with_network("fedrep").replace("kind = \"mlp\"\nhidden = [4]", model)
}

/// Tables of the page. Each has its heading, the section of its keys, and minimal scenarios that together
/// accept all of these keys.
fn tables() -> Vec<(&'static str, &'static str, Vec<String>)> {
    let complete = |data: &str| format!("{data}{REST}");
    let extended = |data: &str, further_keys: &str| format!("{data}{further_keys}{REST}");
    let linear = complete(LINEAR);
    let adapter = scenario_with_network("rolora")
        .replace("kind = \"mlp\"\nhidden = [4]", "kind = \"lora-mlp\"\nrank = 2\nwidth = 3");
    let idx = "[data]\nkind = \"idx\"\nimages = \"i\"\nlabels = \"l\"\n";
    let tested = format!("{idx}test_images = \"i\"\ntest_labels = \"l\"\n");
    vec![
        ("Top level", "", vec![linear.clone()]),
        (
            "`[data]`, kind = \"linear-regression\"",
            "data",
            vec![linear.clone(), extended(LINEAR, "sizes = \"log-normal\"\n")],
        ),
        ("`[data]`, kind = \"low-rank-regression\"", "data", vec![LOW_RANK.to_owned()]),
        ("`[data]`, kind = \"spiked-covariance\"", "data", vec![POWER.to_owned()]),
        ("`[data]`, kind = \"stochastic-block-model\"", "data", vec![format!("{GRAPHS}{PRINCIPAL}")]),
        ("`[data]`, kind = \"npz\"", "data", vec![complete(NPZ)]),
        ("`[data]`, kind = \"csv\"", "data", vec![complete(CSV), extended(CSV, "task = \"classes\"\n")]),
        (
            "`[data]`, kind = \"watch-imu\"",
            "data",
            vec![complete(WATCH), extended(WATCH, "inputs = \"windows\"\n")],
        ),
        (
            "`[data]`, kind = \"digits\" or \"mnist5k\"",
            "data",
            vec![complete(DIGITS), complete("[data]\nkind = \"mnist5k\"\n")],
        ),
        ("`[data]`, kind = \"idx\"", "data", vec![complete(idx)]),
        ("`[data]`, kind = \"cifar\"", "data", vec![complete(CIFAR)]),
        ("`[data]`, kind = \"leaf\"", "data", vec![complete(LEAF)]),
        (
            "`[data.partition]`, kind = \"leaf\", \"csv\" or \"npz\"",
            "data.partition",
            vec![complete(LEAF), complete(CSV), complete(NPZ)],
        ),
        (
            "`[data.partition]`",
            "data.partition",
            vec![
                complete(DIGITS),
                extended(DIGITS, "[data.partition]\nkind = \"iid\"\n"),
                extended(DIGITS, "[data.partition]\nsizes = \"log-normal\"\n"),
                extended(DIGITS, "[data.partition]\nkind = \"log-normal-sizes\"\n"),
                extended(DIGITS, "[data.partition]\nkind = \"dirichlet\"\n"),
            ],
        ),
        ("`[split]`, kind = \"watch-imu\"", "split", vec![complete(WATCH)]),
        (
            "`[split]`, kind = \"csv\" or \"npz\"",
            "split",
            vec![
                complete(CSV),
                extended(CSV, "task = \"classes\"\n"),
                extended(NPZ, "task = \"classes\"\n"),
                extended(CSV, "task = \"classes\"\npartition.kind = \"iid\"\n[split]\nby = \"classes\"\n"),
            ],
        ),
        (
            "`[split]`, kind = \"digits\", \"mnist5k\", \"idx\" or \"leaf\"",
            "split",
            vec![
                complete(DIGITS),
                complete(idx),
                extended(DIGITS, "[split]\nby = \"classes\"\n"),
                complete(&tested),
                complete(LEAF),
            ],
        ),
        ("`[model]`", "model", vec![linear.clone()]),
        ("`[model]`, kind = \"mlp\"", "model", vec![scenario_with_network("fedrep")]),
        ("`[model]`, kind = \"cnn\"", "model", vec![scenario_with_model("kind = \"cnn\"\nfilters = [2]")]),
        ("`[model]`, kind = \"lstm\"", "model", vec![scenario_with_model("kind = \"lstm\"\ncells = 2")]),
        ("`[model]`, kind = \"lora-mlp\"", "model", vec![adapter.clone()]),
        ("`[model]`, kind = \"lora-linear\"", "model", vec![LOW_RANK.to_owned()]),
        ("`[algorithm]` of adapters", "algorithm", vec![adapter]),
        (
            "`[algorithm]` of networks",
            "algorithm",
            ["fedrep", "fedprox", "lg-fedavg", "perfedavg", "apfl", "l2gd", "local-only"]
                .map(scenario_with_network)
                .to_vec(),
        ),
        ("`[algorithm]`", "algorithm", vec![linear.clone(), POWER.to_owned()]),
        (
            "`[algorithm.learned-prior]`",
            "algorithm.learned-prior",
            vec![linear.replace("\"fedrep\"", "\"learned-prior\"")],
        ),
        (
            "`[participation]`",
            "participation",
            vec![
                linear.clone(),
                extended(LINEAR, "[participation]\npolicy = \"fraction\"\nr = 0.5\n"),
                extended(LINEAR, "[participation]\npolicy = \"with-replacement\"\ndraws = 3\n"),
                extended(LINEAR, "[participation]\npolicy = \"doubling\"\n"),
                extended(
                    LINEAR,
                    "[participation]\npolicy = \"doubling\"\ncohort = 8\nschedule = \"fixed\"\n",
                ),
                extended(LINEAR, "[participation]\npolicy = \"first-arrivals\"\nn = 3\n"),
                extended(
                    LINEAR,
                    "[participation]\npolicy = \"doubling\"\nschedule = \"optimal\"\nfloor = 0.1\n",
                ),
            ],
        ),
        (
            "`[fleet]`",
            "fleet",
            vec![
                linear.clone(),
                extended(LINEAR, "[fleet]\nspeed = \"exponential-dynamic\"\n"),
                extended(LINEAR, "[fleet]\nspeed = \"two-class\"\nslow_fraction = 0.2\n"),
                extended(LINEAR, "[fleet]\nspeed = \"pareto\"\ntail_index = 2.0\n"),
                extended(LINEAR, "[fleet]\nspike_probability = 0.1\n"),
                extended(LINEAR, "[fleet]\nspeed = \"trace\"\ntrace = \"f\"\n"),
                extended(LINEAR, "[fleet]\nbandwidth = 1000\n"),
                extended(LINEAR, "[fleet]\nradio = \"lora-sf9\"\nenergy = \"stm32wle5\"\n"),
                format!("{LINEAR}{REST}numeric = \"any\"\n"),
                extended(LINEAR, "[fleet]\nwake_every = 20\nawake = 2\n"),
                extended(LINEAR, "[fleet]\nwindow_every = 24\nwindow = 8\n"),
                extended(LINEAR, "[fleet]\ndropout_pattern = \"outages\"\noutage_sites = 2\n"),
            ],
        ),
        ("`[rounds]`", "rounds", vec![linear.clone()]),
        (
            "`[aggregation]`",
            "aggregation",
            vec![
                linear.clone(),
                extended(LINEAR, "[aggregation]\nrule = \"trimmed-mean\"\n"),
                extended(LINEAR, "[aggregation]\nrule = \"spectral-filter\"\n"),
            ],
        ),
        ("`[attack]`", "attack", vec![linear.clone(), extended(LINEAR, "[attack]\nkind = \"scale\"\n")]),
        ("`[limits]`", "limits", vec![linear.clone()]),
        ("`[privacy]`", "privacy", vec![format!("{POWER}[privacy]\nepsilon = 1.0\ndelta = 1e-5\n")]),
        ("`[stop]`", "stop", vec![linear.clone()]),
        ("`[expect]`", "expect", vec![linear]),
    ]
}

/// Documented keys with their defaults, for each heading of the page.
fn documented() -> BTreeMap<&'static str, BTreeMap<&'static str, &'static str>> {
    let mut keys_by_section = BTreeMap::new();
    for part in PAGE.split("\n## ").skip(1) {
        let (heading, text) = part.split_once('\n').unwrap();
        let mut keys = BTreeMap::new();
        for row in text.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            assert_eq!(cells.len(), 5, "{row}");
            assert!(keys.insert(cells[0].trim_matches('`'), cells[2]).is_none(), "{row}");
        }
        keys_by_section.insert(heading, keys);
    }
    keys_by_section
}

fn parse(file: &str, changes: &[String]) -> Result<Scenario, String> {
    let scenario = Scenario::parse("my.toml", file, changes).map_err(|problem| problem.to_string())?;
    // The text and the list of given keys are replaced, so that scenarios with equal settings compare equal.
    Ok(Scenario { text: String::new(), given: GivenKeys::ALL, ..scenario })
}

/// Key with the name of its section, as in command line changes.
fn dotted_key(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

/// Keys that the reader accepts in a section, extracted from its error message for an unknown key.
fn known_keys(file: &str, section: &str) -> BTreeSet<String> {
    let reported = parse(file, &[format!("{}=1", dotted_key(section, "zzzzzzzz"))]).unwrap_err();
    let (_, reason) = reported.split_once("unknown key").unwrap_or_else(|| panic!("{reported}"));
    let (_, keys) = reason.split_once(", allowed: ").unwrap_or_else(|| panic!("{reported}"));
    keys.split(", ").filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

#[test]
fn documentation_and_reader_have_the_same_keys() {
    let documented = documented();
    let mut headings: BTreeSet<&str> = documented.keys().copied().collect();
    for (heading, section, files) in tables() {
        assert!(headings.remove(heading), "there is no section {heading}");
        let known: BTreeSet<String> = files.iter().flat_map(|file| known_keys(file, section)).collect();
        let listed: BTreeSet<String> = documented[heading].keys().map(|key| (*key).to_owned()).collect();
        assert_eq!(listed, known, "{heading}");
    }
    assert!(headings.is_empty(), "unknown tables: {headings:?}");
}

/// Synthetic data do not support section `[split]`. The error message lists the kinds of data that support
/// it.
#[test]
fn synthetic_data_have_no_split() {
    for file in [format!("{LINEAR}{REST}"), POWER.to_owned(), format!("{GRAPHS}{PRINCIPAL}")] {
        let reported = parse(&file, &["split.test=0.5".to_owned()]).unwrap_err();
        assert!(
            reported
                .contains("has no [split]: leave the section out; kinds that have one: [\"npz\", \"csv\""),
            "{reported}"
        );
    }
}

#[test]
fn documented_defaults_equal_those_of_the_reader() {
    let documented = documented();
    for (heading, section, files) in tables() {
        for (key, default) in &documented[heading] {
            let file = files.iter().find(|file| known_keys(file, section).contains(*key)).unwrap();
            let literal = default.split('`').nth(1).filter(|_| default.starts_with('`'));
            let path = dotted_key(section, key);
            match (literal, *default) {
                (Some(literal), _) => {
                    let explicit = parse(file, &[format!("{path}={literal}")]).unwrap();
                    assert_eq!(explicit, parse(file, &[]).unwrap(), "{heading}: {key} = {literal}");
                }
                (None, "*required*") => {
                    let line = format!("{key} = ");
                    let header = if section.is_empty() { format!("[{key}]") } else { format!("[{section}]") };
                    let (preceding, following) = file.split_once(&header).unwrap();
                    let without_section_keys: String = if section.is_empty() {
                        let remaining = following
                            .split_once("\n[")
                            .map_or(String::new(), |(_, remaining)| format!("[{remaining}"));
                        format!("{preceding}{remaining}")
                    } else {
                        let (section_lines, remaining) =
                            following.split_once("\n[").unwrap_or((following, ""));
                        let section_lines: Vec<&str> =
                            section_lines.lines().filter(|l| !l.starts_with(&line)).collect();
                        format!("{preceding}{header}{}\n[{remaining}", section_lines.join("\n"))
                            .trim_end_matches('[')
                            .to_owned()
                    };
                    let reported = parse(&without_section_keys, &[]).unwrap_err();
                    let suggestion = format!("did you mean {key:?}");
                    assert!(
                        reported.contains("missing") || reported.contains(&suggestion),
                        "{heading}: {key}: {reported}"
                    );
                }
                (None, "*none*") => assert!(parse(file, &[]).is_ok(), "{heading}: {key}"),
                (None, other) => assert!(other.starts_with("that of `"), "{heading}: {key}: {other}"),
            }
        }
    }
}
