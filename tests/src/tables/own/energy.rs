//! Tables of the cycles and of the energy of a round's computation, from the budgets.

use std::fmt::Write;

use fedspan_protocol::message::Numeric;
use fedspan_sim_core::energy::{CHIPS, Core, Usage};

use crate::measured_cycles::{RoundCycles, rounds};

/// Names of the cores in tables.
const fn title(core: Core) -> &'static str {
    match core {
        Core::CortexM4F => "Cortex-M4F",
        Core::CortexM3 => "Cortex-M3",
        Core::CortexM0 => "Cortex-M0",
        Core::Rv32imc => "RV32IMC",
    }
}

/// Cycles of a core and an arithmetic by shape, and the suffix of the arithmetic in tables.
fn of(rounds: &[RoundCycles], core: Core) -> [(&'static str, Vec<RoundCycles>); 2] {
    [("", Numeric::F32), (" in i16", Numeric::I16)].map(|(suffix, numeric)| {
        let of_both = rounds.iter().filter(|round| round.core == core && round.numeric == numeric);
        (suffix, of_both.copied().collect())
    })
}

/// Header with a column for each measured shape.
fn header(first: &str, rounds: &[RoundCycles], last: &[&str]) -> String {
    let mut text = format!("| {first} |");
    let [(_, shapes), _] = of(rounds, Core::CortexM4F);
    for RoundCycles { shape, samples, .. } in &shapes {
        let _ = write!(text, " ({}, {}, {}, {samples}) |", shape.features, shape.width, shape.outputs);
    }
    last.iter().for_each(|name| text.push_str(&format!(" {name} |")));
    text + "\n|" + &" --- |".repeat(1 + shapes.len() + last.len()) + "\n"
}

/// Returns the table of measured cycles, those of the model, and how many more ill conditioned problems take.
///
/// # Errors
/// A sentence if the budgets lack a value.
pub fn cycles_table() -> Result<String, String> {
    let rounds = rounds()?;
    let mut text = header("core", &rounds, &["ill conditioned"]);
    for core in Core::ALL {
        for (suffix, rounds) in of(&rounds, core) {
            let _ = write!(text, "| {}{suffix} |", title(core));
            for round in &rounds {
                let [measured, model] = [round.measured, round.model].map(|cycles| cycles / 1e3);
                let _ = write!(text, " {measured:.0} / {model:.0}, {:+.0} % |", 100.0 * round.deviation());
            }
            let ratios: Vec<f64> =
                rounds.iter().map(|round| round.ill_conditioned / round.measured).collect();
            let [least, most] =
                [f64::min, f64::max].map(|of_two| ratios.iter().copied().reduce(of_two).unwrap_or(1.0));
            let _ = writeln!(text, " {least:.1}x to {most:.1}x |");
        }
    }
    Ok(text)
}

/// Returns the table of the energy of the measured cycles on each chip, in microjoules.
///
/// # Errors
/// A sentence if the budgets lack a value.
pub fn energy_table() -> Result<String, String> {
    let rounds = rounds()?;
    let mut text = header("chip", &rounds, &[]);
    for chip in CHIPS {
        for (suffix, rounds) in of(&rounds, chip.core) {
            let _ = write!(text, "| {}{suffix} |", chip.name);
            for round in &rounds {
                let usage = Usage { cycles: round.measured, ..Usage::default() };
                let _ = write!(text, " {:.1} uJ |", 1e6 * chip.energy(&usage, 0.0).computation);
            }
            text.push('\n');
        }
    }
    Ok(text)
}
