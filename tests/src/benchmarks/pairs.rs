//! A figure: both sides are started and run in turns, ours and a rival's, and the ratios of their times are collected.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::history::{NO_RIVAL, Row, rounded};
use super::interval::{Interval, median};
use super::machine::{Limit, Machine};
use super::process::{Fault, SideProcess};
use super::registry::{Figure, Program, Rival};
use super::side::{Cost, Facts, Turn};

/// Circumstances of a run.
#[derive(Clone, Debug)]
pub struct Circumstances {
    /// This program, which also runs sides in Rust.
    pub program: PathBuf,
    /// Python's interpreter.
    pub python: PathBuf,
    /// The same program of an earlier release, which becomes a rival of every figure.
    pub previous: Option<PathBuf>,
    /// Directory for data and error output of the sides.
    pub directory: PathBuf,
    /// Number of pairs.
    pub pairs: usize,
    /// True for smaller sizes, where a figure has them.
    pub short: bool,
    /// Model of the processor.
    pub processor: String,
}

/// Comparison with one rival.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Line for the history, without date and commit.
    pub row: Row,
    /// Summary of the ratios of the pairs.
    pub ratios: Interval,
    /// Number of our threads, and of the rival's.
    pub threads: (usize, usize),
    /// Description of our side.
    pub ours: Facts,
    /// Description of the rival, and the median of its units of work per second.
    pub rival: Option<(Facts, f64)>,
    /// Physical limit of a repeat.
    pub limit: Option<Limit>,
    /// Meaning of the check value, and its last value on both sides.
    pub check: (String, f64, Option<f64>),
}

/// Result for one rival.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The sides were compared.
    Compared(Box<Comparison>),
    /// The rival of this name lacks something.
    Missing(String, String),
}

/// A running rival.
struct Opponent<'a> {
    name: &'a str,
    threads: usize,
    side: SideProcess,
}

/// Runs a figure and passes the result for each rival to `print`.
///
/// # Errors
/// A sentence, if a side fails, or if two sides did not do the same work. The error output of the sides is then kept.
pub fn run(
    figure: &Figure,
    around: &Circumstances,
    machine: &mut Machine,
    print: &mut dyn FnMut(&Outcome),
) -> Result<(), String> {
    let directory = around.directory.join(figure.name);
    let with_path = |error: std::io::Error| format!("{}: {error}", directory.display());
    std::fs::create_dir_all(&directory).map_err(with_path)?;
    match run_in(&directory, figure, around, machine, print) {
        Ok(()) => std::fs::remove_dir_all(&directory).map_err(with_path),
        Err(error) => {
            remove_data(&directory).map_err(with_path)?;
            Err(error)
        }
    }
}

