//! Waking periods of devices that disconnect between rounds, and warnings where `devices.absence` or `rounds.deadline`
//! is too short for them.

use std::collections::BTreeMap;
use std::time::Duration;

use fedspan_engine::{DeviceId, Millis};

/// Connections of one device.
#[derive(Clone, Copy, Debug, Default)]
struct Connections {
    joined_at: Millis,
    left_at: Option<Millis>,
    /// Time between the last two joins, and the part of it for which the device was away.
    last: Option<Away>,
}

/// Time between two joins of a device, and the part of it for which the device was disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Away {
    period: Millis,
    absent: Millis,
}

/// Settings that are too short for a device, each with the time of the device before it.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TooShort {
    /// Time for which the device is away, and `devices.absence`.
    pub absence: Option<(Millis, Millis)>,
    /// Period in which the device wakes, and `rounds.deadline`.
    pub deadline: Option<(Millis, Millis)>,
}

/// Observer of the times at which devices connect and disconnect.
#[derive(Debug)]
pub struct WakingPeriods {
    absence: Millis,
    deadline: Option<Millis>,
    devices: BTreeMap<DeviceId, Connections>,
    /// Longest regular period so far.
    longest: Option<Millis>,
    /// Longest times that were reported: of absence, and of period.
    reported: (Millis, Millis),
}

impl WakingPeriods {
    /// Creates the observer for a campaign with these settings.
    pub fn new(absence: Duration, deadline: Option<Duration>) -> Self {
        Self {
            absence: absence.into(),
            deadline: deadline.map(Millis::from),
            devices: BTreeMap::new(),
            longest: None,
            reported: (Millis::ZERO, Millis::ZERO),
        }
    }

    /// Longest waking period of a device, where the period of a device is the shorter one of its last two; `None` if no
    /// device has reconnected twice.
    pub fn longest(&self) -> Option<Millis> {
        self.longest
    }

    /// Records that a device has left.
    pub fn left(&mut self, now: Millis, device: DeviceId) {
        if let Some(connections) = self.devices.get_mut(&device) {
            connections.left_at.get_or_insert(now);
        }
    }

    /// Records that a device has joined. Returns the settings that are shorter than it regularly stays away. A setting is
    /// returned again only for a device that stays away at least twice as long.
    pub fn joined(&mut self, now: Millis, device: DeviceId) -> TooShort {
        let connections = self.devices.entry(device).or_default();
        let Some(left_at) = connections.left_at.take() else {
            connections.joined_at = now;
            return TooShort::default();
        };
        let away = Away { period: now - connections.joined_at, absent: now - left_at };
        let last = connections.last.replace(away);
        connections.joined_at = now;
        // A single long absence is a failure, two in a row are a habit.
        let Some(last) = last else { return TooShort::default() };
        let regular = Away { period: away.period.min(last.period), absent: away.absent.min(last.absent) };
        self.longest = self.longest.max(Some(regular.period));
        self.too_short(regular)
    }

    fn too_short(&mut self, Away { period, absent }: Away) -> TooShort {
        let mut too_short = TooShort::default();
        let is_new = |time: Millis, reported: Millis| reported.is_zero() || time >= reported + reported;
        if absent >= self.absence && !absent.is_zero() && is_new(absent, self.reported.0) {
            self.reported.0 = absent;
            too_short.absence = Some((absent, self.absence));
        }
        if let Some(deadline) = self.deadline.filter(|deadline| *deadline < period)
            && is_new(period, self.reported.1)
        {
            self.reported.1 = period;
            too_short.deadline = Some((period, deadline));
        }
        too_short
    }
}

impl TooShort {
    /// Logs the settings as warnings.
    pub fn log(self, device: DeviceId) {
        if let Some((away, absence)) = self.absence {
            tracing::warn!(
                device = device.0,
                away_s = away.as_u64() / 1_000,
                absence_s = absence.as_u64() / 1_000,
                "the device regularly stays away for longer than devices.absence: while it sleeps it does not count as present, and no round \
                 waits for it; set devices.absence to more"
            );
        }
        if let Some((period, deadline)) = self.deadline {
            tracing::warn!(
                device = device.0,
                period_s = period.as_u64() / 1_000,
                deadline_s = deadline.as_u64() / 1_000,
                "the device wakes less often than rounds.deadline: a round can close before it wakes; set rounds.deadline to more than the period"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(3);

    /// Lets a device wake `wakes` times, two seconds long, once in `period` seconds, and returns the settings that were too
    /// short.
    fn wake(periods: &mut WakingPeriods, start: u64, period: u64, wakes: u64) -> Vec<TooShort> {
        let mut too_short = Vec::new();
        for wake in 0..wakes {
            let now = Millis::new(1_000 * (start + wake * period));
            too_short.push(periods.joined(now, DEVICE));
            periods.left(now + Millis::new(2_000), DEVICE);
        }
        too_short.retain(|found| *found != TooShort::default());
        too_short
    }

    #[test]
    fn regular_sleep_beyond_the_settings_is_reported_once() {
        let seconds = |seconds: u64| Millis::new(1_000 * seconds);
        let mut periods = WakingPeriods::new(Duration::from_secs(30), Some(Duration::from_secs(60)));
        assert_eq!(wake(&mut periods, 0, 3_600, 2), [], "a single absence is no habit");
        let expected = TooShort {
            absence: Some((seconds(3_598), seconds(30))),
            deadline: Some((seconds(3_600), seconds(60))),
        };
        assert_eq!(wake(&mut periods, 7_200, 3_600, 5), [expected]);
        assert_eq!(periods.longest(), Some(seconds(3_600)));
        // Longer sleep is reported when it is twice as long.
        assert_eq!(wake(&mut periods, 30_000, 5_000, 6), []);
        assert_eq!(wake(&mut periods, 70_000, 8_000, 6).len(), 1);
    }

    #[test]
    fn fitting_settings_and_connected_devices_need_no_warning() {
        let mut periods = WakingPeriods::new(Duration::from_secs(60), Some(Duration::from_secs(45)));
        assert_eq!(wake(&mut periods, 0, 20, 50), []);
        assert_eq!(periods.longest(), Some(Millis::new(20_000)));
        let mut periods = WakingPeriods::new(Duration::ZERO, None);
        for second in 0..20 {
            // The device greets again without having left.
            assert_eq!(periods.joined(Millis::new(1_000 * second), DEVICE), TooShort::default());
        }
        assert_eq!(periods.longest(), None);
        // A device that was never seen leaves.
        periods.left(Millis::ZERO, DeviceId(9));
    }
}
