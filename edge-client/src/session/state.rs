//! What the device remembers of its conversation with the server, whatever its task and its samples are.

use fedspan_protocol::assembly::Assembly;
use fedspan_protocol::message::{
    Ack, AckOutcome, Decline, DeclineReason, Descriptors, Fault, Missing, Refusal, RoundId, ToDevice,
};

use super::counters::count;
use super::timing::{RECONNECT_MAX, SLOTS_ENABLED};
use super::{Config, Counters};
use crate::store::RecordHeader;
use crate::task::Usage;
use crate::time::Millis;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Offline,
    Greeting {
        hello_sent: bool,
    },
    Idle,
    Receiving {
        ask_missing: bool,
    },
    Collecting,
    /// The update is computed, and leaves when the device may speak again.
    AwaitingSlot,
    Sending {
        next: UploadCursor,
    },
    AwaitingAck,
}

/// Position in the outgoing update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadCursor {
    Update,
    Chunk { tensor: u8, index: u16 },
}

#[derive(Clone, Debug)]
pub struct SessionState {
    pub phase: Phase,
    /// When something is done about a state that lasts: connect, greet, ask or send again.
    pub timeout_at: Millis,
    /// The open round, or the last one that was computed.
    pub round: RoundId,
    pub assembly: Assembly,
    pub upload: Descriptors,
    pub usage: Usage,
    /// What the round's update costs of the privacy budget.
    pub cost: u64,
    /// The update is paid for, and nothing of it has left.
    pub charged_unsent: bool,
    /// The last round that was paid for, and what is answered where it is opened again and there is no update of it to
    /// send: that it was declined outlives the link.
    pub charged_round: Option<Decline>,
    /// The last record could not be written.
    pub save_failed: bool,
    /// The update in the task's buffers belongs to `round` and may be sent (again).
    pub update_ready: bool,
    pub decline: Option<Decline>,
    pub resend: Option<Missing>,
    pub campaign: u64,
    pub last_round: u32,
    /// The last round of whose update something has left, finished or not.
    pub last_sent_round: u32,
    /// The server must hear that the device has the key.
    pub send_key_proof: bool,
    /// The next hello begins a new handshake.
    pub rehandshake: bool,
    /// Silence after which the device says that it is still there.
    pub alive_interval: Millis,
    pub last_sent_at: Millis,
    /// When the server said welcome.
    pub welcomed_at: Millis,
    /// Attempts to connect since a server said welcome.
    pub connect_attempts: u32,
    pub close: bool,
    /// How long nothing is said after the beginning of a computation; 0 where nothing is private.
    pub slot: Millis,
    /// The slot of the last computation: nothing leaves before, and what comes before is lost.
    pub silent_until: Millis,
    /// A round was computed, and how late it is is not known yet.
    pub computing: bool,
    /// Closes the link once the final head is fitted and acknowledged.
    pub leave_when_fitted: bool,
    /// The open round fits the final head.
    pub fitting: bool,
    pub fitted: bool,
    pub refusal: Option<Refusal>,
    pub counters: Counters,
}

impl SessionState {
    /// Offline, after what was stored. `slot` is the task's.
    pub fn new(loaded: RecordHeader, config: &Config, slot: Millis) -> Self {
        Self {
            phase: Phase::Offline,
            timeout_at: Millis::ZERO,
            round: RoundId::default(),
            assembly: Assembly::nothing(),
            upload: Descriptors::new(),
            usage: Usage::default(),
            cost: 0,
            charged_unsent: false,
            charged_round: None,
            save_failed: false,
            update_ready: false,
            decline: None,
            resend: None,
            campaign: loaded.campaign,
            last_round: loaded.round,
            last_sent_round: loaded.round,
            send_key_proof: false,
            rehandshake: false,
            alive_interval: Millis::MAX,
            last_sent_at: Millis::ZERO,
            welcomed_at: Millis::ZERO,
            connect_attempts: 0,
            close: false,
            slot: if SLOTS_ENABLED { slot } else { Millis::ZERO },
            silent_until: Millis::ZERO,
            computing: false,
            leave_when_fitted: config.leave_when_fitted,
            fitting: false,
            fitted: false,
            refusal: None,
            counters: Counters::default(),
        }
    }

    /// A state that lasts until something happens.
    // Two words of time and the state, in many places.
    #[inline(never)]
    pub fn enter(&mut self, phase: Phase) {
        self.enter_until(Millis::MAX, phase);
    }

    pub fn enter_until(&mut self, timeout_at: Millis, phase: Phase) {
        self.timeout_at = timeout_at;
        self.phase = phase;
    }

    /// A server has said welcome.
    pub fn is_established(&self) -> bool {
        !matches!(self.phase, Phase::Offline | Phase::Greeting { .. })
    }

