//! Delivery of the devices' answers to the engine.

use fedspan_aggregator::connection::PeerMessage;
use fedspan_engine::{Action, DeviceId, Effects, Engine, Event, NotCounted, Phase, RoundBroadcast, Update};
use fedspan_protocol::message::{Ack, AckOutcome, Decline, DeclineReason, Task, ToDevice};

use crate::fleet::SimDevice;
use crate::run::Diverged;
use crate::run::arrivals::PendingAnswer;
use crate::run::engine::ticks;
use crate::run::replay::ReplayDriver;

/// Passes the answers of devices to the engine.
pub(super) struct Delivery<'s, 'r> {
    pub engine: &'s mut Engine,
    pub replay: Option<&'s mut ReplayDriver<'r>>,
    pub time: &'s mut f64,
    pub ticks: f64,
    pub last_failure: &'s mut Option<(u64, NotCounted)>,
    pub diverged: &'s mut Option<Diverged>,
    pub trains_network: bool,
    /// True if no final heads are fitted.
    pub ends_after_training: bool,
    /// True if devices are sent the acknowledgements of counted updates at once.
    pub sends_acknowledgements: bool,
    pub actions: &'s mut Vec<Action>,
}

impl Delivery<'_, '_> {
    /// Delivers the messages of a device to the engine, or reports its dropout.
    pub fn deliver(&mut self, index: usize, pending_answer: &PendingAnswer, device: Option<&mut SimDevice>) {
        *self.time = pending_answer.at.max(*self.time);
        let id = index as u64;
        if pending_answer.dropped_out {
            let decline = Decline { id: pending_answer.id, reason: DeclineReason::Device };
            self.handle(Event::Declined(DeviceId(id), decline));
            return;
        }
        let Some(device) = device else { return };
        for inbound in device.inbox.drain(..) {
            let event = match inbound {
                PeerMessage::Update(update) => Event::Update(DeviceId(id), update),
                PeerMessage::UnreadUpdate(round) => Event::Unread(DeviceId(id), round),
                PeerMessage::Decline(decline) => {
                    if decline.reason == DeclineReason::UpdateNonFinite && self.trains_network {
                        record_divergence(self.diverged, self.engine, id, decline.id.round);
                    }
                    *self.last_failure = Some((id, NotCounted::Declined(decline.reason)));
                    Event::Declined(DeviceId(id), decline)
                }
                _ => continue,
            };
            if let Some(update) = self.handle(event) {
                device.connection.reuse(update);
            }
        }
        if let Some(acknowledgement) = self.take_acknowledgement(id) {
            device.connection.send(ToDevice::Ack(acknowledgement));
        }
    }

    /// Takes the acknowledgement of a counted update, if it is all that the engine asks for since the delivery began and the caller
    /// processes the frames of devices. All other acknowledgements are sent with the other actions.
    fn take_acknowledgement(&mut self, device: u64) -> Option<Ack> {
        match self.actions.last() {
            Some(&Action::Acknowledge(DeviceId(id), ack))
                if self.sends_acknowledgements && id == device && ack.outcome == AckOutcome::Counted =>
            {
                self.actions.pop();
                Some(ack)
            }
            _ => None,
        }
    }

    /// Passes one event to the engine at the current time. Returns an update whose memory may be used again.
    fn handle(&mut self, event: Event) -> Option<Update> {
        let now = ticks(*self.time, self.ticks);
        match &mut self.replay {
            Some(replay) => replay.handle(self.engine, now, event, self.actions),
            None => {
                let mut effects = Reusing {
                    actions: self.actions,
                    ends_after_training: self.ends_after_training,
                    spent: None,
                };
                self.engine.handle(now, event, &mut effects);
                return effects.spent;
            }
        }
        None
    }
}

/// Records that the training of a network diverged on a client, which ends training.
pub(super) fn record_divergence(diverged: &mut Option<Diverged>, engine: &Engine, client: u64, round: u32) {
    if matches!(engine.phase(), Phase::Train(_)) {
        diverged.get_or_insert(Diverged { client, round });
    }
}

/// Keeps the actions, and the update of the event for reuse.
struct Reusing<'s> {
    actions: &'s mut Vec<Action>,
    ends_after_training: bool,
    spent: Option<Update>,
}

impl Effects for Reusing<'_> {
    fn act(&mut self, action: Action) {
        let fits_head = |round: &RoundBroadcast| matches!(round.request.task, Task::FitHead { .. });
        match &action {
            // All devices would be invited at once, which takes memory.
            Action::Open(_, round) if self.ends_after_training && fits_head(round) => {}
            _ => self.actions.push(action),
        }
    }

    fn reuse(&mut self, update: Update) {
        self.spent = Some(update);
    }
}
