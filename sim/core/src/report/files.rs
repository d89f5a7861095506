//! Writer of the result files of a run. Every file is written under a temporary name and renamed when it is
//! complete.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fedspan_engine::DeviceId;
use fedspan_engine::algorithm::HeadPrior;
use fedspan_engine::linalg::Matrix;
use serde::Serialize;

use super::energy;
use super::predictions;
use super::summary::Summary;
use crate::data::npz;
use crate::figures::Figures;
use crate::run::{Outcome, RoundRow};

/// Error of writing a result file.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {error}", .path.display())]
pub struct WriteError {
    /// Path of the file or directory.
    pub path: PathBuf,
    /// Cause of the failure.
    pub error: io::Error,
}

impl WriteError {
    fn new(path: &Path, error: impl Into<io::Error>) -> Self {
        Self { path: path.to_owned(), error: error.into() }
    }
}

/// Line of `rounds.jsonl`: the results of a round.
#[derive(Serialize)]
struct RoundLine<'a> {
    round: u32,
    stage: u16,
    cohort: &'a [DeviceId],
    participants: &'a [DeviceId],
    time: f64,
    #[serde(flatten)]
    figures: Figures,
    bytes_up: u64,
    bytes_down: u64,
    rejected: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    interference: Option<f64>,
}

impl<'a> RoundLine<'a> {
    fn new(row: &'a RoundRow) -> Self {
        Self {
            round: row.round,
            stage: row.stage,
            cohort: &row.cohort,
            participants: &row.participants,
            time: row.time,
            figures: row.scores.as_ref().map(Figures::new).unwrap_or_default(),
            bytes_up: row.bytes_up,
            bytes_down: row.bytes_down,
            rejected: row.rejected,
            interference: row.interference,
        }
    }
}

/// Creates a directory and its missing parent directories.
///
/// # Errors
/// [`WriteError`] naming the directory if the directory cannot be created.
pub fn make_directory(path: &Path) -> Result<(), WriteError> {
    fs::create_dir_all(path).map_err(|error| WriteError::new(path, error))
}

/// Files of a run, relative to the directory of the run. Runs over several seeds write the same files to
/// directories named `seed-S`.
const RUN_FILES: [&str; 24] = [
    "checkpoint.bin",
    "finished.json",
    "summary.json",
    "results.csv",
    "scenario.toml",
    "predictions.csv",
    "confusion.csv",
    "classes.csv",
    "rounds.jsonl",
    "clients.csv",
    "energy.csv",
    "report.html",
    "model/representation.npy",
    "model/prior-mean.npy",
    "model/prior-covariance.npy",
    "model/scale.npy",
    "model/scale.json",
    "model/layer-0.npy",
    "model/layer-1.npy",
    "model/layer-2.npy",
    "model/layer-3.npy",
    "model/layer-4.npy",
    "model/heads.npy",
    "model/new-heads.npy",
];

/// File with the arguments of the command that has written a directory. Each command replaces it.
pub const COMMAND_FILE: &str = "command.json";

/// True if a file has the name of a result file.
#[must_use]
pub fn is_result(path: &Path) -> bool {
    RUN_FILES.iter().chain([&COMMAND_FILE]).any(|name| path.file_name().is_some_and(|file| *file == **name))
}

/// First file in a directory, or in its `seed-S` directories, that has the name of a result file; `None` if there is none.
///
/// # Errors
/// [`WriteError`] if the directory cannot be read.
pub fn first_result(directory: &Path) -> Result<Option<PathBuf>, WriteError> {
    let mut directories = seed_directories(directory)?;
    directories.insert(0, directory.to_owned());
    let files = directories.iter().flat_map(|directory| RUN_FILES.map(|name| directory.join(name)));
    Ok(files.into_iter().find(|path| path.symlink_metadata().is_ok()))
}

/// Directories of single seeds in a directory, sorted.
fn seed_directories(directory: &Path) -> Result<Vec<PathBuf>, WriteError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(|error| WriteError::new(directory, error))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| WriteError::new(directory, error))?;
        let seed =
            entry.file_name().to_str().and_then(|name| name.strip_prefix("seed-")?.parse::<u64>().ok());
        if seed.is_some_and(|seed| *entry.file_name() == *format!("seed-{seed}")) && entry.path().is_dir() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Removes the result files of an earlier run from a directory, so that old and new files are not mixed. Only
