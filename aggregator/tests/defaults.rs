//! Tests that the defaults in `examples/fleet.toml` are those of the program.

use fedspan_aggregator::config::Fleet;
use fedspan_engine::config::GivenKeys;

const EXAMPLE: &str = include_str!("../examples/fleet.toml");

/// Parses a file and marks all its keys as set.
fn parse_as_set(text: &str) -> Result<Fleet, String> {
    let fleet = Fleet::parse("fleet.toml", text).map_err(|problem| problem.to_string())?;
    Ok(Fleet { given: GivenKeys::ALL, ..fleet })
}

/// Returns the example with one line replaced.
fn example_with_line(index: usize, line: &str) -> String {
    let lines = EXAMPLE.lines().enumerate();
    lines
        .map(|(line_index, original)| format!("{}\n", if line_index == index { line } else { original }))
        .collect()
}

/// For every line of the example: if the line is removed, a required key is reported as missing, and any
/// other key has the default that the example shows or describes.
#[test]
fn example_values_are_required_or_defaults() {
    let value_of = |key: &str| {
        let line = EXAMPLE.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
        line.unwrap().split('#').next().unwrap().trim().to_owned()
    };
    let mut required = 0;
    let mut described = 0;
    let mut shown = 0;
    for (index, line) in EXAMPLE.lines().enumerate() {
        let Some((key, value_and_comment)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let comment = value_and_comment.split_once('#').map_or("", |(_, comment)| comment.trim());
        let without = parse_as_set(&example_with_line(index, ""));
        if comment.starts_with("required") {
            assert!(without.unwrap_err().contains(&format!("{key} is missing")), "{line}");
            required += 1;
            continue;
        }
        let value = match (comment.strip_prefix("default: the value of "), comment.strip_prefix("default ")) {
            (Some(source_key), _) => value_of(source_key.split('.').next().unwrap()),
            (None, Some(value)) => value.split([' ', ',']).next().unwrap().trim_end_matches('.').to_owned(),
            (None, None) => {
                shown += 1;
                assert_eq!(without, parse_as_set(EXAMPLE), "{line}");
                continue;
            }
        };
        assert_eq!(without, parse_as_set(&example_with_line(index, &format!("{key} = {value}"))), "{line}");
        assert_ne!(
            without,
            parse_as_set(EXAMPLE),
            "the value equals the default that the comment describes: {line}"
        );
        described += 1;
    }
    assert_eq!((required, described, shown), (6, 6, 31));
}

/// The values of commented-out keys in the example are the defaults.
#[test]
fn commented_defaults_match_program() {
    let base = "[devices]\nexpected = 8\n[data]\nd = 58\noutputs = 7\nimage = [1, 29, 2]\n[algorithm]\nname = \"fedrep\"\nrounds = 3\n";
    let linear = format!("{base}step_size = 1.0\n");
    for (configuration, section, line) in [
        (format!("{linear}[model]\nk = 3\n[listen]\n"), "[listen]\n", "baud = 115200"),
        (format!("{linear}[model]\nk = 3\n"), "[devices]\n", "keys = \"fedspan-state/keys\""),
        (
            format!("{linear}[model]\nk = 3\n[aggregation]\nrule = \"trimmed-mean\"\n"),
            "[aggregation]\n",
            "trim = 0.2",
        ),
        (
            format!("{linear}[model]\nk = 3\n[participation]\npolicy = \"doubling\"\n"),
            "[participation]\n",
            "n0 = 4",
        ),
        (format!("{base}[model]\nkind = \"cnn\"\nfilters = [8]\n"), "[model]\n", "side = 5"),
        (format!("{base}[model]\nkind = \"cnn\"\nfilters = [8]\n"), "[model]\n", "pool = 2"),
    ] {
        assert!(EXAMPLE.contains(line), "the example does not show {line}");
        let with_line = configuration.replacen(section, &format!("{section}{line}\n"), 1);
        assert_eq!(parse_as_set(&with_line).unwrap(), parse_as_set(&configuration).unwrap(), "{line}");
    }
}
