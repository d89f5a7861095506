//! Receiving half of a session: message handling from `RoundOpen` and its tensors to the computed update.

use fedspan_protocol::assembly::{Assembly, plan, split_body};
#[cfg(feature = "key-rotation")]
use fedspan_protocol::message::NewKey;
use fedspan_protocol::message::{
    self, Chunk, Decline, DeclineReason, Descriptors, RoundOpen, ToDevice, decode,
};
#[cfg(feature = "top-k")]
use fedspan_protocol::tensor::Encoding;
use rand_core::Rng;

use super::counters::count;
use super::state::{Phase, SLOTS_ENABLED};
use super::{Aead, Session};
use crate::event_log::log_event;
use crate::release::Release;
use crate::source::{SampleSource, Targets};
use crate::store::{Record, Store};
use crate::task::{Task, Usage};
use crate::time::Millis;

impl<T: Task, S: SampleSource, P: Store, R: Rng, A: Aead + Clone> Session<T, S, P, R, A> {
    /// Decodes a message and passes it to the handler for the current phase.
    pub(super) fn dispatch_message(&mut self, now: Millis, bytes: &[u8]) {
        let Ok((message, body)) = decode::<ToDevice>(bytes) else {
            count(&mut self.state.counters.malformed);
            return;
        };
        self.state.repeats = 0;
        match (&message, self.state.phase) {
            (ToDevice::RoundOpen(open), _) if self.state.is_established() => {
                self.handle_round_open(now, open, body)
            }
            (ToDevice::Chunk(chunk), Phase::Receiving { .. }) => self.handle_chunk(now, chunk, body),
            #[cfg(feature = "key-rotation")]
            (ToDevice::NewKey(new), _) if self.state.is_established() => self.handle_new_key(new),
            _ => self.state.handle_control_message(now, &message),
        }
        #[cfg(feature = "top-k")]
        if let Some(outcome) = self.state.acknowledged.take() {
            self.task.acknowledged(outcome);
        }
    }

    /// Stores a new key and uses it from the next handshake on.
    #[cfg(feature = "key-rotation")]
    fn handle_new_key(&mut self, new: &NewKey) {
        let key = new.key();
        let is_newer = self.secure.epoch().is_some_and(|epoch| epoch < key.epoch());
        if !self.config.receives_keys || !is_newer {
            return self.state.unexpected();
        }
        let stored = self.secure.to_stored(key);
        if self.store.save_key(&stored).is_err() {
            return count(&mut self.state.counters.storage);
        }
        self.secure.replace_key(stored);
        self.state.has_new_key = true;
    }

    /// Handles a sealed frame.
    pub(super) fn handle_sealed(&mut self, now: Millis, frame: &mut [u8]) {
        let awaiting_welcome = match self.state.phase {
            Phase::Offline => {
                frame.fill(0);
                return count(&mut self.state.counters.unopened);
            }
            Phase::Greeting { hello_sent } => hello_sent,
            _ => false,
        };
        match self.secure.decrypt(frame, awaiting_welcome) {
            Some(message) => self.dispatch_message(now, message),
            None => count(&mut self.state.counters.unopened),
        }
        if awaiting_welcome && self.state.is_established() {
            self.state.send_key_proof = true;
        }
    }

    /// Handles an unsealed message on a link that has a key. Its sender is unknown, so the message can at
    /// most make the device reconnect later or repeat its hello.
    pub(super) fn handle_unsealed(&mut self, now: Millis, bytes: &[u8]) {
        #[cfg(feature = "beacons")]
        if self.handle_beacon(now, bytes) {
            return;
        }
        let decoded = decode::<ToDevice>(bytes);
        match decoded {
            // A beacon of a round that is not announced to this device, or no longer.
            #[cfg(feature = "beacons")]
            Ok((ToDevice::RoundOpen(_), _)) if self.config.receives_beacons => {
                count(&mut self.state.counters.beacons_ignored)
            }
            _ => count(&mut self.state.counters.unsealed),
        }
        if let Ok((message, _body)) = decoded {
            #[cfg(feature = "reports")]
            self.state.keep_refusal(&message, &self.secure, bytes, _body);
            self.state.handle_unauthenticated(now, &message);
        }
    }

    /// Opens the announced round if the message is its beacon. Returns false otherwise.
    #[cfg(feature = "beacons")]
    fn handle_beacon(&mut self, now: Millis, bytes: &[u8]) -> bool {
        let Some(announced) = self.state.announced.filter(|_| self.state.is_established()) else {
            return false;
        };
        if !self.secure.verifies_beacon(bytes, announced.tag) {
            return false;
        }
        self.state.announced = None;
        count(&mut self.state.counters.beacons);
        match decode::<ToDevice>(bytes) {
            Ok((ToDevice::RoundOpen(open), body)) if open.id == announced.id => {
                self.handle_round_open(now, &open, body);
            }
            // Only a wrong server computes the tag of such a message.
            _ => self.state.unexpected(),
        }
        true
    }

