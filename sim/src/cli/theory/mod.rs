//! Command `theory`: computes theoretical predictions from the literature.

mod rolora;
mod srpfl;

use clap::Subcommand;

use super::CommandError;
use rolora::RoLoraOptions;
use srpfl::SrpflOptions;

/// Subcommands, one for each theory.
#[derive(Debug, Subcommand)]
pub enum Theory {
    /// SRPFL: speedup by doubling participation, from the paper's recursion and expected arrival times
    #[command(after_help = "Examples:
  fedspan-sim theory srpfl
  fedspan-sim theory srpfl --contraction 0.1 --communication 0,10 --format json | jq .parts
  fedspan-sim theory srpfl --scenario stragglers --seeds 5 --out theory

Without --out nothing is simulated. sim/STRAGGLERS.md defines the computation.")]
    Srpfl(SrpflOptions),
    /// RoLoRA: simulated angles of a linear adapter, compared with the bounds of the paper's theorems
    #[command(after_help = "Examples:
  fedspan-sim theory rolora
  fedspan-sim theory rolora --steps 0.5 --set data.heterogeneity=1 --seeds 100
  fedspan-sim theory rolora --format json | jq .parts

sim/ADAPTERS.md defines the computation.")]
    Rolora(RoLoraOptions),
}

/// Runs command `theory`.
pub fn command(theory: &Theory) -> Result<(), CommandError> {
    match theory {
        Theory::Srpfl(options) => srpfl::command(options),
        Theory::Rolora(options) => rolora::command(options),
    }
}
