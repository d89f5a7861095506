//! Custom parts of a campaign, written outside the project: an algorithm, a participation policy and an
//! aggregation rule, with the names under which a campaign stores them.

use std::collections::BTreeMap;
use std::fmt;

use fedspan_protocol::limits::{FRAME_LIMIT_MAX, TENSORS_MAX};
use fedspan_protocol::message::{Descriptors, Task};

use crate::admission::least_frame_limit;
use crate::aggregate::Rule;
use crate::algorithm::Algorithm;
use crate::participation::{ClosedRound, Cohort, Participation, UpdateArrival};
use crate::types::{DeviceId, Request};

/// Names and settings of the custom parts of a campaign. They are stored with the campaign, which can be
/// resumed only with parts of the same names and settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CustomNames {
    /// Name of the custom algorithm; `None` if the configuration selects the algorithm.
    pub algorithm: Option<String>,
    /// Name of the custom participation policy; `None` if the configuration selects the policy.
    pub participation: Option<String>,
    /// Settings of the custom algorithm and policy, such as a momentum.
    pub settings: BTreeMap<String, f64>,
}

/// Parts that replace the algorithm, the participation policy and the aggregation rule of a configuration.
/// The default value replaces nothing.
#[derive(Default)]
pub struct CustomParts {
    names: CustomNames,
    pub(crate) algorithm: Option<Box<dyn Algorithm>>,
    pub(crate) participation: Option<Box<dyn Participation>>,
    rule: Option<Rule>,
}

impl fmt::Debug for CustomParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { names, rule, .. } = self;
        f.debug_struct("CustomParts").field("names", names).field("rule", rule).finish_non_exhaustive()
    }
}

/// Reason why custom parts do not fit a campaign.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CustomError {
    /// A part has an empty name.
    #[error("the custom {part} has an empty name, allowed: a name that differs from those of other parts")]
    Name {
        /// `algorithm`, `participation policy` or `aggregation rule`.
        part: &'static str,
    },
    /// A custom rule has the name of a built-in rule, so that a stored campaign could not distinguish them.
    #[error("the custom aggregation rule is named {name:?}, which is FedSpan's own; allowed: any other name")]
    RuleName {
        /// Name found.
        name: String,
    },
    /// A setting has no valid key, or no finite value.
    #[error(
        "the custom setting {key:?} is {value}, allowed: a finite number under a key of letters, digits, '-' and '_'"
    )]
    Setting {
        /// Key found.
        key: String,
        /// Value found.
        value: f64,
    },
    /// A rule was given together with a custom algorithm, which combines updates itself.
    #[error(
        "the aggregation rule {rule:?} has no effect on the custom algorithm {algorithm:?}, which combines updates itself; give the \
         rule to the algorithm"
    )]
    RuleBesideAlgorithm {
        /// Name of the algorithm.
        algorithm: String,
        /// Name of the rule.
        rule: String,
    },
    /// The representation of a custom algorithm has another shape than the model of the devices.
    #[error(
        "the custom algorithm {algorithm:?} has a representation of {} x {}, allowed: {} x {}, that of the model",
        found.0, found.1, allowed.0, allowed.1
    )]
    Representation {
        /// Name of the algorithm.
        algorithm: String,
        /// Rows and columns of the algorithm's representation.
        found: (usize, usize),
        /// Rows and columns of the model.
        allowed: (usize, usize),
    },
    /// A round has more tensors in one direction than the protocol allows.
    #[error(
        "the custom algorithm {algorithm:?} has {found} tensors in one direction of a round, allowed: at most {allowed}"
    )]
    Tensors {
        /// Name of the algorithm.
        algorithm: String,
        /// Number of tensors.
        found: usize,
        /// Largest number of tensors.
        allowed: usize,
    },
    /// The tensors of a round do not fit the chunks of the largest frame.
    #[error(
        "the custom algorithm {algorithm:?} has {values} values in one direction of a round, which do not fit 256 chunks of the largest \
         frame"
    )]
    Frames {
        /// Name of the algorithm.
        algorithm: String,
        /// Number of values in all tensors.
        values: usize,
    },
    /// The task of a round adds no noise, but the campaign requires privacy.
    #[error(
        "the custom algorithm {algorithm:?} has a round whose task adds no noise, which [privacy] forbids; allowed: the tasks of \
         FedRep and FedPower"
    )]
    NoNoise {
        /// Name of the algorithm.
        algorithm: String,
    },
    /// A part rejects the state that it returned itself, so that the campaign could not be resumed.
    #[error("the custom {part} does not restore the {values} values of its own state")]
    State {
        /// `algorithm` or `participation policy`.
        part: &'static str,
        /// Number of values in the state.
        values: usize,
    },
}

impl CustomParts {
    /// Replaces the algorithm of training rounds and final heads. The custom algorithm combines the updates
    /// of a round itself. `name` is stored with the campaign.
    ///
    /// If the campaign has a start, the start's representation replaces the first values of
    /// [`Algorithm::state`], which must be the algorithm's representation in column-major order.
    #[must_use]
    pub fn with_algorithm(mut self, name: impl Into<String>, algorithm: Box<dyn Algorithm>) -> Self {
        self.names.algorithm = Some(name.into());
        self.algorithm = Some(algorithm);
        self
    }

    /// Replaces the participation policy. `name` is stored with the campaign.
    ///
    /// The cohorts of the policy are corrected: devices outside the fleet are removed, an empty cohort
    /// becomes the whole fleet, and the target is raised to at least 1.
    #[must_use]
    pub fn with_participation(
        mut self,
        name: impl Into<String>,
        participation: Box<dyn Participation>,
    ) -> Self {
        self.names.participation = Some(name.into());
        self.participation = Some(Box::new(Corrected(participation)));
        self
    }

