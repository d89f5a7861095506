//! `[attack]`: which devices lie, and how.

use fedspan_engine::config::{AlgorithmName, AlgorithmSection, Problem, Section};
use fedspan_protocol::message::Upload;

/// Largest part of a fleet that may lie: no rule can tell who a half is.
const LARGEST_FRACTION: f64 = 0.49;

/// What those declare who lie about nothing else.
const LIE: u32 = 1_000_000_000;

/// `[attack]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttackSection {
    /// What attackers send in place of their own update.
    pub kind: Attack,
    /// Part of the fleet that attacks.
    pub fraction: f64,
    /// Samples that attackers declare; without it those they have.
    pub samples: Option<u32>,
}

/// What attackers send. All who attack know each other; those that need the honest updates of the round know these, too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attack {
    /// Their own step, so many times, backwards.
    SignFlip(f64),
    /// Minus so many times the mean of the honest steps (inner-product manipulation, Xie et al. 2020).
    InnerProduct(f64),
    /// The mean of the honest steps less so many of their standard deviations, coordinate by coordinate ("a little is
    /// enough", Baruch et al. 2019); without a number as many as hide among as many devices.
    Little(Option<f64>),
    /// Noise, so many times as long as an honest step.
    Gaussian(f64),
    /// Their own step, so many times.
    Scale(f64),
    /// The update of one honest device, over and over (Karimireddy et al. 2022).
    Mimic,
    /// One value is no number.
    Nan,
    /// One value is infinite.
    Infinite,
    /// Their own update: what they declare is the lie.
    Samples,
    /// One plane orthogonal to the representation, the same for all.
    OrthogonalPlane,
}

/// Attackers in a scenario whose devices are real.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {what}")]
pub struct Attacked {
    /// The scenario.
    pub name: String,
    /// What is simulated only.
    pub what: &'static str,
}

/// Reads the section; `None` without an attack.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_attack(section: &Section<'_>) -> Result<Option<AttackSection>, Problem> {
    let kinds = [
        ("none", None),
        ("sign-flip", Some(Attack::SignFlip(10.0))),
        ("inner-product", Some(Attack::InnerProduct(0.5))),
        ("little-is-enough", Some(Attack::Little(None))),
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
        (0, Some(Attack::Samples)) => Some(LIE),
        (0, _) => None,
        (samples, _) => Some(u32::try_from(samples).unwrap_or(u32::MAX)),
    };
    let kind = match (kind, strength) {
        (None, _) => return Ok(None),
        (Some(kind), None) => kind,
        (Some(kind), Some(strength)) => kind.with(strength).ok_or_else(|| {
            section.problem("strength", format!("found {strength}, which this kind has no use for"))
        })?,
    };
    Ok(Some(AttackSection { kind, fraction, samples }))
}

/// Checks that what is uploaded can be attacked so.
///
/// # Errors
/// [`Problem`].
pub fn check_attack(
    attack: Option<AttackSection>,
    algorithm: &AlgorithmSection,
    section: &Section<'_>,
) -> Result<(), Problem> {
    let Some(attack) = attack else { return Ok(()) };
    if !algorithm.name.is_federated() {
        let message =
            format!("{:?} sends nothing that could be attacked; allowed: \"none\"", algorithm.name.word());
        return Err(section.problem("kind", message));
    }
    let subspaces = algorithm.name != AlgorithmName::FedAvg && algorithm.send == Upload::Representation;
    if attack.kind == Attack::OrthogonalPlane && !subspaces {
        let message = "found \"orthogonal-plane\", which is sent in place of a representation: algorithm.send = \
                       \"representation\"";
        return Err(section.problem("kind", message));
    }
    Ok(())
}

impl Attack {
    /// The same so strong; `None` if it has no strength.
    fn with(self, strength: f64) -> Option<Self> {
        Some(match self {
            Self::SignFlip(_) => Self::SignFlip(strength),
            Self::InnerProduct(_) => Self::InnerProduct(strength),
            Self::Little(_) => Self::Little(Some(strength)),
            Self::Gaussian(_) => Self::Gaussian(strength),
            Self::Scale(_) => Self::Scale(strength),
            _ => return None,
        })
    }
}
