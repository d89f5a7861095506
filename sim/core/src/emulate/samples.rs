//! Flash content of emulated boards: the samples of one client for each board, with the network that the
//! board trains on them if the model is one.

use fedspan_client::recording::network::{NetworkSettings, memory_size};
use fedspan_engine::algorithm::ScaleSource;
use fedspan_engine::algorithm::network::Front;
use fedspan_engine::config::{FrontModel, ModelSection, NetworkModel, Shape};
use fedspan_protocol::message::{Numeric, Task};

use super::{Core, EmulateError, Firmware};
use crate::data::flash::{image, network, table};
use crate::data::{Client, Dataset};
use crate::fleet::DeviceFactory;
use crate::network::NetworkConfig;
use crate::noise::SeedSource;
use crate::scenario::{DataSection, Scenario};

/// Largest size of a stored head in bytes: `HEAD_MAX` of the firmware.
const NETWORK_HEAD: usize = 4 * (8 << 10);

/// Builder of the sample partitions of the boards.
#[derive(Debug)]
pub struct SampleImages<'a> {
    scenario: &'a Scenario,
    core: Core,
    source: Source,
}

/// Source of the content of a partition.
#[derive(Debug)]
enum Source {
    /// Recordings of this number of wearers, from which the firmware computes features.
    Recordings(usize),
    /// Samples of a linear model.
    Table(Dataset),
    /// Samples of a network, and the settings of the devices' networks with their frame limit.
    Network(Dataset, Box<NetworkConfig>, u16),
}

impl<'a> SampleImages<'a> {
    /// Creates the builder, and checks that the core's firmware supports the scenario.
    ///
    /// # Errors
    /// [`EmulateError::Scenario`] or [`EmulateError::Network`] if the firmware does not support the scenario,
    /// [`EmulateError::Memory`] if the board has too little memory for the network, [`EmulateError::Data`] if
    /// the data cannot be used.
    pub fn new(scenario: &'a Scenario, core: Core) -> Result<Self, EmulateError> {
        if scenario.scale != ScaleSource::None {
            return Err(unsuitable(scenario, &core, "do not scale their samples: leave out data.scale"));
        }
        if core.is_in_c() && scenario.algorithm.learned_prior().is_some() {
            let wanted =
                "learn no prior with the client in C: leave out --in-c, or choose another algorithm.name";
            return Err(unsuitable(scenario, &core, wanted));
        }
        let source = match core.firmware {
            Firmware::Watch => recordings(scenario, &core)?,
            Firmware::Table => linear_table(scenario, &core)?,
            Firmware::Network => network_samples(scenario, &core)?,
        };
        Ok(Self { scenario, core, source })
    }

    /// Number of clients, at least one.
    pub fn clients(&self) -> usize {
        match &self.source {
            Source::Recordings(clients) => *clients,
            Source::Table(dataset) | Source::Network(dataset, ..) => dataset.clients.len(),
        }
    }

    /// Sizes of a sample.
    pub fn shape(&self) -> Shape {
        match (&self.source, self.core.firmware.shape()) {
            (Source::Network(dataset, ..) | Source::Table(dataset), _) => dataset.sizes(),
            (Source::Recordings(_), shape) => Shape {
                features: shape.map_or(0, |shape| shape.features),
                outputs: shape.map_or(0, |shape| shape.outputs),
                image: None,
            },
        }
    }

    /// Model that the server expects of the boards: the scenario's, with the checksum of the layer that an adapter
    /// belongs to.
    pub fn model(&self) -> ModelSection {
        let mut model = self.scenario.model.clone();
        if let Source::Network(_, config, _) = &self.source
            && let Front::Adapter { frozen: checksum, .. } = config.parameters.shape.front
            && let Some(NetworkModel { front: FrontModel::Adapter { frozen, .. }, .. }) = &mut model.network
        {
            *frozen = checksum;
        }
        model
    }

    /// Builds the partition content with the samples of a client, whose number counts from 1.
    ///
    /// # Errors
    /// [`EmulateError::Image`] if a recording cannot be written, [`EmulateError::Room`] if the samples do not
    /// fit the partition.
    pub fn image(&self, client: usize) -> Result<Vec<u8>, EmulateError> {
        let index = client.saturating_sub(1);
        let table_of = |dataset: &Dataset| {
            let own_client: Option<&Client> = dataset.clients.get(index);
            own_client.map(|client| table(client, dataset.features)).unwrap_or_default()
        };
        let bytes = match (&self.source, &self.scenario.data) {
            (Source::Table(dataset), _) => table_of(dataset),
            (Source::Network(dataset, config, frame_limit), _) => {
                let settings = NetworkSettings {
                    model: config.parameters.shape.model(),
                    batch: config.parameters.descent.batch,
                    momentum: config.has_momentum(),
                    seed: config.order_seed(index as u64),
                    frame_limit: *frame_limit,
                };
                let frozen = config.base.as_ref().map(|base| base.frozen.as_slice()).unwrap_or_default();
                let mut bytes = network(&settings, &config.start(), frozen);
                bytes.extend(table_of(dataset));
                bytes
            }
            (Source::Recordings(_), DataSection::Watch(settings)) => {
                image(settings, self.scenario.seed, client)?
            }
            (Source::Recordings(_), _) => Vec::new(),
        };
        let (needed, available) = (bytes.len(), self.core.partition_size);
        if needed > available {
            Err(EmulateError::Room { client, needed, room: available })
        } else {
            Ok(bytes)
        }
    }
}

