//! Command `cargo xtask boards`: runs the firmware of the emulated boards in QEMU and measures the cost of an
//! update.

mod figures;
mod run;

use std::collections::BTreeSet;
use std::time::Instant;

use clap::Args;

use crate::boards::{Boards, Emulated, Machine, level_options};
use crate::cycles::Core;
use crate::firmware::check_budgets;
use crate::process::{Context, Failure, variable, write_whole};
use crate::setup::{self, FOLDER, Setup, Toolchain};
use figures::{problem_and_bits, problem_only, with_figure, with_level};
use run::Runner;

/// Arguments of `cargo xtask boards`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    after_help = "Builds null, client, update, update_i16 and seal for every emulated core (or those named), runs
null, client without settings and without a key, both updates and seal in QEMU, and writes what the
updates print, a line for each problem, to target/boards/measured.jsonl, and what seal prints to
target/boards/sealed.jsonl. Some cores run power and network as well (target/boards/powered.jsonl,
trained.jsonl). Each line says how it was built:

  \"3\"    everything at opt-level 3
  \"3+s\"  the firmware at 3, client and protocol crates at \"s\" (m4 only)
  \"s\"    everything at \"s\" (as the boards' Cargo.toml has it); here cycles are estimated as well

With --as-built only at \"s\", as CI does. Cores, levels and networks are those of
edge-client/boards/boards.toml. Runs on the host the tests of what the boards share. Fails if a
firmware does not build, run or exit as it should, if two cores, or a core and the host, disagree
on a bit, or if a figure has grown by more than 2 % over tests/budgets.toml (all cores only).
FEDSPAN_REGENERATE_BUDGETS=1 writes new budgets and the tables of edge-client/FOOTPRINT.md and
edge-client/boards/README.md.

exit: 0 all well · 1 something failed · 2 wrong arguments · 3 something is missing (tests/setup says
what)"
)]
pub struct Emulation {
    /// Measure only at "s", the optimisation level of the boards' release profile.
    #[arg(long)]
    pub as_built: bool,
    /// Cores, by their names in the table.
    #[arg(value_name = "CORE")]
    pub cores: Vec<String>,
}

impl Emulation {
    /// Returns arguments that measure every core as it is built. The other levels are measured at night.
    #[must_use]
    pub fn of_ci() -> Self {
        Self { as_built: true, cores: Vec::new() }
    }
}

/// Shapes (d, k, m) of the updates.
const SHAPES: [&str; 4] = ["20-2-20", "57-8-35", "64-4-32", "128-8-32"];
/// Programs that measure updates, with their problems in the order of the printed lines.
const UPDATES: [(&str, &[&str]); 2] =
    [("update", &["well", "ill", "left"]), ("update_i16", &["well", "ill"])];
/// Frame limits that the program `seal` measures.
const LIMITS: [&str; 2] = ["256", "1024"];
/// Parts of encryption whose cycles are estimated.
const SEAL_PARTS: [&str; 3] = ["seal", "open", "handshake"];
/// Optimisation level of the boards' release profile, at which cycles, FedPower iterations and networks are
/// measured.
const AS_BUILT: &str = "s";
/// File with the measurements of updates, below `target/boards`.
const MEASURED: &str = "measured.jsonl";
/// File with the measurements of encryption.
const SEALED: &str = "sealed.jsonl";
/// File with the measurements of FedPower iterations.
const POWERED: &str = "powered.jsonl";
/// File with the measurements of networks.
const TRAINED: &str = "trained.jsonl";

