//! The session's clock: when it asks again, sends again, reconnects, and wakes.

use rand_core::Rng;

use super::vocabulary::count;
use super::{Millis, Outgoing, Session, State};
use crate::source::SampleSource;
use crate::store::Store;
use crate::task::Task;

/// Silence after hello, or between chunks, after which the device asks again.
const ASK_AGAIN: Millis = 2_000;
/// Silence after an update before it is sent again.
const RESEND_AFTER: Millis = 10_000;
/// Shortest time between two signs of life, however short the server's idle limit is.
const ALIVE_LEAST: u32 = 100;
/// Reconnect delays: the first, and the longest, in milliseconds.
const RECONNECT_FIRST: u32 = 500;
const RECONNECT_LONGEST: u32 = 60_000;
/// Doublings after which a delay is the longest.
const RECONNECT_DOUBLINGS: u32 = 7;

impl<T: Task, S: SampleSource, P: Store, R: Rng> Session<T, S, P, R> {
    pub(super) fn link_down(&mut self, now: Millis) {
        self.close = false;
        self.decline = None;
        self.resend = None;
        // Unless the server said when, or `tick` has scheduled the next attempt.
        if self.state != State::Offline || self.due <= now {
            self.schedule_attempt(now);
        }
    }

    fn schedule_attempt(&mut self, now: Millis) {
        let retry = now.saturating_add(self.reconnect_delay());
        self.enter_until(retry, State::Offline);
    }

    /// Doubles from attempt to attempt, until a server says welcome; the upper half is random, so that a
    /// fleet does not come back at once.
    fn reconnect_delay(&mut self) -> Millis {
        let ceiling = (RECONNECT_FIRST << self.attempts.min(RECONNECT_DOUBLINGS)).min(RECONNECT_LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        let half = ceiling / 2;
        // A fraction of 2^32: a small core divides 64 bits in a kilobyte of code.
        Millis::from(half) + (Millis::from(self.random.next_u32()) * Millis::from(half) >> 32)
    }

    pub(super) fn tick(&mut self, now: Millis) {
        if now < self.due {
            return;
        }
        match self.state {
            State::Offline => self.schedule_attempt(now),
            State::Greeting { .. } => self.enter(State::Greeting { said: false }),
            State::Receiving { .. } => {
                count(&mut self.counters.asked_again);
                self.receive(now, true);
            }
            State::AwaitingAck => self.enter(State::Sending { next: Outgoing::Head }),
            State::Idle | State::Collecting | State::Sending { .. } => {}
        }
    }

    /// Hello is out.
    pub(super) fn greeted(&mut self, now: Millis) {
        self.enter_until(now.saturating_add(ASK_AGAIN), State::Greeting { said: true });
    }

    /// Waits for chunks, after those that have come; `ask`: after asking for them.
    pub(super) fn receive(&mut self, now: Millis, ask: bool) {
        self.enter_until(now.saturating_add(ASK_AGAIN), State::Receiving { ask });
    }

    /// The whole update is out.
    pub(super) fn await_ack(&mut self, now: Millis) {
        self.enter_until(now.saturating_add(RESEND_AFTER), State::AwaitingAck);
    }

    pub(super) fn has_more(&self) -> bool {
        match self.state {
            State::Offline => false,
            _ if self.close => false,
            State::Greeting { said } => !said,
            State::Sending { .. } | State::Receiving { ask: true } => true,
            _ => self.decline.is_some() || self.resend.is_some(),
        }
    }

    pub(super) fn wake(&self) -> Millis {
        match self.state {
            State::Offline | State::Greeting { .. } => self.due,
            _ => self.due.min(self.alive_at()),
        }
    }

    /// Three signs of life fit the server's patience.
    pub(super) fn alive_every(idle_milliseconds: u32) -> Millis {
        (idle_milliseconds / 3).max(ALIVE_LEAST).into()
    }

    pub(super) fn alive_at(&self) -> Millis {
        self.last_sent.saturating_add(self.alive_every)
    }
}
