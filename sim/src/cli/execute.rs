//! Execution of the scenarios of the commands `run` and `compare`, with all seeds: checks them, runs them, and handles
//! failures and Ctrl-C.

use std::cell::OnceCell;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::progress::Position;
use super::result_directory::{check_out, protect_inputs};
use super::runs::{Entry, Executed, Runs};
use super::single_run::{RunSet, run_seed, take_lock, to_command_error};
use super::{CommandError, Format, RunOptions, interrupt, output, use_threads};
use fedspan_sim_core::report::files::{write_json, write_text};
use fedspan_sim_core::report::results::results;
use fedspan_sim_core::report::summary::{SeedsSummary, Summary};
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::run::Job;

/// Prints the table of the expectations, on standard error if standard output is JSON. The inner result is the error that
/// ends the command if an expectation is missed.
///
/// # Errors
/// [`CommandError::Failed`] if standard output cannot be written.
pub fn show_verdicts(
    verdicts: Option<&(Table, usize)>,
    format: Format,
) -> Result<Result<(), CommandError>, CommandError> {
    let Some((table, missed)) = verdicts else { return Ok(Ok(())) };
    match format {
        Format::Json => output::log_line(table.text().trim_end()),
        format => output::print(&format!("\n{}", format.shown(table)))?,
    }
    let count =
        if *missed == 1 { "1 expectation is".to_owned() } else { format!("{missed} expectations are") };
    Ok(if *missed == 0 { Ok(()) } else { Err(CommandError::Missed(format!("{count} missed"))) })
}

/// Maps an interruption, divergence or failure to the error that ends the command.
///
/// # Errors
/// [`CommandError::Failed`] in each of these cases.
pub fn end(executed: &Executed, directory: Option<&Path>) -> Result<(), CommandError> {
    let Executed { interrupted, diverged, failure, .. } = executed;
    let reason = match (interrupted, diverged, failure) {
        (Some(position), ..) => format!("interrupted {position}"),
        (None, Some(position), _) => format!("diverged {position}"),
        (None, None, Some(failure)) => failure.clone(),
        (None, None, None) => return Ok(()),
    };
    let results = match directory {
        Some(directory) if interrupted.is_some() => {
            format!("`fedspan-sim resume {}` continues it; results so far are there", directory.display())
        }
        Some(directory) => format!("finished results are in {}", directory.display()),
        None => "finished results are shown above".to_owned(),
    };
    Err(CommandError::Failed(format!("{reason}; {results}")))
}

/// Entry whose scenario has been checked against its data.
pub struct Checked<'a> {
    entry: &'a Entry,
    /// Reason why the scenario does not fit its data; `None` if it does.
    unfit: Option<String>,
}

/// First seed of an entry.
fn first_seed(entry: &Entry, options: &RunOptions) -> u64 {
    options.seed.unwrap_or(entry.scenario.seed)
}

/// Checks every scenario against its data, before any file is written or removed. Of several scenarios, one that does not
/// fit does not end the others. `root` is the directory of the command's own results.
///
/// # Errors
/// [`CommandError::Usage`] if no scenario fits, a result directory is a file, or a result would replace a file that a
/// scenario reads.
pub fn check<'a>(
    entries: &'a [Entry],
    root: Option<&Path>,
    options: &RunOptions,
) -> Result<Vec<Checked<'a>>, CommandError> {
    use_threads(options.threads)?;
    for directory in entries.iter().filter_map(|entry| entry.directory.as_deref()) {
        check_out(directory)?;
    }
    let directories: Vec<&Path> =
        root.into_iter().chain(entries.iter().filter_map(|entry| entry.directory.as_deref())).collect();
    let check = |entry: &'a Entry| {
        // A single scenario is read only if there may be results to replace: its run reads it again.
        if entries.len() == 1 && directories.iter().all(|directory| !directory.exists()) {
            return Ok(Checked { entry, unfit: None });
        }
        match Job::prepare(&entry.scenario, first_seed(entry, options)) {
            Ok(job) => {
                protect_inputs(&entry.scenario, &job.dataset, &directories)?;
                Ok(Checked { entry, unfit: None })
            }
            Err(error) if entries.len() == 1 => Err(to_command_error(entry, &error)),
            Err(error) => Ok(Checked { entry, unfit: Some(format!("{}: {error}", entry.scenario.name)) }),
        }
    };
    let checked: Vec<Checked<'a>> = entries.iter().map(check).collect::<Result<_, CommandError>>()?;
    for Checked { entry, unfit } in &checked {
        if let Some(message) = unfit {
            if checked.iter().all(|checked| checked.unfit.is_some()) {
                return Err(CommandError::Usage(message.clone()));
            }
            output::log_line(&format!("{} is left out: {message}", entry.label));
        }
    }
    Ok(checked)
}

