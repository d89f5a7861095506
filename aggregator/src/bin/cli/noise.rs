//! Options of `keys export` that set the noise in provisioning records.

use std::time::Duration;

use clap::Args;
use fedspan_aggregator::config::Fleet;
use fedspan_engine::privacy::ledger_units::{epsilon_of, provisioned};
use fedspan_engine::privacy::shown;
use fedspan_engine::privacy::{Delta, Epsilon, Releases};
use fedspan_protocol::secure::ProvisionedNoise;

/// Largest cap on the rows of a round.
const ROWS_MAX: u32 = 1 << 30;

/// Noise that records make devices add to their updates. Their firmware needs the features `privacy` or
/// `power`.
#[derive(Args)]
#[command(next_help_heading = "Noise, in provisioning records")]
pub struct NoiseOptions {
    /// Privacy loss epsilon of all releases of a device's life, for each of its records.
    #[arg(long, value_name = "X", requires = "delta", requires = "releases", requires = "slot")]
    epsilon: Option<f64>,
    /// Probability delta for which epsilon holds.
    #[arg(long, value_name = "X", requires = "epsilon")]
    delta: Option<f64>,
    /// Number of releases: power iterations, and updates of FedRep.
    #[arg(long, value_name = "N", requires = "epsilon")]
    releases: Option<u32>,
    /// Fixed time from the start of a computation to its answer, in milliseconds; must exceed the longest
    /// computation.
    #[arg(long, value_name = "MS", requires = "epsilon")]
    slot: Option<u32>,
    /// Most samples of a round that count.
    #[arg(long, value_name = "N", requires = "epsilon", default_value_t = 32_768)]
    rows: u32,
    /// Most power iterations, or gradient steps of a head, that a round may ask for.
    #[arg(long, value_name = "N", requires = "epsilon", default_value_t = 1)]
    iterations: u16,
    /// Norm that FedRep's gradients are clipped to; without it no gradient is sent.
    #[arg(long, value_name = "X", requires = "epsilon")]
    clip: Option<f32>,
    /// Records without noise although [privacy] asks for it: the firmware adds its own.
    #[arg(long, conflicts_with = "epsilon")]
    without_noise: bool,
}

impl NoiseOptions {
    /// Returns an error if options for noise are given for the text format of keys, which cannot contain
    /// noise.
    pub fn check_for_lines(&self) -> Result<(), String> {
        match (self.epsilon, self.without_noise) {
            (None, false) => Ok(()),
            (Some(_), _) => Err("--epsilon is for provisioning records: --flash, or -o NAME.bin".to_owned()),
            (None, true) => {
                Err("--without-noise is for provisioning records: --flash, or -o NAME.bin".to_owned())
            }
        }
    }

    /// Returns the noise for the records of a fleet; `None` for records without noise.
    ///
    /// # Errors
    /// A message if the options are invalid, or devices with these records could not take part.
    pub fn for_records(&self, fleet: &Fleet) -> Result<Option<ProvisionedNoise>, String> {
        let noise = self.provisioned()?;
        match (&noise, fleet.privacy) {
            (Some(noise), _) => self.check_fleet(noise, fleet)?,
            (None, Some(_)) if !self.without_noise => {
                return Err("[privacy] asks devices for noise: say how much with --epsilon, or --without-noise where \
                            their firmware has its own"
                    .to_owned());
            }
            (None, _) => {}
        }
        Ok(noise)
    }

    /// Returns the noise that the options describe; `None` without `--epsilon`.
    fn provisioned(&self) -> Result<Option<ProvisionedNoise>, String> {
        let (Some(epsilon), Some(delta), Some(releases), Some(slot)) =
            (self.epsilon, self.delta, self.releases, self.slot)
        else {
            return Ok(None);
        };
        let epsilon = Epsilon::new(epsilon).map_err(|error| error.to_string())?;
        let delta = Delta::new(delta).map_err(|error| error.to_string())?;
        let releases = Releases::new(releases).map_err(|error| error.to_string())?;
        let (multiplier_square, budget) =
            provisioned(epsilon, delta, releases).map_err(|error| error.to_string())?;
        let Self { rows: rows_max, iterations: iterations_max, clip, .. } = *self;
        if !(1..=ROWS_MAX).contains(&rows_max) {
            return Err(format!("--rows {rows_max}: 1 to {ROWS_MAX}"));
        }
        if iterations_max == 0 || u32::from(iterations_max) > releases.get() {
            let releases = releases.get();
            return Err(format!(
                "--iterations {iterations_max}: 1 to the {releases} releases that there can be"
            ));
        }
        if slot == 0 {
            return Err("--slot 0: at least 1".to_owned());
        }
        if let Some(clip) = clip.filter(|clip| !(clip.is_finite() && *clip > 0.0)) {
            return Err(format!("--clip {clip}: finite and above 0"));
        }
        let clip = clip.unwrap_or(0.0);
        Ok(Some(ProvisionedNoise { multiplier_square, budget, rows_max, slot, clip, iterations_max }))
    }

    /// Checks that a server of this fleet admits devices with this noise, and that the time of an answer is
    /// below the deadline of rounds and the idle timeout.
    fn check_fleet(&self, noise: &ProvisionedNoise, fleet: &Fleet) -> Result<(), String> {
        if let Some(minimum) = fleet.privacy.filter(|minimum| noise.budget > minimum.budget()) {
            let (epsilon_max, delta) = (minimum.epsilon.get(), minimum.delta.get());
            let epsilon = shown(epsilon_of(noise.budget, minimum.delta));
            return Err(format!(
                "that is epsilon {epsilon} at delta {delta}; [privacy] asks for {epsilon_max} at most"
            ));
        }
        let slot = Duration::from_millis(noise.slot.into());
        let limits =
            [("[rounds] deadline", fleet.rounds.deadline), ("[limits] idle", Some(fleet.limits.idle))];
        for (name, limit) in limits {
            if let Some(limit) = limit.filter(|limit| *limit <= slot) {
                let limit = limit.as_secs_f64();
                return Err(format!(
                    "--slot {}: {name} is {limit} s, which no device with it keeps",
                    noise.slot
                ));
            }
        }
        Ok(())
    }
}

/// Returns the noise multiplier: the ratio of standard deviation to sensitivity.
#[allow(clippy::cast_precision_loss, reason = "41 bits")]
pub fn multiplier(noise: &ProvisionedNoise) -> f64 {
    (noise.multiplier_square as f64 / 65_536.0).sqrt()
}
