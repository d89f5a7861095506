//! What the device remembers of its conversation with the server, whatever its task and its samples are.

use fedspan_protocol::assembly::Assembly;
use fedspan_protocol::message::{
    Ack, AckOutcome, Decline, DeclineReason, Descriptors, Fault, Missing, Refusal, RoundId, ToDevice,
};

use super::clock::{RECONNECT_LONGEST, SLOTS};
use super::vocabulary::count;
use super::{Config, Counters};
use crate::store::Loaded;
use crate::task::Usage;
use crate::time::Millis;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Offline,
    Greeting {
        said: bool,
    },
    Idle,
    Receiving {
        ask: bool,
    },
    Collecting,
    /// The update is computed, and leaves when the device may speak again.
    AwaitingSlot,
    Sending {
        next: Outgoing,
    },
    AwaitingAck,
}

/// Position in the outgoing update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    Head,
    Chunk { tensor: u8, index: u16 },
}

#[derive(Clone, Debug)]
pub struct Conversation {
    pub state: State,
    /// When something is done about a state that lasts: connect, greet, ask or send again.
    pub due: Millis,
    /// The open round, or the last one that was computed.
    pub round: RoundId,
    pub assembly: Assembly,
    pub upload: Descriptors,
    pub usage: Usage,
    /// What the round's update costs of the privacy budget.
    pub cost: u64,
    /// The update is paid for, and nothing of it has left.
    pub unsent: bool,
    /// The last round that was paid for, and what is answered where it is opened again and there is no update of it to
    /// send: that it was declined outlives the link.
    pub paid: Option<Decline>,
    /// The last record could not be written.
    pub unsaved: bool,
    /// The update in the task's buffers belongs to `round` and may be sent (again).
    pub update_ready: bool,
    pub decline: Option<Decline>,
    pub resend: Option<Missing>,
    pub campaign: u64,
    pub last_round: u32,
    /// The last round of whose update something has left, finished or not.
    pub released: u32,
    /// The server must hear that the device has the key.
    pub confirm: bool,
    /// The next hello begins a new handshake.
    pub anew: bool,
    /// Silence after which the device says that it is still there.
    pub alive_every: Millis,
    pub last_sent: Millis,
    /// When the server said welcome.
    pub welcomed: Millis,
    /// Attempts to connect since a server said welcome.
    pub attempts: u32,
    pub close: bool,
    /// How long nothing is said after the beginning of a computation; 0 where nothing is private.
    pub slot: Millis,
    /// The slot of the last computation: nothing leaves before, and what comes before is lost.
    pub quiet_until: Millis,
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

impl Conversation {
    /// Offline, after what was stored. `slot` is the task's.
    pub fn new(loaded: Loaded, config: &Config, slot: Millis) -> Self {
        Self {
            state: State::Offline,
            due: Millis::ZERO,
            round: RoundId::default(),
            assembly: Assembly::nothing(),
            upload: Descriptors::new(),
            usage: Usage::default(),
            cost: 0,
            unsent: false,
            paid: None,
            unsaved: false,
            update_ready: false,
            decline: None,
            resend: None,
            campaign: loaded.campaign,
            last_round: loaded.round,
            released: loaded.round,
            confirm: false,
            anew: false,
            alive_every: Millis::MAX,
            last_sent: Millis::ZERO,
            welcomed: Millis::ZERO,
            attempts: 0,
            close: false,
            slot: if SLOTS { slot } else { Millis::ZERO },
            quiet_until: Millis::ZERO,
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
    pub fn enter(&mut self, state: State) {
        self.enter_until(Millis::MAX, state);
    }

    pub fn enter_until(&mut self, due: Millis, state: State) {
        self.due = due;
        self.state = state;
    }

    /// A server has said welcome.
    pub fn is_welcome(&self) -> bool {
        !matches!(self.state, State::Offline | State::Greeting { .. })
    }

    /// Takes a message that is not for the task.
    pub fn hear(&mut self, now: Millis, message: &ToDevice) {
        match (message, self.state) {
            (ToDevice::Welcome(welcome), State::Greeting { .. }) => {
                if welcome.campaign != self.campaign {
                    self.campaign = welcome.campaign;
                    (self.last_round, self.released) = (0, 0);
                    self.paid = None;
                    self.drop_update();
                    self.fitted = false;
                }
                self.welcome(now, welcome.idle_milliseconds);
            }
            (ToDevice::Refused(refusal), State::Greeting { .. }) => {
                self.refusal = Some(*refusal);
                self.close = true;
            }
            (ToDevice::RetryAfter { milliseconds }, _) => {
                self.enter_until(now + Millis::from(*milliseconds), State::Offline);
                self.close = true;
            }
            (_, State::Offline | State::Greeting { .. }) => self.unexpected(),
            (ToDevice::Missing(missing), State::AwaitingAck | State::Sending { .. })
                if missing.id == self.round =>
            {
                self.resend = Some(missing.clone());
            }
            (ToDevice::Ack(ack), _) => self.acknowledged(ack),
            (ToDevice::RoundClosed(id), _) => self.round_closed(*id),
            (ToDevice::Fault(Fault::Greet), _) => self.greet_again(),
            // Among them a chunk of a round that is not being received: left over from before a reconnect.
            _ => self.unexpected(),
        }
    }

    /// Takes a message that anybody may have sent.
    pub fn hear_unsealed(&mut self, now: Millis, message: &ToDevice) {
        match (message, self.state) {
            (ToDevice::Refused(_), State::Greeting { .. }) => self.close = true,
            (ToDevice::RetryAfter { milliseconds }, State::Greeting { .. }) => {
                let delay = (*milliseconds).min(RECONNECT_LONGEST);
                self.enter_until(now + Millis::from(delay), State::Offline);
                self.close = true;
            }
            (ToDevice::Fault(Fault::Greet), _) if self.may_greet(now) => self.greet_again(),
            _ => {}
        }
    }

    /// The server has restarted behind a link that stayed up. An update that is ready still is.
    fn greet_again(&mut self) {
        count(&mut self.counters.greeted_again);
        self.decline = None;
        self.resend = None;
        self.confirm = false;
        self.anew = true;
        self.enter(State::Greeting { said: false });
    }

    fn acknowledged(&mut self, ack: &Ack) {
        let waiting = matches!(self.state, State::AwaitingAck | State::Sending { .. });
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

    fn round_closed(&mut self, id: RoundId) {
        let working = !matches!(self.state, State::Idle);
        if working && id == self.round {
            count(&mut self.counters.closed);
            self.finish_round();
        }
    }

    fn finish_round(&mut self) {
        self.last_round = self.round.round;
        self.drop_update();
        self.enter(State::Idle);
    }

    /// The update in the task's buffers is not sent any more.
    pub fn drop_update(&mut self) {
        self.update_ready = false;
        self.resend = None;
        if core::mem::take(&mut self.unsent) {
            count(&mut self.counters.forfeited);
        }
    }

    /// Begins to send the update: at its slot if it was computed just now, or when somebody asks for it after that.
    pub fn send_update(&mut self) {
        if SLOTS && self.computing {
            self.enter_until(self.quiet_until, State::AwaitingSlot);
        } else {
            self.enter(State::Sending { next: Outgoing::Head });
        }
    }

    #[cold]
    pub fn decline_round(&mut self, id: RoundId, reason: DeclineReason) {
        count(&mut self.counters.declined);
        self.decline = Some(Decline { id, reason });
        if let Some(paid) = self.paid.as_mut().filter(|paid| SLOTS && paid.id == id) {
            paid.reason = reason;
        }
        if id == self.round {
            self.drop_update();
            self.enter(State::Idle);
        }
    }

    pub fn unexpected(&mut self) {
        count(&mut self.counters.unexpected);
    }
}
