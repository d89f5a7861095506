//! Noise of simulated devices: the client's own privacy mechanism, with seeds that a simulation can
//! reproduce.

use fedspan_client::Mechanism;
use fedspan_client::Millis;
use fedspan_client::privacy::{Clip, Clipping, NoEntropy, NoiseMultiplier, PrivacySettings, Seed};
use fedspan_engine::random::{Purpose, stream};

use crate::data::Dataset;
use crate::scenario::Scenario;

/// Time a device that adds noise stays silent while it computes, on the session's clock. A simulation
/// advances that clock by itself; a device on a host computes in less than this.
pub const SLOT: Millis = Millis::new(1_000);

/// Noise and clipping settings of a fleet's devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseConfig {
    /// Noise multiplier, release budget and time slot.
    pub settings: PrivacySettings,
    /// Clipping of whole gradients; `None` if the algorithm does not clip.
    pub clip: Option<Clip>,
}

/// Noise settings of a scenario's devices; `None` without `[privacy]`. A device's budget covers all
/// iterations and rounds of the scenario, the start included.
///
/// # Errors
/// A one-line message with the numbers if the client cannot add such noise.
pub fn settings(scenario: &Scenario, dataset: &Dataset) -> Result<Option<NoiseConfig>, String> {
    let Some(square) = scenario.multiplier_square()? else { return Ok(None) };
    let rows = dataset.clients.iter().chain(&dataset.newcomers).map(|client| client.train.len());
    let rows = u32::try_from(rows.max().unwrap_or(1).max(1)).unwrap_or(u32::MAX);
    let side = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let multiplier = NoiseMultiplier::from_square(square).map_err(|error| error.to_string())?;
    let budget = u64::from(multiplier.release()) * u64::from(scenario.releases().unwrap_or(0));
    let settings = PrivacySettings::new(multiplier, budget, rows, SLOT).map_err(|error| error.to_string())?;
    // Devices accept any number of iterations: the budget is the limit, and the scenario's server asks for no
    // more.
    let settings = settings.with_iterations(u16::MAX);
    settings.variance(side(dataset.features), side(scenario.model.k)).map_err(|error| error.to_string())?;
    #[allow(clippy::cast_possible_truncation, reason = "15 bits of it count")]
    let clip = scenario.privacy.and_then(|privacy| privacy.clip).map(|clip| Clip::new(clip as f32));
    let clip = clip.transpose().map_err(|error| error.to_string())?;
    Ok(Some(NoiseConfig { settings, clip }))
}

/// Source of the seeds of a device's noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedSource {
    /// The system's entropy, for devices that talk to a real server.
    System,
    /// Derived from a run's seed: the same in every run, so anyone who knows the seed can subtract the noise.
    Deterministic(u64),
}

/// Privacy mechanism of a simulated device; adds nothing without a [`NoiseConfig`].
#[derive(Debug)]
pub struct SimNoise {
    settings: Option<PrivacySettings>,
    clipping: Option<Clipping>,
    seeds: SeedSource,
    device: u64,
    drawn: u32,
}

impl SimNoise {
    /// Makes the mechanism of device `device`.
    #[must_use]
    pub fn new(noise: Option<NoiseConfig>, seeds: SeedSource, device: u64) -> Self {
        let settings = noise.map(|noise| noise.settings);
        let clipping = noise.and_then(|noise| noise.clip).map(Clipping::new);
        Self { settings, clipping, seeds, device, drawn: 0 }
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
        self.drawn += 1;
        match self.seeds {
            SeedSource::Deterministic(seed) => Ok(noise_seed(seed, self.drawn, self.device)),
            SeedSource::System => {
                let mut bytes = [0; 32];
                getrandom::fill(&mut bytes).map_err(|_| NoEntropy)?;
                Ok(Seed::new(bytes))
            }
        }
    }
}

/// Seed of the noise in a device's update number `release`, counted from 1. Not for devices with real data:
/// anyone who knows the run's seed can compute the noise.
#[must_use]
pub fn noise_seed(seed: u64, release: u32, device: u64) -> Seed {
    let mut random = stream(seed, Purpose::Noise, u64::from(release) << 32 | device);
    let mut bytes = [0; 32];
    for part in bytes.as_chunks_mut::<8>().0 {
        *part = random.bits().to_le_bytes();
    }
    Seed::new(bytes)
}
