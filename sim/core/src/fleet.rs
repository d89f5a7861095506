//! The simulated devices: the client's session on heap memory, wired to the host's connection.

mod task;

use std::ops::Range;
use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, Connection, PeerMessage, Traffic};
use fedspan_client::Millis;
use fedspan_client::kernel::fixed::Scale;
use fedspan_client::memory::{Fixed, Memory, Parts, PartsRef, Shape};
use fedspan_client::session::{Config, Protection};
use fedspan_client::store::{NoStore, Store};
use fedspan_client::task::{Scaled, scaled_values};
use fedspan_client::{Event, Linear, Session, Task};
use fedspan_engine::algorithm::ScaleSource;
use fedspan_engine::config::network_parameters;
use fedspan_engine::random::{Purpose, stream};
use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::limits::FRAME_LIMIT_MAX;
use fedspan_protocol::message::{Descriptors, Model, Numeric, RoundId, RoundOpen, Task as Asked};
use fedspan_protocol::tensor::SUMS_COLUMNS;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

pub use task::SimTask;

use crate::data::{Client, ClientSource, Dataset};
use crate::evaluate;
use crate::network::{Base, Joins, NetworkBuild, SimNetwork};
use crate::noise::{self, Hiding, Seeds, SimNoise};
use crate::scenario::Scenario;

/// A workspace whose sizes are known at run time only: the simulator's counterpart of the device's
/// `Workspace<D, K, C>`, or of its `FixedWorkspace<D, K, C>`.
#[derive(Clone, Debug)]
pub struct HeapWorkspace {
    shape: Shape,
    values: Vec<f32>,
    /// Another d x k, for power iterations.
    extra_matrix: Option<Vec<f32>>,
    /// Integers, for 16-bit fixed point.
    fixed: Option<(Scale, Vec<i16>)>,
}

impl HeapWorkspace {
    /// All zero.
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

    /// The same with room for power iterations, the counterpart of a `PowerWorkspace<D, K, C>`.
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
        let (representation, rest) = self.values.split_at(d * k);
        let (head, rest) = rest.split_at(k * c);
        let (_, rest) = rest.split_at(k * k + k * c);
        let (residual, _) = rest.split_at(d * c);
        PartsRef { shape, representation, head, residual, extra_matrix: self.extra_matrix.as_deref() }
    }

    fn numeric(&self) -> Numeric {
        if self.fixed.is_some() { Numeric::I16 } else { Numeric::F32 }
    }

    fn fixed(&mut self) -> Option<(Parts<'_>, Fixed<'_>)> {
        let Self { shape, values, fixed, .. } = self;
        let Shape { features: d, width: k, outputs: c } = *shape;
        let (scale, integers) = fixed.as_mut()?;
        let (representation, rest) = integers.split_at_mut(d * k);
        let (x, rest) = rest.split_at_mut(d);
        let (z, rest) = rest.split_at_mut(k);
        let (y, head) = rest.split_at_mut(c);
        Some((parts(*shape, values), Fixed { representation, scale, x, z, y, head }))
    }
}

/// The buffers of floats, one after the other in `values`.
fn parts(shape: Shape, values: &mut [f32]) -> Parts<'_> {
    let Shape { features: d, width: k, outputs: c } = shape;
    let (representation, rest) = values.split_at_mut(d * k);
    let (head, rest) = rest.split_at_mut(k * c);
    let (factor, rest) = rest.split_at_mut(k * k);
    let (rhs, rest) = rest.split_at_mut(k * c);
    let (residual, rest) = rest.split_at_mut(d * c);
    let (z, y) = rest.split_at_mut(k);
    Parts { shape, representation, head, factor, rhs, residual, extra_matrix: None, blocks: None, z, y }
}

/// The client as the simulator runs it.
pub type SimSession = Session<SimTask, ClientSource, NoStore, ChaCha8Rng>;

/// A simulated device's randomness: the same in every run. Not for devices with keys, which nobody may foresee.
#[must_use]
pub fn foreseeable(seed: u64, device: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(stream(seed, Purpose::Device, device).bits())
}

