//! Tests of the round in which the fleet chooses the ridge of the final heads: invitations, counting of
//! scores, the published ridge, and restarts.
#![allow(clippy::indexing_slicing)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use crate::common;
use std::sync::Arc;

use crate::common::campaign::{honest, plain};
use fedspan_engine::Tensor;
use fedspan_engine::{
    Action, Checkpoint, DeviceId, Engine, Event, GRID, Millis, Phase, RidgeScores, RoundBroadcast, Update,
};
use fedspan_protocol::limits::{RIDGE_DRAWS, RIDGE_SAMPLES_MAX};
use fedspan_protocol::message::{AckOutcome, Decline, DeclineReason, HeadSolve, Rejection, Task};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use proptest::prelude::*;

/// Number of ridges of the grid.
const COUNT: usize = GRID.count as usize;

/// Ridge that is published if no device has reported scores.
const FALLBACK_RIDGE: f32 = 0.07;

/// Engine of a campaign with three devices, one training round, and ridge scores for two labels per class.
fn engine(deadline: Option<Millis>) -> Engine {
    let mut engine = common::campaign::Setup {
        fleet_size: 3,
        rounds: 1,
        deadline: deadline.map(Millis::as_u64),
        ..plain()
    }
    .engine();
    let head = HeadSolve::LeaveOneOut { fallback_ridge: FALLBACK_RIDGE };
    engine = engine.with_final_head(head);
    engine.with_ridge_scores(Some(2))
}

/// Upload of a device that predicted `samples` samples. `right` returns the number of correct predictions for
/// each ridge.
fn scores(broadcast: &RoundBroadcast, samples: u32, right: impl Fn(usize) -> f32) -> Update {
    let expects = &broadcast.request.expects;
    let values = (0..COUNT).map(right).collect();
    let tensor = Tensor { role: Role::RidgeScores, rows: 1, cols: COUNT as u16, values };
    common::update(broadcast.id, samples, expects, vec![tensor])
}

/// Numbers of correct predictions that are largest for ridge number `at` of the grid.
fn peak(at: usize, samples: u32) -> impl Fn(usize) -> f32 {
    move |place| (samples / 2 + samples / 2 / (1 + place.abs_diff(at) as u32)) as f32
}

/// Engine with its broadcasts, commits and acknowledgements.
struct Life {
    engine: Engine,
    open: Vec<(DeviceId, Arc<RoundBroadcast>)>,
    commits: Vec<(Phase, Checkpoint)>,
    outcomes: Vec<AckOutcome>,
    finished: bool,
}

impl Life {
    fn new(engine: Engine) -> Self {
        Self { engine, open: Vec::new(), commits: Vec::new(), outcomes: Vec::new(), finished: false }
    }

    /// Passes an event to the engine, and stores the results of its actions.
    fn handle(&mut self, now: Millis, event: Event) {
        let mut actions = Vec::new();
        self.engine.handle(now, event, &mut actions);
        for action in actions {
            match action {
                Action::Open(device, broadcast) => self.open.push((device, broadcast)),
                Action::Commit(record) => self.commits.push((record.phase, self.engine.checkpoint())),
                Action::Acknowledge(_, ack) => self.outcomes.push(ack.outcome),
                Action::Finished => self.finished = true,
                Action::Close(..) => {}
                Action::Failed(failure) => panic!("{failure}"),
            }
        }
    }

    /// Runs the campaign with all devices until the round of ridge scores opens.
    fn trained(deadline: Option<Millis>) -> Self {
        let mut life = Self::new(engine(deadline));
        for device in 0..3 {
            life.handle(Millis::ZERO, Event::Joined(DeviceId(device)));
        }
        for (device, broadcast) in std::mem::take(&mut life.open) {
            life.handle(Millis::new(1), Event::Update(device, honest(device, &broadcast)));
        }
        assert_eq!((life.engine.phase(), life.open.len()), (Phase::RidgeScores, 3));
        life.outcomes.clear();
        life
    }

    /// Broadcast of the open round.
    fn broadcast(&self) -> Arc<RoundBroadcast> {
        Arc::clone(&self.engine.open_round().unwrap().broadcast)
    }

    /// Sends the scores of a device, and returns the acknowledged outcome.
    fn answers(&mut self, device: DeviceId, samples: u32, right: impl Fn(usize) -> f32) -> AckOutcome {
        let update = scores(&self.broadcast(), samples, right);
        self.handle(Millis::new(2), Event::Update(device, update));
        *self.outcomes.last().unwrap()
    }

    /// Makes a device decline the open round.
    fn declines(&mut self, device: DeviceId) {
        let id = self.broadcast().id;
        self.handle(Millis::new(2), Event::Declined(device, Decline { id, reason: DeclineReason::Task }));
    }

