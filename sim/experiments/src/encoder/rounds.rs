//! Training rounds of the encoder: clients train adapters, and `fedspan-adapters` averages the adapters,
//! which are passed as files.

use std::path::Path;

use fedspan_adapters::files::{self, AverageJob, Inputs, Output, RoundKind};
use fedspan_engine::random::{Purpose, stream};
use rayon::prelude::*;
use serde::Serialize;

use super::local::{ClientRound, LocalTraining, trained};
use super::network::loss;
use super::{Adapter, Batch, CLASSES, Clients, EncoderError, Model};

/// Federated LoRA algorithms, which differ in the factors that a round trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LoraMethod {
    /// RoLoRA: rounds train the up factors and the down factors in turn (Chen et al. 2025).
    #[value(name = "rolora")]
    #[serde(rename = "rolora")]
    RoLora,
    /// LoRA: every round trains both factors, and the server averages each factor separately.
    Lora,
    /// FFA-LoRA: every round trains only the up factors (Sun et al. 2024).
    FfaLora,
}

impl LoraMethod {
    /// Kind of round `number`; the first round has number 1.
    #[must_use]
    pub fn round(self, number: u32) -> RoundKind {
        match self {
            Self::Lora => RoundKind::Plain,
            Self::FfaLora => RoundKind::Up,
            Self::RoLora if number.is_multiple_of(2) => RoundKind::Down,
            Self::RoLora => RoundKind::Up,
        }
    }

    /// Name of the algorithm on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RoLora => "rolora",
            Self::Lora => "lora",
            Self::FfaLora => "ffa-lora",
        }
    }
}

/// Settings of a training run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Campaign {
    /// Federated LoRA algorithm.
    pub method: LoraMethod,
    /// Rank of the factors, r.
    pub rank: usize,
    /// Number of rounds.
    pub rounds: u32,
    /// Number of participants, which are drawn independently for each round.
    pub participants: usize,
    /// Settings of local training.
    pub local: LocalTraining,
    /// Number of rounds between two scores of the held-out part. The held-out part is also scored before the
    /// first round and after the last round.
    pub evaluate_every: u32,
    /// Seed of all random draws.
    pub seed: u64,
}

/// Results of a round, as one line of `rounds.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Number of the round, from 1; 0 for the model before training.
    pub round: u32,
    /// Trained factors: `up`, `down` or `plain`; absent before training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained: Option<&'static str>,
    /// Indices of the participating clients, ascending.
    pub participants: Vec<usize>,
    /// Mean training loss over the participants, in nats; absent before training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Score on the held-out part, if the round was scored.
    #[serde(flatten)]
    pub score: Option<Score>,
    /// Interference, i.e. the error of averaging both factors separately (defined in the aggregator's
    /// `ADAPTERS.md`); 0 if only one factor was trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interference: Option<f64>,
    /// Payload bytes that the participants sent, i.e. the trained values.
    pub bytes_up: u64,
    /// Payload bytes that the participants received, i.e. the averages of the trained values.
    pub bytes_down: u64,
}

/// Accuracy and loss on the held-out sentences.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Fraction of sentences whose class is predicted correctly.
    pub accuracy: f64,
    /// Mean cross-entropy, in nats.
    pub held_loss: f64,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// Average of the clients' adapters in the last round.
    pub adapter: Adapter,
    /// Results of the rounds, starting with round 0.
    pub rows: Vec<Row>,
    /// True if the run was stopped early.
    pub interrupted: bool,
}

