//! Demo, which the command runs if it has no arguments: compares FedRep with its baselines on the bundled
//! smartwatch recordings, over all folds and several seeds, prints two tables, and writes a report.

pub mod choice;
pub mod choose;
mod measure;
mod memory;
mod part;
mod scaled;
mod tables;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

pub use part::{PARTS, Part};

use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::report::files::{WriteError, make_directory, write_json, write_text};
use fedspan_sim_core::report::html::Page;
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::run::RunError;
use fedspan_sim_core::scenario::Scenario;

/// Error that ends the demo.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A built-in scenario is broken.
    #[error(transparent)]
    Scenario(#[from] fedspan_engine::config::Problem),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The recorded settings are unusable, or choosing new ones failed.
    #[error("the demo's settings: {0}")]
    Choice(String),
    /// A file of the report could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Output of the demo.
#[derive(Clone, Debug, PartialEq)]
pub struct DemoReport {
    /// Tables, memory sizes and the path of the report.
    pub text: String,
    /// The same tables in Markdown.
    pub markdown: String,
    /// True if the user interrupted the demo; the tables then contain the finished runs only.
    pub interrupted: bool,
}

impl DemoReport {
    /// Message that the demo was interrupted, or `None` if the demo is complete.
    #[must_use]
    pub fn interruption(&self) -> Option<&'static str> {
        match (self.interrupted, self.text.is_empty()) {
            (false, _) => None,
            (true, false) => Some("interrupted; the tables hold what was finished"),
            (true, true) => Some("interrupted; nothing was finished"),
        }
    }
}

/// Runs the demo and writes `summary.json` and `report.html` into the directory `out`. Setting `stop`
/// interrupts the demo.
///
/// # Errors
/// [`DemoError::Run`] if a run fails, [`DemoError::Write`] if the report cannot be written. The other
/// variants occur only if a bundled file is broken.
pub fn run(out: &Path, stop: &AtomicBool, progress: &dyn Progress) -> Result<DemoReport, DemoError> {
    let began = Instant::now();
    let measured = measure::measure_all(stop, progress)?;
    let interrupted = measured.iter().any(|part| part.interrupted);
    let tables: Vec<_> = measured.iter().filter(|part| !part.cases.is_empty()).map(tables::table).collect();
    let mut text = String::new();
    let markdown: Vec<String> = tables.iter().map(Table::markdown).collect();
    let markdown = markdown.join("\n");
    for table in &tables {
        text.push_str(&table.text());
        text.push('\n');
    }
    if tables.is_empty() {
        return Ok(DemoReport { text, markdown, interrupted });
    }
    let memory = memory::note();
    let notes = [tables::method_note(), memory];
    for note in &notes {
        text.push_str(&fedspan_sim_core::report::table::wrap(note, 0, 110));
    }
    make_directory(out)?;
    let wall_s = began.elapsed().as_secs_f64();
    write_json(&out.join("summary.json"), &tables::summary(&measured, wall_s))?;
    let page = Page {
        title: "A fleet of smartwatches learns one representation".to_owned(),
        intro: "People who come after training label one window per exercise; what the others have learned \
                together does the rest. Measured in this run, on recordings of ten people."
            .to_owned(),
        tables,
        curves: measured.iter().map(tables::curves).collect(),
        notes: notes.to_vec(),
        texts: PARTS
            .iter()
            .map(|part| {
                let text = Scenario::built_in(part.name).unwrap_or_default();
                (format!("Scenario: {}", part.name), text.to_owned())
            })
            .collect(),
        ..Page::default()
    };
    let report = out.join("report.html");
    write_text(&report, &page.html())?;
    text.push_str(&format!("\n{wall_s:.1} s. Report: {}\n", report.display()));
    Ok(DemoReport { text, markdown, interrupted })
}
