//! Noise of simulated devices: the client's own mechanism, with seeds that a simulation can draw again.

use fedspan_client::Mechanism;
use fedspan_client::privacy::{Clip, Clipping, NoEntropy, NoiseMultiplier, PrivacySettings, Seed};
use fedspan_client::session::Millis;
use fedspan_engine::random::{Purpose, stream};

use crate::data::Dataset;
use crate::scenario::Scenario;

/// How long a device that adds noise is quiet while it computes, on a clock of its own: a simulation sets that forward, and
/// a device on a host computes less long.
pub const SLOT: Millis = Millis::new(1_000);

/// How devices hide what they send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hiding {
    /// Of the noise.
    pub settings: PrivacySettings,
    /// Of whole gradients.
    pub clip: Option<Clip>,
}

/// How the devices of a scenario hide what they send; `None` without `[privacy]`. A device's budget is what all
/// iterations and rounds of the scenario cost, the start's among them.
///
/// # Errors
/// A sentence with the numbers, where devices cannot do that.
pub fn settings(scenario: &Scenario, dataset: &Dataset) -> Result<Option<Hiding>, String> {
    let Some(square) = scenario.multiplier_square()? else { return Ok(None) };
    let rows = dataset.clients.iter().chain(&dataset.newcomers).map(|client| client.train.len());
    let rows = u32::try_from(rows.max().unwrap_or(1).max(1)).unwrap_or(u32::MAX);
    let side = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let multiplier = NoiseMultiplier::from_square(square).map_err(|error| error.to_string())?;
    let budget = u64::from(multiplier.release()) * u64::from(scenario.releases().unwrap_or(0));
    let settings = PrivacySettings::new(multiplier, budget, rows, SLOT).map_err(|error| error.to_string())?;
    // A server of the scenario asks for no more, and heads of whatever steps.
    let settings = settings.with_iterations(u16::MAX);
    settings.variance(side(dataset.features), side(scenario.model.k)).map_err(|error| error.to_string())?;
    #[allow(clippy::cast_possible_truncation, reason = "15 bits of it count")]
    let clip = scenario.privacy.and_then(|privacy| privacy.clip).map(|clip| Clip::new(clip as f32));
    let clip = clip.transpose().map_err(|error| error.to_string())?;
    Ok(Some(Hiding { settings, clip }))
}

/// Where seeds come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// The system's entropy: for devices that speak to a server.
    System,
    /// A run's seed: the same in every run, and known to whoever knows it.
    Foreseeable(u64),
}

/// The mechanism of a simulated device, or none.
#[derive(Debug)]
pub struct SimNoise {
    settings: Option<PrivacySettings>,
    clipping: Option<Clipping>,
    seeds: Seeds,
    device: u64,
    drawn: u32,
}

impl SimNoise {
    /// That of one device.
    #[must_use]
    pub fn new(hiding: Option<Hiding>, seeds: Seeds, device: u64) -> Self {
        let settings = hiding.map(|hiding| hiding.settings);
        let clipping = hiding.and_then(|hiding| hiding.clip).map(Clipping::new);
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
            Seeds::Foreseeable(seed) => Ok(secret(seed, self.drawn, self.device)),
            Seeds::System => {
                let mut bytes = [0; 32];
                getrandom::fill(&mut bytes).map_err(|_| NoEntropy)?;
                Ok(Seed::new(bytes))
            }
        }
    }
}

/// The seed of a device's noise in the `release`th update of its life, from 1. Not for devices with data of their own:
/// whoever knows the run's seed knows the noise.
#[must_use]
pub fn secret(seed: u64, release: u32, device: u64) -> Seed {
    let mut random = stream(seed, Purpose::Noise, u64::from(release) << 32 | device);
    let mut bytes = [0; 32];
    for part in bytes.as_chunks_mut::<8>().0 {
        *part = random.bits().to_le_bytes();
    }
    Seed::new(bytes)
}
