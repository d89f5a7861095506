//! Reader of the section `[attack]`: the kind of attack and the fraction of attackers in the fleet.

use fedspan_engine::algorithm::{FedAvgSettings, FedRepSettings, GdGdSettings, LinearAlgorithm, ScaleSource};
use fedspan_engine::config::{AlgorithmSection, Problem, Section};
use fedspan_protocol::message::Upload;

/// Largest fraction of attackers in a fleet: no aggregation rule tolerates a half.
const LARGEST_FRACTION: f64 = 0.49;

/// Number of candidates of the attack `search`.
pub const SEARCH_CANDIDATES: u16 = 25;

/// Default number of samples that attackers declare in the attack `samples`.
const INFLATED_SAMPLES: u32 = 1_000_000_000;

/// Section `[attack]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttackSection {
    /// Update that attackers send in place of the computed update.
    pub kind: Attack,
    /// Fraction of attackers in the fleet.
    pub fraction: f64,
    /// Number of samples that attackers declare; `None` for the true number.
    pub samples: Option<u32>,
}

/// Update that attackers send. Attackers collude and know the honest updates of the round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attack {
    /// The attacker's computed step, negated and scaled by this factor.
    SignFlip(f64),
    /// The negated mean of the honest steps, scaled by this factor (inner-product manipulation, Xie et al.
    /// 2020).
    InnerProduct(f64),
    /// The mean of the honest steps minus a multiple of their standard deviation in each coordinate ("a
    /// little is enough", Baruch et al. 2019). If the multiple is `None`, it is derived from the numbers of
    /// devices and attackers, as in the paper.
    LittleIsEnough(Option<f64>),
    /// Gaussian noise, whose norm is this multiple of the norm of an honest step.
    Gaussian(f64),
    /// The attacker's computed step, scaled by this factor.
    Scale(f64),
    /// The update of one honest device, which is the same for all attackers (Karimireddy et al. 2022).
    Mimic,
    /// An update with one NaN value.
    Nan,
    /// An update with one infinite value.
    Infinite,
    /// The attacker's computed update, with a false number of samples.
    Samples,
    /// A plane orthogonal to the representation, which is the same for all attackers.
    OrthogonalPlane,
    /// A step against the mean of the honest steps, of the median norm of the honest steps. Each attacker
    /// mixes in a random direction, such that the cosine between the steps of two attackers is this number.
    Opposing(f64),
    /// A rank-one step against the mean of the honest steps in one random head direction of each attacker, of
    /// the median norm of the honest steps: the form of an honest gradient with one output. The attackers draw
    /// their directions from the span of the head directions, this number of them, in which the mean of the
    /// honest steps is smallest; `None` for all head directions.
    OpposingRankOne(Option<u16>),
    /// The honest update for poisoned data. Real-valued targets are this number times one fixed linear function
    /// of the features, which is the same for all attackers; classes are replaced by the next class.
    PoisonedTargets(f64),
    /// The collusion after which the representation is farthest from the truth, among the first of
    /// [`SEARCH_CANDIDATES`] candidates, this number of them. The attackers rehearse the round with the server's
    /// checks and rule. Without a truth, the distance is from the representation that the honest updates alone
    /// give.
    Search(u16),
    /// A rank-one step of a direction that is orthogonal to the truth and is the same in all rounds, each
    /// attacker with its own head direction, as long as this multiple of the median norm of the honest steps.
    Drift(f64),
}

/// Reason why real devices cannot run a scenario: it has an attack, or step sizes that can only be measured
/// in a simulation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct AttackNotAllowed {
    /// Name of the scenario.
    pub name: String,
    /// Reason, with the remedy.
    pub reason: &'static str,
}

