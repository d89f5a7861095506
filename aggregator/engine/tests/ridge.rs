//! Tests of the round in which the fleet chooses the ridge of the final heads: invitations, counting of
//! scores, the published ridge, and restarts.
#![allow(clippy::indexing_slicing)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use crate::common;
use std::sync::Arc;

use crate::common::campaign::{honest_update, two_device_setup};
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
fn create_engine(deadline: Option<Millis>) -> Engine {
    let mut engine = common::campaign::Setup {
        fleet_size: 3,
        rounds: 1,
        deadline: deadline.map(Millis::as_u64),
        ..two_device_setup()
    }
    .engine();
    let head = HeadSolve::LeaveOneOut { fallback_ridge: FALLBACK_RIDGE };
    engine = engine.with_final_head(head);
    engine.with_ridge_scores(Some(2))
}

/// Upload of a device that predicted `samples` samples. `correct_counts` returns the number of
/// correct predictions for each ridge.
fn score_update(broadcast: &RoundBroadcast, samples: u32, correct_counts: impl Fn(usize) -> f32) -> Update {
    let expects = &broadcast.request.expects;
    let values = (0..COUNT).map(correct_counts).collect();
    let tensor = Tensor { role: Role::RidgeScores, rows: 1, cols: COUNT as u16, values };
    common::create_update(broadcast.id, samples, expects, vec![tensor])
}

/// Numbers of correct predictions that are largest for ridge number `peak_index` of the grid.
fn counts_with_peak(peak_index: usize, samples: u32) -> impl Fn(usize) -> f32 {
    move |index| (samples / 2 + samples / 2 / (1 + index.abs_diff(peak_index) as u32)) as f32
}

/// Engine with its broadcasts, commits and acknowledgements.
struct CampaignRun {
    engine: Engine,
    open: Vec<(DeviceId, Arc<RoundBroadcast>)>,
    commits: Vec<(Phase, Checkpoint)>,
    outcomes: Vec<AckOutcome>,
    finished: bool,
}

impl CampaignRun {
    fn new(engine: Engine) -> Self {
        Self { engine, open: Vec::new(), commits: Vec::new(), outcomes: Vec::new(), finished: false }
    }

    /// Passes an event to the engine, and stores the results of its actions.
    fn handle_event(&mut self, now: Millis, event: Event) {
        let mut actions = Vec::new();
        self.engine.handle(now, event, &mut actions);
        for action in actions {
            match action {
                Action::Open(device, broadcast) => self.open.push((device, broadcast)),
                Action::Commit(record) => self.commits.push((record.phase, self.engine.checkpoint())),
                Action::Acknowledge(_, ack) => self.outcomes.push(ack.outcome),
                Action::Finished => self.finished = true,
                Action::Close(..) | Action::NextRound(..) | Action::NotAwaited(_) | Action::Awaited(_) => {}
                Action::Failed(failure) => panic!("{failure}"),
            }
        }
    }

    /// Runs the campaign with all devices until the round of ridge scores opens.
    fn after_training(deadline: Option<Millis>) -> Self {
        let mut campaign = Self::new(create_engine(deadline));
        for device in 0..3 {
            campaign.handle_event(Millis::ZERO, Event::Joined(DeviceId(device)));
        }
        for (device, broadcast) in std::mem::take(&mut campaign.open) {
            campaign.handle_event(Millis::new(1), Event::Update(device, honest_update(device, &broadcast)));
        }
        assert_eq!((campaign.engine.phase(), campaign.open.len()), (Phase::RidgeScores, 3));
        campaign.outcomes.clear();
        campaign
    }

    /// Broadcast of the open round.
    fn open_broadcast(&self) -> Arc<RoundBroadcast> {
        Arc::clone(&self.engine.open_round().unwrap().broadcast)
    }

    /// Sends the scores of a device, and returns the acknowledged outcome.
    fn send_scores(
        &mut self,
        device: DeviceId,
        samples: u32,
        correct_counts: impl Fn(usize) -> f32,
    ) -> AckOutcome {
        let update = score_update(&self.open_broadcast(), samples, correct_counts);
        self.handle_event(Millis::new(2), Event::Update(device, update));
        *self.outcomes.last().unwrap()
    }