    /// Replaces the aggregation rule. The name and parameters of the rule are stored with the campaign.
    #[must_use]
    pub fn with_rule(self, rule: Rule) -> Self {
        Self { rule: Some(rule), ..self }
    }

    /// Adds a setting of a custom algorithm or policy, which is stored with the campaign. A stored campaign
    /// can be resumed only with the same value.
    #[must_use]
    pub fn with_setting(mut self, key: impl Into<String>, value: f64) -> Self {
        self.names.settings.insert(key.into(), value);
        self
    }

    /// Names and settings of the parts.
    #[must_use]
    pub fn names(&self) -> &CustomNames {
        &self.names
    }

    /// Custom aggregation rule, if one was given.
    #[must_use]
    pub fn rule(&self) -> Option<Rule> {
        self.rule
    }

    /// Checks the parts against a campaign; `shape` returns the rows and columns of its representation.
    /// `scaled` is whether rounds contain a scale as one more tensor; `private` is whether devices must add
    /// noise to updates.
    ///
    /// # Errors
    /// [`CustomError`] for the first part that does not fit.
    pub fn check(
        &mut self,
        shape: impl FnOnce() -> (usize, usize),
        scaled: bool,
        private: bool,
    ) -> Result<(), CustomError> {
        let CustomNames { algorithm: name, participation, settings } = &self.names;
        for (part, name) in [("algorithm", name), ("participation policy", participation)] {
            if name.as_ref().is_some_and(String::is_empty) {
                return Err(CustomError::Name { part });
            }
        }
        let is_key = |key: &str| {
            !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        if let Some((key, value)) = settings.iter().find(|(key, value)| !is_key(key) || !value.is_finite()) {
            return Err(CustomError::Setting { key: key.clone(), value: *value });
        }
        if let Some(rule @ Rule::Custom(_)) = &self.rule {
            let rule = rule.as_str();
            if rule.is_empty() {
                return Err(CustomError::Name { part: "aggregation rule" });
            }
            if Rule::NAMES.iter().any(|(built_in, _)| *built_in == rule) {
                return Err(CustomError::RuleName { name: rule.to_owned() });
            }
        }
        if let (Some(algorithm), Some(rule)) = (name, &self.rule) {
            let rule = rule.as_str().to_owned();
            return Err(CustomError::RuleBesideAlgorithm { algorithm: algorithm.clone(), rule });
        }
        if let (Some(name), Some(algorithm)) = (name, &mut self.algorithm) {
            check_algorithm(name, algorithm.as_ref(), shape(), scaled, private)?;
            let state = algorithm.state();
            if !algorithm.restore(&state) {
                return Err(CustomError::State { part: "algorithm", values: state.len() });
            }
        }
        if let Some(participation) = &mut self.participation {
            let state = participation.state();
            if !participation.restore(&state) {
                return Err(CustomError::State { part: "participation policy", values: state.len() });
            }
        }
        Ok(())
    }
}

/// Checks the representation and the requests of a custom algorithm.
fn check_algorithm(
    name: &str,
    algorithm: &dyn Algorithm,
    allowed: (usize, usize),
    scaled: bool,
    private: bool,
) -> Result<(), CustomError> {
    let owned_name = || name.to_owned();
    let found = algorithm.representation().shape();
    if found != allowed {
        return Err(CustomError::Representation { algorithm: owned_name(), found, allowed });
    }
    for Request { task, tensors, encoding, expects } in algorithm.requests() {
        let tensors_max = TENSORS_MAX - usize::from(scaled);
        for (found, allowed) in [(tensors.len(), tensors_max), (expects.len(), TENSORS_MAX)] {
            if found > allowed {
                return Err(CustomError::Tensors { algorithm: owned_name(), found, allowed });
            }
        }
        let down: Descriptors = tensors.iter().map(|tensor| tensor.descriptor(encoding)).collect();
        let up: Descriptors = expects.iter().copied().collect();
        for tensors in [down, up] {
            if least_frame_limit(&tensors) > FRAME_LIMIT_MAX {
                let values = tensors.iter().map(|tensor| tensor.elements()).sum();
                return Err(CustomError::Frames { algorithm: owned_name(), values });
            }
        }
        let is_noisy = matches!(task, Task::FedRep { .. } | Task::FedPower { .. });
        if private && !expects.is_empty() && !is_noisy {
            return Err(CustomError::NoNoise { algorithm: owned_name() });
        }
    }
    Ok(())
}

/// Wrapper of a custom policy that corrects its cohorts, because a round for devices outside the fleet might
/// never end.
struct Corrected(Box<dyn Participation>);

impl Participation for Corrected {
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort {
        let mut cohort = self.0.cohort(round, fleet);
        cohort.devices.sort_unstable();
        cohort.devices.dedup();
        cohort.devices.retain(|device| fleet.binary_search(device).is_ok());
        if cohort.devices.is_empty() {
            return Cohort { stage: cohort.stage, ..Cohort::new(fleet.to_vec()) };
        }
        cohort.target = cohort.target.max(1);
        cohort
    }

    fn counted(&mut self, answer: &UpdateArrival<'_>) {
        self.0.counted(answer);
    }

    fn closed(&mut self, closed: &ClosedRound<'_>) {
        self.0.closed(closed);
    }

    fn state(&self) -> Vec<f64> {
        self.0.state()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        self.0.restore(state)
    }
}
