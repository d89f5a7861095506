//! Tests of the commands `adapter average` and `adapter check`: output, exit codes and files.

use std::process::Command;

use fedspan_adapters::files::{Dtype, RoundKind};

use super::common::{Adapter, Folder};
use crate::common::decode_output;

/// Runs a command line in the directory. Returns exit code, standard output and standard error.
fn run_line(folder: &Folder, line: &str) -> (i32, String, String) {
    let program = env!("CARGO_BIN_EXE_fedspan-aggregator");
    let shell = ["-c", &line.replace("adapter ", &format!("{program} adapter "))].map(str::to_owned);
    let output = Command::new("sh").args(shell).current_dir(folder.directory.path()).output().unwrap();
    decode_output(&output)
}

/// Creates a directory with a base and three clients.
fn create_folder(round: RoundKind) -> Folder {
    let base = Adapter::random(Dtype::F32, 1, 4, 30, 10);
    let clients: Vec<Adapter> = (1..4).map(|seed| base.trained(round, seed)).collect();
    Folder::new(&base, &clients)
}

#[test]
fn average_reads_and_writes_directories() {
    let folder = create_folder(RoundKind::Up);
    let config = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "out"]}"#;
    for (name, file) in [("base", "base"), ("a", "0"), ("b", "1")] {
        std::fs::create_dir(folder.file_path(name)).unwrap();
        let file = folder.file_path(&format!("{file}.safetensors"));
        std::fs::copy(file, folder.file_path(&format!("{name}/adapter_model.safetensors"))).unwrap();
        std::fs::write(folder.file_path(&format!("{name}/adapter_config.json")), config).unwrap();
    }
    let line = "umask 022; adapter average --round up --base base a b --samples 3,1 -o next";
    let (code, stdout, stderr) = run_line(&folder, line);
    let bytes = std::fs::read(folder.file_path("next/adapter_model.safetensors")).unwrap();
    assert_eq!((code, stderr.as_str()), (0, ""));
    let expected = format!(
        "next/adapter_model.safetensors: up round of 2 clients, 3 tensors averaged, 2 kept, {} bytes\n  \
         weight 0.750000 (3 samples) a/adapter_model.safetensors\n  \
         weight 0.250000 (1 sample) b/adapter_model.safetensors\n",
        bytes.len()
    );
    assert_eq!(stdout, expected);
    assert_eq!(std::fs::read_to_string(folder.file_path("next/adapter_config.json")).unwrap(), config);
    assert_eq!(std::fs::read_dir(folder.file_path("next")).unwrap().count(), 2);
    let line = "adapter average --round up --base base.safetensors 1.safetensors 0.safetensors --samples 1,3 -o n.safetensors";
    assert_eq!(run_line(&folder, line).0, 0);
    assert_eq!(std::fs::read(folder.file_path("n.safetensors")).unwrap(), bytes);
    // An existing output is replaced.
    assert_eq!(run_line(&folder, line).0, 0);
    let (code, _, stderr) = run_line(&folder, "adapter average --round up --base base a b -o a");
    assert_eq!(code, 2);
    assert!(
        stderr.contains("a/adapter_model.safetensors: this file is an input")
            || stderr.contains("adapter_config.json"),
        "{stderr}"
    );
}

#[test]
fn errors_name_the_cause_and_leave_nothing() {
    let folder = create_folder(RoundKind::Up);
    let initial_names = folder.entry_names();
    for (line, code, expected) in [
        (
            "adapter average --round down --base base.safetensors ?.safetensors -o next.safetensors",
            2,
            "0.safetensors: tensor base_model.model.layers.0.out.lora_B.weight: the up factor is frozen",
        ),
        ("adapter average --round up --base base.safetensors ?.safetensors -o next/", 0, ""),
        (
            "adapter average --round up --base none.safetensors ?.safetensors -o next.safetensors",
            2,
            "none.safetensors: No such file",
        ),
        ("adapter average --round up --base base.safetensors -o next.safetensors", 2, "required arguments"),
        ("adapter average --base base.safetensors 0.safetensors -o next.safetensors", 2, "--round"),
        (
            "adapter average --plain --round up --base base.safetensors 0.safetensors -o next.safetensors",
            2,
            "cannot be used with",
        ),
        (
            "adapter average --plain --base base.safetensors 0.safetensors --samples -1 -o next.safetensors",
            2,
            "'-1'",
        ),
        (
            "adapter average --plain --base base.safetensors 0.safetensors --samples x -o next.safetensors",
            2,
            "found \"x\", allowed: a whole number from 0 to 536870911",
        ),
        (
            "adapter average --plain --base base.safetensors [01].safetensors --samples 1,536870912 -o next.safetensors",
            2,
            "found \"536870912\", allowed: a whole number from 0 to 536870911",
        ),
        ("adapter check --base base.safetensors base.safetensors", 2, "the same file"),
    ] {
        let (exit_code, _, stderr) = run_line(&folder, line);
        assert_eq!(exit_code, code, "{line}: {stderr}");
        assert!(stderr.contains(expected), "{line}: {stderr}");
        if code == 0 {
            std::fs::remove_dir_all(folder.file_path("next")).unwrap();
        }
        assert_eq!(folder.entry_names(), initial_names, "{line}");
    }
}