    /// Declines the open round on behalf of a device.
    fn decline_round(&mut self, device: DeviceId) {
        let id = self.open_broadcast().id;
        self.handle_event(
            Millis::new(2),
            Event::Declined(device, Decline { id, reason: DeclineReason::Task }),
        );
    }

    /// Ridge in the open request for final heads.
    fn published_ridge(&self) -> f32 {
        match self.open_broadcast().request.task {
            Task::FitHead { head: HeadSolve::LeaveOneOut { fallback_ridge: ridge } } => ridge,
            task => panic!("{task:?}"),
        }
    }
}

/// Ridge number `index` of the grid.
fn grid_ridge(index: usize) -> f32 {
    GRID.ridges().nth(index).unwrap()
}

#[test]
fn all_devices_score_and_receive_ridge() {
    let mut campaign = CampaignRun::after_training(Some(Millis::new(100)));
    let broadcast = campaign.open_broadcast();
    let expects = TensorDescriptor::inline(Role::RidgeScores, Encoding::F32, 1, COUNT as u16);
    assert_eq!(broadcast.request.expects, [expects]);
    assert!(
        matches!(broadcast.request.task, Task::RidgeScores { labels_per_class: 2, count, .. } if usize::from(count) == COUNT)
    );
    assert_eq!(campaign.engine.chosen_ridge(), None);
    for device in 0..3 {
        assert_eq!(campaign.send_scores(DeviceId(device), 80, counts_with_peak(6, 80)), AckOutcome::Counted);
    }
    assert_eq!((campaign.engine.phase(), campaign.published_ridge()), (Phase::FitHead, grid_ridge(6)));
    let chosen = campaign.engine.chosen_ridge().unwrap();
    assert_eq!(
        (chosen.ridge, chosen.devices, chosen.scores[6], chosen.is_at_end()),
        (grid_ridge(6), 3, 1.0, false)
    );
    // A device that joins much later receives the same ridge.
    campaign.handle_event(Millis::new(1_000_000), Event::Tick);
    campaign.open.clear();
    campaign.handle_event(Millis::new(2_000_000), Event::Joined(DeviceId(77)));
    let [(DeviceId(77), broadcast)] = &campaign.open[..] else { panic!() };
    assert_eq!(
        broadcast.request.task,
        Task::FitHead { head: HeadSolve::LeaveOneOut { fallback_ridge: grid_ridge(6) } }
    );
}

#[test]
fn ridge_round_needs_no_device() {
    let mut campaign = CampaignRun::after_training(None);
    (0..3).for_each(|device| campaign.decline_round(DeviceId(device)));
    assert_eq!((campaign.engine.phase(), campaign.published_ridge()), (Phase::FitHead, FALLBACK_RIDGE));
    assert_eq!(campaign.engine.chosen_ridge().unwrap().devices, 0);
    // The scores of one device are sufficient.
    let mut campaign = CampaignRun::after_training(None);
    campaign.decline_round(DeviceId(2));
    campaign.send_scores(DeviceId(0), 10, counts_with_peak(4, 10));
    campaign.decline_round(DeviceId(1));
    assert_eq!(campaign.published_ridge(), grid_ridge(4));
    let counters = campaign.engine.counters();
    assert_eq!((counters.short, counters.repeated, counters.asked_again), (0, 0, 0));
}

/// Without deadlines of rounds, the round of ridge scores has a default deadline.
#[test]
fn ridge_round_waits_until_deadline() {
    for (deadline, deadline_time) in [(Some(100), 101), (None, 600_001)] {
        let mut campaign = CampaignRun::after_training(deadline.map(Millis::new));
        campaign.send_scores(DeviceId(1), 50, counts_with_peak(8, 50));
        assert_eq!(campaign.engine.wake(), Some(Millis::new(deadline_time)));
        campaign.handle_event(Millis::new(deadline_time), Event::Tick);
        assert_eq!((campaign.engine.phase(), campaign.published_ridge()), (Phase::FitHead, grid_ridge(8)));
    }
}

