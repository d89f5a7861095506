//! Tables, notes and summary of the demo's results. Notes that rank methods are computed from the results.

use serde::Serialize;

use super::measure::{Case, FOLDS, Measured, Method, PartResult, SEEDS, mean};
use fedspan_sim_core::report::plot::Series;
use fedspan_sim_core::report::table::{Table, bytes};

/// Note on how the results were measured.
pub fn method_note() -> String {
    "trained, new: accuracy of each wearer's model on own test windows, of those who trained and of \
         those who came later with one labelled window per exercise (the same windows for all methods). \
         Features are the 57 that the client computes on a device; the logarithmic ones, of the same windows, \
         suit people better who learn alone. \
         Bytes per wearer, over all rounds; of pooled models: the windows' features up, the model down. \
         Windows of 2 s overlap by half. The first half of every series trains, the second tests; the \
         three windows between them are dropped, which leaves 2 s that are in neither. Each fold holds out \
         two of ten people with both wrists; they label one window per exercise from their training half. \
         k, step size, weights and every ridge, the baselines' too, are chosen anew in each fold, without \
         the people and windows that test it: `fedspan-sim choose` does it again. FedAvg's step size is \
         the best of several for the training wearers' loss; it runs with one seed."
        .to_owned()
}

impl Method {
    /// Name in the tables.
    fn name(self) -> &'static str {
        match self {
            Self::FedRep => "FedRep",
            Self::FedRepLogarithmic => "FedRep, logarithmic features",
            Self::FedAvg => "FedAvg, one model, no labels",
            Self::Local => "local-only, same features",
            Self::LocalLogarithmic => "local-only, logarithmic features",
            Self::Pooled => "pooled",
            Self::PooledWeighted => "pooled, new labels weigh more",
        }
    }

    /// Data that leave a device with this method, for the tables.
    fn data_sent(self) -> &'static str {
        match self {
            Self::FedRep | Self::FedRepLogarithmic => "gradients",
            Self::FedAvg => "the model",
            Self::Local | Self::LocalLogarithmic => "nothing",
            Self::Pooled | Self::PooledWeighted => "all windows",
        }
    }

    /// Key in `summary.json`.
    fn key(self) -> &'static str {
        match self {
            Self::FedRep => "fedrep",
            Self::FedAvg => "fedavg",
            Self::Local => "local_only",
            Self::LocalLogarithmic => "local_only_logarithmic",
            Self::FedRepLogarithmic => "fedrep_logarithmic",
            Self::Pooled => "pooled",
            Self::PooledWeighted => "pooled_weighted",
        }
    }
}

/// Mean accuracy with its spread.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Accuracy {
    mean: f64,
    /// Standard deviation of the folds' means.
    sd_folds: f64,
    /// Smallest and largest fold mean.
    range_folds: [f64; 2],
    /// Standard deviation of the seeds' means, if there are several seeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    sd_seeds: Option<f64>,
    #[serde(skip)]
    folds: Vec<f64>,
}

impl Accuracy {
    /// Accuracy of a method over all cases, or `None` if no case has the value.
    fn new(cases: &[Case], method: Method, value: fn(&Measured) -> Option<f64>) -> Option<Self> {
        let value_of_case = |case: &Case| case.measured.iter().find(|m| m.method == method).and_then(value);
        let group = |group: fn(&Case) -> usize, index: usize| {
            mean(
                &cases
                    .iter()
                    .filter(|case| group(case) == index)
                    .filter_map(value_of_case)
                    .collect::<Vec<_>>(),
            )
        };
        let folds: Vec<f64> = (0..FOLDS).filter_map(|fold| group(|case| case.fold, fold)).collect();
        let seeds: Vec<f64> = (0..SEEDS).filter_map(|seed| group(|case| case.seed, seed)).collect();
        let smallest = folds.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = folds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self {
            mean: mean(&folds)?,
            sd_folds: deviation(&folds),
            range_folds: [smallest, largest],
            sd_seeds: (seeds.len() > 1).then(|| deviation(&seeds)),
            folds,
        })
    }
}

/// Standard deviation with n - 1 degrees of freedom; 0 for fewer than two values.
#[allow(clippy::cast_precision_loss, reason = "a count")]
fn deviation(values: &[f64]) -> f64 {
    let Some(mean) = mean(values) else { return 0.0 };
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    (squares / (values.len().max(2) - 1) as f64).sqrt()
}

/// Results of one method, as one row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    #[serde(skip)]
    method: Method,
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy: Option<Accuracy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy_new_clients: Option<Accuracy>,
    /// Bytes that a training wearer sends and receives, as a mean over wearers.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_wearer: Option<[f64; 2]>,
    /// Bytes that a new wearer sends and receives, as a mean over new wearers.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_new_wearer: Option<[f64; 2]>,
}

/// Methods in the order of the tables.
const METHODS: [Method; 7] = [
    Method::FedRep,
    Method::FedRepLogarithmic,
    Method::FedAvg,
    Method::Local,
    Method::LocalLogarithmic,
    Method::Pooled,
    Method::PooledWeighted,
];

/// Rows of all methods that were measured in a part.
fn rows(part: &PartResult) -> Vec<Row> {
    let was_measured = |method: &Method| {
        part.cases.first().is_some_and(|case| case.measured.iter().any(|m| m.method == *method))
    };
    let row = |method: Method| {
        let bytes = |value: fn(&Measured) -> Option<(f64, f64)>| {
            let method_bytes: Vec<(f64, f64)> = part
                .cases
                .iter()
                .flat_map(|case| &case.measured)
                .filter(|m| m.method == method)
                .filter_map(value)
                .collect();
            let up = mean(&method_bytes.iter().map(|b| b.0).collect::<Vec<_>>())?;
            let down = mean(&method_bytes.iter().map(|b| b.1).collect::<Vec<_>>())?;
            Some([up, down])
        };
        Row {
            method,
            accuracy: Accuracy::new(&part.cases, method, |m| m.trained),
            accuracy_new_clients: Accuracy::new(&part.cases, method, |m| m.new),
            bytes_per_wearer: bytes(|m| m.bytes),
            bytes_per_new_wearer: bytes(|m| m.new_bytes),
        }
    };
    METHODS.into_iter().filter(was_measured).map(row).collect()
}

