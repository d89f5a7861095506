//! Mutation tests. The commands `cargo xtask mutants` and `cargo xtask threads --bugs` insert seeded bugs
//! into a copy of the sources, one at a time, and count the checks that detect each.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;

use crate::mutants::Mutant;
use crate::process::{Context, Failure};

/// Longest time of a program with a bug, which may make it hang.
const LIMIT: Duration = Duration::from_secs(3600);

/// Arguments of `cargo xtask mutants`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Puts each bug of tests/mutants/*.mutant (or those that are named) into a copy of the sources in
target/mutants, builds it, and runs WORLDS (default 1000) simulated disasters. Prints the number of
worlds with a violation, which must not be 0, and the first of them. A .mutant file holds old and new
code; tests/xtask/src/mutants.rs describes the format.

exit: 0 every bug was detected · 1 a bug was not detected, or could not be inserted · 2 wrong arguments"
)]
pub struct Mutants {
    /// Number of simulated campaigns, or names of bugs.
    #[arg(value_name = "WORLDS|BUG")]
    words: Vec<String>,
}

/// Arguments of `cargo xtask threads`.
#[derive(Args, Clone, Copy, Debug)]
#[command(
    after_help = "Runs each check of tests/threads/src in every order in which its threads can run, and prints the number of
orders.

exit: 0 every check holds (--bugs: every bug was detected) · 1 a check fails (--bugs: a bug was not
detected, or could not be inserted) · 2 wrong arguments
To see the steps of a failed check: LOOM_LOG=trace LOOM_LOCATION=1
target/threads/release/fedspan-threads \"NAME\""
)]
pub struct Threads {
    /// Instead put each bug of tests/threads/bugs into a copy of the sources in target/threads/tree, one at a time, and
    /// print which checks detect it, which must be at least one.
    #[arg(long)]
    bugs: bool,
}

/// Runs the simulated disasters with each bug.
///
/// # Errors
/// Exit code 2 if a bug is unknown, 1 if a bug was not detected or could not be inserted.
pub fn mutants(context: &Context, arguments: &Mutants) -> Result<(), Failure> {
    let known = mutants_in(&context.root.join("tests/mutants"))?;
    let mut worlds = "1000";
    let mut chosen = Vec::new();
    for word in &arguments.words {
        match known.iter().find(|mutant| bug_name(mutant) == *word) {
            Some(mutant) => chosen.push(mutant.clone()),
            None if word.bytes().all(|byte| byte.is_ascii_digit()) => worlds = word,
            None => {
                let names: Vec<_> = known.iter().map(|mutant| bug_name(mutant)).collect();
                let message =
                    format!("mutants: found bug {word:?}, allowed: a number, or {}", names.join(", "));
                return Err(Failure::with_code(2, message));
            }
        }
    }
    let copy = Copy::new(context, "target/mutants/tree", &[])?;
    let output = context.root.join("target/mutants/output");
    println!("{:<28} {:>8}  of {worlds} worlds, the first of them", "bug", "wrong");
    let mut failed = false;
    for mutant in if chosen.is_empty() { known } else { chosen } {
        let mut build =
            context.words("cargo build --quiet --release --locked -p fedspan-tests --bin disasters");
        build
            .args(["--target-dir", "target/mutants/build", "--manifest-path"])
            .arg(copy.folder.join("Cargo.toml"));
        let mut program = context.words("target/mutants/build/release/disasters");
        program.arg(worlds);
        let Some(text) = copy.with_bug(&mutant, &mut build, &mut program, &output)? else {
            failed = true;
            continue;
        };
        let (failed_worlds, first_failure) = count_failed_worlds(&text);
        println!("{:<28} {failed_worlds:8}  {first_failure}", bug_name(&mutant));
        failed |= failed_worlds == 0;
    }
    if failed { Err(Failure::printed()) } else { Ok(()) }
}

/// Runs the model checks of the data that threads share, either on the unchanged sources or with each bug.
///
/// # Errors
/// A check does not hold, or a bug was not detected or could not be inserted.
pub fn threads(context: &Context, arguments: Threads) -> Result<(), Failure> {
    // CI runs the command in two processes, with different sources and the same program.
    std::fs::create_dir_all(context.root.join("target"))?;
    let lock = std::fs::File::create(context.root.join("target/threads.lock"))?;
    lock.lock()?;
    let build = |root: &Path| {
        let mut cargo = context
            .words("cargo build --release --locked --quiet --target-dir target/threads --manifest-path");
        cargo.arg(root.join("tests/threads/Cargo.toml"));
        cargo
    };
    let program = || context.words("target/threads/release/fedspan-threads");
    if !arguments.bugs {
        let holds = context.succeeds(&mut build(&context.root)) && context.succeeds(&mut program());
        return if holds { Ok(()) } else { Err(Failure::printed()) };
    }
    let copy = Copy::new(
        context,
        "target/threads/tree",
        &["Cargo.toml", "aggregator", "protocol", "tests/threads"],
    )?;
    let output = context.root.join("target/threads/output");
    println!("{:<40} {:>7}  by how many checks, the first of them", "bug", "noticed");
    let mut failed = false;
    for mutant in mutants_in(&context.root.join("tests/threads/bugs"))? {
        let Some(text) = copy.with_bug(&mutant, &mut build(&copy.folder), &mut program(), &output)? else {
            failed = true;
            continue;
        };
        let (failed_checks, first_failure) = count_failed_checks(&text);
        println!("{:<40} {failed_checks:7}  {first_failure}", bug_name(&mutant));
        failed |= failed_checks == 0;
    }
    if failed { Err(Failure::printed()) } else { Ok(()) }
}

