//! Plan of a world: campaign, fleet and links, drawn from its seed.

use fedspan_aggregator::config::{Fleet, Limits, RoundsSection};
use fedspan_client::privacy::{NoiseMultiplier, PrivacySettings};
use fedspan_client::session::Sleep;
use fedspan_client::store::record_len;
use fedspan_sim_core::data::Dataset;
use fedspan_sim_core::fleet::DeviceFactory;
use fedspan_sim_core::live::campaign;
use fedspan_sim_core::noise::{NoiseConfig, SLOT, SeedSource};
use fedspan_sim_core::scenario::Scenario;
use rand_chacha::ChaCha8Rng;
use rand_core::Rng;
use std::time::Duration;

use super::nor_flash::WORD;

/// Width of the representation.
pub const K: usize = 2;

/// Length of a device's flash record, in bytes.
pub const RECORD: usize = record_len(K, 1).next_multiple_of(WORD);

/// Kind of a world, which decides the size of the fleet and the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Three to nine devices, 4 to 12 rounds, and up to 90 s full of faults.
    Hectic,
    /// A day of a large fleet with many faults.
    Day {
        /// Number of devices.
        devices: u64,
    },
    /// Devices that wake once in a period, each at another time, and 20 rounds without faults.
    Sleeping {
        /// Number of devices.
        devices: u64,
        /// Period in seconds.
        period: u64,
        /// Whether the server opens a round once in a period, instead of as soon as the one before is closed.
        every: bool,
    },
}

/// Everything that is fixed before a world starts.
#[derive(Debug)]
pub struct Plan {
    pub kind: Kind,
    pub scenario: Scenario,
    pub dataset: Dataset,
    pub fleet: Fleet,
    pub build: DeviceFactory,
    /// Whether devices have keys and frames are encrypted.
    pub is_encrypted: bool,
    /// Whether updates carry noise.
    pub is_private: bool,
    /// Times of devices that sleep between rounds.
    pub sleep: Option<Sleep>,
    /// Whether links are serial lines, which lose frames and are never closed, instead of streams.
    pub is_serial: bool,
}

/// Draws one element of a slice.
pub fn draw_element<T: Copy>(random: &mut ChaCha8Rng, elements: &[T]) -> T {
    let index = usize::try_from(random.next_u32()).unwrap_or_default() % elements.len();
    elements.get(index).copied().unwrap_or_else(|| unreachable!("the slice is not empty"))
}

/// Time in milliseconds that is shorter than 49 days.
fn short_time(milliseconds: u64) -> u32 {
    u32::try_from(milliseconds).unwrap_or(u32::MAX)
}

/// Returns true with a probability of `percent` percent.
pub fn draw_chance(random: &mut ChaCha8Rng, percent: u32) -> bool {
    random.next_u32() % 100 < percent
}

/// Draws a number from `low` (inclusive) to `high` (exclusive).
pub fn draw_within(random: &mut ChaCha8Rng, low: u64, high: u64) -> u64 {
    low + random.next_u64() % (high - low).max(1)
}

impl Plan {
    /// Draws the plan of a seed.
    ///
    /// # Errors
    /// The message of the scenario's parser, which would be a bug of this file.
    pub fn new(seed: u64, random: &mut ChaCha8Rng, kind: Kind) -> Result<Self, String> {
        match kind {
            Kind::Hectic => Self::draw_hectic(seed, random),
            Kind::Day { devices } => Self::plan_day(seed, devices),
            Kind::Sleeping { devices, period, every } => Self::plan_sleep(seed, devices, period, every),
        }
    }

    /// Returns the privacy cost of one update, in the units of the ledger.
    pub fn price(&self) -> u64 {
        self.build.privacy.map_or(0, |noise| u64::from(noise.settings.multiplier().release()))
    }

