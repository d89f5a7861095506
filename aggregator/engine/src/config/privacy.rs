//! `[privacy]`: what is promised to each record (scenarios), or asked of each device (servers).

use std::ops::RangeInclusive;

use fedspan_protocol::message::Numeric;

use super::algorithm_name::AlgorithmName;
use super::reader::Section;
use super::sections::AlgorithmSection;
use super::source::Problem;
use crate::privacy::fedpower::{Calibration, Products};
use crate::privacy::ledger_units::{max_units, min_multiplier_square};
use crate::privacy::{Delta, Epsilon, ParameterError, PrivacyRequirement, Releases, rounded_down};

/// What gradients may be clipped to: what devices count in.
const CLIPS: RangeInclusive<f64> = 1e-12..=1e12;

/// `[privacy]` of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrivacySection {
    /// Epsilon, for all releases together.
    pub epsilon: Epsilon,
    /// Delta.
    pub delta: Delta,
    /// How the noise is found.
    pub calibration: Calibration,
    /// The norm that FedRep's gradients are clipped to.
    pub clip: Option<f64>,
}

impl PrivacySection {
    /// The square of the noise multiplier (standard deviation over attained sensitivity) of so many products with bases of
    /// `rank` columns, in the 2^-16 in which devices are told it, rounded up: the least with which what devices are charged for
    /// all of them is not above epsilon, nor is that as it is printed.
    ///
    /// # Errors
    /// [`ParameterError`] where no noise is enough.
    pub fn multiplier_square(&self, rank: u32, releases: u32) -> Result<u64, ParameterError> {
        let products = Products::new(rank, 1.0)?;
        let (epsilon, delta, releases) = (rounded_down(self.epsilon), self.delta, Releases::new(releases)?);
        let noise = products.noise(self.calibration, epsilon, delta, releases)?;
        let multiplier = noise / products.sensitivity(Calibration::Tight);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let square = (multiplier * multiplier * 65_536.0).ceil() as u64;
        // Devices are charged whole units for a release, rounded up: what they are charged has to stay within epsilon, too.
        let charged = min_multiplier_square(max_units(epsilon, delta), releases);
        let (epsilon, delta, releases) = (epsilon.get(), delta.get(), releases.get());
        charged.map(|charged| charged.max(square)).ok_or(ParameterError::OutOfReach {
            epsilon,
            delta,
            releases,
        })
    }
}

/// Reads `[privacy]` of a scenario; `None` where there is none.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_privacy(section: &Section<'_>) -> Result<Option<PrivacySection>, Problem> {
    if !section.is_present() {
        return Ok(None);
    }
    let PrivacyRequirement { epsilon, delta } = read_epsilon_delta(section)?;
    let calibrations = [Calibration::Tight, Calibration::Paper].map(|c| (c.as_str(), c));
    let calibration = section.choice("calibration", Some(Calibration::Tight.as_str()), &calibrations)?;
    let clip = section.optional_number("clip", CLIPS)?;
    section.finish()?;
    Ok(Some(PrivacySection { epsilon, delta, calibration, clip }))
}

/// Reads `[privacy]` of a server: the least that devices must promise; `None` where they need not.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_privacy_requirement(section: &Section<'_>) -> Result<Option<PrivacyRequirement>, Problem> {
    if !section.is_present() {
        return Ok(None);
    }
    let minimum = read_epsilon_delta(section)?;
    section.finish()?;
    Ok(Some(minimum))
}

/// Noise is for what can be hidden in it.
///
/// # Errors
/// [`Problem`] for an algorithm, or an arithmetic, in which devices hide nothing.
pub fn check_private_algorithm(algorithm: &AlgorithmSection, section: &Section<'_>) -> Result<(), Problem> {
    let gradients = matches!(algorithm.name, AlgorithmName::FedRep | AlgorithmName::GdGd);
    if algorithm.network.is_some() || !gradients && algorithm.power.is_none() {
        let message = format!(
            "{:?}{} adds no noise; allowed with [privacy]: \"fedrep\", \"gd-gd\", \"fedpower\", on linear models",
            algorithm.name.as_str(),
            if algorithm.network.is_some() { " on a network" } else { "" }
        );
        return Err(section.problem("name", message));
    }
    if gradients && algorithm.numeric != Numeric::F32 {
        let message = "found \"i16\", in which no gradient is hidden; allowed with [privacy]: \"f32\"";
        return Err(section.problem("numeric", message));
    }
    Ok(())
}

fn read_epsilon_delta(section: &Section<'_>) -> Result<PrivacyRequirement, Problem> {
    let epsilon = section.number("epsilon", None, 1e-6..=1e6)?;
    let delta = section.number("delta", None, 1e-30..=0.999)?;
    let epsilon = Epsilon::new(epsilon).map_err(|error| section.problem("epsilon", error))?;
    let delta = Delta::new(delta).map_err(|error| section.problem("delta", error))?;
    Ok(PrivacyRequirement { epsilon, delta })
}
