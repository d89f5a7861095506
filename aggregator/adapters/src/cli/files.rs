//! Commands `adapter average` and `adapter check`: average and compare adapter files without a server.

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

/// Time after which progress is first shown on a terminal.
const PROGRESS_DELAY: Duration = Duration::from_millis(500);

/// Interval of progress lines if standard error is not a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Largest number of threads. More threads would only wait for the disk.
const THREADS_MAX: usize = 8;

/// Commands on adapter files.
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
        /// Factors to average.
        #[command(flatten)]
        selection: RoundSelection,
        /// Base and client files.
        #[command(flatten)]
        files: InputOptions,
        /// Output: a file NAME.safetensors, or a directory in PEFT's layout with the base's configuration. An
        /// existing output is replaced once everything is written.
        #[arg(short, long, value_name = "NEXT")]
        output: PathBuf,
        /// Output format: a few lines, or one line of JSON with all details.
        #[arg(long, value_enum, default_value_t = Format::Human)]
        format: Format,
    },
    /// Print the changes of each client, the rounds that accept its file, and the loss of plain averaging.
    #[command(after_help = "Example: fedspan-aggregator adapter check --base round-4 round-5/client-*")]
    Check {
        /// Base and client files.
        #[command(flatten)]
        files: InputOptions,
        /// Print every tensor and every module, too.
        #[arg(long)]
        tensors: bool,
        /// Output format: a table, or one line of JSON with all details.
        #[arg(long, value_enum, default_value_t = Format::Human)]
        format: Format,
    },
}

/// Factors to average: exactly one of `--round` and `--plain`.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct RoundSelection {
    /// Average the factor that the round trained; the other one must equal the base's.
    #[arg(long, value_enum)]
    round: Option<TrainedFactor>,
    /// Average both factors, each separately. This differs from the mean of products; `adapter check` prints
    /// by how much.
    #[arg(long)]
    plain: bool,
}

/// Factor that a round trains.
#[derive(Clone, Copy, ValueEnum)]
pub enum TrainedFactor {
    /// Down factor `lora_A`, r x d_in.
    Down,
    /// Up factor `lora_B`, d_out x r.
    Up,
}

/// Output format.
#[derive(Clone, Copy, ValueEnum)]
pub enum Format {
    /// Text for people.
    Human,
    /// JSON for programs.
    Json,
}

/// Input files: base and clients.
#[derive(Args)]
pub struct InputOptions {
    /// Adapter that the clients started from: a safetensors file, or a directory in PEFT's layout.
    #[arg(long, value_name = "PREVIOUS")]
    base: PathBuf,
    /// Adapters that the clients trained: files or directories.
    #[arg(required = true, value_name = "CLIENT")]
    clients: Vec<PathBuf>,
    /// Number of samples of each client in the order of the files, as its weight. Without them all weights
    /// are equal.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = parse_samples)]
    samples: Option<Vec<u64>>,
}

impl InputOptions {
    /// Opens the base and the clients' files.
    fn open(&self) -> Result<Inputs, AdapterError> {
        Inputs::open(&self.base, &self.clients, self.samples.as_deref())
    }
}

/// Prints warnings to standard error.
fn print_warnings(warnings: &[String]) {
    let mut error = std::io::stderr().lock();
    for warning in warnings {
        // Errors are ignored: standard error may be closed.
        drop(writeln!(error, "warning: {warning}"));
    }
}

/// Runs a command and returns the text to print. Setting `interrupted` stops the command.
///
/// # Errors
/// Same as [`Inputs::open`], [`average`] and [`check`].
pub fn command(command: &FilesCommand, interrupted: &Arc<AtomicBool>) -> Result<String, AdapterError> {
    match command {
        FilesCommand::Average { selection, files, output, format } => {
            let kind = match selection.round {
                Some(TrainedFactor::Down) => RoundKind::Down,
                Some(TrainedFactor::Up) => RoundKind::Up,
                None => RoundKind::Plain,
            };
            let progress = Progress::new("averaging", interrupted);
            let inputs = files.open()?;
            print_warnings(inputs.warnings());
            let output = Output::from_path(output);
            let name = output.file().display().to_string();
            let job = AverageJob { kind, output, threads: threads() };
            let result = average(&inputs, job, &|read, total| progress.show(read, total));
            progress.clear();
            let report = result?;
            Ok(match format {
                Format::Human => format_average(&name, kind, &report),
                Format::Json => {
                    let (round, warnings) = (kind.name(), inputs.warnings());
                    let json = serde_json::json!({
                        "file": name, "round": round, "clients": report.clients, "averaged": report.averaged,
                        "kept": report.kept, "largest": report.largest, "bytes": report.bytes, "sha256": report.sha256, "warnings": warnings,
                    });
                    json.to_string() + "\n"
                }
            })
        }
        FilesCommand::Check { files, tensors, format } => {
            let progress = Progress::new("checking", interrupted);
            let inputs = files.open()?;
            let result = check(&inputs, &|read, total| progress.show(read, total));
            progress.clear();
            let report = result?;
            print_warnings(&report.warnings);
            Ok(match format {
                Format::Human => format_check(&report, *tensors),
                Format::Json => serde_json::json!(report).to_string() + "\n",
            })
        }
    }
}

