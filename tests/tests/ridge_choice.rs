//! Tests of a fleet in which some devices can choose the ridge of their head and others cannot. All devices
//! must get a head with the requested ridge, and the server must count the devices that did not choose.
#![allow(clippy::indexing_slicing)]

use std::sync::Arc;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::connection::{Acceptor, Connection, PeerMessage};
use fedspan_client::Millis;
use fedspan_client::memory::FixedWorkspace;
use fedspan_client::session::{Config, Event, Protection};
use fedspan_client::store::NoStore;
use fedspan_client::task::{HeadFit, Usage};
use fedspan_client::{Linear, Memory, Session, SourceError, Task, Workspace};
use fedspan_client::{SampleSource, Samples, Targets};
use fedspan_engine::admission::Requirements;
use fedspan_engine::{Action, DeviceId, Engine, Event as EngineEvent, Phase};
use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::message::{
    CHOOSES_RIDGE, Capabilities, DeclineReason, Descriptors, HeadSolve, Model, RoundId, RoundOpen,
    Task as WireTask, Welcome,
};
use fedspan_protocol::tensor::Role;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

/// Number of features.
const D: usize = 6;
/// Width of the representation.
const K: usize = 2;
/// Number of classes.
const C: usize = 3;
/// Number of samples of each device.
const M: usize = 24;

/// A model whose firmware lacks the feature `ridge-choice`. The model answers like a client built without
/// this feature (see `edge-client/tests/ridge_choice.rs`).
struct WithoutRidgeChoice<T>(T);

impl<T: Task> Task for WithoutRidgeChoice<T> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.roles &= !(CHOOSES_RIDGE | Role::RidgeScores.bit());
        capabilities.tasks &= !(1 << 11);
        capabilities
    }
    fn streamed_tasks(&self) -> u32 {
        self.0.streamed_tasks()
    }
    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        match round.task {
            WireTask::RidgeScores { .. } => Err(DeclineReason::Task),
            task if task.without_ridge_choice().is_some() => Err(DeclineReason::Parameter),
            _ => self.0.open(round),
        }
    }
    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        self.0.tensor_mut(index)
    }
    fn verify(&mut self) -> Result<(), DeclineReason> {
        self.0.verify()
    }
    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        self.0.run(id, source)
    }
    fn begin(&mut self) -> Result<(), DeclineReason> {
        self.0.begin()
    }
    fn sample(&mut self, x: &[f32], target: Targets<'_>) -> u32 {
        self.0.sample(x, target)
    }
    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        self.0.finish()
    }
    fn upload(&self) -> Descriptors {
        self.0.upload()
    }
    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        self.0.emit(index, first, out);
    }
    fn head(&self) -> &[f32] {
        self.0.head()
    }
    fn head_mut(&mut self) -> &mut [f32] {
        self.0.head_mut()
    }
    fn head_fitted_on(&self) -> Option<u32> {
        self.0.head_fitted_on()
    }
    fn restore_head(&mut self, representation: u32) {
        self.0.restore_head(representation);
    }
}

/// A task that reports how its last head was fitted.
trait Fitted: Task {
    fn last_fit(&self) -> HeadFit;
}

impl<M: Memory> Fitted for Linear<M> {
    fn last_fit(&self) -> HeadFit {
        self.head_fits().last
    }
}

impl<T: Fitted> Fitted for WithoutRidgeChoice<T> {
    fn last_fit(&self) -> HeadFit {
        self.0.last_fit()
    }
}

/// A device and the server's end of its connection.
trait Device {
    /// Returns the server's end of the connection.
    fn connection(&mut self) -> &mut Connection;
    /// Exchanges frames until both ends are silent; returns the server's events.
    fn exchange_frames(&mut self, event: Option<Event<'_>>) -> Vec<PeerMessage>;
    /// Returns how the last head was fitted.
    fn last_fit(&self) -> HeadFit;
}

/// A session connected to the server's end.
struct Pair<T> {
    session: Session<T, OwnedSamples, NoStore, ChaCha20Rng>,
    connection: Connection,
    decoder: Decoder<Vec<u8>>,
}

/// Sample source with the data of a device.
struct OwnedSamples {
    x: Vec<f32>,
    classes: Vec<u8>,
    /// True if the samples of this pass were returned.
    is_exhausted: bool,
}

impl SampleSource for OwnedSamples {
    fn rewind(&mut self, _: RoundId) -> Result<(), SourceError> {
        self.is_exhausted = false;
        Ok(())
    }
    fn next(&mut self) -> Option<Samples<'_>> {
        let was_exhausted = std::mem::replace(&mut self.is_exhausted, true);
        (!was_exhausted).then_some(Samples { x: &self.x, targets: Targets::Classes(&self.classes) })
    }
}

