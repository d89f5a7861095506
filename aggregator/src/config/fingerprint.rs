//! What a resumed campaign must have in common with the one that was committed.

use std::fmt::Write;

use fedspan_protocol::message::{Filters, HeadSolve, Numeric};

use super::fleet::Fleet;
use super::names::AlgorithmName;
use super::network::FrontModel;
use super::participation::ParticipationSection;
use super::scale::scale_words;
use super::sections::Init;
use crate::aggregate::Rule;
use crate::algorithm::network::Method;

impl Fleet {
    /// The settings of the campaign, a line each, in the words of the file: everything on which depends what counts, and
    /// as what. Settings that may change while a campaign runs (addresses, deadlines, how many devices are expected, what one
    /// peer may take) are not among them.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut lines = String::new();
        let mut line = |key: &str, value: String| {
            // A string takes everything.
            let _ = writeln!(lines, "{key} = {value}");
        };
        line("seed", self.seed.to_string());
        line("data.d", self.shape.features.to_string());
        line("data.outputs", self.shape.outputs.to_string());
        if let Some(image) = self.shape.image {
            line("data.image", format!("{:?}", [image.height, image.width, image.channels]));
        }
        // Campaigns that are older than the key have none.
        scale_words(&self.scale).into_iter().for_each(|words| line("data.scale", words));
        match self.model.network {
            Some(network) => {
                match network.front {
                    FrontModel::Nothing => {}
                    FrontModel::Filters(filters) => {
                        for Filters { count, side, pool } in
                            filters.iter().filter(|filters| filters.count > 0)
                        {
                            line("model.filters", format!("{count} of side {side}, pooled by {pool}"));
                        }
                    }
                    FrontModel::Cells(cells) => line("model.cells", cells.to_string()),
                    FrontModel::Adapter { rank, width, frozen } => {
                        line("model.rank", rank.to_string());
                        line("model.width", width.to_string());
                        line("model.frozen", format!("{frozen:#010x}"));
                    }
                }
                line("model.hidden", format!("{:?}", network.hidden));
            }
            None => line("model.k", self.model.k.to_string()),
        }
        line("model.init", init(&self.model.init));
        let algorithm = &self.algorithm;
        line("algorithm.name", quoted(algorithm.name.word()));
        line("algorithm.rounds", algorithm.rounds.to_string());
        line("algorithm.step_size", format!("{:?}", algorithm.step_size));
        line("algorithm.head", head(algorithm.head));
        line("algorithm.final_head", head(algorithm.final_head));
        if algorithm.name == AlgorithmName::FedAvg {
            line("algorithm.head_step_size", format!("{:?}", algorithm.head_step_size));
            line("algorithm.local_steps", algorithm.local_steps.to_string());
        }
        if let Some(network) = algorithm.network {
            line("algorithm.network", format!("{network:?}"));
            // Otherwise it says how many the first round waits for: more may come later.
            if network.method == Method::Scaffold {
                line("devices.expected", self.expected.to_string());
            }
        }
        if let Some(power) = algorithm.power {
            line("algorithm.iterations", power.iterations.to_string());
            line("algorithm.local_steps", power.local_steps.to_string());
            line("algorithm.decay", power.decay.to_string());
            line("algorithm.procrustes", power.procrustes.to_string());
            line("algorithm.reference", power.reference.to_string());
            line("algorithm.rows", lower(power.rows));
        }
        line("algorithm.weighting", lower(algorithm.weighting));
        // Campaigns that are older than the key have f32.
        if algorithm.numeric != Numeric::F32 {
            line("algorithm.numeric", lower(algorithm.numeric));
        }
        line("algorithm.send", lower(algorithm.send));
        line("algorithm.upload", lower(algorithm.upload));
        line("algorithm.download", lower(algorithm.download));
        // Campaigns that are older than the section have the mean.
        match self.rule {
            Rule::Mean => {}
            Rule::TrimmedMean { trim } => {
                line("aggregation.rule", format!("{:?}, trim = {trim:?}", self.rule.word()));
            }
            rule => line("aggregation.rule", quoted(rule.word())),
        }
        line(
            "participation.policy",
            match self.participation {
                ParticipationSection::Full => quoted("full"),
                ParticipationSection::Fraction { r } => format!("\"fraction\", r = {r:?}"),
                ParticipationSection::FirstArrivals { n, cohort } => {
                    format!("\"first-arrivals\", n = {n}, cohort = {cohort:?}")
                }
                ParticipationSection::WithReplacement { draws } => {
                    format!("\"with-replacement\", draws = {draws}")
                }
                ParticipationSection::Doubling { n0, cohort, draw, schedule, by } => {
                    let (by, draw) = (lower(by), lower(draw));
                    format!(
                        "\"doubling\", n0 = {n0}, cohort = {cohort:?}, draw = {draw}, schedule = {schedule:?}, by = {by}"
                    )
                }
            },
        );
        line("limits.norm", format!("{:?}", self.limits.norm));
        line("limits.samples", self.limits.samples.most.to_string());
        if let Some(change) = self.stop_change {
            line("stop.change", format!("{change:?}"));
        }
        lines
    }
}

/// Lines of two fingerprints that differ, the stored ones with a minus, those that are given now with a plus. A key may come several
/// times, and is compared in that order.
#[must_use]
pub fn difference(stored: &str, given: &str) -> String {
    let (old, new) = (keyed(stored), keyed(given));
    let mut lines = String::new();
    for (key, was) in &old {
        let is = new.iter().find(|(other, _)| other == key).map(|(_, line)| line);
        if is != Some(was) {
            lines.push_str(&format!("- {was}\n"));
            lines.extend(is.map(|is| format!("+ {is}\n")));
        }
    }
    let came = new.iter().filter(|(key, _)| old.iter().all(|(other, _)| other != key));
    lines.extend(came.map(|(_, is)| format!("+ {is}\n")));
    lines
}

/// Every line under its key, and how often that has come before.
fn keyed(lines: &str) -> Vec<((&str, usize), &str)> {
    let mut found: Vec<((&str, usize), &str)> = Vec::new();
    for line in lines.lines() {
        let key = line.split_once(" = ").map_or(line, |(key, _)| key);
        let before = found.iter().filter(|((other, _), _)| *other == key).count();
        found.push(((key, before), line));
    }
    found
}

fn quoted(word: &str) -> String {
    format!("{word:?}")
}

/// The names of these variants are the words of the file.
fn lower(value: impl std::fmt::Debug) -> String {
    quoted(&format!("{value:?}").to_lowercase())
}

fn init(init: &Init) -> String {
    match init {
        Init::Random => quoted("random"),
        Init::Power { iterations } => format!("\"power\", {iterations} iterations"),
        Init::NoisyPower { iterations } => format!("\"power\" with noise, {iterations} iterations"),
        Init::Moments => quoted("moments"),
        Init::TruthSine(sine) => format!("\"truth-sine:{sine:?}\""),
        Init::Npy(path) => format!("\"npy:{path}\""),
    }
}

fn head(head: HeadSolve) -> String {
    match head {
        HeadSolve::LeastSquares { ridge } => format!("\"least-squares\", ridge = {ridge:?}"),
        HeadSolve::Gradient { steps, step_size } => {
            format!("\"gradient\", {steps} steps of {step_size:?}")
        }
        other => format!("{other:?}"),
    }
}