/// Reads the section. Returns `None` if no attack is configured.
///
/// # Errors
/// [`Problem`] for the first error.
pub fn read_attack(section: &Section<'_>) -> Result<Option<AttackSection>, Problem> {
    let kinds = [
        ("none", None),
        ("sign-flip", Some(Attack::SignFlip(10.0))),
        ("inner-product", Some(Attack::InnerProduct(0.5))),
        ("little-is-enough", Some(Attack::LittleIsEnough(None))),
        ("gaussian", Some(Attack::Gaussian(10.0))),
        ("scale", Some(Attack::Scale(1e6))),
        ("mimic", Some(Attack::Mimic)),
        ("nan", Some(Attack::Nan)),
        ("infinite", Some(Attack::Infinite)),
        ("samples", Some(Attack::Samples)),
        ("orthogonal-plane", Some(Attack::OrthogonalPlane)),
        ("opposing", Some(Attack::Opposing(1.0))),
        ("opposing-rank-one", Some(Attack::OpposingRankOne(None))),
        ("poisoned-targets", Some(Attack::PoisonedTargets(1.0))),
        ("search", Some(Attack::Search(SEARCH_CANDIDATES))),
        ("drift", Some(Attack::Drift(0.3))),
    ];
    let kind = section.choice("kind", Some("none"), &kinds)?;
    let fraction = section.number("fraction", Some(0.2), 0.0..=LARGEST_FRACTION)?;
    let strength = section.optional_number("strength", 0.0..=1e9)?;
    let samples = section.integer("samples", Some(0), 0..=u32::MAX.into())?;
    section.finish()?;
    let samples = match (samples, kind) {
        (0, Some(Attack::Samples)) => Some(INFLATED_SAMPLES),
        (0, _) => None,
        (samples, _) => Some(u32::try_from(samples).unwrap_or(u32::MAX)),
    };
    let kind = match (kind, strength) {
        (None, _) => return Ok(None),
        (Some(kind), None) => kind,
        (Some(kind), Some(strength)) => kind.with_strength(strength).ok_or_else(|| {
            section.problem(
                "strength",
                match kind {
                    Attack::Opposing(_) => {
                        format!("found {strength}, allowed for \"opposing\": a cosine from 0 to 1")
                    }
                    Attack::OpposingRankOne(_) => format!(
                        "found {strength}, allowed for \"opposing-rank-one\": a number of head directions, from 1 to 65535"
                    ),
                    Attack::Search(_) => format!(
                        "found {strength}, allowed for \"search\": a number of candidates, from 1 to {SEARCH_CANDIDATES}"
                    ),
                    _ => format!("found {strength}, but this kind of attack has none: leave it out"),
                },
            )
        })?,
    };
    Ok(Some(AttackSection { kind, fraction, samples }))
}

/// Checks that the attack is possible with the uploads of the algorithm.
///
/// # Errors
/// [`Problem`] if the algorithm has no uploads, if the attack replaces a representation and the algorithm
/// does not upload a representation, or if the attack rehearses rounds and the algorithm or the scale does not
/// allow that.
pub fn check_attack(
    attack: Option<AttackSection>,
    algorithm: &AlgorithmSection,
    scale: &ScaleSource,
    section: &Section<'_>,
) -> Result<(), Problem> {
    let Some(attack) = attack else { return Ok(()) };
    if !algorithm.is_federated() {
        let message =
            format!("{:?} sends nothing that could be attacked; allowed: \"none\"", algorithm.name());
        return Err(section.problem("kind", message));
    }
    let subspaces = algorithm.name() != FedAvgSettings::NAME && algorithm.send == Upload::Representation;
    if attack.kind == Attack::OrthogonalPlane && !subspaces {
        let message = "found \"orthogonal-plane\", which is sent in place of a representation: algorithm.send = \
                       \"representation\"";
        return Err(section.problem("kind", message));
    }
    if matches!(attack.kind, Attack::Search(_)) {
        let names = [FedRepSettings::NAME, GdGdSettings::NAME];
        if !names.contains(&algorithm.name()) {
            let message = format!(
                "found \"search\", whose attackers rehearse rounds of {names:?} only; algorithm.name is {:?}",
                algorithm.name()
            );
            return Err(section.problem("kind", message));
        }
        if matches!(scale, ScaleSource::Fleet) {
            let message = "found \"search\", which needs data.scale = \"none\"";
            return Err(section.problem("kind", message));
        }
    }
    Ok(())
}

impl Attack {
    /// Sets the strength of the attack. Returns `None` if this kind of attack has no strength or not this one.
    fn with_strength(self, strength: f64) -> Option<Self> {
        Some(match self {
            Self::SignFlip(_) => Self::SignFlip(strength),
            Self::InnerProduct(_) => Self::InnerProduct(strength),
            Self::LittleIsEnough(_) => Self::LittleIsEnough(Some(strength)),
            Self::Gaussian(_) => Self::Gaussian(strength),
            Self::Scale(_) => Self::Scale(strength),
            Self::Opposing(_) if strength <= 1.0 => Self::Opposing(strength),
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "an integer in the range"
            )]
            Self::OpposingRankOne(_) if strength.fract() == 0.0 && (1.0..=65535.0).contains(&strength) => {
                Self::OpposingRankOne(Some(strength as u16))
            }
            Self::PoisonedTargets(_) => Self::PoisonedTargets(strength),
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "an integer in the range"
            )]
            Self::Search(_)
                if strength.fract() == 0.0 && (1.0..=f64::from(SEARCH_CANDIDATES)).contains(&strength) =>
            {
                Self::Search(strength as u16)
            }
            Self::Drift(_) => Self::Drift(strength),
            _ => return None,
        })
    }
}
