//! Table of the devices of a server: who is connected, who was seen when, and what devices have reported about themselves. It is for
//! the operator, is not stored, and begins empty when the server starts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::connection::DeviceReport;
use fedspan_engine::{DeviceId, Millis};
use fedspan_protocol::message::REPORT_COUNTERS;
use serde_json::{Map, Value, json};

/// Table that the core writes and the control socket reads.
#[derive(Clone, Debug, Default)]
pub struct DeviceTable(Arc<Mutex<BTreeMap<DeviceId, Entry>>>);

/// Entry of a device.
#[derive(Clone, Debug, Default)]
struct Entry {
    is_connected: bool,
    /// Time of the last join, departure or report.
    seen: Millis,
    /// Number of connections.
    joined: u64,
    report: Option<Box<DeviceReport>>,
}

impl DeviceTable {
    /// Changes the entry of a device at this time.
    fn update(&self, now: Millis, device: DeviceId, change: impl FnOnce(&mut Entry)) {
        let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = devices.entry(device).or_default();
        entry.seen = now;
        change(entry);
    }

    /// Records that a device has joined, also on the same connection again.
    pub(super) fn joined(&self, now: Millis, device: DeviceId) {
        self.update(now, device, |entry| {
            entry.is_connected = true;
            entry.joined += 1;
        });
    }

    /// Records that a device has left.
    pub(super) fn left(&self, now: Millis, device: DeviceId) {
        self.update(now, device, |entry| entry.is_connected = false);
    }

    /// Records the report of a device. Returns false if the device has reported the same firmware before.
    pub(super) fn reported(&self, now: Millis, device: DeviceId, report: Box<DeviceReport>) -> bool {
        let mut is_new = true;
        self.update(now, device, |entry| {
            is_new =
                entry.report.as_ref().is_none_or(|earlier| earlier.report.firmware != report.report.firmware);
            entry.report = Some(report);
        });
        is_new
    }

    /// Returns a line of JSON for each device, in the order of device numbers.
    #[must_use]
    pub fn lines(&self, now: Millis) -> Vec<String> {
        // Copied, so that the core does not wait while the lines are written.
        let devices = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        devices.iter().map(|(device, entry)| entry.line(now, *device)).collect()
    }
}

impl Entry {
    fn line(&self, now: Millis, device: DeviceId) -> String {
        let seen_s = if self.is_connected { 0 } else { (now - self.seen).as_u64() / 1000 };
        let mut line = json!({
            "device": device.0, "connected": self.is_connected, "seen_s": seen_s, "joined": self.joined,
        });
        if let (Some(DeviceReport { report, counters }), Some(fields)) =
            (self.report.as_deref(), line.as_object_mut())
        {
            let [major, minor, patch] = report.firmware.version;
            fields.insert("firmware".to_owned(), format!("{major}.{minor}.{patch}").into());
            fields.insert("build".to_owned(), format!("{:08x}", report.firmware.build).into());
            fields.insert("reset".to_owned(), format!("{:?}", report.reset).into());
            fields.insert("uptime_s".to_owned(), report.uptime.into());
            let counters = REPORT_COUNTERS.iter().zip(&counters.0);
            let counters: Map<String, Value> =
                counters.map(|(name, count)| ((*name).to_owned(), (*count).into())).collect();
            fields.insert("counters".to_owned(), counters.into());
        }
        line.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use fedspan_protocol::message::{Firmware, Report, ReportCounters, ResetReason};

    #[test]
    fn table_has_the_last_report_of_each_device() {
        let table = DeviceTable::default();
        let (first, second) = (DeviceId(3), DeviceId(u64::MAX));
        table.joined(Millis::new(1_000), second);
        table.joined(Millis::new(2_000), first);
        let report = |build, counters: &[u32]| {
            let firmware = Firmware { version: [1, 2, 30], build };
            let report = Report { firmware, reset: ResetReason::Watchdog, uptime: 77 };
            Box::new(DeviceReport { report, counters: ReportCounters(counters.iter().copied().collect()) })
        };
        assert!(table.reported(Millis::new(3_000), first, report(0xab, &[5])));
        assert!(!table.reported(Millis::new(3_000), first, report(0xab, &[6; 24])));
        assert!(table.reported(Millis::new(3_000), first, report(0xac, &[7, 8])));
        table.left(Millis::new(4_000), first);
        table.joined(Millis::new(4_500), second);
        let lines: Vec<Value> =
            table.lines(Millis::new(9_500)).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            lines[0],
            json!({
                "device": 3, "connected": false, "seen_s": 5, "joined": 1, "firmware": "1.2.30", "build": "000000ac",
                "reset": "Watchdog", "uptime_s": 77, "counters": {"counted": 7, "late": 8},
            })
        );
        assert_eq!(lines[1], json!({"device": u64::MAX, "connected": true, "seen_s": 0, "joined": 2}));
        assert_eq!(lines.len(), 2);
    }
}
