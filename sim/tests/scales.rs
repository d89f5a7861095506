//! Tests that results on scaled features do not depend on the units and offsets of a table.

use crate::common::{empty_directory, exit_code, random_numbers, run_program, stderr_text, stdout_text};
use serde_json::Value;

/// Writes a table with a column of values and a column of class names as targets. Features have deviation 1
/// before `change` is applied.
fn write_table(folder: &std::path::Path, change: impl Fn(usize, f64) -> f64) {
    let (values, slopes) = (random_numbers(14 * 40 * 5, 7), random_numbers(3 * 5, 8));
    let mut table = String::from("who,c0,c1,c2,c3,c4,y,kind\n");
    for (row, x) in values.chunks(5).enumerate() {
        let (x, client) = (x.iter().map(|value| value * 3f64.sqrt()).collect::<Vec<f64>>(), row / 40);
        let signal = |target: usize| x.iter().zip(&slopes[5 * target..]).map(|(x, w)| x * w).sum::<f64>();
        let y = signal(0) * (1.0 + client as f64 / 6.0);
        let kind = (0..3).max_by(|a, b| signal(*a).total_cmp(&signal(*b))).unwrap();
        let cells: Vec<String> = x.iter().enumerate().map(|(j, x)| change(j, *x).to_string()).collect();
        table += &format!("w{client:02},{},{y},k{kind}\n", cells.join(","));
    }
    std::fs::write(folder.join("table.csv"), table).unwrap();
}

/// Runs a method on the table and returns the summary and standard error.
fn run_scenario(folder: &std::path::Path, scale: &str, classes: bool, method: &str) -> (Value, String) {
    let target = if classes { "target = \"kind\"\ntask = \"classes\"" } else { "target = \"y\"" };
    let scenario = format!(
        "[data]\nkind = \"csv\"\npath = \"table.csv\"\nclient = \"who\"\n{target}\nfeatures = \"c*\"\nscale = \"{scale}\"\n\
         [split]\nholdout_users = 2\n[model]\nk = 3\n[algorithm]\nrounds = 60\n{method}\n"
    );
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
    let output = run_program(folder, &["run", "my.toml", "--format", "json"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    (serde_json::from_str(&stdout_text(&output)).unwrap(), stderr_text(&output))
}

/// Metrics do not change with offsets of up to 1e5 deviations and units from 1e-6 to 1e6. The scale of a
/// table is computed in f64, so metrics agree up to the rounding of the numbers in the file, 1e5 * 2^-53
/// each.
#[test]
fn offsets_and_units_do_not_change_figures() {
    let folder = empty_directory("scales");
    let (units, offsets) = ([1e6, 1e-6, 1e3, 1.0, 1e-4], [1e5, -3e4, 0.0, 1013.0, -20.0]);
    for (scale, classes, method) in [
        ("standard", false, "name = \"fedrep\"\nstep_size = \"auto\""),
        ("standard", true, "name = \"fedrep\"\nstep_size = \"auto\""),
        ("standard", true, "name = \"gd-gd\"\nstep_size = \"auto\""),
        ("robust", false, "name = \"fedrep\"\nstep_size = \"auto\""),
        ("standard", false, "name = \"fedrep\"\nstep_size = \"auto\"\nfinal_ridge = 0.0"),
        ("robust", true, "name = \"local-only\""),
        ("standard", false, "name = \"pooled\"\nfinal_ridge = 0.3"),
    ] {
        write_table(&folder, |_, x| x);
        let (plain, reported) = run_scenario(&folder, scale, classes, method);
        assert!(!reported.contains("warning"), "{scale} {method}: {reported}");
        write_table(&folder, |j, x| units[j] * (x + offsets[j]));
        let (rescaled, reported) = run_scenario(&folder, scale, classes, method);
        assert!(!reported.contains("warning"), "{scale} {method}: {reported}");
        assert_agree(&plain, &rescaled, 1e-6, &format!("{scale} {classes} {method}"));
    }
}

/// With scaling on devices in f32, an offset of R deviations causes rounding noise of R 2^-24 deviations, and
/// metrics change accordingly. For R of 2^14 or more, a warning names the columns.
#[test]
fn fleet_scale_error_is_bounded_by_f32_rounding() {
    let folder = empty_directory("scales-fleet");
    let units = [1e6, 1e-6, 1e3, 1.0, 1e-4];
    for (method, classes) in [
        ("name = \"fedrep\"\nstep_size = \"auto\"", false),
        ("name = \"fedrep\"\nstep_size = \"auto\"", true),
        ("name = \"gd-gd\"\nstep_size = \"auto\"", true),
        ("name = \"local-only\"", true),
        ("name = \"pooled\"\nfinal_ridge = 0.3", false),
    ] {
        write_table(&folder, |_, x| x);
        let (plain, reported) = run_scenario(&folder, "fleet", classes, method);
        assert!(!reported.contains("warning"), "{method}: {reported}");
        for (offset, is_reported) in [(0.0, false), (1e3, false), (1e5, true)] {
            write_table(&folder, |j, x| units[j] * (x + if j % 2 == 0 { offset } else { 0.0 }));
            let (rescaled, reported) = run_scenario(&folder, "fleet", classes, method);
            let federated = rescaled["rounds"] != 0;
            assert_eq!(
                reported.contains("warning: my.toml: columns have few digits in f32"),
                is_reported && federated,
                "{reported}"
            );
            assert!(!is_reported || !federated || reported.contains("\"c0\", \"c2\", \"c4\";"), "{reported}");
            assert_eq!(
                reported.matches("warning").count(),
                usize::from(is_reported && federated),
                "{reported}"
            );
            let noise = f64::max(offset, 1.0) * 2f64.powi(-24);
            assert_agree(&plain, &rescaled, 30.0 * noise, &format!("{classes} {method} {offset}"));
        }
    }
}

/// Asserts that the final metrics agree up to the relative error `noise`. Accuracies may also differ because
/// of near ties.
fn assert_agree(plain: &Value, rescaled: &Value, noise: f64, context: &str) {
    let (plain, rescaled) = (plain["final"].as_object().unwrap(), rescaled["final"].as_object().unwrap());
    assert!(!plain.is_empty() && plain.keys().eq(rescaled.keys()), "{context}");
    for (name, value) in plain {
        let (plain_value, rescaled_value) = (value.as_f64().unwrap(), rescaled[name].as_f64().unwrap());
        // An absolute error of the order of the squared noise is allowed as well.
        let tolerance = noise * plain_value.abs()
            + 10.0 * noise * noise
            + if name.contains("accuracy") { 10.0 * noise } else { 0.0 };
        assert!(
            (plain_value - rescaled_value).abs() <= tolerance,
            "{context}: {name} {plain_value} {rescaled_value}"
        );
    }
}
