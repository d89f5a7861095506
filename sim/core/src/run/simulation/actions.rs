//! Execution of the engine's actions in a simulation: opens and closes rounds on devices, and scores and
//! records committed rounds.

use std::collections::VecDeque;
use std::time::Instant;

use fedspan_engine::{Action, DeviceId, Millis, NotCounted, Phase, RoundRecord};
use fedspan_protocol::message::{Ack, AckOutcome, Rejection, RoundId, ToDevice};

use super::Simulation;
use super::delivery::record_divergence;
use crate::evaluate::MetricSet;
use crate::run::{RoundRow, RunError, Watcher};

impl Simulation<'_> {
    /// Executes all actions, and all further actions that result from them.
    pub(super) fn execute(
        &mut self,
        actions: &mut Vec<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        let mut queue: VecDeque<Action> = actions.drain(..).collect();
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Acknowledge(device, ack) => self.acknowledge(device, ack),
                // No heads are fitted.
                Action::Open(..) if self.metrics == MetricSet::Distance && self.training_is_over() => {}
                Action::Open(device, opening) => self.send_round(device.0, &opening),
                Action::Close(device, id) => self.close(device, id)?,
                Action::Commit(record) => self.commit(&record, &mut queue, watcher)?,
                Action::Finished => self.finished = true,
                Action::NextRound(..) | Action::NotAwaited(_) | Action::Awaited(_) => {}
                Action::Failed(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    /// Sends an acknowledgement to a device. A rejection is recorded as a failure of the device.
    fn acknowledge(&mut self, device: DeviceId, ack: Ack) {
        if let AckOutcome::Rejected(reason) = ack.outcome {
            if self.trains_network()
                && matches!(reason, Rejection::NormOverBound { .. } | Rejection::NonFinite)
            {
                record_divergence(&mut self.diverged, &self.engine, device.0, ack.id.round);
            }
            self.last_failure = Some((device.0, NotCounted::Rejected(reason)));
        }
        if let Some(device) = self.devices.get(usize::try_from(device.0).unwrap_or(usize::MAX)) {
            device.connection.send(ToDevice::Ack(ack));
        }
    }

    /// Closes a round on a device.
    fn close(&mut self, device: DeviceId, id: RoundId) -> Result<(), RunError> {
        let index = usize::try_from(device.0).unwrap_or(usize::MAX);
        let was_pending = self.arrivals.remove(index);
        let replay = self.replay.as_ref();
        let was_late = replay.is_some_and(|replay| replay.was_late(device, id.round));
        // A device that sleeps receives the frames of a round that it was sent.
        let device = if was_pending { Some(self.devices.wake(index)?) } else { self.devices.get(index) };
        let Some(device) = device else { return Ok(()) };
        if was_pending && was_late {
            // In the journal the answer arrived after the round was closed. The device has computed the
            // round, but its update is discarded.
            device.pump();
            device.inbox.clear();
            device.connection.close_round(id);
            device.connection.send(ToDevice::Ack(Ack { id, outcome: AckOutcome::Late }));
            return Ok(());
        }
        if was_pending {
            device.discard_frames();
        }
        device.connection.close_round(id);
        Ok(())
    }

    /// Records a committed round. The model is scored first if the round is to be evaluated.
    fn commit(
        &mut self,
        record: &RoundRecord,
        queue: &mut VecDeque<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        let began = Instant::now();
        self.process_due_frames()?;
        let arrivals = &self.arrivals;
        self.devices
            .rest(self.devices.awake_max(), record.id.round, |index| arrivals.pending(index).is_some());
        self.seconds += began.elapsed().as_secs_f64();
        (self.last_failure, self.failed_attempts) = (None, 0);
        // Ridge scores are not counted as updates.
        if record.phase != Phase::RidgeScores {
            self.updates += record.participants.len() as u64;
        }
        let Phase::Train(number) = record.phase else {
            // The start rounds, which compute the initial representation, are recorded in round 0.
            if matches!(self.engine.phase(), Phase::Train(_)) {
                self.record_initial(queue, watcher)?;
            }
            return Ok(());
        };
        let last = record.ends_training;
        let evaluated = last || self.scenario.evaluates(number);
        // Frees the memory before clients are scored again.
        self.last_scored = None;
        let scored = if evaluated { Some(self.scores_with_newcomers(number)?) } else { None };
        let scores = scored.as_ref().map(|(scores, _)| *scores);
        if self.scenario.algorithm.network().is_none() {
            self.last_scored = scored.map(|(scores, clients)| (self.scored_model(), scores, clients));
        } else if self.diverged.is_none() {
            // After a divergence the scores before the divergence are kept.
            self.before_tuning = scored;
        }
        let (bytes_up, bytes_down) = self.devices.traffic_since();
        self.rows.push(RoundRow {
            round: number,
            stage: record.id.stage,
            cohort: record.cohort.clone(),
            participants: record.participants.clone(),
            time: self.time,
            scores,
            bytes_up,
            bytes_down,
            rejected: record.rejected,
            interference: record.interference,
        });
        let continues = watcher.round(number, self.scenario.algorithm.rounds, scores.as_ref());
        let is_stopped = !last && self.stop_reached(scores.as_ref());
        self.interrupted = !last && !continues;
        let ends = last || is_stopped || self.interrupted;
        self.offer_state(ends, is_stopped, queue, watcher)?;
        if !last && (ends || self.diverged.is_some()) {
            self.end_training(queue)?;
        }
        Ok(())
    }

    /// Ends training and starts the final head fit. If a round has just been opened, it is not sent to
    /// devices.
    pub(super) fn end_training(&mut self, queue: &mut VecDeque<Action>) -> Result<(), RunError> {
        self.score_before_tuning()?;
        queue.retain(|action| !matches!(action, Action::Open(..)));
        self.arrivals.clear();
        let mut further_actions = Vec::new();
        match &mut self.replay {
            Some(replay) => replay.finish_training(&mut self.engine, Millis::ZERO, &mut further_actions),
            None => self.engine.finish_training(Millis::ZERO, &mut further_actions),
        }
        queue.extend(further_actions.into_iter().filter(|action| !matches!(action, Action::Close(..))));
        Ok(())
    }
}
