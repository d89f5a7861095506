//! Program that runs the FedSpan servers and their commands: device server, key store, status, check and
//! export, and adapters.

mod cli;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, Subcommand};
use fedspan_aggregator::check::{check, locate_error};
use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::export::{ExportError, export, export_state};
use fedspan_aggregator::server::fetch_export;
use fedspan_engine::config::read_file;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a command that failed.
const FAILED: u8 = 1;
/// Exit code if the command line or a file is wrong.
const WRONG: u8 = 2;

#[derive(Parser)]
#[command(name = "fedspan-aggregator", version, about = "Serves a FedSpan campaign to a fleet of devices.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Fleet(FleetCommand),
    /// Average files of low-rank adapters (LoRA), compare them, or serve rounds of them.
    ///
    /// Clients train elsewhere, such as with PEFT. See aggregator/ADAPTERS.md and aggregator/EXCHANGE.md.
    #[command(
        subcommand,
        after_help = "Exit codes: 0 done, 1 it failed or was interrupted, 2 the command line or a file is wrong."
    )]
    Adapter(AdapterCommand),
}

/// Commands on adapter files.
#[derive(Subcommand)]
enum AdapterCommand {
    #[command(flatten)]
    Files(fedspan_adapters::cli::files::FilesCommand),
    /// Serve rounds of adapters over HTTP until Ctrl-C or SIGTERM.
    #[command(
        after_help = "Example: fedspan-aggregator adapter serve --config aggregator/examples/exchange.toml"
    )]
    Serve(fedspan_adapters::cli::serve::ServeOptions),
    /// Verify all rounds and updates in the state directory of `adapter serve`, and that a server would start on it.
    /// Changes nothing.
    #[command(
        after_help = "Only while no server runs; a server verifies the files that it uses when it starts.\nExit codes: 0 sound, \
                      1 damaged, unreadable or refused by the server, 2 the command line, the directory or the configuration is wrong.\nExample: fedspan-aggregator \
                      adapter check-exchange exchange-state"
    )]
    CheckExchange(fedspan_adapters::cli::serve::CheckExchangeOptions),
}

/// Commands that take a fleet's configuration.
#[derive(Subcommand)]
enum FleetCommand {
    /// Serve the campaign of a configuration file until Ctrl-C or SIGTERM.
    #[command(after_help = "Example: fedspan-aggregator serve --config aggregator/examples/fleet.toml")]
    Serve {
        /// The configuration, a commented example is aggregator/examples/fleet.toml.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// A file that holds the key store's passphrase and that only its owner can read; also
        /// FEDSPAN_PASSPHRASE_FILE.
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
        /// Stop once every known device has fitted its final head, instead of waiting for new ones.
        #[arg(long)]
        exit_when_finished: bool,
    },
    /// Show the campaign: from the running server, or from its files.
    #[command(
        after_help = "A server that is still starting has {\"phase\":\"starting\"} and nothing more.\nExit codes: 0 printed, 1 no campaign, \
                      or the server does not answer, 2 the command line or the configuration is wrong."
    )]
    Status {
        /// The same configuration that `serve` was given.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Text for people, or one line of JSON for programs.
        #[arg(long, value_enum, default_value_t = cli::status::Format::Human)]
        format: cli::status::Format,
    },
    /// Show the devices of the running server: who is connected, and what they report about firmware, resets and faults.
    #[command(
        after_help = "Devices are known since the server was started; a device reports if its firmware says so (`Config::about`).\n\
                      Example: fedspan-aggregator devices --config fleet.toml --format json | jq 'select(.reset == \"Watchdog\")'\n\
                      Exit codes: 0 printed, 1 no server is running or it does not answer, 2 the command line or the configuration is wrong."
    )]
    Devices {
        /// The same configuration that `serve` was given.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// A table for people, or one line of JSON for each device.
        #[arg(long, value_enum, default_value_t = cli::status::Format::Human)]
        format: cli::status::Format,
    },
    /// Print a line after every round of the running server, until the campaign has ended.
    #[command(
        after_help = "Exit codes: 0 the campaign is finished, or the server was stopped; 1 the campaign has failed, or the server runs \
                      no more; 2 the command line or the configuration is wrong."
    )]
    Watch {
        /// The same configuration that `serve` was given.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Text for people, or lines of JSON for programs.
        #[arg(long, value_enum, default_value_t = cli::status::Format::Human)]
        format: cli::status::Format,
    },
    /// Check that the state directory is consistent and fits the configuration. Changes nothing.
    #[command(
        after_help = "Only while no server runs; a server checks the same when it starts.\nExit codes: 0 sound, 1 faults or \
                      unreadable, 2 the command line or the configuration is wrong."
    )]
    Check {
        /// The same configuration that `serve` was given.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Write the stored campaign for other programs: the model, the rounds, the privacy ledger, the journal.
    #[command(
        after_help = "From the running server, which continues meanwhile, or from its files. Writes representation.npy, model.safetensors, rounds.jsonl, ledger.json, \
                      arrivals.jsonl and configuration.txt, all of them or nothing.\nExit codes: 0 written, 1 not, 2 the command \
                      line or the configuration is wrong."
    )]
    Export {
        /// The same configuration that `serve` was given.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// A directory that does not exist yet.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Give devices keys, withdraw or renew them, write them out for flashing.
    ///
    /// Through the running server, where it takes effect at once; otherwise straight to the key store's file.
    /// See aggregator/KEYS.md.
    #[command(
        after_help = "Exit codes: 0 done, 1 refused or failed, 2 the command line or the configuration is wrong."
    )]
    Keys(cli::keys::KeysOptions),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(
            std::env::var_os("NO_COLOR").is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr()),
        )
        .init();
    match cli.command {
        Command::Fleet(command) => run_fleet_command(command),
        Command::Adapter(AdapterCommand::Files(command)) => run_adapter_command(&command),
        Command::Adapter(AdapterCommand::Serve(options)) => serve_adapters(&options),
        Command::Adapter(AdapterCommand::CheckExchange(options)) => {
            match fedspan_adapters::cli::serve::check(&options) {
                Ok(report) => {
                    output_exit_code(print_report(&report.facts, &report.faults), "standard output")
                }
                Err(error) => fail_adapters(&error),
            }
        }
    }
}

