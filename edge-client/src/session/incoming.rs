//! The session's receiving half: from `RoundOpen` and its tensors to a computed update.

use fedspan_protocol::assembly::{Assembly, plan, split_body};
use fedspan_protocol::message::{
    self, Chunk, Decline, DeclineReason, Descriptors, RoundOpen, ToDevice, decode,
};
use rand_core::Rng;

use super::clock::SLOTS;
use super::conversation::State;
use super::vocabulary::count;
use super::{Sampling, Session};
use crate::mechanism::Release;
use crate::source::{SampleSource, Targets};
use crate::store::{Record, Store};
use crate::task::{Task, Usage};
use crate::time::Millis;

impl<T: Task, S: SampleSource, P: Store, R: Rng> Session<T, S, P, R> {
    pub(super) fn message(&mut self, now: Millis, bytes: &[u8]) {
        let Ok((message, body)) = decode::<ToDevice>(bytes) else {
            count(&mut self.talk.counters.malformed);
            return;
        };
        match (&message, self.talk.state) {
            (ToDevice::RoundOpen(open), _) if self.talk.is_welcome() => self.round_open(now, open, body),
            (ToDevice::Chunk(chunk), State::Receiving { .. }) => self.chunk(now, chunk, body),
            _ => self.talk.hear(now, &message),
        }
    }

    /// A sealed frame, where frames are.
    pub(super) fn sealed(&mut self, now: Millis, frame: &mut [u8]) {
        let greeting = match self.talk.state {
            State::Offline => {
                frame.fill(0);
                return count(&mut self.talk.counters.unopened);
            }
            State::Greeting { said } => said,
            _ => false,
        };
        match self.guard.open(frame, greeting) {
            Some(message) => self.message(now, message),
            None => count(&mut self.talk.counters.unopened),
        }
        if greeting && self.talk.is_welcome() {
            self.talk.confirm = true;
        }
    }

    /// A message that is not sealed where it should be. Anybody may have sent it: the most it can do is to have the
    /// device come back later, or say hello again.
    pub(super) fn unsealed(&mut self, now: Millis, bytes: &[u8]) {
        count(&mut self.talk.counters.unsealed);
        if let Ok((message, _)) = decode::<ToDevice>(bytes) {
            self.talk.hear_unsealed(now, &message);
        }
    }

    fn round_open(&mut self, now: Millis, open: &RoundOpen, body: &[u8]) {
        // The server has not heard of this round for a while; it is under way.
        let under_way =
            matches!(self.talk.state, State::Receiving { .. } | State::Collecting | State::AwaitingSlot);
        if open.id == self.talk.round && under_way {
            return self.talk.unexpected();
        }
        if open.id == self.talk.round && self.talk.update_ready {
            return self.talk.send_update();
        }
        // Fitting the final head uploads nothing, so it may be repeated: after a reset the representation has
        // to be fetched again.
        let fit = matches!(open.task, message::Task::FitHead { .. });
        // What has left counts like what is finished: a server that opens another round in between must not get
        // a second update for the same one.
        let last = self.talk.last_round.max(self.talk.released);
        if open.id.round < last || (open.id.round == last && !fit) {
            self.talk.decline_round(open.id, DeclineReason::RoundRepeated { last });
            return;
        }
        let cost = self.task.cost(&open.task);
        // A round is computed once for what it costs; the answer to the same question is the same.
        let paid = self.talk.paid.filter(|paid| SLOTS && cost > 0 && paid.id == open.id);
        if let Some(paid) = paid {
            return self.talk.decline_round(paid.id, paid.reason);
        }
        // The task last: once it has said yes, it has let go of the round before.
        let accepted = Assembly::new(&open.tensors)
            .map_err(|_| DeclineReason::Tensors)
            .and_then(|assembly| self.afford(cost).map(|()| assembly))
            .and_then(|assembly| self.can_keep(cost, last).map(|()| assembly))
            .and_then(|assembly| self.task.open(open).map(|()| assembly));
        let assembly = match accepted {
            Ok(assembly) => assembly,
            Err(reason) => return self.talk.decline_round(open.id, reason),
        };
        self.talk.drop_update();
        self.talk.round = open.id;
        self.talk.cost = cost;
        self.talk.fitting = matches!(open.task, message::Task::FitHead { .. });
        self.talk.assembly = assembly;
        self.talk.receive(now, false);
        if self.talk.assembly.is_complete() {
            match self.take_body(&open.tensors, body) {
                Ok(()) => self.tensors_complete(now),
                Err(reason) => self.talk.decline_round(open.id, reason),
            }
        }
    }

    fn take_body(&mut self, tensors: &Descriptors, body: &[u8]) -> Result<(), DeclineReason> {
        let parts = split_body(tensors, body).map_err(|_| DeclineReason::Tensors)?;
        for (index, descriptor, bytes) in parts {
            let place = self.task.tensor_mut(index).ok_or(DeclineReason::Tensors)?;
            descriptor.encoding.decode(bytes, place).map_err(|_| DeclineReason::Tensors)?;
        }
        Ok(())
    }

