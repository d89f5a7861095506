//! Order of the rounds of a campaign that learns a prior.

use super::LearnedPriorSettings;

/// Rounds of orthogonal iteration on the second moments of heads, which give expectation-maximisation its first representation.
const STARTING_ROUNDS: u32 = 2;

/// Rounds with all devices at the end.
const FINAL_ROUNDS: u32 = 5;

/// Prior mean, by the fleet's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeanRule {
    /// No mean.
    Zero,
    /// Least squares with a negligible ridge.
    Pooled,
    /// Least squares with a ridge of a tenth of the mean square of a feature.
    Shrunk,
}

/// Mean and metric of a prior.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Structure {
    pub mean: MeanRule,
    /// Whether the metric is that of the fleet's second moments.
    pub has_metric: bool,
}

/// All structures, the simplest first. Without second moments only the first is possible.
pub const STRUCTURES: [Structure; 6] = [
    Structure { mean: MeanRule::Zero, has_metric: false },
    Structure { mean: MeanRule::Pooled, has_metric: false },
    Structure { mean: MeanRule::Shrunk, has_metric: false },
    Structure { mean: MeanRule::Zero, has_metric: true },
    Structure { mean: MeanRule::Pooled, has_metric: true },
    Structure { mean: MeanRule::Shrunk, has_metric: true },
];

/// Steps of expectation-maximisation with all groups but one, in one of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    pub has_metric: bool,
    /// Group that does not take part.
    pub group: usize,
}

/// Contents of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// All devices send the second moments of their samples.
    Moments,
    /// A group scores priors without representation, with the structure of this index.
    Structures { structure: usize, group: usize },
    /// All other groups send second moments of heads, for the first representation of a chain.
    Start(Chain),
    /// All other groups take a step of expectation-maximisation.
    Learn(Chain),
    /// All other groups take a step against the errors of newcomers, or another one of expectation-maximisation.
    Refine(Chain),
    /// The group scores the prior of the others, with several factors of its variances.
    Variances(Chain),
    /// All devices take a step as in the last rounds of the chains.
    Final,
    /// Training is over.
    Done,
}

/// Order of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    settings: LearnedPriorSettings,
}

impl Plan {
    pub const fn new(settings: LearnedPriorSettings) -> Self {
        Self { settings }
    }

    /// Number of groups.
    pub fn groups(self) -> usize {
        self.settings.groups.into()
    }

    /// Structures that are compared.
    pub fn structures(self) -> &'static [Structure] {
        let count = if self.settings.second_moments { STRUCTURES.len() } else { 1 };
        STRUCTURES.get(..count).unwrap_or_default()
    }

    /// Number of chains: one for each metric and group.
    pub fn chains(self) -> usize {
        let metrics = if self.settings.second_moments { 2 } else { 1 };
        metrics * self.groups()
    }

    /// Whether chains have rounds of refinement.
    pub fn refines(self) -> bool {
        self.settings.refining_rounds > 0
    }

    /// Chain of this index.
    fn chain(self, index: usize) -> Chain {
        Chain { has_metric: index >= self.groups(), group: index % self.groups() }
    }

    /// Rounds of a chain.
    fn chain_rounds(self) -> u32 {
        let LearnedPriorSettings { learning_rounds, refining_rounds, .. } = self.settings;
        STARTING_ROUNDS + u32::from(learning_rounds) + u32::from(refining_rounds)
    }

    /// Lengths of the parts of the plan: moments, structures, learning, variances, final rounds.
    fn parts(self) -> [u32; 5] {
        let to_u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (groups, chains) = (to_u32(self.groups()), to_u32(self.chains()));
        [
            u32::from(self.settings.second_moments),
            to_u32(self.structures().len()) * groups,
            self.chain_rounds() * chains,
            chains,
            FINAL_ROUNDS,
        ]
    }

    /// Number of rounds.
    pub fn rounds(self) -> u32 {
        self.parts().into_iter().sum()
    }

    /// Stage of round `number`, counted from 0.
    pub fn stage(self, number: u32) -> Stage {
        let [moments, structures, learning, variances, last] = self.parts();
        let groups = self.groups();
        let index = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let Some(number) = number.checked_sub(moments) else { return Stage::Moments };
        let Some(after) = number.checked_sub(structures) else {
            return Stage::Structures { structure: index(number) / groups, group: index(number) % groups };
        };
        let Some(number) = after.checked_sub(learning) else {
            let chain = self.chain(index(after / self.chain_rounds()));
            let number = after % self.chain_rounds();
            let learning = STARTING_ROUNDS + u32::from(self.settings.learning_rounds);
            return match number {
                ..STARTING_ROUNDS => Stage::Start(chain),
                number if number < learning => Stage::Learn(chain),
                _ => Stage::Refine(chain),
            };
        };
        let Some(number) = number.checked_sub(variances) else {
            return Stage::Variances(self.chain(index(number)));
        };
        if number < last { Stage::Final } else { Stage::Done }
    }
}

#[cfg(test)]
mod tests {
    use super::{Chain, Plan, Stage};
    use crate::algorithm::LearnedPriorSettings;

    /// Every stage has its number of rounds, in order.
    #[test]
    fn stages_follow_each_other() {
        let settings =
            LearnedPriorSettings { second_moments: true, groups: 3, learning_rounds: 1, refining_rounds: 1 };
        let plan = Plan::new(settings);
        let stages: Vec<Stage> = (0..plan.rounds()).map(|number| plan.stage(number)).collect();
        assert_eq!(stages.len(), 1 + 6 * 3 + 4 * 6 + 6 + 5);
        let chain = |has_metric, group| Chain { has_metric, group };
        assert_eq!(stages[0], Stage::Moments);
        assert_eq!(
            stages[1..3],
            [Stage::Structures { structure: 0, group: 0 }, Stage::Structures { structure: 0, group: 1 }]
        );
        assert_eq!(stages[18], Stage::Structures { structure: 5, group: 2 });
        assert_eq!(
            stages[19..24],
            [
                Stage::Start(chain(false, 0)),
                Stage::Start(chain(false, 0)),
                Stage::Learn(chain(false, 0)),
                Stage::Refine(chain(false, 0)),
                Stage::Start(chain(false, 1)),
            ]
        );
        assert_eq!(stages[31], Stage::Start(chain(true, 0)));
        assert_eq!(stages[43..46], [0, 1, 2].map(|group| Stage::Variances(chain(false, group))));
        assert_eq!(stages[46..49], [0, 1, 2].map(|group| Stage::Variances(chain(true, group))));
        assert_eq!(stages[49..], [Stage::Final; 5]);
        assert_eq!(plan.stage(plan.rounds()), Stage::Done);
        let without = Plan::new(LearnedPriorSettings { second_moments: false, ..settings });
        assert_eq!(without.stage(0), Stage::Structures { structure: 0, group: 0 });
        assert_eq!(without.rounds(), 3 + 4 * 3 + 3 + 5);
    }
}
