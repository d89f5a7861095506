//! Command `emulate`: runs a fleet of emulated boards and compares it with the same fleet in the simulator.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::{CommandError, Format, load, output};
use fedspan_sim_core::emulate::{
    self, BoardFaults, BoardReport, CORES, Core, EmulateError, EmulationResult, Expected, Firmware, Plan,
};
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::scenario::Scenario;

/// Options of command `emulate`.
#[derive(Debug, Args)]
pub struct EmulateOptions {
    /// Scenario that the firmware of the core supports: any with a network that fits its memory, or a linear model of
    /// the firmware's sizes [default: demo; smallest for m0]
    #[arg(value_name = "NAME|FILE.toml")]
    scenario: Option<String>,
    /// Number of boards; board i has the samples of client i, modulo the number of clients
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    boards: u16,
    /// Processor core of the boards
    #[arg(long, value_name = "CORE", default_value = "m4", value_parser = clap::builder::PossibleValuesParser::new(CORES.map(|core| core.name)))]
    core: String,
    /// Link between boards and server: named pipes (fast) or the emulated serial line
    #[arg(long, value_enum, default_value_t = Link::Pipes)]
    link: Link,
    /// Number of resets of board 1: after its first message, after two further messages, and so on
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
    resets: u32,
    /// Number of power losses of board 1, before the resets and at the same points
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
    power_cuts: u32,
    /// Do not encrypt frames (for a test bench); otherwise each board has a new key
    #[arg(long)]
    plaintext: bool,
    /// Use the client in C (`edge-client/capi`), which trains on tables of 20 features
    #[arg(long)]
    in_c: bool,
    /// Change a key of the scenario, e.g. algorithm.rounds=20; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Use this firmware instead of building it
    #[arg(long, value_name = "ELF")]
    firmware: Option<PathBuf>,
    /// Format of standard output
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Link {
    Pipes,
    Uart,
}

/// Runs command `emulate`.
pub fn command(options: &EmulateOptions) -> Result<(), CommandError> {
    let core = CORES.into_iter().find(|core| core.name == options.core);
    let core = core.ok_or_else(|| CommandError::Usage(format!("--core {}: unknown", options.core)))?;
    let core = if options.in_c { core.in_c() } else { core };
    let default_scenario = if core.firmware == Firmware::Table { "smallest" } else { "demo" };
    let scenario = load::scenario(options.scenario.as_deref().unwrap_or(default_scenario), &options.changes)?;
    let core = core.for_model(&scenario);
    let scratch = tempfile::Builder::new().prefix("fedspan-boards").tempdir();
    let scratch = scratch.map_err(|error| CommandError::Failed(format!("a temporary directory: {error}")))?;
    // Firmware and emulator scripts are located relative to the source directory of this program.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let faults = BoardFaults {
        board: 1,
        resets: options.resets,
        power_cuts: options.power_cuts,
        ..BoardFaults::default()
    };
    let plan = Plan {
        scenario: &scenario,
        boards: options.boards.into(),
        faults: &[faults],
        core,
        link: match options.link {
            Link::Pipes => emulate::Link::Pipes,
            Link::Uart => emulate::Link::Uart,
        },
        plaintext: options.plaintext,
        root,
        firmware: options.firmware.clone(),
        scratch: scratch.path(),
    };
    if options.plaintext {
        output::log_line("emulate: PLAINTEXT, for the bench: frames are neither secret nor authentic");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::Failed(error.to_string()))?;
    let mut progress = Progress::default();
    let ended = runtime.block_on(emulate::run(&plan, interrupted(), &mut progress));
    drop(runtime);
    let emulated = ended.map_err(|error| to_command_error(&error))?;
    // A board that was reset or lost power may have missed a round, so results are not compared.
    let is_undisturbed = options.resets == 0 && options.power_cuts == 0 && emulated.dead.is_empty();
    let simulated = if is_undisturbed { simulate_boards(&scenario, &emulated)? } else { Simulated::NotRun };
    if let Simulated::OtherParticipants = simulated {
        output::log_line("emulate: not compared with the simulation, in whose rounds other devices counted");
    }
    match options.format {
        Format::Json => {
            for report in &emulated.boards {
                output::print(&format!("{}\n", report.line))?;
            }
        }
        format => output::print(&format.shown(&board_table(&core, &emulated, &simulated)))?,
    }
    if let [first, ..] = &emulated.dead[..] {
        return Err(CommandError::Failed(format!(
            "{} of {} boards died, the campaign went on without them; board {} ended with {}: {}",
            emulated.dead.len(),
            options.boards,
            first.device,
            first.code,
            first.last_line
        )));
    }
    let differing = simulated.results().iter().zip(&emulated.boards).filter(|(a, b)| !a.agrees(b)).count();
    if differing > 0 {
        return Err(CommandError::Failed(format!(
            "{differing} boards have other results than the simulator"
        )));
    }
    Ok(())
}

