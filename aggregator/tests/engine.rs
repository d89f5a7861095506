//! The engine against a small model of it: every event's actions, counters and numbers are predicted; after
//! any history a campaign of honest devices ends; a restart changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::campaign::{BOUND, D, ETA, ITERATIONS, K, Setup, honest, setup};
use common::{bits, distance, random, tensors, update};
use fedspan_aggregator::algorithm::Tensor;
use fedspan_aggregator::engine::{
    Action, Counters, DeviceId, Engine, Event, Failure, Opening, Phase, RoundRecord, Update,
};
use fedspan_aggregator::linalg::{Matrix, from_f32, orthonormal, to_f32};
use fedspan_protocol::message::{AckOutcome, Decline, DeclineReason, Rejection, RoundId};
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
        1 => (device, any::<bool>()).prop_map(|(d, now)| Op::Decline(d, now)),
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
    Failed(u32),
}

struct ModelRound {
    id: RoundId,
    phase: Phase,
    cohort: BTreeSet<DeviceId>,
    target: usize,
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
    /// Rounds in a row that nobody could answer.
    barren: u32,
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
            (Some(round), _) if round.cohort.contains(&device) && !round.out.contains(&device) => {
                vec![Expected::Open(round.id, BTreeSet::from([device]))]
            }
            (Some(_), _) | (None, Phase::Failed) => Vec::new(),
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
            counted: BTreeMap::new(),
            order: Vec::new(),
            out: BTreeSet::new(),
            rejected: 0,
            opened_at: self.now,
            deadline: self.setup.deadline.map(|limit| self.now + limit),
        });
        if opened.is_empty() { Vec::new() } else { vec![Expected::Open(self.last, opened)] }
    }

    /// Asks those who are there and were not asked. `None` if there is nobody.
    fn widen(&mut self) -> Option<Vec<Expected>> {
        let present = self.present();
        let round = self.round.as_mut()?;
        let more: BTreeSet<DeviceId> = present.difference(&round.cohort).copied().collect();
        round.cohort.extend(&more);
        let id = round.id;
        let opened = self.connected(&more);
        match (more.is_empty(), opened.is_empty()) {
            (true, _) => None,
            (_, true) => Some(Vec::new()),
            _ => Some(vec![Expected::Open(id, opened)]),
        }
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
            _ if !round.counted.is_empty() => self.close(),
            _ => self.widen().unwrap_or_else(|| {
                self.barren += 1;
                self.round = None;
                if self.barren < 3 {
                    self.counters.repeated += 1;
                    self.phase = match self.phase {
                        Phase::Start(number) => Phase::Start(number - 1),
                        Phase::Train(number) => Phase::Train(number - 1),
                        other => other,
                    };
                    return self.next();
                }
                self.phase = Phase::Failed;
                vec![Expected::Failed(self.last.round)]
            }),
        }
    }

    fn tick(&mut self) -> Vec<Expected> {
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
            _ if round.counted.len() >= self.setup.min_count => self.close(),
            _ => {
                round.deadline = self.setup.deadline.map(|limit| now + limit);
                self.counters.extended += 1;
                self.widen().unwrap_or_default()
            }
        }
    }

    /// The recomputation from what counted, each once.
    fn close(&mut self) -> Vec<Expected> {
        let round = self.round.take().unwrap();
        self.barren = 0;
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
                Action::Failed(Failure::NoUpdates { round, .. }) => found.push(Expected::Failed(*round)),
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
        assert_eq!(engine.wake(), model.round.as_ref().and_then(|round| round.deadline));
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
        // Without a deadline a round waits for all it asked, so all must come back; with one, enough must
        // that have not declined.
        let enough = self.setup().fleet_size.max(self.setup().min_count);
        for device in 0..UNIVERSE {
            let out = self.model.round.as_ref().map(|round| round.out.clone()).unwrap_or_default();
            let willing =
                |(device, left): &(&DeviceId, &Option<u64>)| left.is_none() && !out.contains(device);
            let here = self.model.fleet.iter().filter(willing).count();
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
                    kept.push(Kept { id: record.id, phase: record.phase, state: engine.snapshot().2 });
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
            first.kept = vec![Kept { id, phase, state }];
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
        fraction: None,
        power: false,
        fedavg: false,
        by_samples: false,
        seed: 1,
    }
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
