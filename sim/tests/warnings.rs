//! Tests of warnings about data and fits: a warning about lost precision names the columns, and there are no
//! warnings without a cause.

use crate::common::{
    assert_contains_all, empty_directory, exit_code, random_numbers, run_program, stderr_text, stdout_text,
};
use fedspan_sim_core::run::{Job, NoProgress};
use fedspan_sim_core::scenario::{BUILT_IN, Scenario};
use serde_json::Value;

/// No built-in scenario causes a warning, and no baseline on the data of a built-in scenario.
#[test]
fn built_in_scenarios_have_no_warnings() {
    for (name, _, file) in BUILT_IN {
        let scenario = Scenario::parse(name, file, &[]).unwrap();
        let job = Job::prepare(&scenario, scenario.seed).unwrap();
        assert_eq!(job.warnings(), Vec::<String>::new(), "{name}");
        if name.starts_with("fedpower") || scenario.privacy.is_some() || job.dataset.features > 200 {
            continue;
        }
        for baseline in ["local-only", "pooled"] {
            let changes = [
                format!("algorithm={{ name = \"{baseline}\" }}"),
                "model={ k = 1 }".to_owned(),
                "stop={}".to_owned(),
                "attack={}".to_owned(),
                "aggregation={}".to_owned(),
            ];
            let scenario =
                Scenario::parse(name, file, &changes).unwrap_or_else(|problem| panic!("{name}: {problem}"));
            let outcome = Job::prepare(&scenario, scenario.seed).unwrap().run(&mut NoProgress).unwrap();
            assert_eq!(outcome.warnings, Vec::<String>::new(), "{name}, {baseline}: {:?}", outcome.fits);
        }
    }
}

/// Writes a table whose target depends on all columns. Columns have deviation 1 and mean 0 before `change` is
/// applied.
fn write_table(folder: &std::path::Path, change: impl Fn(usize, f64) -> f64) {
    let (values, slopes) = (random_numbers(12 * 40 * 4, 7), random_numbers(4, 8));
    let mut table = String::from("who,warm,wet,high,loud,y\n");
    for (row, x) in values.chunks(4).enumerate() {
        let x: Vec<f64> = x.iter().map(|value| value * 3f64.sqrt()).collect();
        let y: f64 = x.iter().zip(&slopes).map(|(x, w)| x * w).sum::<f64>() * (1.0 + (row / 40) as f64 / 6.0);
        let cells: Vec<String> = x.iter().enumerate().map(|(j, x)| change(j, *x).to_string()).collect();
        table += &format!("{},{},{y}\n", row / 40, cells.join(","));
    }
    std::fs::write(folder.join("table.csv"), table).unwrap();
}

