//! Tests of command `encoder` with a tiny encoder: learning, traffic, and refused input.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::common::{empty_directory, exit_code, run_program, stderr_text};
use crate::tiny;

/// Writes twelve groups of six sentences whose ratings depend on words of the tiny vocabulary.
fn write_sentences(folder: &Path) {
    let beginnings =
        ["the food was", "people were", "film of the day", "rain and", "a cafe was", "the smile was"];
    let (positive_words, negative_words) = (["good", "kind", "goodness"], ["bad", "not good", "badly"]);
    let mut text = String::new();
    for group in 0..12 {
        for (sentence, beginning) in beginnings.iter().enumerate() {
            let word = (group + sentence) % 3;
            let (rating, word) = if (group * 5 + sentence * 7) % 2 == 0 {
                (1.5, positive_words[word])
            } else {
                (-1.5, negative_words[word])
            };
            text.push_str(&format!("{group}_{sentence}\t{rating}\t{beginning} {word}\n"));
        }
    }
    std::fs::write(folder.join("rated.txt"), text).unwrap();
}

/// Copies the tiny model, so that a test can damage it.
fn copy_weights(folder: &Path) -> PathBuf {
    let copy = folder.join("weights");
    std::fs::create_dir_all(&copy).unwrap();
    for file in ["config.json", "model.safetensors", "vocab.txt"] {
        std::fs::copy(tiny().join(file), copy.join(file)).unwrap();
    }
    copy
}

/// Runs the command with default options, which `further_arguments` overrides.
fn run(folder: &Path, further_arguments: &[&str]) -> Output {
    let default_arguments = [
        ["--clients", "3"],
        ["--rounds", "6"],
        ["--steps", "6"],
        ["--batch", "6"],
        ["--step-size", "0.03"],
        ["--evaluate-every", "3"],
        ["--tokens", "24"],
    ];
    let default_arguments: Vec<&str> =
        default_arguments.into_iter().filter(|[key, _]| !further_arguments.contains(key)).flatten().collect();
    let files = ["encoder", "--weights", "weights", "--sentences", "rated.txt"];
    run_program(folder, &[&files[..], &default_arguments, further_arguments].concat())
}

