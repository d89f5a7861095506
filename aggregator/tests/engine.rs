//! The engine against a small model of it: every event's actions, counters and numbers are predicted; after
//! any history a campaign of honest devices ends; a restart changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::campaign::{BOUND, D, ETA, ITERATIONS, K, Setup, honest, setup};
use common::{bits, distance, random, tensors, update};
use fedspan_aggregator::algorithm::{Request, Tensor};
use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::engine::{
    Action, Counters, DeviceId, Engine, Event, Failure, Opening, Phase, RoundRecord, Update,
};
use fedspan_aggregator::linalg::{Matrix, from_f32, orthonormal, principal_angle_distance, to_f32};
use fedspan_protocol::message::{Ack, AckOutcome, Decline, DeclineReason, Rejection, RoundId};
use proptest::prelude::*;

/// Devices that occur: more than any fleet needs.
const UNIVERSE: u64 = 7;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Good,
    NotFinite(bool),
    Shape,
    Role,
    Norm,
    NoSamples,
    Again,
    Changed,
    Late,
    Future,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Join(DeviceId),
    Leave(DeviceId),
    Answer(DeviceId, Kind),
    Decline(DeviceId, bool),
    Advance(u64),
    Tick,
}

fn op() -> impl Strategy<Value = Op> {
    let device = 0..UNIVERSE;
    let kind = prop_oneof![
        12 => Just(Kind::Good),
        1 => any::<bool>().prop_map(Kind::NotFinite),
        1 => Just(Kind::Shape),
        1 => Just(Kind::Role),
        1 => Just(Kind::Norm),
        1 => Just(Kind::NoSamples),
        2 => Just(Kind::Again),
        1 => Just(Kind::Changed),
        2 => Just(Kind::Late),
        1 => Just(Kind::Future),
    ];
    prop_oneof![
        6 => device.clone().prop_map(Op::Join),
        2 => device.clone().prop_map(Op::Leave),
        14 => (device.clone(), kind).prop_map(|(d, k)| Op::Answer(d, k)),
        3 => (device, prop::bool::weighted(0.8)).prop_map(|(d, now)| Op::Decline(d, now)),
        3 => (1u64..120).prop_map(Op::Advance),
        3 => Just(Op::Tick),
    ]
}

/// What one event must lead to, in order; what goes to several devices as a set.
#[derive(Clone, Debug, PartialEq)]
enum Expected {
    Ack(DeviceId, RoundId, AckOutcome),
    Close(RoundId, BTreeSet<DeviceId>),
    Commit(Box<RoundRecord>),
    Open(RoundId, BTreeSet<DeviceId>),
    Finished,
    /// The round, and how many counted in it.
    Failed(u32, usize),
}

struct ModelRound {
    id: RoundId,
    phase: Phase,
    cohort: BTreeSet<DeviceId>,
    target: usize,
    /// It has asked beyond its cohort: whoever joins is asked.
    wanting: bool,
    counted: BTreeMap<DeviceId, Update>,
    order: Vec<DeviceId>,
    out: BTreeSet<DeviceId>,
    rejected: u32,
    opened_at: u64,
    deadline: Option<u64>,
}

impl ModelRound {
    fn awaits(&self, device: DeviceId) -> bool {
        self.cohort.contains(&device) && !self.counted.contains_key(&device) && !self.out.contains(&device)
    }

    fn nobody_left(&self) -> bool {
        self.cohort.iter().all(|device| !self.awaits(*device))
    }
}

/// The engine's rules in plain words: sets, and f64 sums.
struct Model {
    setup: Setup,
    now: u64,
    phase: Phase,
    basis: Matrix,
    head: Matrix,
    /// When each device left; `None` where it is connected.
    fleet: BTreeMap<DeviceId, Option<u64>>,
    round: Option<ModelRound>,
    last: RoundId,
    opened: bool,
    /// Tries in a row to which no answer counted.
    barren: u32,
    /// When a round that too few can answer is tried again.
    retry: Option<u64>,
    counters: Counters,
    commits: Vec<u32>,
}

impl Model {
    fn new(setup: Setup) -> Self {
        Self {
            setup,
            now: 0,
            phase: Phase::Waiting,
            basis: setup.basis(),
            head: Matrix::zeros(K, 1),
            fleet: BTreeMap::new(),
            round: None,
            last: RoundId::default(),
            opened: false,
            barren: 0,
            retry: None,
            counters: Counters::default(),
            commits: Vec::new(),
        }
    }

    fn connected(&self, devices: &BTreeSet<DeviceId>) -> BTreeSet<DeviceId> {
        devices.iter().copied().filter(|device| self.fleet.get(device) == Some(&None)).collect()
    }

    fn present(&self) -> BTreeSet<DeviceId> {
        let here = |left: &Option<u64>| left.is_none_or(|at| self.now - at < self.setup.absence);
        self.fleet.iter().filter(|(_, left)| here(left)).map(|(device, _)| *device).collect()
    }

    fn join(&mut self, device: DeviceId) -> Vec<Expected> {
        self.fleet.insert(device, None);
        match (&mut self.round, self.phase) {
            (Some(round), Phase::FitHead | Phase::Finished) => {
                round.cohort.insert(device);
                vec![Expected::Open(round.id, BTreeSet::from([device]))]
            }
            // Who has answered is asked again, too: its acknowledgement may have been lost.
            (Some(round), _)
                if round.wanting || round.cohort.contains(&device) && !round.out.contains(&device) =>
            {
                round.cohort.insert(device);
                self.counters.asked_again += u64::from(round.out.remove(&device));
                vec![Expected::Open(round.id, BTreeSet::from([device]))]
            }
            (Some(_), _) | (None, Phase::Failed) => Vec::new(),
            (None, _) if self.retry.is_some() => Vec::new(),
            (None, _) => {
                let here = self.fleet.values().filter(|left| left.is_none()).count();
                let needed = match self.phase {
                    Phase::Train(done) if done == self.setup.rounds => 1,
                    _ if self.opened => self.setup.min_count.min(self.setup.fleet_size),
                    _ => self.setup.fleet_size,
                };
                if here >= needed { self.next() } else { Vec::new() }
            }
        }
    }