/// Draws random samples in which the features depend on the class.
fn draw_samples(seed: u32) -> OwnedSamples {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    let classes: Vec<u8> = (0..M).map(|i| (i % C) as u8).collect();
    let x = (0..M * D).map(|index| noise() + 2.0 * f32::from(u8::from(index % D == index / D % C))).collect();
    OwnedSamples { x, classes, is_exhausted: false }
}

impl<T: Fitted> Pair<T> {
    fn new(device: u64, task: T, acceptor: &Arc<Acceptor>) -> Self {
        let random = ChaCha20Rng::seed_from_u64(device);
        let seed = u32::try_from(device).unwrap();
        let (config, protection) = (Config::new(device), Protection::Plaintext);
        let session = Session::new(config, protection, task, draw_samples(seed), NoStore, random);
        let decoder = Decoder::new(vec![0; config.frame_limit.into()]);
        Self { session, connection: Connection::new(Arc::clone(acceptor)), decoder }
    }
}

impl<T: Fitted> Device for Pair<T> {
    fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn exchange_frames(&mut self, event: Option<Event<'_>>) -> Vec<PeerMessage> {
        let mut out = vec![0; self.session.config().transmit_capacity()];
        let mut inbound = Vec::new();
        let mut step = |session: &mut Session<T, OwnedSamples, NoStore, ChaCha20Rng>,
                        connection: &mut Connection,
                        event: Event<'_>| {
            let mut progress = session.handle(Millis::ZERO, event, &mut out);
            connection.receive(&out[..progress.sent], &mut inbound);
            while progress.again {
                progress = session.handle(Millis::ZERO, Event::Tick, &mut out);
                connection.receive(&out[..progress.sent], &mut inbound);
            }
        };
        if let Some(event) = event {
            step(&mut self.session, &mut self.connection, event);
        }
        let mut wire = Vec::new();
        while self.connection.next_frame(&mut wire) {
            let mut input = wire.as_slice();
            while let FeedResult::Message(message) = self.decoder.feed(&mut input) {
                step(&mut self.session, &mut self.connection, Event::Message(message));
            }
            wire.clear();
        }
        inbound
    }

    fn last_fit(&self) -> HeadFit {
        self.session.task().last_fit()
    }
}

const FLEET: &str = "[devices]\nexpected = 3\n[data]\nd = 6\noutputs = 3\n[model]\nk = 2\n[algorithm]\n\
    name = \"fedrep\"\nrounds = 2\nstep_size = 0.1\n";

/// Runs a campaign to its end. Returns, for each device, the number of heads that were requested without a
/// choice, and how the last head was fitted.
fn run_campaign(
    text: &str,
    build: impl Fn(&Arc<Acceptor>) -> Vec<Box<dyn Device>>,
) -> (Engine, Vec<(u32, HeadFit)>) {
    let fleet = Fleet::parse("fleet.toml", text).unwrap();
    let mut engine = fleet.engine();
    let model = Model::linear(D as u16, K as u16, C as u16);
    let numeric =
        if text.contains("i16") { fedspan_protocol::message::Numeric::I16 } else { Default::default() };
    let requirements = Requirements::new(model, &engine.requests(), None).with_numeric(Some(numeric));
    let welcome = Welcome { campaign: 1, idle_milliseconds: 60_000 };
    let acceptor = Arc::new(Acceptor::plaintext(requirements, welcome));
    let mut devices = build(&acceptor);
    let mut actions = Vec::new();
    let mut events: Vec<(u64, PeerMessage)> = Vec::new();
    for (id, device) in (0..).zip(&mut devices) {
        events.extend(device.exchange_frames(Some(Event::LinkUp)).into_iter().map(|inbound| (id, inbound)));
    }
    while !events.is_empty() {
        for (id, inbound) in events.drain(..) {
            let event = match inbound {
                PeerMessage::Hello(_) => EngineEvent::Joined(DeviceId(id)),
                PeerMessage::Update(update) => EngineEvent::Update(DeviceId(id), update),
                PeerMessage::Decline(decline) => EngineEvent::Declined(DeviceId(id), decline),
                other => panic!("{id}: {other:?}"),
            };
            engine.handle(Millis::ZERO, event, &mut actions);
        }
        for action in actions.drain(..) {
            match action {
                Action::Open(id, opening) => devices[id.0 as usize].connection().open(&opening),
                Action::Close(id, round) => devices[id.0 as usize].connection().close_round(round),
                Action::Acknowledge(id, ack) => {
                    let message = fedspan_protocol::message::ToDevice::Ack(ack);
                    devices[id.0 as usize].connection().send(message);
                }
                Action::Commit(_)
                | Action::NextRound(..)
                | Action::Finished
                | Action::NotAwaited(_)
                | Action::Awaited(_) => {}
                Action::Failed(failure) => panic!("{failure}"),
            }
        }
        for (id, device) in (0..).zip(&mut devices) {
            events.extend(device.exchange_frames(None).into_iter().map(|inbound| (id, inbound)));
        }
    }
    assert_eq!(engine.phase(), Phase::Finished);
    let fits = devices
        .iter_mut()
        .map(|device| (device.connection().traffic().unchosen, device.last_fit()))
        .collect();
    (engine, fits)
}