    /// Ridge in the open request for final heads.
    fn published(&self) -> f32 {
        match self.broadcast().request.task {
            Task::FitHead { head: HeadSolve::LeaveOneOut { fallback_ridge: otherwise } } => otherwise,
            task => panic!("{task:?}"),
        }
    }
}

/// Ridge number `place` of the grid.
fn ridge(place: usize) -> f32 {
    GRID.ridges().nth(place).unwrap()
}

#[test]
fn all_devices_score_and_receive_ridge() {
    let mut life = Life::trained(Some(Millis::new(100)));
    let broadcast = life.broadcast();
    let expects = TensorDescriptor::inline(Role::RidgeScores, Encoding::F32, 1, COUNT as u16);
    assert_eq!(broadcast.request.expects, [expects]);
    assert!(
        matches!(broadcast.request.task, Task::RidgeScores { labels_per_class: 2, count, .. } if usize::from(count) == COUNT)
    );
    assert_eq!(life.engine.chosen_ridge(), None);
    for device in 0..3 {
        assert_eq!(life.answers(DeviceId(device), 80, peak(6, 80)), AckOutcome::Counted);
    }
    assert_eq!((life.engine.phase(), life.published()), (Phase::FitHead, ridge(6)));
    let chosen = life.engine.chosen_ridge().unwrap();
    assert_eq!(
        (chosen.ridge, chosen.devices, chosen.scores[6], chosen.is_at_end()),
        (ridge(6), 3, 1.0, false)
    );
    // A device that joins much later receives the same ridge.
    life.handle(Millis::new(1_000_000), Event::Tick);
    life.open.clear();
    life.handle(Millis::new(2_000_000), Event::Joined(DeviceId(77)));
    let [(DeviceId(77), broadcast)] = &life.open[..] else { panic!() };
    assert_eq!(
        broadcast.request.task,
        Task::FitHead { head: HeadSolve::LeaveOneOut { fallback_ridge: ridge(6) } }
    );
}

#[test]
fn ridge_round_needs_no_device() {
    let mut life = Life::trained(None);
    (0..3).for_each(|device| life.declines(DeviceId(device)));
    assert_eq!((life.engine.phase(), life.published()), (Phase::FitHead, FALLBACK_RIDGE));
    assert_eq!(life.engine.chosen_ridge().unwrap().devices, 0);
    // The scores of one device are sufficient.
    let mut life = Life::trained(None);
    life.declines(DeviceId(2));
    life.answers(DeviceId(0), 10, peak(4, 10));
    life.declines(DeviceId(1));
    assert_eq!(life.published(), ridge(4));
    let counters = life.engine.counters();
    assert_eq!((counters.short, counters.repeated, counters.asked_again), (0, 0, 0));
}

/// Without deadlines of rounds, the round of ridge scores has a default deadline.
#[test]
fn ridge_round_waits_until_deadline() {
    for (deadline, last) in [(Some(100), 101), (None, 600_001)] {
        let mut life = Life::trained(deadline.map(Millis::new));
        life.answers(DeviceId(1), 50, peak(8, 50));
        assert_eq!(life.engine.wake(), Some(Millis::new(last)));
        life.handle(Millis::new(last), Event::Tick);
        assert_eq!((life.engine.phase(), life.published()), (Phase::FitHead, ridge(8)));
    }
}

#[test]
fn ridge_round_ignores_absent_devices() {
    let mut life = Life::trained(Some(Millis::new(1000)));
    life.answers(DeviceId(0), 50, peak(8, 50));
    life.handle(Millis::new(3), Event::Left(DeviceId(1)));
    life.handle(Millis::new(3), Event::Left(DeviceId(2)));
    assert_eq!(life.engine.phase(), Phase::RidgeScores);
    life.handle(Millis::new(60), Event::Tick);
    assert_eq!((life.engine.phase(), life.published()), (Phase::FitHead, ridge(8)));
}

/// Impossible counts are rejected; the largest possible counts are accepted.
#[test]
fn impossible_scores_are_rejected() {
    let rejected = AckOutcome::Rejected(Rejection::Tensors);
    let most = RIDGE_SAMPLES_MAX * RIDGE_DRAWS;
    let mut life = Life::trained(Some(Millis::new(100)));
    assert_eq!(life.answers(DeviceId(0), 80, |_| 81.0), rejected);
    assert_eq!(life.answers(DeviceId(0), 80, |_| 7.5), rejected);
    assert_eq!(life.answers(DeviceId(0), 80, |_| -1.0), rejected);
    assert_eq!(life.answers(DeviceId(0), most + 1, |_| 5.0), rejected);
    assert_eq!(life.answers(DeviceId(0), 80, |_| f32::NAN), AckOutcome::Rejected(Rejection::NonFinite));
    assert_eq!(life.answers(DeviceId(0), 0, |_| 0.0), AckOutcome::Rejected(Rejection::NoSamples));
    assert_eq!(life.answers(DeviceId(0), most, |_| most as f32), AckOutcome::Counted);
    assert_eq!(life.engine.chosen_ridge(), None);
}