/// Creates the table of one part.
pub fn table(part: &PartResult) -> Table {
    let rows = rows(part);
    let dash = || "-".to_owned();
    let up_and_down = |value: Option<[f64; 2]>| {
        value.map_or_else(dash, |[up, down]| {
            let (up, down) = (bytes(up), bytes(down));
            // If both numbers have the same unit, the unit is printed once.
            match (up.split_once(' '), down.split_once(' ')) {
                (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} / {down}"),
                _ => format!("{up} / {down}"),
            }
        })
    };
    let cells = |row: &Row| {
        let new = row.accuracy_new_clients.as_ref();
        vec![
            row.method.name().to_owned(),
            row.accuracy.as_ref().map_or_else(dash, |a| format!("{:.3}", a.mean)),
            new.map_or_else(dash, |a| format!("{:.3}", a.mean)),
            new.map_or_else(dash, |a| {
                format!("{:.3} [{:.3}, {:.3}]", a.sd_folds, a.range_folds[0], a.range_folds[1])
            }),
            new.and_then(|a| a.sd_seeds).map_or_else(dash, |sd| format!("{sd:.3}")),
            up_and_down(row.bytes_per_wearer),
            up_and_down(row.bytes_per_new_wearer),
            row.method.data_sent().to_owned(),
        ]
    };
    let description = if part.part.shared_labels {
        "Shared labels: everyone does the same seven exercises"
    } else {
        "Programmes: everyone has three to five exercises, numbered in an order of their own"
    };
    let interruption = if part.interrupted {
        format!("; interrupted, {} of {} runs", part.cases.len(), FOLDS * SEEDS)
    } else {
        String::new()
    };
    let columns = [
        "method",
        "trained",
        "new",
        "sd [range] of folds",
        "sd seeds",
        "bytes up / down",
        "new: up / down",
        "leaves the device",
    ];
    let mut notes = Vec::new();
    notes.extend(ranking_note("New wearers", &rows, |row| row.accuracy_new_clients.as_ref()));
    notes.extend(ranking_note("Wearers who trained", &rows, |row| row.accuracy.as_ref()));
    Table {
        title: format!("{description} ({FOLDS} folds x {SEEDS} seeds{interruption})"),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.iter().map(cells).collect(),
        notes,
    }
}

/// Note that names the most accurate method and lists the differences between FedRep and all other methods.
fn ranking_note(clients: &str, rows: &[Row], pick: fn(&Row) -> Option<&Accuracy>) -> Option<String> {
    let scored: Vec<(&Row, &Accuracy)> = rows.iter().filter_map(|row| pick(row).map(|a| (row, a))).collect();
    let (best, top) = scored.iter().max_by(|a, b| a.1.mean.total_cmp(&b.1.mean))?;
    let (_, fedrep) = scored.iter().find(|(row, _)| row.method == Method::FedRep)?;
    let comparison = |(row, other): &&(&Row, &Accuracy)| {
        let folds_ahead = fedrep.folds.iter().zip(&other.folds).filter(|(a, b)| a > b).count();
        let (difference, folds) = (fedrep.mean - other.mean, fedrep.folds.len());
        format!("{difference:+.3} against {} (ahead in {folds_ahead} of {folds} folds)", row.method.name())
    };
    let comparisons: Vec<String> =
        scored.iter().filter(|(row, _)| row.method != Method::FedRep).map(|pair| comparison(&pair)).collect();
    let opening =
        format!("{clients}: the highest accuracy is that of {} ({:.3}", best.method.name(), top.mean);
    let opening = match best.method.data_sent() {
        "all windows" => format!("{opening}; it needs everyone's windows and labels in one place)."),
        _ => format!("{opening})."),
    };
    Some(format!("{opening} FedRep: {}.", comparisons.join("; ")))
}

/// Heading and learning curves for the report: accuracy of the training wearers by round.
pub fn curves(part: &PartResult) -> (String, Vec<Series>) {
    let runs = part.cases.iter().map(|case| case.curve.clone()).collect();
    let heading =
        format!("FedRep, {}: wearers who train, every fold and seed, and their median", part.part.name);
    (heading, vec![Series { label: part.part.name.to_owned(), runs, ..Series::default() }])
}

/// Content of the demo's `summary.json`.
#[derive(Serialize)]
pub struct Summary {
    version: &'static str,
    scenarios: Vec<PartSummary>,
    timing: Timing,
}

#[derive(Serialize)]
struct PartSummary {
    scenario: &'static str,
    runs: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
    methods: serde_json::Map<String, serde_json::Value>,
}

#[derive(Serialize)]
struct Timing {
    wall_s: f64,
}

/// Creates the summary, which contains the unrounded values of the tables.
pub fn summary(parts: &[PartResult], wall_s: f64) -> Summary {
    let part = |part: &PartResult| PartSummary {
        scenario: part.part.name,
        runs: part.cases.len(),
        interrupted: part.interrupted,
        methods: rows(part)
            .iter()
            .filter_map(|row| Some((row.method.key().to_owned(), serde_json::to_value(row).ok()?)))
            .collect(),
    };
    Summary {
        version: env!("CARGO_PKG_VERSION"),
        scenarios: parts.iter().map(part).collect(),
        timing: Timing { wall_s },
    }
}