/// With a limit of 24 file descriptors, files are opened again for every block.
#[test]
fn few_descriptors_suffice() {
    let base = Adapter::random(Dtype::F32, 1, 2, 9, 4);
    let clients: Vec<Adapter> = (0..40).map(|seed| base.trained(RoundKind::Up, seed)).collect();
    let folder = Folder::new(&base, &clients);
    let line =
        "adapter average --round up --base base.safetensors ?.safetensors ??.safetensors -o next.safetensors";
    assert_eq!(run_line(&folder, line).0, 0);
    let bytes = std::fs::read(folder.file_path("next.safetensors")).unwrap();
    std::fs::remove_file(folder.file_path("next.safetensors")).unwrap();
    let (code, _, stderr) = run_line(&folder, &format!("ulimit -n 24; {line}"));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(std::fs::read(folder.file_path("next.safetensors")).unwrap(), bytes);
    let check = "adapter check --base base.safetensors ?.safetensors ??.safetensors";
    assert_eq!(run_line(&folder, check), run_line(&folder, &format!("ulimit -n 24; {check}")));
}

/// The output shows the weight of every file, because shells sort `10` before `2`.
#[test]
fn average_prints_weight_of_every_file() {
    let folder = create_folder(RoundKind::Up);
    let line = "adapter average --round up --base base.safetensors ?.safetensors --samples 6,0,2 -o next.safetensors";
    let (code, stdout, stderr) = run_line(&folder, line);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let expected = [
        "  weight 0.750000 (6 samples) 0.safetensors",
        "  weight 0.000000 (0 samples) 1.safetensors",
        "  weight 0.250000 (2 samples) 2.safetensors",
    ];
    assert_eq!(stdout.lines().skip(1).collect::<Vec<_>>(), expected, "{stdout}");
    let (code, json, _) = run_line(&folder, &format!("{line} --format json"));
    assert_eq!((code, json.lines().count()), (0, 1));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        json["clients"][0],
        serde_json::json!({"file": "0.safetensors", "samples": 6, "weight": 0.75})
    );
    assert_eq!((&json["clients"][1]["samples"], &json["round"]), (&0.into(), &"up".into()));
    let (_, stdout, _) = run_line(&folder, &line.replace("--samples 6,0,2", ""));
    assert!(stdout.contains("\n  weight 0.333333 1.safetensors\n"), "{stdout}");
    let (_, stdout, _) =
        run_line(&folder, "adapter check --base base.safetensors ?.safetensors --samples 6,0,2");
    assert!(stdout.contains("Weight 0.250000 for 2.safetensors"), "{stdout}");
}

/// A pipe as configuration must not block the command.
#[test]
fn serve_refuses_irregular_configurations() {
    let folder = create_folder(RoundKind::Up);
    let line = "mkfifo pipe; mkdir place; truncate -s 1T long; for file in pipe place long /dev/zero none; do \
        timeout 20 adapter serve --config $file; echo $?; done";
    let (_, stdout, stderr) = run_line(&folder, line);
    assert_eq!(stdout.lines().collect::<Vec<_>>(), ["2"; 5], "{stdout} {stderr}");
    assert_eq!(stderr.lines().count(), 5, "{stderr}");
    assert!(stderr.contains("long: found 1099511627776 bytes, allowed: at most 2097152"), "{stderr}");
}

#[test]
fn check_prints_a_table_and_json() {
    let folder = create_folder(RoundKind::Plain);
    let (code, stdout, stderr) = run_line(&folder, "adapter check --base base.safetensors ?.safetensors");
    assert_eq!((code, stderr.as_str()), (0, ""));
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 6, "{stdout}");
    assert!(lines[1].starts_with("0.safetensors ") && lines[1].ends_with(" both"), "{stdout}");
    assert!(
        lines[5].starts_with("Plain averaging would lose ") && lines[5].contains(", most in base_model."),
        "{stdout}"
    );
    let (_, long_table, _) =
        run_line(&folder, "adapter check --tensors --base base.safetensors ?.safetensors");
    assert_eq!(long_table.lines().count(), 6 + 3 * 5 + 2, "{long_table}");
    let (code, json, _) =
        run_line(&folder, "adapter check --format json --base base.safetensors ?.safetensors");
    assert_eq!((code, json.lines().count()), (0, 1));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["clients"].as_array().unwrap().len(), 3);
    assert_eq!(json["clients"][2]["fits"], "both");
    assert_eq!(json["targets"].as_array().unwrap().len(), 2);
    assert!(json["interference"].as_f64().unwrap() > 0.0);
    assert_eq!(json["clients"][0]["tensors"].as_array().unwrap().len(), 5);
}

/// Ctrl-C gives the exit code of a failure and leaves no files.
#[test]
fn interrupted_command_leaves_nothing() {
    let base = Adapter::random(Dtype::F32, 1, 16, 60_000, 20);
    let clients: Vec<Adapter> = (0..30).map(|_| base.clone()).collect();
    let folder = Folder::new(&base, &clients);
    let initial_names = folder.entry_names();
    let line = "adapter average --plain --base base.safetensors ?.safetensors ??.safetensors -o next.safetensors & \
        id=$!; while ! [ -e next.safetensors.partial ]; do :; done; kill -INT $id; wait $id";
    let (code, _, stderr) = run_line(&folder, line);
    // On a fast machine the command may finish before the signal.
    if code != 0 {
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains("interrupted, nothing was written"), "{stderr}");
        assert_eq!(folder.entry_names(), initial_names);
    }
}