/// Loads the configuration of a command and runs the command.
fn run_fleet_command(command: FleetCommand) -> ExitCode {
    let config = match &command {
        FleetCommand::Serve { config, .. }
        | FleetCommand::Status { config, .. }
        | FleetCommand::Devices { config, .. }
        | FleetCommand::Watch { config, .. }
        | FleetCommand::Check { config }
        | FleetCommand::Export { config, .. } => config,
        FleetCommand::Keys(options) => match &options.config {
            Some(config) => config,
            None => return fail(WRONG, "keys needs --config FILE, the configuration of the fleet"),
        },
    };
    let fleet = match load_fleet(config) {
        Ok(fleet) => fleet,
        Err(message) => return fail(WRONG, &message),
    };
    with_runtime(async {
        match command {
            FleetCommand::Serve { passphrase_file, exit_when_finished, .. } => {
                cli::serve::serve(fleet, passphrase_file, exit_when_finished).await
            }
            FleetCommand::Status { format, .. } => cli::status::status(&fleet.state, format).await,
            FleetCommand::Devices { format, .. } => cli::devices::devices(&fleet.state, format).await,
            FleetCommand::Watch { format, .. } => cli::status::watch(&fleet.state, format).await,
            FleetCommand::Check { .. } => output_exit_code(print_check(&fleet), "standard output"),
            FleetCommand::Export { out, .. } => export_campaign(&fleet, &out).await,
            FleetCommand::Keys(options) => match cli::keys::command(&options, &fleet).await {
                Ok(code) => code,
                Err(cli::keys::Stop::Failed(message)) => fail(FAILED, &message),
                Err(cli::keys::Stop::Wrong(message)) => fail(WRONG, &message),
                Err(cli::keys::Stop::Output(error)) => output_exit_code(Err(error), "standard output"),
            },
        }
    })
}

/// Runs a future on a tokio runtime.
fn with_runtime(future: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(future),
        Err(error) => fail(FAILED, &error.to_string()),
    }
}

