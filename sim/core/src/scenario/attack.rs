//! `[attack]`: the fraction of the fleet that attacks, and the kind of attack.

use fedspan_engine::algorithm::{FedAvgSettings, LinearAlgorithm};
use fedspan_engine::config::{AlgorithmSection, Problem, Section};
use fedspan_protocol::message::Upload;

/// Largest fraction of a fleet that may attack: no aggregation rule tolerates a half.
const LARGEST_FRACTION: f64 = 0.49;

/// Samples declared by attackers whose only lie is that number.
const INFLATED_SAMPLES: u32 = 1_000_000_000;

/// `[attack]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttackSection {
    /// Update that attackers send in place of their own.
    pub kind: Attack,
    /// Fraction of the fleet that attacks.
    pub fraction: f64,
    /// Samples that attackers declare; `None` for their true number.
    pub samples: Option<u32>,
}

/// Update that attackers send. Attackers collude; those that need the honest updates of the round know them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attack {
    /// Their own step, negated and scaled by this factor.
    SignFlip(f64),
    /// The negated mean of the honest steps, scaled by this factor (inner-product manipulation, Xie et al.
    /// 2020).
    InnerProduct(f64),
    /// The mean of the honest steps minus this many of their standard deviations per coordinate ("a little is
    /// enough", Baruch et al. 2019); `None` derives the number from the sizes of the fleet and of the attack,
    /// as the paper does.
    LittleIsEnough(Option<f64>),
    /// Gaussian noise, scaled to this many times the length of an honest step.
    Gaussian(f64),
    /// Their own step, scaled by this factor.
    Scale(f64),
    /// The update of one honest device, sent by every attacker (Karimireddy et al. 2022).
    Mimic,
    /// An update with one NaN.
    Nan,
    /// An update with one infinite value.
    Infinite,
    /// Their own update with a false number of samples.
    Samples,
    /// A plane orthogonal to the representation, the same for all attackers.
    OrthogonalPlane,
}

/// A scenario that real devices cannot run: it has an attack, or step sizes that only a simulation measures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct AttackNotAllowed {
    /// Name of the scenario.
    pub name: String,
    /// Reason, and the remedy.
    pub reason: &'static str,
}

/// Reads the section; `None` without an attack.
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
                format!("found {strength}, but this kind of attack has none: leave it out"),
            )
        })?,
    };
    Ok(Some(AttackSection { kind, fraction, samples }))
}

/// Checks that the algorithm's uploads admit the attack.
///
/// # Errors
/// [`Problem`] if the algorithm uploads nothing, or no representation where the attack replaces one.
pub fn check_attack(
    attack: Option<AttackSection>,
    algorithm: &AlgorithmSection,
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
    Ok(())
}

impl Attack {
    /// Sets the strength; `None` if the attack has none.
    fn with_strength(self, strength: f64) -> Option<Self> {
        Some(match self {
            Self::SignFlip(_) => Self::SignFlip(strength),
            Self::InnerProduct(_) => Self::InnerProduct(strength),
            Self::LittleIsEnough(_) => Self::LittleIsEnough(Some(strength)),
            Self::Gaussian(_) => Self::Gaussian(strength),
            Self::Scale(_) => Self::Scale(strength),
            _ => return None,
        })
    }
}
