//! `adapter average` and `adapter check`: files of low-rank adapters, averaged and compared. No server, no configuration.

use std::io::{IsTerminal, Write};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::files::{
    AdapterError, AverageJob, AverageReport, ChangeNorms, CheckReport, Inputs, Output, RoundKind,
    SAMPLES_MAX, average, check,
};
use clap::{Args, Subcommand, ValueEnum};

/// Before progress is shown, and between two lines of it that are not on a terminal.
const QUIET: Duration = Duration::from_millis(500);
const BETWEEN: Duration = Duration::from_secs(10);

/// More threads would wait for the disk.
const THREADS_MAX: usize = 8;

/// What is done with files that are there.
#[derive(Subcommand)]
pub enum FilesCommand {
    /// Average clients' adapters: the factors that the round trained, and saved modules.
    #[command(after_help = "Examples:\n  \
        fedspan-aggregator adapter average --round up --base round-4 round-5/client-* -o round-5/next\n  \
        fedspan-aggregator adapter average --round down --base previous.safetensors a.safetensors b.safetensors \
        --samples 120,48 -o next.safetensors\n  \
        fedspan-aggregator adapter average --plain --base previous.safetensors a.safetensors b.safetensors \
        -o next.safetensors")]
    Average {
        /// The factors to average.
        #[command(flatten)]
        selection: RoundSelection,
        /// The clients' files.
        #[command(flatten)]
        files: InputOptions,
        /// The mean: a file NAME.safetensors, or a directory in the layout of PEFT, with the base's configuration. What is
        /// there is replaced once everything is written.
        #[arg(short, long, value_name = "NEXT")]
        output: PathBuf,
        /// A few lines, or one line of JSON, which has everything.
        #[arg(long, value_enum, default_value_t = Format::Human)]
        format: Format,
    },
    /// Print what each client changed, which round that fits, and what plain averaging would have lost.
    #[command(after_help = "Example: fedspan-aggregator adapter check --base round-4 round-5/client-*")]
    Check {
        /// The clients' files.
        #[command(flatten)]
        files: InputOptions,
        /// Also every tensor and every module.
        #[arg(long)]
        tensors: bool,
        /// A table, or one line of JSON, which has everything.
        #[arg(long, value_enum, default_value_t = Format::Human)]
        format: Format,
    },
}

/// The factors to average: exactly one of `--round` and `--plain`.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct RoundSelection {
    /// The factors that were trained; the others must be the base's.
    #[arg(long, value_enum)]
    round: Option<TrainedFactor>,
    /// Both factors, each for itself, although the mean of products is another one: `adapter check` says how much.
    #[arg(long)]
    plain: bool,
}

/// The factor that a round trained.
#[derive(Clone, Copy, ValueEnum)]
pub enum TrainedFactor {
    /// `lora_A`, r x d_in.
    Down,
    /// `lora_B`, d_out x r.
    Up,
}

/// Forms of what is printed.
#[derive(Clone, Copy, ValueEnum)]
pub enum Format {
    /// For people.
    Human,
    /// For programs.
    Json,
}

/// Base and clients.
#[derive(Args)]
pub struct InputOptions {
    /// What clients were given: a safetensors file, or a directory that PEFT has written.
    #[arg(long, value_name = "PREVIOUS")]
    base: PathBuf,
    /// What clients have made of it: files or directories.
    #[arg(required = true, value_name = "CLIENT")]
    clients: Vec<PathBuf>,
    /// Samples that each client has trained with, in their order: how much it counts. Without them all count the same.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = samples)]
    samples: Option<Vec<u64>>,
}

impl InputOptions {
    fn open(&self) -> Result<Inputs, AdapterError> {
        Inputs::open(&self.base, &self.clients, self.samples.as_deref())
    }
}

/// Lines on standard error, where they are not in the way of what is printed.
fn warn(warnings: &[String]) {
    let mut error = std::io::stderr().lock();
    for warning in warnings {
        // Nobody has to read this.
        drop(writeln!(error, "warning: {warning}"));
    }
}

/// Runs a command, and says what was done, or why not.
///
/// # Errors
/// What stood in the way.
pub fn command(command: &FilesCommand, interrupted: &Arc<AtomicBool>) -> Result<String, AdapterError> {
    match command {
        FilesCommand::Average { selection, files, output, format } => {
            let round = match selection.round {
                Some(TrainedFactor::Down) => RoundKind::Down,
                Some(TrainedFactor::Up) => RoundKind::Up,
                None => RoundKind::Plain,
            };
            let progress = Progress::new("averaging", interrupted);
            let inputs = files.open()?;
            warn(inputs.warnings());
            let output = Output::from_path(output);
            let name = output.file().display().to_string();
            let job = AverageJob { round, output, threads: threads() };
            let done = average(&inputs, job, &|read, of| progress.show(read, of));
            progress.clear();
            let done = done?;
            Ok(match format {
                Format::Human => averaged(&name, round, &done),
                Format::Json => {
                    let (round, warnings) = (round.name(), inputs.warnings());
                    let about = serde_json::json!({
                        "file": name, "round": round, "clients": done.clients, "averaged": done.averaged,
                        "kept": done.kept, "largest": done.largest, "bytes": done.bytes, "warnings": warnings,
                    });
                    about.to_string() + "\n"
                }
            })
        }
        FilesCommand::Check { files, tensors, format } => {
            let progress = Progress::new("checking", interrupted);
            let inputs = files.open()?;
            let done = check(&inputs, &|read, of| progress.show(read, of));
            progress.clear();
            let checked = done?;
            warn(&checked.warnings);
            Ok(match format {
                Format::Human => table(&checked, *tensors),
                Format::Json => serde_json::json!(checked).to_string() + "\n",
            })
        }
    }
}

