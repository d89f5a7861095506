//! The round in which a fleet chooses the ridge of final heads: who is asked, what counts, what is published, and what a restart
//! leaves of it.
#![allow(clippy::indexing_slicing)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use crate::common;
use std::sync::Arc;

use crate::common::campaign::{honest, plain};
use fedspan_engine::Tensor;
use fedspan_engine::{
    Action, Checkpoint, DeviceId, Engine, Event, GRID, Millis, Opening, Phase, RidgeScores, Update,
};
use fedspan_protocol::limits::{RIDGE_DRAWS, RIDGE_SAMPLES_MAX};
use fedspan_protocol::message::{AckOutcome, Decline, DeclineReason, HeadSolve, Rejection, Task};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use proptest::prelude::*;

const COUNT: usize = GRID.count as usize;

/// The ridge that is published where no device has scored any.
const OTHERWISE: f32 = 0.07;

fn engine(deadline: Option<Millis>) -> Engine {
    let mut engine = common::campaign::Setup { fleet_size: 3, rounds: 1, deadline, ..plain() }.engine();
    let head = HeadSolve::LeaveOneOut { fallback_ridge: OTHERWISE };
    engine = engine.with_final_head(head);
    engine.scoring_ridges(Some(2))
}

/// What a device says that tried `samples` and got so many right.
fn scores(opening: &Opening, samples: u32, right: impl Fn(usize) -> f32) -> Update {
    let expects = &opening.request.expects;
    let values = (0..COUNT).map(right).collect();
    let tensor = Tensor { role: Role::RidgeScores, rows: 1, cols: COUNT as u16, values };
    common::update(opening.id, samples, expects, vec![tensor])
}

/// A peak at one place of the grid.
fn peak(at: usize, samples: u32) -> impl Fn(usize) -> f32 {
    move |place| (samples / 2 + samples / 2 / (1 + place.abs_diff(at) as u32)) as f32
}

/// An engine, its openings that were not answered, and the last commit.
struct Life {
    engine: Engine,
    open: Vec<(DeviceId, Arc<Opening>)>,
    commits: Vec<(Phase, Checkpoint)>,
    outcomes: Vec<AckOutcome>,
    finished: bool,
}

impl Life {
    fn new(engine: Engine) -> Self {
        Self { engine, open: Vec::new(), commits: Vec::new(), outcomes: Vec::new(), finished: false }
    }

    fn handle(&mut self, now: Millis, event: Event) {
        let mut actions = Vec::new();
        self.engine.handle(now, event, &mut actions);
        for action in actions {
            match action {
                Action::Open(device, opening) => self.open.push((device, opening)),
                Action::Commit(record) => self.commits.push((record.phase, self.engine.checkpoint())),
                Action::Acknowledge(_, ack) => self.outcomes.push(ack.outcome),
                Action::Finished => self.finished = true,
                Action::Close(..) => {}
                Action::Failed(failure) => panic!("{failure}"),
            }
        }
    }

    /// Everybody trains, until ridges are to be scored.
    fn trained(deadline: Option<Millis>) -> Self {
        let mut life = Self::new(engine(deadline));
        for device in 0..3 {
            life.handle(0, Event::Joined(device));
        }
        for (device, opening) in std::mem::take(&mut life.open) {
            life.handle(1, Event::Update(device, honest(device, &opening)));
        }
        assert_eq!((life.engine.phase(), life.open.len()), (Phase::RidgeScores, 3));
        life.outcomes.clear();
        life
    }

    fn opening(&self) -> Arc<Opening> {
        Arc::clone(&self.engine.open_round().unwrap().opening)
    }

    fn answers(&mut self, device: DeviceId, samples: u32, right: impl Fn(usize) -> f32) -> AckOutcome {
        let update = scores(&self.opening(), samples, right);
        self.handle(2, Event::Update(device, update));
        *self.outcomes.last().unwrap()
    }

    fn declines(&mut self, device: DeviceId) {
        let id = self.opening().id;
        self.handle(2, Event::Declined(device, Decline { id, reason: DeclineReason::Task }));
    }

    /// The ridge with which heads are asked for.
    fn published(&self) -> f32 {
        match self.opening().request.task {
            Task::FitHead { head: HeadSolve::LeaveOneOut { fallback_ridge: otherwise } } => otherwise,
            task => panic!("{task:?}"),
        }
    }
}

fn ridge(place: usize) -> f32 {
    GRID.ridges().nth(place).unwrap()
}

