//! Devices that disconnect between rounds: how long they stay away, and warnings where `devices.absence` or
//! `rounds.deadline` is shorter.

use std::collections::BTreeMap;
use std::time::Duration;

use fedspan_engine::{DeviceId, Millis};

/// Disconnections of one device.
#[derive(Clone, Copy, Debug, Default)]
struct Absences {
    left_at: Option<Millis>,
    /// Time for which the device was last away.
    last: Option<Millis>,
}

/// Settings that are shorter than a device stays away, each after the time for which it is away.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TooShort {
    /// With `devices.absence`.
    pub absence: Option<(Millis, Millis)>,
    /// With `rounds.deadline`.
    pub deadline: Option<(Millis, Millis)>,
}

/// Observer of the times at which devices connect and disconnect.
#[derive(Debug)]
pub struct Sleepers {
    absence: Millis,
    deadline: Option<Millis>,
    devices: BTreeMap<DeviceId, Absences>,
    /// Longest regular absence so far.
    longest: Option<Millis>,
    /// Longest absences that were reported for each setting.
    reported: (Millis, Millis),
}

impl Sleepers {
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

    /// Longest time for which a device is away, where that of a device is the shorter one of its last two; `None` if no
    /// device has come back twice.
    pub fn longest(&self) -> Option<Millis> {
        self.longest
    }

    /// Records that a device has left.
    pub fn left(&mut self, now: Millis, device: DeviceId) {
        self.devices.entry(device).or_default().left_at.get_or_insert(now);
    }

    /// Records that a device has joined. Returns the settings that are shorter than it regularly stays away. A setting is
    /// returned again only for a device that stays away at least twice as long.
    pub fn joined(&mut self, now: Millis, device: DeviceId) -> TooShort {
        let Some(absences) = self.devices.get_mut(&device) else { return TooShort::default() };
        let Some(left_at) = absences.left_at.take() else { return TooShort::default() };
        let away = now - left_at;
        // A single long absence is a failure, two in a row are a habit.
        let Some(last) = absences.last.replace(away) else { return TooShort::default() };
        let regular = away.min(last);
        self.longest = self.longest.max(Some(regular));
        self.too_short(regular)
    }

    fn too_short(&mut self, away: Millis) -> TooShort {
        let mut too_short = TooShort::default();
        let is_new = |reported: Millis| reported.is_zero() || away >= reported + reported;
        if away >= self.absence && !away.is_zero() && is_new(self.reported.0) {
            self.reported.0 = away;
            too_short.absence = Some((away, self.absence));
        }
        if let Some(deadline) = self.deadline.filter(|deadline| *deadline <= away)
            && is_new(self.reported.1)
        {
            self.reported.1 = away;
            too_short.deadline = Some((away, deadline));
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
        if let Some((away, deadline)) = self.deadline {
            tracing::warn!(
                device = device.0,
                away_s = away.as_u64() / 1_000,
                deadline_s = deadline.as_u64() / 1_000,
                "the device regularly stays away for longer than rounds.deadline: a round can open and close while it sleeps; set \
                 rounds.deadline to more"
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
    fn wake(sleepers: &mut Sleepers, start: u64, period: u64, wakes: u64) -> Vec<TooShort> {
        let mut too_short = Vec::new();
        for wake in 0..wakes {
            let now = Millis::new(1_000 * (start + wake * period));
            too_short.push(sleepers.joined(now, DEVICE));
            sleepers.left(now + Millis::new(2_000), DEVICE);
        }
        too_short.retain(|found| *found != TooShort::default());
        too_short
    }

    #[test]
    fn regular_sleep_beyond_the_settings_is_reported_once() {
        let seconds = |seconds: u64| Millis::new(1_000 * seconds);
        let mut sleepers = Sleepers::new(Duration::from_secs(30), Some(Duration::from_secs(60)));
        assert_eq!(wake(&mut sleepers, 0, 3_600, 2), [], "a single absence is no habit");
        let expected = TooShort {
            absence: Some((seconds(3_598), seconds(30))),
            deadline: Some((seconds(3_598), seconds(60))),
        };
        assert_eq!(wake(&mut sleepers, 7_200, 3_600, 5), [expected]);
        assert_eq!(sleepers.longest(), Some(seconds(3_598)));
        // Longer sleep is reported when it is twice as long.
        assert_eq!(wake(&mut sleepers, 30_000, 5_000, 6), []);
        assert_eq!(wake(&mut sleepers, 70_000, 8_000, 6).len(), 1);
    }

    #[test]
    fn fitting_settings_and_connected_devices_need_no_warning() {
        let mut sleepers = Sleepers::new(Duration::from_secs(60), Some(Duration::from_secs(45)));
        assert_eq!(wake(&mut sleepers, 0, 20, 50), []);
        assert_eq!(sleepers.longest(), Some(Millis::new(18_000)));
        let mut sleepers = Sleepers::new(Duration::ZERO, None);
        for second in 0..20 {
            // The device greets again without having left.
            assert_eq!(sleepers.joined(Millis::new(1_000 * second), DEVICE), TooShort::default());
        }
        assert_eq!(sleepers.longest(), None);
        // A device that loses its connection for a second, hours apart, is not one that sleeps for hours.
        let mut sleepers = Sleepers::new(Duration::from_secs(30), Some(Duration::from_secs(60)));
        for hour in 0..20 {
            let now = Millis::new(hour * 3_600_000);
            sleepers.left(now, DEVICE);
            assert_eq!(sleepers.joined(now + Millis::new(1_000), DEVICE), TooShort::default());
        }
        // A device that was never seen leaves.
        sleepers.left(Millis::ZERO, DeviceId(9));
    }
}