/// Reads and parses the configuration file.
fn load_fleet(path: &Path) -> Result<Fleet, String> {
    let fleet = read_file(path).and_then(|text| Fleet::parse(&path.display().to_string(), &text));
    fleet.map_err(|problem| problem.to_string())
}

/// Prints an error message and returns the exit code.
fn fail(code: u8, message: &str) -> ExitCode {
    eprintln!("fedspan-aggregator: {message}");
    ExitCode::from(code)
}

/// Prints a line on standard output.
fn print(line: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// Returns the exit code of a command that prints to the output `name`. A closed pipe (`| head`) is not an
/// error.
fn output_exit_code(result: std::io::Result<ExitCode>, name: &str) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(FAILED, &format!("{name}: {error}")),
    }
}

/// Installs handlers of Ctrl-C and SIGTERM, and returns a future that completes on either signal.
fn shutdown_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Runs a command on adapter files. Ctrl-C stops the command without a change to existing files.
fn run_adapter_command(command: &fedspan_adapters::cli::files::FilesCommand) -> ExitCode {
    let stop = Arc::new(AtomicBool::new(false));
    let stop_flag = Arc::clone(&stop);
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(FAILED, &error.to_string()),
    };
    let signal_received = match runtime.block_on(async { shutdown_signal() }) {
        Ok(signal_received) => signal_received,
        Err(error) => return fail(FAILED, &format!("cannot handle signals: {error}")),
    };
    runtime.spawn(async move {
        signal_received.await;
        stop_flag.store(true, Ordering::Relaxed);
    });
    match fedspan_adapters::cli::files::command(command, &stop) {
        Ok(text) => output_exit_code(print(text.trim_end()).map(|()| ExitCode::SUCCESS), "standard output"),
        Err(error) => fail(if error.is_invalid_input() { WRONG } else { FAILED }, &error.to_string()),
    }
}

/// Serves rounds of adapter files.
fn serve_adapters(options: &fedspan_adapters::cli::serve::ServeOptions) -> ExitCode {
    with_runtime(async {
        // The handler is installed before the address is printed, because a script may stop the server as
        // soon as it sees the address.
        let interrupted = match shutdown_signal() {
            Ok(interrupted) => interrupted,
            Err(error) => return fail(FAILED, &format!("cannot handle signals: {error}")),
        };
        match fedspan_adapters::cli::serve::serve(options, interrupted, |line| drop(print(line))).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail_adapters(&error),
        }
    })
}

/// Prints the error of a command on an exchange of adapters and returns the exit code.
fn fail_adapters(error: &fedspan_adapters::cli::serve::ServeError) -> ExitCode {
    match error {
        fedspan_adapters::cli::serve::ServeError::Failed(message) => fail(FAILED, message),
        fedspan_adapters::cli::serve::ServeError::InvalidInput(message) => fail(WRONG, message),
    }
}

/// Prints the facts and faults of a check.
fn print_check(fleet: &Fleet) -> std::io::Result<ExitCode> {
    let report = match check(fleet) {
        Ok(Some(report)) => report,
        Ok(None) => {
            return Ok(fail(FAILED, &format!("{}: no campaign was begun here", fleet.state.display())));
        }
        Err(error) => return Ok(fail(FAILED, &error.to_string())),
    };
    print_report(&report.facts, &report.faults)
}

/// Prints facts on standard output and faults on standard error, and returns the exit code.
fn print_report(facts: &[String], faults: &[String]) -> std::io::Result<ExitCode> {
    facts.iter().try_for_each(|line| print(line))?;
    for fault in faults {
        fail(FAILED, fault);
    }
    if !faults.is_empty() {
        return Ok(ExitCode::from(FAILED));
    }
    print("sound")?;
    Ok(ExitCode::SUCCESS)
}

/// Exports from the running server, or from its files.
async fn export_campaign(fleet: &Fleet, directory: &Path) -> ExitCode {
    let written = match fetch_export(&fleet.state).await {
        Ok(Some(state)) => export_state(fleet, &state, directory),
        Ok(None) => export(fleet, directory),
        Err(error) => return fail(FAILED, &format!("{}: {error}", fleet.state.display())),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(ExportError::State(error)) => fail(FAILED, &locate_error(&error, &fleet.state)),
        Err(error) => fail(FAILED, &error.to_string()),
    }
}
