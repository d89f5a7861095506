//! Command line of `fedspan-sim`.
//!
//! Exit codes: 0 on success; 1 if the run failed or was interrupted; 2 if the command line or a file is
//! invalid, in which case no files were written; 3 if a result misses a bound of the section `[expect]`.

mod byzantine;
mod compare;
mod compare_algorithms;
mod compare_differences;
mod device;
mod dropout;
mod emulate;
#[cfg(feature = "encoder")]
mod encoder;
mod execute;
mod expect;
mod fleet;
mod grid;
mod init;
mod interrupt;
mod labels;
mod live;
mod load;
mod measurement;
mod output;
mod power;
mod progress;
mod radio;
mod record;
mod recorded_command;
mod replay;
mod reproduce;
mod result_directory;
mod resume;
mod run;
mod run_state;
mod run_tables;
mod runs;
mod single_run;
mod speedup;
mod survey;
mod theory;
mod time_to_accuracy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fedspan_engine::algorithm;

use fedspan_sim_core::data::LICENCES;
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::scenario::{BUILT_IN, Scenario};

/// Examples and exit codes, shown below the help text.
const EXAMPLES: &str = "\
Examples:
  fedspan-sim                                       the demo, under a minute
  fedspan-sim list                                  what there is to run
  fedspan-sim init data.csv                         a scenario for your own data
  fedspan-sim show linear > my.toml                 a scenario to start from
  fedspan-sim run my.toml --set algorithm.rounds=50 --seeds 5 --out results
  fedspan-sim compare linear linear,algorithm.name=gd-gd
  fedspan-sim grid my.toml --over model.k=2,4,8     the best settings, by validation

Exit codes: 0 done; 1 the run failed or was interrupted; 2 the command line or a file is wrong; 3 a result misses a bound in
[expect] of its scenario.";

/// Simulates fleets of devices that jointly learn one representation.
///
/// Simulated devices run the same client code as boards, and rounds use the server's engine and the encoded
/// protocol. Only the clock and the connections are virtual.
/// Without a command, runs the demo on bundled smartwatch recordings.
#[derive(Debug, Parser)]
#[command(name = "fedspan-sim", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    demo: DemoOptions,
}