    /// Opens a round: accepts or declines it, and receives the tensors in the body.
    fn handle_round_open(&mut self, now: Millis, open: &RoundOpen, body: &[u8]) {
        #[cfg(feature = "beacons")]
        {
            self.state.announced = None;
        }
        // The server repeats the opening of a round that is in progress.
        let under_way =
            matches!(self.state.phase, Phase::Receiving { .. } | Phase::Collecting | Phase::AwaitingSlot);
        if open.id == self.state.round && under_way {
            return self.state.unexpected();
        }
        if open.id == self.state.round && self.state.update_ready {
            return self.state.send_update();
        }
        // A fit of the final head uploads nothing, so it may be repeated: after a reset the device must
        // receive the representation again.
        let fit = matches!(open.task, message::Task::FitHead { .. });
        // A round counts as finished once any part of its update was sent: a server that opens another round
        // in between must not get a second update for it.
        let last = self.state.last_round.max(self.state.last_sent_round);
        if open.id.round < last || (open.id.round == last && !fit) {
            self.state.decline_round(open.id, DeclineReason::RoundRepeated { last });
            return;
        }
        let cost = self.task.cost(&open.task);
        // A charged round is computed once. A repeated opening gets the same decline.
        let charged =
            self.state.charged_round.filter(|charged| SLOTS_ENABLED && cost > 0 && charged.id == open.id);
        if let Some(charged) = charged {
            return self.state.decline_round(charged.id, charged.reason);
        }
        // The task is opened last, because accepting this round discards the task's previous round.
        let accepted = Assembly::new(&open.tensors)
            .map_err(|_| DeclineReason::Tensors)
            .and_then(|assembly| self.check_encoding(&open.task).map(|()| assembly))
            .and_then(|assembly| self.check_budget(cost).map(|()| assembly))
            .and_then(|assembly| self.ensure_saved(cost, last).map(|()| assembly))
            .and_then(|assembly| self.task.open(open).map(|()| assembly));
        let assembly = match accepted {
            Ok(assembly) => assembly,
            Err(reason) => return self.state.decline_round(open.id, reason),
        };
        self.state.drop_update();
        self.state.round = open.id;
        self.state.cost = cost;
        self.state.fitting = matches!(open.task, message::Task::FitHead { .. });
        self.state.assembly = assembly;
        log_event!(info, "round {} stage {} opened", open.id.round, open.id.stage);
        self.state.await_chunks(now, false);
        if self.state.assembly.is_complete() {
            match self.decode_tensors(&open.tensors, body) {
                Ok(()) => self.start_computation(now),
                Err(reason) => self.state.decline_round(open.id, reason),
            }
        }
    }