    fn next(&mut self) -> Vec<Expected> {
        let present = self.present();
        if present.is_empty() {
            return Vec::new();
        }
        self.opened = true;
        self.retry = None;
        let starts = if self.setup.power { ITERATIONS } else { 0 };
        self.phase = match self.phase {
            Phase::Waiting if starts > 0 => Phase::Start(1),
            Phase::Start(done) if done < starts => Phase::Start(done + 1),
            Phase::Waiting | Phase::Start(_) => Phase::Train(1),
            Phase::Train(done) if done < self.setup.rounds => Phase::Train(done + 1),
            _ => Phase::FitHead,
        };
        let mut cohort = present.clone();
        let mut target = present.len();
        if let Phase::Train(number) = self.phase {
            let devices: Vec<DeviceId> = present.into_iter().collect();
            let drawn = self.setup.policy().cohort(number, &devices);
            cohort = drawn.devices.into_iter().collect();
            target = drawn.target;
        }
        self.last.round += 1;
        let opened = self.connected(&cohort);
        self.round = Some(ModelRound {
            id: self.last,
            phase: self.phase,
            cohort,
            target,
            wanting: false,
            counted: BTreeMap::new(),
            order: Vec::new(),
            out: BTreeSet::new(),
            rejected: 0,
            opened_at: self.now,
            deadline: self.setup.deadline.map(|limit| self.now + limit),
        });
        if opened.is_empty() { Vec::new() } else { vec![Expected::Open(self.last, opened)] }
    }

    /// Those who are there and were not asked, and are asked now.
    fn widen(&mut self) -> BTreeSet<DeviceId> {
        let present = self.present();
        let Some(round) = &mut self.round else { return BTreeSet::new() };
        let more: BTreeSet<DeviceId> = present.difference(&round.cohort).copied().collect();
        round.cohort.extend(&more);
        round.wanting = true;
        more
    }

    /// Those who are connected and would not answer, and are asked again now.
    fn ask_again(&mut self) -> BTreeSet<DeviceId> {
        self.retry = None;
        let again = self.round.as_ref().map(|round| self.connected(&round.out)).unwrap_or_default();
        if let Some(round) = &mut self.round {
            round.out.retain(|device| !again.contains(device));
        }
        self.counters.asked_again += again.len() as u64;
        again
    }

    fn opened(&self, devices: &BTreeSet<DeviceId>) -> Vec<Expected> {
        let opened = self.connected(devices);
        if opened.is_empty() { Vec::new() } else { vec![Expected::Open(self.last, opened)] }
    }

    /// Fewest answers that close the open round without its target.
    fn least(&self) -> usize {
        self.round.as_ref().map_or(0, |round| self.setup.min_count.min(round.target))
    }

    fn answer(&mut self, device: DeviceId, update: &Update, wrong: Option<Rejection>) -> Vec<Expected> {
        let outcome = match &mut self.round {
            Some(round) if round.id == update.id => {
                if !round.cohort.contains(&device) {
                    AckOutcome::Rejected(Rejection::NotAsked)
                } else if let Some(known) = round.counted.get(&device) {
                    // A head may be fitted again, from other samples: nothing was uploaded.
                    let fit = self.phase == Phase::FitHead || self.phase == Phase::Finished;
                    let same = fit || known.tensors == update.tensors && known.samples == update.samples;
                    if same { AckOutcome::Duplicate } else { AckOutcome::Rejected(Rejection::ContentChanged) }
                } else if let Some(rejection) = wrong {
                    round.out.insert(device);
                    AckOutcome::Rejected(rejection)
                } else {
                    round.out.remove(&device);
                    round.order.push(device);
                    round.counted.insert(device, update.clone());
                    self.barren = 0;
                    AckOutcome::Counted
                }
            }
            _ if (1..=self.last.round).contains(&update.id.round) => AckOutcome::Late,
            _ => AckOutcome::Rejected(Rejection::WrongRound),
        };
        let counters = &mut self.counters;
        match outcome {
            AckOutcome::Counted => {
                counters.counted += 1;
                counters.skipped_samples += u64::from(update.skipped);
            }
            AckOutcome::Duplicate => counters.duplicate += 1,
            AckOutcome::Late => counters.late += 1,
            AckOutcome::Rejected(rejection) => {
                if let Some(round) = &mut self.round {
                    round.rejected += 1;
                }
                *match rejection {
                    Rejection::NotAsked => &mut counters.not_asked,
                    Rejection::WrongRound => &mut counters.wrong_round,
                    Rejection::Tensors => &mut counters.wrong_tensors,
                    Rejection::NonFinite => &mut counters.non_finite,
                    Rejection::NormOverBound { .. } => &mut counters.norm_over_bound,
                    Rejection::ContentChanged => &mut counters.content_changed,
                    Rejection::NoSamples => &mut counters.no_samples,
                    other => panic!("{other:?}"),
                } += 1;
            }
            other => panic!("{other:?}"),
        }
        let mut expected = vec![Expected::Ack(device, update.id, outcome)];
        expected.extend(self.settle());
        expected
    }

    fn decline(&mut self, device: DeviceId, id: RoundId) -> Vec<Expected> {
        self.counters.declined += 1;
        if let Some(round) = self.round.as_mut().filter(|round| round.id == id && round.awaits(device)) {
            round.out.insert(device);
        }
        self.settle()
    }

    /// Ends what has ended.
    fn settle(&mut self) -> Vec<Expected> {
        let Some(round) = &self.round else { return Vec::new() };
        match self.phase {
            Phase::FitHead if round.nobody_left() => {
                self.phase = Phase::Finished;
                vec![Expected::Finished]
            }
            Phase::FitHead | Phase::Finished => Vec::new(),
            _ if round.counted.len() >= round.target => self.close(),
            _ if !round.nobody_left() => Vec::new(),
            _ if round.counted.len() >= self.least() => self.close(),
            _ => {
                let counted = round.counted.len();
                let more = self.widen();
                if more.is_empty() { self.starve(counted) } else { self.opened(&more) }
            }
        }
    }

    /// Nobody else can answer, and too few counted.
    fn starve(&mut self, counted: usize) -> Vec<Expected> {
        let later = self.setup.patience.map(|patience| self.now + patience);
        let repeats = counted == 0;
        let tries = self.barren + 1;
        if later.is_none() && tries >= 3 {
            self.barren = tries;
            self.round = None;
            self.phase = Phase::Failed;
            return vec![Expected::Failed(self.last.round, counted)];
        }
        if !repeats {
            // What counted stays.
            if later.is_some() {
                self.retry = self.retry.or(later);
                return Vec::new();
            }
            let again = self.ask_again();
            self.barren += u32::from(!again.is_empty());
            return self.opened(&again);
        }
        self.barren = tries;
        self.round = None;
        self.counters.repeated += 1;
        self.phase = match self.phase {
            Phase::Start(number) => Phase::Start(number - 1),
            Phase::Train(number) => Phase::Train(number - 1),
            other => other,
        };
        self.retry = later;
        if later.is_some() { Vec::new() } else { self.next() }
    }

