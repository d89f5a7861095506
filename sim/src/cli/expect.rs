//! Verification of the bounds in the section `[expect]` of scenarios, for pipelines that must fail if a result gets worse.

use std::fmt::Write as _;
use std::path::Path;

use fedspan_client::memory::Shape;
use fedspan_protocol::message::Numeric;
use fedspan_sim_core::report::files::write_text;
use fedspan_sim_core::report::summary::{Spread, Summary};
use fedspan_sim_core::report::table::{Table, figure};
use fedspan_sim_core::scenario::{Expectation, Scenario};

use super::CommandError;
use super::runs::{Entry, Executed, Runs};

/// Result of one expectation.
struct Verdict<'a> {
    label: &'a str,
    expectation: Expectation,
    /// Mean over the seeds that finished; `None` if a run has no such figure, or none finished.
    found: Option<f64>,
    /// Number of runs in the mean.
    runs: usize,
    /// Reason why an entry has no results.
    failure: Option<&'a str>,
}

/// Figures that are counts.
const COUNTS: [&str; 6] = ["rounds", "updates", "rejected", "bytes_up", "bytes_down", "ram"];

/// Value of a figure as text.
fn shown(name: &str, value: f64) -> String {
    if COUNTS.contains(&name) { value.to_string() } else { figure(name, value) }
}

impl Verdict<'_> {
    /// Difference to the bound, or the reason why there is no value; `None` if the expectation is met.
    fn problem(&self) -> Option<String> {
        match self.found {
            Some(found) => {
                let missed = self.expectation.missed_by(found)?;
                let name = self.expectation.figure;
                Some(format!("found {}, missed by {}", shown(name, found), shown(name, missed)))
            }
            None => Some(self.failure.map_or_else(|| "the run has no such figure".to_owned(), str::to_owned)),
        }
    }
}

/// Verifies the expectations of all entries: returns the table of all of them, and the number that is missed. Writes a
/// JUnit report to `junit` if given.
///
/// # Errors
/// [`CommandError::Failed`] if the report cannot be written.
pub fn verify(
    entries: &[Entry],
    executed: &Executed,
    junit: Option<&Path>,
) -> Result<Option<(Table, usize)>, CommandError> {
    let mut runs = executed.runs.iter();
    let all = entries.iter().flat_map(|entry| {
        let runs = runs.next();
        // Only the last entry that was started can be incomplete.
        let is_interrupted =
            executed.interrupted.is_some() && runs.is_none_or(|runs| is_last(executed, runs));
        verdicts(entry, runs, is_interrupted)
    });
    let all: Vec<Verdict<'_>> = all.collect();
    if let Some(path) = junit {
        write_text(path, &junit_report(&all))?;
    }
    if all.is_empty() {
        return Ok(None);
    }
    let missed = all.iter().filter(|verdict| verdict.problem().is_some()).count();
    let row = |verdict: &Verdict<'_>| {
        let name = verdict.expectation.figure;
        vec![
            verdict.label.to_owned(),
            verdict.expectation.to_string(),
            verdict.found.map_or("-".to_owned(), |found| shown(name, found)),
            verdict.runs.to_string(),
            verdict.problem().map_or("met".to_owned(), |problem| format!("MISSED: {problem}")),
        ]
    };
    let table = Table {
        title: format!("expectations: {} of {} met", all.len() - missed, all.len()),
        columns: ["scenario", "expected", "mean", "runs", "verdict"].map(str::to_owned).to_vec(),
        rows: all.iter().map(row).collect(),
        notes: Vec::new(),
    };
    Ok(Some((table, missed)))
}

/// True if these are the runs of the last entry that was started.
fn is_last(executed: &Executed, runs: &Runs) -> bool {
    executed.runs.last().is_some_and(|last| std::ptr::eq(last, runs))
}

/// Verdicts on the expectations of one entry; `runs` is `None` if it was not started.
fn verdicts<'a>(entry: &'a Entry, runs: Option<&'a Runs>, is_interrupted: bool) -> Vec<Verdict<'a>> {
    let summaries = runs.map_or(&[][..], |runs| runs.summaries.as_slice());
    let finished: Vec<&Summary> =
        summaries.iter().filter(|run| !run.interrupted && run.diverged.is_none()).collect();
    let is_complete =
        !is_interrupted && finished.len() == summaries.len() && runs.is_some_and(|runs| runs.failed == 0);
    let failure = runs.and_then(|runs| runs.failure.as_deref());
    let failure = failure.or_else(|| (!is_complete).then_some("a run diverged or was interrupted"));
    let verdict = |expectation: &Expectation| {
        let values: Option<Vec<f64>> =
            finished.iter().map(|run| value(expectation.figure, run, &entry.scenario, runs?)).collect();
        let found =
            values.filter(|_| is_complete).and_then(|values| Spread::new(&values)).map(|spread| spread.mean);
        Verdict { label: &entry.label, expectation: *expectation, found, runs: finished.len(), failure }
    };
    entry.scenario.expect.iter().map(verdict).collect()
}

/// Value of a figure in a run.
#[allow(clippy::cast_precision_loss, reason = "counts, for a comparison")]
fn value(name: &str, run: &Summary, scenario: &Scenario, runs: &Runs) -> Option<f64> {
    match name {
        "rounds" => Some(f64::from(run.rounds)),
        "simulated_time" => Some(run.time.simulated),
        "updates" => Some(run.updates as f64),
        "rejected" => Some(run.rejected as f64),
        "bytes_up" => Some(run.bytes.up as f64),
        "bytes_down" => Some(run.bytes.down as f64),
        "bytes_per_update" => run.bytes.per_update,
        "ram" => {
            let linear = scenario.model.network.is_none() && scenario.algorithm.numeric == Some(Numeric::F32);
            let (features, outputs) = runs.shape.filter(|_| linear && scenario.is_federated())?;
            Some(Shape { features, width: scenario.model.k, outputs }.arithmetic_minimum() as f64)
        }
        name => run.figures.get(name),
    }
}

/// Report in the format of JUnit, which pipelines show: a test case for each expectation. Four elements need no library.
fn junit_report(verdicts: &[Verdict<'_>]) -> String {
    let failures = verdicts.iter().filter(|verdict| verdict.problem().is_some()).count();
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        text,
        "<testsuites><testsuite name=\"fedspan-sim\" tests=\"{}\" failures=\"{failures}\">",
        verdicts.len()
    );
    for verdict in verdicts {
        let (label, name) = (escaped(verdict.label), escaped(&verdict.expectation.to_string()));
        let _ = match verdict.problem() {
            None => writeln!(text, "  <testcase classname=\"{label}\" name=\"{name}\"/>"),
            Some(problem) => writeln!(
                text,
                "  <testcase classname=\"{label}\" name=\"{name}\"><failure message=\"{}\"/></testcase>",
                escaped(&problem)
            ),
        };
    }
    text + "</testsuite></testsuites>\n"
}

/// Text for an attribute. XML has no form for most control characters, so they become spaces.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_escaped() {
        assert_eq!(escaped("a<b> \"c\" & d\n"), "a&lt;b&gt; &quot;c&quot; &amp; d ");
    }
}