#[test]
fn everybody_is_asked_for_counts_and_gets_the_ridge() {
    let mut life = Life::trained(Some(100));
    let opening = life.opening();
    let expects = TensorDescriptor::inline(Role::RidgeScores, Encoding::F32, 1, COUNT as u16);
    assert_eq!(opening.request.expects, [expects]);
    assert!(
        matches!(opening.request.task, Task::RidgeScores { labels_per_class: 2, count, .. } if usize::from(count) == COUNT)
    );
    assert_eq!(life.engine.chosen_ridge(), None);
    for device in 0..3 {
        assert_eq!(life.answers(device, 80, peak(6, 80)), AckOutcome::Counted);
    }
    assert_eq!((life.engine.phase(), life.published()), (Phase::FitHead, ridge(6)));
    let chosen = life.engine.chosen_ridge().unwrap();
    assert_eq!(
        (chosen.ridge, chosen.devices, chosen.scores[6], chosen.is_at_end()),
        (ridge(6), 3, 1.0, false)
    );
    // Who comes months later gets it as well.
    life.handle(1_000_000, Event::Tick);
    life.open.clear();
    life.handle(2_000_000, Event::Joined(77));
    let [(77, opening)] = &life.open[..] else { panic!() };
    assert_eq!(
        opening.request.task,
        Task::FitHead { head: HeadSolve::LeaveOneOut { fallback_ridge: ridge(6) } }
    );
}

#[test]
fn no_device_is_needed() {
    let mut life = Life::trained(None);
    (0..3).for_each(|device| life.declines(device));
    assert_eq!((life.engine.phase(), life.published()), (Phase::FitHead, OTHERWISE));
    assert_eq!(life.engine.chosen_ridge().unwrap().devices, 0);
    // One is enough.
    let mut life = Life::trained(None);
    life.declines(2);
    life.answers(0, 10, peak(4, 10));
    life.declines(1);
    assert_eq!(life.published(), ridge(4));
    let counters = life.engine.counters();
    assert_eq!((counters.short, counters.repeated, counters.asked_again), (0, 0, 0));
}

/// Also where rounds have no deadline.
#[test]
fn silent_devices_are_waited_for_until_the_deadline() {
    for (deadline, last) in [(Some(100), 101), (None, 600_001)] {
        let mut life = Life::trained(deadline);
        life.answers(1, 50, peak(8, 50));
        assert_eq!(life.engine.wake(), Some(last));
        life.handle(last, Event::Tick);
        assert_eq!((life.engine.phase(), life.published()), (Phase::FitHead, ridge(8)));
    }
}

#[test]
fn devices_that_are_gone_are_not_waited_for() {
    let mut life = Life::trained(Some(1000));
    life.answers(0, 50, peak(8, 50));
    life.handle(3, Event::Left(1));
    life.handle(3, Event::Left(2));
    assert_eq!(life.engine.phase(), Phase::RidgeScores);
    life.handle(60, Event::Tick);
    assert_eq!((life.engine.phase(), life.published()), (Phase::FitHead, ridge(8)));
}

/// What nobody can have counted is rejected; what is large is not.
#[test]
fn impossible_counts_are_rejected() {
    let rejected = AckOutcome::Rejected(Rejection::Tensors);
    let most = RIDGE_SAMPLES_MAX * RIDGE_DRAWS;
    let mut life = Life::trained(Some(100));
    assert_eq!(life.answers(0, 80, |_| 81.0), rejected);
    assert_eq!(life.answers(0, 80, |_| 7.5), rejected);
    assert_eq!(life.answers(0, 80, |_| -1.0), rejected);
    assert_eq!(life.answers(0, most + 1, |_| 5.0), rejected);
    assert_eq!(life.answers(0, 80, |_| f32::NAN), AckOutcome::Rejected(Rejection::NonFinite));
    assert_eq!(life.answers(0, 0, |_| 0.0), AckOutcome::Rejected(Rejection::NoSamples));
    assert_eq!(life.answers(0, most, |_| most as f32), AckOutcome::Counted);
    assert_eq!(life.engine.chosen_ridge(), None);
}

/// However many samples it says it has, a device is one device.
#[test]
fn nobody_outweighs_the_others() {
    let mut life = Life::trained(Some(100));
    life.answers(0, RIDGE_SAMPLES_MAX, |place| if place == 12 { RIDGE_SAMPLES_MAX as f32 } else { 0.0 });
    life.answers(1, 10, |place| if place == 5 { 10.0 } else { 0.0 });
    life.answers(2, 10, |place| if place == 5 { 10.0 } else { 0.0 });
    assert_eq!(life.published(), ridge(5));
}

