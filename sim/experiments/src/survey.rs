//! Surveys: measurements of many independent cells, whose results are appended to a file. A survey that was
//! interrupted continues with the cells that the file lacks.
//!
//! The first line of the file describes the survey, and every further line is the result of one cell, in the
//! order in which cells finished. The results do not depend on that order, the number of threads, or
//! interruptions.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use fedspan_sim_core::parallel;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::run::RunError;

/// One cell of a survey.
pub trait Cell: Sync {
    /// Result of the cell.
    type Outcome: Serialize + DeserializeOwned + Send;

    /// Expected time of the cell in seconds on one core of a 2020s server.
    fn seconds(&self) -> f64;

    /// Description of the cell for the progress display.
    fn label(&self) -> String;

    /// Measures the cell. Returns `None` if `stop` was set before the end.
    ///
    /// # Errors
    /// [`RunError`] if a run fails.
    fn measure(&self, stop: &AtomicBool) -> Result<Option<Self::Outcome>, RunError>;
}

/// Error of a survey.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// The file cannot be read or written.
    #[error("{}: {error}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        error: io::Error,
    },
    /// Another process writes the file.
    #[error("{}: another survey writes this file; wait for its end, or choose another --out", .0.display())]
    Locked(PathBuf),
    /// The file has the results of another survey.
    #[error("{}: found the results of another survey, {found}, allowed: {expected}; choose another --out", .path.display())]
    Other {
        /// Path of the file.
        path: PathBuf,
        /// Description in the file.
        found: String,
        /// Description of this survey.
        expected: String,
    },
    /// A line of the file is not the result of a cell of the survey.
    #[error("{}: line {line} is not a result of this survey: {fault}; delete the line, and the cell is measured again", .path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Description of the fault.
        fault: String,
    },
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Line of the file with the result of one cell.
#[derive(Deserialize, Serialize)]
struct Line<O> {
    cell: usize,
    outcome: O,
}

/// Survey with its file, of which a part may be finished.
pub struct Survey<'a, C: Cell> {
    cells: &'a [C],
    outcomes: Vec<Option<C::Outcome>>,
    file: File,
    path: PathBuf,
}

