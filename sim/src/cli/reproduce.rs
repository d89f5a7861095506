//! Command `reproduce`: repeats a figure of a paper, and shows the paper's claim with what was found.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::measurement::select_by_name;
use super::result_directory::{check_out, free_out, make_out, refuse_results, remove_summaries};
use super::{CommandError, Format, interrupt, output, progress, use_threads};
use fedspan_experiments::reproduce::{
    ALL, Finding, Reproduced, Reproduction, ReproductionError, Request, Verdict,
};
use fedspan_sim_core::report::files::{json, write_json, write_text};
use fedspan_sim_core::report::html::Page;
use fedspan_sim_core::report::results::results;
use fedspan_sim_core::report::summary::Summary;
use fedspan_sim_core::report::table::Table;

/// Arguments of command `reproduce`.
#[derive(Debug, Args)]
pub struct ReproduceOptions {
    /// Name of a figure, from --list
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List the figures, with their durations on two cores
    #[arg(long, conflicts_with = "name")]
    list: bool,
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// Number of consecutive seeds [default: depends on the figure]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: Option<u32>,
    /// Number of threads, which does not affect the results [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Directory for the report [default: fedspan- and the name, with a number if it exists]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace the results of an earlier command in --out
    #[arg(long, requires = "out")]
    overwrite: bool,
    /// Show no progress; errors are still shown
    #[arg(long, short)]
    quiet: bool,
    /// Format of standard output: tables as text or as Markdown, or the text of summary.json
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// Content of `summary.json`.
#[derive(Serialize)]
struct ReproductionSummary<'a> {
    version: &'static str,
    name: &'static str,
    paper: &'static str,
    claim: &'static str,
    stand_ins: &'static str,
    seed: u64,
    seeds: u32,
    findings: &'a [Finding],
    verdict: Verdict,
    /// Tables of the figures behind the findings, as the report shows them.
    tables: &'a [Table],
    /// Runs of scenarios behind the findings, one for each seed.
    #[serde(skip_serializing_if = "<[Summary]>::is_empty")]
    runs: &'a [Summary],
}

/// Runs command `reproduce`.
pub fn command(options: &ReproduceOptions) -> Result<(), CommandError> {
    let Some(name) = &options.name else { return output::print(&list()) };
    let selected = select_by_name("NAME", std::slice::from_ref(name), &ALL, |figure| figure.name)?;
    let Some(figure) = selected.first().copied() else { return Ok(()) };
    let out = options.out.clone().unwrap_or_else(|| free_out(&format!("fedspan-{}", figure.name)));
    check_out(&out)?;
    refuse_results(&out, options.overwrite)?;
    use_threads(options.threads)?;
    let request = Request {
        seed: options.seed,
        seeds: options.seeds.unwrap_or(figure.seeds),
        threads: rayon::current_num_threads(),
    };
    if !options.quiet {
        output::log_line(&format!("{}: about {} on two cores", figure.name, figure.duration));
    }
    let stop = interrupt::watch();
    let progress = progress::PartsProgress::new(figure.name, options.quiet);
    let measured = (figure.measure)(&request, &stop, &progress);
    progress.finish();
    let reproduced = measured.map_err(|error: ReproductionError| CommandError::Failed(error.to_string()))?;
    let Some(reproduced) = reproduced else {
        return Err(CommandError::Failed("interrupted; nothing was written".to_owned()));
    };
    make_out(&out)?;
    remove_summaries(&out)?;
    let verdict = Verdict::of(&reproduced.findings);
    let summary = ReproductionSummary {
        version: env!("CARGO_PKG_VERSION"),
        name: figure.name,
        paper: figure.paper,
        claim: figure.claim,
        stand_ins: figure.stand_ins,
        seed: request.seed,
        seeds: request.seeds,
        findings: &reproduced.findings,
        verdict,
        tables: &reproduced.tables,
        runs: &reproduced.summaries,
    };
    write_json(&out.join("summary.json"), &summary)?;
    if !reproduced.summaries.is_empty() {
        let runs: Vec<&Summary> = reproduced.summaries.iter().collect();
        write_text(&out.join("results.csv"), &results(&runs))?;
    }
    let findings = findings_table(&reproduced.findings, verdict);
    let report = out.join("report.html");
    let tables: Vec<Table> =
        std::iter::once(findings.clone()).chain(reproduced.tables.iter().cloned()).collect();
    write_text(&report, &page(figure, &reproduced, tables.clone()).html())?;
    match options.format {
        Format::Json => {
            output::print(&json(&summary).map_err(|error| CommandError::Failed(error.to_string()))?)?;
        }
        format => {
            let claim =
                format!("{}\n\nClaim: {}\n\nHere: {}\n\n", figure.paper, figure.claim, figure.stand_ins);
            let texts: Vec<String> = tables.iter().map(|table| format.shown(table)).collect();
            output::print(&format!("{claim}{}", texts.join("\n")))?;
        }
    }
    if !options.quiet {
        output::log_line(&format!("report: {}", report.display()));
    }
    Ok(())
}

/// List of the figures, one per line.
fn list() -> String {
    let width = ALL.iter().map(|figure| figure.name.len()).max().unwrap_or(0);
    let line = |figure: &&Reproduction| {
        let Reproduction { name, title, duration, .. } = figure;
        format!("{name:<width$}  {title} ({duration})\n")
    };
    ALL.iter().map(line).collect()
}

/// Table of the parts of a claim, with the verdict below.
fn findings_table(findings: &[Finding], verdict: Verdict) -> Table {
    let row = |Finding { claim, found, holds }: &Finding| {
        vec![claim.clone(), found.clone(), if *holds { "yes" } else { "no" }.to_owned()]
    };
    Table {
        title: format!("Verdict: {}", verdict.text()),
        columns: ["claim", "found", "holds"].map(str::to_owned).to_vec(),
        rows: findings.iter().map(row).collect(),
        notes: Vec::new(),
    }
}

/// Report page.
fn page(figure: &Reproduction, reproduced: &Reproduced, tables: Vec<Table>) -> Page {
    let Reproduced { panels, axes, scenarios, .. } = reproduced.clone();
    Page {
        title: figure.title.to_owned(),
        intro: format!("{}.\nClaim: {}\nHere: {}", figure.paper, figure.claim, figure.stand_ins),
        tables,
        axes,
        curves: panels,
        texts: scenarios,
        ..Page::default()
    }
}