/// What the devices of a scenario are built for.
#[derive(Clone, Debug, PartialEq)]
pub struct Build {
    /// Sizes of the model.
    pub shape: Shape,
    /// Arithmetic of FedRep.
    pub numeric: Numeric,
    /// Whether there is room for another d x k: for power iterations, and for gradients in noise.
    pub extra_matrix: bool,
    /// How they hide what they send.
    pub privacy: Option<Hiding>,
    /// Of the noise.
    pub seeds: Seeds,
    /// Where the model is a network.
    pub network: Option<NetworkBuild>,
    /// Whether they can scale their samples.
    pub scale: bool,
}

/// Devices that cannot hide what the scenario says they do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);

impl Build {
    /// That of a scenario with its data.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn of(scenario: &Scenario, dataset: &Dataset, seed: u64, seeds: Seeds) -> Result<Self, BuildError> {
        let fleet = dataset.clients.len();
        let most = usize::from(u16::MAX) - 1;
        if scenario.model.network.is_some() && dataset.features > most {
            return Err(BuildError(format!(
                "samples have {} values, a network's have at most {most}",
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
        let network = match network.map(NetworkBuild::of).transpose().map_err(BuildError)? {
            Some(network) => {
                let read = |path: &String| Base::read(&scenario.locate(path), network.parameters.shape);
                let base = scenario.model.base.as_ref().map(read).transpose();
                let base = base.map_err(|error| BuildError(error.to_string()))?;
                Some(network.with_base(base).map_err(BuildError)?)
            }
            None => None,
        };
        Ok(Self {
            network,
            scale: scenario.scale != ScaleSource::None,
            shape: evaluate::shape_of(dataset, scenario.model.k),
            numeric: scenario.algorithm.numeric,
            extra_matrix: scenario.algorithm.power.is_some() || scenario.privacy.is_some(),
            privacy: noise::settings(scenario, dataset).map_err(BuildError)?,
            seeds,
        })
    }

    /// Makes the session of one device.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn session(
        &self,
        config: Config,
        protection: Protection,
        client: &Client,
        joins: Joins,
        random: ChaCha8Rng,
    ) -> Result<SimSession, BuildError> {
        self.session_over(config, protection, client, joins, NoStore, random)
    }

    /// The same with a storage of its own.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn session_over<P: Store>(
        &self,
        config: Config,
        protection: Protection,
        client: &Client,
        joins: Joins,
        store: P,
        random: ChaCha8Rng,
    ) -> Result<Session<SimTask, ClientSource, P, ChaCha8Rng>, BuildError> {
        let task = self.task(config.device, client.train.len(), joins)?;
        Ok(Session::new(config, protection, task, client.source(), store, random))
    }

    fn task(&self, device: u64, samples: usize, joins: Joins) -> Result<SimTask, BuildError> {
        let task = self.model_task(device, samples, joins)?;
        if !self.scale {
            return Ok(task);
        }
        let values = vec![0.0; scaled_values(self.shape.features)];
        let scaled = Scaled::new(task, values).map_err(|error| BuildError(error.to_string()))?;
        Ok(SimTask::Scaled(Box::new(scaled)))
    }

    /// What a client's device sends of some features, and of how many samples; `None` where it declines.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn feature_sums(
        &self,
        client: &Client,
        features: Range<usize>,
    ) -> Result<Option<(u32, Vec<f32>)>, BuildError> {
        let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let mut task = self.task(0, client.train.len(), Joins::First)?;
        let (first, count) = (small(features.start), small(features.len()));
        let id = RoundId { round: 1, stage: 0 };
        let open = RoundOpen { id, task: Asked::FeatureSums { first, count }, tensors: Descriptors::new() };
        let ran = task.open(&open).and_then(|()| task.run(id, &mut client.source()));
        let mut sums = vec![0.0; features.len() * usize::from(SUMS_COLUMNS)];
        task.emit(0, 0, &mut sums);
        Ok(ran.ok().map(|usage| (usage.samples, sums)))
    }

    fn model_task(&self, device: u64, samples: usize, joins: Joins) -> Result<SimTask, BuildError> {
        if let Some(network) = &self.network {
            return Ok(SimTask::Network(SimNetwork::new(network, device, samples, joins)));
        }
        let memory = HeapWorkspace::new(self.shape, self.numeric);
        let memory = if self.extra_matrix { memory.with_extra_matrix() } else { memory };
        let noise = SimNoise::new(self.privacy, self.seeds, device);
        let task = Linear::private(memory, noise).map_err(|error| BuildError(error.to_string()))?;
        Ok(SimTask::Linear(task))
    }

