//! Command `run`: runs a scenario with one or several seeds.

use fedspan_engine::config::Init;

use super::execute::{check, end, execute, show_verdicts};
use super::result_directory::refuse_results;
use super::run_tables::{report_page, results_table};
use super::runs::Entry;
use super::{CommandError, Format, RunOptions, expect, load, output};
use fedspan_sim_core::report::files::{json, write_text};
use fedspan_sim_core::report::summary::short_name;

/// Runs command `run`.
pub fn command(name: &str, options: &RunOptions) -> Result<(), CommandError> {
    let scenario = load::scenario(name, &options.changes)?;
    if scenario.model.init == Init::Moments && scenario.is_federated() {
        output::log_line(
            "note: init = \"moments\" sends matrices that can equal a client's records: for simulation only",
        );
    }
    if let Some(out) = options.out.as_ref().filter(|_| !options.resumes) {
        refuse_results(out, options.overwrite)?;
    }
    let settings = load::settings(&options.changes);
    let entry = Entry { label: short_name(name), scenario, settings, directory: options.out.clone() };
    let executed = {
        let root = entry.directory.as_deref();
        execute(&check(std::slice::from_ref(&entry), root, options)?, root, options)?
    };
    let Some(runs) = executed.runs.first() else { return Ok(()) };
    if let Some(directory) = &entry.directory
        && runs.summaries.len() > 1
    {
        write_text(&directory.join("report.html"), &report_page(&entry, runs).html())?;
    }
    match options.format {
        Format::Json => {
            output::print(&json(&runs.written()).map_err(|error| CommandError::Failed(error.to_string()))?)?;
        }
        format => output::print(&format.shown(&results_table(&entry, runs)))?,
    }
    let prior = runs.summaries.first().and_then(|summary| summary.prior.as_ref());
    if let Some(prior) = prior.filter(|_| options.format != Format::Json) {
        output::log_line(&format!("prior of heads: {prior}"));
    }
    // An interrupted run has no report.
    let report = entry.directory.as_ref().map(|directory| directory.join("report.html"));
    if options.format != Format::Json
        && let Some(report) = report.filter(|report| report.exists())
    {
        output::log_line(&format!("results: {}", report.display()));
    }
    let verdicts = expect::verify(std::slice::from_ref(&entry), &executed, options.junit.as_deref())?;
    let missed = show_verdicts(verdicts.as_ref(), options.format)?;
    end(&executed, entry.directory.as_deref())?;
    missed
}
