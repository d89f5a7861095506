//! One run of a command: a scenario with one seed. Writes the files of the run, and continues a run that was interrupted.

use std::cell::OnceCell;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::progress::{Position, Progress};
use super::recorded_command::Recorded;
use super::result_directory::{lock, make_out};
use super::run_state::{self, Finished, Left, StateKeeper};
use super::run_tables::report_page;
use super::runs::{Entry, Runs};
use super::{CommandError, output};
use fedspan_sim_core::report::clients::ClientFigures;
use fedspan_sim_core::report::files::{self, make_directory, remove_run, write_run, write_text};
use fedspan_sim_core::report::plot::curve;
use fedspan_sim_core::report::summary::Summary;
use fedspan_sim_core::report::table::figure;
use fedspan_sim_core::run::{Diverged, Job, Outcome, RunError};

/// Properties of the set of runs to which a run belongs.
#[derive(Clone, Copy)]
pub struct RunSet<'a> {
    /// Directory of the command's own results.
    pub root: Option<&'a Path>,
    /// Lock of that directory, which is taken when the first file is to be written.
    pub lock: &'a OnceCell<File>,
    /// True if there are several seeds.
    pub several: bool,
    /// True if there are several scenarios; a failed run then does not end the command.
    pub compared: bool,
    /// Position of the run among all runs of the command.
    pub position: Position,
    /// True if no progress is shown.
    pub quiet: bool,
    /// True if runs of an earlier command are continued.
    pub resumes: bool,
    /// True if the state at the end of training is kept, so that the run can be extended.
    pub keeps_state: bool,
}

/// Runs one seed and adds its results to `runs`. Of several runs, one that fails does not end the others.
///
/// # Errors
/// [`CommandError`] if the first of all runs fails, or a file cannot be read or written.
pub fn run_seed(
    entry: &Entry,
    seed: u64,
    set: RunSet<'_>,
    flag: &Arc<AtomicBool>,
    runs: &mut Runs,
) -> Result<(), CommandError> {
    let began = Instant::now();
    let is_first = runs.summaries.is_empty() && runs.failed == 0;
    let directory = match (&entry.directory, set.several) {
        (Some(directory), true) => Some(directory.join(format!("seed-{seed}"))),
        (directory, _) => directory.clone(),
    };
    let left = match &directory {
        Some(directory) if set.resumes => run_state::left(directory, &entry.scenario, seed)?,
        _ => Left::Nothing,
    };
    let saved = match left {
        Left::Finished(finished) => {
            runs.shape = Some(finished.shape);
            add(runs, entry, *finished);
            return Ok(());
        }
        Left::Saved(saved) => Some(saved),
        Left::Nothing => None,
    };
    // A later seed may draw a split that the data do not allow, which is no reason to lose the other seeds.
    let job = match Job::prepare(&entry.scenario, seed).map_err(|error| to_command_error(entry, &error)) {
        Err(CommandError::Failed(message) | CommandError::Usage(message)) if set.compared || !is_first => {
            runs.fail(entry, seed, message);
            return Ok(());
        }
        job => job?,
    };
    runs.shape = Some((job.dataset.features, job.dataset.outputs));
    if let Some(root) = &entry.directory
        && runs.summaries.is_empty()
        && !set.resumes
    {
        for directory in set.root.into_iter().chain([root.as_path()]) {
            make_out(directory)?;
        }
        take_lock(set.root.unwrap_or(root), set.lock)?;
        remove_run(root)?;
        if let (Some(root), Some(recorded)) = (set.root, Recorded::present()) {
            recorded.write(root)?;
        }
    }
    if let Some(directory) = &directory {
        make_directory(directory)?;
    }
    let mut progress = Progress::new(
        if set.several { format!("{} seed {seed}", entry.label) } else { entry.label.clone() },
        entry.scenario.algorithm.rounds,
        set.position,
        set.quiet,
        flag,
    );
    let mut keeper = StateKeeper::new(&mut progress, directory.as_deref(), set.keeps_state);
    if set.resumes && !set.quiet {
        let begins = saved
            .as_ref()
            .map_or("begins".to_owned(), |saved| format!("continues after round {}", saved.done()));
        output::log_line(&format!("{} seed {seed}: {begins}", entry.label));
    }
    let outcome = match &saved {
        Some(saved) => job.resume(saved, &mut keeper),
        None => job.run(&mut keeper),
    };
    progress.finish();
    let outcome = match outcome.map_err(|error| to_command_error(entry, &error)) {
        Err(CommandError::Failed(message) | CommandError::Usage(message)) if set.compared || !is_first => {
            runs.fail(entry, seed, message);
            return Ok(());
        }
        outcome => outcome?,
    };
    let summary = Summary::new(
        &entry.scenario,
        seed,
        job.dataset.clients.len(),
        &outcome,
        began.elapsed().as_secs_f64() + saved.as_ref().map_or(0.0, |saved| saved.seconds()),
    );
    let (label, settings) = (entry.label.clone(), entry.settings.clone());
    let summary = Summary { revision: option_env!("FEDSPAN_REVISION"), label, settings, ..summary };
    show_result(entry, &summary, &outcome, set);
    let finished = Finished {
        program: run_state::version(),
        scenario: entry.scenario.resolved(seed),
        curve: curve(&outcome),
        clients: ClientFigures::of(&outcome),
        shape: (job.dataset.features, job.dataset.outputs),
        summary,
    };
    if let Some(directory) = &directory {
        write_files(directory, entry, &finished, &outcome)?;
        if !outcome.interrupted {
            run_state::finish(directory, &finished, set.keeps_state)?;
        }
    }
    add(runs, entry, finished);
    Ok(())
}

