//! Channel of packets between two devices and their server, which a script disturbs.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use fedspan_client::link::Packets;

use crate::script::Script;

/// Number of packets that wait in one direction of one device. More are dropped, as by a full queue in a network.
const WAITING: usize = 64;
/// Number of packets that can be repeated later.
const PAST: usize = 256;

/// Packets on their way: those of each device to the server, then those to each device.
#[derive(Default)]
pub struct Air {
    queues: [VecDeque<Vec<u8>>; 4],
    /// Packets that were sent, of all rounds.
    past: VecDeque<Vec<u8>>,
    received: u64,
    /// Number of times for which each device's radio may not send: the rest of its duty cycle.
    pub blocked: [u8; 2],
    /// Packet of each device that was not sent; its link offers it again.
    pub refused: [Option<Vec<u8>>; 2],
    /// True if the next packet of a device ends its link.
    pub broken: [bool; 2],
}

impl Air {
    /// Adds a packet to a queue, unless it is full.
    pub fn send(&mut self, queue: usize, packet: Vec<u8>) {
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.push_back(packet.clone());
        self.push(queue, packet);
    }

    fn push(&mut self, queue: usize, packet: Vec<u8>) {
        let queue = &mut self.queues[queue % 4];
        if queue.len() < WAITING {
            queue.push_back(packet);
        }
    }

    /// Takes the next packet of a queue.
    pub fn receive(&mut self, queue: usize) -> Option<Vec<u8>> {
        let packet = self.queues[queue % 4].pop_front();
        self.received += u64::from(packet.is_some());
        packet
    }

    /// Returns the number of packets that were received at both ends.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Ends the disturbance: nothing of it is left on the way.
    pub fn clear(&mut self) {
        (self.blocked, self.broken) = Default::default();
        self.queues.iter_mut().for_each(VecDeque::clear);
    }

    /// Disturbs one packet of a queue: loses, repeats, delays, shortens or damages it, or moves it to the other device; repeats one of
    /// the past, on any way; or exchanges all packets of the two devices in this direction.
    pub fn disturb(&mut self, script: &mut Script<'_>) {
        let (kind, place) = (script.byte(), script.index());
        let number = usize::from(kind / 16 % 4);
        let queue = &mut self.queues[number];
        let place = place.min(queue.len().saturating_sub(1));
        match kind % 9 {
            0 => drop(queue.remove(place)),
            1 => {
                let packet = queue.get(place).cloned();
                queue.extend(packet);
            }
            2 => {
                let packet = queue.remove(place);
                queue.extend(packet);
            }
            3 => {
                let length = script.index();
                if let Some(packet) = queue.get_mut(place) {
                    packet.truncate(length);
                }
            }
            4 => {
                if let Some(packet) = queue.get_mut(place) {
                    script.damage(packet);
                }
            }
            // Between the two devices, at the same place or behind.
            5 | 6 => {
                let Some(packet) = queue.remove(place) else { return };
                let other = &mut self.queues[number ^ 1];
                if other.len() < WAITING {
                    other.insert(if kind % 9 == 5 { place.min(other.len()) } else { other.len() }, packet);
                }
            }
            7 => {
                let packet = self.past.iter().rev().nth(script.index()).cloned();
                if let Some(packet) = packet {
                    self.push(number, packet);
                }
            }
            _ => self.queues.swap(number, number ^ 1),
        }
    }

    /// Adds any bytes as a packet.
    pub fn insert(&mut self, queue: usize, bytes: &[u8]) {
        self.push(queue, bytes.to_vec());
    }
}

/// Radio of a device.
pub struct Radio {
    pub air: Rc<RefCell<Air>>,
    /// Index of the device.
    pub device: usize,
}

impl Radio {
    /// Forgets the packet that was not sent, when its link ends.
    pub fn forget_refused(&mut self) {
        self.air.borrow_mut().refused[self.device] = None;
    }
}

/// Error of a radio that must be started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl Packets for Radio {
    type Error = Broken;

    fn send(&mut self, packet: &[u8]) -> Result<bool, Broken> {
        let mut air = self.air.borrow_mut();
        if std::mem::take(&mut air.broken[self.device]) {
            return Err(Broken);
        }
        let refused = air.refused[self.device].take();
        assert!(refused.is_none_or(|refused| refused == packet), "a packet that was not sent is lost");
        if air.blocked[self.device] > 0 {
            air.blocked[self.device] -= 1;
            air.refused[self.device] = Some(packet.to_vec());
            return Ok(false);
        }
        air.send(self.device, packet.to_vec());
        Ok(true)
    }

    fn receive(&mut self, packet: &mut [u8]) -> Result<Option<usize>, Broken> {
        // A packet that is too long is dropped.
        loop {
            let Some(received) = self.air.borrow_mut().receive(2 + self.device) else { return Ok(None) };
            if let Some(target) = packet.get_mut(..received.len()) {
                target.copy_from_slice(&received);
                return Ok(Some(received.len()));
            }
        }
    }
}