    fn tick(&mut self) -> Vec<Expected> {
        let mut expected = self.at_deadline();
        if self.retry.is_some_and(|at| self.now >= at) {
            self.retry = None;
            expected.extend(if self.round.is_none() {
                self.next()
            } else {
                let again = self.ask_again();
                self.opened(&again)
            });
        }
        expected
    }

    fn at_deadline(&mut self) -> Vec<Expected> {
        let now = self.now;
        let Some(round) = &mut self.round else { return Vec::new() };
        if round.deadline.is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match self.phase {
            Phase::FitHead => {
                round.deadline = None;
                self.phase = Phase::Finished;
                vec![Expected::Finished]
            }
            Phase::Finished => {
                round.deadline = None;
                Vec::new()
            }
            _ if round.counted.len() >= self.setup.min_count.min(round.target) => self.close(),
            _ => {
                round.deadline = self.setup.deadline.map(|limit| now + limit);
                self.counters.extended += 1;
                let mut asked = self.widen();
                asked.extend(self.ask_again());
                self.opened(&asked)
            }
        }
    }

    /// The recomputation from what counted, each once.
    fn close(&mut self) -> Vec<Expected> {
        let round = self.round.take().unwrap();
        self.retry = None;
        let mut weight = 0.0;
        let (mut first, mut second) = (Matrix::zeros(D, K), Matrix::zeros(K, 1));
        for update in round.counted.values() {
            let own = if self.setup.by_samples { f64::from(update.samples) } else { 1.0 };
            weight += own;
            first += from_f32(D, K, &update.tensors[0].values) * own;
            if let Some(head) = update.tensors.get(1) {
                second += from_f32(K, 1, &head.values) * own;
            }
        }
        first /= weight;
        match round.phase {
            Phase::Start(_) => self.basis = orthonormal(&first).unwrap(),
            _ if self.setup.fedavg => {
                self.basis = first;
                self.head = second / weight;
            }
            _ => {
                let held = from_f32(D, K, &to_f32(&self.basis));
                self.basis = orthonormal(&(held - first * f64::from(ETA))).unwrap();
            }
        }
        self.commits.push(round.id.round);
        let awaited = round.cohort.iter().copied().filter(|device| round.awaits(*device)).collect();
        let told = self.connected(&awaited);
        let mut expected = Vec::new();
        if !told.is_empty() {
            expected.push(Expected::Close(round.id, told));
        }
        expected.push(Expected::Commit(Box::new(RoundRecord {
            id: round.id,
            phase: round.phase,
            cohort: round.cohort.iter().copied().collect(),
            participants: round.order.clone(),
            rejected: round.rejected,
            opened_at: round.opened_at,
            closed_at: self.now,
            change: None,
            ends_training: round.phase == Phase::Train(self.setup.rounds),
        })));
        expected.extend(self.next());
        expected
    }
}

/// Engine and model side by side.
struct World {
    engine: Engine,
    model: Model,
    /// What each connected device was last told to open.
    pending: BTreeMap<DeviceId, Arc<Opening>>,
    openings: BTreeMap<u32, Arc<Opening>>,
    /// Every update that counted, by device.
    counted: BTreeMap<DeviceId, Update>,
    finished: usize,
    draws: u64,
}

impl World {
    fn new(setup: Setup) -> Self {
        Self {
            engine: setup.engine(),
            model: Model::new(setup),
            pending: BTreeMap::new(),
            openings: BTreeMap::new(),
            counted: BTreeMap::new(),
            finished: 0,
            draws: 0,
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Join(device) => {
                let expected = self.model.join(device);
                self.event(Event::Joined(device), expected);
            }
            Op::Leave(device) => {
                if let Some(left) = self.model.fleet.get_mut(&device) {
                    // Who is gone already cannot leave again.
                    left.get_or_insert(self.model.now);
                }
                self.pending.remove(&device);
                self.event(Event::Left(device), Vec::new());
            }
            Op::Answer(device, kind) => self.answer(device, kind),
            Op::Decline(device, current) => {
                let mut id = self.model.last;
                if !current {
                    id.round = id.round.saturating_sub(1);
                }
                let expected = self.model.decline(device, id);
                let decline = Decline { id, reason: DeclineReason::NoSamples };
                self.event(Event::Declined(device, decline), expected);
            }
            Op::Advance(by) => self.model.now += by,
            Op::Tick => {
                let expected = self.model.tick();
                self.event(Event::Tick, expected);
            }
        }
    }

    /// A good answer to the open round, or to any round that was.
    fn good(&mut self, opening: &Opening) -> Update {
        self.draws += 1;
        let stream = &mut random(self.draws);
        let samples = 1 + (self.draws % 7) as u32;
        let values = tensors(&opening.request.expects, stream, 1.0);
        let skipped = (self.draws % 3) as u32;
        Update { skipped, ..update(opening.id, samples, &opening.request.expects, values) }
    }