/// Runs the command.
///
/// # Errors
/// Exit code 2 if a core is unknown or budgets of all levels cannot be written, 3 if a tool is missing, 1 if a check fails.
pub fn run(context: &Context, arguments: &Emulation) -> Result<(), Failure> {
    let boards = Boards::read(&context.root).map_err(Failure::new)?;
    if let Some(unknown) = arguments.cores.iter().find(|name| boards.emulated(name).is_none()) {
        let names: Vec<_> = boards.emulated.iter().map(|board| board.name.as_str()).collect();
        return Err(Failure::with_code(
            2,
            format!("boards: found core {unknown:?}, allowed: {}", names.join(", ")),
        ));
    }
    if arguments.as_built && variable("FEDSPAN_REGENERATE_BUDGETS").is_some() {
        return Err(Failure::with_code(
            2,
            "boards: FEDSPAN_REGENERATE_BUDGETS writes the budgets of all levels, so leave out --as-built",
        ));
    }
    let toolchain = setup::run(context, Setup::default())?;
    let runner = Runner::new(context)?;
    let mut measurement =
        Measurement { context, toolchain: &toolchain, runner, lines: Lines::default(), failed: false };
    let host = measurement.test_on_host()?;
    for board in &boards.emulated {
        if !arguments.cores.is_empty() && !arguments.cores.contains(&board.name) {
            continue;
        }
        for level in board.levels.iter().filter(|level| !arguments.as_built || *level == AS_BUILT) {
            let start = Instant::now();
            measurement.measure_board(board, level)?;
            eprintln!("boards {:<8} {level:<4} {:4} s", board.name, start.elapsed().as_secs());
        }
    }
    measurement.lines.write(context)?;
    measurement.compare_bits(&host);
    if measurement.lines.measured.iter().any(|line| line.contains("\"path\":\"unknown\"")) {
        measurement.report_failure("an update took none of the ways to the head that it has", "");
    }
    // The lists of budgets contain all cores, so they are checked only after a run of all cores.
    if arguments.cores.is_empty() && !measurement.failed {
        measurement.failed |=
            !check_budgets(context, &["budgets::", "sealing::", "power::", "network::"], arguments.as_built);
    }
    if measurement.failed { Err(Failure::printed()) } else { Ok(()) }
}

/// Lines with measured values, by kind of measurement.
#[derive(Clone, Debug, Default)]
struct Lines {
    measured: Vec<String>,
    sealed: Vec<String>,
    powered: Vec<String>,
    trained: Vec<String>,
}

impl Lines {
    /// Writes the lines to their files.
    fn write(&self, context: &Context) -> Result<(), Failure> {
        let files = [
            (MEASURED, &self.measured),
            (SEALED, &self.sealed),
            (POWERED, &self.powered),
            (TRAINED, &self.trained),
        ];
        for (name, lines) in files {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            write_whole(&context.root.join(FOLDER).join(name), &text)?;
        }
        Ok(())
    }
}

/// State of a run of the command.
struct Measurement<'a> {
    context: &'a Context,
    toolchain: &'a Toolchain,
    runner: Runner<'a>,
    lines: Lines,
    failed: bool,
}