impl Campaign {
    /// Trains the adapter. The function `watch` receives the results of each round, starting with round 0;
    /// the run stops if `watch` returns `false`.
    ///
    /// # Errors
    /// [`EncoderError::Diverged`] if a loss is not finite; [`EncoderError::NonFiniteAdapter`] if an adapter
    /// has a value that is not finite; [`EncoderError::File`] if a temporary file cannot be written;
    /// [`EncoderError::Adapter`] if averaging fails.
    pub fn run(
        &self,
        model: &Model,
        clients: &Clients,
        watch: &mut dyn FnMut(&Row) -> bool,
    ) -> Result<Trained, EncoderError> {
        let folder = tempfile::Builder::new().prefix("fedspan-encoder-").tempdir();
        let folder = folder.map_err(|error| EncoderError::file(&std::env::temp_dir(), error))?;
        let test_batches: Vec<Batch> = clients.test_batches().into_iter().map(|batch| batch.tokens).collect();
        let mut global = Adapter::start(&model.shape, self.rank, self.seed);
        // `fedspan-adapters` requires the adapter configuration in the directory of the adapter files.
        global.write_directory(folder.path())?;
        global.write(&folder.path().join("round-0.safetensors"))?;
        let score = Some(score(model, &global, &test_batches));
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
            let (averaged, mut row) = self.round(model, clients, global, round, folder.path())?;
            global = averaged;
            if round.is_multiple_of(self.evaluate_every.max(1)) || round == self.rounds {
                row.score = Some(self::score(model, &global, &test_batches));
            }
            go_on = watch(&row) || round == self.rounds;
            rows.push(row);
        }
        Ok(Trained { adapter: global, rows, interrupted: !go_on })
    }

    /// Runs round `number` from the adapter `global`. Returns the averaged adapter and the results of the
    /// round.
    fn round(
        &self,
        model: &Model,
        clients: &Clients,
        global: Adapter,
        number: u32,
        folder: &Path,
    ) -> Result<(Adapter, Row), EncoderError> {
        let round = self.method.round(number);
        let all_clients: Vec<usize> = (0..clients.train.len()).collect();
        let mut cohort =
            stream(self.seed, Purpose::Cohort, number.into()).choose(&all_clients, self.participants);
        cohort.sort_unstable();
        let base = folder.join(format!("round-{}.safetensors", number - 1));
        let averaged_path = folder.join(format!("round-{number}.safetensors"));
        let results: Vec<_> = cohort
            .par_iter()
            .map(|&client| {
                let mut adapter = global.clone();
                let round_and_client = (number, u32::try_from(client).unwrap_or(u32::MAX));
                let sentences = &clients.train[client];
                let client_round = ClientRound { sentences, round, seed: self.seed, place: round_and_client };
                let loss = self.local.train(model, &mut adapter, client_round);
                check_finite(&adapter, loss, number, client)?;
                let path = folder.join(format!("client-{client}.safetensors"));
                adapter.write(&path)?;
                Ok((path, sentences.len() as u64, loss))
            })
            .collect();
        // The error of the failed client with the lowest index is returned for any number of threads.
        let results = results.into_iter().collect::<Result<Vec<_>, EncoderError>>()?;
        let paths: Vec<_> = results.iter().map(|(path, _, _)| path.clone()).collect();
        let samples: Vec<u64> = results.iter().map(|(_, samples, _)| *samples).collect();
        let inputs = Inputs::open(&base, &paths, Some(&samples))?;
        let interference = files::check(&inputs, &|_, _| true)?.interference;
        let job = AverageJob { kind: round, output: Output::from_path(&averaged_path), threads: 1 };
        files::average(&inputs, job, &|_, _| true)?;
        drop(inputs);
        let mean = Adapter::read(&averaged_path, &model.shape, self.rank)?;
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

/// Checks that a client's training loss and adapter are finite.
fn check_finite(adapter: &Adapter, loss: f64, round: u32, client: usize) -> Result<(), EncoderError> {
    if !loss.is_finite() {
        return Err(EncoderError::Diverged { round, client, loss });
    }
    let count = |values: &[f32]| values.iter().filter(|value| !value.is_finite()).count();
    let first = adapter.parts.iter().find(|part| count(&adapter.values[part.range.clone()]) > 0);
    let Some(part) = first else { return Ok(()) };
    Err(EncoderError::NonFiniteAdapter {
        round,
        client,
        loss,
        count: count(&adapter.values),
        of: adapter.values.len(),
        tensor: part.name.clone(),
    })
}

/// Computes accuracy and loss over all batches.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::encoder::Shape;

    #[test]
    fn loss_and_adapter_that_are_not_finite_have_own_errors() {
        let shape = Shape {
            vocabulary: 8,
            hidden: 4,
            layers: 2,
            heads: 2,
            intermediate: 8,
            positions: 6,
            types: 1,
            epsilon: 1e-12,
        };
        let mut adapter = Adapter::zeros(&shape, 2);
        assert!(check_finite(&adapter, 0.7, 3, 1).is_ok());
        let reported = check_finite(&adapter, f64::NAN, 3, 1).unwrap_err().to_string();
        assert!(
            reported.starts_with("round 3, client 1: found a loss of NaN, allowed: a finite number"),
            "{reported}"
        );
        let head = adapter.head()[0].start;
        adapter.values[head] = f32::NAN;
        adapter.values[head + 3] = f32::INFINITY;
        let error = check_finite(&adapter, 0.7, 3, 1).unwrap_err();
        assert!(!error.is_wrong_input());
        let reported = error.to_string();
        let expected_message = format!(
            "found 2 adapter values of {} that are not finite after a loss of 0.7",
            adapter.values.len()
        );
        for part in ["round 3, client 1", &expected_message, "classifier.weight", "--step-size"] {
            assert!(reported.contains(part), "{part}: {reported}");
        }
        assert_eq!(reported.lines().count(), 1);
    }
}
