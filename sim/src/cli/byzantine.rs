//! Command `byzantine`: measures the effect of attacks on a campaign under several aggregation rules.

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use super::CommandError;
use super::measurement::{MeasurementFile, MeasurementOptions, parse_number, select_by_name};
use super::survey::SurveyRun;
use fedspan_experiments::byzantine::{self, ByzantineError, GRIDS, Settings, Variant, design};

/// Options of command `byzantine`.
#[derive(Debug, Args)]
pub struct ByzantineOptions {
    /// Kind of upload, which determines the available attacks, rules and fractions
    #[arg(long, value_name = "NAME", default_value = GRIDS[0].name, value_parser = PossibleValuesParser::new(GRIDS.map(|grid| grid.name)))]
    grid: String,
    /// Attacks, by their names in the table [default: all attacks of the grid]
    #[arg(long, value_name = "NAME,...", value_parser = names)]
    attacks: Option<Names>,
    /// Aggregation rules, by their names in the table [default: all rules of the grid]
    #[arg(long, value_name = "NAME,...", value_parser = names)]
    rules: Option<Names>,
    /// Fractions of the fleet that attack [default: those of the grid]
    #[arg(long, value_name = "PART,...", value_delimiter = ',', value_parser = fraction)]
    fractions: Vec<f64>,
    /// Change a key of the scenario for every run
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// Number of consecutive seeds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: u32,
    /// Measure this many fleets drawn at random, each under one attack, instead of one fleet under all; the first rule is
    /// the reference. The results are collected in survey.jsonl of --out, and the same command continues an
    /// interrupted survey
    #[arg(long, value_name = "CELLS", requires = "out", conflicts_with = "grid", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    survey: Option<u32>,
    #[command(flatten)]
    measurement: MeasurementOptions,
}

/// Comma-separated list of names. A comma that is followed by a space is part of a name.
#[derive(Clone, Debug)]
struct Names(Vec<String>);

/// Parses a list of names.
fn names(text: &str) -> Result<Names, std::convert::Infallible> {
    let mut names: Vec<String> = Vec::new();
    for part in text.split(',') {
        match names.last_mut().filter(|_| part.starts_with(' ')) {
            Some(last) => last.push_str(&format!(",{part}")),
            None => names.push(part.to_owned()),
        }
    }
    Ok(Names(names))
}

/// Parses an attacking fraction of the fleet.
fn fraction(text: &str) -> Result<f64, String> {
    parse_number(text, |value| (0.0..=0.49).contains(&value), "a number from 0 to 0.49")
}

/// Fields of `figures.json` that are specific to this command.
#[derive(Serialize)]
struct ExtraFields<'a> {
    grid: &'static str,
    changes: &'a [String],
}

/// Runs command `byzantine`.
pub fn command(options: &ByzantineOptions) -> Result<(), CommandError> {
    let settings = settings(options)?;
    if let Some(cells) = options.survey {
        return survey(options, settings, cells as usize);
    }
    let extra = ExtraFields { grid: settings.grid.name, changes: &options.changes };
    let (rows, timing) = options.measurement.measure("byzantine", |threads, stop, progress| {
        byzantine::measure(&Settings { threads, ..settings }, stop, progress)
    })?;
    let rows = rows.map_err(|error| match error {
        ByzantineError::Scenario(_) => CommandError::Usage(error.to_string()),
        ByzantineError::Run(_) => CommandError::Failed(error.to_string()),
    })?;
    let Some(rows) = rows else {
        return Err(CommandError::Failed("interrupted; nothing was finished".to_owned()));
    };
    let (seed, seeds, scenario) = (options.seed, options.seeds, byzantine::SCENARIO);
    let figures = MeasurementFile {
        version: env!("CARGO_PKG_VERSION"),
        scenario,
        seed,
        seeds,
        extra,
        rows: &rows,
        timing,
    };
    options.measurement.show(&byzantine::markdown(&rows), &figures)
}

/// Name of the file in `--out` in which the results of a survey are collected.
const SURVEY_FILE: &str = "survey.jsonl";
/// Rules of a survey by default: the reference, and the rule for fleets that may have attackers.
const SURVEY_RULES: [&str; 2] = ["mean", "spectral filter"];

/// Runs a survey of fleets drawn at random.
fn survey(options: &ByzantineOptions, settings: Settings, cells: usize) -> Result<(), CommandError> {
    let named = |given: bool, variants: &[Variant], default: &[&'static str]| match given {
        true => variants.iter().map(|variant| variant.name).collect(),
        false => default.to_vec(),
    };
    let settings = design::Settings {
        cells,
        attacks: named(options.attacks.is_some(), &settings.attacks, &design::ATTACKS),
        rules: named(options.rules.is_some(), &settings.rules, &SURVEY_RULES),
        fractions: match options.fractions.as_slice() {
            [] => design::FRACTIONS.to_vec(),
            given => given.to_vec(),
        },
        changes: settings.changes,
        seed: settings.seed,
        seeds: settings.seeds,
    };
    if let Some(change) = design::drawn_key(&settings.changes) {
        let message = format!(
            "--set {change}: a survey draws this key itself; leave it out, or measure one fleet without --survey"
        );
        return Err(CommandError::Usage(message));
    }
    let cells = design::cells(&settings);
    for cell in &cells {
        cell.check().map_err(|problem| CommandError::Usage(problem.to_string()))?;
    }
    let survey = SurveyRun {
        name: "byzantine",
        file: SURVEY_FILE,
        scenario: byzantine::SCENARIO,
        seed: settings.seed,
        seeds: settings.seeds,
    };
    survey.run(&options.measurement, &settings, &cells, |outcomes| {
        byzantine::design_markdown(&settings.rules, &cells, outcomes)
    })
}

/// Settings of the measurement; the number of threads is set later.
fn settings(options: &ByzantineOptions) -> Result<Settings, CommandError> {
    let grid = GRIDS.into_iter().find(|grid| grid.name == options.grid).unwrap_or(GRIDS[0]);
    Ok(Settings {
        grid,
        attacks: select_or_all("--attacks", options.attacks.as_ref(), grid.attacks)?,
        rules: select_or_all("--rules", options.rules.as_ref(), grid.rules)?,
        fractions: if options.fractions.is_empty() {
            grid.fractions.to_vec()
        } else {
            options.fractions.clone()
        },
        changes: options.changes.clone(),
        seed: options.seed,
        seeds: options.seeds,
        threads: 1,
    })
}

/// Returns the attacks or rules with the requested names, or all of `known` without a request.
fn select_or_all(
    option: &str,
    names: Option<&Names>,
    known: &[Variant],
) -> Result<Vec<Variant>, CommandError> {
    match names {
        Some(Names(names)) => select_by_name(option, names, known, |variant| variant.name),
        None => Ok(known.to_vec()),
    }
}
