//! Command `cargo xtask fuzz`: runs libFuzzer with coverage on the stable tool chain, without cargo-fuzz.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use crate::process::{Context, Failure};

/// Arguments of `cargo xtask fuzz`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Builds the fuzz targets and runs each for SECONDS (default 30) on the seeds in the code, the corpus in
tests/fuzz/corpus and the inputs that earlier runs found (target/fuzz/found). Prints the executions of
each target and its slowest input.

exit: 0 all invariants held · 1 a target failed (its input is printed, as a file and as hex) · 2 wrong
arguments
With cargo-fuzz: cargo +nightly fuzz run --fuzz-dir tests/fuzz TARGET"
)]
pub struct Fuzz {
    /// Afterwards add inputs that reach new code to tests/fuzz/corpus, shortest first, up to 64 inputs of at most 512
    /// bytes for each target.
    #[arg(long)]
    minimise: bool,
    /// Seconds for each target, or names of targets.
    #[arg(value_name = "SECONDS|TARGET")]
    words: Vec<String>,
}

/// Flags that cargo-fuzz passes, without a sanitizer, because there is no unsafe code.
const COVERAGE_FLAGS: [&str; 7] = [
    "--cfg fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];
/// Number of targets that run at the same time, which is the number of cores of CI.
const PARALLEL: usize = 2;
/// Largest number of inputs of a target in the corpus.
const LARGEST_CORPUS: usize = 64;
/// Time after its seconds in which a target must end by itself.
const END_SLACK: Duration = Duration::from_secs(120);

/// Runs the command.
///
/// # Errors
/// Exit code 2 if a target is unknown, 1 if a target does not build or breaks an invariant.
pub fn run(context: &Context, arguments: &Fuzz) -> Result<(), Failure> {
    let known = target_names(&context.root.join("tests/fuzz/fuzz_targets"))?;
    let mut seconds = 30;
    let mut chosen = Vec::new();
    for word in &arguments.words {
        match word.parse() {
            Ok(number) => seconds = number,
            Err(_) if known.contains(word) => chosen.push(word.clone()),
            Err(_) => {
                let message =
                    format!("fuzz: found target {word:?}, allowed: a number, or {}", known.join(", "));
                return Err(Failure::with_code(2, message));
            }
        }
    }
    let targets = if chosen.is_empty() { known } else { chosen };
    let fuzzer = Fuzzer::build(context)?;
    println!(
        "{:<17} {:>11} {:>9} {:>9} {:>13} {:>9}",
        "target", "executions", "per s", "coverage", "slowest s", "peak MB"
    );
    let mut is_broken = false;
    for group in targets.chunks(PARALLEL) {
        let mut running = Vec::new();
        for target in group {
            running.push((target, fuzzer.start_target(target, seconds)?));
        }
        for (target, mut child) in running {
            let result = context.wait(&mut child, Duration::from_secs(seconds) + END_SLACK);
            is_broken |= !fuzzer.report_target(target, result.is_ok_and(|status| status.success()))?;
        }
        if context.is_interrupted() {
            return Err(Failure::with_code(130, "fuzz: interrupted"));
        }
    }
    if is_broken {
        return Err(Failure::printed());
    }
    if arguments.minimise {
        for target in &targets {
            fuzzer.minimise(target)?;
        }
    }
    Ok(())
}

/// Returns the names of the fuzz targets, sorted.
fn target_names(folder: &Path) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for file in files_in(folder)? {
        if file.extension().is_some_and(|end| end == "rs") {
            names.extend(file.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(names)
}

/// Returns the files in a folder, sorted.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in
        std::fs::read_dir(folder).map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?
    {
        let file = entry?.path();
        if file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Built fuzz targets and their folders.
struct Fuzzer<'a> {
    context: &'a Context,
    /// Folder of build output, inputs and logs, `target/fuzz`.
    folder: PathBuf,
    /// Folder of the built fuzz targets.
    programs: PathBuf,
}

impl<'a> Fuzzer<'a> {
    /// Builds all fuzz targets.
    fn build(context: &'a Context) -> Result<Self, Failure> {
        let start = Instant::now();
        let host = crate::dependencies::host(context)?;
        let folder = context.root.join("target/fuzz");
        let mut cargo = context
            .words("cargo build --manifest-path tests/fuzz/Cargo.toml --locked --release --quiet --bins");
        // With an explicit target, cargo does not apply the flags to build scripts.
        cargo.args(["--target", &host, "--target-dir"]).arg(&folder);
        // The flags are unstable; this variable makes a stable compiler accept them.
        cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", COVERAGE_FLAGS.join(" "));
        if !context.status(&mut cargo)?.success() {
            return Err(Failure::printed());
        }
        println!("built in {} s", start.elapsed().as_secs());
        let programs = folder.join(host).join("release");
        Ok(Self { context, folder, programs })
    }

    fn corpus_folder(&self, target: &str) -> PathBuf {
        self.context.root.join("tests/fuzz/corpus").join(target)
    }

    fn log_file(&self, target: &str) -> PathBuf {
        self.folder.join(format!("{target}.log"))
    }

    fn work_folder(&self, kind: &str, target: &str) -> PathBuf {
        self.folder.join(kind).join(target)
    }

    fn target_command(&self, target: &str) -> Command {
        self.context.command(self.programs.join(target))
    }

    /// Starts a target. It first writes its seeds (messages of honest peers), then reads them; new inputs are
    /// written to the first folder. An input may take 10 ms, but libFuzzer's clock counts whole seconds. An
    /// input that takes a second is therefore treated as a hang, and the slowest input is printed.
    fn start_target(&self, target: &str, seconds: u64) -> Result<std::process::Child, Failure> {
        let (found_folder, seeds_folder, corpus_folder) = (
            self.work_folder("found", target),
            self.work_folder("seeds", target),
            self.corpus_folder(target),
        );
        let broken_folder = self.folder.join("broken");
        for folder in [&found_folder, &seeds_folder, &broken_folder, &corpus_folder] {
            std::fs::create_dir_all(folder)?;
        }
        let log = File::create(self.log_file(target))?;
        let mut program = self.target_command(target);
        program.env("FEDSPAN_FUZZ_SEEDS", &seeds_folder).args([&found_folder, &seeds_folder, &corpus_folder]);
        program.arg(format!("-max_total_time={seconds}"));
        program.args([
            "-timeout=1",
            "-report_slow_units=1",
            "-max_len=2048",
            "-rss_limit_mb=512",
            "-print_final_stats=1",
        ]);
        program.arg(format!("-artifact_prefix={}/{target}-", broken_folder.display()));
        program.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        program.spawn().map_err(|error| Failure::new(format!("{target}: {error}")))
    }

    /// Prints the statistics of a target, or the input that broke an invariant. Returns true if no invariant
    /// was broken.
    fn report_target(&self, target: &str, succeeded: bool) -> Result<bool, Failure> {
        let log = String::from_utf8_lossy(&std::fs::read(self.log_file(target))?).into_owned();
        if succeeded {
            let [executions, rate, slowest, memory] =
                ["number_of_executed_units", "average_exec_per_sec", "slowest_unit_time_sec", "peak_rss_mb"]
                    .map(|name| statistic(&log, name));
            println!(
                "{target:<17} {executions:>11} {rate:>9} {:>9} {slowest:>13} {memory:>9}",
                last_coverage(&log)
            );
            return Ok(true);
        }
        println!("{target}: BROKEN");
        for line in failure_lines(&log) {
            println!("{line}");
        }
        if let Some(file) = log
            .lines()
            .filter_map(|line| line.split_once("Test unit written to "))
            .next_back()
            .map(|(_, file)| file)
        {
            println!("input: {file}");
            let bytes = std::fs::read(file)?;
            println!("{}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
            println!("repeat with: {} {file}", self.programs.join(target).display());
        }
        Ok(false)
    }

    /// Adds inputs to the corpus that reach more code than the present ones. Seeds are in the code and are
    /// not added.
    fn minimise(&self, target: &str) -> Result<(), Failure> {
        let (merged, corpus) = (self.work_folder("merged", target), self.corpus_folder(target));
        if merged.exists() {
            std::fs::remove_dir_all(&merged)?;
        }
        std::fs::create_dir_all(&merged)?;
        for folder in [&self.work_folder("seeds", target), &corpus] {
            for file in files_in(folder)? {
                std::fs::copy(&file, merged.join(file.file_name().unwrap_or_default()))?;
            }
        }
        let before: BTreeSet<PathBuf> = files_in(&merged)?.into_iter().collect();
        let mut program = self.target_command(target);
        program.args(["-merge=1", "-max_len=512"]).arg(&merged).arg(self.work_folder("found", target));
        let status =
            self.context.run_into(&mut program, &self.folder.join("merge.log"), Duration::from_secs(3600))?;
        if !status.success() {
            return Err(Failure::new(format!("{target}: merging failed, see target/fuzz/merge.log")));
        }
        let mut new: Vec<_> = files_in(&merged)?.into_iter().filter(|file| !before.contains(file)).collect();
        new.sort_by_key(|file| file.metadata().map_or(u64::MAX, |data| data.len()));
        let room = LARGEST_CORPUS.saturating_sub(files_in(&corpus)?.len());
        for file in new.into_iter().take(room) {
            std::fs::copy(&file, corpus.join(file.file_name().unwrap_or_default()))?;
        }
        println!("{target}: {} inputs in the corpus", files_in(&corpus)?.len());
        Ok(())
    }
}

/// Returns a value of the final statistics, `stat::NAME:   NUMBER`.
fn statistic(log: &str, name: &str) -> String {
    let line =
        log.lines().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Returns the last coverage that was printed, `cov: NUMBER`.
fn last_coverage(log: &str) -> String {
    let last_line = log.lines().filter_map(|line| line.split_once("cov: ")).next_back();
    last_line.map_or(String::new(), |(_, after_label)| {
        after_label.chars().take_while(char::is_ascii_digit).collect()
    })
}

/// Returns the lines that report why a target failed, each with the next two lines; at most twenty lines.
fn failure_lines(log: &str) -> Vec<&str> {
    let lines: Vec<&str> = log.lines().collect();
    let is_reason = |line: &str| ["panicked", "ERROR", "SUMMARY"].iter().any(|word| line.contains(word));
    let is_shown = |index: usize| (index.saturating_sub(2)..=index).any(|other| is_reason(lines[other]));
    (0..lines.len()).filter(|&index| is_shown(index)).map(|index| lines[index]).take(20).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "#2\tINITED cov: 12 ft: 13\n#9\tNEW    cov: 345 ft: 9\nDone 9 runs\n\
                       stat::number_of_executed_units: 9\nstat::peak_rss_mb:             44\n";

    #[test]
    fn figures_are_read_from_the_statistics() {
        assert_eq!(
            [
                statistic(LOG, "number_of_executed_units"),
                statistic(LOG, "peak_rss_mb"),
                statistic(LOG, "none")
            ],
            ["9", "44", ""]
        );
        assert_eq!(last_coverage(LOG), "345");
    }

    #[test]
    fn reasons_are_followed_by_two_lines() {
        assert_eq!(
            failure_lines("a\nthread panicked\nb\nc\nd\nERROR x"),
            ["thread panicked", "b", "c", "ERROR x"]
        );
        assert_eq!(failure_lines(LOG), Vec::<&str>::new());
    }
}