    /// The model, as a hello says it.
    #[must_use]
    pub fn model(&self) -> Model {
        let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let Shape { features, width, outputs } = self.shape;
        match &self.network {
            Some(network) => network.parameters.shape.model(),
            None => Model::linear(small(features), small(width), small(outputs)),
        }
    }

    /// Most values that travel in one direction of a round.
    fn travelling(&self) -> usize {
        let Shape { features, width, outputs } = self.shape;
        let model = match &self.network {
            Some(network) => network.shape.parameters() * network.parameters.method.tensors_a_layer(),
            None => features * width + width * outputs,
        };
        // A scale beside it; before that the sums of half of the features.
        if self.scale { (model + 2 * features).max(4 * features) } else { model }
    }

    /// The frame limit of a simulated device: the smallest usual one in which the model takes at most 64 chunks, as a
    /// firmware engineer would choose it.
    #[must_use]
    pub fn frame_limit(&self) -> u16 {
        let bytes = 4 * self.travelling();
        let limit = [256usize, 512, 1024, 2048, 4096].into_iter().find(|limit| bytes <= 64 * (limit - 40));
        u16::try_from(limit.unwrap_or(FRAME_LIMIT_MAX)).unwrap_or(u16::MAX)
    }
}

/// One device with both ends of its connection.
#[derive(Debug)]
pub struct SimDevice {
    /// The device itself.
    pub session: SimSession,
    /// The host's end.
    pub connection: Connection,
    /// What it said and the engine has not heard yet.
    pub said: Vec<PeerMessage>,
    decoder: Decoder<Vec<u8>>,
    transmit: Vec<u8>,
    wire: Vec<u8>,
    /// The session's clock. It moves only where a device waits for a slot: what time a simulation takes is modelled.
    now: Millis,
}

impl SimDevice {
    /// A device that has just connected and said hello (found in `said`).
    #[must_use]
    pub fn connect(session: SimSession, gate: Arc<Acceptor>) -> Self {
        let config = session.config();
        let mut device = Self {
            session,
            connection: Connection::new(gate),
            said: Vec::new(),
            decoder: Decoder::new(vec![0; usize::from(config.frame_limit)]),
            transmit: vec![0; config.transmit_capacity()],
            wire: Vec::new(),
            now: Millis::ZERO,
        };
        device.step(Event::LinkUp);
        device
    }

    /// Exchanges frames until both ends are silent.
    pub fn pump(&mut self) {
        loop {
            self.wire.clear();
            if !self.connection.next_frame(&mut self.wire) {
                return;
            }
            let wire = std::mem::take(&mut self.wire);
            let mut input = wire.as_slice();
            while let FeedResult::Message(message) = self.decoder.feed(&mut input) {
                let progress = self.session.handle(self.now, Event::Message(message), &mut self.transmit);
                let sent = self.transmit.get(..progress.sent).unwrap_or_default();
                self.connection.receive(sent, &mut self.said);
                let mut more = progress.again;
                while more {
                    let progress = self.session.handle(self.now, Event::Tick, &mut self.transmit);
                    let sent = self.transmit.get(..progress.sent).unwrap_or_default();
                    self.connection.receive(sent, &mut self.said);
                    let silent_until = self.session.silent_until();
                    more = progress.again && progress.sent > 0 || silent_until > self.now;
                    self.now = self.now.max(silent_until);
                }
            }
            self.wire = wire;
        }
    }

    /// Takes the frames that wait for it and hears none of them: it has been told to stop before it was done.
    pub fn miss(&mut self) {
        loop {
            self.wire.clear();
            if !self.connection.next_frame(&mut self.wire) {
                return;
            }
        }
    }

    /// Gives the session one event and the host whatever it answers.
    pub fn step(&mut self, event: Event<'_>) {
        let progress = self.session.handle(self.now, event, &mut self.transmit);
        let sent = self.transmit.get(..progress.sent).unwrap_or_default();
        self.connection.receive(sent, &mut self.said);
    }

    /// Bytes and drops so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.connection.traffic()
    }
}
