//! Waking periods of devices that disconnect between rounds, and advice where `devices.absence` or `rounds.deadline` are
//! too short for them.

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

/// Observer of the times at which devices connect and disconnect.
#[derive(Debug)]
pub struct WakingPeriods {
    absence: Millis,
    deadline: Option<Millis>,
    devices: BTreeMap<DeviceId, Connections>,
    /// Longest regular period so far.
    longest: Option<Millis>,
    /// Longest times for which advice was given: of absence, and of period.
    advised: (Millis, Millis),
}

impl WakingPeriods {
    /// Creates the observer for a campaign with these settings.
    pub fn new(absence: Duration, deadline: Option<Duration>) -> Self {
        Self {
            absence: absence.into(),
            deadline: deadline.map(Millis::from),
            devices: BTreeMap::new(),
            longest: None,
            advised: (Millis::ZERO, Millis::ZERO),
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

    /// Records that a device has joined. Returns advice if it regularly stays away for longer than the settings allow.
    /// The same advice is repeated only for a device that stays away at least twice as long.
    pub fn joined(&mut self, now: Millis, device: DeviceId) -> Vec<String> {
        let connections = self.devices.entry(device).or_default();
        let Some(left_at) = connections.left_at.take() else {
            connections.joined_at = now;
            return Vec::new();
        };
        let away = Away { period: now - connections.joined_at, absent: now - left_at };
        let last = connections.last.replace(away);
        connections.joined_at = now;
        // A single long absence is a failure, two in a row are a habit.
        let Some(last) = last else { return Vec::new() };
        let regular = Away { period: away.period.min(last.period), absent: away.absent.min(last.absent) };
        self.longest = self.longest.max(Some(regular.period));
        self.advice(device, regular)
    }

    fn advice(&mut self, device: DeviceId, Away { period, absent }: Away) -> Vec<String> {
        let mut advice = Vec::new();
        let is_new = |time: Millis, advised: Millis| advised.is_zero() || time >= advised + advised;
        if absent >= self.absence && !absent.is_zero() && is_new(absent, self.advised.0) {
            self.advised.0 = absent;
            advice.push(format!(
                "device {device} is away for {} s at a time, and devices.absence is {} s: a round does not count it as present, and \
                 does not wait for it, while it sleeps; set devices.absence to more than {}",
                seconds(absent),
                seconds(self.absence),
                seconds(absent)
            ));
        }
        if let Some(deadline) = self.deadline.filter(|deadline| *deadline < period)
            && is_new(period, self.advised.1)
        {
            self.advised.1 = period;
            advice.push(format!(
                "device {device} wakes once in {} s, and rounds.deadline is {} s: a round can close before it wakes; set rounds.deadline \
                 to more than {}",
                seconds(period),
                seconds(deadline),
                seconds(period)
            ));
        }
        advice
    }
}

/// Time in seconds, for a message: with a decimal below ten seconds.
fn seconds(time: Millis) -> String {
    let milliseconds = time.as_u64();
    if milliseconds < 10_000 {
        format!("{}.{}", milliseconds / 1_000, milliseconds % 1_000 / 100)
    } else {
        (milliseconds / 1_000).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(3);

    /// Lets a device wake `wakes` times, two seconds long, once in `period` seconds.
    fn wake(periods: &mut WakingPeriods, start: u64, period: u64, wakes: u64) -> Vec<String> {
        let mut advice = Vec::new();
        for wake in 0..wakes {
            let now = Millis::new(1_000 * (start + wake * period));
            advice.extend(periods.joined(now, DEVICE));
            periods.left(now + Millis::new(2_000), DEVICE);
        }
        advice
    }

    #[test]
    fn regular_sleep_beyond_the_settings_is_advised_against_once() {
        let mut periods = WakingPeriods::new(Duration::from_secs(30), Some(Duration::from_secs(60)));
        assert_eq!(wake(&mut periods, 0, 3_600, 2), [""; 0], "a single absence is no habit");
        let advice = wake(&mut periods, 7_200, 3_600, 5);
        assert_eq!(advice.len(), 2, "{advice:?}");
        assert!(
            advice[0].contains("device 3 is away for 3598 s at a time, and devices.absence is 30 s"),
            "{advice:?}"
        );
        assert!(
            advice[1].contains("device 3 wakes once in 3600 s, and rounds.deadline is 60 s"),
            "{advice:?}"
        );
        assert_eq!(periods.longest(), Some(Millis::new(3_600_000)));
        // Longer sleep is advised against again when it is twice as long.
        assert_eq!(wake(&mut periods, 30_000, 5_000, 6), [""; 0]);
        assert_eq!(wake(&mut periods, 70_000, 8_000, 6).len(), 2);
    }

    #[test]
    fn fitting_settings_and_connected_devices_need_no_advice() {
        let mut periods = WakingPeriods::new(Duration::from_secs(60), Some(Duration::from_secs(45)));
        assert_eq!(wake(&mut periods, 0, 20, 50), [""; 0]);
        assert_eq!(periods.longest(), Some(Millis::new(20_000)));
        let mut periods = WakingPeriods::new(Duration::ZERO, None);
        for second in 0..20 {
            // The device greets again without having left.
            assert_eq!(periods.joined(Millis::new(1_000 * second), DEVICE), [""; 0]);
        }
        assert_eq!(periods.longest(), None);
        // A device that was never seen leaves.
        periods.left(Millis::ZERO, DeviceId(9));
    }
}