/// Returns the files of bugs in a folder, sorted.
fn mutants_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let file = entry?.path();
        if file.extension().is_some_and(|end| end == "mutant") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the name of a bug, which is the name of its file without the extension.
fn bug_name(patch: &Path) -> String {
    patch.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the number of campaigns that failed, and the line of the one with the least seed. The lines have
/// the form `seed N: ...`.
fn count_failed_worlds(output: &str) -> (usize, String) {
    let seeds = output.lines().filter_map(|line| line.strip_prefix("seed "));
    let seed = |line: &str| {
        line.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse::<u64>().ok())
    };
    let first = seeds.clone().min_by_key(|line| seed(line));
    let first =
        first.map_or(String::new(), |line| format!("seed {}", line.chars().take(120).collect::<String>()));
    (seeds.count(), first)
}

/// Returns the number of checks that do not hold, and the first of them. The lines have the form `NAME  ORDER
/// WRONG...`.
fn count_failed_checks(output: &str) -> (usize, String) {
    let failures = output.lines().filter_map(|line| line.split_once("WRONG"));
    let first = failures.clone().next().map_or(String::new(), |(before, _)| {
        let (name, order) = before.trim_end().rsplit_once(' ').unwrap_or((before, "?"));
        format!("{} (order {order})", name.trim_end())
    });
    (failures.count(), first)
}

/// Copy of the sources.
struct Copy<'a> {
    context: &'a Context,
    folder: PathBuf,
}

impl<'a> Copy<'a> {
    /// Copies the files that git tracks below some paths (or all files) into an empty folder. The copies have
    /// new modification times: with the original ones cargo would not rebuild files in which an earlier run
    /// had inserted a bug.
    fn new(context: &'a Context, folder: &str, paths: &[&str]) -> Result<Self, Failure> {
        let folder = context.root.join(folder);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let output = context.words("git ls-files -z --").args(paths).output()?;
        if !output.status.success() {
            return Err(Failure::new(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr))));
        }
        for file in String::from_utf8_lossy(&output.stdout).split('\0').filter(|file| !file.is_empty()) {
            let (from, to) = (context.root.join(file), folder.join(file));
            // The file was deleted, but git still tracks it.
            if !from.exists() {
                continue;
            }
            if let Some(parent) = to.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::copy(&from, &to).map_err(|error| Failure::new(format!("{file}: {error}")))?;
        }
        Ok(Self { context, folder })
    }

    /// Inserts a bug, builds, runs a program, and removes the bug again. Returns the output of the program;
    /// `None` if the bug cannot be inserted or built, and the reason is printed.
    fn with_bug(
        &self,
        file: &Path,
        build: &mut Command,
        program: &mut Command,
        output: &Path,
    ) -> Result<Option<String>, Failure> {
        let text = std::fs::read_to_string(file)?;
        let changes = match Mutant::parse(&text).and_then(|mutant| mutant.apply(&self.folder)) {
            Ok(changes) => changes,
            Err(fault) => {
                eprintln!("{}: {fault}", file.display());
                return Ok(None);
            }
        };
        for (path, text) in &changes {
            std::fs::write(path, text)?;
        }
        let is_built = self.context.succeeds(build);
        // The exit code is ignored, because a program with a bug is expected to fail.
        let run_result =
            if is_built { self.context.run_into(program, output, LIMIT).map(|_| ()) } else { Ok(()) };
        for (path, _) in &changes {
            let original = self.context.root.join(path.strip_prefix(&self.folder).unwrap_or(path));
            std::fs::copy(original, path)?;
        }
        if self.context.is_interrupted() {
            return Err(Failure::with_code(130, "interrupted"));
        }
        if !is_built {
            eprintln!("{}: does not build", file.display());
            return Ok(None);
        }
        run_result?;
        Ok(Some(String::from_utf8_lossy(&std::fs::read(output)?).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_world_with_the_least_seed_is_the_first() {
        let output = "seed 12: late\nnoise\nseed 3: early\nseed 100: later\n";
        assert_eq!(count_failed_worlds(output), (3, "seed 3: early".to_owned()));
        assert_eq!(count_failed_worlds("all well\n"), (0, String::new()));
    }

    #[test]
    fn wrong_checks_are_counted_with_the_order_of_the_first() {
        let output = "a queue that is full      17\na pool of slots    204  WRONG: lost\nanother  ?  WRONG\n";
        assert_eq!(count_failed_checks(output), (2, "a pool of slots (order 204)".to_owned()));
        assert_eq!(count_failed_checks(""), (0, String::new()));
    }
}
