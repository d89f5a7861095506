//! Execution of a survey: cells that are measured one by one and collected in a file, so that an interrupted
//! survey continues.

use serde::Serialize;

use super::CommandError;
use super::measurement::{MeasurementFile, MeasurementOptions};
use super::output::log_line;
use fedspan_experiments::survey::{Cell, Survey, SurveyError};

/// Survey of a command.
pub struct SurveyRun {
    /// Name of the command.
    pub name: &'static str,
    /// Name of the file in `--out` in which the results are collected.
    pub file: &'static str,
    /// Name of the measured scenario.
    pub scenario: &'static str,
    /// First seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u32,
}

impl SurveyRun {
    /// Measures the cells that are not finished, and shows the table of all finished cells. `settings` is
    /// everything on which the results depend.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if the file belongs to another survey; [`CommandError::Failed`] if a cell fails or
    /// the survey was interrupted.
    pub fn run<C: Cell>(
        &self,
        options: &MeasurementOptions,
        settings: &impl Serialize,
        cells: &[C],
        table: impl FnOnce(&[Option<C::Outcome>]) -> String,
    ) -> Result<(), CommandError> {
        let (result, timing) = options.measure(self.name, |threads, stop, progress| {
            let mut survey = Survey::open(&options.out_file(self.file), settings, cells)?;
            log_line(&survey.announcement(self.name, threads));
            survey.measure(threads, stop, progress)?;
            Ok(survey)
        })?;
        let survey = result.map_err(|error: SurveyError| match error {
            SurveyError::Other { .. } | SurveyError::Line { .. } | SurveyError::Locked(_) => {
                CommandError::Usage(error.to_string())
            }
            _ => CommandError::Failed(error.to_string()),
        })?;
        let figures = MeasurementFile {
            version: env!("CARGO_PKG_VERSION"),
            scenario: self.scenario,
            seed: self.seed,
            seeds: self.seeds,
            extra: settings,
            rows: survey.outcomes(),
            timing,
        };
        options.show(&table(survey.outcomes()), &figures)?;
        match (survey.finished(), cells.len()) {
            (finished, all) if finished < all => Err(CommandError::Failed(format!(
                "interrupted: {finished} of {all} cells are finished; the same command continues"
            ))),
            _ => Ok(()),
        }
    }
}
