//! Cycles in `budgets.toml`, with those that the simulator's model of energy computes for the same work.

use std::collections::BTreeMap;

use fedspan_client::Shape;
use fedspan_protocol::message::Numeric;
use fedspan_sim_core::energy::{Core, exact_fedrep};

use crate::lists::read_list;

const BUDGETS: &str = include_str!("../budgets.toml");

/// Arithmetics, with the paths of their updates: where the normal equations determine the head, and where they are ill
/// conditioned.
pub const ARITHMETICS: [(Numeric, [&str; 2]); 2] =
    [(Numeric::F32, ["normal", "triangular"]), (Numeric::I16, ["i16", "i16-ill"])];

/// Frames of an update at (64, 4) in each direction, by frame limit.
const FRAMES: [(&str, usize); 2] = [("1024", 3), ("256", 6)];

/// Cycles of a round of FedRep on a core.
#[derive(Clone, Copy, Debug)]
pub struct RoundCycles {
    /// Core of the measurement.
    pub core: Core,
    /// Arithmetic of the update.
    pub numeric: Numeric,
    /// Shape of the model.
    pub shape: Shape,
    /// Number of samples.
    pub samples: usize,
    /// Cycles by the budgets. The cycles of an instruction in the check of `B` and in the gradient are taken to be those in the
    /// update.
    pub measured: f64,
    /// The same where the normal equations are ill conditioned.
    pub ill_conditioned: f64,
    /// Cycles by the model.
    pub model: f64,
}

impl RoundCycles {
    /// Deviation of the model as a part of the measured cycles.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        self.model / self.measured - 1.0
    }
}

/// Cycles of sealing or opening the frames of a round.
#[derive(Clone, Copy, Debug)]
pub struct SealingCycles {
    /// Core of the measurement.
    pub core: Core,
    /// Cycles by the budgets.
    pub measured: f64,
    /// Cycles by the model.
    pub model: f64,
}

fn number(row: &BTreeMap<String, String>, name: &str) -> Result<f64, String> {
    let word = row.get(name).ok_or_else(|| format!("no {name} in {row:?}"))?;
    word.parse().map_err(|_| format!("found {word:?}, allowed: a number"))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "dimensions of a table")]
fn count(row: &BTreeMap<String, String>, name: &str) -> Result<usize, String> {
    number(row, name).map(|value| value as usize)
}

/// True if a row is of this core, as firmware is built.
fn is_of(row: &BTreeMap<String, String>, core: Core) -> bool {
    let is = |name: &str, word: &str| row.get(name).is_some_and(|found| found == word);
    is("core", core.name()) && is("opt_level", "s")
}

/// Cycles of a whole round: check, update and gradient.
fn whole_round(row: &BTreeMap<String, String>) -> Result<f64, String> {
    let [cycles, update] = [number(row, "cycles")?, number(row, "instructions")?];
    Ok(cycles / update * (update + number(row, "verify")? + number(row, "emit")?))
}

/// Cycles of all measured shapes, by core and arithmetic.
///
/// # Errors
/// A sentence if the budgets lack a value.
pub fn rounds() -> Result<Vec<RoundCycles>, String> {
    let rows = read_list(BUDGETS, "update")?;
    let mut rounds = Vec::new();
    for core in Core::ALL {
        for (numeric, [path, ill_path]) in ARITHMETICS {
            let of = |path: &'static str| {
                rows.iter()
                    .filter(move |row| is_of(row, core) && row.get("path").is_some_and(|found| found == path))
            };
            for row in of(path) {
                let same_shape = |ill: &&BTreeMap<String, String>| {
                    ["d", "k", "m"].iter().all(|name| ill.get(*name) == row.get(*name))
                };
                let ill =
                    of(ill_path).find(same_shape).ok_or_else(|| format!("no {ill_path} for {row:?}"))?;
                let (features, width, samples) = (count(row, "d")?, count(row, "k")?, count(row, "m")?);
                // Only one measured shape has more than one output.
                let shape = Shape { features, width, outputs: if features == 57 { 7 } else { 1 } };
                rounds.push(RoundCycles {
                    core,
                    numeric,
                    shape,
                    samples,
                    measured: whole_round(row)?,
                    ill_conditioned: whole_round(ill)?,
                    model: core.cycles(numeric, &exact_fedrep(shape, samples)),
                });
            }
        }
    }
    rounds.sort_by_key(|round| (round.core.name(), round.numeric == Numeric::I16, round.shape.features));
    Ok(rounds)
}

/// Cycles of sealing and of opening, with both frame limits. Frames in both directions have nearly the same lengths.
///
/// # Errors
/// A sentence if the budgets lack a value.
pub fn sealing() -> Result<Vec<SealingCycles>, String> {
    let rows = read_list(BUDGETS, "sealing")?;
    let mut sealing = Vec::new();
    for core in Core::ALL {
        for (limit, frames) in FRAMES {
            let is_row = |row: &&BTreeMap<String, String>| {
                is_of(row, core) && row.get("limit").is_some_and(|found| found == limit)
            };
            let row = rows.iter().find(is_row).ok_or_else(|| format!("no sealing of {core:?}"))?;
            let model = core.sealing_cycles(frames, count(row, "up")?);
            for name in ["cycles_seal", "cycles_open"] {
                sealing.push(SealingCycles { core, measured: number(row, name)?, model });
            }
        }
    }
    Ok(sealing)
}