/// Takes the lock of the result directory, unless this command has it.
pub fn take_lock(root: &Path, cell: &OnceCell<File>) -> Result<(), CommandError> {
    if cell.get().is_none() {
        let _ = cell.set(lock(root)?);
    }
    Ok(())
}

/// Shows the result of a run in one line, and its warnings.
fn show_result(entry: &Entry, summary: &Summary, outcome: &Outcome, set: RunSet<'_>) {
    let (label, seed, wall) = (&entry.label, summary.seed, summary.timing.wall_s);
    if let Some(step_size) = outcome.step_size.filter(|_| !set.quiet) {
        output::log_line(&format!("{label} seed {seed}: step_size = {step_size:.6e}, measured"));
    }
    for warning in &outcome.warnings {
        output::log_line(&format!("warning: {}: {warning}", entry.scenario.name));
    }
    let rate = summary.timing.updates_per_s.map_or(String::new(), |r| format!(", {r:.0} updates/s"));
    if !set.quiet {
        let found: String =
            summary.figures.iter().map(|(name, value)| format!(", {name} {}", figure(name, value))).collect();
        let position = set.position.text(true);
        let position = if position.is_empty() { position } else { format!(" ({position})") };
        output::log_line(&format!(
            "{label} seed {seed}: {} rounds in {wall:.2} s{rate}{found}{position}",
            summary.rounds
        ));
    }
    if let Some(Diverged { client, round }) = outcome.diverged {
        output::log_line(&format!(
            "in round {round} of {label}, seed {seed}: the loss of client {client} is not finite any more, so training ended; a smaller step size may help"
        ));
    }
}

/// Writes the result files of a run.
fn write_files(
    directory: &Path,
    entry: &Entry,
    finished: &Finished,
    outcome: &Outcome,
) -> Result<(), CommandError> {
    let Finished { scenario, summary, curve, clients, .. } = finished;
    write_run(directory, scenario, summary, outcome)?;
    let single = Runs {
        summaries: vec![summary.clone()],
        curves: vec![curve.clone()],
        client_figures: clients.clone(),
        clients: Some(files::clients(outcome)).filter(|_| !outcome.names.clients.is_empty()),
        ..Runs::none()
    };
    write_text(&directory.join("report.html"), &report_page(entry, &single).html())?;
    Ok(())
}

/// Adds the results of a run.
fn add(runs: &mut Runs, entry: &Entry, finished: Finished) {
    let Finished { summary, curve, clients, .. } = finished;
    if let Some(Diverged { round, .. }) = summary.diverged {
        runs.diverged.get_or_insert(format!("in round {round} of {}, seed {}", entry.label, summary.seed));
    }
    runs.summaries.push(summary);
    runs.curves.push(curve);
    runs.client_figures.add(clients);
}

/// Converts the error of a run into the error of a command, which determines the exit code.
pub fn to_command_error(entry: &Entry, error: &RunError) -> CommandError {
    let (name, error_text) = (&entry.scenario.name, error.to_string());
    // Errors of generated data begin with the name themselves.
    let is_named = error_text.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(": "));
    let message = if is_named { error_text } else { format!("{name}: {error_text}") };
    match error {
        RunError::Data(_) | RunError::Mismatch(_) | RunError::Build(_) | RunError::Custom(_) => {
            CommandError::Usage(message)
        }
        RunError::Failed(_) | RunError::Refused { .. } | RunError::NotFinite { .. } | RunError::Silent => {
            CommandError::Failed(message)
        }
    }
}
