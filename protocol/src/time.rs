//! Time type of clients and servers: [`Millis`].

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

use serde::{Deserialize, Serialize};

/// Time in milliseconds: a point in time on a monotonic clock with any origin, or a duration.
///
/// `+` and `-` saturate: a wake-up time of [`Millis::MAX`] is never reached, and the duration to a point in
/// the past is [`Millis::ZERO`].
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(u64);

impl Millis {
    /// Origin of the clock, or a duration of zero.
    pub const ZERO: Self = Self(0);
    /// Point in time that is never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a time from a number of milliseconds.
    #[must_use]
    pub const fn new(milliseconds: u64) -> Self {
        Self(milliseconds)
    }

    /// Returns the number of milliseconds.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns true for [`Millis::ZERO`].
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<u32> for Millis {
    fn from(milliseconds: u32) -> Self {
        Self(milliseconds.into())
    }
}

impl From<u64> for Millis {
    fn from(milliseconds: u64) -> Self {
        Self(milliseconds)
    }
}

/// Converts to whole milliseconds. Longer durations than [`Millis::MAX`] become [`Millis::MAX`].
impl From<Duration> for Millis {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Add for Millis {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Millis {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Millis {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Formats the number of milliseconds, without a unit.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Formats the number of milliseconds, without a unit.
impl fmt::Debug for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
