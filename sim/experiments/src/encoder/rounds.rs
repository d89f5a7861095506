//! Rounds of a fleet: clients train, their adapters are written as files, and averaged by what averages files.

use std::path::Path;

use fedspan_adapters::files::{self, AverageJob, Inputs, Output, RoundKind};
use fedspan_engine::random::{Purpose, stream};
use rayon::prelude::*;
use serde::Serialize;

use super::local::{Local, Visit, trained};
use super::network::loss;
use super::{Adapter, Batch, CLASSES, Clients, EncoderError, Model};

/// What is trained in which round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Up and down factors by turns (Chen et al. 2025).
    #[value(name = "rolora")]
    #[serde(rename = "rolora")]
    RoLora,
    /// Both in every round, each averaged for itself.
    Lora,
    /// Up factors alone (Sun et al. 2024).
    FfaLora,
}

impl Method {
    /// What round `number`, from 1, trains.
    #[must_use]
    pub fn round(self, number: u32) -> RoundKind {
        match self {
            Self::Lora => RoundKind::Plain,
            Self::FfaLora => RoundKind::Up,
            Self::RoLora if number.is_multiple_of(2) => RoundKind::Down,
            Self::RoLora => RoundKind::Up,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RoLora => "rolora",
            Self::Lora => "lora",
            Self::FfaLora => "ffa-lora",
        }
    }
}

/// A run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Campaign {
    /// What is trained when.
    pub method: Method,
    /// r.
    pub rank: usize,
    /// How many.
    pub rounds: u32,
    /// Clients in each round, drawn anew.
    pub participants: usize,
    /// What a client does.
    pub local: Local,
    /// The held-out part is scored after so many rounds each time, before the first, and after the last.
    pub evaluate_every: u32,
    /// Of everything that is drawn.
    pub seed: u64,
}

/// What came of a round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// From 1; 0 is before training.
    pub round: u32,
    /// `up`, `down` or `plain`; nothing before training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained: Option<&'static str>,
    /// Clients, ascending.
    pub participants: Vec<usize>,
    /// Mean over participants of their loss, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Of the part that was held out.
    #[serde(flatten)]
    pub score: Option<Score>,
    /// What averaging both factors loses (`ADAPTERS.md` of the aggregator): 0 unless it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interference: Option<f64>,
    /// Bytes of numbers from clients: what the round trained.
    pub bytes_up: u64,
    /// To the participants: the same, after the averaging.
    pub bytes_down: u64,
}

/// How well sentences are told apart that nobody trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Part that is right.
    pub accuracy: f64,
    /// Mean cross-entropy, in nats.
    pub held_loss: f64,
}

/// What a run ends with.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// The average of the last round.
    pub adapter: Adapter,
    /// From round 0.
    pub rows: Vec<Row>,
    /// Whether it was stopped.
    pub interrupted: bool,
}

impl Campaign {
    /// Trains. After each round `watch` gets what came of it, and stops the run with `false`.
    ///
    /// # Errors
    /// A loss that is not finite, or a temporary file that cannot be written.
    pub fn run(
        &self,
        model: &Model,
        clients: &Clients,
        watch: &mut dyn FnMut(&Row) -> bool,
    ) -> Result<Trained, EncoderError> {
        let folder = tempfile::Builder::new().prefix("fedspan-encoder-").tempdir();
        let folder = folder.map_err(|error| EncoderError::file(&std::env::temp_dir(), error))?;
        let held: Vec<Batch> = clients.tested().into_iter().map(|tested| tested.tokens).collect();
        let mut global = Adapter::start(&model.shape, self.rank, self.seed);
        // The configuration is beside all files then.
        global.write_directory(folder.path())?;
        global.write(&folder.path().join("round-0.safetensors"))?;
        let score = Some(score(model, &global, &held));
        let mut rows = vec![Row {
            round: 0,
            trained: None,
            participants: Vec::new(),
            loss: None,
            score,
            interference: None,
            bytes_up: 0,
            bytes_down: 0,
        }];
        let mut go_on = rows.first().is_none_or(&mut *watch);
        for round in 1..=self.rounds {
            if !go_on {
                break;
            }
            let (next, mut row) = self.round(model, clients, global, round, folder.path())?;
            global = next;
            if round.is_multiple_of(self.evaluate_every.max(1)) || round == self.rounds {
                row.score = Some(self::score(model, &global, &held));
            }
            go_on = watch(&row) || round == self.rounds;
            rows.push(row);
        }
        Ok(Trained { adapter: global, rows, interrupted: !go_on })
    }