    /// Draws a short campaign of a few devices with random settings.
    fn draw_hectic(seed: u64, random: &mut ChaCha8Rng) -> Result<Self, String> {
        let devices = draw_within(random, 3, 10);
        let rounds = draw_within(random, 4, 13);
        let d = draw_element(random, &[5, 40, 90]);
        let is_private = draw_chance(random, 25);
        let policy = match random.next_u32() % 9 {
            0 | 1 => "policy = \"full\"".to_owned(),
            2 => "policy = \"fraction\"\nr = 0.6".to_owned(),
            3 => format!("policy = \"first-arrivals\"\nn = {}", devices.div_ceil(2)),
            4 => format!("policy = \"first-arrivals\"\nn = 2\ncohort = {}", devices.div_ceil(2) + 1),
            5 => "policy = \"doubling\"\nn0 = 2\nschedule = \"fixed\"\nstage_rounds = 2".to_owned(),
            6 => "policy = \"doubling\"\nn0 = 2\nschedule = \"fixed\"\nstage_rounds = 2\nby = \"samples\""
                .to_owned(),
            7 => "policy = \"doubling\"\nn0 = 2".to_owned(),
            _ => "policy = \"doubling\"\nn0 = 2\nschedule = \"theorem\"".to_owned(),
        };
        let rule = draw_element(random, &["mean", "geometric-median", "trimmed-mean"]);
        let init = draw_element(random, &["random", "power"]);
        let (init, privacy_section) = match is_private {
            true => ("random", "[privacy]\nepsilon = 20.0\ndelta = 1e-5\nclip = 1.0\n"),
            false => (init, ""),
        };
        let sections = format!(
            "[model]\nk = {K}\ninit = \"{init}\"\n[algorithm]\nname = \"fedrep\"\nrounds = {rounds}\nstep_size = 0.25\n\
             [participation]\n{policy}\n[aggregation]\nrule = \"{rule}\"\n{privacy_section}"
        );
        let samples = draw_within(random, 4, 10);
        let mut plan = Self::from_sections(seed, devices, (d, samples), &sections, Kind::Hectic)?;
        let fleet = &mut plan.fleet;
        fleet.absence = Duration::from_secs(draw_element(random, &[0, 5, 30]));
        let deadline = draw_element(random, &[None, Some(20), Some(60)]).map(Duration::from_secs);
        let min_count = usize::try_from(draw_within(random, 1, devices.div_ceil(2) + 1)).unwrap_or(1);
        fleet.rounds = RoundsSection {
            deadline,
            patience: None,
            every: draw_element(random, &[None, None, Some(3), Some(40)]).map(Duration::from_secs),
            min_count,
            over_select: draw_element(random, &[1.0, 1.3]),
        };
        fleet.limits.idle = Duration::from_secs(30);
        plan.is_encrypted = draw_chance(random, 60);
        plan.is_serial = draw_chance(random, 40);
        if draw_chance(random, 25) {
            // A device that leaves before a round can reach it over a slow link never trains.
            let [wait, time] = [(5_000, 10_000), (1_000, 20_000)]
                .map(|(low, high)| short_time(draw_within(random, low, high)));
            plan.sleep = Some(Sleep { rounds: draw_element(random, &[1, 1, 3]), wait, time });
        }
        plan.is_private = is_private;
        if let Some(noise) = &mut plan.build.privacy {
            *noise = raise_privacy_budget(&plan.scenario, *noise)?;
        }
        Ok(plan)
    }

    /// Plans a campaign that lasts all day, with deadlines that some devices miss.
    fn plan_day(seed: u64, devices: u64) -> Result<Self, String> {
        let sections = format!(
            "[model]\nk = {K}\n[algorithm]\nname = \"fedrep\"\nrounds = 1000000\nstep_size = 0.25\n[participation]\npolicy = \"full\"\n"
        );
        let mut plan = Self::from_sections(seed, devices, (5, 6), &sections, Kind::Day { devices })?;
        plan.is_encrypted = true;
        plan.fleet.absence = Duration::from_secs(120);
        let min_count = usize::try_from(devices / 2).unwrap_or(1).max(1);
        let deadline = Some(Duration::from_secs(900));
        plan.fleet.rounds =
            RoundsSection { deadline, patience: None, every: None, min_count, over_select: 1.0 };
        plan.fleet.limits.idle = Duration::from_secs(600);
        // Devices answer after up to ten minutes, so a round is resent only later.
        plan.fleet.limits.repeat = Duration::from_secs(1200);
        Ok(plan)
    }

