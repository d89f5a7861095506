//! Simulated devices. A device consists of the client's session on heap memory and the server's end of its
//! connection; frames are exchanged in memory.

mod arithmetic;
mod lane_round;
mod saved_device;
mod task;

use std::ops::Range;
use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, Connection, PeerMessage, Traffic};
use fedspan_client::Millis;
use fedspan_client::kernel::fixed::Scale;
use fedspan_client::memory::{Fixed, Memory, Parts, PartsRef, Shape};
use fedspan_client::pace::Pace;
use fedspan_client::secure::Suite;
use fedspan_client::session::{Config, Progress, Protection};
use fedspan_client::store::Store;
use fedspan_client::task::{
    ErrorFeedback, LearnedPrior, PriorNetwork, Scaled, learned_prior_values, prior_network_values,
    scaled_values,
};
use fedspan_client::{Event, Linear, Session, Task};
use fedspan_engine::algorithm::ScaleSource;
use fedspan_engine::config::network_parameters;
use fedspan_engine::random::{Purpose, stream};
use fedspan_protocol::datagram::FRAME_MAX;
use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::limits::FRAME_LIMIT_MAX;
use fedspan_protocol::message::{Descriptors, Model, Numeric, RoundId, RoundOpen, Task as Asked};
use fedspan_protocol::tensor::{Encoding, SUMS_COLUMNS};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

pub use arithmetic::FleetArithmetic;
pub use lane_round::{LaneRound, StepsPool};
pub use saved_device::{SavedDevice, SpentBudget};
pub use task::{SimLinear, SimTask};

use crate::data::{self, Client, ClientSource, Dataset};
use crate::network::{BaseNetwork, JoinTime, NetworkConfig, SimNetwork};
use crate::noise::{self, NoiseConfig, SeedSource, SimNoise};
use crate::scenario::{LinkSection, LinkSpeed, Scenario};

/// Workspace on the heap, with sizes that are known only at run time. Replaces the `Workspace<D, K, C>` and
/// `FixedWorkspace<D, K, C>` of a real device.
#[derive(Clone, Debug)]
pub struct HeapWorkspace {
    shape: Shape,
    values: Vec<f32>,
    /// Second d x k buffer, for power iterations and noisy gradients.
    extra_matrix: Option<Vec<f32>>,
    /// Scale and integers for 16-bit fixed-point arithmetic.
    fixed: Option<(Scale, Vec<i16>)>,
}

impl HeapWorkspace {
    /// Creates a workspace of zeros.
    #[must_use]
    pub fn new(shape: Shape, numeric: Numeric) -> Self {
        let Shape { features: d, width: k, outputs: c } = shape;
        let integers = (numeric == Numeric::I16).then(|| vec![0; d * k + d + k + c + k * c]);
        Self {
            shape,
            values: vec![0.0; d * k + k * c + k * k + k * c + d * c + k + c],
            extra_matrix: None,
            fixed: integers.map(|integers| (Scale::LEAST, integers)),
        }
    }

    /// Adds the second d x k buffer, as in a `PowerWorkspace<D, K, C>`.
    #[must_use]
    pub fn with_extra_matrix(self) -> Self {
        let values = self.shape.features * self.shape.width;
        Self { extra_matrix: Some(vec![0.0; values]), ..self }
    }
}