/// Sizes of a scenario's network on a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSize {
    /// Description of the layers.
    pub layers: String,
    /// Number of clients, each of which has a board.
    pub clients: usize,
    /// Number of weights and biases.
    pub parameters: usize,
    /// RAM for the network and its working memory, in bytes.
    pub memory: usize,
    /// Largest content of a client's partition, in bytes: initial parameters and samples.
    pub flash: usize,
}

/// Computes the sizes of a scenario's network on boards with a core.
///
/// # Errors
/// [`EmulateError`] if the scenario has no network, or boards with the core cannot train it.
pub fn network_size(scenario: &Scenario, core: Core) -> Result<NetworkSize, EmulateError> {
    let images = SampleImages::new(scenario, core.for_model(scenario))?;
    let Source::Network(_, config, _) = &images.source else {
        let reason = "the model is linear".to_owned();
        return Err(EmulateError::Network { name: scenario.name.clone(), reason });
    };
    let mut flash = 0;
    for client in 1..=images.clients() {
        flash = flash.max(images.image(client)?.len());
    }
    Ok(NetworkSize {
        layers: config.parameters.shape.model().to_string(),
        clients: images.clients(),
        parameters: config.shape.parameters(),
        memory: memory_size(config.shape, config.has_momentum()),
        flash,
    })
}

/// Returns the error of a scenario that does not meet the firmware's requirement.
fn unsuitable(scenario: &Scenario, core: &Core, wanted: &'static str) -> EmulateError {
    EmulateError::Scenario { name: scenario.name.clone(), core: core.description, wanted }
}

/// Checks that the firmware for recordings supports the scenario.
fn recordings(scenario: &Scenario, core: &Core) -> Result<Source, EmulateError> {
    let width = core.firmware.shape().map(|shape| shape.width);
    let fits = scenario.algorithm.numeric == Some(Numeric::F32) && Some(scenario.model.k) == width;
    match &scenario.data {
        DataSection::Watch(settings) if fits && !settings.programmes => {
            Ok(Source::Recordings(settings.roles().clients.len().max(1)))
        }
        _ => Err(unsuitable(scenario, core, WATCH)),
    }
}

/// Reads the data, and checks that the firmware for tables supports the scenario.
fn linear_table(scenario: &Scenario, core: &Core) -> Result<Source, EmulateError> {
    let Some(shape) = core.firmware.shape() else { return Err(unsuitable(scenario, core, TABLE)) };
    // Samples in flash are fixed, so a new batch in every round is not supported.
    let is_fresh = matches!(&scenario.data, DataSection::Linear(settings) if settings.fresh);
    let is_watch = matches!(scenario.data, DataSection::Watch(_));
    let is_f32 = scenario.algorithm.numeric == Some(Numeric::F32);
    if !is_f32 || is_fresh || is_watch || scenario.model.k != shape.width {
        return Err(unsuitable(scenario, core, TABLE));
    }
    let dataset = scenario.dataset(scenario.seed)?;
    let fits = dataset.features == shape.features
        && dataset.outputs == shape.outputs
        && !dataset.classification
        && !dataset.clients.is_empty();
    if fits { Ok(Source::Table(dataset)) } else { Err(unsuitable(scenario, core, TABLE)) }
}

/// Reads the data, and checks that the firmware for networks supports the scenario and has the memory.
fn network_samples(scenario: &Scenario, core: &Core) -> Result<Source, EmulateError> {
    let name = &scenario.name;
    let no_network = |reason: String| EmulateError::Network { name: name.clone(), reason };
    let dataset = scenario.dataset(scenario.seed)?;
    let changes = |client: &Client| client.fresh.is_some() || client.augment.is_some();
    if dataset.clients.is_empty() || dataset.clients.iter().any(changes) {
        let wanted = "have samples in flash, the same in every round: leave out data.augment";
        return Err(unsuitable(scenario, core, wanted));
    }
    let factory = DeviceFactory::new(scenario, &dataset, scenario.seed, SeedSource::System);
    let factory = factory.map_err(|error| no_network(error.to_string()))?;
    let Some(config) = &factory.network else {
        return Err(no_network("this algorithm trains no network".to_owned()));
    };
    if matches!(config.method.plan(&config.parameters).task, Task::Baseline { .. }) {
        let reason =
            format!("only simulated devices train {}; choose another algorithm", scenario.algorithm_name());
        return Err(no_network(reason));
    }
    let shape = config.shape;
    let head = shape.layer(shape.layers() - 1).parameters();
    let needed = memory_size(shape, config.has_momentum()) + size_of::<f32>() * factory.prior_values();
    for (part, needed, available) in
        [("the network", needed, core.network_memory), ("the head in flash", 4 * head, NETWORK_HEAD)]
    {
        if needed > available {
            let (name, core) = (name.clone(), core.description);
            return Err(EmulateError::Memory { name, core, part, needed, available });
        }
    }
    let (config, frame_limit) = (Box::new(config.clone()), factory.frame_limit());
    Ok(Source::Network(dataset, config, frame_limit))
}

const WATCH: &str = "replay the bundled recordings: data.kind = \"watch-imu\" without programmes, model.k = 24, algorithm.numeric = \"f32\"";
const TABLE: &str = "have a table of samples: regression with 20 features (a file's 19 and the constant 1) and one \
     output, without data.scale, the same in every round, model.k = 2 (the built-in scenario \"smallest\")";