    fn round(
        &self,
        model: &Model,
        clients: &Clients,
        global: Adapter,
        number: u32,
        folder: &Path,
    ) -> Result<(Adapter, Row), EncoderError> {
        let round = self.method.round(number);
        let everybody: Vec<usize> = (0..clients.train.len()).collect();
        let mut cohort =
            stream(self.seed, Purpose::Cohort, number.into()).choose(&everybody, self.participants);
        cohort.sort_unstable();
        let base = folder.join(format!("round-{}.safetensors", number - 1));
        let next = folder.join(format!("round-{number}.safetensors"));
        let results: Vec<_> = cohort
            .par_iter()
            .map(|&client| {
                let mut adapter = global.clone();
                let place = (number, u32::try_from(client).unwrap_or(u32::MAX));
                let sentences = &clients.train[client];
                let visit = Visit { sentences, round, seed: self.seed, place };
                let loss = self.local.train(model, &mut adapter, visit);
                if !loss.is_finite() || adapter.values.iter().any(|value| !value.is_finite()) {
                    return Err(EncoderError::Diverged { round: number, client });
                }
                let path = folder.join(format!("client-{client}.safetensors"));
                adapter.write(&path)?;
                Ok((path, sentences.len() as u64, loss))
            })
            .collect();
        // The first in the order of clients, whatever the number of threads.
        let results = results.into_iter().collect::<Result<Vec<_>, EncoderError>>()?;
        let paths: Vec<_> = results.iter().map(|(path, _, _)| path.clone()).collect();
        let samples: Vec<u64> = results.iter().map(|(_, samples, _)| *samples).collect();
        let inputs = Inputs::open(&base, &paths, Some(&samples))?;
        let interference = files::check(&inputs, &|_, _| true)?.interference;
        let job = AverageJob { kind: round, output: Output::from_path(&next), threads: 1 };
        files::average(&inputs, job, &|_, _| true)?;
        drop(inputs);
        let mean = Adapter::read(&next, &model.shape, self.rank)?;
        std::fs::remove_file(&base).map_err(|error| EncoderError::file(&base, error))?;
        let numbers: usize = trained(&mean, round).into_iter().map(|range| range.len()).sum();
        let bytes = (size_of::<f32>() * numbers * cohort.len()) as u64;
        let loss = results.iter().map(|(_, _, loss)| loss).sum::<f64>() / results.len().max(1) as f64;
        let row = Row {
            round: number,
            trained: Some(round.name()),
            participants: cohort,
            loss: Some(loss),
            score: None,
            interference,
            bytes_up: bytes,
            bytes_down: bytes,
        };
        Ok((mean, row))
    }
}

/// Of all batches together.
#[must_use]
pub fn score(model: &Model, adapter: &Adapter, batches: &[Batch]) -> Score {
    let parts: Vec<(usize, f64)> = batches
        .par_iter()
        .map(|batch| {
            let logits = model.logits(adapter, batch);
            let right = logits.chunks_exact(CLASSES).zip(&batch.labels);
            let right = right.filter(|(logits, label)| u8::from(logits[1] > logits[0]) == **label).count();
            (right, loss(&logits, &batch.labels) * batch.labels.len() as f64)
        })
        .collect();
    let count: usize = batches.iter().map(|batch| batch.labels.len()).sum();
    let (right, losses) = parts.iter().fold((0, 0.0), |(right, sum), part| (right + part.0, sum + part.1));
    Score { accuracy: right as f64 / count as f64, held_loss: losses / count as f64 }
}