    /// Plans a campaign of devices that sleep between rounds, in which every device takes part in every round.
    fn plan_sleep(seed: u64, devices: u64, period: u64, every: bool) -> Result<Self, String> {
        let sections = format!(
            "[model]\nk = {K}\n[algorithm]\nname = \"fedrep\"\nrounds = 20\nstep_size = 0.25\n[participation]\npolicy = \"full\"\n"
        );
        let kind = Kind::Sleeping { devices, period, every };
        let mut plan = Self::from_sections(seed, devices, (5, 6), &sections, kind)?;
        plan.is_encrypted = true;
        let seconds = Duration::from_secs;
        // The defaults of the configuration with `rounds.every`; without it they must be longer than the period.
        let (absence, deadline) =
            if every { (2 * period, period.max(60)) } else { (3 * period, period * 9 / 4) };
        plan.fleet.absence = seconds(absence);
        plan.fleet.rounds = RoundsSection {
            deadline: Some(seconds(deadline)),
            patience: None,
            every: every.then(|| seconds(period)),
            min_count: usize::try_from(devices).unwrap_or(usize::MAX),
            over_select: 1.0,
        };
        plan.sleep = Some(Sleep::once_in(short_time(1_000 * period)));
        Ok(plan)
    }

    /// Builds a plan from the sections of a scenario file. `d` is the number of features, `samples` the
    /// number of samples of each device.
    fn from_sections(
        seed: u64,
        devices: u64,
        (d, samples): (u64, u64),
        sections: &str,
        kind: Kind,
    ) -> Result<Self, String> {
        let text = format!(
            "seed = {}\n[data]\nkind = \"linear-regression\"\nclients = {devices}\nd = {d}\nk = {K}\nsamples = {samples}\n\
             noise_std = 0.1\n{sections}",
            seed % (1 << 40),
        );
        let scenario =
            Scenario::parse("disasters", &text, &[]).map_err(|error| format!("{error}\n{text}"))?;
        let dataset = scenario.dataset(scenario.seed).map_err(|error| error.to_string())?;
        let name = std::path::Path::new("");
        let mut fleet = campaign(&scenario, &dataset, name).map_err(|error| error.to_string())?;
        fleet.limits = default_limits()?;
        let build = DeviceFactory::new(&scenario, &dataset, scenario.seed, SeedSource::Deterministic(seed))
            .map_err(|error| error.to_string())?;
        Ok(Self {
            kind,
            scenario,
            dataset,
            fleet,
            build,
            is_encrypted: false,
            is_private: false,
            sleep: None,
            is_serial: false,
        })
    }
}

/// Returns the default limits of a server, which must not permanently disconnect an honest device.
fn default_limits() -> Result<Limits, String> {
    let text = "[devices]\nexpected = 1\n[data]\nd = 5\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 1\n\
                step_size = 0.25\n";
    Ok(Fleet::parse("disasters", text).map_err(|error| error.to_string())?.limits)
}

/// Raises the privacy budget to a hundred times what a campaign without faults needs, because lost updates
/// consume budget, too.
fn raise_privacy_budget(scenario: &Scenario, noise: NoiseConfig) -> Result<NoiseConfig, String> {
    let square = scenario.multiplier_square()?.ok_or("no noise")?;
    let multiplier = NoiseMultiplier::from_square(square).map_err(|error| error.to_string())?;
    let budget = u64::from(multiplier.release()) * u64::from(scenario.releases().unwrap_or(0)) * 100;
    let settings = PrivacySettings::new(multiplier, budget, 6, SLOT).map_err(|error| error.to_string())?;
    Ok(NoiseConfig { settings: settings.with_iterations(u16::MAX), ..noise })
}