/// Runs all entries with all seeds and writes the files of each run as soon as it is finished. `root` is the directory of
/// the command's own results.
///
/// # Errors
/// [`CommandError`] if a single scenario cannot be run, or a file cannot be read or written.
pub fn execute(
    checked: &[Checked<'_>],
    root: Option<&Path>,
    options: &RunOptions,
) -> Result<Executed, CommandError> {
    let lock = OnceCell::new();
    if let Some(root) = root.filter(|_| options.resumes) {
        take_lock(root, &lock)?;
    }
    let flag = interrupt::watch();
    let mut executed = Executed { runs: Vec::new(), interrupted: None, diverged: None, failure: None };
    let seeds_of_each = options.seeds.map_or(1, |seeds| seeds as usize);
    let fit = checked.iter().filter(|checked| checked.unfit.is_none()).count();
    let (mut number, total, began) = (0, fit * seeds_of_each, Instant::now());
    for Checked { entry, unfit } in checked {
        let mut runs = Runs::none();
        let first = first_seed(entry, options);
        let seeds = if unfit.is_some() { 0 } else { options.seeds.unwrap_or(1) };
        if unfit.is_some() {
            runs.failed = seeds_of_each;
            runs.failure.clone_from(unfit);
        }
        for seed in (0..u64::from(seeds)).map(|index| first.saturating_add(index)) {
            if flag.load(Ordering::Relaxed) {
                let position = format!("before seed {seed} of {}", entry.label);
                executed.interrupted.get_or_insert(position);
                break;
            }
            let several = options.seeds.is_some_and(|seeds| seeds > 1);
            number += 1;
            let position = Position { number, total, began };
            let (compared, quiet, resumes) = (checked.len() > 1, options.quiet, options.resumes);
            let keeps_state = options.keep_states;
            let set = RunSet { root, lock: &lock, several, compared, position, quiet, resumes, keeps_state };
            run_seed(entry, seed, set, &flag, &mut runs)?;
            if let Some(last) = runs.summaries.last().filter(|summary| summary.interrupted) {
                let position = format!("after round {} of {}, seed {seed}", last.rounds, entry.label);
                executed.interrupted = Some(position);
            }
        }
        if let Some(directory) = entry.directory.as_ref().filter(|_| !runs.summaries.is_empty()) {
            let summaries: Vec<&Summary> = runs.summaries.iter().collect();
            write_text(&directory.join("results.csv"), &results(&summaries))?;
        }
        if options.seeds.is_some_and(|seeds| seeds > 1) {
            runs.over_seeds = SeedsSummary::new(&runs.summaries, executed.interrupted.is_some());
            if let (Some(over_seeds), Some(directory)) = (&runs.over_seeds, &entry.directory) {
                write_json(&directory.join("summary.json"), over_seeds)?;
            }
        }
        executed.diverged = executed.diverged.take().or(runs.diverged.clone());
        executed.failure = executed.failure.take().or(runs.failure.clone());
        executed.runs.push(runs);
        if executed.interrupted.is_some() {
            break;
        }
    }
    Ok(executed)
}
