//! How much the log says about peers, of which there may be any number, each as often as it likes: the first few lines
//! of a kind in a window of time, and after it how many were left out. Counters count all of them.

use std::fmt;

use fedspan_engine::Millis;

/// Lines of one kind in a window: enough to see who it is.
const LINES: u32 = 20;

/// How long a window is.
const WINDOW: Millis = 60_000;

/// What lines are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Joined,
    Left,
    Refused,
    TurnedAway,
    Declined,
    Rejected,
    CutOff,
    AcceptFailed,
    Unchosen,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Joined,
        Self::Left,
        Self::Refused,
        Self::TurnedAway,
        Self::Declined,
        Self::Rejected,
        Self::CutOff,
        Self::AcceptFailed,
        Self::Unchosen,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Joined => "joined",
            Self::Left => "left",
            Self::Refused => "refused",
            Self::TurnedAway => "turned away",
            Self::Declined => "declined",
            Self::Rejected => "update rejected",
            Self::CutOff => "cut off",
            Self::AcceptFailed => "accept failed",
            Self::Unchosen => "does not choose the ridge of its head",
        })
    }
}

/// Lines of one kind since its window began.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    began: Millis,
    written: u32,
    left_out: u64,
}

impl Window {
    fn end(&self) -> Millis {
        self.began.saturating_add(WINDOW)
    }
}

/// Which lines are written, and how many are not.
#[derive(Debug, Default)]
pub(super) struct Throttle([Window; Kind::ALL.len()]);

impl Throttle {
    /// Whether a line is written now; it is counted otherwise. [`Self::over`] first.
    #[must_use]
    pub(super) fn admits(&mut self, kind: Kind, now: Millis) -> bool {
        let Some(window) = self.0.get_mut(kind as usize) else { return false };
        if window.written == 0 {
            window.began = now;
        }
        if window.written < LINES {
            window.written += 1;
            return true;
        }
        window.left_out += 1;
        false
    }

    /// Ends the windows whose time is over, and says how many lines were left out in each, where any were.
    #[must_use]
    pub(super) fn over(&mut self, now: Millis) -> Vec<(Kind, u64)> {
        let mut left_out = Vec::new();
        for (window, kind) in self.0.iter_mut().zip(Kind::ALL) {
            if window.written > 0 && now >= window.end() {
                left_out.extend((window.left_out > 0).then_some((kind, window.left_out)));
                *window = Window::default();
            }
        }
        left_out
    }

    /// When there will be something to say that nothing else will bring up.
    #[must_use]
    pub(super) fn due(&self) -> Option<Millis> {
        self.0.iter().filter(|window| window.left_out > 0).map(Window::end).min()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_has_its_own_window() {
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        let mut throttle = Throttle::default();
        let now = 1_000_000;
        assert_eq!((0..LINES + 7).filter(|_| throttle.admits(Kind::Refused, now)).count(), LINES as usize);
        assert!(throttle.admits(Kind::Declined, now + 5));
        assert_eq!(throttle.due(), Some(now + WINDOW));
        assert_eq!(throttle.over(now + WINDOW - 1), []);
        assert_eq!(throttle.over(now + WINDOW), [(Kind::Refused, 7)]);
        assert_eq!((throttle.due(), throttle.over(now + 2 * WINDOW)), (None, Vec::new()));
        assert!(throttle.admits(Kind::Refused, now + WINDOW));
    }

    proptest! {
        /// Every line is written or left out, and no window has more than it may.
        #[test]
        fn nothing_is_lost_and_the_log_grows_slowly(steps in prop::collection::vec((0..8usize, 0..9000u64), 0..900)) {
            let (mut throttle, mut now) = (Throttle::default(), 0);
            let (mut written, mut left_out, mut summaries) = (0, 0, 0);
            let mut sum = |over: Vec<(Kind, u64)>, left_out: &mut u64| {
                summaries += over.len();
                *left_out += over.iter().map(|(_, count)| count).sum::<u64>();
            };
            for (kind, pause) in &steps {
                now += if pause % 3 == 0 { *pause } else { 0 };
                sum(throttle.over(now), &mut left_out);
                written += u64::from(throttle.admits(Kind::ALL[*kind], now));
                prop_assert!(throttle.due().is_none_or(|due| due > now));
            }
            sum(throttle.over(Millis::MAX), &mut left_out);
            prop_assert_eq!(written + left_out, steps.len() as u64);
            let windows = now / WINDOW + 1;
            prop_assert!(written <= windows * u64::from(LINES) * Kind::ALL.len() as u64);
            prop_assert!(summaries as u64 <= windows * Kind::ALL.len() as u64);
        }
    }
}
