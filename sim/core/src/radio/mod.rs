//! Radios: length of their packets, time that a packet takes on the air, and the part of the time in which they may send.

mod airtime;
mod exchange;

use std::time::Duration;

pub use exchange::{Exchange, Lengths};

use airtime::{Ble, Lora};

/// Kind of radio link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Radio {
    /// Name in scenarios.
    pub name: &'static str,
    /// Longest packet of FedSpan, in bytes.
    pub packet: usize,
    /// Part of the time in which a device may send.
    pub device_duty: f64,
    /// Part of the time in which the server's end may send.
    pub gateway_duty: f64,
    modulation: Modulation,
}

/// Family of radios that one transceiver serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Bluetooth Low Energy.
    Ble,
    /// LoRa.
    Lora,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Modulation {
    Ble(Ble),
    Lora(Lora),
}

/// Duty cycles of LoRa in Europe: 1 % in the band of devices (868.0 to 868.6 MHz), 10 % in that of the second receive window (869.4
/// to 869.65 MHz); ETSI EN 300 220-2.
const LORA_DUTY: (f64, f64) = (0.01, 0.1);

/// Returns LoRaWAN in the band EU868 with a bandwidth of 125 kHz; packets are the longest of the data rate (LoRaWAN Regional
/// Parameters RP002-1.0.3, table 8, with repeaters).
const fn lora(name: &'static str, spreading: u32, packet: usize) -> Radio {
    let (device_duty, gateway_duty) = LORA_DUTY;
    Radio { name, packet, device_duty, gateway_duty, modulation: Modulation::Lora(Lora { spreading }) }
}

/// Returns Bluetooth Low Energy at 1 Mbit/s, with notifications of this length. There is no limit on the duty cycle.
const fn ble(name: &'static str, packet: usize) -> Radio {
    Radio { name, packet, device_duty: 1.0, gateway_duty: 1.0, modulation: Modulation::Ble(Ble) }
}

/// All radios.
pub const RADIOS: [Radio; 8] = [
    ble("ble", 244),
    // The length of every device without the extension of data lengths.
    ble("ble-20", 20),
    lora("lora-sf7", 7, 222),
    lora("lora-sf8", 8, 222),
    lora("lora-sf9", 9, 115),
    lora("lora-sf10", 10, 51),
    lora("lora-sf11", 11, 51),
    lora("lora-sf12", 12, 51),
];

impl Radio {
    /// Returns the radio with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        RADIOS.into_iter().find(|radio| radio.name == name)
    }

    /// Family of the radio.
    #[must_use]
    pub const fn family(&self) -> Family {
        match self.modulation {
            Modulation::Ble(_) => Family::Ble,
            Modulation::Lora(_) => Family::Lora,
        }
    }

    /// Time on the air of a packet with this many bytes of FedSpan, without pauses that the duty cycle requires.
    #[must_use]
    pub fn airtime(&self, bytes: usize) -> Duration {
        match self.modulation {
            Modulation::Ble(ble) => ble.airtime(bytes),
            Modulation::Lora(lora) => lora.airtime(bytes),
        }
    }

    /// Lengths of the packets of a frame.
    #[must_use]
    pub fn packets(&self, frame: usize) -> Vec<usize> {
        let splitter = fedspan_protocol::datagram::Splitter::new(self.packet);
        let mut lengths = Vec::new();
        let mut start = 0;
        while let Some(packet) = splitter.packet(start, frame) {
            start = packet.content.end;
            lengths.push(packet.header().len() + packet.content.len());
        }
        lengths
    }

    /// Time on the air of all packets of frames, in seconds.
    #[must_use]
    pub fn seconds(&self, frames: &[usize]) -> f64 {
        let packets = frames.iter().flat_map(|frame| self.packets(*frame));
        packets.map(|packet| self.airtime(packet).as_secs_f64()).sum()
    }
}
