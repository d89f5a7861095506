//! The session's clock: when it asks again, sends again, reconnects, is quiet, and wakes.

use super::Progress;
use super::counters::count;
use super::state::{Phase, SessionState, UploadCursor};
use crate::time::Millis;

/// Whether there are tasks whose answers wait for a slot.
pub const SLOTS_ENABLED: bool = cfg!(feature = "privacy");

/// Silence after hello, or between chunks, after which the device asks again.
const ASK_AGAIN_AFTER: Millis = Millis::new(2_000);
/// Silence after an update before it is sent again.
const RESEND_AFTER: Millis = Millis::new(10_000);
/// Shortest time between two signs of life, however short the server's idle limit is.
const ALIVE_INTERVAL_MIN: u32 = 100;
/// Reconnect delays: the first, and the longest, in milliseconds.
const RECONNECT_FIRST: u32 = 500;
pub const RECONNECT_MAX: u32 = 60_000;
/// Doublings after which a delay is the longest.
const RECONNECT_DOUBLINGS: u32 = 7;

impl SessionState {
    pub fn link_up(&mut self) {
        self.enter(Phase::Greeting { hello_sent: false });
        self.close = false;
        self.send_key_proof = false;
    }

    /// True if an attempt to connect must be scheduled: unless the server said when, or `tick` has done it.
    #[must_use]
    pub fn link_down(&mut self, now: Millis) -> bool {
        self.close = false;
        self.decline = None;
        self.resend = None;
        self.phase != Phase::Offline || self.timeout_at <= now
    }

    /// The delay doubles from attempt to attempt, until a server says welcome; the upper half is random.
    pub fn schedule_reconnect(&mut self, now: Millis, random: u32) {
        let ceiling = (RECONNECT_FIRST << self.connect_attempts.min(RECONNECT_DOUBLINGS)).min(RECONNECT_MAX);
        self.connect_attempts = self.connect_attempts.saturating_add(1);
        let half = u64::from(ceiling / 2);
        // A fraction of 2^32: a small core divides 64 bits in a kilobyte of code.
        let delay = half + ((half * u64::from(random)) >> 32);
        self.enter_until(now + Millis::new(delay), Phase::Offline);
    }

    /// True if it is time to connect, and to schedule the attempt after that.
    #[must_use]
    pub fn tick(&mut self, now: Millis) -> bool {
        if now < self.timeout_at {
            return false;
        }
        match self.phase {
            Phase::Offline => return true,
            Phase::Greeting { .. } => self.enter(Phase::Greeting { hello_sent: false }),
            Phase::Receiving { .. } => {
                count(&mut self.counters.asked_again);
                self.await_chunks(now, true);
            }
            Phase::AwaitingAck | Phase::AwaitingSlot => {
                self.enter(Phase::Sending { next: UploadCursor::Update })
            }
            Phase::Idle | Phase::Collecting | Phase::Sending { .. } => {}
        }
        false
    }

    /// A computation begins whose duration nobody may learn: nothing is said until its slot.
    pub fn enter_silence(&mut self, now: Millis) {
        if SLOTS_ENABLED && !self.slot.is_zero() {
            self.silent_until = now + self.slot;
            self.computing = true;
        }
    }

    /// The first time after a computation: only now is it known how long that took. A slot that is over is missed, and
    /// the next one is waited for.
    pub fn check_slot(&mut self, now: Millis) {
        if !SLOTS_ENABLED || !core::mem::take(&mut self.computing) || now <= self.silent_until {
            return;
        }
        count(&mut self.counters.slots_missed);
        self.silent_until = next_slot(self.silent_until, self.slot, now);
        if self.phase == Phase::AwaitingSlot {
            self.timeout_at = self.silent_until;
        }
    }

    /// Nothing leaves now, and nothing is heard.
    pub fn is_silent(&self, now: Millis) -> bool {
        SLOTS_ENABLED && now < self.silent_until
    }

    /// Hello is out.
    pub fn await_welcome(&mut self, now: Millis) {
        self.enter_until(now + ASK_AGAIN_AFTER, Phase::Greeting { hello_sent: true });
    }

    /// Hello was accepted. Three signs of life fit the server's patience.
    pub fn welcomed(&mut self, now: Millis, idle_milliseconds: u32) {
        self.alive_interval = (idle_milliseconds / 3).max(ALIVE_INTERVAL_MIN).into();
        self.connect_attempts = 0;
        self.last_sent_at = now;
        self.welcomed_at = now;
        self.enter(Phase::Idle);
    }

    /// Whether a request for a new hello is followed that anybody may have sent: every handshake takes a number out
    /// of the storage, which wears.
    pub fn may_rehandshake(&self, now: Millis) -> bool {
        self.is_established() && now >= self.welcomed_at + ASK_AGAIN_AFTER
    }

    /// Waits for chunks, after those that have come; `ask`: after asking for them.
    pub fn await_chunks(&mut self, now: Millis, ask_missing: bool) {
        self.enter_until(now + ASK_AGAIN_AFTER, Phase::Receiving { ask_missing });
    }

    /// The whole update is out.
    pub fn await_ack(&mut self, now: Millis) {
        self.enter_until(now + RESEND_AFTER, Phase::AwaitingAck);
    }

    pub fn alive_at(&self) -> Millis {
        self.last_sent_at + self.alive_interval
    }

    /// What the driver does next, having sent so many bytes.
    pub fn progress(&self, now: Millis, sent: usize) -> Progress {
        let wake = if self.is_established() { self.timeout_at.min(self.alive_at()) } else { self.timeout_at };
        if self.is_silent(now) {
            // A link is not closed either. One that is gone comes back at its own time, which is later.
            let waits = self.close || self.phase != Phase::Offline;
            let wake = if waits { self.silent_until } else { wake };
            return Progress { sent, again: self.computing, close: false, wake };
        }
        Progress { sent, again: self.has_more_to_send(), close: self.close, wake }
    }

    fn has_more_to_send(&self) -> bool {
        match self.phase {
            Phase::Offline => false,
            _ if self.close => false,
            Phase::Greeting { hello_sent } => !hello_sent,
            Phase::Sending { .. } | Phase::Receiving { ask_missing: true } => true,
            _ => self.send_key_proof || self.decline.is_some() || self.resend.is_some(),
        }
    }
}

/// The first time `first + n slot` that is not over. By halves: a small core divides 64 bits in a kilobyte of code.
fn next_slot(first: Millis, slot: Millis, now: Millis) -> Millis {
    let mut elapsed = (now - first).as_u64();
    let slot = slot.as_u64();
    let mut step = slot;
    while step <= elapsed >> 1 {
        step <<= 1;
    }
    while step >= slot && step > 0 {
        if elapsed >= step {
            elapsed -= step;
        }
        step >>= 1;
    }
    match elapsed {
        0 => now.max(first),
        elapsed => now + Millis::new(slot - elapsed),
    }
}