    /// Declines a task whose upload would leave values out, unless the device's task announces it.
    #[cfg_attr(
        not(feature = "top-k"),
        allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "no such encoding")
    )]
    fn check_encoding(&self, _task: &message::Task) -> Result<(), DeclineReason> {
        #[cfg(feature = "top-k")]
        if _task.encoding() == Some(Encoding::I8TopK)
            && self.task.capabilities().encodings & Encoding::I8TopK.bit() == 0
        {
            return Err(DeclineReason::Parameter);
        }
        Ok(())
    }

    /// Decodes the tensors in the body of a `RoundOpen` into the task's buffers.
    fn decode_tensors(&mut self, tensors: &Descriptors, body: &[u8]) -> Result<(), DeclineReason> {
        let parts = split_body(tensors, body).map_err(|_| DeclineReason::Tensors)?;
        for (index, descriptor, bytes) in parts {
            let buffer = self.task.tensor_mut(index).ok_or(DeclineReason::Tensors)?;
            descriptor.encoding.decode(bytes, buffer).map_err(|_| DeclineReason::Tensors)?;
        }
        Ok(())
    }

    /// Decodes a chunk into the task's buffers, and starts the computation after the last chunk.
    fn handle_chunk(&mut self, now: Millis, chunk: &Chunk, body: &[u8]) {
        if chunk.id != self.state.round {
            return self.state.unexpected();
        }
        match self.state.assembly.accept(chunk, body.len()) {
            Ok(Some(range)) => {
                let encoding = self.state.assembly.tensors().get(range.tensor).map(|t| t.encoding);
                let buffer = self.task.tensor_mut(range.tensor);
                if let (Some(encoding), Some(buffer)) =
                    (encoding, buffer.and_then(|b| b.get_mut(range.elements)))
                    && encoding.decode(body, buffer).is_err()
                {
                    return self.state.unexpected();
                }
                self.state.await_chunks(now, false);
                if self.state.assembly.is_complete() {
                    self.start_computation(now);
                }
            }
            Ok(None) => {}
            Err(_) => self.state.unexpected(),
        }
    }

    /// Charges the round, then computes the update or starts to collect samples.
    fn start_computation(&mut self, now: Millis) {
        let id = self.state.round;
        if let Err(reason) = self.task.verify() {
            return self.state.decline_round(id, reason);
        }
        // The charge comes before the first sample is read, because charging also fixes the noise seed. A
        // decline at this point does not depend on any sample.
        if let Err(reason) = self.charge_round() {
            return self.state.decline_round(id, reason);
        }
        if self.config.sampling.streamed_samples().is_some() {
            return match self.task.begin() {
                Ok(()) => self.state.enter(Phase::Collecting),
                Err(reason) => self.state.decline_round(id, reason),
            };
        }
        // Silence starts here, because samples are read from here on.
        self.state.enter_silence(now);
        let result = self.task.run(id, &mut self.source);
        self.finish_computation(result);
    }

    /// Passes a sample to the task, and finishes the computation once enough usable samples have arrived.
    pub(super) fn handle_sample(&mut self, now: Millis, x: &[f32], target: Targets<'_>) {
        let (Phase::Collecting, Some(samples)) = (self.state.phase, self.config.sampling.streamed_samples())
        else {
            return self.state.unexpected();
        };
        if self.task.sample(x, target) >= samples {
            self.state.enter_silence(now);
            let result = self.task.finish();
            self.finish_computation(result);
        }
    }

    /// Saves the result of a computation, and starts to send the update or a decline.
    fn finish_computation(&mut self, result: Result<Usage, DeclineReason>) {
        let id = self.state.round;
        match result {
            Ok(usage) => {
                self.state.usage = usage;
                self.state.heads = self.state.heads.wrapping_add(1);
            }
            Err(reason) => return self.state.decline_round(id, reason),
        }
        let mut upload = self.task.upload();
        if plan(&mut upload, self.config.limit()).is_err() {
            return self.state.decline_round(id, DeclineReason::Tensors);
        }
        self.state.upload = upload;
        if !self.save_record(id.round) {
            return self.state.decline_round(id, DeclineReason::Device);
        }
        self.state.update_ready = true;
        self.state.send_update();
    }

    /// Writes the record: the head, and the last round that must not be computed again. If this fails, counts
    /// the failure and returns false.
    fn save_record(&mut self, round: u32) -> bool {
        let record = Record {
            campaign: self.state.campaign,
            round,
            representation: self.task.head_fitted_on().unwrap_or_default(),
            head: self.task.head(),
        };
        let saved = self.store.save(&record).is_ok();
        self.state.save_failed = !saved;
        if !saved {
            count(&mut self.state.counters.storage);
            // The end of a private computation is not shown before its decline is sent.
            if !self.state.computing {
                log_event!(error, "the record cannot be stored");
            }
        }
        saved
    }

    /// Retries a failed write of the record before a round with a cost, so that nothing is charged while
    /// updates cannot be sent.
    fn ensure_saved(&mut self, cost: u64, last: u32) -> Result<(), DeclineReason> {
        if SLOTS_ENABLED && cost > 0 && self.state.save_failed && !self.save_record(last) {
            return Err(DeclineReason::Device);
        }
        Ok(())
    }

    /// Checks that the budget covers a round. Rounds without a cost always pass; rounds with a cost need a
    /// slot.
    fn check_budget(&self, cost: u64) -> Result<(), DeclineReason> {
        match (cost, self.state.slot) {
            (0, _) => Ok(()),
            (_, Millis::ZERO) => Err(DeclineReason::Device),
            _ => self.ledger.check_budget(self.task.capabilities().privacy, cost),
        }
    }

    /// Charges an update to the budget before the update is computed, because even the success of the
    /// computation reveals something about the records. Each round is charged once: a retry sends the same
    /// bytes, or the same decline. The charge is never refunded.
    fn charge_round(&mut self) -> Result<(), DeclineReason> {
        let cost = self.state.cost;
        self.check_budget(cost)?;
        if cost == 0 {
            return Ok(());
        }
        let (campaign, round) = (self.state.campaign, self.state.round);
        let (device, spent) = (self.config.device, self.ledger.spent());
        self.task.prepare(&Release { device, campaign, round, spent })?;
        if self.ledger.charge(cost, &mut self.store).is_err() {
            count(&mut self.state.counters.storage);
            log_event!(error, "the privacy ledger cannot be stored");
            return Err(DeclineReason::Device);
        }
        self.state.charged_unsent = true;
        self.state.charged_round = Some(Decline { id: round, reason: DeclineReason::Device });
        Ok(())
    }
}