/// All devices have the same weight, independent of their declared sample counts.
#[test]
fn devices_have_equal_weight() {
    let mut life = Life::trained(Some(Millis::new(100)));
    life.answers(
        DeviceId(0),
        RIDGE_SAMPLES_MAX,
        |place| if place == 12 { RIDGE_SAMPLES_MAX as f32 } else { 0.0 },
    );
    life.answers(DeviceId(1), 10, |place| if place == 5 { 10.0 } else { 0.0 });
    life.answers(DeviceId(2), 10, |place| if place == 5 { 10.0 } else { 0.0 });
    assert_eq!(life.published(), ridge(5));
}

/// A restart at any time during the round, or after it, does not change the ridge.
#[test]
fn restart_keeps_ridge_scores() {
    for answered in 0..=3 {
        let mut life = Life::trained(Some(Millis::new(100)));
        let checkpoint = life.engine.checkpoint();
        assert_eq!(checkpoint.done, Phase::Train(1));
        let broadcast = life.broadcast();
        let answer =
            |device: DeviceId| scores(&broadcast, 40 + device.0 as u32, peak(5 + device.0 as usize, 40));
        for device in 0..answered {
            life.handle(Millis::new(2), Event::Update(DeviceId(device), answer(DeviceId(device))));
        }
        // A server restores either the checkpoint at the opening and the updates since then, or the
        // checkpoint at the commit.
        let mut restored = engine(Some(Millis::new(100)));
        match life.commits.iter().find(|(phase, _)| *phase == Phase::RidgeScores) {
            Some((_, committed)) => {
                assert_eq!(
                    (answered, committed.done, committed.ends_training()),
                    (3, Phase::RidgeScores, true)
                );
                assert!(restored.resume(Millis::new(5), committed));
            }
            None => {
                assert!(restored.resume(Millis::new(5), &checkpoint));
                for device in 0..answered {
                    assert!(restored.replay_update(
                        Millis::new(2),
                        DeviceId(device),
                        &answer(DeviceId(device))
                    ));
                }
            }
        }
        let mut restored = Life::new(restored);
        restored.handle(Millis::new(5), Event::Resumed);
        for device in 0..3 {
            restored.handle(Millis::new(6), Event::Joined(DeviceId(device)));
        }
        for device in answered..3 {
            restored.handle(Millis::new(7), Event::Update(DeviceId(device), answer(DeviceId(device))));
            life.handle(Millis::new(7), Event::Update(DeviceId(device), answer(DeviceId(device))));
        }
        assert_eq!((restored.engine.phase(), restored.published()), (Phase::FitHead, life.published()));
        assert_eq!(restored.engine.chosen_ridge(), life.engine.chosen_ridge());
        assert_eq!(restored.engine.checkpoint().state, life.engine.checkpoint().state);
        // A restart during the round of final heads keeps the ridge as well.
        let mut later = engine(Some(Millis::new(100)));
        assert!(later.resume(Millis::new(9), &restored.engine.checkpoint()));
        assert_eq!(later.chosen_ridge(), life.engine.chosen_ridge());
    }
}

