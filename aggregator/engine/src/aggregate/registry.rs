//! Registry of the aggregation rules: the enum [`Rule`], with one variant for each rule that a configuration
//! can name, and one for custom rules.
//!
//! A new rule is a file with a type that implements [`AggregationRule`] and [`NamedRule`], and a line in the
//! registry below. A rule from outside the project is a [`Rule::custom`].

use super::Weighted;
use super::geometric_median::GeometricMedian;
use super::mean::Mean;
use super::rule::{AggregationRule, NamedRule, SubspaceRule};
use super::spectral_filter::SpectralFilter;
use super::subspaces::{ProjectorGeometricMedian, ProjectorMean};
use super::trimmed_mean::TrimmedMean;
use crate::reader::{Problem, Section};

/// Custom rule, implemented outside the project.
#[derive(Clone, Copy, Debug)]
pub struct CustomRule(&'static dyn AggregationRule);

/// Two custom rules are equal if they are the same object.
impl PartialEq for CustomRule {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name() && std::ptr::addr_eq(self.0, other.0)
    }
}

macro_rules! registry {
    ($($Type:ident,)+) => {
        /// Aggregation rule of a campaign.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Rule {
            $(#[doc = concat!("[`", stringify!($Type), "`]")] $Type($Type),)+
            /// Custom rule, implemented outside the project.
            Custom(CustomRule),
        }

        impl Rule {
            /// Names of the rules that a configuration can name, each with a description in one line.
            pub const NAMES: &[(&str, &str)] = &[$(($Type::NAME, $Type::SUMMARY),)+];

            /// Names of the rules that combine vectors instead of subspaces.
            pub fn names_for_vectors() -> impl Iterator<Item = &'static str> {
                let rules = [$(($Type::NAME, $Type::FOR_SUBSPACES),)+];
                rules.into_iter().filter(|(_, for_subspaces)| !for_subspaces).map(|(name, _)| name)
            }

            /// Reads the rule called `name`, one of [`Self::NAMES`], with its own keys from `[aggregation]`.
            ///
            /// # Errors
            /// [`Problem`] for the first mistake, or for an unknown name.
            pub(crate) fn read(name: &str, section: &Section<'_>) -> Result<Self, Problem> {
                match name {
                    $($Type::NAME => $Type::read(section).map(Self::$Type),)+
                    _ => Err(section.problem("rule", format!("found {name:?}, which is no rule"))),
                }
            }

            /// The rule as a trait object.
            fn as_dyn(&self) -> &dyn AggregationRule {
                match self {
                    $(Self::$Type(rule) => rule,)+
                    Self::Custom(CustomRule(rule)) => *rule,
                }
            }
        }
    };
}

registry! {
    Mean,
    SpectralFilter,
    GeometricMedian,
    TrimmedMean,
    ProjectorMean,
    ProjectorGeometricMedian,
}

impl Rule {
    /// Weighted mean.
    pub const MEAN: Self = Self::Mean(Mean);
    /// Geometric median of clipped updates.
    pub const GEOMETRIC_MEDIAN: Self = Self::GeometricMedian(GeometricMedian);
    /// Spectral filter for the default fraction of attackers.
    pub const SPECTRAL_FILTER: Self = Self::SpectralFilter(SpectralFilter {
        attackers: super::ATTACKERS,
        rank_tolerance: super::RANK_TOLERANCE,
    });
    /// Mean of projectors.
    pub const PROJECTOR_MEAN: Self = Self::ProjectorMean(ProjectorMean);
    /// Geometric median of projectors.
    pub const PROJECTOR_GEOMETRIC_MEDIAN: Self = Self::ProjectorGeometricMedian(ProjectorGeometricMedian);

    /// Trimmed mean that cuts off the fraction `trim` (0 to below 0.5) of the weight at each end.
    #[must_use]
    pub const fn trimmed_mean(trim: f64) -> Self {
        Self::TrimmedMean(TrimmedMean { trim })
    }

    /// Creates a custom rule. The box is leaked, since `Rule` is `Copy` and therefore needs a `'static`
    /// reference.
    #[must_use]
    pub fn custom(rule: Box<dyn AggregationRule>) -> Self {
        Self::Custom(CustomRule(Box::leak(rule)))
    }

    /// Name in configuration files.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        self.as_dyn().name()
    }

    /// Keys of `[aggregation]` other than the name, with their values.
    #[must_use]
    pub fn parameters(&self) -> Vec<(&'static str, f64)> {
        self.as_dyn().parameters()
    }

    /// Fraction of a gradient's norm that may be beyond the rank of a gradient; see
    /// [`AggregationRule::rank_tolerance`].
    #[must_use]
    pub fn rank_tolerance(&self) -> f64 {
        self.as_dyn().rank_tolerance()
    }

    /// Whether the rule combines subspaces, so that it interprets an upload as a basis of which only the span
    /// matters.
    #[must_use]
    pub fn is_for_subspaces(&self) -> bool {
        self.as_dyn().as_subspace_rule().is_some()
    }

    /// Rule for uploads that are not subspaces, such as those of a start, in a campaign with this rule. For a
    /// rule for subspaces it is the geometric median, since with a plain mean an attacker could bypass the
    /// rule during the start.
    #[must_use]
    pub fn for_vectors(self) -> Self {
        if self.is_for_subspaces() { Self::GEOMETRIC_MEDIAN } else { self }
    }

    /// Whether the rule needs all updates of a round at once.
    #[must_use]
    pub fn needs_all_updates(&self) -> bool {
        !matches!(self, Self::Mean(_))
    }

    /// Combines the updates of a round, which are in the order of devices. `updates` is not empty.
    pub(super) fn combine(&self, updates: &[Weighted<'_>], center: &[f64]) -> Vec<f64> {
        let mut combined = vec![0.0; updates.first().map_or(0, |update| update.values.len())];
        self.as_dyn().combine(updates, center, &mut combined);
        combined
    }

    /// The rule as a rule for subspaces; `None` for other rules.
    pub(super) fn as_subspace_rule(&self) -> Option<&dyn SubspaceRule> {
        self.as_dyn().as_subspace_rule()
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::MEAN
    }
}
