//! Test helpers: functions that run the program and create its input files.
#![allow(dead_code, reason = "no test file uses all of it")]

pub mod arrays;
pub mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use proptest::prelude::*;

/// Creates an empty directory.
pub fn empty_directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Runs `fedspan-sim` in a directory.
pub fn run_program(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-sim"));
    command.current_dir(directory).args(arguments).output().unwrap()
}

/// Exit code of a program.
pub fn exit_code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// Standard error of a program.
pub fn stderr_text(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Standard output of a program.
pub fn stdout_text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Writes f64 arrays, given as name, shape and values, into an npz file.
pub fn write_npz(path: &Path, arrays: &[(&str, &[u64], &[f64])]) {
    let npy = |&(name, shape, values): &(&str, &[u64], &[f64])| (name.to_owned(), npy(shape, values));
    write_archive(path, &arrays.iter().map(npy).collect::<Vec<_>>());
}

/// Writes npy files into an npz file.
pub fn write_archive(path: &Path, files: &[(String, Vec<u8>)]) {
    let mut archive = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in files {
        archive.start_file(format!("{name}.npy"), zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut archive, bytes).unwrap();
    }
    archive.finish().unwrap();
}

/// Content of an npy file with one array.
pub fn npy<T: npyz::AutoSerialize + Copy>(shape: &[u64], values: &[T]) -> Vec<u8> {
    use npyz::WriterBuilder;
    let mut bytes = Vec::new();
    let options = npyz::WriteOptions::<T>::new().default_dtype().shape(shape).writer(&mut bytes);
    let mut writer = options.begin_nd().unwrap();
    writer.extend(values.iter().copied()).unwrap();
    writer.finish().unwrap();
    bytes
}

/// Deterministic random numbers, uniform between -1 and 1.
pub fn random_numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next_number = || {
        // Linear congruential generator with Knuth's multiplier for 64 bits.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
    };
    (0..count).map(|_| next_number()).collect()
}

/// Sections of a scenario that follow its data section.
pub const REST: &str = "[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 0.25\n";

/// Runs a scenario on invalid data and returns the error message.
pub fn data_error_message(folder: &Path, data: &str) -> String {
    std::fs::write(folder.join("my.toml"), format!("[data]\n{data}\n{REST}")).unwrap();
    let output = run_program(folder, &["run", "my.toml", "--out", "out"]);
    let reported = stderr_text(&output);
    assert_eq!(exit_code(&output), 2, "{reported}");
    assert!(!folder.join("out").exists(), "files were written");
    assert_eq!(reported.lines().count(), 1, "{reported}");
    reported
}

/// Asserts that a message contains all parts.
pub fn assert_contains_all(reported: &str, parts: &[&str]) {
    for part in parts {
        assert!(reported.contains(part), "{part:?} is not in {reported:?}");
    }
}

/// Contents of a valid pair of IDX files: 6 images of 2 x 2 pixels, and their labels of 3 classes.
pub fn idx_files() -> (Vec<u8>, Vec<u8>) {
    let mut images = vec![0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 2];
    images.extend(0..24);
    let mut labels = vec![0, 0, 8, 1, 0, 0, 0, 6];
    labels.extend([0, 1, 2, 0, 1, 2]);
    (images, labels)
}

/// Copy of a file that is truncated and in which some bytes are changed.
pub fn damaged(original: &[u8], cut: usize, flips: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for (index, mask) in flips {
        let index = index % bytes.len();
        bytes[index] ^= mask;
    }
    bytes.truncate(cut % (bytes.len() + 1));
    bytes
}

/// Strategy for the last two arguments of [`damaged`].
pub fn damage() -> impl Strategy<Value = (usize, Vec<(usize, u8)>)> {
    let cut = prop_oneof![Just(usize::MAX), any::<usize>()];
    (cut, proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4))
}