/// Scores contain no privacy noise, so a configuration with `[privacy]` forbids them. `[privacy]` may be
/// added or removed between restarts, in any round: a ridge that was already chosen is kept, an open round of
/// scores is dropped, and a campaign that ended training without scores does not request them later.
#[test]
fn campaign_continues_after_scores_become_private() {
    let answer = |life: &mut Life, device| life.answers(device, 40, peak(5, 40));
    for answered in 0..=3 {
        let mut life = Life::trained(Some(Millis::new(100)));
        (0..answered).for_each(|device| assert_eq!(answer(&mut life, DeviceId(device)), AckOutcome::Counted));
        let checkpoint = life.engine.checkpoint();
        let last = checkpoint.id;
        let mut private = engine(Some(Millis::new(100))).without_ridge_scores();
        assert!(private.resume(Millis::new(5), &checkpoint), "{answered}");
        let is_over = answered == 3;
        assert_eq!(private.open_round().is_some(), is_over);
        assert!(is_over || private.restore_dropped_id(last));
        let mut private = Life::new(private);
        private.handle(Millis::new(5), Event::Resumed);
        (0..3).for_each(|device| private.handle(Millis::new(6), Event::Joined(DeviceId(device))));
        let published = if is_over { ridge(5) } else { FALLBACK_RIDGE };
        assert_eq!((private.engine.phase(), private.published()), (Phase::FitHead, published));
        assert_eq!(private.engine.chosen_ridge().is_some(), is_over);
        assert!(is_over || private.broadcast().id > last);
        // Later restarts, with or without `[privacy]`, keep the open round of final heads.
        let later = private.engine.checkpoint();
        assert_eq!((later.done == Phase::RidgeScores, later.ends_training()), (is_over, true));
        for restored in
            [engine(Some(Millis::new(100))).without_ridge_scores(), engine(Some(Millis::new(100)))]
        {
            let mut restored = Life::new(restored);
            assert!(restored.engine.resume(Millis::new(9), &later));
            assert_eq!((restored.engine.phase(), restored.broadcast().id), (Phase::FitHead, later.id));
            assert_eq!((restored.published(), restored.engine.is_trained()), (published, true));
            assert_eq!(restored.engine.checkpoint().id, later.id);
        }
    }
    // If `[privacy]` is added before the end of training, no scores are requested.
    let mut life = Life::new(engine(Some(Millis::new(100))));
    (0..3).for_each(|device| life.handle(Millis::ZERO, Event::Joined(DeviceId(device))));
    let mut private = engine(Some(Millis::new(100))).without_ridge_scores();
    assert!(private.resume(Millis::new(1), &life.engine.checkpoint()));
    let mut private = Life::new(private);
    private.handle(Millis::new(1), Event::Resumed);
    (0..3).for_each(|device| private.handle(Millis::new(1), Event::Joined(DeviceId(device))));
    for (device, broadcast) in std::mem::take(&mut private.open) {
        private.handle(Millis::new(2), Event::Update(device, honest(device, &broadcast)));
    }
    assert_eq!((private.engine.phase(), private.published()), (Phase::FitHead, FALLBACK_RIDGE));
}

#[test]
fn foreign_checkpoint_is_refused() {
    let mut life = Life::trained(Some(Millis::new(100)));
    (0..3)
        .for_each(|device| assert_eq!(life.answers(DeviceId(device), 40, peak(5, 40)), AckOutcome::Counted));
    let good = life.engine.checkpoint();
    let with = |change: &dyn Fn(&mut Checkpoint)| {
        let mut changed = good.clone();
        change(&mut changed);
        engine(Some(Millis::new(100))).resume(Millis::ZERO, &changed)
    };
    assert!(with(&|_| {}));
    assert!(!with(&|checkpoint| checkpoint.state.truncate(checkpoint.state.len() - 1)));
    assert!(!with(&|checkpoint| *checkpoint.state.last_mut().unwrap() = 0.5));
    assert!(!with(&|checkpoint| *checkpoint.state.last_mut().unwrap() = f64::NAN));
    assert!(!with(&|checkpoint| checkpoint.done = Phase::Train(1)));
    assert!(!plain().engine().resume(Millis::ZERO, &good));
}

/// Without ridge scores the campaign has no round for them, and heads use the configured ridge.
#[test]
fn private_fleet_has_no_ridge_round() {
    let setup = common::campaign::Setup { fleet_size: 1, rounds: 1, ..plain() };
    let head = HeadSolve::LeaveOneOut { fallback_ridge: 0.25 };
    let mut life = Life::new(setup.engine().with_final_head(head));
    life.handle(Millis::ZERO, Event::Joined(DeviceId(0)));
    let (device, broadcast) = life.open.pop().unwrap();
    life.handle(Millis::new(1), Event::Update(device, honest(device, &broadcast)));
    assert_eq!((life.engine.phase(), life.published()), (Phase::FitHead, 0.25));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The sums do not depend on the order of devices, and can be restored from a checkpoint.
    #[test]
    fn score_sums_are_order_free(
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
        prop_assert_eq!(kept.chosen(FALLBACK_RIDGE), one.chosen(FALLBACK_RIDGE));
        prop_assert!(GRID.ridges().any(|ridge| Some(ridge) == one.ridge()));
    }
}

#[test]
fn ridge_at_grid_end_is_reported() {
    let chosen = |right: &dyn Fn(usize) -> f32| {
        let mut sums = RidgeScores::new(1);
        let values = (0..COUNT).map(right).collect();
        sums.absorb(100, &[Tensor { role: Role::RidgeScores, rows: 1, cols: COUNT as u16, values }]);
        sums.chosen(FALLBACK_RIDGE)
    };
    let (up, down) = (chosen(&|place| 2.0 * place as f32), chosen(&|place| 80.0 - place as f32));
    assert_eq!((up.ridge, up.is_at_end()), (ridge(COUNT - 1), true));
    assert_eq!((down.ridge, down.is_at_end()), (ridge(0), true));
    // For equal scores the largest ridge is chosen, and the end of the grid is not reported.
    let flat = chosen(&|_| 50.0);
    assert_eq!((flat.ridge, flat.is_at_end()), (ridge(COUNT - 1), false));
}
