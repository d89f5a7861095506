//! Program `benchmarks` that measures this project's figures in turns with other implementations of the same work, and
//! compares the ratios with the recorded ones.

use std::io::{stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use fedspan_tests::benchmarks::arguments::{Options, Request, parse};
use fedspan_tests::benchmarks::machine::{Machine, processor};
use fedspan_tests::benchmarks::pairs::{Circumstances, Outcome, run};
use fedspan_tests::benchmarks::registry::{FIGURES, Program, find};
use fedspan_tests::benchmarks::side::{Setting, serve};
use fedspan_tests::benchmarks::verdict::Verdict;
use fedspan_tests::benchmarks::{history, page, report};
use fedspan_tests::tables::date::today;

const USAGE: &str = "usage: benchmarks [FIGURE...] [--pairs N] [--short] [--record] [--python FILE] [--previous FILE]
       benchmarks --list

Runs each figure (all, if none is named) in turns with each of its rivals, and prints the median of the ratios
`rival's time / our time` with an interval of the median, the spread, the part of the physical limit, and the
recorded ratio of the same processor and sizes.

  --pairs N        number of pairs (15; with --short 3); a pair before them warms up both sides
  --short          smaller sizes where a figure has them
  --record         compares nothing, but appends the results to tests/benchmarks/history.csv and rewrites the table of tests/BENCHMARKS.md
  --python FILE    interpreter for the rivals in Python (target/python/bin/python if it exists, which
                   tests/scripts/python-environment makes; else python3)
  --previous FILE  this program of an earlier release, which becomes a rival of every figure
  --list           prints all figures with their rivals

The figure `encoder` exists in builds with `--features encoder`. A rival that is missing, such as torch, is named and left out. A ratio is lower than the recorded one if its whole interval
is: this is a warning, and a failure if at least 15 pairs were run and the whole interval is more than 10 % lower.
exit: 0 done · 1 a figure failed, or is more than 10 % lower · 2 wrong arguments";

fn main() -> ExitCode {
    let done = match parse(std::env::args().skip(1)) {
        Err(error) => {
            eprintln!("benchmarks: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
        Ok(Request::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(Request::List) => {
            list();
            return ExitCode::SUCCESS;
        }
        Ok(Request::Side(name, directory, short)) => return run_side(&name, Setting { directory, short }),
        Ok(Request::Run(options)) => run_figures(&options),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("benchmarks: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for figure in FIGURES {
        println!("{:<18} {}", figure.name, figure.about);
        for rival in figure.rivals {
            println!("{:<18} rival: {}", "", rival.name);
        }
    }
}

/// Runs one side of a figure until its standard input ends.
fn run_side(name: &str, setting: Setting) -> ExitCode {
    let (figure, rival) = name.split_once('/').map_or((name, None), |(figure, rival)| (figure, Some(rival)));
    let start = find(figure).and_then(|figure| match rival {
        None => Ok(figure.start),
        Some(name) => {
            match figure.rivals.iter().find(|rival| rival.name == name).map(|rival| rival.program) {
                Some(Program::Rust(start)) => Ok(start),
                _ => Err(format!("found rival {name:?} of {}, allowed: one in this program", figure.name)),
            }
        }
    });
    let mut side = match start.and_then(|start| start(&setting)) {
        Ok(side) => side,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    match serve(&mut side, stdin().lock(), stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Runs the figures; returns false if one failed or is much lower than recorded.
fn run_figures(options: &Options) -> Result<bool, String> {
    let environment = root().join("target/python/bin/python");
    let found = if environment.exists() { environment } else { PathBuf::from("python3") };
    let around = Circumstances {
        program: std::env::current_exe().map_err(|error| error.to_string())?,
        python: options.python.clone().unwrap_or(found),
        previous: options.previous.clone(),
        directory: root().join(format!("target/benchmarks/{}", std::process::id())),
        pairs: options.pairs,
        short: options.short,
        processor: processor(),
    };
    let mut recorded = history::read(&history::path())?;
    let mut machine = Machine::default();
    let (without, with) = machine.peaks();
    println!(
        "{}: {:.1} GFLOP/s of one core, {:.1} with fused multiply-add\n",
        around.processor,
        without / 1e9,
        with / 1e9
    );
    let (date, commit) = (today(), commit());
    let (mut rows, mut is_well) = (Vec::new(), true);
    for figure in &options.figures {
        println!("{}: {}", figure.name, figure.about);
        let mut print = |outcome: &Outcome| match outcome {
            Outcome::Missing(name, reason) => println!("  left out  {name}: {reason}\n"),
            Outcome::Compared(comparison) => {
                let (text, verdict) = report::lines(comparison, history::newest(&recorded, &comparison.row));
                println!("{text}");
                is_well &= options.record || verdict != Verdict::MuchLower;
                let mut row = comparison.row.clone();
                (row.date, row.commit) = (date.clone(), commit.clone());
                rows.push(row);
            }
        };
        if let Err(error) = run(figure, &around, &mut machine, &mut print) {
            println!("  FAILED    {error}\n");
            is_well = false;
        }
    }
    // The directory is empty, unless a side has failed.
    let _ = std::fs::remove_dir(&around.directory);
    if options.record && !rows.is_empty() {
        history::append(&history::path(), &rows)?;
        recorded.append(&mut rows);
        page::rewrite(&page::path(), &recorded)?;
        println!("recorded in {}", history::path().display());
    }
    Ok(is_well)
}

/// Returns the commit of the sources, with `+` if they were changed; `unknown` outside a repository.
fn commit() -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).current_dir(root()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changes = git(&["status", "--porcelain", "--untracked-files=no"]).unwrap_or_default();
    let sign = if changes.is_empty() { "" } else { "+" };
    git(&["rev-parse", "--short", "HEAD"]).map_or_else(|| "unknown".to_owned(), |name| name + sign)
}
