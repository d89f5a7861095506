//! Timing of a session: retries, reconnects, keep-alive, response slots and wake-ups.

use super::Progress;
use super::counters::count;
use super::state::{Phase, RECONNECT_MAX, SLOTS_ENABLED, SessionState, UploadCursor};
use crate::time::Millis;

/// Time without progress after a hello, or between chunks, after which the session asks again.
const ASK_AGAIN_AFTER: Millis = Millis::new(2_000);
/// Time without an answer after which an update is sent again.
const RESEND_AFTER: Millis = Millis::new(10_000);
/// Shortest keep-alive interval, in ms, however short the server's idle limit is.
const ALIVE_INTERVAL_MIN: u32 = 100;
/// First reconnect delay, in ms. [`RECONNECT_MAX`] is the longest.
const RECONNECT_FIRST: u32 = 500;
/// Number of doublings after which the reconnect delay is at its maximum.
const RECONNECT_DOUBLINGS: u32 = 7;

impl SessionState {
    pub fn link_up(&mut self) {
        self.enter(Phase::Greeting { hello_sent: false });
        self.close = false;
        self.send_key_proof = false;
    }

    /// Ends the connection. True if a reconnect must be scheduled: not if the server has set its time, or
    /// `tick` has.
    #[must_use]
    pub fn link_down(&mut self, now: Millis) -> bool {
        self.close = false;
        self.decline = None;
        self.resend = None;
        self.phase != Phase::Offline || self.timeout_at <= now
    }

    /// Schedules a reconnect. The delay doubles with each attempt until a Welcome; its upper half is random.
    pub fn schedule_reconnect(&mut self, now: Millis, random: u32) {
        let ceiling = (RECONNECT_FIRST << self.connect_attempts.min(RECONNECT_DOUBLINGS)).min(RECONNECT_MAX);
        self.connect_attempts = self.connect_attempts.saturating_add(1);
        let half = u64::from(ceiling / 2);
        // Multiplies by a fraction of 2^32 and shifts: a 64-bit division takes a kilobyte of code on a small
        // core.
        let delay = half + ((half * u64::from(random)) >> 32);
        self.enter_until(now + Millis::new(delay), Phase::Offline);
    }

    /// Acts on an expired timeout. True if it is time to connect, and to schedule the attempt after that.
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

    /// Starts the response slot of a private computation: the session is silent until its end.
    pub fn enter_silence(&mut self, now: Millis) {
        if SLOTS_ENABLED && !self.slot.is_zero() {
            self.silent_until = now + self.slot;
            self.computing = true;
        }
    }

    /// Checks the slot at the first event after a computation. If the computation took longer than the slot,
    /// counts a missed slot and moves on to the next one.
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

    /// True while the session neither sends nor handles messages.
    pub fn is_silent(&self, now: Millis) -> bool {
        SLOTS_ENABLED && now < self.silent_until
    }

    /// Waits for the Welcome after a hello.
    pub fn await_welcome(&mut self, now: Millis) {
        self.enter_until(now + ASK_AGAIN_AFTER, Phase::Greeting { hello_sent: true });
    }

    /// Enters `Idle` after a Welcome. The keep-alive interval is a third of the server's idle limit.
    pub fn welcomed(&mut self, now: Millis, idle_milliseconds: u32) {
        self.alive_interval = (idle_milliseconds / 3).max(ALIVE_INTERVAL_MIN).into();
        self.connect_attempts = 0;
        self.last_sent_at = now;
        self.welcomed_at = now;
        self.enter(Phase::Idle);
    }

    /// True if an unauthenticated request for a new hello may be followed. The rate is limited, because each
    /// handshake uses up a stored number, and storage wears.
    pub fn may_rehandshake(&self, now: Millis) -> bool {
        self.is_established() && now >= self.welcomed_at + ASK_AGAIN_AFTER
    }

    /// Waits for chunks; `ask_missing` if the missing ones are to be requested first.
    pub fn await_chunks(&mut self, now: Millis, ask_missing: bool) {
        self.enter_until(now + ASK_AGAIN_AFTER, Phase::Receiving { ask_missing });
    }

    /// Waits for the acknowledgement of a complete update.
    pub fn await_ack(&mut self, now: Millis) {
        self.enter_until(now + RESEND_AFTER, Phase::AwaitingAck);
    }

    pub fn alive_at(&self) -> Millis {
        self.last_sent_at + self.alive_interval
    }

    /// The driver's next step, after a frame of `sent` bytes.
    pub fn progress(&self, now: Millis, sent: usize) -> Progress {
        let wake = if self.is_established() { self.timeout_at.min(self.alive_at()) } else { self.timeout_at };
        if self.is_silent(now) {
            // The link is not closed either. A link that is down reconnects at its own time, which is later.
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

/// The first time of `first + n slot` that has not passed. Halves steps: a 64-bit division takes a kilobyte
/// of code on a small core.
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
