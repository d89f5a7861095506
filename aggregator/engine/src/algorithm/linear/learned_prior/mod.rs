//! Heads with a prior that the fleet learns, by empirical Bayes on a linear mixed-effects model (Laird and Ware 1982, Biometrics 38;
//! Efron and Morris 1973, JASA 68).
//!
//! A head `V_i` (d x C) acts on all features. Its columns are drawn from a normal distribution with mean M and covariance
//! `S = B diag(a) B^T + f T^-1`: a representation B (d x k) with a variance for each column, and a *floor* f for all other directions,
//! in the metric T, which is the identity or the matrix of the fleet's second moments. M is 0, or the solution of least squares on the
//! samples of the whole fleet. Learning alone (M = 0, a = 0), one global model (a = 0, f = 0), a ridge towards the global model
//! (a = 0), least squares on the fleet's samples and one's own with larger weights (a = 0, T of second moments), and FedRep (M = 0,
//! f = 0) are special cases.
//!
//! The fleet decides between them by the evidence of devices on which the prior was not fitted: the devices form groups, and the
//! prior of all other groups is scored on the samples of each group (`evidence`). The variances are learned by
//! expectation-maximisation (Dempster, Laird and Rubin 1977) with sums of posterior second moments (`prior`). Where targets are classes,
//! steps against the errors of newcomers follow: devices fit heads on a few of their samples, and differentiate the errors of the
//! others by the covariance. That is meta-learning of a ridge regression (Bertinetto et al. 2019, ICLR) whose metric is learned, with
//! natural gradients (Amari 1998, Neural Computation 10).
//! `plan` has the order of the rounds, `server` the server side.

mod chosen;
mod evidence;
mod moments;
mod numbers;
mod plan;
mod prior;
mod server;

use fedspan_protocol::tensor::Encoding;
use toml_edit::Value;

use super::{LinearAlgorithm, LinearSettings, LinearStart, Uploads};
use crate::algorithm::Algorithm;
use crate::reader::{Problem, Section};
pub use chosen::{ChosenPrior, HeadPrior};
use plan::Plan;
pub use server::LearnedPrior;

/// Settings of heads with a learned prior.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedPriorSettings {
    /// Whether devices send second moments of their samples, from which the prior mean and the metric are computed.
    pub second_moments: bool,
    /// Number of groups of devices, each of which scores priors of the others.
    pub groups: u8,
    /// Rounds of expectation-maximisation for each group.
    pub learning_rounds: u8,
    /// Rounds after them for each group: steps against the errors of newcomers that devices simulate, or, where targets are no
    /// classes, more expectation-maximisation.
    pub refining_rounds: u8,
}

impl Default for LearnedPriorSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl LearnedPriorSettings {
    /// Settings of linear models in a file without the keys of this algorithm.
    pub(in crate::algorithm) const DEFAULT: Self =
        Self { second_moments: false, groups: 4, learning_rounds: 5, refining_rounds: 30 };

    /// Reads the keys of the table `own`, with these defaults.
    pub(in crate::algorithm) fn read_keys(own: &Section<'_>, default: Self) -> Result<Self, Problem> {
        let count = |key, default: u8, allowed| {
            let value = own.integer(key, Some(default.into()), allowed)?;
            Ok(u8::try_from(value).unwrap_or(u8::MAX))
        };
        Ok(Self {
            second_moments: own.boolean("second_moments", default.second_moments)?,
            groups: count("groups", default.groups, 2..=16)?,
            learning_rounds: count("learning_rounds", default.learning_rounds, 1..=100)?,
            refining_rounds: count("refining_rounds", default.refining_rounds, 0..=200)?,
        })
    }

    /// Passes each key, with its value, to `set`.
    pub(in crate::algorithm) fn write_keys(&self, set: &mut dyn FnMut(&str, Value)) {
        set("second_moments", self.second_moments.into());
        set("groups", i64::from(self.groups).into());
        set("learning_rounds", i64::from(self.learning_rounds).into());
        set("refining_rounds", i64::from(self.refining_rounds).into());
    }

    /// Number of rounds in which a prior is learned.
    #[must_use]
    pub fn prior_rounds(&self) -> u32 {
        Plan::new(*self).rounds()
    }

    /// Checks whether second moments of samples with this many features fit one tensor.
    ///
    /// # Errors
    /// A sentence with the number of features and the largest number allowed.
    pub fn check_features(&self, features: usize) -> Result<(), String> {
        if self.second_moments && features > FEATURES_MAX {
            return Err(format!(
                "samples have {features} features, and second moments are sent of at most {FEATURES_MAX}; set \
                 algorithm.learned-prior.second_moments = false"
            ));
        }
        Ok(())
    }
}

/// Largest number of features whose second moments fit a tensor of one row.
const FEATURES_MAX: usize = 361;

const _: () = assert!(moments::packed_len(FEATURES_MAX) <= u16::MAX as usize);
const _: () = assert!(moments::packed_len(FEATURES_MAX + 1) > u16::MAX as usize);

impl LinearAlgorithm for LearnedPriorSettings {
    const NAME: &'static str = "learned-prior";
    const SUMMARY: &'static str = "personal heads with a prior that the fleet learns (empirical Bayes); of networks after training by fedavg";
    const TAKES_STEPS: bool = false;
    const HAS_PRIOR: bool = true;

    fn read(section: &Section<'_>) -> Result<Self, Problem> {
        let own = section.section(Self::NAME)?;
        let settings = Self::read_keys(&own, Self::default())?;
        own.finish()?;
        Ok(settings)
    }

    fn write(&self, _settings: &LinearSettings, set: &mut dyn FnMut(&str, Value)) {
        self.write_keys(&mut |key, value| set(&format!("{}.{key}", Self::NAME), value));
    }

    fn rounds(&self) -> Option<u64> {
        Some(self.prior_rounds().into())
    }

    fn check(&self, settings: &LinearSettings) -> Result<(), (&'static str, String)> {
        for (key, encoding) in [("upload", settings.upload), ("download", settings.download)] {
            if encoding != Encoding::F32 {
                return Err((key, format!("found another encoding, {:?} sends \"f32\" only", Self::NAME)));
            }
        }
        Ok(())
    }

    fn uploads(&self, _settings: &LinearSettings) -> Uploads {
        Uploads::Vectors("moments of heads")
    }

    fn server(&self, start: LinearStart<'_>) -> Box<dyn Algorithm> {
        let LinearStart { rule, basis, outputs, first_device, .. } = start;
        Box::new(LearnedPrior::new(*self, rule, basis, outputs, first_device))
    }
}
