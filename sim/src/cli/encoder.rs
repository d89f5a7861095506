//! Command `encoder`: fine-tunes a transformer encoder with federated learning, from files of weights and
//! sentences.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::{Args, ValueEnum};

use super::measurement::parse_number;
use super::result_directory::{check_out, make_out};
use super::{CommandError, Format, interrupt, output, use_threads};
use fedspan_experiments::encoder::{
    Campaign, Clients, Corpus, EncoderError, HeldOut, LocalTraining, LoraMethod, Model, ReadOptions, Report,
    Row, RunInfo, Tokenizer, measure,
};
use fedspan_sim_core::report::files::json;
use fedspan_sim_core::report::table::Table;

/// Options of command `encoder`.
#[derive(Debug, Args)]
pub struct EncoderOptions {
    /// Directory with config.json, model.safetensors and vocab.txt of a BERT encoder
    #[arg(long, value_name = "DIR")]
    weights: PathBuf,
    /// Files of rated sentences, one per line: id TAB mean rating TAB text; ids like REVIEW_SENTENCE define
    /// groups that are not split
    #[arg(long, value_name = "FILE", num_args = 1.., required_unless_present = "measure")]
    sentences: Vec<PathBuf>,
    /// Algorithm: alternating factors (rolora), both factors (lora), or up factors only (ffa-lora)
    #[arg(long, value_enum, default_value_t = LoraMethod::RoLora)]
    method: LoraMethod,
    /// Rank of the factors; alpha is twice the rank
    #[arg(long, value_name = "R", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    rank: u16,
    /// Number of clients; each has groups of one file
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(2..=10_000))]
    clients: u16,
    /// Number of clients in a round, drawn for each round [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    participants: Option<u16>,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Number of AdamW steps of a client in a round; the moments are reset in every round
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    steps: u16,
    /// Number of sentences in a step
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// Step size of AdamW
    #[arg(long, value_name = "X", default_value_t = 0.001, value_parser = positive)]
    step_size: f64,
    /// Weight decay of AdamW
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = decay)]
    decay: f64,
    /// Largest number of tokens of a sentence; longer sentences are truncated
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(3..=4096))]
    tokens: u16,
    /// Smallest magnitude of a rating; sentences with a smaller magnitude are omitted
    #[arg(long, value_name = "X", default_value_t = 0.25, value_parser = margin)]
    margin: f64,
    /// Scored part: test (the same for every seed), or validation (for choosing settings)
    #[arg(long, value_enum, default_value_t = Part::Test)]
    held: Part,
    /// Score every N rounds and after the last round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    evaluate_every: u32,
    /// Seed of all random draws
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// Number of threads, which does not affect the results [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Write summary.json, rounds.jsonl, predictions.csv and adapter/ into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Format of standard output: a table, or the text of summary.json
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
    /// Instead of training, measure the duration of this many steps of 8 x 64 tokens on one thread
    #[arg(long, value_name = "STEPS", conflicts_with_all = ["sentences", "out"], value_parser = clap::value_parser!(u16).range(1..))]
    measure: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Test,
    Validation,
}

/// Parses a step size.
fn positive(text: &str) -> Result<f64, String> {
    parse_number(text, |value| (1e-9..=10.0).contains(&value), "a number from 0.000000001 to 10")
}

