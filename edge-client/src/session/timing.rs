//! Timing of a session: retries, reconnects, keep-alive messages, response slots and wake-up times.

use super::counters::count;
use super::state::{Phase, SLOTS_ENABLED, SessionState, UploadCursor};
use super::{Progress, Timers};
use crate::time::Millis;

/// Shortest keep-alive interval, in milliseconds, for any idle limit of the server.
const ALIVE_INTERVAL_MIN: u32 = 100;
/// Number of rounds on a link after which a device reports again.
#[cfg(feature = "reports")]
const REPORT_ROUNDS: u32 = 64;
/// Largest number of messages in a row that a device which sleeps repeats without an answer. It then leaves the link, which may have no
/// end of its own, such as a radio's.
const REPEATS_MAX: u32 = 3;
/// Largest number of doublings of the reconnect delay, which then exceeds any maximum of 32 bits.
const RECONNECT_DOUBLINGS: u32 = 31;

/// Returns a time of [`Timers`], at least a millisecond.
pub fn after(milliseconds: u32) -> Millis {
    Millis::from(milliseconds.max(1))
}

impl SessionState {
    /// Starts a connection with a hello.
    pub fn link_up(&mut self) {
        self.enter(Phase::Greeting { hello_sent: false });
        self.close = false;
        self.send_key_proof = false;
        self.has_left = false;
        self.repeats = 0;
        self.rounds_on_link = 0;
        self.next_round_at = Millis::ZERO;
        #[cfg(feature = "reports")]
        {
            self.report_due = false;
        }
        #[cfg(feature = "beacons")]
        {
            self.announced = None;
        }
    }

    /// Ends the connection. Returns true if a reconnect must be scheduled, and false if the server or `tick`
    /// has already set its time.
    #[must_use]
    pub fn link_down(&mut self, now: Millis) -> bool {
        self.close = false;
        self.decline = None;
        self.resend = None;
        self.phase != Phase::Offline || self.timeout_at <= now
    }

    /// Schedules a reconnect. The delay doubles with each attempt until a Welcome arrives; the upper half of
    /// the delay is random.
    pub fn schedule_reconnect(&mut self, now: Millis, random: u32) {
        let Timers { reconnect, reconnect_max, .. } = self.timers;
        let delay = u64::from(reconnect) << self.connect_attempts.min(RECONNECT_DOUBLINGS);
        let ceiling = delay.min(reconnect_max.into());
        self.connect_attempts = self.connect_attempts.saturating_add(1);
        let half = ceiling / 2;
        // Multiplies by a fraction of 2^32 and shifts, because a 64-bit division takes a kilobyte of code on
        // a small core.
        let delay = half + ((half * u64::from(random)) >> 32);
        self.enter_until(now + Millis::new(delay.max(1)), Phase::Offline);
    }

    /// Acts on an expired timeout. Returns true if it is time to connect, or to leave a link on which the server does not answer; the
    /// caller must then schedule the next attempt.
    #[must_use]
    pub fn tick(&mut self, now: Millis) -> bool {
        if now < self.timeout_at {
            return false;
        }
        match self.phase {
            Phase::Offline => return true,
            Phase::Greeting { .. } => self.enter(Phase::Greeting { hello_sent: false }),
            Phase::Receiving { .. } => self.await_chunks(now, true),
            Phase::AwaitingAck | Phase::AwaitingSlot => {
                self.enter(Phase::Sending { next: UploadCursor::Update })
            }
            Phase::Idle | Phase::Collecting | Phase::Sending { .. } => return false,
        }
        // The end of a slot counts as one, too: the update follows, and its repetitions.
        count(&mut self.repeats);
        let leaves = self.repeats > REPEATS_MAX && self.sleep.is_some();
        if leaves {
            count(&mut self.counters.unasked);
            (self.close, self.has_left) = (true, true);
        }
        leaves
    }

    /// Starts the response slot of a private computation: the session is silent until the end of the slot.
    pub fn enter_silence(&mut self, now: Millis) {
        if SLOTS_ENABLED && !self.slot.is_zero() {
            self.silent_until = now + self.slot;
            self.computing = true;
        }
    }

    /// Checks the slot at the first event after a computation. If the computation took longer than the slot,
    /// counts a missed slot and waits for the end of the next slot.
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

    /// Returns true while the session neither sends nor processes messages.
    pub fn is_silent(&self, now: Millis) -> bool {
        SLOTS_ENABLED && now < self.silent_until
    }

