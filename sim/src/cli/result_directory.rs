//! Directories of results: refusals, and removal of results that are to be replaced.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use super::CommandError;
use fedspan_sim_core::data::Dataset;
use fedspan_sim_core::report::files;
use fedspan_sim_core::scenario::Scenario;

/// Checks that `out` is a directory or does not exist.
///
/// # Errors
/// [`CommandError::Usage`] if it is a file.
pub fn check_out(out: &Path) -> Result<(), CommandError> {
    if out.exists() && !out.is_dir() {
        let message = format!("--out {}: found a file, allowed: a directory", out.display());
        return Err(CommandError::Usage(message));
    }
    Ok(())
}

/// Creates the result directory.
///
/// # Errors
/// [`CommandError::Usage`] if it cannot be made.
pub fn make_out(out: &Path) -> Result<(), CommandError> {
    let created = std::fs::create_dir_all(out);
    created.map_err(|error| {
        CommandError::Usage(format!("--out {}: cannot make this directory: {error}", out.display()))
    })
}

/// Default directory of a command: `name`, or `name-2` and so on if it exists.
pub fn free_out(name: &str) -> PathBuf {
    let numbered = (2u32..).map(|number| PathBuf::from(format!("{name}-{number}")));
    let mut all = std::iter::once(PathBuf::from(name)).chain(numbered);
    all.find(|path| !path.exists()).unwrap_or_else(|| PathBuf::from(name))
}

/// Locks the result directory until the file is dropped, so that a command and its continuation do not write to it at the
/// same time.
///
/// # Errors
/// [`CommandError::Usage`] if another command holds the lock, [`CommandError::Failed`] if the directory cannot be opened.
pub fn lock(out: &Path) -> Result<File, CommandError> {
    let directory = File::open(out)
        .map_err(|error| CommandError::Failed(format!("cannot open {}: {error}", out.display())))?;
    match directory.try_lock() {
        Err(TryLockError::WouldBlock) => Err(CommandError::Usage(format!(
            "{}: another command is still writing to this directory",
            out.display()
        ))),
        // A file system without locks is no reason to refuse.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(directory),
    }
}

/// Files that an earlier command leaves in its result directory.
const SUMMARY_FILES: [&str; 3] = ["summary.json", "results.csv", "report.html"];

/// Refuses a directory with the results of an earlier command, unless they are to be overwritten.
///
/// # Errors
/// [`CommandError::Usage`] if the directory has results.
pub fn refuse_results(out: &Path, overwrite: bool) -> Result<(), CommandError> {
    match files::first_result(out)? {
        Some(found) if !overwrite => Err(CommandError::Usage(format!(
            "--out {}: found {}, which is called like a result of an earlier command; give another directory, or --overwrite",
            out.display(),
            found.display()
        ))),
        _ => Ok(()),
    }
}

/// Refuses result directories that hold the scenario or the data of a run under the name of a result file, which would be
/// removed.
///
/// # Errors
/// [`CommandError::Usage`] naming the first such file.
pub fn protect_inputs(
    scenario: &Scenario,
    dataset: &Dataset,
    directories: &[&Path],
) -> Result<(), CommandError> {
    let place = |path: &Path| std::path::absolute(path).ok().and_then(|path| path.canonicalize().ok());
    let inputs =
        std::iter::once(scenario.name.as_str()).chain(dataset.files.iter().map(|file| file.file.as_str()));
    for input in inputs {
        let Some(path) = place(Path::new(input)).filter(|path| files::is_result(path)) else { continue };
        let holds = |out: &&&Path| place(out).is_some_and(|out| path.parent() == Some(&*out));
        if let Some(out) = directories.iter().find(holds) {
            return Err(CommandError::Usage(format!(
                "--out {}: {input} is an input of this run and has the name of a result, which would replace it; give another \
                 directory",
                out.display()
            )));
        }
    }
    Ok(())
}

/// Removes the files of an earlier command that cover all of its runs.
///
/// # Errors
/// [`CommandError::Failed`] if a file cannot be removed, [`CommandError::Usage`] if another command is writing.
pub fn remove_summaries(out: &Path) -> Result<(), CommandError> {
    if out.exists() {
        drop(lock(out)?);
    }
    for path in SUMMARY_FILES.map(|name| out.join(name)).into_iter().filter(|path| path.exists()) {
        let removed = std::fs::remove_file(&path);
        removed
            .map_err(|error| CommandError::Failed(format!("cannot remove {}: {error}", path.display())))?;
    }
    Ok(())
}
