//! Display texts of the typed reasons for refusals, declines and rejections.

use core::fmt;

use crate::message::{DeclineReason, FITS_BY_STEPS, Refusal, Rejection, Requirement};
use crate::tensor::Role;

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tasks(set) => write!(f, "tasks {set:#010b}"),
            Self::Roles(set) => write_roles(f, set),
            Self::Encodings(set) => write!(f, "encodings {set:#06b}"),
            Self::Numeric(numeric) => write!(f, "arithmetic {numeric:?}"),
            Self::TensorElements(count) => write!(f, "tensors of {count} elements"),
            Self::Tensors(count) => write!(f, "{count} tensors in one direction of a round"),
            Self::TotalElements(count) => write!(f, "{count} elements in one direction of a round"),
            Self::Privacy(budget) => {
                write!(f, "noise in updates, with a privacy budget of at most {:.6}", to_ratio(budget))
            }
        }
    }
}

/// Words for the tensors of a set of roles, in the order of the bits.
const ROLES: [(Role, &str); 21] = [
    (Role::Representation, "representations"),
    (Role::Gradient, "gradients"),
    (Role::Moment, "moments"),
    (Role::Subspace, "subspaces"),
    (Role::AdapterDown, "down-projections"),
    (Role::AdapterUp, "up-projections"),
    (Role::SharedHead, "shared heads"),
    (Role::FactoredHead, "factored heads"),
    (Role::FeatureSums, "sums of features"),
    (Role::RidgeScores, "scores of ridges"),
    (Role::Scale, "a scale of the features, which the device applies"),
    (Role::PriorMean, "means of a prior"),
    (Role::PriorVariances, "variances of a prior"),
    (Role::SecondMoments, "second moments of the features"),
    (Role::CrossMoments, "moments of features and targets"),
    (Role::HeadMoments, "moments of heads"),
    (Role::HeadSums, "sums of squares of heads"),
    (Role::PriorEvidence, "evidence for priors"),
    (Role::NewcomerGradient, "gradients of newcomers' errors"),
    (Role::NewcomerError, "errors of newcomers"),
    (Role::HeadPrior, "priors of a network's last layer"),
];

/// Lists the abilities and the tensors of a set of roles. Bits without a known role are shown as a number.
fn write_roles(f: &mut fmt::Formatter<'_>, set: u32) -> fmt::Result {
    let set = if set & FITS_BY_STEPS == 0 {
        set
    } else {
        f.write_str("heads by gradient steps")?;
        match set & !FITS_BY_STEPS {
            0 => return Ok(()),
            roles => {
                f.write_str(", ")?;
                roles
            }
        }
    };
    f.write_str("tensors:")?;
    let mut left = set;
    for (role, words) in ROLES.into_iter().filter(|(role, _)| set & role.bit() != 0) {
        let separator = if left == set { " " } else { ", " };
        write!(f, "{separator}{words}")?;
        left &= !role.bit();
    }
    if left == 0 { Ok(()) } else { write!(f, " and roles {left:#b}") }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::WireVersion { served } => write!(f, "the server speaks wire version {served}"),
            Self::Schema { served } => write!(f, "the server's messages have schema {served:08x}"),
            Self::Model { expected } => write!(f, "the campaign trains the model {expected}"),
            Self::Capability(need) => write!(f, "the campaign needs {need}"),
            Self::UnknownDevice => f.write_str("the server does not accept this device or its key"),
            Self::KeyNeeded => f.write_str("the server encrypts frames, and the device has no key"),
            Self::NoKeysHere => f.write_str("the server does not encrypt frames, and the device has a key"),
            Self::FrameLimit { min, max } => {
                write!(f, "the server accepts frame limits of {min} to {max} bytes")
            }
        }
    }
}

impl fmt::Display for DeclineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Task => f.write_str("the task is not available on this device"),
            Self::Tensors => f.write_str("the tensors do not match the task or the device"),
            Self::Parameter => f.write_str("a hyper-parameter is out of range"),
            Self::RoundRepeated { last } => write!(f, "the device has already finished round {last}"),
            Self::NonFinite => f.write_str("the representation is not finite"),
            Self::NotOrthonormal { error } => {
                write!(f, "the representation is not orthonormal: |B^T B - I| = {error:e}")
            }
            Self::NoSamples => f.write_str("the device has no usable sample"),
            Self::UpdateNonFinite => f.write_str("the update would not be finite"),
            Self::Device => f.write_str("the device could not read its samples or write its storage"),
            Self::Budget { left } => {
                write!(f, "the rest of the device's privacy budget is too small: {:.6}", to_ratio(left))
            }
            Self::Entropy => f.write_str("the device has no entropy for its noise"),
            Self::Undetermined => f.write_str("the samples do not determine the head"),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotAsked => f.write_str("the device was not invited to this round"),
            Self::WrongRound => f.write_str("no round with this number is open"),
            Self::Tensors => f.write_str("roles, shapes or encodings differ from the request"),
            Self::NonFinite => f.write_str("a value of the update is not finite"),
            Self::NormOverBound { norm, bound } => write!(f, "norm {norm:e} is above the bound {bound:e}"),
            Self::ContentChanged => f.write_str("a different update of this device was already counted"),
            Self::NoSamples => f.write_str("the update reports zero samples"),
        }
    }
}

impl core::error::Error for Refusal {}
impl core::error::Error for DeclineReason {}
impl core::error::Error for Rejection {}

/// Converts a privacy cost to the ratio of squared sensitivity to variance.
#[allow(clippy::cast_precision_loss, reason = "for a message")]
fn to_ratio(count: u64) -> f64 {
    count as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn roles_are_named() {
        let text = |set| Requirement::Roles(set).to_string();
        assert_eq!(text(Role::Scale.bit()), "tensors: a scale of the features, which the device applies");
        assert_eq!(text(Role::Gradient.bit() | Role::Moment.bit()), "tensors: gradients, moments");
        assert_eq!(text(FITS_BY_STEPS), "heads by gradient steps");
        assert_eq!(text(FITS_BY_STEPS | Role::Gradient.bit()), "heads by gradient steps, tensors: gradients");
        assert_eq!(text(Role::Gradient.bit() | 1 << 15), "tensors: gradients and roles 0b1000000000000000");
        // Every role has its words.
        assert!((0..11).all(|bit| !text(1 << bit).contains("roles")));
    }
}
