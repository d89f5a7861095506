//! The session's clock: when it asks again, sends again, reconnects, and wakes.

use rand_core::Rng;

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
        match self.state {
            // The server said when, or `tick` has scheduled the next attempt.
            State::Offline { retry } if retry > now => {}
            _ => self.schedule_attempt(now),
        }
    }

    fn schedule_attempt(&mut self, now: Millis) {
        let retry = now.saturating_add(self.reconnect_delay());
        self.state = State::Offline { retry };
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
        match self.state {
            State::Offline { retry } if now >= retry => self.schedule_attempt(now),
            State::Greeting { hello_at: Some(at) } if now >= at.saturating_add(ASK_AGAIN) => {
                self.state = State::Greeting { hello_at: None };
            }
            State::Receiving { since, .. } if now >= since.saturating_add(ASK_AGAIN) => {
                self.counters.asked_again = self.counters.asked_again.saturating_add(1);
                self.state = State::Receiving { since: now, ask: true };
            }
            State::AwaitingAck { since } if now >= since.saturating_add(RESEND_AFTER) => {
                self.state = State::Sending { next: Outgoing::Head };
            }
            _ => {}
        }
    }

    pub(super) fn has_more(&self) -> bool {
        match self.state {
            State::Offline { .. } => false,
            _ if self.close => false,
            State::Greeting { hello_at } => hello_at.is_none(),
            State::Sending { .. } | State::Receiving { ask: true, .. } => true,
            _ => self.decline.is_some() || self.resend.is_some(),
        }
    }

    pub(super) fn wake(&self) -> Millis {
        match self.state {
            State::Offline { retry } => retry,
            State::Greeting { hello_at } => hello_at.unwrap_or(0).saturating_add(ASK_AGAIN),
            State::Receiving { since, .. } => since.saturating_add(ASK_AGAIN).min(self.alive_at()),
            State::AwaitingAck { since } => since.saturating_add(RESEND_AFTER).min(self.alive_at()),
            _ => self.alive_at(),
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