/// Number of threads for averaging.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX)
}

/// Formats the report of an average: a summary line, a line for every client with its weight, and a line for
/// every integer tensor in which clients differ.
fn format_average(name: &str, kind: RoundKind, report: &AverageReport) -> String {
    let AverageReport { clients, averaged, kept, largest, bytes, .. } = report;
    let count = clients.len();
    let plural = if count == 1 { "client" } else { "clients" };
    let kind = match kind {
        RoundKind::Plain => "plain averaging".to_owned(),
        kind => format!("{} round", kind.name()),
    };
    let largest_count = match largest.len() {
        0 => String::new(),
        count => format!(", {count} with the largest integers"),
    };
    let mut text = format!(
        "{name}: {kind} of {count} {plural}, {averaged} tensors averaged, {kept} kept{largest_count}, {bytes} bytes\n"
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

/// Progress on standard error. On a terminal one line is rewritten; otherwise a line is printed every 10 s.
/// Short work prints nothing.
struct Progress {
    activity: &'static str,
    terminal: bool,
    stop: Arc<AtomicBool>,
    /// Start time; time and percentage of the last line.
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

    /// Shows the progress: `read` of `total` bytes. Returns false once the user has interrupted the command.
    fn show(&self, read: u64, total: u64) -> bool {
        if let Ok(mut shown) = self.shown.try_lock() {
            let percent = (u128::from(read) * 100 / u128::from(total.max(1))).try_into().unwrap_or(100);
            let is_due = match shown.1 {
                None if self.terminal => shown.0.elapsed() >= PROGRESS_DELAY,
                None => shown.0.elapsed() >= PROGRESS_INTERVAL,
                Some((_, last)) if self.terminal => last != percent,
                Some((printed_at, _)) => printed_at.elapsed() >= PROGRESS_INTERVAL,
            };
            if is_due {
                shown.1 = Some((Instant::now(), percent));
                let line_end = if self.terminal { "" } else { "\n" };
                let line_start = if self.terminal { "\r" } else { "" };
                // Errors are ignored: standard error may be closed.
                let mut error = std::io::stderr().lock();
                drop(
                    write!(error, "{line_start}{}: {percent} %{line_end}", self.activity)
                        .and_then(|()| error.flush()),
                );
            }
        }
        !self.stop.load(Ordering::Relaxed)
    }

    /// Clears the line on a terminal.
    fn clear(&self) {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if self.terminal && shown.1.is_some() {
            drop(write!(std::io::stderr(), "\r{:40}\r", ""));
        }
    }
}

/// Formats the report of a check: a line for every client, then the interference.
fn format_check(report: &CheckReport, tensors: bool) -> String {
    let width = report.clients.iter().map(|client| client.file.chars().count()).max().unwrap_or(0).max(6);
    let mut text = format!("{:<width$} {:>20} {:>20} {:>20} fits\n", "client", "down", "up", "saved");
    for client in &report.clients {
        let saved = client.saved.as_ref().map_or("-".to_owned(), format_change);
        let (down, up, fits) = (format_change(&client.down), format_change(&client.up), client.fits.name());
        text += &format!("{:<width$} {down:>20} {up:>20} {saved:>20} {fits}\n", client.file);
        for (name, changed) in client.tensors.iter().filter(|_| tensors) {
            text += &format!("  {} {}\n", format_change(changed), name.escape_debug());
        }
    }
    text += "Norms of changes, in brackets over that of the base's.\n";
    for client in report.weights.iter().filter(|client| client.samples.is_some()) {
        text += &format!("Weight {:.6} for {}\n", client.weight, client.file);
    }
    let Some(interference) = report.interference else {
        return text + "The interference of plain averaging is not computed.\n";
    };
    text += &format!("Plain averaging would lose {interference:.3e} of the mean of products (interference)");
    let largest = report.targets.iter().max_by(|a, b| a.interference.total_cmp(&b.interference));
    text += &match largest.filter(|target| target.interference > 0.0) {
        Some(target) => format!(", most in {}: {:.3e}.\n", target.module.escape_debug(), target.interference),
        None => ".\n".to_owned(),
    };
    for target in report.targets.iter().filter(|_| tensors) {
        let experts = match target.experts {
            1 => String::new(),
            experts => format!(" ({experts} experts)"),
        };
        text += &format!("  {:.3e} {}{experts}\n", target.interference, target.module.escape_debug());
    }
    text
}

/// Parses a number of samples within the bounds of [`Inputs::open`].
fn parse_samples(text: &str) -> Result<u64, String> {
    let number = text.trim().parse().ok().filter(|samples| *samples <= u64::from(SAMPLES_MAX));
    number.ok_or_else(|| format!("found {text:?}, allowed: a whole number from 0 to {SAMPLES_MAX}"))
}

/// Formats a change: its norm, and in brackets the ratio to the norm of the base.
fn format_change(changed: &ChangeNorms) -> String {
    match changed.relative() {
        _ if !changed.differs => "same".to_owned(),
        // Integers and booleans have no norm.
        _ if changed.change == 0.0 => "differs".to_owned(),
        relative if relative.is_finite() => format!("{:.3e} ({relative:.2e})", changed.change),
        _ => format!("{:.3e} (from 0)", changed.change),
    }
}
