//! Energy of the devices of a simulated fleet with a radio.

use fedspan_client::Shape;
use fedspan_protocol::message::Task;

use super::times::Transmission;
use crate::data::{Dataset, shape_of};
use crate::energy::{Energy, Usage, Work};
use crate::fleet::FleetArithmetic;
use crate::scenario::{EnergySettings, LinkSpeed, Scenario};

/// Energy of a device in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceEnergy {
    /// Work of the device.
    pub usage: Usage,
    /// Energy of that work, and of sleep in the rest of the run.
    pub energy: Energy,
    /// Seconds of the run.
    pub seconds: f64,
    /// Months that the battery lasts at the mean power of the run; infinite if the run takes no energy.
    pub months: f64,
}

impl DeviceEnergy {
    /// Total energy in millijoules.
    #[must_use]
    pub fn millijoules(&self) -> f64 {
        1e3 * self.energy.total()
    }
}

/// Meter of the work of all devices.
#[derive(Clone, Debug)]
pub struct EnergyMeter {
    settings: EnergySettings,
    /// Length of a mean computation in seconds.
    computation: f64,
    shape: Shape,
    arithmetic: FleetArithmetic,
    /// Number of training samples of each device.
    samples: Vec<usize>,
    usages: Vec<Usage>,
}

impl EnergyMeter {
    /// Creates a meter; `None` if the scenario does not ask for energy.
    #[must_use]
    pub fn new(scenario: &Scenario, dataset: &Dataset) -> Option<Self> {
        let LinkSpeed::Radio { energy, computation, .. } = scenario.fleet.link?.speed else { return None };
        let samples: Vec<usize> = dataset.clients.iter().map(|client| client.train.len()).collect();
        Some(Self {
            settings: energy?,
            computation,
            shape: shape_of(dataset, scenario.model.k),
            arithmetic: FleetArithmetic::of_scenario(scenario),
            usages: vec![Usage::default(); samples.len()],
            samples,
        })
    }

    /// Adds a round that a device receives, computes and answers.
    pub fn add_round(&mut self, client: usize, task: &Task, transmission: &Transmission) {
        let (Some(samples), Some(usage)) = (self.samples.get(client), self.usages.get_mut(client)) else {
            return;
        };
        let core = self.settings.chip.core;
        let numeric = self.arithmetic.numeric_of(client as u64);
        let computing = self
            .settings
            .cycles
            .or_else(|| Work::of(task, self.shape, *samples).map(|work| core.cycles(numeric, &work)));
        *usage += Usage {
            rounds: 1,
            uncounted: computing.is_none().into(),
            cycles: computing.unwrap_or(0.0) + core.sealing_cycles(transmission.frames, transmission.bytes),
            sending: transmission.sending,
            receiving: transmission.receiving,
        };
    }

    /// Work of each device so far.
    #[must_use]
    pub fn usages(&self) -> &[Usage] {
        &self.usages
    }

    /// Continues with the work of a saved run.
    pub fn restore(&mut self, usages: &[Usage]) {
        for (usage, saved) in self.usages.iter_mut().zip(usages) {
            *usage = *saved;
        }
    }

    /// Energy of each device in a run that took `time` mean computations. A device that still works on a round when the
    /// run ends does not sleep.
    #[must_use]
    pub fn devices(&self, time: f64) -> Vec<DeviceEnergy> {
        let chip = self.settings.chip;
        let device = |usage: &Usage| {
            let busy = chip.busy(usage);
            let seconds = (time * self.computation).max(busy);
            let energy = chip.energy(usage, seconds - busy);
            let months = chip.battery_months(self.settings.battery_mah, energy.total() / seconds);
            DeviceEnergy { usage: *usage, energy, seconds, months }
        };
        self.usages.iter().map(device).collect()
    }
}
