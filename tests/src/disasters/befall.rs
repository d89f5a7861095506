//! What a disaster does to a world.

use fedspan_engine::Phase;

use super::Millis;
use super::chaos::Disaster;
use super::history::Violation;
use super::plan::percent;
use super::running::Out;
use super::storage::Faults as DiskFaults;
use super::world::{Event, World};

impl World<'_> {
    /// A device's power goes.
    pub fn cut(&mut self, now: Millis, index: usize, off: Millis) {
        let heard = percent(&mut self.random, 50);
        let Some(place) = self.places.get_mut(index) else { return };
        place.device.die();
        place.unread.clear();
        place.wake += 1;
        let link = (index, place.link.number);
        if !self.plan.is_line {
            place.link.is_up = false;
            if heard {
                self.queue.after(place.link.quality.latency, Event::Gone(link));
            }
            // What was on its way to it comes no more.
            place.link.number += 1;
        }
        self.queue.at(now + off, Event::DeviceBoot(index));
    }

    /// The server's power goes, if it has not already.
    pub fn power_off(&mut self, now: Millis, off: Millis) {
        let faults = &mut self.report.faults;
        faults.crashes += 1;
        faults.inside += usize::from(self.server.is_cut());
        self.server.crash();
        faults.torn = usize::try_from(self.server.disk.torn()).unwrap_or(usize::MAX);
        for index in 0..self.places.len() {
            if let Some(place) = self.places.get(index).filter(|place| place.link.is_up) {
                self.refuse(now, (index, place.link.number));
            }
        }
        self.queue.after(off, Event::ServerBoot);
    }

    /// A link ends, on both sides.
    pub fn reset(&mut self, now: Millis, index: usize) {
        let Some(place) = self.places.get_mut(index) else { return };
        let link = (index, place.link.number);
        if self.plan.is_line {
            // A line does not end: the device starts anew.
            if place.device.is_on() {
                self.cut(now, index, 1);
            }
        } else if place.link.is_up {
            let latency = place.link.quality.latency;
            self.queue.after(latency, Event::Down(link));
            self.queue.after(latency, Event::Gone(link));
        }
    }

    pub fn strike(&mut self, now: Millis, disaster: Disaster, out: &mut Vec<Out>) -> Result<(), Violation> {
        match disaster {
            Disaster::ServerCrash(off) => {
                if self.server.is_on() {
                    self.power_off(now, off);
                }
            }
            Disaster::PowerCut(after, off) => {
                self.server.disk.fail(DiskFaults::Cut(after));
                self.off = off;
            }
            Disaster::DiskFull(after, time) => {
                self.server.disk.fail(DiskFaults::After(after));
                self.queue.after(time, Event::DiskHeals);
            }
            Disaster::ServerJump(by) => self.server.jump(now, by, out),
            Disaster::DeviceCrash(index, off) => {
                if self.device(index).is_on() {
                    self.report.faults.devices += 1;
                    self.cut(now, index, off);
                }
            }
            Disaster::FlashCut(index, bytes) => self.device(index).die_after(bytes),
            Disaster::DeviceJump(index, by) => {
                self.device(index).jump(by);
                self.wake(now, index)?;
            }
            Disaster::LinkReset(index) => {
                if !self.plan.is_line && self.places.get(index).is_some_and(|place| place.link.is_up) {
                    self.report.faults.links += 1;
                    self.reset(now, index);
                }
            }
            Disaster::Partition(index, time) => {
                if let Some(place) = self.places.get_mut(index) {
                    place.link.parted_until = place.link.parted_until.max(now + time);
                }
            }
            Disaster::Blackout(time) => {
                for place in &mut self.places {
                    place.link.parted_until = place.link.parted_until.max(now + time);
                }
            }
            Disaster::Revocation(index) => {
                let device = index as u64;
                // A campaign begins when all have come.
                // And what has begun is not forgotten once it is written.
                let waits =
                    self.server.is_stalled() || matches!(self.server.phase(), None | Some(Phase::Waiting));
                if self.history.is_revoked(device) {
                    // Once is enough.
                } else if waits && !self.is_healed {
                    self.queue.after(1_000, Event::Chaos(disaster));
                } else if let Some(coordinator) = self.server.coordinator().filter(|_| !waits) {
                    let lines = coordinator.lines();
                    if self.server.revoke(device)? {
                        self.report.faults.revoked += 1;
                        self.history.revoked(device, lines);
                    }
                }
            }
        }
        Ok(())
    }

    pub fn heal(&mut self, now: Millis) {
        self.is_healed = true;
        self.server.disk.fail(DiskFaults::None);
        if !self.server.is_on() {
            self.queue.at(now, Event::ServerBoot);
        }
        for place in &mut self.places {
            place.link.heal();
        }
    }
}
