//! `emulate`: a fleet of emulated boards beside the simulated one.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::{Format, Stop, load, output};
use crate::emulate::{self, CORES, Core, EmulateError, Emulated, Plan};
use crate::report::table::Table;
use crate::run::{Unwatched, run};
use crate::scenario::Scenario;

/// Options of `emulate`.
#[derive(Debug, Args)]
pub struct EmulateOptions {
    /// A built-in scenario about the recordings, or a file
    #[arg(value_name = "NAME|FILE.toml", default_value = "demo")]
    scenario: String,
    /// Boards; board i replays wearer i, counted round and round
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    boards: u16,
    /// Core of the boards
    #[arg(long, value_name = "CORE", default_value = "m4", value_parser = clap::builder::PossibleValuesParser::new(CORES.map(|core| core.word)))]
    core: String,
    /// How boards reach the server: named pipes (fast), or their serial line
    #[arg(long, value_enum, default_value_t = Link::Pipes)]
    link: Link,
    /// Change a key of the scenario, e.g. algorithm.rounds=20; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Firmware that is built already, instead of building it
    #[arg(long, value_name = "ELF")]
    firmware: Option<PathBuf>,
    /// What standard output gets
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Link {
    Pipes,
    Uart,
}

/// `fedspan-sim emulate`.
pub fn command(options: &EmulateOptions) -> Result<(), Stop> {
    let scenario = load::scenario(&options.scenario, &options.changes)?;
    let core = CORES.into_iter().find(|core| core.word == options.core);
    let core = core.ok_or_else(|| Stop::Usage(format!("--core {}: unknown", options.core)))?;
    let scratch = tempfile::Builder::new().prefix("fedspan-boards").tempdir();
    let scratch = scratch.map_err(|error| Stop::Failed(format!("a temporary directory: {error}")))?;
    // Firmware and emulator are found beside the sources that this program was built from.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let plan = Plan {
        scenario: &scenario,
        boards: options.boards.into(),
        core,
        link: match options.link {
            Link::Pipes => emulate::Link::Pipes,
            Link::Uart => emulate::Link::Uart,
        },
        root,
        firmware: options.firmware.clone(),
        scratch: scratch.path(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Stop::Failed(error.to_string()))?;
    let mut progress = Progress::default();
    let ended = runtime.block_on(emulate::run(&plan, interrupted(), &mut progress));
    drop(runtime);
    let emulated = ended.map_err(|error| stop(&error))?;
    let simulated = simulated(&scenario, &emulated)?;
    match options.format {
        Format::Json => {
            for report in &emulated.boards {
                output::print(&format!("{}\n", report.line))?;
            }
        }
        Format::Human => output::print(&table(&core, &emulated, simulated.as_deref()).text())?,
    }
    let wrong =
        simulated.iter().flatten().zip(&emulated.boards).filter(|(a, b)| !agree(**a, accuracy(b))).count();
    if wrong > 0 {
        return Err(Stop::Failed(format!("{wrong} boards have another accuracy than the simulator")));
    }
    Ok(())
}

fn stop(error: &EmulateError) -> Stop {
    match error {
        EmulateError::Scenario { .. } | EmulateError::Image(_) | EmulateError::NoQemu { .. } => {
            Stop::Usage(error.to_string())
        }
        _ => Stop::Failed(error.to_string()),
    }
}

/// Ctrl-C or SIGTERM: both leave no board behind.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

/// The simulator's accuracies, where the boards are the scenario's wearers, one each.
fn simulated(scenario: &Scenario, emulated: &Emulated) -> Result<Option<Vec<f64>>, Stop> {
    let outcome = run(scenario, scenario.seed, &mut Unwatched);
    let outcome = outcome.map_err(|error| Stop::Failed(format!("{}: {error}", scenario.name)))?;
    let each: Option<Vec<f64>> = outcome.clients.iter().map(|client| client.accuracy).collect();
    Ok(each.filter(|each| each.len() == emulated.boards.len()))
}

fn accuracy(report: &emulate::BoardReport) -> Option<f64> {
    let (right, tested) = (report.line.get("right")?.as_f64()?, report.line.get("tested")?.as_f64()?);
    (tested > 0.0).then(|| right / tested)
}

/// The same number of right answers among the same number of windows.
fn agree(simulated: f64, board: Option<f64>) -> bool {
    board.is_some_and(|board| (board - simulated).abs() < 1e-12)
}

fn table(core: &Core, emulated: &Emulated, simulated: Option<&[f64]>) -> Table {
    let number = |report: &emulate::BoardReport, key: &str| {
        report.line.get(key).map_or_else(|| "-".to_owned(), ToString::to_string)
    };
    let rows = emulated.boards.iter().enumerate().map(|(index, report)| {
        let simulated = simulated.and_then(|all| all.get(index));
        vec![
            report.device.to_string(),
            report.wearer.to_string(),
            accuracy(report).map_or_else(|| "-".to_owned(), |a| format!("{a:.4}")),
            simulated.map_or_else(|| "-".to_owned(), |a| format!("{a:.4}")),
            number(report, "counted"),
            number(report, "up"),
            number(report, "down"),
            number(report, "stack"),
        ]
    });
    Table {
        title: format!(
            "{} boards ({}), {} rounds, {:.1} s",
            emulated.boards.len(),
            core.line,
            emulated.status.round,
            emulated.seconds
        ),
        columns: ["board", "wearer", "accuracy", "simulated", "counted", "bytes up", "bytes down", "stack"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
        notes: Vec::new(),
    }
}

/// A line now and then.
#[derive(Debug, Default)]
struct Progress {
    shown: u64,
}

impl emulate::Watch for Progress {
    fn say(&mut self, what: &str) {
        output::say(&format!("emulate: {what}"));
    }

    fn status(&mut self, status: &serde_json::Value) {
        let number = |key: &str| status.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let (round, rounds) = (number("round"), number("rounds").max(1));
        if round * 10 / rounds > self.shown {
            self.shown = round * 10 / rounds;
            output::say(&format!("emulate: round {round}/{rounds}"));
        }
    }
}