/// Runs a method on the table and returns the summary and standard error.
fn run_scenario(folder: &std::path::Path, method: &str) -> (Value, String) {
    let scenario = format!(
        "[data]\nkind = \"csv\"\npath = \"table.csv\"\nclient = \"who\"\ntarget = \"y\"\n\
         features = [\"warm\", \"wet\", \"high\", \"loud\"]\nscale = \"none\"\n[model]\nk = 2\n[algorithm]\n{method}\n"
    );
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
    let output = run_program(folder, &["run", "my.toml", "--format", "json"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    (serde_json::from_str(&stdout_text(&output)).unwrap(), stderr_text(&output))
}

/// Settings of algorithm FedRep.
const FEDREP: &str = "name = \"fedrep\"\nrounds = 100\nstep_size = \"auto\"";

/// A warning names badly scaled columns if FedRep learns less on them. Otherwise there is no warning.
#[test]
fn dominated_columns_are_named() {
    let folder = empty_directory("warnings-drowned");
    write_table(&folder, |_, x| x);
    let (plain, reported) = run_scenario(&folder, FEDREP);
    let right = plain["final"]["test_mse"].as_f64().unwrap();
    assert!(right < 1e-6 && !reported.contains("warning"), "{reported}");
    let (mut missed, mut warned) = (0, 0);
    for (factor, offset) in [
        (1.0, 1.0),
        (1.0, 2.0),
        (1.0, 8.0),
        (1.0, 20.0),
        (1.0, 200.0),
        (5.0, 202.6),
        (1.0, 1e4),
        (3.0, 0.0),
        (100.0, 0.0),
        (1e4, 0.0),
        (0.3, 0.0),
        (0.03, 0.0),
        (0.01, 0.0),
        (1e-3, 0.0),
        (1e-5, 0.0),
        (1e5, 1.0),
    ] {
        write_table(&folder, |j, x| if j == 2 { factor * (x + offset) } else { x });
        let (summary, reported) = run_scenario(&folder, FEDREP);
        let mse = summary["final"]["test_mse"].as_f64().unwrap();
        let is_reported =
            reported.contains("warning: my.toml: columns are badly scaled") && reported.contains("\"high\"");
        let numbers = format!("factor {factor}, offset {offset}: {mse} for {right}, {reported}");
        assert!(is_reported || mse <= 0.05, "no warning for an inaccurate model: {numbers}");
        assert!(!is_reported || mse > 1e-3, "a warning without a cause: {numbers}");
        (missed, warned) = (missed + usize::from(mse > 0.05), warned + usize::from(is_reported));
    }
    assert!(missed >= 8 && warned >= 8, "{missed} of 16 much worse, {warned} warned");
}

/// Summaries of baselines name the columns that lost precision by rounding, and contain the number of
/// truncated fits.
#[test]
fn baselines_report_truncated_directions() {
    let folder = empty_directory("warnings-cut");
    for method in ["name = \"local-only\"", "name = \"pooled\""] {
        write_table(&folder, |j, x| if j == 2 { 1e5 * (1013.0 + x) } else { x });
        let (summary, reported) = run_scenario(&folder, method);
        assert_eq!(summary["fits_cut"]["cut"], 0, "{summary}");
        assert!(!reported.contains("warning"), "{reported}");
        write_table(&folder, |j, x| if j == 2 { 1e12 + x } else { x });
        let (summary, reported) = run_scenario(&folder, method);
        assert_contains_all(&reported, &["warning: my.toml", "least-squares fits", "\"high\""]);
        let count = if method.contains("pooled") { 1 } else { 12 };
        let dropped = &summary["fits_cut"];
        assert_eq!(
            (dropped["fits"].as_u64(), dropped["lost"].as_u64()),
            (Some(count), Some(count)),
            "{dropped}"
        );
        assert_eq!(dropped["columns"], serde_json::json!(["\"high\""]));
        // Clients with more columns than samples are reported only in the summary, without a warning.
        let few_samples = format!("{method}\nfinal_ridge = 0.0\n[split]\ntest = 0.95");
        write_table(&folder, |_, x| x);
        let (summary, reported) = run_scenario(&folder, &few_samples);
        let few_samples = if method.contains("pooled") { 0 } else { 12 };
        assert_eq!(summary["fits_cut"]["few_samples"], few_samples, "{summary}");
        assert!(!reported.contains("warning"), "{reported}");
    }
}

/// There is a warning if the best ridge is at the end of the grid, for example because of the units of the
/// features. For scaled features there is no warning.
#[test]
fn ridge_at_the_end_of_the_grid_is_reported() {
    let folder = empty_directory("warnings-ridge");
    let noise = random_numbers(9 * 24 * 5, 3);
    for (factor, scale, is_reported) in [(1e4, "none", true), (1e4, "standard", false), (1.0, "none", false)]
    {
        let mut table = String::from("who,a,b,c,d,e,kind\n");
        for (row, noise) in noise.chunks(5).enumerate() {
            let kind = row % 3;
            let cells =
                (0..5).map(|j| (factor * (f64::from(u8::from(j == kind)) + 2.0 * noise[j])).to_string());
            table += &format!("{},{},k{kind}\n", row / 24, cells.collect::<Vec<_>>().join(","));
        }
        std::fs::write(folder.join("table.csv"), table).unwrap();
        for method in ["fedrep\"\nrounds = 5\nstep_size = \"auto", "local-only"] {
            let scenario = format!(
                "[data]\nkind = \"csv\"\npath = \"table.csv\"\nclient = \"who\"\ntarget = \"kind\"\ntask = \"classes\"\n\
                 features = \"a..e\"\nscale = \"{scale}\"\n[split]\nholdout_users = 2\n[model]\nk = 2\n[algorithm]\n\
                 name = \"{method}\"\n"
            );
            std::fs::write(folder.join("my.toml"), scenario).unwrap();
            let output = run_program(&folder, &["run", "my.toml"]);
            assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
            let reported = stderr_text(&output).contains("among 0.0001 to 100; the features' mean square is");
            assert_eq!(reported, is_reported, "{factor} {scale} {method}: {}", stderr_text(&output));
        }
    }
}

/// There is a warning if no client compared ridges. Here the grid has more ridges than features times
/// classes, which is the number of scores for which a device has memory.
#[test]
fn uncompared_ridges_are_reported() {
    let folder = empty_directory("warnings-nobody");
    let noise = random_numbers(8 * 12 * 2, 5);
    let mut table = String::from("who,a,b,kind\n");
    for (row, noise) in noise.chunks(2).enumerate() {
        table += &format!("{},{},{},k{}\n", row / 12, noise[0], noise[1], row % 3);
    }
    std::fs::write(folder.join("table.csv"), table).unwrap();
    let scenario = "[data]\nkind = \"csv\"\npath = \"table.csv\"\nclient = \"who\"\ntarget = \"kind\"\ntask = \"classes\"\n\
                    features = \"*\"\n[split]\nholdout_users = 2\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 2\n\
                    step_size = 0.1\n";
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
    let output = run_program(&folder, &["run", "my.toml"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    assert!(stderr_text(&output).contains("no client compared ridges"), "{}", stderr_text(&output));
}

/// The head of a client whose samples are larger than those of the others diverges under gradient steps: its updates are
/// first too large, and at last not finite, so that the device declines after it has tried to send. The run ends, and says
/// which client does not count.
#[test]
fn diverging_client_is_named() {
    let folder = empty_directory("warnings-divergence");
    let (values, slopes) = (random_numbers(10 * 30 * 4, 5), random_numbers(4, 6));
    let mut table = String::from("who,a,b,c,d,y\n");
    for (row, x) in values.chunks(4).enumerate() {
        let factor = if row / 30 == 6 { 4.0 } else { 1.0 };
        let y: f64 = x.iter().zip(&slopes).map(|(x, w)| factor * x * w).sum();
        let cells: Vec<String> = x.iter().map(|x| (factor * x).to_string()).collect();
        table += &format!("{},{},{y}\n", row / 30, cells.join(","));
    }
    std::fs::write(folder.join("table.csv"), table).unwrap();
    let scenario = "[data]\nkind = \"csv\"\npath = \"table.csv\"\nclient = \"who\"\ntarget = \"y\"\nfeatures = [\"*\"]\nscale = \"none\"\n[model]\nk = 2\n\
                    [algorithm]\nname = \"gd-gd\"\nrounds = 150\nstep_size = \"auto\"\n";
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
    let output = run_program(&folder, &["run", "my.toml", "--format", "json"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let summary: Value = serde_json::from_str(&stdout_text(&output)).unwrap();
    let counters = &summary["counters"];
    let [rejected, declined] = ["norm_over_bound", "declined"].map(|name| counters[name].as_u64().unwrap());
    assert!(rejected > 0 && declined > 0, "{counters}");
    let reported = stderr_text(&output);
    assert_contains_all(
        &reported,
        &[
            &format!(
                "{rejected} updates were rejected ({rejected} above limits.norm) and {declined} rounds were declined"
            ),
            "client 7 counts in",
            "smaller step size",
        ],
    );
}

/// A client whose samples are too few to score ridges declines that round, which is no reason for a warning.
#[test]
fn declined_scoring_round_is_no_warning() {
    let folder = empty_directory("warnings-declined");
    for rounds in ["1", "20"] {
        let rounds = format!("algorithm.rounds={rounds}");
        let output = run_program(&folder, &["run", "digits", "--set", &rounds, "--format", "json"]);
        let summary: Value = serde_json::from_str(&stdout_text(&output)).unwrap();
        assert!(summary["counters"]["declined"].as_u64().unwrap() > 0, "{}", summary["counters"]);
        assert!(!stderr_text(&output).contains("warning"), "{}", stderr_text(&output));
    }
}
