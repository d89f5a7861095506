//! Result files of an encoder run: `rounds.jsonl`, `summary.json`, `predictions.csv`, and the adapter in the
//! layout of PEFT.

use std::path::Path;

use serde::Serialize;

use super::{CLASSES, Campaign, Clients, EncoderError, Model, Score, Trained};
use fedspan_sim_core::report::files::{make_directory, write_json, write_text};

/// Content of `summary.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// Name of the algorithm.
    pub method: &'static str,
    /// Rank of the factors, r.
    pub rank: usize,
    /// Seed of all random draws, except the draw of the test sentences, which has a fixed seed.
    pub seed: u64,
    /// Number of clients.
    pub clients: usize,
    /// Number of participants in each round.
    pub participants: usize,
    /// Number of finished rounds.
    pub rounds: u32,
    /// Number of optimiser steps of a client in a round.
    pub steps: usize,
    /// Number of sentences in a step.
    pub batch: usize,
    /// Step size of AdamW.
    pub step_size: f32,
    /// Weight decay of AdamW.
    pub decay: f32,
    /// Largest number of tokens of a sentence; longer sentences are truncated.
    pub tokens: usize,
    /// Files of sentences, as named on the command line.
    pub files: Vec<String>,
    /// Scored part: `test` or `validation`.
    pub held: &'static str,
    /// Numbers of training, scored and omitted sentences.
    pub sentences: Counts,
    /// True if Ctrl-C interrupted the run; absent from the file otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// Metrics after the last round.
    #[serde(rename = "final")]
    pub end: Final,
    /// Payload bytes, summed over all rounds.
    pub bytes: Bytes,
    /// Durations, which differ between otherwise equal runs.
    pub timing: Timing,
}

/// Numbers of training, scored and omitted sentences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of training sentences of all clients.
    pub train: usize,
    /// Number of scored sentences.
    pub held: usize,
    /// Number of sentences that were omitted because their rating is too close to zero.
    pub left_out: usize,
    /// Number of sentences of the client with the fewest sentences.
    pub least: usize,
    /// Number of sentences of the client with the most sentences.
    pub most: usize,
}

/// Metrics after the last round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Final {
    /// Score of the last scored round.
    #[serde(flatten)]
    pub score: Option<Score>,
    /// Accuracy of a classifier that always returns the more frequent class of the scored part.
    pub majority: f64,
    /// Mean training loss of the last round, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Largest interference over all rounds, see [`Row::interference`](super::Row::interference).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greatest_interference: Option<f64>,
}

/// Payload bytes, without framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Bytes that all clients sent.
    pub up: u64,
    /// Bytes that all clients received.
    pub down: u64,
}

/// Durations of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// Duration of the run including scoring, in seconds.
    pub wall_s: f64,
}

/// Facts about a run that [`Campaign`], [`Clients`] and [`Trained`] do not contain.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// Files of sentences, as named on the command line.
    pub files: Vec<String>,
    /// Largest number of tokens of a sentence; longer sentences are truncated.
    pub tokens: usize,
    /// Scored part: `test` or `validation`.
    pub held: &'static str,
    /// Number of sentences that were omitted because their rating is too close to zero.
    pub left_out: usize,
    /// Duration of the run including scoring, in seconds.
    pub wall_s: f64,
}

impl Report {
    /// Creates the report of a run.
    #[must_use]
    pub fn new(campaign: &Campaign, clients: &Clients, trained: &Trained, info: RunInfo) -> Self {
        let sizes: Vec<usize> = clients.train.iter().map(Vec::len).collect();
        let labels: Vec<u8> = clients.held.iter().flat_map(|g| &g.sentences).map(|s| s.label).collect();
        let positive = labels.iter().filter(|label| **label == 1).count();
        let frequent = positive.max(labels.len() - positive);
        let rows = &trained.rows;
        Self {
            version: env!("CARGO_PKG_VERSION"),
            method: campaign.method.name(),
            rank: campaign.rank,
            seed: campaign.seed,
            clients: sizes.len(),
            participants: campaign.participants,
            rounds: rows.last().map_or(0, |row| row.round),
            steps: campaign.local.steps,
            batch: campaign.local.batch,
            step_size: campaign.local.step_size,
            decay: campaign.local.decay,
            tokens: info.tokens,
            files: info.files,
            held: info.held,
            sentences: Counts {
                train: sizes.iter().sum(),
                held: labels.len(),
                left_out: info.left_out,
                least: sizes.iter().copied().min().unwrap_or(0),
                most: sizes.iter().copied().max().unwrap_or(0),
            },
            interrupted: trained.interrupted,
            end: Final {
                score: rows.iter().rev().find_map(|row| row.score),
                majority: frequent as f64 / labels.len() as f64,
                loss: rows.last().and_then(|row| row.loss),
                greatest_interference: rows.iter().filter_map(|row| row.interference).reduce(f64::max),
            },
            bytes: Bytes {
                up: rows.iter().map(|row| row.bytes_up).sum(),
                down: rows.iter().map(|row| row.bytes_down).sum(),
            },
            timing: Timing { wall_s: info.wall_s },
        }
    }

    /// Writes all files of a run into a directory.
    ///
    /// # Errors
    /// [`EncoderError::Write`] or [`EncoderError::File`] if a file cannot be written.
    pub fn write(
        &self,
        directory: &Path,
        model: &Model,
        clients: &Clients,
        trained: &Trained,
    ) -> Result<(), EncoderError> {
        make_directory(directory)?;
        let rounds = directory.join("rounds.jsonl");
        let mut lines = String::new();
        for row in &trained.rows {
            lines.push_str(&serde_json::to_string(row).map_err(|error| EncoderError::file(&rounds, error))?);
            lines.push('\n');
        }
        write_text(&rounds, &lines)?;
        write_text(&directory.join("predictions.csv"), &format_predictions(model, clients, trained))?;
        trained.adapter.write_directory(&directory.join("adapter"))?;
        write_json(&directory.join("summary.json"), self)?;
        Ok(())
    }
}

/// Content of `predictions.csv`: one line for each held-out sentence with the index of its file, its id, its
/// label, and the logits.
fn format_predictions(model: &Model, clients: &Clients, trained: &Trained) -> String {
    let mut text = String::from("file,id,label,negative,positive\n");
    for batch in clients.test_batches() {
        let logits = model.logits(&trained.adapter, &batch.tokens);
        for ((file, id, label), logits) in batch.names.iter().zip(logits.chunks_exact(CLASSES)) {
            text.push_str(&format!("{file},{},{label},{},{}\n", csv_field(id), logits[0], logits[1]));
        }
    }
    text
}

/// Quotes a CSV field if it contains commas or quotation marks.
fn csv_field(text: &str) -> String {
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