    /// Takes a message that is not for the task.
    pub fn handle_control_message(&mut self, now: Millis, message: &ToDevice) {
        match (message, self.phase) {
            (ToDevice::Welcome(welcome), Phase::Greeting { .. }) => {
                if welcome.campaign != self.campaign {
                    self.campaign = welcome.campaign;
                    (self.last_round, self.last_sent_round) = (0, 0);
                    self.charged_round = None;
                    self.drop_update();
                    self.fitted = false;
                }
                self.welcomed(now, welcome.idle_milliseconds);
            }
            (ToDevice::Refused(refusal), Phase::Greeting { .. }) => {
                self.refusal = Some(*refusal);
                self.close = true;
            }
            (ToDevice::RetryAfter { milliseconds }, _) => {
                self.enter_until(now + Millis::from(*milliseconds), Phase::Offline);
                self.close = true;
            }
            (_, Phase::Offline | Phase::Greeting { .. }) => self.unexpected(),
            (ToDevice::Missing(missing), Phase::AwaitingAck | Phase::Sending { .. })
                if missing.id == self.round =>
            {
                self.resend = Some(missing.clone());
            }
            (ToDevice::Ack(ack), _) => self.handle_ack(ack),
            (ToDevice::RoundClosed(id), _) => self.handle_round_closed(*id),
            (ToDevice::Fault(Fault::Greet), _) => self.restart_handshake(),
            // Among them a chunk of a round that is not being received: left over from before a reconnect.
            _ => self.unexpected(),
        }
    }

    /// Takes a message that anybody may have sent.
    pub fn handle_unauthenticated(&mut self, now: Millis, message: &ToDevice) {
        match (message, self.phase) {
            (ToDevice::Refused(_), Phase::Greeting { .. }) => self.close = true,
            (ToDevice::RetryAfter { milliseconds }, Phase::Greeting { .. }) => {
                let delay = (*milliseconds).min(RECONNECT_MAX);
                self.enter_until(now + Millis::from(delay), Phase::Offline);
                self.close = true;
            }
            (ToDevice::Fault(Fault::Greet), _) if self.may_rehandshake(now) => self.restart_handshake(),
            _ => {}
        }
    }

    /// The server has restarted behind a link that stayed up. An update that is ready still is.
    fn restart_handshake(&mut self) {
        count(&mut self.counters.rehandshakes);
        self.decline = None;
        self.resend = None;
        self.send_key_proof = false;
        self.rehandshake = true;
        self.enter(Phase::Greeting { hello_sent: false });
    }

    fn handle_ack(&mut self, ack: &Ack) {
        let waiting = matches!(self.phase, Phase::AwaitingAck | Phase::Sending { .. });
        if !waiting || ack.id != self.round {
            return self.unexpected();
        }
        let counter = match ack.outcome {
            AckOutcome::Counted | AckOutcome::Duplicate => {
                self.fitted |= self.fitting;
                self.close |= self.fitting && self.leave_when_fitted;
                &mut self.counters.counted
            }
            AckOutcome::Late => &mut self.counters.late,
            _ => &mut self.counters.rejected,
        };
        count(counter);
        self.finish_round();
    }

    fn handle_round_closed(&mut self, id: RoundId) {
        let working = !matches!(self.phase, Phase::Idle);
        if working && id == self.round {
            count(&mut self.counters.closed);
            self.finish_round();
        }
    }

    fn finish_round(&mut self) {
        self.last_round = self.round.round;
        self.drop_update();
        self.enter(Phase::Idle);
    }

    /// The update in the task's buffers is not sent any more.
    pub fn drop_update(&mut self) {
        self.update_ready = false;
        self.resend = None;
        if core::mem::take(&mut self.charged_unsent) {
            count(&mut self.counters.forfeited);
        }
    }

    /// Begins to send the update: at its slot if it was computed just now, or when somebody asks for it after that.
    pub fn send_update(&mut self) {
        if SLOTS_ENABLED && self.computing {
            self.enter_until(self.silent_until, Phase::AwaitingSlot);
        } else {
            self.enter(Phase::Sending { next: UploadCursor::Update });
        }
    }

    #[cold]
    pub fn decline_round(&mut self, id: RoundId, reason: DeclineReason) {
        count(&mut self.counters.declined);
        self.decline = Some(Decline { id, reason });
        if let Some(charged_round) =
            self.charged_round.as_mut().filter(|charged_round| SLOTS_ENABLED && charged_round.id == id)
        {
            charged_round.reason = reason;
        }
        if id == self.round {
            self.drop_update();
            self.enter(Phase::Idle);
        }
    }

    pub fn unexpected(&mut self) {
        count(&mut self.counters.unexpected);
    }
}