impl Memory for HeapWorkspace {
    fn parts(&mut self) -> Parts<'_> {
        Parts { extra_matrix: self.extra_matrix.as_deref_mut(), ..parts(self.shape, &mut self.values) }
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        let shape = self.shape;
        let Shape { features: d, width: k, outputs: c } = shape;
        let part = |first: usize, count: usize| self.values.get(first..first + count).unwrap_or_default();
        PartsRef {
            shape,
            representation: part(0, d * k),
            head: part(d * k, k * c),
            residual: part(d * k + k * c + k * k + k * c, d * c),
            extra_matrix: self.extra_matrix.as_deref(),
            pace: Pace::NONE,
        }
    }

    fn numeric(&self) -> Numeric {
        if self.fixed.is_some() { Numeric::I16 } else { Numeric::F32 }
    }

    fn fixed(&mut self) -> Option<(Parts<'_>, Fixed<'_>)> {
        let Self { shape, values, fixed, .. } = self;
        let Shape { features: d, width: k, outputs: c } = *shape;
        let (scale, integers) = fixed.as_mut()?;
        let (representation, following) = integers.split_at_mut(d * k);
        let (x, following) = following.split_at_mut(d);
        let (z, following) = following.split_at_mut(k);
        let (y, head) = following.split_at_mut(c);
        Some((parts(*shape, values), Fixed { representation, scale, x, z, y, head }))
    }
}

/// Splits `values` into the float buffers of a workspace, in the order of their storage.
fn parts(shape: Shape, values: &mut [f32]) -> Parts<'_> {
    let Shape { features: d, width: k, outputs: c } = shape;
    let (representation, following) = values.split_at_mut(d * k);
    let (head, following) = following.split_at_mut(k * c);
    let (factor, following) = following.split_at_mut(k * k);
    let (rhs, following) = following.split_at_mut(k * c);
    let (residual, following) = following.split_at_mut(d * c);
    let (z, y) = following.split_at_mut(k);
    Parts {
        shape,
        representation,
        head,
        factor,
        rhs,
        residual,
        extra_matrix: None,
        blocks: None,
        z,
        y,
        gathered: &mut [],
        pace: Pace::NONE,
    }
}

/// Client session of a simulated device.
pub type SimSession<P = SpentBudget> = Session<SimTask, ClientSource, P, ChaCha8Rng, Suite>;

/// Creates the random generator of a simulated device, which is the same in every run. Must not be used for
/// devices with keys, whose handshakes must be unpredictable.
#[must_use]
pub fn deterministic_rng(seed: u64, device: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(stream(seed, Purpose::Device, device).bits())
}

/// Factory of a scenario's devices, with the settings that all devices share.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFactory {
    /// Sizes of the linear model.
    pub shape: Shape,
    /// Arithmetic of linear models.
    pub arithmetic: FleetArithmetic,
    /// True if devices have a second d x k buffer, for power iterations and noisy gradients.
    pub extra_matrix: bool,
    /// Noise settings; `None` if the scenario has no section `[privacy]`.
    pub privacy: Option<NoiseConfig>,
    /// Source of the seeds of the noise.
    pub seeds: SeedSource,
    /// Settings of the devices' networks; `None` for a linear model.
    pub network: Option<NetworkConfig>,
    /// True if devices have the task for heads with a learned prior.
    pub learned_prior: bool,
    /// True if devices standardise their samples.
    pub scale: bool,
    /// True if devices send only the largest values of their gradients, and the others later.
    pub error_feedback: bool,
    /// Algorithm with which devices that have a key seal their frames.
    pub suite: Suite,
    /// Longest frame that the devices' links carry, in bytes.
    pub longest_frame: usize,
}

/// Reason why a device cannot be built with the scenario's settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);

