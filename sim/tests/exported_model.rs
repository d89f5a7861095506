//! Test that the C program of `aggregator/examples` predicts with a written model what the simulator has predicted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use fedspan_sim_core::data::npz;

use crate::common::{empty_directory, exit_code, run_program, stderr_text};

/// Rows of a CSV file with a header.
fn rows(path: &Path) -> Vec<BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    reader.deserialize().map(|row| row.unwrap()).collect()
}

/// Heads in the span of a representation, and heads that act on all features.
#[test]
fn c_program_predicts_like_the_simulator() {
    for (algorithm, has_representation) in [("fedrep", true), ("learned-prior", false)] {
        check_predictions(algorithm, has_representation);
    }
}

fn check_predictions(algorithm: &str, has_representation: bool) {
    let folder = empty_directory(&format!("exported-model-{algorithm}"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::copy(root.join("sim/examples/gestures.csv"), folder.join("data.csv")).unwrap();
    let name = format!("algorithm.name={algorithm}");
    let run = ["run", "data.toml", "--set", "data.scale=fleet", "--set", &name, "--out", "results"];
    for arguments in [&["init", "data.csv"][..], &run] {
        let output = run_program(&folder, arguments);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    }
    assert_eq!(folder.join("results/model/representation.npy").exists(), has_representation);
    let model = folder.join("results/model");
    if !has_representation {
        for (name, shape) in [("prior-mean.npy", (5, 3)), ("prior-covariance.npy", (5, 5))] {
            let matrix = npz::read_matrix(model.join(name).to_str().unwrap(), 5).unwrap();
            assert_eq!(matrix.shape(), shape, "{name}");
        }
    }
    let program = folder.join("use_model");
    let source = root.join("aggregator/examples/use_model.c");
    let options = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-o"];
    assert!(Command::new("cc").args(options).arg(&program).arg(&source).status().unwrap().success());
    let data = fs::read_to_string(folder.join("data.csv")).unwrap();
    let data: Vec<&str> = data.lines().skip(1).collect();
    let predictions = rows(&folder.join("results/predictions.csv"));
    let classes = ["circle", "rest", "shake"];
    let mut compared = 0;
    for client in 0..12 {
        let own: Vec<_> = predictions.iter().filter(|line| line["client"] == client.to_string()).collect();
        assert!(!own.is_empty());
        let features =
            own.iter().map(|line| data[line["row"].parse::<usize>().unwrap()].splitn(3, ',').nth(2).unwrap());
        fs::write(folder.join("rows.csv"), features.map(|row| format!("{row}\n")).collect::<String>())
            .unwrap();
        // Clients 10 and 11 came after training.
        let (heads, number) =
            if client < 10 { ("heads.npy", client) } else { ("new-heads.npy", client - 10) };
        let output = Command::new(&program)
            .arg(folder.join("results/model"))
            .arg(folder.join("results/model").join(heads))
            .arg(number.to_string())
            .stdin(Stdio::from(File::open(folder.join("rows.csv")).unwrap()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr_text(&output));
        let found: Vec<&str> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| classes[line.parse::<usize>().unwrap()])
            .collect();
        let expected: Vec<&str> = own.iter().map(|line| line["predicted"].as_str()).collect();
        assert_eq!(found, expected, "client {client}");
        compared += found.len();
    }
    assert!(compared > 60, "{compared} rows");
    // Bad input ends with a reason.
    let long = format!("1,2,3,4\n1,2,3,4{}\n", " ".repeat(1 << 16));
    for (rows, reason) in [
        (long.as_str(), "line 2: longer than 65534 characters"),
        ("1,2,3,4\n1,2\n", "line 2: feature 3 is missing or no number"),
        ("1,2,3,4,5\n", "line 1: more than 4 features"),
        ("1,2,3,4 \r\n1,2,3,4x\n", "line 2: more than 4 features"),
    ] {
        fs::write(folder.join("rows.csv"), rows).unwrap();
        let bad = Command::new(&program)
            .args(["results/model", "results/model/heads.npy", "0"])
            .current_dir(&folder)
            .stdin(Stdio::from(File::open(folder.join("rows.csv")).unwrap()))
            .output()
            .unwrap();
        assert_eq!((exit_code(&bad), stderr_text(&bad)), (1, format!("use_model: {reason}\n")));
    }
    let missing =
        Command::new(&program).args(["nothing", "heads.npy", "0"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(exit_code(&missing), 1);
}