/// the files of a run, complete or partial, are removed, in the directory itself and in `seed-S` directories.
/// Directories that become empty are also removed. Other files are kept.
///
/// # Errors
/// [`WriteError`] naming a file that cannot be removed or a directory that cannot be read.
pub fn remove_run(directory: &Path) -> Result<(), WriteError> {
    for seed in seed_directories(directory)? {
        remove_files(&seed)?;
        remove_if_empty(&seed);
    }
    remove_files(directory)
}

/// Removes the files of a run, complete or partial, from one directory.
fn remove_files(directory: &Path) -> Result<(), WriteError> {
    for name in RUN_FILES {
        for path in [directory.join(name), directory.join(format!("{name}.partial"))] {
            match fs::remove_file(&path) {
                Err(error) if path.symlink_metadata().is_ok() => return Err(WriteError::new(&path, error)),
                // The file was removed or did not exist.
                _ => {}
            }
        }
    }
    remove_if_empty(&directory.join("model"));
    Ok(())
}

/// Removes a directory if it is empty.
fn remove_if_empty(directory: &Path) {
    let _ = fs::remove_dir(directory);
}

/// Writes a text file.
///
/// # Errors
/// [`WriteError`] naming the file if the file cannot be written.
pub fn write_text(path: &Path, text: &str) -> Result<(), WriteError> {
    write_bytes(path, text.as_bytes())
}

/// Writes a file.
///
/// # Errors
/// [`WriteError`] naming the file if the file cannot be written.
pub fn write_bytes(path: &Path, content: &[u8]) -> Result<(), WriteError> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let write = || {
        let mut file = fs::File::create(&partial)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().map_err(|error| WriteError::new(path, error))
}

/// Formats a value as JSON, indented by two spaces and with a line feed at the end.
///
/// # Errors
/// The error of `serde_json` if the value cannot be represented in JSON.
pub fn json(value: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(value).map(|text| text + "\n")
}

/// Writes a value as a JSON file.
///
/// # Errors
/// [`WriteError`] naming the file if the file cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), WriteError> {
    let text = json(value).map_err(|error| WriteError::new(path, error))?;
    write_text(path, &text)
}

/// Writes the result files of one run into a directory, all but `report.html`. `scenario` is the text of the scenario
/// as it was run.
///
/// # Errors
/// [`WriteError`] naming the file that cannot be written.
pub fn write_run(
    directory: &Path,
    scenario: &str,
    summary: &Summary,
    outcome: &Outcome,
) -> Result<(), WriteError> {
    let model = directory.join("model");
    make_directory(&model)?;
    let rounds = directory.join("rounds.jsonl");
    let mut lines = String::new();
    for row in &outcome.rounds {
        let line =
            serde_json::to_string(&RoundLine::new(row)).map_err(|error| WriteError::new(&rounds, error))?;
        lines.push_str(&line);
        lines.push('\n');
    }
    write_text(&rounds, &lines)?;
    write_text(&directory.join("scenario.toml"), scenario)?;
    write_text(&directory.join("clients.csv"), &clients(outcome))?;
    let optional = [
        ("predictions.csv", predictions::predictions(outcome)),
        ("confusion.csv", predictions::confusion(outcome)),
        ("classes.csv", predictions::classes(outcome)),
        ("energy.csv", energy::energy(outcome)),
    ];
    for (name, text) in optional {
        if let Some(text) = text {
            write_text(&directory.join(name), &text)?;
        }
    }
    write_model(&model, outcome)?;
    write_json(&directory.join("summary.json"), summary)
}