    fn answer(&mut self, device: DeviceId, kind: Kind) {
        let Some(opening) = self.openings.get(&self.model.last.round).cloned() else {
            // Nobody has been told of an open round.
            let stray = update(RoundId { round: self.model.last.round + 1, stage: 0 }, 1, &[], Vec::new());
            let expected = self.model.answer(device, &stray, None);
            return self.event(Event::Update(device, stray), expected);
        };
        let mut update = self.good(&opening);
        let mut wrong = None;
        let values = |update: &mut Update, change: &dyn Fn(&mut f32)| {
            update.tensors.last_mut().and_then(|t| t.values.last_mut()).map(change)
        };
        match kind {
            Kind::Good => {}
            Kind::NotFinite(nan) => {
                let bad = if nan { f32::NAN } else { f32::NEG_INFINITY };
                wrong = values(&mut update, &|v| *v = bad).map(|()| Rejection::NonFinite);
            }
            Kind::Norm => {
                values(&mut update, &|v| *v = BOUND * 1.5);
                let all = update.tensors.iter().flat_map(|t| &t.values);
                let norm = all.map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt() as f32;
                wrong = (norm > BOUND).then_some(Rejection::NormOverBound { norm, bound: BOUND });
            }
            Kind::Shape => {
                match (update.descriptors.last_mut(), update.tensors.last_mut()) {
                    (Some(descriptor), Some(tensor)) => {
                        std::mem::swap(&mut descriptor.rows, &mut descriptor.cols);
                        std::mem::swap(&mut tensor.rows, &mut tensor.cols);
                    }
                    _ => {
                        let extra = Tensor {
                            role: fedspan_protocol::tensor::Role::Gradient,
                            rows: 1,
                            cols: 1,
                            values: vec![0.0],
                        };
                        update.descriptors.push(extra.descriptor(Default::default()));
                        update.tensors.push(extra);
                    }
                }
                wrong = Some(Rejection::Tensors);
            }
            Kind::Role => {
                if let Some(descriptor) = update.descriptors.first_mut() {
                    descriptor.role = fedspan_protocol::tensor::Role::Moment;
                    wrong = Some(Rejection::Tensors);
                }
            }
            Kind::NoSamples => {
                update.samples = 0;
                wrong = Some(Rejection::NoSamples);
            }
            Kind::Again => {
                if let Some(known) = self.counted.get(&device) {
                    update = known.clone();
                    update.skipped += 1;
                }
            }
            Kind::Changed => {
                if let Some(known) = self.counted.get(&device) {
                    update = known.clone();
                    update.samples += 1;
                    values(&mut update, &|v| *v *= 0.5);
                }
            }
            Kind::Late => {
                let earlier = self.openings.range(..self.model.last.round).next_back();
                let earlier = earlier.map(|(_, opening)| Arc::clone(opening));
                if let Some(opening) = earlier {
                    update = self.good(&opening);
                }
            }
            Kind::Future => update.id.round += 1 + (self.draws % 4) as u32,
        }
        let expected = self.model.answer(device, &update, wrong);
        if let Some(Expected::Ack(_, _, AckOutcome::Counted)) = expected.first() {
            self.counted.insert(device, update.clone());
        }
        self.event(Event::Update(device, update), expected);
    }

    fn event(&mut self, event: Event, expected: Vec<Expected>) {
        let mut actions = Vec::new();
        self.engine.handle(self.model.now, event.clone(), &mut actions);
        let mut found = Vec::new();
        for action in &actions {
            match action {
                Action::Open(device, opening) => {
                    self.opened(opening);
                    self.pending.insert(*device, Arc::clone(opening));
                    match found.last_mut() {
                        Some(Expected::Open(id, devices)) if *id == opening.id => {
                            assert!(devices.insert(*device), "opened once");
                        }
                        _ => found.push(Expected::Open(opening.id, BTreeSet::from([*device]))),
                    }
                }
                Action::Close(device, id) => {
                    self.pending.remove(device);
                    match found.last_mut() {
                        Some(Expected::Close(last, devices)) if last == id => {
                            assert!(devices.insert(*device), "closed once");
                        }
                        _ => found.push(Expected::Close(*id, BTreeSet::from([*device]))),
                    }
                }
                Action::Acknowledge(device, ack) => {
                    if self.pending.get(device).is_some_and(|opening| opening.id == ack.id) {
                        self.pending.remove(device);
                    }
                    found.push(Expected::Ack(*device, ack.id, ack.outcome));
                }
                Action::Commit(record) => found.push(Expected::Commit(record.clone())),
                Action::Finished => {
                    self.finished += 1;
                    found.push(Expected::Finished);
                }
                Action::Failed(Failure::NoUpdates { round, .. }) => found.push(Expected::Failed(*round, 0)),
                Action::Failed(Failure::TooFew { round, counted, min_count, .. }) => {
                    assert!((1..*min_count).contains(counted), "{counted} of {min_count}");
                    found.push(Expected::Failed(*round, *counted));
                }
                Action::Failed(other) => panic!("{other}"),
            }
        }
        assert_eq!(found, expected, "after {event:?} in {:?}", self.model.phase);
        self.same();
    }

    fn opened(&mut self, opening: &Arc<Opening>) {
        let known = self.openings.entry(opening.id.round).or_insert_with(|| Arc::clone(opening));
        assert!(Arc::ptr_eq(known, opening), "one opening for all devices");
        // What is sent is the representation as it is now.
        if let Some(sent) = opening.request.tensors.first() {
            let sent = from_f32(D, K, &sent.values);
            let mut basis = self.model.basis.clone();
            if self.setup().fedavg && matches!(self.model.phase, Phase::FitHead | Phase::Finished) {
                basis = orthonormal(&basis).unwrap();
            }
            assert!(distance(&sent, &basis) < 1e-5);
        }
    }

    fn setup(&self) -> Setup {
        self.model.setup
    }

    fn same(&self) {
        let (engine, model) = (&self.engine, &self.model);
        assert_eq!(engine.phase(), model.phase);
        assert_eq!(engine.counters(), model.counters);
        let here = model.fleet.values().filter(|left| left.is_none()).count();
        assert_eq!(engine.fleet(), (model.fleet.len(), here));
        let deadline = model.round.as_ref().and_then(|round| round.deadline);
        assert_eq!(engine.wake(), deadline.into_iter().chain(model.retry).min());
        assert!(distance(engine.representation(), &model.basis) < 1e-8, "counted once, and only that");
        if let Some(head) = engine.shared_head() {
            assert!(distance(head, &model.head) < 1e-8);
        }
        match (engine.open_round(), &model.round) {
            (Some(open), Some(round)) => {
                assert_eq!((open.opening.id, &open.participants), (round.id, &round.order));
                assert_eq!((&open.cohort, &open.out), (&round.cohort, &round.out));
                let outstanding = round.cohort.iter().filter(|device| round.awaits(**device)).count();
                assert_eq!(open.outstanding(), outstanding);
            }
            (None, None) => {}
            (open, _) => panic!("open in one of both: {open:?}"),
        }
        assert!(model.commits.windows(2).all(|pair| pair[0] < pair[1]), "in order, once");
        assert!(self.finished <= 1);
    }