/// A restart at any moment of the round, or after it, goes on to the same ridge.
#[test]
fn restarts_change_nothing() {
    for answered in 0..=3 {
        let mut life = Life::trained(Some(100));
        let checkpoint = life.engine.checkpoint();
        assert_eq!(checkpoint.done, Phase::Train(1));
        let opening = life.opening();
        let answer = |device: DeviceId| scores(&opening, 40 + device as u32, peak(5 + device as usize, 40));
        for device in 0..answered {
            life.handle(2, Event::Update(device, answer(device)));
        }
        // As a server keeps it: the checkpoint at the opening and what was counted since, or the one at the commit.
        let mut again = engine(Some(100));
        match life.commits.iter().find(|(phase, _)| *phase == Phase::RidgeScores) {
            Some((_, committed)) => {
                assert_eq!(
                    (answered, committed.done, committed.ends_training()),
                    (3, Phase::RidgeScores, true)
                );
                assert!(again.resume(5, committed));
            }
            None => {
                assert!(again.resume(5, &checkpoint));
                for device in 0..answered {
                    assert!(again.recount(2, device, &answer(device)));
                }
            }
        }
        let mut again = Life::new(again);
        again.handle(5, Event::Resumed);
        for device in 0..3 {
            again.handle(6, Event::Joined(device));
        }
        for device in answered..3 {
            again.handle(7, Event::Update(device, answer(device)));
            life.handle(7, Event::Update(device, answer(device)));
        }
        assert_eq!((again.engine.phase(), again.published()), (Phase::FitHead, life.published()));
        assert_eq!(again.engine.chosen_ridge(), life.engine.chosen_ridge());
        assert_eq!(again.engine.checkpoint().state, life.engine.checkpoint().state);
        // And of the heads that are being fitted.
        let mut later = engine(Some(100));
        assert!(later.resume(9, &again.engine.checkpoint()));
        assert_eq!(later.chosen_ridge(), life.engine.chosen_ridge());
    }
}

/// Scores have no noise: [privacy] may come and go while a campaign runs, whatever is open then. What was chosen before stays, what
/// is open then is dropped, and a campaign that ended without scores does not begin with them.
#[test]
fn campaigns_go_on_where_scores_are_hidden_from_now_on() {
    let answer = |life: &mut Life, device| life.answers(device, 40, peak(5, 40));
    for answered in 0..=3 {
        let mut life = Life::trained(Some(100));
        (0..answered).for_each(|device| assert_eq!(answer(&mut life, device), AckOutcome::Counted));
        let checkpoint = life.engine.checkpoint();
        let last = checkpoint.id;
        let mut hiding = engine(Some(100)).hiding_scores();
        assert!(hiding.resume(5, &checkpoint), "{answered}");
        let is_over = answered == 3;
        assert_eq!(hiding.open_round().is_some(), is_over);
        assert!(is_over || hiding.drop_as(last));
        let mut hiding = Life::new(hiding);
        hiding.handle(5, Event::Resumed);
        (0..3).for_each(|device| hiding.handle(6, Event::Joined(device)));
        let published = if is_over { ridge(5) } else { OTHERWISE };
        assert_eq!((hiding.engine.phase(), hiding.published()), (Phase::FitHead, published));
        assert_eq!(hiding.engine.chosen_ridge().is_some(), is_over);
        assert!(is_over || hiding.opening().id > last);
        // Restarts of that, with [privacy] and without it again: the heads stay what is open.
        let later = hiding.engine.checkpoint();
        assert_eq!((later.done == Phase::RidgeScores, later.ends_training()), (is_over, true));
        for again in [engine(Some(100)).hiding_scores(), engine(Some(100))] {
            let mut again = Life::new(again);
            assert!(again.engine.resume(9, &later));
            assert_eq!((again.engine.phase(), again.opening().id), (Phase::FitHead, later.id));
            assert_eq!((again.published(), again.engine.is_trained()), (published, true));
            assert_eq!(again.engine.checkpoint().id, later.id);
        }
    }
    // Before any are scored: they are not.
    let mut life = Life::new(engine(Some(100)));
    (0..3).for_each(|device| life.handle(0, Event::Joined(device)));
    let mut hiding = engine(Some(100)).hiding_scores();
    assert!(hiding.resume(1, &life.engine.checkpoint()));
    let mut hiding = Life::new(hiding);
    hiding.handle(1, Event::Resumed);
    (0..3).for_each(|device| hiding.handle(1, Event::Joined(device)));
    for (device, opening) in std::mem::take(&mut hiding.open) {
        hiding.handle(2, Event::Update(device, honest(device, &opening)));
    }
    assert_eq!((hiding.engine.phase(), hiding.published()), (Phase::FitHead, OTHERWISE));
}