fn choosing_device(id: u64, acceptor: &Arc<Acceptor>) -> Box<dyn Device> {
    Box::new(Pair::new(id, Linear::new(Workspace::<D, K, C>::new()), acceptor))
}

fn default_ridge_device(id: u64, acceptor: &Arc<Acceptor>) -> Box<dyn Device> {
    Box::new(Pair::new(id, WithoutRidgeChoice(Linear::new(Workspace::<D, K, C>::new())), acceptor))
}

#[test]
fn mixed_fleet_gets_heads_from_all_devices() {
    let (engine, fits) = run_campaign(FLEET, |acceptor| {
        vec![choosing_device(0, acceptor), default_ridge_device(1, acceptor), choosing_device(2, acceptor)]
    });
    let chosen = engine.chosen_ridge().unwrap();
    assert_eq!(chosen.devices, 2, "a device without the feature scored ridges");
    assert!(
        matches!(engine.final_head(), HeadSolve::LeaveOneOut { fallback_ridge } if fallback_ridge == chosen.ridge)
    );
    assert_eq!([0, 1, 2].map(|id: usize| fits[id].0), [0, 1, 0]);
    // The device without the feature uses the published ridge. The other devices choose from their own grid,
    // which has other values.
    assert_eq!(fits[1].1.ridge, chosen.ridge);
    for id in [0, 2] {
        assert_ne!(fits[id].1.ridge, chosen.ridge);
    }
    assert!(fits.iter().all(|(_, fit)| fit.samples as usize == M && usize::from(fit.width) == K));
}

/// Tests that the default ridge is published and used if no device scores ridges.
#[test]
fn fleet_without_the_feature_gets_the_default_ridge() {
    let (engine, fits) =
        run_campaign(FLEET, |acceptor| (0..3).map(|id| default_ridge_device(id, acceptor)).collect());
    let chosen = engine.chosen_ridge().unwrap();
    assert_eq!(
        (chosen.devices, f64::from(chosen.ridge)),
        (0, f64::from(fedspan_engine::DEFAULT_RIDGE as f32))
    );
    assert!(fits.iter().all(|(unchosen, fit)| (*unchosen, fit.ridge) == (1, chosen.ridge)));
}

/// Tests that with a configured ridge no device chooses, and no device is counted.
#[test]
fn configured_ridge_applies_to_all_devices() {
    let text = format!("{FLEET}final_ridge = 0.25\n");
    let (engine, fits) = run_campaign(&text, |acceptor| {
        vec![
            choosing_device(0, acceptor),
            default_ridge_device(1, acceptor),
            default_ridge_device(2, acceptor),
        ]
    });
    assert_eq!(engine.chosen_ridge(), None);
    assert!(fits.iter().all(|(unchosen, fit)| (*unchosen, fit.ridge) == (0, 0.25)));
}

/// Tests fixed-point devices, which score ridges but do not compute leave-one-out errors.
#[test]
fn fixed_point_device_takes_the_published_ridge() {
    let text = format!("{FLEET}numeric = \"i16\"\n");
    let build = |acceptor: &Arc<Acceptor>| -> Vec<Box<dyn Device>> {
        let device = |id| Box::new(Pair::new(id, Linear::new(FixedWorkspace::<D, K, C>::new()), acceptor));
        (0..3).map(|id| device(id) as Box<dyn Device>).collect()
    };
    let (engine, fits) = run_campaign(&text, build);
    let chosen = engine.chosen_ridge().unwrap();
    assert_eq!(chosen.devices, 3);
    assert!(fits.iter().all(|(unchosen, fit)| (*unchosen, fit.ridge) == (1, chosen.ridge)));
}