#[test]
fn ridge_round_ignores_absent_devices() {
    let mut campaign = CampaignRun::after_training(Some(Millis::new(1000)));
    campaign.send_scores(DeviceId(0), 50, counts_with_peak(8, 50));
    campaign.handle_event(Millis::new(3), Event::Left(DeviceId(1)));
    campaign.handle_event(Millis::new(3), Event::Left(DeviceId(2)));
    assert_eq!(campaign.engine.phase(), Phase::RidgeScores);
    campaign.handle_event(Millis::new(60), Event::Tick);
    assert_eq!((campaign.engine.phase(), campaign.published_ridge()), (Phase::FitHead, grid_ridge(8)));
}

/// Impossible counts are rejected; the largest possible counts are accepted.
#[test]
fn impossible_scores_are_rejected() {
    let rejected = AckOutcome::Rejected(Rejection::Tensors);
    let max_samples = RIDGE_SAMPLES_MAX * RIDGE_DRAWS;
    let mut campaign = CampaignRun::after_training(Some(Millis::new(100)));
    assert_eq!(campaign.send_scores(DeviceId(0), 80, |_| 81.0), rejected);
    assert_eq!(campaign.send_scores(DeviceId(0), 80, |_| 7.5), rejected);
    assert_eq!(campaign.send_scores(DeviceId(0), 80, |_| -1.0), rejected);
    assert_eq!(campaign.send_scores(DeviceId(0), max_samples + 1, |_| 5.0), rejected);
    assert_eq!(
        campaign.send_scores(DeviceId(0), 80, |_| f32::NAN),
        AckOutcome::Rejected(Rejection::NonFinite)
    );
    assert_eq!(campaign.send_scores(DeviceId(0), 0, |_| 0.0), AckOutcome::Rejected(Rejection::NoSamples));
    assert_eq!(campaign.send_scores(DeviceId(0), max_samples, |_| max_samples as f32), AckOutcome::Counted);
    assert_eq!(campaign.engine.chosen_ridge(), None);
}

/// All devices have the same weight, independent of their declared sample counts.
#[test]
fn devices_have_equal_weight() {
    let mut campaign = CampaignRun::after_training(Some(Millis::new(100)));
    campaign.send_scores(DeviceId(0), RIDGE_SAMPLES_MAX, |index| {
        if index == 12 { RIDGE_SAMPLES_MAX as f32 } else { 0.0 }
    });
    campaign.send_scores(DeviceId(1), 10, |index| if index == 5 { 10.0 } else { 0.0 });
    campaign.send_scores(DeviceId(2), 10, |index| if index == 5 { 10.0 } else { 0.0 });
    assert_eq!(campaign.published_ridge(), grid_ridge(5));
}

