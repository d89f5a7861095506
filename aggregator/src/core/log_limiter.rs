//! Log rate limiter: at most [`LINES`] lines of each kind in a time window, followed by the number of
//! suppressed lines. The limit is needed because peers can cause any number of log lines. The counters of the
//! status include suppressed events.

use std::fmt;

use fedspan_engine::Millis;

/// Largest number of lines of one kind per window: enough to identify the peers.
const LINES: u32 = 20;

/// Length of a window, in ms.
const WINDOW: Millis = Millis::new(60_000);

/// Kind of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogKind {
    Joined,
    Left,
    Refused,
    NoKey,
    TurnedAway,
    Declined,
    Rejected,
    CutOff,
    AcceptFailed,
    NoRidgeChoice,
    NotAwaited,
    Awaited,
    Reported,
}

impl LogKind {
    const ALL: [Self; 13] = [
        Self::Joined,
        Self::Left,
        Self::Refused,
        Self::NoKey,
        Self::TurnedAway,
        Self::Declined,
        Self::Rejected,
        Self::CutOff,
        Self::AcceptFailed,
        Self::NoRidgeChoice,
        Self::NotAwaited,
        Self::Awaited,
        Self::Reported,
    ];
}

impl fmt::Display for LogKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reported => "device reports",
            Self::Joined => "device joined",
            Self::Left => "device left",
            Self::Refused => "device refused",
            Self::NoKey => "connection ended before a device proved a key",
            Self::TurnedAway => "device turned away",
            Self::Declined => "round declined",
            Self::Rejected => "update rejected",
            Self::CutOff => "device cut off",
            Self::AcceptFailed => "accept failed",
            Self::NoRidgeChoice => "device cannot choose the ridge of its head",
            Self::NotAwaited => "device missed too many deadlines",
            Self::Awaited => "rounds wait for the device again",
        })
    }
}

/// Lines of one kind in the current window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    began: Millis,
    written: u32,
    suppressed: u64,
}

impl Window {
    /// Returns the time at which the window ends.
    fn end_time(&self) -> Millis {
        self.began + WINDOW
    }
}

/// Log rate limiter with a window per kind.
#[derive(Debug, Default)]
pub(super) struct LogRateLimiter([Window; LogKind::ALL.len()]);

impl LogRateLimiter {
    /// Returns true if a line may be logged now; otherwise counts the line as suppressed. Call
    /// [`Self::drain_expired`] first.
    #[must_use]
    pub(super) fn allow(&mut self, kind: LogKind, now: Millis) -> bool {
        let Some(window) = self.0.get_mut(kind as usize) else { return false };
        if window.written == 0 {
            window.began = now;
        }
        if window.written < LINES {
            window.written += 1;
            return true;
        }
        window.suppressed += 1;
        false
    }

    /// Ends expired windows. Returns the kinds of which lines were suppressed, with the number of suppressed
    /// lines.
    #[must_use]
    pub(super) fn drain_expired(&mut self, now: Millis) -> Vec<(LogKind, u64)> {
        let mut suppressed = Vec::new();
        for (window, kind) in self.0.iter_mut().zip(LogKind::ALL) {
            if window.written > 0 && now >= window.end_time() {
                suppressed.extend((window.suppressed > 0).then_some((kind, window.suppressed)));
                *window = Window::default();
            }
        }
        suppressed
    }

    /// Returns the time at which the next summary of suppressed lines is due.
    #[must_use]
    pub(super) fn next_summary(&self) -> Option<Millis> {
        self.0.iter().filter(|window| window.suppressed > 0).map(Window::end_time).min()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_has_own_window() {
        for (index, kind) in LogKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        let mut limiter = LogRateLimiter::default();
        let now = Millis::new(1_000_000);
        assert_eq!((0..LINES + 7).filter(|_| limiter.allow(LogKind::Refused, now)).count(), LINES as usize);
        assert!(limiter.allow(LogKind::Declined, now + Millis::new(5)));
        assert_eq!(limiter.next_summary(), Some(now + WINDOW));
        assert_eq!(limiter.drain_expired(now + WINDOW - Millis::new(1)), []);
        assert_eq!(limiter.drain_expired(now + WINDOW), [(LogKind::Refused, 7)]);
        assert_eq!(
            (limiter.next_summary(), limiter.drain_expired(now + WINDOW + WINDOW)),
            (None, Vec::new())
        );
        assert!(limiter.allow(LogKind::Refused, now + WINDOW));
    }

    proptest! {
        /// Every line is either written or counted as suppressed, and no window exceeds its limit.
        #[test]
        fn lines_are_written_or_counted(steps in prop::collection::vec((0..8usize, 0..9000u64), 0..900)) {
            let mut limiter = LogRateLimiter::default();
            let mut now = 0;
            let mut written = 0;
            let mut suppressed = 0;
            let mut summaries = 0;
            let mut add_summaries = |expired: Vec<(LogKind, u64)>, suppressed: &mut u64| {
                summaries += expired.len();
                *suppressed += expired.iter().map(|(_, count)| count).sum::<u64>();
            };
            for (kind, pause) in &steps {
                now += if pause % 3 == 0 { *pause } else { 0 };
                add_summaries(limiter.drain_expired(Millis::new(now)), &mut suppressed);
                written += u64::from(limiter.allow(LogKind::ALL[*kind], Millis::new(now)));
                prop_assert!(limiter.next_summary().is_none_or(|due| due > Millis::new(now)));
            }
            add_summaries(limiter.drain_expired(Millis::MAX), &mut suppressed);
            prop_assert_eq!(written + suppressed, steps.len() as u64);
            let windows = now / WINDOW.as_u64() + 1;
            prop_assert!(written <= windows * u64::from(LINES) * LogKind::ALL.len() as u64);
            prop_assert!(summaries as u64 <= windows * LogKind::ALL.len() as u64);
        }
    }
}
