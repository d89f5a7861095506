//! What the engine asks for: rounds open and close on devices, and what a round has made is scored and written down.

use std::collections::VecDeque;
use std::time::Instant;

use fedspan_engine::{Action, DeviceId, NotCounted, Phase, RoundRecord};
use fedspan_protocol::message::{Ack, AckOutcome, Rejection, RoundId, ToDevice};

use super::Simulation;
use crate::run::{RoundRow, RunError, Watcher};

impl Simulation<'_> {
    /// Does all of it, and what that leads to.
    pub(super) fn act(
        &mut self,
        actions: &mut Vec<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        let mut queue: VecDeque<Action> = actions.drain(..).collect();
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Acknowledge(device, ack) => self.acknowledge(device, ack),
                Action::Open(device, opening) => self.ask(device, &opening),
                Action::Close(device, id) => self.close(device, id),
                Action::Commit(record) => self.commit(&record, &mut queue, watcher)?,
                Action::Finished => self.finished = true,
                Action::Failed(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self, device: DeviceId, ack: Ack) {
        if let AckOutcome::Rejected(reason) = ack.outcome {
            if matches!(reason, Rejection::NormOverBound { .. } | Rejection::NonFinite) {
                self.diverges(device, ack.id.round);
            }
            self.refused = Some((device, NotCounted::Rejected(reason)));
        }
        if let Some(device) = self.devices.get(usize::try_from(device).unwrap_or(usize::MAX)) {
            device.connection.send(ToDevice::Ack(ack));
        }
    }

    /// Tells a device that a round is over.
    fn close(&mut self, device: DeviceId, id: RoundId) {
        let index = usize::try_from(device).unwrap_or(usize::MAX);
        let unheard = self.arrivals.forget(index);
        let recording = self.recording.as_ref();
        let late = recording.is_some_and(|known| known.came_late(device, id.round));
        let Some(device) = self.devices.get(index) else { return };
        if unheard && late {
            // Its answer crossed with this: it is heard in vain, but it has done the work.
            device.pump();
            device.said.clear();
            device.connection.close_round(id);
            device.connection.send(ToDevice::Ack(Ack { id, outcome: AckOutcome::Late }));
            return;
        }
        if unheard {
            device.miss();
        }
        device.connection.close_round(id);
    }

    /// A round is over: it is scored where that is due, and written down.
    fn commit(
        &mut self,
        record: &RoundRecord,
        queue: &mut VecDeque<Action>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), RunError> {
        let began = Instant::now();
        self.pump();
        self.seconds += began.elapsed().as_secs_f64();
        (self.refused, self.barren) = (None, 0);
        // Neither trains.
        if record.phase != Phase::RidgeScores {
            self.updates += record.participants.len() as u64;
        }
        let Phase::Train(number) = record.phase else {
            // The start belongs to round 0, which is the initial model.
            if matches!(self.engine.phase(), Phase::Train(_)) {
                self.record_initial(queue, watcher)?;
            }
            return Ok(());
        };
        let last = record.ends_training;
        let evaluated = last || self.is_recent(number) || number.is_multiple_of(self.scenario.evaluate_every);
        let scored = if evaluated { Some(self.scores(number)?) } else { None };
        let scores = scored.as_ref().map(|(scores, _)| *scores);
        // Of what diverges the last scores are kept.
        if self.diverged.is_none() {
            self.untuned = scored.filter(|_| self.scenario.algorithm.network.is_some());
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
        let go_on = watcher.round(number, self.scenario.algorithm.rounds, scores.as_ref());
        if !last {
            self.interrupted = !go_on;
            if self.interrupted || self.diverged.is_some() || self.reached(scores.as_ref()) {
                self.end_training(queue)?;
            }
        }
        Ok(())
    }

    /// Goes on to the final heads. The round that had just opened never reaches a device.
    pub(super) fn end_training(&mut self, queue: &mut VecDeque<Action>) -> Result<(), RunError> {
        self.score_untuned()?;
        queue.retain(|action| !matches!(action, Action::Open(..)));
        self.arrivals.forget_all();
        let mut more = Vec::new();
        self.engine.finish_training(0, &mut more);
        queue.extend(more.into_iter().filter(|action| !matches!(action, Action::Close(..))));
        Ok(())
    }
}
