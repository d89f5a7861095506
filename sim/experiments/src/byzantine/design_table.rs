//! Markdown tables of the results of an attack survey.

use std::fmt::Write;

use fedspan_engine::aggregate::FleetSize;

use super::design::{Cell, Fleet, NEGLIGIBLE, Outcome};

/// Number of worst cells that are listed for each rule.
const LISTED: usize = 12;
/// Ratio to the reference up to which a cell is good.
const GOOD: f64 = 1.5;

/// Whether a fleet is in the space in which the spectral filter is promised something
/// (`aggregator/POISON.md`).
fn inside(fleet: &Fleet) -> bool {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let size = FleetSize {
        devices: number(fleet.devices),
        samples: Some(number(fleet.samples)),
        features: number(fleet.d),
        width: number(fleet.k),
        outputs: 1,
    };
    size.unmet_conditions().is_empty()
}

/// Formats the finished cells of a survey: for each rule but the reference a summary of each group, and the
/// cells in which the rule is worst in comparison with the reference under the same attack.
#[must_use]
pub fn markdown(rules: &[&str], cells: &[Cell], outcomes: &[Option<Outcome>]) -> String {
    let done: Vec<(&Cell, &Outcome)> =
        cells.iter().zip(outcomes).filter_map(|(cell, outcome)| Some((cell, outcome.as_ref()?))).collect();
    let reference = rules.first().copied().unwrap_or_default();
    let mut text = format!(
        "| rule, over {reference} (at least {NEGLIGIBLE}) | cells | clean: median, worst | attacked: median | over {GOOD} | worst |\n\
         | --- | --- | --- | --- | --- | --- |\n"
    );
    for (index, rule) in rules.iter().enumerate().skip(1) {
        for (group, is_promised) in [("inside the promise", true), ("outside", false)] {
            let ratios = |ratio: fn(&Outcome, usize) -> f64| {
                let mut ratios: Vec<f64> = done
                    .iter()
                    .filter(|(cell, _)| inside(&cell.fleet) == is_promised)
                    .map(|(_, outcome)| ratio(outcome, index))
                    .collect();
                ratios.sort_by(f64::total_cmp);
                ratios
            };
            let (clean, attacked) = (ratios(Outcome::clean_ratio), ratios(Outcome::ratio));
            let over = attacked.iter().filter(|ratio| **ratio > GOOD).count();
            let percent = 100.0 * over as f64 / attacked.len().max(1) as f64;
            let _ = writeln!(
                text,
                "| {rule}, {group} | {} | {}, {} | {} | {percent:.1} % | {} |",
                attacked.len(),
                shown(middle(&clean)),
                shown(clean.last().copied()),
                shown(middle(&attacked)),
                shown(attacked.last().copied()),
            );
        }
    }
    for (index, rule) in rules.iter().enumerate().skip(1) {
        let mut worst: Vec<_> =
            done.iter().map(|(cell, outcome)| (outcome.ratio(index), *cell, *outcome)).collect();
        worst.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        let _ = write!(
            text,
            "\n| worst of {rule} | k | d | samples | devices | attack | rounds | {reference}: clean, attacked | {rule}: clean, attacked |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        );
        for (ratio, cell, outcome) in worst.into_iter().take(LISTED) {
            let Fleet { k, d, samples, devices, unequal, fixed_point } = cell.fleet;
            let samples = if unequal { format!("{samples}, log-normal") } else { samples.to_string() };
            let devices = if fixed_point { format!("{devices}, i16") } else { devices.to_string() };
            let pair = |rule: usize| {
                format!(
                    "{}, {}",
                    shown(Some(outcome.clean_median(rule))),
                    shown(Some(outcome.attacked_median(rule)))
                )
            };
            let _ = writeln!(
                text,
                "| {} | {k} | {d} | {samples} | {devices} | {} by {} % | {} | {} | {} |",
                shown(Some(ratio)),
                cell.attack.name,
                (cell.fraction * 1000.0).round() / 10.0,
                outcome.rounds,
                pair(0),
                pair(index)
            );
        }
    }
    text
}

/// Median of sorted values; the upper of two middle values.
fn middle(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

fn shown(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 0.995 => format!("{value:.2}"),
        Some(value) => format!("{value:.4}"),
    }
}