impl DeviceFactory {
    /// Reads the factory's settings from a scenario and its data.
    ///
    /// # Errors
    /// [`BuildError`] if the client cannot run the scenario's network, noise or base network.
    pub fn new(
        scenario: &Scenario,
        dataset: &Dataset,
        seed: u64,
        seeds: SeedSource,
    ) -> Result<Self, BuildError> {
        let fleet = dataset.clients.len();
        let max_features = usize::from(u16::MAX) - 1;
        if scenario.model.network.is_some() && dataset.features > max_features {
            return Err(BuildError(format!(
                "samples have {} values, a network's have at most {max_features}",
                dataset.features
            )));
        }
        let network = network_parameters(
            dataset.sizes(),
            &scenario.model,
            &scenario.algorithm,
            scenario.rule,
            fleet,
            seed,
        );
        let network = match network
            .map(|(method, parameters)| NetworkConfig::new(method, parameters))
            .transpose()
            .map_err(BuildError)?
        {
            Some(network) => {
                let read =
                    |path: &String| BaseNetwork::read(&scenario.locate(path), network.parameters.shape);
                let base = scenario.model.base.as_ref().map(read).transpose();
                let base = base.map_err(|error| BuildError(error.to_string()))?;
                Some(network.with_base(base).map_err(BuildError)?)
            }
            None => None,
        };
        Ok(Self {
            network,
            learned_prior: scenario.algorithm.learned_prior().is_some(),
            scale: scenario.scale != ScaleSource::None,
            error_feedback: scenario.algorithm.upload == Encoding::I8TopK,
            suite: Suite::default(),
            longest_frame: match scenario.fleet.link {
                Some(LinkSection { speed: LinkSpeed::Radio { .. }, .. }) => FRAME_MAX,
                _ => FRAME_LIMIT_MAX,
            },
            shape: data::shape_of(dataset, scenario.model.k),
            arithmetic: FleetArithmetic::of_scenario(scenario),
            extra_matrix: scenario.algorithm.power().is_some() || scenario.privacy.is_some(),
            privacy: noise::settings(scenario, dataset).map_err(BuildError)?,
            seeds,
        })
    }

    /// Creates the session of one device.
    ///
    /// # Errors
    /// [`BuildError`] if the client's task cannot be built with these settings.
    pub fn session(
        &self,
        config: Config,
        protection: Protection,
        client: &Client,
        join_time: JoinTime,
        random: ChaCha8Rng,
    ) -> Result<SimSession, BuildError> {
        self.session_with_store(config, protection, client, join_time, SpentBudget::default(), random)
    }

    /// Creates the session of one device with the given store.
    ///
    /// # Errors
    /// [`BuildError`] if the client's task cannot be built with these settings.
    pub fn session_with_store<P: Store>(
        &self,
        config: Config,
        protection: Protection,
        client: &Client,
        join_time: JoinTime,
        store: P,
        random: ChaCha8Rng,
    ) -> Result<SimSession<P>, BuildError> {
        let task = self.task(config.device, client.train.len(), join_time, 0)?;
        Ok(Session::with_aead(config, protection, self.suite, task, client.source(), store, random))
    }

    /// Creates the session of a device that joined before training, with a saved state.
    ///
    /// # Errors
    /// [`BuildError`] if the client's task cannot be built with these settings, or the state belongs to another task.
    pub fn restored_session(
        &self,
        config: Config,
        client: &Client,
        saved: &SavedDevice,
        random: ChaCha8Rng,
    ) -> Result<SimSession, BuildError> {
        let (samples, seeds_drawn) = (client.train.len(), saved.seeds_drawn());
        let mut task = self.task(config.device, samples, JoinTime::BeforeTraining, seeds_drawn)?;
        if !saved.restore(&mut task) {
            let message = format!("the saved state of device {} belongs to another model", config.device);
            return Err(BuildError(message));
        }
        let store = SpentBudget(saved.spent);
        Ok(Session::with_aead(
            config,
            Protection::Plaintext,
            self.suite,
            task,
            client.source(),
            store,
            random,
        ))
    }

    fn task(
        &self,
        device: u64,
        samples: usize,
        join_time: JoinTime,
        seeds_drawn: u32,
    ) -> Result<SimTask, BuildError> {
        let task = self.model_task(device, samples, join_time, seeds_drawn)?;
        let task = if self.scale {
            let values = vec![0.0; scaled_values(self.shape.features)];
            let scaled = Scaled::new(task, values).map_err(|error| BuildError(error.to_string()))?;
            SimTask::Scaled(Box::new(scaled))
        } else {
            task
        };
        if !self.error_feedback {
            return Ok(task);
        }
        let elements = usize::try_from(task.capabilities().tensor_elements).unwrap_or(usize::MAX);
        let feedback =
            ErrorFeedback::new(task, vec![0.0; elements]).map_err(|error| BuildError(error.to_string()))?;
        Ok(SimTask::ErrorFeedback(Box::new(feedback)))
    }