/// Removes the values that the sides have exchanged, which may be large.
fn remove_data(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "f32") {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn run_in(
    directory: &Path,
    figure: &Figure,
    around: &Circumstances,
    machine: &mut Machine,
    print: &mut dyn FnMut(&Outcome),
) -> Result<(), String> {
    let ours = start(&around.program, figure.name, figure.threads, directory, around.short);
    let mut ours = ours.map_err(|fault| format!("our side: {fault}"))?;
    if figure.rivals.is_empty() {
        print(&compare(figure, around, machine, &mut ours, None)?);
    }
    let mut meet = |name: &str, threads: usize, side: Result<SideProcess, Fault>| {
        match side {
            Ok(side) => {
                let opponent = Opponent { name, threads, side };
                print(&compare(figure, around, machine, &mut ours, Some(opponent))?);
            }
            Err(Fault::Missing(message)) => print(&Outcome::Missing(name.to_owned(), message)),
            Err(fault) => return Err(format!("{name}: {fault}")),
        }
        Ok(())
    };
    for rival in figure.rivals {
        meet(rival.name, rival.threads, start_rival(rival, figure, around, directory))?;
    }
    if let Some(program) = &around.previous {
        let directory = directory.join("previous");
        std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let side = start(program, figure.name, figure.threads, &directory, around.short);
        meet("previous", figure.threads, side)?;
        remove_data(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    Ok(())
}

/// Starts a side in a program like this one.
fn start(
    program: &Path,
    name: &str,
    threads: usize,
    directory: &Path,
    short: bool,
) -> Result<SideProcess, Fault> {
    let mut command = Command::new(program);
    command.args(["--side", name]).arg(directory).args(short.then_some("--short"));
    SideProcess::start(&mut command, threads, &directory.join(format!("{}.log", name.replace('/', "-"))))
}

fn start_rival(
    rival: &Rival,
    figure: &Figure,
    around: &Circumstances,
    directory: &Path,
) -> Result<SideProcess, Fault> {
    let name = format!("{}/{}", figure.name, rival.name);
    match rival.program {
        Program::Rust(_) => start(&around.program, &name, rival.threads, directory, around.short),
        Program::Python(script, form) => {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benchmarks").join(script);
            let mut command = Command::new(&around.python);
            command.arg(script).arg(directory).arg(form);
            SideProcess::start(&mut command, rival.threads, &directory.join(format!("{}.log", rival.name)))
        }
    }
}

/// Runs the pairs of two sides, or turns of ours alone, after a first turn that is not counted.
fn compare(
    figure: &Figure,
    around: &Circumstances,
    machine: &mut Machine,
    ours: &mut SideProcess,
    mut rival: Option<Opponent<'_>>,
) -> Result<Outcome, String> {
    let cost = ours.facts.cost.clone().ok_or("our side: printed no cost")?;
    if let Some(Opponent { name, side, .. }) = &rival
        && side.facts.n != ours.facts.n
    {
        return Err(format!("{name}: computes {}, allowed: {}", side.facts.n, ours.facts.n));
    }
    let repeats = f64::from(figure.repeats);
    let (mut ratios, mut seconds, mut rival_seconds) = (Vec::new(), Vec::new(), Vec::new());
    let mut checks = (f64::NAN, None);
    for pair in 0..=around.pairs {
        let turn = ours.turn(figure.repeats).map_err(|error| format!("our side: {error}"))?;
        let ratio = match &mut rival {
            None => repeats / turn.seconds,
            Some(Opponent { name, side, .. }) => {
                let other = side.turn(figure.repeats).map_err(|error| format!("{name}: {error}"))?;
                check(&cost, turn, other, figure.tolerance).map_err(|error| format!("{name}: {error}"))?;
                checks.1 = Some(other.check);
                // The first pair warms up both sides.
                rival_seconds.extend((pair > 0).then_some(other.seconds / repeats));
                other.seconds / turn.seconds
            }
        };
        checks.0 = turn.check;
        if pair > 0 {
            ratios.push(ratio);
            seconds.push(turn.seconds / repeats);
        }
    }
    let ratios = Interval::new(&ratios).ok_or("found 0 pairs, allowed: from 1")?;
    let limit = machine.limit(&cost, figure.threads);
    let fastest = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let rate = |seconds: Vec<f64>| cost.units / median(seconds);
    let versions = [&ours.facts].into_iter().chain(rival.as_ref().map(|rival| &rival.side.facts));
    let versions: Vec<&str> = versions.map(|facts| facts.program.as_str()).collect();
    let row = Row {
        date: String::new(),
        commit: String::new(),
        processor: around.processor.clone(),
        figure: figure.name.to_owned(),
        n: ours.facts.n.clone(),
        rival: rival.as_ref().map_or(NO_RIVAL, |rival| rival.name).to_owned(),
        pairs: ratios.count,
        ratio: rounded(ratios.median),
        low: rounded(ratios.low),
        high: rounded(ratios.high),
        rate: rounded(rate(seconds)),
        unit: cost.unit.clone(),
        of_limit: limit.as_ref().map(|limit| rounded(limit.seconds / fastest)),
        check: format!("{} {}", cost.check, rounded(checks.0)),
        versions: versions.join("; "),
    };
    Ok(Outcome::Compared(Box::new(Comparison {
        row,
        ratios,
        threads: (figure.threads, rival.as_ref().map_or(figure.threads, |rival| rival.threads)),
        ours: ours.facts.clone(),
        rival: rival.map(|rival| (rival.side.facts.clone(), rate(rival_seconds))),
        limit,
        check: (cost.check, checks.0, checks.1),
    })))
}

/// Compares the check values of both sides.
fn check(cost: &Cost, ours: Turn, other: Turn, tolerance: Option<f64>) -> Result<(), String> {
    let difference = (ours.check - other.check).abs();
    let allowed = tolerance.map_or(f64::MAX, |part| part * ours.check.abs().max(other.check.abs()));
    // This form of the condition rejects NaN.
    if difference <= allowed {
        return Ok(());
    }
    Err(format!(
        "found {} {}, ours is {}: they differ by {difference:e}, allowed: {allowed:e}",
        cost.check, other.check, ours.check
    ))
}

#[cfg(test)]
mod tests {
    use super::{Cost, Turn, check};

    #[test]
    fn sides_with_other_results_are_not_compared() {
        let agree = |ours, other, tolerance| {
            let turn = |check| Turn { seconds: 1.0, check };
            let cost = Cost { check: "loss".to_owned(), ..Cost::default() };
            check(&cost, turn(ours), turn(other), tolerance)
        };
        assert_eq!(agree(1.0, 1.0009, Some(1e-3)), Ok(()));
        assert_eq!(agree(0.0, 0.0, Some(1e-3)), Ok(()));
        assert_eq!(agree(1.0, 5.0, None), Ok(()));
        assert!(
            agree(1.0, 1.1, Some(1e-3)).is_err_and(|error| error.starts_with("found loss 1.1, ours is 1:"))
        );
        for nan in [(1.0, f64::NAN), (f64::NAN, 1.0), (f64::NAN, f64::NAN)] {
            assert!(agree(nan.0, nan.1, Some(1e-3)).is_err() && agree(nan.0, nan.1, None).is_err());
        }
    }
}