    fn chunk(&mut self, now: Millis, chunk: &Chunk, body: &[u8]) {
        if chunk.id != self.talk.round {
            return self.talk.unexpected();
        }
        match self.talk.assembly.accept(chunk, body.len()) {
            Ok(Some(place)) => {
                let encoding = self.talk.assembly.tensors().get(place.tensor).map(|t| t.encoding);
                let buffer = self.task.tensor_mut(place.tensor);
                if let (Some(encoding), Some(buffer)) =
                    (encoding, buffer.and_then(|b| b.get_mut(place.elements)))
                    && encoding.decode(body, buffer).is_err()
                {
                    return self.talk.unexpected();
                }
                self.talk.receive(now, false);
                if self.talk.assembly.is_complete() {
                    self.tensors_complete(now);
                }
            }
            Ok(None) => {}
            Err(_) => self.talk.unexpected(),
        }
    }

    fn tensors_complete(&mut self, now: Millis) {
        let id = self.talk.round;
        if let Err(reason) = self.task.verify() {
            return self.talk.decline_round(id, reason);
        }
        // Before the first sample, since with the price comes the seed. No sample has a part in a decline here.
        if let Err(reason) = self.pay() {
            return self.talk.decline_round(id, reason);
        }
        if let Sampling::Stream { .. } = self.config.sampling {
            return match self.task.begin() {
                Ok(()) => self.talk.enter(State::Collecting),
                Err(reason) => self.talk.decline_round(id, reason),
            };
        }
        // From here on, as samples are looked at.
        self.talk.be_quiet(now);
        let result = self.task.run(id, &mut self.source);
        self.computed(result);
    }

    pub(super) fn sample(&mut self, now: Millis, x: &[f32], target: Targets<'_>) {
        let (State::Collecting, Sampling::Stream { samples }) = (self.talk.state, self.config.sampling)
        else {
            return self.talk.unexpected();
        };
        if self.task.sample(x, target) >= samples {
            self.talk.be_quiet(now);
            let result = self.task.finish();
            self.computed(result);
        }
    }

    fn computed(&mut self, result: Result<Usage, DeclineReason>) {
        let id = self.talk.round;
        match result {
            Ok(usage) => self.talk.usage = usage,
            Err(reason) => return self.talk.decline_round(id, reason),
        }
        let mut upload = self.task.upload();
        if plan(&mut upload, self.config.limit()).is_err() {
            return self.talk.decline_round(id, DeclineReason::Tensors);
        }
        self.talk.upload = upload;
        if !self.save(id.round) {
            return self.talk.decline_round(id, DeclineReason::Device);
        }
        self.talk.update_ready = true;
        self.talk.send_update();
    }

    /// Writes the head down, with the last round that must not be computed again. False if that fails, which counts.
    fn save(&mut self, round: u32) -> bool {
        let record = Record {
            campaign: self.talk.campaign,
            round,
            representation: self.task.head_fitted_on().unwrap_or_default(),
            head: self.task.head(),
        };
        let saved = self.store.save(&record).is_ok();
        self.talk.unsaved = !saved;
        if !saved {
            count(&mut self.talk.counters.storage);
        }
        saved
    }

    /// Where the last record could not be written, what costs something has to wait until it can: no more is paid for
    /// updates that cannot leave.
    fn can_keep(&mut self, cost: u64, last: u32) -> Result<(), DeclineReason> {
        if SLOTS && cost > 0 && self.talk.unsaved && !self.save(last) {
            return Err(DeclineReason::Device);
        }
        Ok(())
    }

    /// Whether a round's update can be paid for. What costs nothing always can; what costs something has a slot.
    fn afford(&self, cost: u64) -> Result<(), DeclineReason> {
        match (cost, self.talk.slot) {
            (0, _) => Ok(()),
            (_, Millis::ZERO) => Err(DeclineReason::Device),
            _ => self.ledger.afford(self.task.capabilities().privacy, cost),
        }
    }

    /// Pays for an update before it is computed, since whether that succeeds tells something as well. Once for each
    /// round: a retry sends the same bytes, or the same decline. It stays paid for whatever becomes of it.
    fn pay(&mut self) -> Result<(), DeclineReason> {
        let cost = self.talk.cost;
        self.afford(cost)?;
        if cost == 0 {
            return Ok(());
        }
        let (campaign, round) = (self.talk.campaign, self.talk.round);
        let (device, spent) = (self.config.device, self.ledger.spent());
        self.task.prepare(&Release { device, campaign, round, spent })?;
        if self.ledger.charge(cost, &mut self.store).is_err() {
            count(&mut self.talk.counters.storage);
            return Err(DeclineReason::Device);
        }
        self.talk.unsent = true;
        self.talk.paid = Some(Decline { id: round, reason: DeclineReason::Device });
        Ok(())
    }
}