    /// Number of samples, and the feature sums that the device of a client would upload for a range of
    /// features. Returns `None` if the device declines the task.
    ///
    /// # Errors
    /// [`BuildError`] if the client's task cannot be built with these settings.
    pub fn feature_sums(
        &self,
        client: &Client,
        features: Range<usize>,
    ) -> Result<Option<(u32, Vec<f32>)>, BuildError> {
        let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let mut task = self.task(0, client.train.len(), JoinTime::BeforeTraining, 0)?;
        let (first, count) = (to_u16(features.start), to_u16(features.len()));
        let id = RoundId { round: 1, stage: 0 };
        let open = RoundOpen { id, task: Asked::FeatureSums { first, count }, tensors: Descriptors::new() };
        let result = task.open(&open).and_then(|()| task.run(id, &mut client.source()));
        let mut sums = vec![0.0; features.len() * usize::from(SUMS_COLUMNS)];
        task.emit(0, 0, &mut sums);
        Ok(result.ok().map(|usage| (usage.samples, sums)))
    }

    /// Creates the task of a device's model, without scaling of samples.
    fn model_task(
        &self,
        device: u64,
        samples: usize,
        join_time: JoinTime,
        seeds_drawn: u32,
    ) -> Result<SimTask, BuildError> {
        if let Some(network) = self.network.as_ref().filter(|_| self.learned_prior) {
            let values = vec![0.0; self.prior_values()];
            let task = PriorNetwork::new(network.client(device, samples), values);
            return task.map(SimTask::PriorNetwork).map_err(|error| BuildError(error.to_string()));
        }
        if let Some(network) = &self.network {
            return Ok(SimTask::Network(SimNetwork::new(network, device, samples, join_time)));
        }
        if self.learned_prior {
            let values = vec![0.0; learned_prior_values(self.shape, true)];
            let task =
                LearnedPrior::new(self.shape, values).map_err(|error| BuildError(error.to_string()))?;
            return Ok(SimTask::LearnedPrior(task));
        }
        let memory = self.arithmetic.memory(device, self.shape);
        let memory = if self.extra_matrix { memory.with_extra_matrix() } else { memory };
        let noise = SimNoise::new(self.privacy, self.seeds, device, seeds_drawn);
        let task = Linear::private(memory, noise).map_err(|error| BuildError(error.to_string()))?;
        Ok(SimTask::Linear(SimLinear::new(self.arithmetic.with_solver(task))))
    }

    /// Model sizes in the hello of a device.
    #[must_use]
    pub fn model(&self) -> Model {
        let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let Shape { features, width, outputs } = self.shape;
        match &self.network {
            Some(network) => network.parameters.shape.model(),
            None => Model::linear(to_u16(features), to_u16(width), to_u16(outputs)),
        }
    }

    /// Number of values in the memory of a device for the prior of a network's last layer; 0 without one.
    pub(crate) fn prior_values(&self) -> usize {
        let network = self.network.as_ref().filter(|_| self.learned_prior);
        network.map_or(0, |network| prior_network_values(network.shape, true))
    }

    /// Largest number of values in the download or the upload of a round.
    fn values_per_direction(&self) -> usize {
        let Shape { features, width, outputs } = self.shape;
        let model = match &self.network {
            // With a prior of the last layer this is an upper bound: its memory holds more than its values.
            Some(network) => {
                network.shape.parameters() * network.method.tensors_per_layer() + self.prior_values()
            }
            None if self.learned_prior => {
                features * (features + 1) / 2 + features * (width + outputs) + width + 1
            }
            None => features * width + width * outputs,
        };
        // With a scale, downloads also have a shift and a factor per feature. Before training, each upload
        // has the feature sums of half of the features.
        if self.scale { (model + 2 * features).max(4 * features) } else { model }
    }