impl Measurement<'_> {
    /// Records a failure and prints it with the output that shows it.
    fn report_failure(&mut self, message: &str, output: &str) {
        self.failed = true;
        eprintln!("boards: {message}");
        for line in output.lines() {
            eprintln!("    {line}");
        }
    }

    /// Tests the boards' common code on the host; returns the lines of the same updates, computed on the
    /// host.
    fn test_on_host(&mut self) -> Result<Vec<String>, Failure> {
        let start = Instant::now();
        let features = "adapter,convolution,recurrent,power";
        let mut cargo =
            self.context.cargo(&["test", "--quiet", "--locked", "--features", features, "--", "--nocapture"]);
        cargo.current_dir(self.context.root.join("edge-client/boards/emulated"));
        cargo.env("CARGO_TARGET_DIR", self.context.root.join(FOLDER));
        let (succeeds, output) = self.runner.program(&mut cargo)?;
        if !succeeds {
            self.report_failure("the tests of what the boards share failed", &output);
        }
        eprintln!("boards {:<8} {:<4} {:4} s", "host", "", start.elapsed().as_secs());
        Ok(output.lines().filter(|line| line.starts_with("\"d\":")).map(str::to_owned).collect())
    }

    /// Measures one core at one optimisation level.
    fn measure_board(&mut self, board: &Emulated, level: &str) -> Result<(), Failure> {
        let machine = &board.machine;
        let location = format!("{} at {level}", board.name);
        if !self.build(machine, level, &[])? {
            self.report_failure(&format!("{location}: does not build"), "");
            return Ok(());
        }
        self.check_start(machine, &location)?;
        for shape in SHAPES {
            if !self.build(
                machine,
                level,
                &["--bin", "update", "--bin", "update_i16", "--features", &format!("shape-{shape}")],
            )? {
                self.report_failure(&format!("{location}: update does not build for {shape}"), "");
                continue;
            }
            for (program, problems) in UPDATES {
                self.measure_updates(board, level, shape, program, problems)?;
            }
        }
        self.measure_encryption(board, level)?;
        if level == AS_BUILT {
            for shape in &board.power {
                self.measure_power(board, shape)?;
            }
            for network in &board.networks {
                self.measure_network(board, network)?;
            }
        }
        Ok(())
    }

    /// Checks that `null` succeeds, and that `client` reports what is missing instead of joining, hanging or
    /// faulting.
    fn check_start(&mut self, machine: &Machine, location: &str) -> Result<(), Failure> {
        let (code, output) = self.emulate(machine, "null", &[])?;
        if code != Some(0) {
            self.report_failure(&format!("{location}: null ended with code {}", format_code(code)), &output);
        }
        let (code, output) = self.emulate(machine, "client", &[])?;
        if code != Some(2) || !output.contains("'provision' is missing") {
            self.report_failure(
                &format!("{location}: client without settings ended with code {}", format_code(code)),
                &output,
            );
        }
        let words = self.runner.erased_key()?;
        let (code, output) = self.emulate(machine, "client", &words)?;
        if code != Some(2) || !output.contains("was not provisioned") {
            self.report_failure(
                &format!("{location}: client without a key ended with code {}", format_code(code)),
                &output,
            );
        }
        Ok(())
    }

    /// Measures a program that solves problems of one shape.
    fn measure_updates(
        &mut self,
        board: &Emulated,
        level: &str,
        shape: &str,
        program: &str,
        problems: &[&str],
    ) -> Result<(), Failure> {
        let location = format!("{} at {level}", board.name);
        let Some(lines) = self.lines_of(&board.machine, program, level, problems.len())? else {
            self.report_last_output(&format!("{location}: {program} failed for {shape}"));
            return Ok(());
        };
        for (problem, mut line) in problems.iter().zip(lines) {
            // Cycles are estimated for the boards' release profile, on cores whose manual states the cycles
            // of instructions.
            if level == AS_BUILT && board.cycles {
                match self.estimate_cycles(board, &board.machine, program, problem)? {
                    Some(cycles) => line = with_figure(&line, "cycles", cycles),
                    None => self.report_failure(
                        &format!("{location}: no cycles of {program} for {shape}, {problem}"),
                        "",
                    ),
                }
            }
            println!("{line}");
            self.lines.measured.push(line);
        }
        Ok(())
    }

    /// Measures encryption.
    fn measure_encryption(&mut self, board: &Emulated, level: &str) -> Result<(), Failure> {
        let location = format!("{} at {level}", board.name);
        let built = self.build(&board.machine, level, &["--bin", "seal", "--features", "shape-64-4-32"])?;
        let lines = if built { self.lines_of(&board.machine, "seal", level, LIMITS.len())? } else { None };
        let Some(lines) = lines else {
            self.report_last_output(&format!("{location}: seal does not build or failed"));
            return Ok(());
        };
        for (limit, mut line) in LIMITS.iter().zip(lines) {
            if level == AS_BUILT && board.cycles {
                for part in SEAL_PARTS {
                    match self.estimate_cycles(board, &board.machine, "seal", &format!("{part}-{limit}"))? {
                        Some(cycles) => line = with_figure(&line, &format!("cycles_{part}"), cycles),
                        None => self.report_failure(&format!("{location}: no cycles of {part}-{limit}"), ""),
                    }
                }
            }
            println!("{line}");
            self.lines.sealed.push(line);
        }
        Ok(())
    }

    /// Measures FedPower iterations of one shape.
    fn measure_power(&mut self, board: &Emulated, shape: &str) -> Result<(), Failure> {
        let location = format!("{} at {AS_BUILT}", board.name);
        let problems = ["plain", "private"];
        let features = format!("power,shape-{shape}");
        let built = self.build(&board.machine, AS_BUILT, &["--bin", "power", "--features", &features])?;
        let lines =
            if built { self.lines_of(&board.machine, "power", AS_BUILT, problems.len())? } else { None };
        let Some(lines) = lines else {
            self.report_last_output(&format!("{location}: power does not build or failed for {shape}"));
            return Ok(());
        };
        for (problem, mut line) in problems.iter().zip(lines) {
            match self.estimate_cycles(board, &board.machine, "power", problem)? {
                Some(cycles) => line = with_figure(&line, "cycles", cycles),
                None => {
                    self.report_failure(&format!("{location}: no cycles of power for {shape}, {problem}"), "")
                }
            }
            println!("{line}");
            self.lines.powered.push(line);
        }
        Ok(())
    }

    /// Measures a network.
    fn measure_network(&mut self, board: &Emulated, model: &str) -> Result<(), Failure> {
        let location = format!("{} at {AS_BUILT}", board.name);
        let machine = &board.network_machine;
        let built = self.build(machine, AS_BUILT, &["--bin", "network", "--features", model])?;
        let lines = if built { self.lines_of(machine, "network", AS_BUILT, 1)? } else { None };
        let Some(lines) = lines else {
            self.report_last_output(&format!("{location}: network does not build or failed with {model}"));
            return Ok(());
        };
        for mut line in lines {
            if board.network_cycles.iter().any(|estimated| estimated == model) {
                match self.estimate_cycles(board, machine, "network", "sgd")? {
                    Some(cycles) => line = with_figure(&line, "cycles", cycles),
                    None => {
                        self.report_failure(&format!("{location}: no cycles of network with {model}"), "")
                    }
                }
            }
            println!("{line}");
            self.lines.trained.push(line);
        }
        Ok(())
    }

    fn report_last_output(&mut self, message: &str) {
        let output = self.runner.last_output();
        self.report_failure(message, &output);
    }

    /// Checks that every core, every optimisation level and the host compute the same bits for the same
    /// problem.
    fn compare_bits(&mut self, host: &[String]) {
        let lines = [&self.lines.measured, &self.lines.powered, &self.lines.trained];
        let mut answers: BTreeSet<String> =
            lines.into_iter().flatten().map(|line| problem_and_bits(line)).collect();
        answers.extend(host.iter().cloned());
        let problems: BTreeSet<&str> = answers.iter().map(|answer| problem_only(answer)).collect();
        if problems.len() != answers.len() {
            let answer_lines: Vec<_> = answers.iter().map(String::as_str).collect();
            let answer_lines = answer_lines.join("\n");
            self.report_failure("the same update has different bits:", &answer_lines);
        }
    }

    /// Builds programs of a board; returns whether the build succeeded.
    fn build(&mut self, machine: &Machine, level: &str, options: &[&str]) -> Result<bool, Failure> {
        self.runner.forget();
        let level = level_options(level).ok_or_else(|| Failure::new(format!("no level {level}")))?;
        let mut cargo = self.toolchain.cargo(self.context)?;
        cargo.args(["build", "--quiet", "--release", "--locked"]).args(self.toolchain.firmware_options());
        cargo.args(["--target", &machine.target]);
        if let Some(feature) = &machine.feature {
            cargo.args(["--no-default-features", "--features", feature]);
        }
        cargo.args(level).args(options).env("CARGO_TARGET_DIR", self.context.root.join(FOLDER));
        cargo.current_dir(self.context.root.join("edge-client/boards").join(&machine.folder));
        let built = self.context.status(&mut cargo)?.success();
        self.end_if_interrupted()?;
        Ok(built)
    }

    /// Runs one program; returns its exit code and output. The code is `None` if the program was killed.
    fn emulate(
        &mut self,
        machine: &Machine,
        program: &str,
        words: &[String],
    ) -> Result<(Option<i32>, String), Failure> {
        let emulator = self.toolchain.emulator(&machine.emulator)?;
        let result = self.runner.emulate(emulator, machine, program, words);
        self.end_if_interrupted()?;
        result
    }

    /// Runs a program that measures; returns its lines of values. `None` if the program fails or prints
    /// another number of lines.
    fn lines_of(
        &mut self,
        machine: &Machine,
        program: &str,
        level: &str,
        count: usize,
    ) -> Result<Option<Vec<String>>, Failure> {
        let (code, output) = self.emulate(machine, program, &[])?;
        let lines: Vec<_> =
            output.lines().filter(|line| line.starts_with('{')).map(|line| with_level(line, level)).collect();
        Ok((code == Some(0) && lines.len() == count).then_some(lines))
    }

    /// Estimates the cycles of a program's problem: the cycles of a run that solves it twice minus those of a
    /// run that solves it once.
    fn estimate_cycles(
        &mut self,
        board: &Emulated,
        machine: &Machine,
        program: &str,
        problem: &str,
    ) -> Result<Option<u64>, Failure> {
        let core = Core::named(&board.name)
            .ok_or_else(|| Failure::new(format!("no cycles are known of {}", board.name)))?;
        let emulator = self.toolchain.emulator(&machine.emulator)?;
        let mut cycles_of_runs = [0; 2];
        for (times, cycles) in [1, 2].into_iter().zip(&mut cycles_of_runs) {
            match self.runner.cycles(emulator, machine, core, program, problem, times) {
                Ok(estimate) => *cycles = estimate,
                Err(failure) => {
                    self.end_if_interrupted()?;
                    eprintln!("boards: {}", failure.message);
                    return Ok(None);
                }
            }
        }
        Ok(cycles_of_runs[1].checked_sub(cycles_of_runs[0]))
    }

    fn end_if_interrupted(&self) -> Result<(), Failure> {
        if self.context.is_interrupted() {
            Err(Failure::with_code(130, "boards: interrupted"))
        } else {
            Ok(())
        }
    }
}

fn format_code(code: Option<i32>) -> String {
    code.map_or_else(|| "none (killed)".to_owned(), |code| code.to_string())
}