/// How many threads average.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX)
}

/// A line of the whole, a line of every client and its weight, and one of every tensor that is no mean.
fn averaged(name: &str, round: RoundKind, done: &AverageReport) -> String {
    let AverageReport { clients, averaged, kept, largest, bytes } = done;
    let count = clients.len();
    let plural = if count == 1 { "client" } else { "clients" };
    let round = match round {
        RoundKind::Plain => "plain averaging".to_owned(),
        other => format!("{} round", other.name()),
    };
    let counters = match largest.len() {
        0 => String::new(),
        more => format!(", {more} the largest"),
    };
    let mut text = format!(
        "{name}: {round} of {count} {plural}, {averaged} tensors averaged, {kept} kept{counters}, {bytes} bytes\n"
    );
    for client in clients {
        let samples = match client.samples {
            Some(1) => " (1 sample)".to_owned(),
            Some(samples) => format!(" ({samples} samples)"),
            None => String::new(),
        };
        text += &format!("  weight {:.6}{samples} {}\n", client.weight, client.file);
    }
    for tensor in largest {
        text += &format!("  integers differ, the largest of each is taken: {}\n", tensor.escape_debug());
    }
    text
}

/// Progress on standard error: a line that changes on a terminal, a few lines elsewhere; nothing for short work.
struct Progress {
    activity: &'static str,
    terminal: bool,
    stop: Arc<AtomicBool>,
    /// When it began, and what was shown last and when.
    shown: Mutex<(Instant, Option<(Instant, u64)>)>,
}

impl Progress {
    fn new(activity: &'static str, stop: &Arc<AtomicBool>) -> Self {
        Self {
            activity,
            terminal: std::io::stderr().is_terminal(),
            stop: Arc::clone(stop),
            shown: Mutex::new((Instant::now(), None)),
        }
    }

    /// `false` once the user wants it to end.
    fn show(&self, read: u64, of: u64) -> bool {
        if let Ok(mut shown) = self.shown.try_lock() {
            let percent = (u128::from(read) * 100 / u128::from(of.max(1))).try_into().unwrap_or(100);
            let due = match shown.1 {
                None if self.terminal => shown.0.elapsed() >= QUIET,
                None => shown.0.elapsed() >= BETWEEN,
                Some((_, last)) if self.terminal => last != percent,
                Some((at, _)) => at.elapsed() >= BETWEEN,
            };
            if due {
                shown.1 = Some((Instant::now(), percent));
                let end = if self.terminal { "" } else { "\n" };
                let start = if self.terminal { "\r" } else { "" };
                // Nobody has to read this.
                let mut error = std::io::stderr().lock();
                drop(
                    write!(error, "{start}{}: {percent} %{end}", self.activity).and_then(|()| error.flush()),
                );
            }
        }
        !self.stop.load(Ordering::Relaxed)
    }

    /// Takes the line away.
    fn clear(&self) {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if self.terminal && shown.1.is_some() {
            drop(write!(std::io::stderr(), "\r{:40}\r", ""));
        }
    }
}

fn table(checked: &CheckReport, tensors: bool) -> String {
    let width = checked.clients.iter().map(|client| client.file.chars().count()).max().unwrap_or(0).max(6);
    let mut text = format!("{:<width$} {:>20} {:>20} {:>20} fits\n", "client", "down", "up", "saved");
    for client in &checked.clients {
        let saved = client.saved.as_ref().map_or("-".to_owned(), change);
        let (down, up, fits) = (change(&client.down), change(&client.up), client.fits.name());
        text += &format!("{:<width$} {down:>20} {up:>20} {saved:>20} {fits}\n", client.file);
        for (name, changed) in client.tensors.iter().filter(|_| tensors) {
            text += &format!("  {} {}\n", change(changed), name.escape_debug());
        }
    }
    text += "Norms of changes, in brackets over that of the base's.\n";
    for client in checked.weights.iter().filter(|client| client.samples.is_some()) {
        text += &format!("Weight {:.6} for {}\n", client.weight, client.file);
    }
    let Some(interference) = checked.interference else {
        return text + "The interference of plain averaging is not computed.\n";
    };
    text += &format!("Plain averaging would lose {interference:.3e} of the mean of products (interference)");
    let greatest = checked.targets.iter().max_by(|a, b| a.interference.total_cmp(&b.interference));
    text += &match greatest.filter(|target| target.interference > 0.0) {
        Some(most) => format!(", most in {}: {:.3e}.\n", most.module.escape_debug(), most.interference),
        None => ".\n".to_owned(),
    };
    for target in checked.targets.iter().filter(|_| tensors) {
        let experts = match target.experts {
            1 => String::new(),
            experts => format!(" ({experts} experts)"),
        };
        text += &format!("  {:.3e} {}{experts}\n", target.interference, target.module.escape_debug());
    }
    text
}

/// A number of samples as text, with the bounds of [`Inputs::open`].
fn samples(text: &str) -> Result<u64, String> {
    let number = text.trim().parse().ok().filter(|samples| *samples <= u64::from(SAMPLES_MAX));
    number.ok_or_else(|| format!("found {text:?}, allowed: a whole number from 0 to {SAMPLES_MAX}"))
}

fn change(changed: &ChangeNorms) -> String {
    match changed.relative() {
        _ if !changed.differs => "same".to_owned(),
        // Counters and booleans have no norm.
        _ if changed.change == 0.0 => "differs".to_owned(),
        relative if relative.is_finite() => format!("{:.3e} ({relative:.2e})", changed.change),
        _ => format!("{:.3e} (from 0)", changed.change),
    }
}
