//! Runs the program, and makes the files it reads.
#![allow(dead_code, reason = "no test file uses all of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A new, empty directory.
pub fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Runs `fedspan-sim` in a directory.
pub fn program(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-sim"));
    command.current_dir(directory).args(arguments).output().unwrap()
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Writes f64 arrays as an npz file: name, shape, values.
pub fn write_npz(path: &Path, arrays: &[(&str, &[u64], &[f64])]) {
    use npyz::WriterBuilder;
    let mut archive = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, shape, values) in arrays {
        archive.start_file(format!("{name}.npy"), zip::write::SimpleFileOptions::default()).unwrap();
        let options = npyz::WriteOptions::<f64>::new().default_dtype().shape(shape).writer(&mut archive);
        let mut writer = options.begin_nd().unwrap();
        writer.extend(values.iter().copied()).unwrap();
        writer.finish().unwrap();
    }
    archive.finish().unwrap();
}

/// Uniform in -1..1, the same on every machine.
pub fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        // Knuth's multiplier for 64 bits.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
