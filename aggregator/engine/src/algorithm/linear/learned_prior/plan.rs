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
    /// The group scores the prior of the others, with several factors of its variances: as learned, or as refined.
    Variances { chain: Chain, is_refined: bool },
    /// All devices take a step of the kind that has led to the prior with the best score.
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

    /// Number of metrics that are compared.
    pub fn metrics(self) -> usize {
        if self.settings.second_moments { 2 } else { 1 }
    }

    /// Number of chains: one for each metric and group.
    pub fn chains(self) -> usize {
        self.metrics() * self.groups()
    }

    /// Whether chains have rounds of refinement.
    pub fn refines(self) -> bool {
        self.settings.refining_rounds > 0
    }

    /// Chain of this index.
    fn chain(self, index: usize) -> Chain {
        Chain { has_metric: index >= self.groups(), group: index % self.groups() }
    }

    /// Lengths of the parts of the plan: moments, structures, learning, scores, refinement, scores, final rounds.
    fn parts(self) -> [u32; 7] {
        let to_u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (groups, chains) = (to_u32(self.groups()), to_u32(self.chains()));
        let LearnedPriorSettings { second_moments, learning_rounds, refining_rounds, .. } = self.settings;
        [
            u32::from(second_moments),
            to_u32(self.structures().len()) * groups,
            (STARTING_ROUNDS + u32::from(learning_rounds)) * chains,
            chains,
            u32::from(refining_rounds) * chains,
            if self.refines() { chains } else { 0 },
            FINAL_ROUNDS,
        ]
    }

    /// Number of rounds.
    pub fn rounds(self) -> u32 {
        self.parts().into_iter().sum()
    }

    /// Stage of round `number`, counted from 0.
    pub fn stage(self, number: u32) -> Stage {
        let [moments, structures, learning, scores, refinement, last_scores, last] = self.parts();
        let groups = self.groups();
        let index = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let Some(number) = number.checked_sub(moments) else { return Stage::Moments };
        let Some(after) = number.checked_sub(structures) else {
            return Stage::Structures { structure: index(number) / groups, group: index(number) % groups };
        };
        let Some(number) = after.checked_sub(learning) else {
            let length = STARTING_ROUNDS + u32::from(self.settings.learning_rounds);
            let chain = self.chain(index(after / length));
            let starts = after % length < STARTING_ROUNDS;
            return if starts { Stage::Start(chain) } else { Stage::Learn(chain) };
        };
        let Some(after) = number.checked_sub(scores) else {
            return Stage::Variances { chain: self.chain(index(number)), is_refined: false };
        };
        let Some(number) = after.checked_sub(refinement) else {
            return Stage::Refine(self.chain(index(after / u32::from(self.settings.refining_rounds))));
        };
        let Some(number) = number.checked_sub(last_scores) else {
            return Stage::Variances { chain: self.chain(index(number)), is_refined: true };
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
            LearnedPriorSettings { second_moments: true, groups: 3, learning_rounds: 2, refining_rounds: 2 };
        let plan = Plan::new(settings);
        let stages: Vec<Stage> = (0..plan.rounds()).map(|number| plan.stage(number)).collect();
        assert_eq!(stages.len(), 1 + 6 * 3 + 4 * 6 + 6 + 2 * 6 + 6 + 5);
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
                Stage::Learn(chain(false, 0)),
                Stage::Start(chain(false, 1)),
            ]
        );
        assert_eq!(stages[31], Stage::Start(chain(true, 0)));
        for (first, is_refined) in [(43, false), (61, true)] {
            for (number, has_metric) in [(first, false), (first + 3, true)] {
                let scored = [0, 1, 2].map(|group| chain(has_metric, group));
                assert_eq!(
                    stages[number..number + 3],
                    scored.map(|chain| Stage::Variances { chain, is_refined })
                );
            }
        }
        assert_eq!(stages[49..52], [0, 0, 1].map(|group| Stage::Refine(chain(false, group))));
        assert_eq!(stages[60], Stage::Refine(chain(true, 2)));
        assert_eq!(stages[67..], [Stage::Final; 5]);
        assert_eq!(plan.stage(plan.rounds()), Stage::Done);
        let without = Plan::new(LearnedPriorSettings { second_moments: false, ..settings });
        assert_eq!(without.stage(0), Stage::Structures { structure: 0, group: 0 });
        assert_eq!(without.rounds(), 3 + 4 * 3 + 3 + 2 * 3 + 3 + 5);
        let short = Plan::new(LearnedPriorSettings { refining_rounds: 0, ..settings });
        assert_eq!(short.rounds(), 1 + 6 * 3 + 4 * 6 + 6 + 5);
        assert_eq!([49, 54].map(|number| short.stage(number)), [Stage::Final, Stage::Done]);
    }
}