/// A restart at any time during the round, or after it, does not change the ridge.
#[test]
fn restart_keeps_ridge_scores() {
    for answered in 0..=3 {
        let mut campaign = CampaignRun::after_training(Some(Millis::new(100)));
        let checkpoint = campaign.engine.checkpoint();
        assert_eq!(checkpoint.done, Phase::Train(1));
        let broadcast = campaign.open_broadcast();
        let answer = |device: DeviceId| {
            score_update(&broadcast, 40 + device.0 as u32, counts_with_peak(5 + device.0 as usize, 40))
        };
        for device in 0..answered {
            campaign.handle_event(Millis::new(2), Event::Update(DeviceId(device), answer(DeviceId(device))));
        }
        // A server restores either the checkpoint at the opening and the updates since then, or the
        // checkpoint at the commit.
        let mut restored = create_engine(Some(Millis::new(100)));
        match campaign.commits.iter().find(|(phase, _)| *phase == Phase::RidgeScores) {
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
        let mut restored = CampaignRun::new(restored);
        restored.handle_event(Millis::new(5), Event::Resumed);
        for device in 0..3 {
            restored.handle_event(Millis::new(6), Event::Joined(DeviceId(device)));
        }
        for device in answered..3 {
            restored.handle_event(Millis::new(7), Event::Update(DeviceId(device), answer(DeviceId(device))));
            campaign.handle_event(Millis::new(7), Event::Update(DeviceId(device), answer(DeviceId(device))));
        }
        assert_eq!(
            (restored.engine.phase(), restored.published_ridge()),
            (Phase::FitHead, campaign.published_ridge())
        );
        assert_eq!(restored.engine.chosen_ridge(), campaign.engine.chosen_ridge());
        assert_eq!(restored.engine.checkpoint().state, campaign.engine.checkpoint().state);
        // A restart during the round of final heads keeps the ridge as well.
        let mut restarted_again = create_engine(Some(Millis::new(100)));
        assert!(restarted_again.resume(Millis::new(9), &restored.engine.checkpoint()));
        assert_eq!(restarted_again.chosen_ridge(), campaign.engine.chosen_ridge());
    }
}

/// Scores contain no privacy noise, so a configuration with `[privacy]` forbids them. `[privacy]` may be
/// added or removed between restarts, in any round: a ridge that was already chosen is kept, an open round of
/// scores is dropped, and a campaign that ended training without scores does not request them later.
#[test]
fn campaign_continues_after_scores_become_private() {
    let send_scores =
        |campaign: &mut CampaignRun, device| campaign.send_scores(device, 40, counts_with_peak(5, 40));
    for answered in 0..=3 {
        let mut campaign = CampaignRun::after_training(Some(Millis::new(100)));
        (0..answered)
            .for_each(|device| assert_eq!(send_scores(&mut campaign, DeviceId(device)), AckOutcome::Counted));
        let checkpoint = campaign.engine.checkpoint();
        let last_id = checkpoint.id;
        let mut private = create_engine(Some(Millis::new(100))).without_ridge_scores();
        assert!(private.resume(Millis::new(5), &checkpoint), "{answered}");
        let is_over = answered == 3;
        assert_eq!(private.open_round().is_some(), is_over);
        assert!(is_over || private.restore_dropped_id(last_id));
        let mut private = CampaignRun::new(private);
        private.handle_event(Millis::new(5), Event::Resumed);
        (0..3).for_each(|device| private.handle_event(Millis::new(6), Event::Joined(DeviceId(device))));
        let published = if is_over { grid_ridge(5) } else { FALLBACK_RIDGE };
        assert_eq!((private.engine.phase(), private.published_ridge()), (Phase::FitHead, published));
        assert_eq!(private.engine.chosen_ridge().is_some(), is_over);
        assert!(is_over || private.open_broadcast().id > last_id);
        // Later restarts, with or without `[privacy]`, keep the open round of final heads.
        let later_checkpoint = private.engine.checkpoint();
        assert_eq!(
            (later_checkpoint.done == Phase::RidgeScores, later_checkpoint.ends_training()),
            (is_over, true)
        );
        for restored in [
            create_engine(Some(Millis::new(100))).without_ridge_scores(),
            create_engine(Some(Millis::new(100))),
        ] {
            let mut restored = CampaignRun::new(restored);
            assert!(restored.engine.resume(Millis::new(9), &later_checkpoint));
            assert_eq!(
                (restored.engine.phase(), restored.open_broadcast().id),
                (Phase::FitHead, later_checkpoint.id)
            );
            assert_eq!((restored.published_ridge(), restored.engine.is_trained()), (published, true));
            assert_eq!(restored.engine.checkpoint().id, later_checkpoint.id);
        }
    }
    // If `[privacy]` is added before the end of training, no scores are requested.
    let mut campaign = CampaignRun::new(create_engine(Some(Millis::new(100))));
    (0..3).for_each(|device| campaign.handle_event(Millis::ZERO, Event::Joined(DeviceId(device))));
    let mut private = create_engine(Some(Millis::new(100))).without_ridge_scores();
    assert!(private.resume(Millis::new(1), &campaign.engine.checkpoint()));
    let mut private = CampaignRun::new(private);
    private.handle_event(Millis::new(1), Event::Resumed);
    (0..3).for_each(|device| private.handle_event(Millis::new(1), Event::Joined(DeviceId(device))));
    for (device, broadcast) in std::mem::take(&mut private.open) {
        private.handle_event(Millis::new(2), Event::Update(device, honest_update(device, &broadcast)));
    }
    assert_eq!((private.engine.phase(), private.published_ridge()), (Phase::FitHead, FALLBACK_RIDGE));
}

#[test]
fn foreign_checkpoint_is_refused() {
    let mut campaign = CampaignRun::after_training(Some(Millis::new(100)));
    (0..3).for_each(|device| {
        assert_eq!(campaign.send_scores(DeviceId(device), 40, counts_with_peak(5, 40)), AckOutcome::Counted)
    });
    let valid = campaign.engine.checkpoint();
    let resumes_with = |change: &dyn Fn(&mut Checkpoint)| {
        let mut changed = valid.clone();
        change(&mut changed);
        create_engine(Some(Millis::new(100))).resume(Millis::ZERO, &changed)
    };
    assert!(resumes_with(&|_| {}));
    assert!(!resumes_with(&|checkpoint| checkpoint.state.truncate(checkpoint.state.len() - 1)));
    assert!(!resumes_with(&|checkpoint| *checkpoint.state.last_mut().unwrap() = 0.5));
    assert!(!resumes_with(&|checkpoint| *checkpoint.state.last_mut().unwrap() = f64::NAN));
    assert!(!resumes_with(&|checkpoint| checkpoint.done = Phase::Train(1)));
    assert!(!two_device_setup().engine().resume(Millis::ZERO, &valid));
}

/// Without ridge scores the campaign has no round for them, and heads use the configured ridge.
#[test]
fn private_fleet_has_no_ridge_round() {
    let setup = common::campaign::Setup { fleet_size: 1, rounds: 1, ..two_device_setup() };
    let head = HeadSolve::LeaveOneOut { fallback_ridge: 0.25 };
    let mut campaign = CampaignRun::new(setup.engine().with_final_head(head));
    campaign.handle_event(Millis::ZERO, Event::Joined(DeviceId(0)));
    let (device, broadcast) = campaign.open.pop().unwrap();
    campaign.handle_event(Millis::new(1), Event::Update(device, honest_update(device, &broadcast)));
    assert_eq!((campaign.engine.phase(), campaign.published_ridge()), (Phase::FitHead, 0.25));
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
        let mut in_order = RidgeScores::new(1);
        let mut in_other_order = RidgeScores::new(1);
        let mut turned = devices.clone();
        turned.rotate_left(turn % devices.len());
        for (sums, order) in [(&mut in_order, &devices), (&mut in_other_order, &turned)] {
            for device in order {
                prop_assert!(sums.admits(device.0, &tensors(device)));
                sums.absorb(device.0, &tensors(device));
            }
        }
        prop_assert_eq!(&in_order, &in_other_order);
        let mut restored = RidgeScores::new(1);
        prop_assert!(restored.restore(&in_order.state()));
        prop_assert_eq!(restored.chosen(FALLBACK_RIDGE), in_order.chosen(FALLBACK_RIDGE));
        prop_assert!(GRID.ridges().any(|ridge| Some(ridge) == in_order.ridge()));
    }
}

#[test]
fn ridge_at_grid_end_is_reported() {
    let choose_ridge = |correct_counts: &dyn Fn(usize) -> f32| {
        let mut sums = RidgeScores::new(1);
        let values = (0..COUNT).map(correct_counts).collect();
        sums.absorb(100, &[Tensor { role: Role::RidgeScores, rows: 1, cols: COUNT as u16, values }]);
        sums.chosen(FALLBACK_RIDGE)
    };
    let (rising, falling) =
        (choose_ridge(&|index| 2.0 * index as f32), choose_ridge(&|index| 80.0 - index as f32));
    assert_eq!((rising.ridge, rising.is_at_end()), (grid_ridge(COUNT - 1), true));
    assert_eq!((falling.ridge, falling.is_at_end()), (grid_ridge(0), true));
    // For equal scores the largest ridge is chosen, and the end of the grid is not reported.
    let equal = choose_ridge(&|_| 50.0);
    assert_eq!((equal.ridge, equal.is_at_end()), (grid_ridge(COUNT - 1), false));
}
