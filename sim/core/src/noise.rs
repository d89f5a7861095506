//! Privacy noise of simulated devices: the client's privacy mechanism, with seeds that make simulations
//! reproducible.

use fedspan_client::Mechanism;
use fedspan_client::Millis;
use fedspan_client::privacy::{Clip, Clipping, NoEntropy, NoiseMultiplier, PrivacySettings, Seed};
use fedspan_engine::random::{Purpose, stream};

use crate::data::Dataset;
use crate::scenario::Scenario;

/// Time slot on the session's clock in which a device that adds noise computes without sending. A simulation
/// advances the clock by this time; a device on a host computes in less time.
pub const SLOT: Millis = Millis::new(1_000);

/// Noise and clipping settings that all devices of a fleet share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseConfig {
    /// Noise multiplier, release budget and time slot.
    pub settings: PrivacySettings,
    /// Clipping of whole gradients; `None` if gradients are not clipped.
    pub clip: Option<Clip>,
}

/// Noise settings of a scenario's devices; `None` if the scenario has no section `[privacy]`. The budget of a
/// device covers all iterations and rounds of the scenario, including the start rounds, which compute the
/// initial representation.
///
/// # Errors
/// A one-line message with the numbers if the client does not support the noise.
pub fn settings(scenario: &Scenario, dataset: &Dataset) -> Result<Option<NoiseConfig>, String> {
    let Some(square) = scenario.multiplier_square()? else { return Ok(None) };
    let rows = dataset.clients.iter().chain(&dataset.newcomers).map(|client| client.train.len());
    let rows = u32::try_from(rows.max().unwrap_or(1).max(1)).unwrap_or(u32::MAX);
    let side = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let multiplier = NoiseMultiplier::from_square(square).map_err(|error| error.to_string())?;
    let budget = u64::from(multiplier.release()) * u64::from(scenario.releases().unwrap_or(0));
    let settings = PrivacySettings::new(multiplier, budget, rows, SLOT).map_err(|error| error.to_string())?;
    // Devices accept any number of iterations, since the budget limits the releases to those of the scenario.
    let settings = settings.with_iterations(u16::MAX);
    settings.variance(side(dataset.features), side(scenario.model.k)).map_err(|error| error.to_string())?;
    #[allow(clippy::cast_possible_truncation, reason = "15 bits of it count")]
    let clip = scenario.privacy.and_then(|privacy| privacy.clip).map(|clip| Clip::new(clip as f32));
    let clip = clip.transpose().map_err(|error| error.to_string())?;
    Ok(Some(NoiseConfig { settings, clip }))
}

/// Source of the seeds for the noise of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedSource {
    /// Entropy of the system, for devices that are connected to a real server.
    System,
    /// Seed of a run, from which the noise is derived. With a known seed the noise can be subtracted.
    Deterministic(u64),
}

/// Privacy mechanism of a simulated device; adds no noise if it was made without a [`NoiseConfig`].
#[derive(Debug)]
pub struct SimNoise {
    settings: Option<PrivacySettings>,
    clipping: Option<Clipping>,
    seeds: SeedSource,
    device: u64,
    seeds_drawn: u32,
}

impl SimNoise {
    /// Creates the privacy mechanism of a device that has drawn `seeds_drawn` seeds before.
    #[must_use]
    pub fn new(noise: Option<NoiseConfig>, seeds: SeedSource, device: u64, seeds_drawn: u32) -> Self {
        let settings = noise.map(|noise| noise.settings);
        let clipping = noise.and_then(|noise| noise.clip).map(Clipping::new);
        Self { settings, clipping, seeds, device, seeds_drawn }
    }

    /// Number of seeds that the device has drawn.
    #[must_use]
    pub fn seeds_drawn(&self) -> u32 {
        self.seeds_drawn
    }
}

impl Mechanism for SimNoise {
    fn settings(&self) -> Option<PrivacySettings> {
        self.settings
    }

    fn clipping(&self) -> Option<&Clipping> {
        self.clipping.as_ref()
    }

    fn clipping_mut(&mut self) -> Option<&mut Clipping> {
        self.clipping.as_mut()
    }

    fn draw_seed(&mut self) -> Result<Seed, NoEntropy> {
        self.seeds_drawn += 1;
        match self.seeds {
            SeedSource::Deterministic(seed) => Ok(noise_seed(seed, self.seeds_drawn, self.device)),
            SeedSource::System => {
                let mut bytes = [0; 32];
                getrandom::fill(&mut bytes).map_err(|_| NoEntropy)?;
                Ok(Seed::new(bytes))
            }
        }
    }
}

/// Seed of the noise in a device's release number `release`, counted from 1. Must not be used for devices
/// with real data, since the noise can be computed from the seed of the run.
#[must_use]
pub fn noise_seed(seed: u64, release: u32, device: u64) -> Seed {
    let mut random = stream(seed, Purpose::Noise, u64::from(release) << 32 | device);
    let mut bytes = [0; 32];
    for part in bytes.as_chunks_mut::<8>().0 {
        *part = random.bits().to_le_bytes();
    }
    Seed::new(bytes)
}