impl<'a, C: Cell> Survey<'a, C> {
    /// Opens the file of a survey, or creates it, and reads the results of the finished cells. `description`
    /// contains everything on which the results depend. An incomplete last line, which a crash leaves, is
    /// removed.
    ///
    /// # Errors
    /// [`SurveyError`] if the file cannot be used, or has other contents.
    pub fn open(path: &Path, description: &impl Serialize, cells: &'a [C]) -> Result<Self, SurveyError> {
        let fault = |error| SurveyError::Io { path: path.to_owned(), error };
        let options = OpenOptions::new().read(true).append(true).create(true).clone();
        let mut file = options.open(path).map_err(fault)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(SurveyError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(fault(error)),
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(fault)?;
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(complete as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(fault)?;
        let description = serde_json::to_value(description).map_err(|error| fault(error.into()))?;
        let mut survey =
            Self { cells, outcomes: cells.iter().map(|_| None).collect(), file, path: path.to_owned() };
        let mut lines = text.get(..complete).unwrap_or_default().lines().enumerate();
        match lines.next() {
            None => survey.append(&description)?,
            Some((_, line)) => {
                if serde_json::from_str::<Value>(line).ok().as_ref() != Some(&description) {
                    let (found, expected) = (line.chars().take(300).collect(), description.to_string());
                    return Err(SurveyError::Other { path: path.to_owned(), found, expected });
                }
            }
        }
        for (index, line) in lines {
            survey.take(line).map_err(|fault| SurveyError::Line {
                path: path.to_owned(),
                line: index + 1,
                fault,
            })?;
        }
        Ok(survey)
    }

    /// Takes the result of a line.
    fn take(&mut self, line: &str) -> Result<(), String> {
        let Line { cell, outcome } = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let count = self.cells.len();
        let place = self.outcomes.get_mut(cell).ok_or_else(|| format!("found cell {cell} of {count}"))?;
        *place = Some(outcome);
        Ok(())
    }

    /// Appends a line to the file.
    fn append(&mut self, line: &impl Serialize) -> Result<(), SurveyError> {
        let text = serde_json::to_string(line).map_err(io::Error::from);
        let written = text.and_then(|text| self.file.write_all(format!("{text}\n").as_bytes()));
        written.map_err(|error| SurveyError::Io { path: self.path.clone(), error })
    }

    /// Results of the cells, in the order of the cells; `None` for cells that are not finished.
    #[must_use]
    pub fn outcomes(&self) -> &[Option<C::Outcome>] {
        &self.outcomes
    }

    /// Number of finished cells.
    #[must_use]
    pub fn finished(&self) -> usize {
        self.outcomes.iter().flatten().count()
    }

    /// Expected time in seconds of the cells that are not finished, on `threads` cores of a 2020s server.
    #[must_use]
    pub fn seconds_left(&self, threads: usize) -> f64 {
        let left = self.cells.iter().zip(&self.outcomes).filter(|(_, outcome)| outcome.is_none());
        // The sum begins at 0, since the sum of no numbers is -0.
        left.fold(0.0, |sum, (cell, _)| sum + cell.seconds()) / threads.max(1) as f64
    }

    /// One line about the size of the survey, its finished part, and the expected time of the rest.
    #[must_use]
    pub fn announcement(&self, name: &str, threads: usize) -> String {
        let (finished, all) = (self.finished(), self.cells.len());
        if finished == all {
            return format!("{name}: all {all} cells are finished");
        }
        let minutes = (self.seconds_left(threads) / 60.0).ceil();
        format!(
            "{name}: {all} cells, {finished} of them finished; the others take about {minutes} min on {threads} \
             cores of a 2020s server; Ctrl-C ends it, and the same command continues"
        )
    }

    /// Measures the cells that are not finished, until all are or `stop` is set.
    ///
    /// # Errors
    /// [`SurveyError::Run`] if a run fails, [`SurveyError::Io`] if a result cannot be written. Results up to
    /// then are in the file.
    pub fn measure(
        &mut self,
        threads: usize,
        stop: &AtomicBool,
        progress: &dyn Progress,
    ) -> Result<(), SurveyError> {
        // The first error of writing ends the survey, since a cell whose result is lost would be measured in
        // vain.
        let halted = AtomicBool::new(false);
        let cells = self.cells;
        let left: Vec<usize> =
            (0..cells.len()).filter(|index| self.outcomes.get(*index).is_some_and(Option::is_none)).collect();
        let tenths = |cell: &C| (cell.seconds() * 10.0).ceil().max(1.0) as u64;
        let total: u64 = left.iter().filter_map(|index| cells.get(*index)).map(tenths).sum();
        let writer = Mutex::new((self, None));
        parallel::each(threads, &left, |index| {
            if stop.load(Ordering::Relaxed) || halted.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let Some(cell) = cells.get(*index) else { return Ok(None) };
            let Some(outcome) = cell.measure(stop)? else { return Ok(None) };
            let mut guard = writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let (survey, failure) = &mut *guard;
            let line = Line { cell: *index, outcome };
            if let Err(error) = survey.append(&line) {
                halted.store(true, Ordering::Relaxed);
                failure.get_or_insert(error);
                return Ok(None);
            }
            if let Some(place) = survey.outcomes.get_mut(*index) {
                *place = Some(line.outcome);
            }
            progress.advance(tenths(cell), total, &cell.label());
            Ok::<_, RunError>(Some(()))
        })?;
        let (_, failure) = writer.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        failure.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Cell whose result is the square of its number. Counts the measurements of all cells.
    struct Square<'a>(u64, &'a AtomicUsize);

    impl Cell for Square<'_> {
        type Outcome = u64;

        fn seconds(&self) -> f64 {
            60.0
        }

        fn label(&self) -> String {
            self.0.to_string()
        }

        fn measure(&self, _stop: &AtomicBool) -> Result<Option<u64>, RunError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(Some(self.0 * self.0))
        }
    }