/// Lines of `rounds.jsonl`.
fn read_rows(folder: &Path, out: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join(out).join("rounds.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_algorithm_learns_and_sends_only_trained_factors() {
    let folder = empty_directory("encoder-methods");
    write_sentences(&folder);
    copy_weights(&folder);
    for method in ["rolora", "lora", "ffa-lora"] {
        let output = run(&folder, &["--method", method, "--rank", "2", "--out", method]);
        assert_eq!(exit_code(&output), 0, "{method}: {}", stderr_text(&output));
        let rows = read_rows(&folder, method);
        assert_eq!(rows.len(), 7);
        let loss = |row: &Value| row["loss"].as_f64().unwrap();
        assert!(loss(&rows[6]) < 0.75 * loss(&rows[1]), "{method}: {} to {}", loss(&rows[1]), loss(&rows[6]));
        // Each of two layers has a down and an up factor of 32 x 2 values for both query and value. A round
        // trains one or both kinds of factors, and the head of 32 x 2 + 2 values.
        let (factor, head) = (2 * 2 * 32 * 2, 32 * 2 + 2);
        for row in &rows[1..] {
            let numbers = if method == "lora" { 2 * factor + head } else { factor + head };
            assert_eq!(row["bytes_up"], 3 * 4 * numbers, "{method}");
            let interference = row["interference"].as_f64().unwrap();
            assert_eq!(interference > 0.0, method == "lora", "{method}: {interference}");
        }
        let trained: Vec<&str> = rows[1..].iter().map(|row| row["trained"].as_str().unwrap()).collect();
        let expected_factors = match method {
            "rolora" => ["up", "down", "up", "down", "up", "down"],
            "lora" => ["plain"; 6],
            _ => ["up"; 6],
        };
        assert_eq!(trained, expected_factors);
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    let folder = empty_directory("encoder-threads");
    write_sentences(&folder);
    copy_weights(&folder);
    for threads in ["1", "3"] {
        let output = run(
            &folder,
            &["--method", "lora", "--participants", "2", "--threads", threads, "--out", threads],
        );
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    }
    for file in ["rounds.jsonl", "predictions.csv", "adapter/adapter_model.safetensors"] {
        let read = |threads: &str| std::fs::read(folder.join(threads).join(file)).unwrap();
        assert!(read("1") == read("3") && !read("1").is_empty(), "{file}");
    }
}

#[test]
fn unusable_input_is_reported_in_one_line() {
    let folder = empty_directory("encoder-refused");
    write_sentences(&folder);
    let refused = |further_arguments: &[&str], reported: &[&str]| {
        let output = run(&folder, &[further_arguments, &["--out", "out"]].concat());
        let message = stderr_text(&output);
        assert_eq!(exit_code(&output), 2, "{message}");
        for part in reported {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert!(!folder.join("out").exists(), "{message}");
    };
    let model_files = copy_weights(&folder);
    refused(&["--participants", "4"], &["--participants: found 4, allowed: 1 to 3"]);
    refused(&["--clients", "40"], &["--clients: 40 of them would share"]);
    refused(&["--step-size", "11"], &["--step-size", "allowed: a number from 0.000000001 to 10"]);
    refused(&["--tokens", "41"], &["--tokens: found 41", "40 positions"]);
    for (text, reported) in [
        ("a\tgood\n", "line 1: not of the form"),
        ("a\t5\tgood\n", "line 1: the rating is no number from -4 to 4"),
        ("a_1\t1\tgood\na_1\t1\tbad\n", "line 2: \"a_1\" occurs twice"),
        ("a\t1\t \n", "line 1: there is no text"),
        ("a\t0.1\tgood\n", "no sentence with a rating far enough from zero"),
        ("", "no sentence"),
    ] {
        std::fs::write(folder.join("rated.txt"), text).unwrap();
        refused(&[], &["rated.txt", reported]);
    }
    std::fs::write(folder.join("rated.txt"), [0x61, 0xff]).unwrap();
    refused(&[], &["rated.txt: byte 1 is not UTF-8"]);
    write_sentences(&folder);

    let with_damaged = |file: &str, bytes: &[u8], reported: &[&str]| {
        let original = std::fs::read(model_files.join(file)).unwrap();
        std::fs::write(model_files.join(file), bytes).unwrap();
        refused(&[], reported);
        std::fs::write(model_files.join(file), original).unwrap();
    };
    let read = |file: &str| std::fs::read(model_files.join(file)).unwrap();
    let model = read("model.safetensors");
    with_damaged("model.safetensors", &model[..model.len() - 1], &["model.safetensors"]);
    with_damaged("model.safetensors", &model[..7], &["model.safetensors"]);
    let mut non_finite = model.clone();
    let last = non_finite.len() - 4;
    non_finite[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    with_damaged("model.safetensors", &non_finite, &["model.safetensors: tensor", "not a finite number"]);
    with_damaged("model.safetensors", &[0xff; 64], &["model.safetensors"]);
    let vocabulary = String::from_utf8(read("vocab.txt")).unwrap();
    with_damaged("vocab.txt", vocabulary.replace("[UNK]", "[unk]").as_bytes(), &["vocab.txt", "[UNK]"]);
    let config = String::from_utf8(read("config.json")).unwrap();
    with_damaged(
        "config.json",
        config.replace("32", "64").as_bytes(),
        &["model.safetensors: tensor", "shape [40, 32], needed: [40, 64]"],
    );
    with_damaged("config.json", b"{", &["config.json"]);
    std::fs::remove_file(model_files.join("vocab.txt")).unwrap();
    refused(&[], &["vocab.txt"]);
}
