//! `theory`: predictions of the literature, computed.

mod rolora;
mod srpfl;

use clap::Subcommand;

use super::CommandError;
use rolora::RoLoraOptions;
use srpfl::SrpflOptions;

/// The theories that can be computed.
#[derive(Debug, Subcommand)]
pub enum Theory {
    /// SRPFL: speedup of doubling participation, from its recursion and expected arrival times
    #[command(after_help = "Examples:
  fedspan-sim theory srpfl
  fedspan-sim theory srpfl --contraction 0.1 --communication 0,10 --format json | jq .parts
  fedspan-sim theory srpfl --scenario stragglers --seeds 5 --out theory

Without --out nothing is simulated. sim/STRAGGLERS.md defines the computation.")]
    Srpfl(SrpflOptions),
    /// RoLoRA: simulated angles of a linear adapter, compared with the bounds of its theorems
    #[command(after_help = "Examples:
  fedspan-sim theory rolora
  fedspan-sim theory rolora --steps 0.5 --set data.heterogeneity=1 --seeds 100
  fedspan-sim theory rolora --format json | jq .parts

sim/ADAPTERS.md defines the computation.")]
    Rolora(RoLoraOptions),
}

/// `fedspan-sim theory`.
pub fn command(theory: &Theory) -> Result<(), CommandError> {
    match theory {
        Theory::Srpfl(options) => srpfl::command(options),
        Theory::Rolora(options) => rolora::command(options),
    }
}