/// Converts an error into the error of a command, which determines the exit code.
fn to_command_error(error: &EmulateError) -> CommandError {
    match error {
        EmulateError::Scenario { .. }
        | EmulateError::NotServed { .. }
        | EmulateError::AttackNotAllowed(_)
        | EmulateError::Room { .. }
        | EmulateError::Memory { .. }
        | EmulateError::Network { .. }
        | EmulateError::Image(_)
        | EmulateError::Data(_)
        | EmulateError::NoQemu { .. } => CommandError::Usage(error.to_string()),
        _ => CommandError::Failed(error.to_string()),
    }
}

/// Waits for Ctrl-C or SIGTERM, after which commands `emulate` and `live` shut down.
pub async fn interrupted() {
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

/// Results of the same fleet in the simulator.
enum Simulated {
    /// There is no simulation: a board was disturbed, or the number of boards differs from the number of clients.
    NotRun,
    /// Other devices counted in the rounds of the simulation.
    OtherParticipants,
    /// Results of the boards, in order.
    Boards(Vec<Expected>),
}

impl Simulated {
    /// Results that the boards must have.
    fn results(&self) -> &[Expected] {
        if let Self::Boards(results) = self { results } else { &[] }
    }
}

/// Simulates the fleet of the scenario.
fn simulate_boards(scenario: &Scenario, emulated: &EmulationResult) -> Result<Simulated, CommandError> {
    let expected = emulate::expected(scenario);
    let (outcome, results) =
        expected.map_err(|error| CommandError::Failed(format!("{}: {error}", scenario.name)))?;
    Ok(if results.len() != emulated.boards.len() {
        Simulated::NotRun
    } else if emulate::has_same_participants(&outcome, emulated) {
        Simulated::Boards(results)
    } else {
        Simulated::OtherParticipants
    })
}

/// Table with one row for each board.
fn board_table(core: &Core, emulated: &EmulationResult, simulated: &Simulated) -> Table {
    let classes = core.firmware != Firmware::Table;
    let value = |number: Option<f64>| match number {
        Some(value) if classes => format!("{value:.4}"),
        Some(value) => format!("{value:.6}"),
        None => "-".to_owned(),
    };
    let rows = emulated.boards.iter().enumerate().map(|(index, report)| {
        let expected = simulated.results().get(index);
        let squared_error = report.line.get("squared_error").and_then(serde_json::Value::as_f64);
        let mut row = vec![
            report.device.to_string(),
            report.client.to_string(),
            value(if classes { report.accuracy() } else { squared_error }),
            value(expected.and_then(|result| if classes { result.accuracy } else { result.test_mse })),
        ];
        let numbers = ["counted", "up", "down", "static", "stack"];
        row.extend(numbers.map(|key| BoardReport::number(report, key).to_string()));
        row
    });
    let score = if classes { "accuracy" } else { "squared error" };
    Table {
        title: format!(
            "{} boards ({}), {} rounds, {:.1} s",
            emulated.boards.len(),
            core.description,
            emulated.status.round,
            emulated.seconds
        ),
        columns: [
            "board",
            "client",
            score,
            "simulated",
            "counted",
            "bytes up",
            "bytes down",
            "static",
            "stack",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: rows.collect(),
        notes: Vec::new(),
    }
}

/// Watcher that prints the round after each tenth of the rounds.
#[derive(Debug, Default)]
struct Progress {
    shown: u64,
}

impl emulate::EmulationWatcher for Progress {
    fn message(&mut self, text: &str) {
        output::log_line(&format!("emulate: {text}"));
    }

    fn status(&mut self, status: &serde_json::Value) {
        let number = |key: &str| status.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let (round, rounds) = (number("round"), number("rounds").max(1));
        if round * 10 / rounds > self.shown {
            self.shown = round * 10 / rounds;
            output::log_line(&format!("emulate: round {round}/{rounds}"));
        }
    }
}
