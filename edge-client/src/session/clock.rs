//! The session's clock: when it asks again, sends again, reconnects, is quiet, and wakes.

use super::Progress;
use super::conversation::{Conversation, Outgoing, State};
use super::vocabulary::count;
use crate::time::Millis;

/// Whether there are tasks whose answers wait for a slot.
pub const SLOTS: bool = cfg!(feature = "privacy");

/// Silence after hello, or between chunks, after which the device asks again.
const ASK_AGAIN: Millis = Millis::new(2_000);
/// Silence after an update before it is sent again.
const RESEND_AFTER: Millis = Millis::new(10_000);
/// Shortest time between two signs of life, however short the server's idle limit is.
const ALIVE_LEAST: u32 = 100;
/// Reconnect delays: the first, and the longest, in milliseconds.
const RECONNECT_FIRST: u32 = 500;
pub const RECONNECT_LONGEST: u32 = 60_000;
/// Doublings after which a delay is the longest.
const RECONNECT_DOUBLINGS: u32 = 7;

impl Conversation {
    pub fn link_up(&mut self) {
        self.enter(State::Greeting { said: false });
        self.close = false;
        self.confirm = false;
    }

    /// True if an attempt to connect must be scheduled: unless the server said when, or `tick` has done it.
    #[must_use]
    pub fn link_down(&mut self, now: Millis) -> bool {
        self.close = false;
        self.decline = None;
        self.resend = None;
        self.state != State::Offline || self.due <= now
    }

    /// The delay doubles from attempt to attempt, until a server says welcome; the upper half is random.
    pub fn schedule_attempt(&mut self, now: Millis, random: u32) {
        let ceiling = (RECONNECT_FIRST << self.attempts.min(RECONNECT_DOUBLINGS)).min(RECONNECT_LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        let half = u64::from(ceiling / 2);
        // A fraction of 2^32: a small core divides 64 bits in a kilobyte of code.
        let delay = half + ((half * u64::from(random)) >> 32);
        self.enter_until(now + Millis::new(delay), State::Offline);
    }

    /// True if it is time to connect, and to schedule the attempt after that.
    #[must_use]
    pub fn tick(&mut self, now: Millis) -> bool {
        if now < self.due {
            return false;
        }
        match self.state {
            State::Offline => return true,
            State::Greeting { .. } => self.enter(State::Greeting { said: false }),
            State::Receiving { .. } => {
                count(&mut self.counters.asked_again);
                self.receive(now, true);
            }
            State::AwaitingAck | State::AwaitingSlot => self.enter(State::Sending { next: Outgoing::Head }),
            State::Idle | State::Collecting | State::Sending { .. } => {}
        }
        false
    }

    /// A computation begins whose duration nobody may learn: nothing is said until its slot.
    pub fn be_quiet(&mut self, now: Millis) {
        if SLOTS && !self.slot.is_zero() {
            self.quiet_until = now + self.slot;
            self.computing = true;
        }
    }

    /// The first time after a computation: only now is it known how long that took. A slot that is over is missed, and
    /// the next one is waited for.
    pub fn settle(&mut self, now: Millis) {
        if !SLOTS || !core::mem::take(&mut self.computing) || now <= self.quiet_until {
            return;
        }
        count(&mut self.counters.slots_missed);
        self.quiet_until = next_slot(self.quiet_until, self.slot, now);
        if self.state == State::AwaitingSlot {
            self.due = self.quiet_until;
        }
    }

    /// Nothing leaves now, and nothing is heard.
    pub fn is_quiet(&self, now: Millis) -> bool {
        SLOTS && now < self.quiet_until
    }

    /// Hello is out.
    pub fn greeted(&mut self, now: Millis) {
        self.enter_until(now + ASK_AGAIN, State::Greeting { said: true });
    }

    /// Hello was accepted. Three signs of life fit the server's patience.
    pub fn welcome(&mut self, now: Millis, idle_milliseconds: u32) {
        self.alive_every = (idle_milliseconds / 3).max(ALIVE_LEAST).into();
        self.attempts = 0;
        self.last_sent = now;
        self.welcomed = now;
        self.enter(State::Idle);
    }

    /// Whether a request for a new hello is followed that anybody may have sent: every handshake takes a number out
    /// of the storage, which wears.
    pub fn may_greet(&self, now: Millis) -> bool {
        self.is_welcome() && now >= self.welcomed + ASK_AGAIN
    }

    /// Waits for chunks, after those that have come; `ask`: after asking for them.
    pub fn receive(&mut self, now: Millis, ask: bool) {
        self.enter_until(now + ASK_AGAIN, State::Receiving { ask });
    }

    /// The whole update is out.
    pub fn await_ack(&mut self, now: Millis) {
        self.enter_until(now + RESEND_AFTER, State::AwaitingAck);
    }

    pub fn alive_at(&self) -> Millis {
        self.last_sent + self.alive_every
    }

    /// What the driver does next, having sent so many bytes.
    pub fn progress(&self, now: Millis, sent: usize) -> Progress {
        let wake = if self.is_welcome() { self.due.min(self.alive_at()) } else { self.due };
        if self.is_quiet(now) {
            // A link is not closed either. One that is gone comes back at its own time, which is later.
            let waits = self.close || self.state != State::Offline;
            let wake = if waits { self.quiet_until } else { wake };
            return Progress { sent, again: self.computing, close: false, wake };
        }
        Progress { sent, again: self.has_more(), close: self.close, wake }
    }

    fn has_more(&self) -> bool {
        match self.state {
            State::Offline => false,
            _ if self.close => false,
            State::Greeting { said } => !said,
            State::Sending { .. } | State::Receiving { ask: true } => true,
            _ => self.confirm || self.decline.is_some() || self.resend.is_some(),
        }
    }
}

/// The first time `first + n slot` that is not over. By halves: a small core divides 64 bits in a kilobyte of code.
fn next_slot(first: Millis, slot: Millis, now: Millis) -> Millis {
    let mut over = (now - first).as_u64();
    let slot = slot.as_u64();
    let mut step = slot;
    while step <= over >> 1 {
        step <<= 1;
    }
    while step >= slot && step > 0 {
        if over >= step {
            over -= step;
        }
        step >>= 1;
    }
    match over {
        0 => now.max(first),
        over => now + Millis::new(slot - over),
    }
}
