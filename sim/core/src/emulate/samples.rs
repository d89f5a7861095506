//! Flash content of emulated boards: the samples of one client for each board.

use fedspan_engine::algorithm::ScaleSource;
use fedspan_protocol::message::Numeric;

use super::{EmulateError, Firmware, Plan};
use crate::data::flash::{image, table};
use crate::data::{Client, Dataset};
use crate::scenario::DataSection;

/// Builder of the sample partitions of the boards.
#[derive(Debug)]
pub struct SampleImages<'a> {
    plan: &'a Plan<'a>,
    /// Data set with the samples of all clients; `None` if the firmware computes features from recordings.
    dataset: Option<Dataset>,
    clients: usize,
}

impl<'a> SampleImages<'a> {
    /// Creates the builder, and checks that the core's firmware supports the scenario.
    ///
    /// # Errors
    /// [`EmulateError::Scenario`] if the firmware does not support the scenario, [`EmulateError::Data`] if
    /// the data cannot be used.
    pub fn new(plan: &'a Plan<'a>) -> Result<Self, EmulateError> {
        let scenario = plan.scenario;
        let shape = plan.core.firmware.shape();
        let unsuitable = |requirement| EmulateError::Scenario {
            name: scenario.name.clone(),
            core: plan.core.description,
            wanted: requirement,
        };
        if scenario.scale != ScaleSource::None {
            return Err(unsuitable("do not scale their samples: leave out data.scale"));
        }
        let requirement = match plan.core.firmware {
            Firmware::Watch => WATCH,
            Firmware::Table => TABLE,
        };
        if scenario.algorithm.numeric != Some(Numeric::F32) {
            return Err(unsuitable(requirement));
        }
        match (plan.core.firmware, &scenario.data) {
            (Firmware::Watch, DataSection::Watch(settings)) if !settings.programmes => {
                if scenario.model.k != shape.width {
                    return Err(unsuitable(WATCH));
                }
                Ok(Self { plan, dataset: None, clients: settings.roles().clients.len().max(1) })
            }
            (Firmware::Watch, _) => Err(unsuitable(WATCH)),
            (Firmware::Table, data) => {
                // Samples in flash are fixed, so a new batch in every round is not supported.
                let is_fresh = matches!(data, DataSection::Linear(settings) if settings.fresh);
                if is_fresh || matches!(data, DataSection::Watch(_)) || scenario.model.k != shape.width {
                    return Err(unsuitable(TABLE));
                }
                let dataset = scenario.dataset(scenario.seed)?;
                if dataset.features != shape.features
                    || dataset.outputs != shape.outputs
                    || dataset.classification
                    || dataset.clients.is_empty()
                {
                    return Err(unsuitable(TABLE));
                }
                Ok(Self { plan, clients: dataset.clients.len(), dataset: Some(dataset) })
            }
        }
    }

    /// Number of clients, at least one.
    pub fn clients(&self) -> usize {
        self.clients
    }

    /// Builds the partition content with the samples of a client, whose number counts from 1.
    ///
    /// # Errors
    /// [`EmulateError::Image`] if a recording cannot be written, [`EmulateError::Room`] if the samples do not
    /// fit the partition.
    pub fn image(&self, client: usize) -> Result<Vec<u8>, EmulateError> {
        let table_of = |dataset: &Dataset| {
            let own_client: Option<&Client> =
                client.checked_sub(1).and_then(|index| dataset.clients.get(index));
            own_client.map(|client| table(client, dataset.features)).unwrap_or_default()
        };
        let bytes = match (&self.dataset, &self.plan.scenario.data) {
            (Some(dataset), _) => table_of(dataset),
            (None, DataSection::Watch(settings)) => image(settings, self.plan.scenario.seed, client)?,
            (None, _) => Vec::new(),
        };
        let (needed, available) = (bytes.len(), self.plan.core.partition_size);
        if needed > available {
            Err(EmulateError::Room { client, needed, room: available })
        } else {
            Ok(bytes)
        }
    }
}

const WATCH: &str = "replay the bundled recordings: data.kind = \"watch-imu\" without programmes, model.k = 24, algorithm.numeric = \"f32\"";
const TABLE: &str = "have a table of samples: regression with 20 features (a file's 19 and the constant 1) and one \
     output, without data.scale, the same in every round, model.k = 2 (the built-in scenario \"smallest\")";