/// Text of `clients.csv`: one line for each client, newcomers last. A line has the number of the client from
/// 0 in the data, the time at which the client joined, the metrics and the name of the client. Metrics that do not apply
/// are empty.
#[must_use]
pub fn clients(outcome: &Outcome) -> String {
    let mut text = String::from("client,came,accuracy,accuracy_tuned,loss,test_mse,name\n");
    let cell = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let scored_clients = outcome
        .clients
        .iter()
        .zip(client_names_or_empty(&outcome.names.clients))
        .map(|client_and_name| ("before", client_and_name));
    let newcomers = outcome.newcomers.iter().zip(client_names_or_empty(&outcome.names.newcomers));
    let scored_clients = scored_clients.chain(newcomers.map(|client_and_name| ("after", client_and_name)));
    for (index, (number, (joined, (client, name)))) in outcome.numbers.iter().zip(scored_clients).enumerate()
    {
        let tuned = outcome.tuned.get(index).and_then(|tuned| tuned.accuracy);
        let figures = [client.accuracy, tuned, Some(client.loss), client.test_mse].map(cell);
        text.push_str(&format!("{number},{joined},{},{}\n", figures.join(","), quote_cell(name)));
    }
    text
}

/// Iterates over the known names, followed by infinitely many empty names.
fn client_names_or_empty(client_names: &[String]) -> impl Iterator<Item = &str> {
    client_names.iter().map(String::as_str).chain(std::iter::repeat(""))
}

/// Quotes a CSV cell if RFC 4180 requires quotes.
pub(super) fn quote_cell(name: &str) -> String {
    match name.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_owned(),
    }
}

/// Writes the files of the final model.
///
/// `representation.npy` is d x k. `heads.npy` is (clients, k), or (clients, k, outputs) for several outputs;
/// d replaces k for heads that act on all features (local-only, learned-prior), which have no `representation.npy`. `new-heads.npy`
/// has the heads of newcomers. A learned prior has `prior-mean.npy` (d x outputs) and `prior-covariance.npy` (d x d, in units of the
/// variance of the noise). For networks, the shared layers are written
/// from the first layer on to `layer-0.npy`, `layer-1.npy`, ..., each (inputs + 1) x outputs. For models of
/// standardised samples, `scale.npy` (2 x d) has a row of shifts, which are subtracted first, and a row of
/// factors. `scale.json` is the scale of a table, with the names of the features.
fn write_model(directory: &Path, outcome: &Outcome) -> Result<(), WriteError> {
    let failed = |path: &Path, error: crate::data::DataError| WriteError::new(path, io::Error::other(error));
    let write_matrix = |name: &str, matrix: &Matrix| {
        let path = directory.join(name);
        let shape = [matrix.nrows() as u64, matrix.ncols() as u64];
        npz::write(&path, &shape, matrix.transpose().as_slice()).map_err(|error| failed(&path, error))
    };
    if let Some(b) = outcome.representation.as_ref().filter(|_| outcome.prior.is_none()) {
        write_matrix("representation.npy", b)?;
    }
    if let Some(HeadPrior { mean, covariance, .. }) = &outcome.head_prior {
        write_matrix("prior-mean.npy", mean)?;
        write_matrix("prior-covariance.npy", covariance)?;
    }
    if let Some(scale) = &outcome.scale {
        let path = directory.join("scale.npy");
        let values: Vec<f64> =
            scale.shift().iter().chain(scale.factor()).map(|value| f64::from(*value)).collect();
        npz::write(&path, &[2, scale.shift().len() as u64], &values).map_err(|error| failed(&path, error))?;
    }
    if let Some(scale) = &outcome.names.scale {
        write_json(&directory.join("scale.json"), scale)?;
    }
    for (number, layer) in outcome.layers.iter().enumerate() {
        let path = directory.join(format!("layer-{number}.npy"));
        let values: Vec<f64> = layer.values.iter().map(|value| f64::from(*value)).collect();
        npz::write(&path, &[layer.rows.into(), layer.cols.into()], &values)
            .map_err(|error| failed(&path, error))?;
    }
    for (name, clients) in [("heads.npy", &outcome.clients), ("new-heads.npy", &outcome.newcomers)] {
        let Some(first) = clients.first().filter(|first| !first.head.is_empty()) else { continue };
        let path = directory.join(name);
        let values: Vec<f64> = clients.iter().flat_map(|c| &c.head).copied().collect();
        let (size, outputs) = (first.head.len() as u64, outcome.outputs as u64);
        let mut shape = vec![clients.len() as u64, size / outputs.max(1)];
        if outputs > 1 {
            shape.push(outputs);
        }
        npz::write(&path, &shape, &values).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}