/// Parses a weight decay.
fn decay(text: &str) -> Result<f64, String> {
    parse_number(text, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1")
}

/// Parses a magnitude of a rating.
fn margin(text: &str) -> Result<f64, String> {
    parse_number(text, |value| (0.0..=4.0).contains(&value), "a number from 0 to 4")
}

/// Runs command `encoder`.
pub fn command(options: &EncoderOptions) -> Result<(), CommandError> {
    if let Some(out) = &options.out {
        check_out(out)?;
    }
    let model = Model::read(&options.weights).map_err(to_command_error)?;
    if let Some(steps) = options.measure {
        return measure_speed(options, &model, steps);
    }
    let tokenizer = Tokenizer::read(&options.weights, model.shape.vocabulary).map_err(to_command_error)?;
    let tokens = usize::from(options.tokens);
    if tokens > model.shape.positions {
        let positions = model.shape.positions;
        return Err(CommandError::Usage(format!(
            "--tokens: found {tokens}, the model has {positions} positions"
        )));
    }
    let reading = ReadOptions { tokenizer: &tokenizer, tokens, margin: options.margin };
    let corpus = Corpus::read(&options.sentences, reading).map_err(to_command_error)?;
    let part = match options.held {
        Part::Test => HeldOut::Test,
        Part::Validation => HeldOut::Validation,
    };
    let clients =
        Clients::partition(&corpus, options.clients.into(), part, options.seed).map_err(to_command_error)?;
    if let Some(participants) = options.participants.filter(|count| *count > options.clients) {
        let clients = options.clients;
        return Err(CommandError::Usage(format!(
            "--participants: found {participants}, allowed: 1 to {clients}, the clients"
        )));
    }
    if let Some(out) = &options.out {
        make_out(out)?;
    }
    use_threads(options.threads)?;
    train(options, &model, &corpus, &clients)
}

/// Trains the adapter and writes the results.
fn train(
    options: &EncoderOptions,
    model: &Model,
    corpus: &Corpus,
    clients: &Clients,
) -> Result<(), CommandError> {
    #[allow(clippy::cast_possible_truncation, reason = "rounded")]
    let to_f32 = |value: f64| value as f32;
    let campaign = Campaign {
        method: options.method,
        rank: options.rank.into(),
        rounds: options.rounds,
        participants: options.participants.unwrap_or(options.clients).into(),
        local: LocalTraining {
            steps: options.steps.into(),
            batch: options.batch.into(),
            step_size: to_f32(options.step_size),
            decay: to_f32(options.decay),
        },
        evaluate_every: options.evaluate_every,
        seed: options.seed,
    };
    let stopped = interrupt::watch();
    let began = Instant::now();
    let mut watch = |row: &Row| {
        if row.score.is_some() {
            output::log_line(&format!("{}: {}", options.method.name(), progress_line(row, options.rounds)));
        }
        !stopped.load(Ordering::Relaxed)
    };
    let trained = campaign.run(model, clients, &mut watch).map_err(to_command_error)?;
    let info = RunInfo {
        files: options.sentences.iter().map(|path| path.display().to_string()).collect(),
        tokens: options.tokens.into(),
        held: match options.held {
            Part::Test => "test",
            Part::Validation => "validation",
        },
        left_out: corpus.left_out,
        wall_s: began.elapsed().as_secs_f64(),
    };
    let report = Report::new(&campaign, clients, &trained, info);
    if let Some(out) = &options.out {
        report.write(out, model, clients, &trained).map_err(to_command_error)?;
    }
    match options.format {
        Format::Json => {
            output::print(&json(&report).map_err(|error| CommandError::Failed(error.to_string()))?)?
        }
        format => output::print(&format.shown(&rounds_table(&report, &trained.rows)))?,
    }
    match trained.interrupted {
        true => Err(CommandError::Failed(format!("interrupted after round {}", report.rounds))),
        false => Ok(()),
    }
}

/// Line of the progress output for a scored round.
fn progress_line(row: &Row, round_count: u32) -> String {
    let mut line = format!("round {}/{round_count}", row.round);
    for (name, value) in [
        ("loss", row.loss),
        ("accuracy", row.score.map(|score| score.accuracy)),
        ("interference", row.interference),
    ] {
        if let Some(value) = value {
            line.push_str(&format!(", {name} {value:.4}"));
        }
    }
    line
}

/// Table with one row for each scored round.
fn rounds_table(report: &Report, rows: &[Row]) -> Table {
    let cell = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
    let scored = rows.iter().filter(|row| row.score.is_some());
    let Report { sentences, end, .. } = report;
    Table {
        title: format!(
            "{}, rank {}, {} clients, seed {}",
            report.method, report.rank, report.clients, report.seed
        ),
        columns: ["round", "loss", "accuracy", "held loss", "interference"].map(str::to_owned).to_vec(),
        rows: scored
            .map(|row| {
                let (accuracy, held_loss) = row.score.map(|score| (score.accuracy, score.held_loss)).unzip();
                vec![
                    row.round.to_string(),
                    cell(row.loss),
                    cell(accuracy),
                    cell(held_loss),
                    cell(row.interference),
                ]
            })
            .collect(),
        notes: vec![format!(
            "{} sentences of clients ({} to {} each), {} of the {} scored, of which the majority class has {:.4}; {} left out; {:.1} s.",
            sentences.train,
            sentences.least,
            sentences.most,
            sentences.held,
            report.held,
            end.majority,
            sentences.left_out,
            report.timing.wall_s
        )],
    }
}

/// Measures and prints the duration of training steps.
fn measure_speed(options: &EncoderOptions, model: &Model, steps: u16) -> Result<(), CommandError> {
    let speed = measure(model, options.rank.into(), steps.into());
    match options.format {
        Format::Json => {
            output::print(&json(&speed).map_err(|error| CommandError::Failed(error.to_string()))?)
        }
        Format::Human | Format::Markdown => output::print(&format!(
            "8 x 64 tokens, rank {}, one thread, median of {steps}: forward {:.3} s, step (forward and backward) {:.3} s, \
             the quickest {:.3} s\n",
            options.rank, speed.forward_s, speed.step_s, speed.least_step_s
        )),
    }
}

/// Converts an error into the error of a command, which determines the exit code.
fn to_command_error(error: EncoderError) -> CommandError {
    match error.is_wrong_input() {
        true => CommandError::Usage(error.to_string()),
        false => CommandError::Failed(error.to_string()),
    }
}
