//! Section `[privacy]` of configuration files: in a scenario, the guarantee for each record; in `fleet.toml`,
//! the requirement on each device.

use std::ops::RangeInclusive;

use fedspan_protocol::message::Numeric;
use fedspan_protocol::tensor::Encoding;

use super::algorithm::AlgorithmSection;
use crate::algorithm::Noise;
use crate::privacy::fedpower::{Calibration, Products};
use crate::privacy::ledger_units::{max_units, min_multiplier_square};
use crate::privacy::{Delta, Epsilon, ParameterError, PrivacyRequirement, Releases, rounded_down};
use crate::reader::Problem;
use crate::reader::Section;

/// Range of clipping norms that devices can represent.
const CLIPS: RangeInclusive<f64> = 1e-12..=1e12;

/// Settings of the section `[privacy]` of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrivacySection {
    /// Epsilon for all releases together.
    pub epsilon: Epsilon,
    /// Delta of that epsilon.
    pub delta: Delta,
    /// Calibration of the noise.
    pub calibration: Calibration,
    /// Norm to which devices clip FedRep's gradients.
    pub clip: Option<f64>,
}

impl PrivacySection {
    /// Square of the noise multiplier (standard deviation over attained sensitivity) for `releases` products
    /// with bases of `rank` columns. It is in units of 2^-16, as devices are provisioned, and rounded up. It
    /// is the smallest square with which neither the devices' charges for all releases nor the printed
    /// epsilon exceed the requested epsilon.
    ///
    /// # Errors
    /// [`ParameterError`] if no noise suffices, or a parameter is invalid.
    pub fn multiplier_square(&self, rank: u32, releases: u32) -> Result<u64, ParameterError> {
        let products = Products::new(rank, 1.0)?;
        let epsilon = rounded_down(self.epsilon);
        let delta = self.delta;
        let releases = Releases::new(releases)?;
        let noise = products.noise(self.calibration, epsilon, delta, releases)?;
        let multiplier = noise / products.sensitivity(Calibration::Tight);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let square = (multiplier * multiplier * 65_536.0).ceil() as u64;
        // A device charges whole units per release, rounded up. The sum of these charges must not exceed
        // epsilon either.
        let min_square = min_multiplier_square(max_units(epsilon, delta), releases);
        let (epsilon, delta, releases) = (epsilon.get(), delta.get(), releases.get());
        min_square.map(|min_square| min_square.max(square)).ok_or(ParameterError::OutOfReach {
            epsilon,
            delta,
            releases,
        })
    }
}

/// Reads `[privacy]` of a scenario; `None` without the section.
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

/// Reads `[privacy]` of a server: the minimum privacy that every device must guarantee; `None` without the
/// section.
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

/// Checks that devices can add noise with this algorithm and arithmetic.
///
/// # Errors
/// [`Problem`] if they cannot.
pub fn check_private_algorithm(algorithm: &AlgorithmSection, section: &Section<'_>) -> Result<(), Problem> {
    let noise = algorithm.linear().map_or(Noise::Unsupported, |method| method.noise());
    if noise == Noise::Unsupported {
        let message = format!(
            "{:?}{} adds no noise; allowed with [privacy]: \"fedrep\", \"gd-gd\", \"fedpower\", on linear models",
            algorithm.name(),
            if algorithm.network().is_some() { " on a network" } else { "" }
        );
        return Err(section.problem("name", message));
    }
    if noise == Noise::Gradients && algorithm.numeric != Some(Numeric::F32) {
        let found = if algorithm.numeric.is_some() { "i16" } else { "any" };
        let message = format!(
            "found {found:?}, in which devices add no noise to gradients; allowed with [privacy]: \"f32\""
        );
        return Err(section.problem("numeric", message));
    }
    if algorithm.upload == Encoding::I8TopK {
        let message = "found \"i8-top-k\", in which devices send no noisy gradients; allowed with [privacy]: \"f32\", \"f16\", \"i8\"";
        return Err(section.problem("upload", message));
    }
    Ok(())
}

/// Reads the keys `epsilon` and `delta`.
fn read_epsilon_delta(section: &Section<'_>) -> Result<PrivacyRequirement, Problem> {
    let epsilon = section.number("epsilon", None, 1e-6..=1e6)?;
    let delta = section.number("delta", None, 1e-30..=0.999)?;
    let epsilon = Epsilon::new(epsilon).map_err(|error| section.problem("epsilon", error))?;
    let delta = Delta::new(delta).map_err(|error| section.problem("delta", error))?;
    Ok(PrivacyRequirement { epsilon, delta })
}
