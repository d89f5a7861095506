//! Result files of a run: `rounds.jsonl`, `summary.json`, `predictions.csv`, and the adapter in PEFT's layout.

use std::path::Path;

use serde::Serialize;

use super::{CLASSES, Campaign, Clients, EncoderError, Model, Score, Trained};
use fedspan_sim_core::report::files::{make_directory, write_json, write_text};

/// `summary.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Of this program.
    pub version: &'static str,
    /// What is trained when.
    pub method: &'static str,
    /// r.
    pub rank: usize,
    /// Of everything that is drawn but the test part.
    pub seed: u64,
    /// How many there are.
    pub clients: usize,
    /// Of each round.
    pub participants: usize,
    /// Rounds that were done.
    pub rounds: u32,
    /// Of a client in a round.
    pub steps: usize,
    /// Sentences of a step.
    pub batch: usize,
    /// Of AdamW.
    pub step_size: f32,
    /// Of AdamW.
    pub decay: f32,
    /// Most tokens of a sentence.
    pub tokens: usize,
    /// Files of sentences, as they were named.
    pub files: Vec<String>,
    /// What was scored: `test` or `validation`.
    pub held: &'static str,
    /// What there was of it.
    pub sentences: Counts,
    /// True if Ctrl-C ended the run; otherwise absent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// After the last round.
    #[serde(rename = "final")]
    pub end: Final,
    /// Bytes of numbers of all rounds.
    pub bytes: Bytes,
    /// What differs from run to run.
    pub timing: Timing,
}

/// Numbers of sentences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Of all clients.
    pub train: usize,
    /// That are scored.
    pub held: usize,
    /// Rated too near to zero.
    pub left_out: usize,
    /// Of the smallest client.
    pub least: usize,
    /// Of the largest.
    pub most: usize,
}

/// Figures of the end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Final {
    /// Of the last scored round.
    #[serde(flatten)]
    pub score: Option<Score>,
    /// The accuracy of always saying what is more frequent in the part that is scored.
    pub majority: f64,
    /// Of the last round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The greatest of all rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greatest_interference: Option<f64>,
}

/// Of numbers alone, without frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// From clients.
    pub up: u64,
    /// To them.
    pub down: u64,
}

/// Seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// The whole run, scoring included.
    pub wall_s: f64,
}

/// What a run was about, besides the campaign.
#[derive(Clone, Debug)]
pub struct About {
    /// Files of sentences.
    pub files: Vec<String>,
    /// Most tokens of a sentence.
    pub tokens: usize,
    /// `test` or `validation`.
    pub held: &'static str,
    /// Rated too near to zero.
    pub left_out: usize,
    /// Seconds.
    pub wall_s: f64,
}

impl Report {
    /// Of what was trained.
    #[must_use]
    pub fn of(campaign: &Campaign, clients: &Clients, trained: &Trained, about: About) -> Self {
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
            tokens: about.tokens,
            files: about.files,
            held: about.held,
            sentences: Counts {
                train: sizes.iter().sum(),
                held: labels.len(),
                left_out: about.left_out,
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
            timing: Timing { wall_s: about.wall_s },
        }
    }

    /// Writes all files of a run into a directory.
    ///
    /// # Errors
    /// Which could not be written.
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
        write_text(&directory.join("predictions.csv"), &predictions(model, clients, trained))?;
        trained.adapter.write_directory(&directory.join("adapter"))?;
        write_json(&directory.join("summary.json"), self)?;
        Ok(())
    }
}

/// A line for each sentence of the part that was held out: the number of its file, its id and label, and the logits.
fn predictions(model: &Model, clients: &Clients, trained: &Trained) -> String {
    let mut text = String::from("file,id,label,negative,positive\n");
    for batch in clients.tested() {
        let logits = model.logits(&trained.adapter, &batch.tokens);
        for ((file, id, label), logits) in batch.names.iter().zip(logits.chunks_exact(CLASSES)) {
            text.push_str(&format!("{file},{},{label},{},{}\n", quoted(id), logits[0], logits[1]));
        }
    }
    text
}

/// As CSV has text with commas or quotation marks.
fn quoted(text: &str) -> String {
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