    /// Progress display that sets the stop flag after some cells.
    struct StopAfter<'a>(AtomicUsize, &'a AtomicBool);

    impl Progress for StopAfter<'_> {
        fn advance(&self, _parts: u64, _of: u64, _what: &str) {
            if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.1.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Measures at most `most` of ten cells; returns the results, and the number of measurements.
    fn measure(path: &Path, most: usize) -> (Vec<Option<u64>>, usize) {
        let (count, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let cells: Vec<Square<'_>> = (0..10).map(|number| Square(number, &count)).collect();
        let mut survey = Survey::open(path, &"squares", &cells).unwrap();
        survey.measure(2, &stop, &StopAfter(AtomicUsize::new(most), &stop)).unwrap();
        let outcomes = survey.outcomes().to_vec();
        assert_eq!(outcomes.iter().flatten().count(), survey.finished());
        drop(survey);
        (outcomes, count.into_inner())
    }

    fn squares() -> Vec<Option<u64>> {
        (0..10).map(|number| Some(number * number)).collect()
    }

    #[test]
    fn interrupted_survey_continues_where_it_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("survey.jsonl");
        let (first, measured) = measure(&path, 3);
        assert!((3..10).contains(&measured), "{measured}");
        assert_eq!(first.iter().flatten().count(), measured);
        let (all, rest) = measure(&path, 100);
        assert_eq!((all, rest), (squares(), 10 - measured));
        assert_eq!(measure(&path, 100), (squares(), 0));
    }

    /// A crash at any byte of the file loses at most the line that was being written.
    #[test]
    fn incomplete_last_line_is_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("survey.jsonl");
        measure(&path, 100);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let complete = whole[..length].iter().filter(|byte| **byte == b'\n').count();
            let (all, measured) = measure(&path, 100);
            assert_eq!((all, measured), (squares(), 10 - complete.saturating_sub(1)), "{length} bytes");
        }
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("survey.jsonl");
        measure(&path, 100);
        let count = AtomicUsize::new(0);
        let cells = [Square(0, &count)];
        let message = |description: &str| match Survey::open(&path, &description, &cells) {
            Ok(_) => "opened".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(
            message("cubes").contains("found the results of another survey, \"squares\", allowed: \"cubes\"")
        );
        // The file has ten cells, and this survey has one.
        let unknown_cell = message("squares");
        assert!(unknown_cell.contains("is not a result of this survey: found cell"), "{unknown_cell}");
        assert!(unknown_cell.contains(" of 1; delete the line"), "{unknown_cell}");
        let all: Vec<Square<'_>> = (0..10).map(|number| Square(number, &count)).collect();
        let open = Survey::open(&path, &"squares", &all).unwrap();
        assert!(message("squares").contains("another survey writes this file"));
        assert_eq!(open.seconds_left(2), 0.0);
        drop(open);
        std::fs::write(&path, "\"squares\"\n{\"cell\":0}\n").unwrap();
        assert!(message("squares").contains("line 2 is not a result"), "{}", message("squares"));
    }

    #[test]
    fn announcement_states_size_and_time() {
        let folder = tempfile::tempdir().unwrap();
        let count = AtomicUsize::new(0);
        let cells: Vec<Square<'_>> = (0..10).map(|number| Square(number, &count)).collect();
        let survey = Survey::open(&folder.path().join("survey.jsonl"), &"squares", &cells).unwrap();
        let line = survey.announcement("squares", 2);
        assert!(
            line.starts_with("squares: 10 cells, 0 of them finished; the others take about 5 min on 2 cores"),
            "{line}"
        );
    }
}