#[test]
fn checkpoints_of_others_are_refused() {
    let mut life = Life::trained(Some(100));
    (0..3).for_each(|device| assert_eq!(life.answers(device, 40, peak(5, 40)), AckOutcome::Counted));
    let good = life.engine.checkpoint();
    let with = |change: &dyn Fn(&mut Checkpoint)| {
        let mut changed = good.clone();
        change(&mut changed);
        engine(Some(100)).resume(0, &changed)
    };
    assert!(with(&|_| {}));
    assert!(!with(&|checkpoint| checkpoint.state.truncate(checkpoint.state.len() - 1)));
    assert!(!with(&|checkpoint| *checkpoint.state.last_mut().unwrap() = 0.5));
    assert!(!with(&|checkpoint| *checkpoint.state.last_mut().unwrap() = f64::NAN));
    assert!(!with(&|checkpoint| checkpoint.done = Phase::Train(1)));
    assert!(!plain().engine().resume(0, &good));
}

/// Without scores there is no round, and the ridge is the one that was given.
#[test]
fn private_fleets_have_no_such_round() {
    let setup = common::campaign::Setup { fleet_size: 1, rounds: 1, ..plain() };
    let head = HeadSolve::LeaveOneOut { fallback_ridge: 0.25 };
    let mut life = Life::new(setup.engine().with_final_head(head));
    life.handle(0, Event::Joined(0));
    let (device, opening) = life.open.pop().unwrap();
    life.handle(1, Event::Update(device, honest(device, &opening)));
    assert_eq!((life.engine.phase(), life.published()), (Phase::FitHead, 0.25));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Sums do not depend on the order, and survive being written down.
    #[test]
    fn order_changes_nothing(
        devices in prop::collection::vec((1u32..5000, prop::collection::vec(0.0f32..1.0, COUNT)), 1..9),
        turn in 0usize..9,
    ) {
        let tensors = |(samples, shares): &(u32, Vec<f32>)| {
            let values = shares.iter().map(|share| (share * *samples as f32).floor()).collect();
            [Tensor { role: Role::RidgeScores, rows: 1, cols: COUNT as u16, values }]
        };
        let (mut one, mut other) = (RidgeScores::new(1), RidgeScores::new(1));
        let mut turned = devices.clone();
        turned.rotate_left(turn % devices.len());
        for (sums, order) in [(&mut one, &devices), (&mut other, &turned)] {
            for device in order {
                prop_assert!(sums.admits(device.0, &tensors(device)));
                sums.absorb(device.0, &tensors(device));
            }
        }
        prop_assert_eq!(&one, &other);
        let mut kept = RidgeScores::new(1);
        prop_assert!(kept.restore(&one.state()));
        prop_assert_eq!(kept.chosen(OTHERWISE), one.chosen(OTHERWISE));
        prop_assert!(GRID.ridges().any(|ridge| Some(ridge) == one.ridge()));
    }
}

#[test]
fn ends_of_the_grid_are_told() {
    let chosen = |right: &dyn Fn(usize) -> f32| {
        let mut sums = RidgeScores::new(1);
        let values = (0..COUNT).map(right).collect();
        sums.absorb(100, &[Tensor { role: Role::RidgeScores, rows: 1, cols: COUNT as u16, values }]);
        sums.chosen(OTHERWISE)
    };
    let (up, down) = (chosen(&|place| 2.0 * place as f32), chosen(&|place| 80.0 - place as f32));
    assert_eq!((up.ridge, up.is_at_end()), (ridge(COUNT - 1), true));
    assert_eq!((down.ridge, down.is_at_end()), (ridge(0), true));
    // Where all are alike, the largest, and nothing is wrong.
    let flat = chosen(&|_| 50.0);
    assert_eq!((flat.ridge, flat.is_at_end()), (ridge(COUNT - 1), false));
}
