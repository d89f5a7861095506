//! The session's receiving half: what each message does, from `RoundOpen` to a computed update and its
//! acknowledgement.

use fedspan_protocol::assembly::{Assembly, plan, split_body};
use fedspan_protocol::message::{
    self, Ack, AckOutcome, Chunk, DeclineReason, Descriptors, Fault, RoundId, RoundOpen, ToDevice, decode,
};
use rand_core::Rng;

use super::vocabulary::count;
use super::{Millis, Outgoing, Sampling, Session, State};
use crate::source::{SampleSource, Targets};
use crate::store::{Record, Store};
use crate::task::{Task, Usage};

impl<T: Task, S: SampleSource, P: Store, R: Rng> Session<T, S, P, R> {
    pub(super) fn message(&mut self, now: Millis, bytes: &[u8]) {
        let Ok((message, body)) = decode::<ToDevice>(bytes) else {
            count(&mut self.counters.malformed);
            return;
        };
        match (&message, self.state) {
            (ToDevice::Welcome(welcome), State::Greeting { .. }) => {
                if welcome.campaign != self.campaign {
                    self.campaign = welcome.campaign;
                    self.last_round = 0;
                    self.update_ready = false;
                    self.fitted = false;
                }
                self.alive_every = Self::alive_every(welcome.idle_milliseconds);
                self.attempts = 0;
                self.last_sent = now;
                self.enter(State::Idle);
            }
            (ToDevice::Refused(refusal), State::Greeting { .. }) => {
                self.refusal = Some(*refusal);
                self.close = true;
            }
            (ToDevice::RetryAfter { milliseconds }, _) => {
                self.enter_until(now.saturating_add(Millis::from(*milliseconds)), State::Offline);
                self.close = true;
            }
            (_, State::Offline | State::Greeting { .. }) => self.unexpected(),
            (ToDevice::RoundOpen(open), _) => self.round_open(now, open, body),
            (ToDevice::Chunk(chunk), State::Receiving { .. }) => self.chunk(now, chunk, body),
            (ToDevice::Missing(missing), State::AwaitingAck | State::Sending { .. })
                if missing.id == self.round =>
            {
                self.resend = Some(missing.clone());
            }
            (ToDevice::Ack(ack), _) => self.acknowledged(ack),
            (ToDevice::RoundClosed(id), _) => self.round_closed(*id),
            (ToDevice::Fault(Fault::Greet), _) => {
                // The server has restarted behind a link that stayed up. An update that is ready still is.
                count(&mut self.counters.greeted_again);
                self.decline = None;
                self.resend = None;
                self.enter(State::Greeting { said: false });
            }
            (ToDevice::Fault(_), _) => self.unexpected(),
            // A chunk of a round that is not being received: left over from before a reconnect.
            _ => self.unexpected(),
        }
    }

    fn round_open(&mut self, now: Millis, open: &RoundOpen, body: &[u8]) {
        if open.id == self.round && self.update_ready {
            self.enter(State::Sending { next: Outgoing::Head });
            return;
        }
        // The server has not heard of this round for a while; it is under way.
        if open.id == self.round && matches!(self.state, State::Receiving { .. } | State::Collecting) {
            return self.unexpected();
        }
        // Fitting the final head uploads nothing, so it may be repeated: after a reset the representation has
        // to be fetched again.
        let fit = matches!(open.task, message::Task::FitHead { .. });
        if open.id.round < self.last_round || (open.id.round == self.last_round && !fit) {
            let last = self.last_round;
            self.decline_round(open.id, DeclineReason::RoundRepeated { last });
            return;
        }
        // The task last: once it has said yes, it has let go of the round before.
        let accepted = Assembly::new(&open.tensors)
            .map_err(|_| DeclineReason::Tensors)
            .and_then(|assembly| self.task.open(open).map(|()| assembly));
        let assembly = match accepted {
            Ok(assembly) => assembly,
            Err(reason) => return self.decline_round(open.id, reason),
        };
        self.update_ready = false;
        self.resend = None;
        self.round = open.id;
        self.fitting = matches!(open.task, message::Task::FitHead { .. });
        self.assembly = assembly;
        self.receive(now, false);
        if self.assembly.is_complete() {
            match self.take_body(&open.tensors, body) {
                Ok(()) => self.tensors_complete(),
                Err(reason) => self.decline_round(open.id, reason),
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
        if chunk.id != self.round {
            return self.unexpected();
        }
        match self.assembly.accept(chunk, body.len()) {
            Ok(Some(place)) => {
                let encoding = self.assembly.tensors().get(place.tensor).map(|t| t.encoding);
                let buffer = self.task.tensor_mut(place.tensor);
                if let (Some(encoding), Some(buffer)) =
                    (encoding, buffer.and_then(|b| b.get_mut(place.elements)))
                    && encoding.decode(body, buffer).is_err()
                {
                    return self.unexpected();
                }
                self.receive(now, false);
                if self.assembly.is_complete() {
                    self.tensors_complete();
                }
            }
            Ok(None) => {}
            Err(_) => self.unexpected(),
        }
    }

    fn tensors_complete(&mut self) {
        let id = self.round;
        if let Err(reason) = self.task.verify() {
            return self.decline_round(id, reason);
        }
        match self.config.sampling {
            Sampling::Replay => {
                let result = self.task.run(id, &mut self.source);
                self.computed(result);
            }
            Sampling::Stream { .. } => match self.task.begin() {
                Ok(()) => self.enter(State::Collecting),
                Err(reason) => self.decline_round(id, reason),
            },
        }
    }

    pub(super) fn sample(&mut self, x: &[f32], target: Targets<'_>) {
        let (State::Collecting, Sampling::Stream { samples }) = (self.state, self.config.sampling) else {
            return self.unexpected();
        };
        if self.task.sample(x, target) >= samples {
            let result = self.task.finish();
            self.computed(result);
        }
    }

    fn computed(&mut self, result: Result<Usage, DeclineReason>) {
        let id = self.round;
        match result {
            Ok(usage) => self.usage = usage,
            Err(reason) => return self.decline_round(id, reason),
        }
        let mut upload = self.task.upload();
        if plan(&mut upload, self.config.limit()).is_err() {
            return self.decline_round(id, DeclineReason::Tensors);
        }
        self.upload = upload;
        let record = Record {
            campaign: self.campaign,
            round: id.round,
            representation: self.task.head_fitted_on().unwrap_or_default(),
            head: self.task.head(),
        };
        if self.store.save(&record).is_err() {
            count(&mut self.counters.storage);
            return self.decline_round(id, DeclineReason::Device);
        }
        self.update_ready = true;
        self.enter(State::Sending { next: Outgoing::Head });
    }

    fn acknowledged(&mut self, ack: &Ack) {
        let waiting = matches!(self.state, State::AwaitingAck | State::Sending { .. });
        if !waiting || ack.id != self.round {
            return self.unexpected();
        }
        let counter = match ack.outcome {
            AckOutcome::Counted | AckOutcome::Duplicate => {
                self.fitted |= self.fitting;
                self.close |= self.fitting && self.config.leave_when_fitted;
                &mut self.counters.counted
            }
            AckOutcome::Late => &mut self.counters.late,
            _ => &mut self.counters.rejected,
        };
        count(counter);
        self.finish_round();
    }

    fn round_closed(&mut self, id: RoundId) {
        let working = !matches!(self.state, State::Idle);
        if working && id == self.round {
            count(&mut self.counters.closed);
            self.finish_round();
        }
    }
}