    /// From here everyone answers honestly until the campaign ends.
    fn finish_honestly(&mut self) {
        // Without a deadline a round waits for all it asked, so all must come back; with one, enough must:
        // who declined is asked again.
        let enough = self.setup().fleet_size.max(self.setup().min_count);
        for device in 0..UNIVERSE {
            let here = self.model.fleet.values().filter(|left| left.is_none()).count();
            let known = self.model.fleet.contains_key(&device);
            let gone = self.model.fleet.get(&device) != Some(&None);
            let needed = here < enough || self.setup().deadline.is_none() && known;
            if gone && needed {
                self.apply(Op::Join(device));
            }
        }
        for _ in 0..400 {
            if matches!(self.model.phase, Phase::Finished | Phase::Failed) {
                return;
            }
            if let Some((device, opening)) = self.pending.iter().next().map(|(d, o)| (*d, Arc::clone(o))) {
                self.pending.remove(&device);
                let update = self.good(&opening);
                let expected = self.model.answer(device, &update, None);
                self.event(Event::Update(device, update), expected);
            } else {
                let wake = self.engine.wake().expect("everyone has answered, and nothing is due");
                self.model.now = self.model.now.max(wake);
                self.apply(Op::Tick);
            }
        }
        panic!("stuck in {:?}: {:?}", self.model.phase, self.engine.open_round());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn any_history_is_as_predicted_and_ends(setup in setup(), ops in proptest::collection::vec(op(), 0..80)) {
        let mut world = World::new(setup);
        for op in ops {
            world.apply(op);
        }
        world.finish_honestly();
        if world.model.phase == Phase::Failed {
            // Failed stays failed.
            world.apply(Op::Join(50));
            world.apply(Op::Tick);
            return Ok(());
        }
        prop_assert_eq!(world.finished, 1);
        let expected = setup.rounds + if setup.power { ITERATIONS } else { 0 };
        prop_assert_eq!(world.model.commits.len(), expected as usize, "one commit a round");
        // Newcomers, and those who were away, are still offered their head; it ends only once.
        for device in [100, 101] {
            world.apply(Op::Join(device));
            let opening = world.pending.get(&device).cloned().expect("fit-head is offered");
            prop_assert_eq!(opening.request.expects.len(), 0);
            world.apply(Op::Answer(device, Kind::Good));
            prop_assert_eq!(&world.counted[&device].id, &opening.id);
        }
    }
}

// ---- restarts -----------------------------------------------------------------------------------------

/// A commit as a server keeps it, and the exchanges that were opened so far.
#[derive(Clone)]
struct Kept {
    id: RoundId,
    phase: Phase,
    state: Vec<f64>,
    record: RoundRecord,
}

struct Life {
    engine: Engine,
    kept: Vec<Kept>,
    opened: BTreeSet<u32>,
}

/// Lets `devices` answer honestly until the campaign has finished or `commits` rounds are committed.
fn live(mut engine: Engine, devices: u64, commits: usize) -> Life {
    let (mut kept, mut opened) = (Vec::new(), BTreeSet::new());
    let mut queue: Vec<Event> = (0..devices).map(Event::Joined).rev().collect();
    while let Some(event) = queue.pop() {
        let mut actions = Vec::new();
        engine.handle(0, event, &mut actions);
        for action in actions {
            match action {
                Action::Open(device, opening) => {
                    opened.insert(opening.id.round);
                    queue.insert(0, Event::Update(device, honest(device, &opening)));
                }
                Action::Commit(record) => {
                    // As the server does: the state once the event is handled.
                    let state = engine.snapshot().2;
                    kept.push(Kept { id: record.id, phase: record.phase, state, record: *record });
                }
                Action::Failed(failure) => panic!("{failure}"),
                _ => {}
            }
        }
        if kept.len() >= commits {
            break;
        }
    }
    Life { engine, kept, opened }
}

/// The final model, bit by bit.
fn result(engine: &Engine) -> (Vec<u64>, Option<Vec<u64>>) {
    (bits(engine.representation()), engine.shared_head().map(bits))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_restart_after_any_commit_leads_to_the_same_result(setup in setup(), after in 0usize..6, again in any::<bool>()) {
        let setup = Setup { deadline: None, ..setup };
        let devices = setup.fleet_size as u64;
        let whole = live(setup.engine(), devices, usize::MAX);
        prop_assert_eq!(whole.engine.phase(), Phase::Finished);

        // What is durable: what a server begins with, the commit, and then what it is resumed as.
        let (id, phase, state) = setup.engine().snapshot();
        let mut first = live(setup.engine(), devices, after.min(whole.kept.len()).max(1));
        if after == 0 {
            // Down before the first commit: the first exchange was open.
            let record = first.kept[0].record.clone();
            first.kept = vec![Kept { id, phase, state, record }];
            first.opened = BTreeSet::from([1]);
        }
        let last = first.kept.last().unwrap().clone();
        let committed = if after == 0 { 0 } else { first.kept.len() };
        let mut seen = first.opened;
        let mut engine = setup.engine();
        prop_assert!(engine.resume(last.id, last.phase, &last.state), "after {:?}", last.phase);
        let (id, phase, state) = engine.snapshot();
        if again {
            // It opens a round, devices answer, and it goes down before it commits.
            let mut actions = Vec::new();
            for device in 0..devices {
                engine.handle(0, Event::Joined(device), &mut actions);
            }
            let number = engine.open_round().unwrap().opening.id.round;
            prop_assert!(seen.insert(number), "a number that no device has seen");
            engine = setup.engine();
            prop_assert!(engine.resume(id, phase, &state));
        }
        let rest = live(engine, devices, usize::MAX);
        prop_assert_eq!(rest.engine.phase(), Phase::Finished);
        prop_assert_eq!(committed + rest.kept.len(), whole.kept.len());
        prop_assert!(seen.iter().next_back() < rest.opened.iter().next(), "{:?} {:?}", seen, rest.opened);
        prop_assert_eq!(result(&rest.engine), result(&whole.engine));
    }

    /// A state of another size is refused, and the campaign is as if it had never been offered.
    #[test]
    fn a_state_of_another_size_changes_nothing(setup in setup(), len in 0usize..30, number in 1u32..4) {
        let mut engine = setup.engine();
        let before = engine.snapshot();
        let phase = Phase::Train(number);
        let fits = if setup.fedavg { D * K + K } else { D * K };
        prop_assume!(len != fits);
        let id = RoundId { round: 9, stage: 0 };
        let fits = engine.resume(id, phase, &vec![0.5; len]);
        prop_assert!(!fits);
        prop_assert_eq!(engine.snapshot(), before);
        prop_assert_eq!(setup.power, setup.engine().resume(id, Phase::Start(1), &[0.5; D * K]));
    }
}

// ---- examples -----------------------------------------------------------------------------------------

fn plain() -> Setup {
    Setup {
        fleet_size: 2,
        rounds: 2,
        deadline: Some(100),
        min_count: 1,
        absence: 50,
        patience: None,
        stop_change: None,
        fraction: None,
        power: false,
        fedavg: false,
        by_samples: false,
        seed: 1,
    }
}

/// After a restart of its connection a device may be quicker than the opening on its way to it: its update was not
/// read, so it is neither counted nor rejected, and counts when it comes again.
#[test]
fn an_update_that_could_not_be_read_yet_leaves_the_device_in_the_round() {
    let mut engine = plain().engine();
    let mut actions = Vec::new();
    engine.handle(0, Event::Joined(0), &mut actions);
    engine.handle(0, Event::Joined(1), &mut actions);
    let opening = actions.iter().find_map(|action| match action {
        Action::Open(0, opening) => Some(Arc::clone(opening)),
        _ => None,
    });
    let opening = opening.expect("asked");
    let mut say = |event| {
        let mut actions = Vec::new();
        engine.handle(0, event, &mut actions);
        (actions, engine.counters())
    };
    let (actions, counters) = say(Event::Unread(0, opening.id));
    assert_eq!((actions, counters.unread, counters.rejected()), (vec![], 1, 0));
    let ack = |device, id, outcome| vec![Action::Acknowledge(device, Ack { id, outcome })];
    let outcome = AckOutcome::Rejected(Rejection::NotAsked);
    assert_eq!(say(Event::Unread(7, opening.id)).0, ack(7, opening.id, outcome));
    let next = RoundId { round: opening.id.round + 1, stage: 0 };
    assert_eq!(say(Event::Unread(0, next)).0, ack(0, next, AckOutcome::Rejected(Rejection::WrongRound)));
    let counted = say(Event::Update(0, honest(0, &opening))).0;
    assert_eq!(counted, ack(0, opening.id, AckOutcome::Counted));
    say(Event::Update(1, honest(1, &opening)));
    assert_eq!(say(Event::Unread(0, opening.id)).0, ack(0, opening.id, AckOutcome::Late));
}

/// The whole cohort is gone for good; somebody else is there.
#[test]
fn a_round_whose_cohort_is_gone_asks_who_is_there() {
    let mut world = World::new(plain());
    world.apply(Op::Join(0));
    world.apply(Op::Join(1));
    world.apply(Op::Leave(0));
    world.apply(Op::Leave(1));
    world.apply(Op::Join(2));
    assert!(world.pending.is_empty());
    world.apply(Op::Advance(100));
    world.apply(Op::Tick);
    assert!(world.pending.contains_key(&2));
    world.finish_honestly();
    assert_eq!(world.model.phase, Phase::Finished);
}

/// One device without samples must not end a campaign of others who have some.
#[test]
fn a_cohort_that_declines_is_replaced_by_who_was_not_asked() {
    let fraction = Some((0.2, 1.0));
    let mut world = World::new(Setup { fleet_size: 4, fraction, deadline: None, ..plain() });
    for device in 0..4 {
        world.apply(Op::Join(device));
    }
    let asked: Vec<DeviceId> = world.pending.keys().copied().collect();
    assert_eq!(asked.len(), 1);
    world.apply(Op::Decline(asked[0], true));
    assert_ne!(world.model.phase, Phase::Failed);
    world.finish_honestly();
    assert_eq!(world.model.phase, Phase::Finished);
}

#[test]
fn a_campaign_fails_when_everyone_declines_three_times_and_says_who_was_last() {
    let mut world = World::new(plain());
    world.apply(Op::Join(0));
    world.apply(Op::Join(1));
    for _ in 0..3 {
        assert_ne!(world.model.phase, Phase::Failed);
        world.apply(Op::Decline(1, true));
        world.apply(Op::Decline(0, true));
    }
    assert_eq!(world.model.phase, Phase::Failed);
}

fn joined(setup: Setup, devices: u64) -> World {
    let mut world = World::new(setup);
    for device in 0..devices {
        world.apply(Op::Join(device));
    }
    world
}

/// All four have answered or declined, and that is one too few: the round stays open with what it has, and
/// who declined is asked again, in the same round.
#[test]
fn a_round_with_too_few_updates_keeps_them_and_asks_again_after_a_while() {
    let setup = Setup { fleet_size: 4, min_count: 3, deadline: None, patience: Some(70), ..plain() };
    let mut world = joined(setup, 4);
    let first = world.model.last;
    world.apply(Op::Answer(0, Kind::Good));
    world.apply(Op::Answer(1, Kind::Norm));
    world.apply(Op::Advance(5));
    world.apply(Op::Answer(2, Kind::Good));
    world.pending.clear();
    world.apply(Op::Decline(3, true));
    assert_eq!((world.model.last, world.model.commits.len()), (first, 0));
    assert_eq!(world.engine.wake(), Some(75));
    // Once more in vain. It is put off by nobody who comes back only to decline.
    world.apply(Op::Advance(10));
    world.apply(Op::Leave(3));
    world.apply(Op::Join(3));
    assert_eq!(world.pending.remove(&3).map(|opening| opening.id), Some(first));
    world.apply(Op::Decline(3, true));
    assert_eq!(world.engine.wake(), Some(75));
    for _ in 0..10 {
        world.model.now = world.engine.wake().unwrap();
        world.apply(Op::Tick);
        assert_eq!(world.pending.keys().copied().collect::<Vec<_>>(), [1, 3]);
        world.pending.clear();
        world.apply(Op::Decline(3, true));
        world.apply(Op::Decline(1, true));
        assert_eq!(world.engine.open_round().unwrap().participants, [0, 2]);
    }
    // Somebody new will do, and so will one who has samples at last.
    world.apply(Op::Join(6));
    assert_eq!(world.pending[&6].id, first);
    world.apply(Op::Decline(6, true));
    world.model.now = world.engine.wake().unwrap();
    world.apply(Op::Tick);
    world.apply(Op::Answer(3, Kind::Good));
    assert_eq!(world.model.commits.len(), 0, "the others may still answer");
    world.apply(Op::Decline(6, true));
    world.apply(Op::Decline(1, true));
    assert_eq!(world.model.commits, [first.round]);
    world.finish_honestly();
    assert_eq!(world.model.phase, Phase::Finished);
}

#[test]
fn a_round_with_too_few_updates_asks_who_was_not_asked_before_anything_else() {
    let fraction = Some((0.5, 1.0));
    let mut world = joined(Setup { fleet_size: 4, min_count: 2, fraction, deadline: None, ..plain() }, 4);
    let asked: Vec<DeviceId> = world.pending.keys().copied().collect();
    assert_eq!(asked.len(), 2);
    world.apply(Op::Answer(asked[0], Kind::Good));
    world.apply(Op::Decline(asked[1], true));
    assert_eq!(world.model.commits.len(), 0);
    let now: BTreeSet<DeviceId> = world.pending.keys().copied().collect();
    let others: Vec<DeviceId> = now.into_iter().filter(|device| !asked.contains(device)).collect();
    assert_eq!(others.len(), 2);
    world.apply(Op::Answer(others[1], Kind::Good));
    assert_eq!(world.model.commits.len(), 1);
}

/// A minimum that the participation rule never waits for does not hold up a round.
#[test]
fn the_participation_rule_decides_where_it_waits_for_fewer_than_the_minimum() {
    let fraction = Some((0.2, 1.0));
    let mut world = joined(Setup { fleet_size: 4, min_count: 5, fraction, ..plain() }, 4);
    let asked: Vec<DeviceId> = world.pending.keys().copied().collect();
    assert_eq!(asked.len(), 1);
    world.apply(Op::Answer(asked[0], Kind::Good));
    assert_eq!(world.model.commits.len(), 1);
}

#[test]
fn without_patience_too_few_updates_fail_after_three_tries_in_vain_and_say_how_many_there_are() {
    let setup = Setup { fleet_size: 3, min_count: 3, deadline: None, ..plain() };
    let mut engine = setup.engine();
    let mut actions = Vec::new();
    for device in 0..3 {
        engine.handle(0, Event::Joined(device), &mut actions);
    }
    let opening = Arc::clone(&engine.open_round().unwrap().opening);
    let decline = Decline { id: opening.id, reason: DeclineReason::NoSamples };
    let mut says = |event| {
        let mut actions = Vec::new();
        engine.handle(0, event, &mut actions);
        actions.retain(|action| !matches!(action, Action::Acknowledge(..)));
        actions
    };
    let again = |device| Action::Open(device, Arc::clone(&opening));
    assert_eq!(says(Event::Update(2, honest(2, &opening))), []);
    assert_eq!(says(Event::Declined(0, decline)), []);
    assert_eq!(says(Event::Declined(1, decline)), [again(0), again(1)]);
    // One more counts: that is progress, and the tries are counted anew.
    assert_eq!(says(Event::Update(0, honest(0, &opening))), []);
    for _ in 0..2 {
        assert_eq!(says(Event::Declined(1, decline)), [again(1)]);
        // A stray message is no try.
        assert_eq!(says(Event::Update(0, honest(0, &opening))), []);
    }
    let actions = says(Event::Declined(1, decline));
    let [Action::Failed(failure)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(
        failure.to_string(),
        "round 1 has 2 of the 3 updates that close it, and nobody else can answer; \
         device 1: declined, the device has no usable sample"
    );
}

/// Who declined and is there is asked again when the deadline passes and another never came back.
#[test]
fn a_deadline_with_too_few_updates_asks_again_who_declined() {
    let mut world = joined(Setup { fleet_size: 3, min_count: 2, patience: Some(5), ..plain() }, 3);
    world.apply(Op::Leave(0));
    world.apply(Op::Answer(1, Kind::Good));
    world.pending.clear();
    world.apply(Op::Decline(2, true));
    world.apply(Op::Advance(100));
    world.apply(Op::Tick);
    assert_eq!(world.pending.keys().copied().collect::<Vec<_>>(), [2]);
    world.apply(Op::Answer(2, Kind::Good));
    assert_eq!(world.model.commits.len(), 0, "0 may come back until the next deadline");
    world.apply(Op::Advance(100));
    world.apply(Op::Tick);
    assert_eq!(world.model.commits.len(), 1);
}

/// The time to try again comes when everybody has gone for good: nothing is due until somebody joins.
#[test]
fn nothing_is_due_while_nobody_is_there() {
    let setup = Setup { fleet_size: 1, absence: 0, deadline: None, patience: Some(50), ..plain() };
    let mut world = joined(setup, 1);
    world.apply(Op::Decline(0, true));
    world.apply(Op::Leave(0));
    world.apply(Op::Advance(50));
    world.apply(Op::Tick);
    assert_eq!(world.engine.wake(), None);
    world.apply(Op::Join(3));
    world.finish_honestly();
    assert_eq!(world.model.phase, Phase::Finished);
}

/// A fleet of one whose device lost an acknowledgement goes on.
#[test]
fn a_round_that_everyone_declined_is_repeated_under_a_new_number() {
    let mut world = World::new(Setup { fleet_size: 1, ..plain() });
    world.apply(Op::Join(0));
    let before = world.model.last.round;
    world.apply(Op::Decline(0, true));
    assert_eq!(world.model.last.round, before + 1);
    world.finish_honestly();
    assert_eq!(world.model.phase, Phase::Finished);
}

/// The last round of a start closes at its deadline, when everybody is gone: what is committed is the
/// algorithm's state all the same.
#[test]
fn a_start_that_ends_with_nobody_there_can_be_resumed() {
    let setup = Setup { power: true, fedavg: true, absence: 0, ..plain() };
    let mut engine = setup.engine();
    let mut records = Vec::new();
    let mut handle = |engine: &mut Engine, now, event| {
        let mut actions = Vec::new();
        engine.handle(now, event, &mut actions);
        let commits =
            actions.iter().filter_map(|a| if let Action::Commit(r) = a { Some(r.phase) } else { None });
        records.extend(commits);
    };
    for device in [0, 1] {
        handle(&mut engine, 0, Event::Joined(device));
    }
    for device in [0, 1, 0] {
        let opening = Arc::clone(&engine.open_round().unwrap().opening);
        handle(&mut engine, 1, Event::Update(device, honest(device, &opening)));
    }
    for device in [0, 1] {
        handle(&mut engine, 2, Event::Left(device));
    }
    handle(&mut engine, 500, Event::Tick);
    assert_eq!(records, [Phase::Start(1), Phase::Start(2)]);
    let (id, _, state) = engine.snapshot();
    let mut resumed = setup.engine();
    assert!(resumed.resume(id, Phase::Start(2), &state));
    assert_eq!(result(&resumed), result(&engine));
}

/// A finished campaign's server is started again: who joins is offered its head at once, and the campaign
/// is finished again only when the fleet is.
#[test]
fn a_finished_campaign_offers_heads_again_after_a_restart() {
    let setup = Setup { fleet_size: 3, ..plain() };
    let life = live(setup.engine(), 3, usize::MAX);
    let last = life.kept.last().unwrap();
    assert_eq!(last.phase, Phase::Train(2));
    let mut engine = setup.engine();
    assert!(engine.resume(last.id, last.phase, &last.state));
    let mut finished = 0;
    for device in [7, 8, 9, 10] {
        let mut actions = Vec::new();
        engine.handle(5, Event::Joined(device), &mut actions);
        let [Action::Open(to, opening)] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!(*to, device);
        let answer = Event::Update(device, honest(device, opening));
        let mut actions = Vec::new();
        engine.handle(6, answer, &mut actions);
        finished += actions.iter().filter(|action| **action == Action::Finished).count();
        assert_eq!(engine.phase() == Phase::Finished, device >= 9, "{device}");
    }
    assert_eq!(finished, 1);
}

/// Training ends after the first round in which the representation moved less than the settings say, and
/// that is what a campaign of as many rounds gives; so does a server that was restarted in between.
#[test]
fn training_ends_when_the_representation_moves_little() {
    for fedavg in [false, true] {
        let setup = Setup { fleet_size: 3, rounds: 12, power: true, fedavg, ..plain() };
        let starts = ITERATIONS as usize;
        let whole = live(setup.engine(), 3, usize::MAX);
        let basis =
            |kept: &Kept| orthonormal(&Matrix::from_column_slice(D, K, &kept.state[..D * K])).unwrap();
        let bases: Vec<Matrix> = whole.kept[starts - 1..].iter().map(basis).collect();
        let moved: Vec<f64> =
            bases.windows(2).map(|two| principal_angle_distance(&two[0], &two[1])).collect();
        // A bound under which round 6 or an earlier one is the first.
        let stop_change = Some(moved[5] * 1.0001);
        let last = moved.iter().position(|moved| Some(*moved) < stop_change).unwrap() + 1;
        let stopping = Setup { stop_change, ..setup };
        let ended = live(stopping.engine(), 3, usize::MAX);
        assert_eq!(ended.engine.phase(), Phase::Finished);
        assert_eq!(ended.kept.len(), starts + last, "{moved:?}");
        assert_eq!(ended.kept[starts + last - 1].phase, Phase::Train(last as u32));
        for (kept, number) in ended.kept.iter().zip(1..) {
            let record = &kept.record;
            assert_eq!(record.ends_training, number == starts + last);
            let expected = number.checked_sub(starts + 1).map(|index| moved[index]);
            assert_eq!(record.change.map(f64::to_bits), expected.map(f64::to_bits), "not in the start");
        }
        assert_eq!(ended.kept.last().unwrap().state, whole.kept[starts + last - 1].state);

        // Restarted before the round that ends it: the committed state is the one before.
        let before = &ended.kept[starts + last - 2];
        let mut engine = stopping.engine();
        assert!(engine.resume(before.id, before.phase, &before.state));
        let rest = live(engine, 3, usize::MAX);
        assert_eq!(rest.kept.len(), 1);
        assert_eq!(result(&rest.engine), result(&ended.engine));
        // Restarted after it, as the server does it: heads are fitted at once.
        let after = ended.kept.last().unwrap();
        let mut engine = stopping.engine();
        assert!(engine.resume(after.id, after.phase, &after.state));
        engine.finish_training(0, &mut Vec::new());
        assert_eq!(engine.snapshot().1, after.phase);
        let mut actions = Vec::new();
        engine.handle(0, Event::Joined(9), &mut actions);
        let [Action::Open(9, opening)] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!((engine.phase(), opening.request.expects.len()), (Phase::FitHead, 0));
    }
}

/// However little is asked for, the start is not shortened.
#[test]
fn a_start_is_not_stopped() {
    let life = live(Setup { power: true, stop_change: Some(1.0), ..plain() }.engine(), 2, usize::MAX);
    let phases: Vec<Phase> = life.kept.iter().map(|kept| kept.phase).collect();
    assert_eq!(phases, [Phase::Start(1), Phase::Start(2), Phase::Train(1)]);
}

#[test]
fn training_that_is_stopped_early_closes_and_fits_heads() {
    let mut engine = plain().engine();
    let mut actions = Vec::new();
    engine.handle(0, Event::Joined(0), &mut actions);
    engine.finish_training(0, &mut actions);
    assert_eq!((engine.phase(), actions.len()), (Phase::Waiting, 0));
    engine.handle(0, Event::Joined(1), &mut actions);
    let first = engine.open_round().unwrap().opening.id;
    let mut actions = Vec::new();
    engine.finish_training(1, &mut actions);
    let closed: Vec<_> =
        actions.iter().filter(|a| matches!(a, Action::Close(_, id) if *id == first)).collect();
    assert_eq!(closed.len(), 2);
    assert_eq!(engine.phase(), Phase::FitHead);
    assert!(engine.open_round().unwrap().opening.id > first);
}

/// A value that the encoding cannot hold is not sent as something else.
#[test]
fn what_cannot_be_encoded_is_not_sent() {
    let (_, request) = request_of_f16(65_000.0);
    assert!(Opening::new(RoundId { round: 1, stage: 0 }, request).is_ok());
    for value in [1e5, f32::NAN, f32::INFINITY] {
        let (index, request) = request_of_f16(value);
        let error = Opening::new(RoundId { round: 1, stage: 0 }, request).unwrap_err();
        assert_eq!(error, fedspan_protocol::Error::NonFinite { index });
    }
}

/// A request with one value of interest, and where it is.
fn request_of_f16(value: f32) -> (usize, Request) {
    let fleet = "[devices]\nexpected = 1\n[data]\nd = 4\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\n\
                 rounds = 1\nstep_size = 0.5\ndownload = \"f16\"\n";
    let mut request = Fleet::parse("f", fleet).unwrap().engine().requests().remove(0);
    request.tensors[0].values[5] = value;
    (5, request)
}