    /// Waits for the Welcome after a hello.
    pub fn await_welcome(&mut self, now: Millis) {
        self.enter_until(now + after(self.timers.ask_again), Phase::Greeting { hello_sent: true });
    }

    /// Enters `Idle` after a Welcome. The keep-alive interval is a third of the server's idle limit.
    pub fn welcomed(&mut self, now: Millis, idle_milliseconds: u32) {
        self.alive_interval = (idle_milliseconds / 3).max(ALIVE_INTERVAL_MIN).into();
        self.connect_attempts = 0;
        self.last_sent_at = now;
        self.welcomed_at = now;
        self.idle_since = now;
        #[cfg(feature = "reports")]
        {
            self.report_due = self.reports;
        }
        self.enter(Phase::Idle);
    }

    /// Records that a round was answered or declined.
    pub fn round_ended(&mut self, now: Millis) {
        count(&mut self.rounds_on_link);
        self.idle_since = now;
        #[cfg(feature = "reports")]
        {
            self.report_due |= self.reports && self.rounds_on_link.is_multiple_of(REPORT_ROUNDS);
        }
    }

    /// Leaves a link on which nothing is left to do, if the device sleeps between rounds; see
    /// [`Sleep`](super::Sleep).
    pub fn leave_to_sleep(&mut self, now: Millis) {
        let Some(sleep) = self.sleep else { return };
        if self.phase != Phase::Idle || self.close || self.has_more_to_send() {
            return;
        }
        let wait_ends = self.idle_since + Millis::from(sleep.wait);
        // A lost beacon is followed by an opening for this device alone.
        #[cfg(feature = "beacons")]
        let wait_ends = match self.announced {
            Some(_) => wait_ends + after(self.timers.resend),
            None => wait_ends,
        };
        let is_named = now < self.next_round_at;
        let has_rounds = self.rounds_on_link >= sleep.rounds.max(1);
        if is_named || has_rounds || now >= wait_ends {
            if !is_named && !has_rounds {
                count(&mut self.counters.unasked);
            }
            let wakes_at = if is_named { self.next_round_at } else { now + Millis::from(sleep.time) };
            self.enter_until(wakes_at, Phase::Offline);
            (self.close, self.has_left) = (true, true);
        } else {
            self.timeout_at = wait_ends;
        }
    }

    /// Returns true if the session may obey an unauthenticated request for a new hello. The rate is limited,
    /// because each handshake uses a stored number, and storage has limited write endurance.
    pub fn may_rehandshake(&self, now: Millis) -> bool {
        self.is_established() && now >= self.welcomed_at + after(self.timers.ask_again)
    }

    /// Waits for chunks. If `ask_missing` is true, the session first requests the missing chunks.
    pub fn await_chunks(&mut self, now: Millis, ask_missing: bool) {
        self.enter_until(now + after(self.timers.ask_again), Phase::Receiving { ask_missing });
    }

    /// Waits for the acknowledgement of a complete update.
    pub fn await_ack(&mut self, now: Millis) {
        self.enter_until(now + after(self.timers.resend), Phase::AwaitingAck);
    }

    /// Returns the time of the next keep-alive message.
    pub fn alive_at(&self) -> Millis {
        self.last_sent_at + self.alive_interval
    }

    /// Returns the driver's next step after a frame of `sent` bytes.
    pub fn progress(&self, now: Millis, sent: usize) -> Progress {
        let wake = if self.is_established() { self.timeout_at.min(self.alive_at()) } else { self.timeout_at };
        if self.is_silent(now) {
            // During silence the link is not closed either. A lost link reconnects at its scheduled time,
            // which is later.
            let waits = self.close || self.phase != Phase::Offline;
            let wake = if waits { self.silent_until } else { wake };
            return Progress { sent, again: self.computing, close: false, wake };
        }
        Progress { sent, again: self.has_more_to_send(), close: self.close, wake }
    }

    /// Returns true if another frame can be sent immediately.
    fn has_more_to_send(&self) -> bool {
        match self.phase {
            Phase::Offline => false,
            _ if self.close => false,
            Phase::Greeting { hello_sent } => !hello_sent,
            Phase::Sending { .. } | Phase::Receiving { ask_missing: true } => true,
            #[cfg(feature = "reports")]
            _ if self.report_due => true,
            #[cfg(feature = "key-rotation")]
            _ if self.may_use_new_key() => true,
            _ => self.send_key_proof || self.decline.is_some() || self.resend.is_some(),
        }
    }
}

/// Returns the first time of `first + n slot` that has not passed. Computed by halving steps, because a
/// 64-bit division takes a kilobyte of code on a small core.
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