    /// Frame limit of a simulated device in bytes: the smallest power of two from 256 to 4096 with which the
    /// model is sent in at most 64 chunks, otherwise the longest frame of its link.
    #[must_use]
    pub fn frame_limit(&self) -> u16 {
        let bytes = 4 * self.values_per_direction();
        let limit = [256usize, 512, 1024, 2048, 4096].into_iter().find(|limit| bytes <= 64 * (limit - 40));
        u16::try_from(limit.unwrap_or(self.longest_frame)).unwrap_or(u16::MAX)
    }
}

/// Simulated device with both ends of its connection.
#[derive(Debug)]
pub struct SimDevice {
    /// Client session.
    pub session: SimSession,
    /// Server's end of the connection.
    pub connection: Connection,
    /// Messages from the device that the engine has not processed yet.
    pub inbox: Vec<PeerMessage>,
    decoder: Decoder<Vec<u8>>,
    transmit: Vec<u8>,
    wire: Vec<u8>,
    /// Session clock in milliseconds. The clock advances only while the device waits for its time slot;
    /// computation and transmission times are simulated separately.
    now: Millis,
}

impl SimDevice {
    /// Connects a device. Afterwards `inbox` contains the hello of the device.
    #[must_use]
    pub fn connect(session: SimSession, acceptor: Arc<Acceptor>) -> Self {
        let config = session.config();
        let mut device = Self {
            session,
            connection: Connection::new(acceptor),
            inbox: Vec::new(),
            decoder: Decoder::new(vec![0; usize::from(config.frame_limit)]),
            transmit: vec![0; config.transmit_capacity()],
            wire: Vec::new(),
            now: Millis::ZERO,
        };
        let _ = device.step(Event::LinkUp);
        device
    }

    /// Exchanges frames until both ends are idle.
    pub fn pump(&mut self) {
        loop {
            // Frames that are the same for all devices are decoded once.
            if let Some(message) = self.connection.take_shared() {
                self.process(message.bytes());
                continue;
            }
            self.wire.clear();
            if !self.connection.next_frame(&mut self.wire) {
                return;
            }
            let wire = std::mem::take(&mut self.wire);
            let mut decoder = std::mem::replace(&mut self.decoder, Decoder::new(Vec::new()));
            let mut input = wire.as_slice();
            while let FeedResult::Message(message) = decoder.feed(&mut input) {
                self.process(message);
            }
            (self.wire, self.decoder) = (wire, decoder);
        }
    }

    /// Passes a message to the session, and its frames to the server's end of the connection, until the session is idle.
    fn process(&mut self, message: &[u8]) {
        let mut progress = self.step(Event::Message(message));
        let mut has_more = progress.again;
        while has_more {
            progress = self.step(Event::Tick);
            let silent_until = self.session.silent_until();
            // Also after a step that sent nothing: an update with a value that is not finite is not sent, and the next
            // frame is a decline.
            has_more = progress.again || silent_until > self.now;
            self.now = self.now.max(silent_until);
        }
    }

    /// Discards the frames for the device that are queued, after a round has ended before the device
    /// answered.
    pub fn discard_frames(&mut self) {
        loop {
            self.wire.clear();
            if !self.connection.next_frame(&mut self.wire) {
                return;
            }
        }
    }

    /// Passes one event to the session, and the frames of the session to the server's end of the connection.
    pub fn step(&mut self, event: Event<'_>) -> Progress {
        let progress = self.session.handle(self.now, event, &mut self.transmit);
        let frames = self.transmit.get(..progress.sent).unwrap_or_default();
        self.connection.receive(frames, &mut self.inbox);
        progress
    }

    /// Numbers of bytes and dropped frames so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.connection.traffic()
    }
}
