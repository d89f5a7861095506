//! Injection of faults into a world: the effects of each fault.

use fedspan_engine::{DeviceId, Millis, Phase};

use super::fault_schedule::Fault;
use super::plan::draw_chance;
use super::server_tasks::ServerOutput;
use super::storage::Faults as DiskFaults;
use super::violation::Violation;
use super::world::{Event, World};

impl World<'_> {
    /// Cuts a device's power for `duration` ms.
    pub fn power_off_device(&mut self, now: Millis, index: usize, duration: Millis) {
        let server_notices = draw_chance(&mut self.random, 50);
        let Some(node) = self.nodes.get_mut(index) else { return };
        node.device.power_off();
        node.unread.clear();
        node.wake_number += 1;
        let link = (index, node.link.number);
        if !self.plan.is_serial {
            node.link.is_up = false;
            if server_notices {
                self.queue.schedule_after(node.link.quality.latency, Event::ServerLinkDown(link));
            }
            // Bytes in flight to the device are lost.
            node.link.number += 1;
        }
        self.queue.schedule_at(now + duration, Event::DeviceBoot(index));
    }

    /// Cuts the server's power for `duration` ms. A cut that has just occurred during a write is not repeated.
    pub fn power_off_server(&mut self, now: Millis, duration: Millis) {
        let faults = &mut self.report.faults;
        faults.crashes += 1;
        faults.mid_write += usize::from(self.server.is_cut());
        self.server.crash();
        faults.torn = usize::try_from(self.server.disk.torn()).unwrap_or(usize::MAX);
        for index in 0..self.nodes.len() {
            if let Some(node) = self.nodes.get(index).filter(|node| node.link.is_up) {
                self.refuse_link(now, (index, node.link.number));
            }
        }
        self.queue.schedule_after(duration, Event::ServerBoot);
    }

    /// Resets a link at both ends.
    pub fn reset_link(&mut self, now: Millis, index: usize) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        let link = (index, node.link.number);
        if self.plan.is_serial {
            // A serial line cannot be reset, so the device is restarted instead.
            if node.device.is_on() {
                self.power_off_device(now, index, Millis::new(1));
            }
        } else if node.link.is_up {
            let latency = node.link.quality.latency;
            self.queue.schedule_after(latency, Event::DeviceLinkDown(link));
            self.queue.schedule_after(latency, Event::ServerLinkDown(link));
        }
    }

    /// Applies a fault to the world.
    pub fn inject(
        &mut self,
        now: Millis,
        fault: Fault,
        out: &mut Vec<ServerOutput>,
    ) -> Result<(), Violation> {
        match fault {
            Fault::ServerCrash(duration) => {
                if self.server.is_on() {
                    self.power_off_server(now, duration);
                }
            }
            Fault::PowerCut(after, duration) => {
                self.server.disk.fail(DiskFaults::Cut(after));
                self.outage = duration;
            }
            Fault::DiskFull(after, time) => {
                self.server.disk.fail(DiskFaults::After(after));
                self.queue.schedule_after(time, Event::DiskHeals);
            }
            Fault::ServerJump(by) => self.server.jump_clock(now, by, out),
            Fault::DeviceCrash(index, duration) => {
                if self.device(index).is_on() {
                    self.report.faults.device_power_cuts += 1;
                    self.power_off_device(now, index, duration);
                }
            }
            Fault::FlashCut(index, bytes) => self.device(index).power_off_after(bytes),
            Fault::DeviceJump(index, by) => {
                self.device(index).jump_clock(by);
                self.wake_device(now, index)?;
            }
            Fault::LinkReset(index) => {
                if !self.plan.is_serial && self.nodes.get(index).is_some_and(|node| node.link.is_up) {
                    self.report.faults.link_resets += 1;
                    self.reset_link(now, index);
                }
            }
            Fault::Partition(index, time) => {
                if let Some(node) = self.nodes.get_mut(index) {
                    node.link.partitioned_until = node.link.partitioned_until.max(now + time);
                }
            }
            Fault::Blackout(time) => {
                for node in &mut self.nodes {
                    node.link.partitioned_until = node.link.partitioned_until.max(now + time);
                }
            }
            Fault::Revocation(index) => {
                let device = index as u64;
                // A key is revoked neither before the campaign has started, which needs all devices, nor
                // during a write stall, in which the journal length is not final.
                let must_wait =
                    self.server.is_stalled() || matches!(self.server.phase(), None | Some(Phase::Waiting));
                if self.history.is_revoked(DeviceId(device)) {
                    // A device is revoked only once.
                } else if must_wait && !self.is_healed {
                    self.queue.schedule_after(Millis::new(1_000), Event::Fault(fault));
                } else if let Some(coordinator) = self.server.coordinator().filter(|_| !must_wait) {
                    let lines = coordinator.lines();
                    if self.server.revoke(DeviceId(device))? {
                        self.report.faults.revoked += 1;
                        self.history.record_revocation(DeviceId(device), lines);
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends all faults and starts the server if it is off.
    pub fn heal(&mut self, now: Millis) {
        self.is_healed = true;
        self.server.disk.fail(DiskFaults::None);
        if !self.server.is_on() {
            self.queue.schedule_at(now, Event::ServerBoot);
        }
        for node in &mut self.nodes {
            node.link.heal();
        }
    }
}