/// Options of the demo.
#[derive(Debug, Args)]
struct DemoOptions {
    /// Directory for the report and summary of the demo
    #[arg(long, value_name = "DIR", default_value = "fedspan-demo")]
    out: PathBuf,
    /// Number of threads, which does not affect the results [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Format of standard output: tables and notes as text, or the tables as Markdown
    #[arg(long, value_enum, default_value_t = DemoFormat::Human)]
    format: DemoFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DemoFormat {
    Human,
    Markdown,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the built-in scenarios or the algorithms, one per line
    #[command(after_help = "Example:\n  fedspan-sim list --algorithms")]
    List {
        /// List the algorithms that a scenario can use
        #[arg(long)]
        algorithms: bool,
        /// Show the sources and licences of the bundled data
        #[arg(long, conflicts_with = "algorithms")]
        licences: bool,
    },
    /// Print the file of a built-in scenario, as a template for other scenarios
    #[command(after_help = "Example:\n  fedspan-sim show digits > my.toml")]
    Show {
        /// Name of a built-in scenario, from `list`
        name: String,
    },
    /// Look at a data file, and write a scenario for it
    #[command(after_help = "Examples:
  fedspan-sim init recordings.csv
  fedspan-sim init recordings.csv --client wearer --target exercise --model mlp
  fedspan-sim init archive.npz --target labels --out mine.toml

What --client, --target and --task do not say is guessed from names and content; on a terminal the guesses are asked about. The
scenario is tried on the data before it is written, and nothing is overwritten.")]
    Init(init::InitOptions),
    /// Write the samples that a board prints to a labelled table, for scenarios of your own data
    #[command(after_help = "Examples:
  fedspan-sim record --serial /dev/ttyACM0 --label walking --wearer anna --out walks.csv
  fedspan-sim record --serial /dev/ttyACM0 --label rest,walk,run --seconds 30 --wearer ben --out walks.csv --columns ax,ay,az
  fedspan-sim record --from logger.txt --label rest --wearer carl --out walks.csv --counter n

A line has one sample: numbers, separated by commas. A line of names may come first; a line that begins with # is a remark. Other
lines are refused, shown and counted. Rows are appended as they arrive: Ctrl-C ends a recording and loses nothing.
edge-client/boards/README.md has the lines of a firmware that prints its samples.")]
    Record(record::RecordOptions),
    /// Run a scenario, print a table, and write result files with --out
    #[command(after_help = "Examples:
  fedspan-sim run linear --set data.clients=1000 --seeds 5 --out results
  fedspan-sim run my.toml --format json | jq .final

Every key of a scenario is described in sim/SCENARIOS.md, the result files in sim/RESULTS.md.")]
    Run {
        /// Built-in scenario (see `list`) or TOML file
        #[arg(value_name = "NAME|FILE.toml")]
        scenario: String,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Run several scenarios, print a table of all results, and write a report with all curves
    #[command(after_help = "Examples:
  fedspan-sim compare a.toml b.toml --seeds 5 --out comparison
  fedspan-sim compare linear linear,algorithm.name=gd-gd linear,data.clients=1000
  fedspan-sim compare mnist mnist,data.partition.classes=5 --algorithms all --seeds 3
  fedspan-sim compare watch-network --algorithms all --over split.fold=0,1,2,3,4
  fedspan-sim compare srpfl-network 'srpfl-network,participation={ policy = \"full\" }' --reach 0.9 --communication 0,10

With --algorithms every scenario is run with each of them, and the table has a row for each.

--set, --seed and --seeds apply to all scenarios; changes after a comma apply to their scenario only.")]
    Compare {
        #[command(flatten)]
        what: compare::CompareOptions,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Continue an interrupted `run` or `compare` with the same bits, or train its runs for more rounds
    #[command(after_help = "Examples:
  fedspan-sim resume results
  fedspan-sim resume results --rounds 500

Use the directory from which the command was started. Runs that are finished are not repeated. The state of a run is written every
ten seconds and at Ctrl-C, and is kept at the end of training with --keep-states. A participation policy that keeps estimates (doubling with the schedule adaptive
or verified) has no state that can be written: such a run begins again.")]
    Resume(resume::ResumeOptions),
    /// Run all combinations of settings, choose the best on validation data, and score it on test data
    #[command(after_help = "Examples:
  fedspan-sim grid my.toml --over model.k=4,8,12 --over algorithm.step_size=0.1,1,auto
  fedspan-sim grid my.toml --over algorithm.name=fedrep,fedavg --over algorithm.rounds=50,100 --seeds 5 --out my-grid

--out has every run in results.csv and grid.jsonl, and the choice in summary.json. Runs that are finished are not repeated. Exit
code 1 if a combination fails; the others are shown all the same.")]
    Grid(grid::GridOptions),
    /// Repeat a figure of a paper: our curves, the paper's claim, what was found, and a verdict
    #[command(after_help = "Examples:
  fedspan-sim reproduce --list
  fedspan-sim reproduce fedrep-figure-3
  fedspan-sim reproduce srpfl-figure-4 --seed 100 --out figure-4

sim/CLAIMS.md has the verdicts on all claims of the papers.")]
    Reproduce(reproduce::ReproduceOptions),
    /// Repeat the hyperparameter search of the demo, in each fold without its test data; takes some minutes
    #[command(
        after_help = "Prints the content of sim/experiments/src/demo/chosen.json, which holds the demo's settings.

Example:
  fedspan-sim choose > chosen.json"
    )]
    Choose {
        /// Number of threads, which does not affect the results [default: all cores]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
        threads: Option<u16>,
    },
    /// Run a fleet of emulated boards with the real firmware as clients of a real server
    #[command(after_help = "Examples:
  fedspan-sim emulate --set algorithm.rounds=20
  fedspan-sim emulate --boards 16 --core m3 --link uart
  fedspan-sim emulate --core m0
  fedspan-sim emulate --core m0 --resets 6 --power-cuts 6
  fedspan-sim emulate watch-network --set algorithm.rounds=20
  fedspan-sim emulate mnist-lora --boards 5

Networks run on every core but m0, which has too little RAM. They are scored after the final epochs on their heads.

Needs QEMU and the cores' Rust targets: tests/setup --install fetches them.")]
    Emulate(emulate::EmulateOptions),
    /// Measure the speedup of participation schedules over full participation
    #[command(after_help = "Examples:
  fedspan-sim speedup --clients 16,64 --seeds 20
  fedspan-sim speedup --clients 64 --speeds fixed --communication 0,10 --schedules adaptive
  fedspan-sim speedup --out table

Uses the scenario stragglers. sim/STRAGGLERS.md defines the measurement and says how long the whole table takes.")]
    Speedup(speedup::SpeedupOptions),
    /// Measure the effect of attacks on a campaign under each aggregation rule
    #[command(after_help = "Examples:
  fedspan-sim byzantine --seeds 10
  fedspan-sim byzantine --grid subspaces --seeds 10 --out poison
  fedspan-sim byzantine --attacks 'IPM 1.5,ALIE' --fractions 0.2,0.3 --rules 'geometric median'

Uses the scenario byzantine. aggregator/POISON.md defines the measurement.")]
    Byzantine(byzantine::ByzantineOptions),
    /// Measure campaigns in which devices drop out
    #[command(after_help = "Examples:
  fedspan-sim dropout
  fedspan-sim dropout --rates 0.5 --patterns persistent,outages --policies 'first 4 of 8' --seeds 10

Uses the scenario demo. sim/DROPOUT.md defines the measurement.")]
    Dropout(dropout::DropoutOptions),
    /// Measure FedPower: the distance after each exchange, with and without noise for privacy
    #[command(after_help = "Examples:
  fedspan-sim power --seeds 20
  fedspan-sim power --set data.samples=100000 --seeds 20 --out private
  fedspan-sim power --scenario fedpower-sbm --epsilons 100,1000 --calibrations tight,none

Uses a FedPower scenario and keeps only Gram matrices. sim/PRIVATE.md defines the measurement.")]
    Power(power::PowerOptions),
    /// Fine-tune a transformer encoder by federated learning of low-rank adapters: LoRA, FFA-LoRA, RoLoRA
    #[cfg(feature = "encoder")]
    #[command(after_help = "Examples:
  fedspan-sim encoder --weights MiniLM --sentences reviews.txt editorials.txt --clients 20 --method rolora --rounds 30
  fedspan-sim encoder --weights MiniLM --sentences reviews.txt --held validation --step-size 0.002
  fedspan-sim encoder --weights MiniLM --measure 9

sim/ENCODER.md names the sources of weights and sentences, and defines the measurement.")]
    Encoder(encoder::EncoderOptions),
    /// Show the bytes and the time on the air of a round over BLE and LoRa
    #[command(after_help = "Examples:
  fedspan-sim radio smallest --set algorithm.upload=i8-top-k --set algorithm.download=i8
  fedspan-sim radio my.toml --devices 100 --format json | jq .rows

edge-client/RADIO.md defines the measurement.")]
    Radio(radio::RadioOptions),
    /// Compute theoretical predictions from the literature, for comparison with simulations
    #[command(subcommand)]
    Theory(theory::Theory),
    /// Run scenarios in real time, with a real server and devices on loopback that sleep for their compute
    /// times
    #[command(after_help = "Examples:
  fedspan-sim live stragglers 'stragglers,participation={ policy = \"full\" }' --target 0.1
  fedspan-sim live stragglers --unit-ms 5 --out measured

Each client is a device of its own over TCP. It sleeps for the time that [fleet] gives it in the round, plus
communication, both in units of --unit-ms, and stops when the server ends the round. Afterwards the
simulator replays the arrivals in the server's journal and compares the decisions. Of [stop] only change applies here.")]
    Live(live::LiveOptions),
    /// Replay a server's journal in the simulator and compare all decisions
    #[command(after_help = "Example:
  fedspan-sim live stragglers --out measured
  fedspan-sim replay stragglers measured/stragglers/arrivals.jsonl

Exit code 0 if all decisions are equal, else 1. aggregator/JOURNAL.md describes the journal.")]
    Replay(replay::ReplayOptions),
    /// Write the configuration of a real server that trains a scenario's model, for `fedspan-aggregator serve`
    #[command(after_help = "Example:
  fedspan-sim fleet my.toml > fleet.toml

The features, outputs, model, algorithm, rule and participation are those of the scenario; a step size \"auto\" is measured. The
clients of the scenario are then devices: fedspan-sim device --scenario my.toml --client N.")]
    Fleet(fleet::FleetOptions),
    /// Run one virtual device as a client of a real server
    #[command(after_help = "Examples:
  fedspan-sim device --connect 127.0.0.1:4410 --wearer 3 --keys devices.keys
  fedspan-sim device --connect 127.0.0.1:4410 --wearer 3 --plaintext    (a server on a test bench)")]
    Device(device::DeviceOptions),
}

/// Options of commands `run` and `compare`.
#[derive(Debug, Args)]
struct RunOptions {
    /// Change a key of the scenario file, e.g. algorithm.rounds=50, or replace a section by a table, e.g.
    /// 'data.partition={kind="dirichlet",alpha=0.5,clients=10}'; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Seed that replaces the seed of the scenario
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Run this many consecutive seeds and report the spread of the results
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: Option<u32>,
    /// Number of threads, which does not affect the results [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Write result files into this directory [default: none for run; for compare fedspan-compare, or fedspan-compare-2
    /// and so on if it exists]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace the results of an earlier command in --out
    #[arg(long, requires = "out")]
    overwrite: bool,
    /// Keep the state of every run at the end of its training, so that `resume --rounds` can train further
    #[arg(long)]
    keep_states: bool,
    /// Show no progress; warnings and errors are still shown
    #[arg(long, short)]
    quiet: bool,
    /// Write the verdicts on the bounds in [expect] to this file, in the format of JUnit
    #[arg(long, value_name = "FILE.xml")]
    junit: Option<PathBuf>,
    /// Format of standard output: a table as text or as Markdown, or the text of summary.json
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
    /// True if runs of an earlier command in --out are continued.
    #[arg(skip)]
    resumes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Human,
    Markdown,
    Json,
}

impl Format {
    /// Formats a table as Markdown if that is requested, otherwise as text with aligned columns.
    fn shown(self, table: &Table) -> String {
        if self == Self::Markdown { table.markdown() } else { table.text() }
    }
}

/// Error that ends a command and determines the exit code.
#[derive(Debug)]
enum CommandError {
    /// The command line or a file is invalid: exit code 2.
    Usage(String),
    /// The run failed or was interrupted: exit code 1.
    Failed(String),
    /// The run finished, and misses a bound of the section `[expect]`: exit code 3.
    Missed(String),
}

impl From<fedspan_sim_core::report::files::WriteError> for CommandError {
    fn from(error: fedspan_sim_core::report::files::WriteError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Runs the program and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let ended = match cli.command {
        None => run_demo(&cli.demo),
        Some(Command::List { licences: true, .. }) => output::print(LICENCES),
        Some(Command::List { algorithms, .. }) => output::print(&list(algorithms)),
        Some(Command::Show { name }) => match Scenario::built_in(&name) {
            Some(text) => output::print(text),
            None => Err(CommandError::Usage(load::unknown(&name))),
        },
        Some(Command::Init(options)) => init::command(&options),
        Some(Command::Record(options)) => record::command(&options),
        Some(Command::Run { scenario, options }) => run::command(&scenario, &options),
        Some(Command::Compare { what, options }) => compare::command(&what, &options),
        Some(Command::Resume(options)) => resume::command(&options),
        Some(Command::Grid(options)) => grid::command(&options),
        Some(Command::Reproduce(options)) => reproduce::command(&options),
        Some(Command::Choose { threads }) => run_choose(threads),
        Some(Command::Emulate(options)) => emulate::command(&options),
        #[cfg(feature = "encoder")]
        Some(Command::Encoder(options)) => encoder::command(&options),
        Some(Command::Radio(options)) => radio::command(&options),
        Some(Command::Theory(theory)) => theory::command(&theory),
        Some(Command::Byzantine(options)) => byzantine::command(&options),
        Some(Command::Dropout(options)) => dropout::command(&options),
        Some(Command::Power(options)) => power::command(&options),
        Some(Command::Speedup(options)) => speedup::command(&options),
        Some(Command::Live(options)) => live::command(&options),
        Some(Command::Replay(options)) => replay::command(&options),
        Some(Command::Fleet(options)) => fleet::command(&options),
        Some(Command::Device(arguments)) => return device::command(&arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(CommandError::Usage(message)) => {
            output::log_line(&format!("error: {message}"));
            ExitCode::from(2)
        }
        Err(CommandError::Failed(message)) => {
            output::log_line(&format!("error: {message}"));
            ExitCode::from(1)
        }
        Err(CommandError::Missed(message)) => {
            output::log_line(&format!("error: {message}"));
            ExitCode::from(3)
        }
    }
}

/// List of the algorithms or of the built-in scenarios, one per line.
fn list(algorithms: bool) -> String {
    let lines: Vec<(&str, &str)> = if algorithms {
        algorithm::algorithms().collect()
    } else {
        BUILT_IN.iter().map(|(name, line, _)| (*name, *line)).collect()
    };
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines.iter().map(|(name, line)| format!("{name:<width$}  {line}\n")).collect()
}

/// Sets the number of threads of the global thread pool.
fn use_threads(threads: Option<u16>) -> Result<(), CommandError> {
    let Some(threads) = threads else { return Ok(()) };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.into()).build_global();
    pool.map_err(|error| CommandError::Failed(format!("cannot start {threads} threads: {error}")))
}

/// Runs command `choose`.
fn run_choose(threads: Option<u16>) -> Result<(), CommandError> {
    use_threads(threads)?;
    let stop = interrupt::watch();
    let progress = progress::PartsProgress::new("choose", false);
    let chosen = fedspan_experiments::demo::choose::choose_all(&stop, &progress);
    progress.finish();
    let chosen = chosen.map_err(|error| CommandError::Failed(error.to_string()))?;
    let Some(chosen) = chosen else {
        return Err(CommandError::Failed("interrupted; nothing was chosen".to_owned()));
    };
    output::print(
        &fedspan_sim_core::report::files::json(&chosen)
            .map_err(|error| CommandError::Failed(error.to_string()))?,
    )
}

/// Runs the demo.
fn run_demo(options: &DemoOptions) -> Result<(), CommandError> {
    use_threads(options.threads)?;
    result_directory::check_out(&options.out)?;
    result_directory::make_out(&options.out)?;
    let stop = interrupt::watch();
    let progress = progress::PartsProgress::new("demo", false);
    let finished = fedspan_experiments::demo::run(&options.out, &stop, &progress);
    progress.finish();
    match finished {
        Ok(shown) => {
            output::print(match options.format {
                DemoFormat::Human => &shown.text,
                DemoFormat::Markdown => &shown.markdown,
            })?;
            match shown.interruption() {
                Some(message) => Err(CommandError::Failed(message.to_owned())),
                None => Ok(()),
            }
        }
        Err(fedspan_experiments::demo::DemoError::Write(error)) => Err(error.into()),
        Err(error) => Err(CommandError::Failed(error.to_string())),
    }
}
