//! Common part of the commands `speedup`, `byzantine`, `dropout` and `power`, which measure over several
//! seeds: options, execution, and output of the table and `figures.json`.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::result_directory::{check_out, make_out};
use super::{CommandError, Format, interrupt, output, progress, use_threads};
use fedspan_sim_core::report::files::{json, write_json, write_text};

/// Options of all commands that measure over several seeds.
#[derive(Debug, Args)]
pub struct MeasurementOptions {
    /// Number of threads, which does not affect the results [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Write table.md and figures.json into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Format of standard output: a Markdown table, or the text of figures.json
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// Content of `figures.json`.
#[derive(Serialize)]
pub struct MeasurementFile<'a, O, R> {
    /// Version of this program.
    pub version: &'static str,
    /// Name of the measured scenario.
    pub scenario: &'static str,
    /// First seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u32,
    /// Fields that are specific to the command.
    #[serde(flatten)]
    pub extra: O,
    /// Measured rows.
    pub rows: &'a [R],
    /// Duration, which differs between otherwise equal measurements.
    pub timing: Timing,
}

/// Duration of the measurement.
#[derive(Serialize)]
pub struct Timing {
    wall_s: f64,
}

impl MeasurementOptions {
    /// Path of a file in the output directory, or in the current directory without `--out`.
    pub fn out_file(&self, name: &str) -> PathBuf {
        self.out.as_deref().unwrap_or(std::path::Path::new("")).join(name)
    }

    /// Creates the output directory and runs `measure`, which receives the number of threads, a flag that
    /// Ctrl-C sets, and the progress display.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if the output directory cannot be used; [`CommandError::Failed`] if the
    /// threads cannot be started.
    pub fn measure<T>(
        &self,
        name: &str,
        measure: impl FnOnce(usize, &AtomicBool, &progress::PartsProgress) -> T,
    ) -> Result<(T, Timing), CommandError> {
        if let Some(out) = &self.out {
            check_out(out)?;
            make_out(out)?;
        }
        use_threads(self.threads)?;
        let stop = interrupt::watch();
        let progress = progress::PartsProgress::new(name, false);
        let began = Instant::now();
        let measured = measure(rayon::current_num_threads(), &stop, &progress);
        progress.finish();
        Ok((measured, Timing { wall_s: began.elapsed().as_secs_f64() }))
    }

    /// Writes `table.md` and `figures.json` if `--out` is given, and prints the result in the requested
    /// format.
    pub fn show(
        &self,
        table: &str,
        figures: &MeasurementFile<'_, impl Serialize, impl Serialize>,
    ) -> Result<(), CommandError> {
        if let Some(out) = &self.out {
            write_text(&out.join("table.md"), table)?;
            write_json(&out.join("figures.json"), figures)?;
        }
        match self.format {
            Format::Human | Format::Markdown => output::print(table)?,
            Format::Json => {
                output::print(&json(figures).map_err(|error| CommandError::Failed(error.to_string()))?)?;
            }
        }
        output::log_line(&format!("{} seeds, {:.1} s", figures.seeds, figures.timing.wall_s));
        Ok(())
    }
}

/// Returns the elements of `known` with the given names, in the order of `names`.
///
/// # Errors
/// [`CommandError::Usage`] if a name is unknown. The message lists the known names.
pub fn select_by_name<T: Clone>(
    option: &str,
    names: &[String],
    known: &[T],
    name: impl Fn(&T) -> &str,
) -> Result<Vec<T>, CommandError> {
    let find_known = |word: &String| {
        let selected = known.iter().find(|item| name(item) == word).cloned();
        let allowed: Vec<String> = known.iter().map(|item| format!("{:?}", name(item))).collect();
        selected.ok_or_else(|| {
            CommandError::Usage(format!("{option}: found {word:?}, allowed: {}", allowed.join(", ")))
        })
    };
    names.iter().map(find_known).collect()
}

/// Parses a finite number that satisfies `holds`.
///
/// # Errors
/// Message for clap with the allowed numbers.
pub fn parse_number(text: &str, holds: impl Fn(f64) -> bool, allowed: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && holds(*value));
    value.ok_or_else(|| format!("allowed: {allowed}"))
}
