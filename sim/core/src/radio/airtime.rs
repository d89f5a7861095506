//! Time on the air of packets.

use std::time::Duration;

/// LoRa with a bandwidth of 125 kHz and coding rate 4/5, in packets of LoRaWAN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lora {
    /// Spreading factor, 7 to 12.
    pub spreading: u32,
}

/// Bytes that LoRaWAN adds to the content of a packet: header 1, address and counter 7, port 1, integrity code 4.
const LORAWAN: usize = 13;
/// Bandwidth in Hz.
const BANDWIDTH: u64 = 125_000;
/// Symbols of the preamble in quarters: 8, and 4.25 of synchronisation.
const PREAMBLE_QUARTERS: u64 = 4 * 8 + 17;

impl Lora {
    /// Time of a packet with this many bytes of content (Semtech, SX1276 data sheet, section 4.1.1.7), with an explicit header and a
    /// checksum.
    pub fn airtime(self, bytes: usize) -> Duration {
        let spreading = u64::from(self.spreading);
        let symbol = (1_000_000 << spreading) / BANDWIDTH;
        // Symbols longer than 16 ms need the optimisation for low data rates.
        let optimised = if symbol > 16_000 { 2 } else { 0 };
        let bits = 8 * (bytes + LORAWAN) as u64 + 28 + 16;
        let blocks = bits.saturating_sub(4 * spreading).div_ceil(4 * (spreading - optimised));
        let quarters = PREAMBLE_QUARTERS + 4 * (8 + 5 * blocks);
        Duration::from_micros(quarters * symbol / 4)
    }
}

/// Bluetooth Low Energy at 1 Mbit/s, notifications over an encrypted link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ble;

/// Bytes of the link layer: preamble 1, access address 4, header 2, integrity code 4, checksum 3.
const LINK_LAYER: u64 = 14;
/// Bytes before the content of a notification: L2CAP 4, ATT 3.
const NOTIFICATION: u64 = 7;
/// Bytes of an empty packet, by which the other side acknowledges.
const EMPTY: u64 = 10;
/// Pause between two packets, in microseconds.
const PAUSE: u64 = 150;

impl Ble {
    /// Time of a notification with this many bytes of content and its acknowledgement, with the pauses between packets (Bluetooth Core
    /// 5.4, volume 6, part B, sections 2.1 and 4.1).
    #[allow(clippy::unused_self, reason = "like the other radio")]
    pub fn airtime(self, bytes: usize) -> Duration {
        Duration::from_micros(8 * (LINK_LAYER + NOTIFICATION + bytes as u64) + PAUSE + 8 * EMPTY + PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of the LoRa calculators of Semtech and The Things Network, in microseconds.
    #[test]
    fn airtime_of_lora_equals_that_of_calculators() {
        for (spreading, bytes, microseconds) in [
            (7, 10, 61_696),
            (8, 10, 113_152),
            (9, 10, 205_824),
            (10, 10, 370_688),
            (11, 10, 823_296),
            (12, 10, 1_482_752),
            (7, 51, 118_016),
            (12, 51, 2_793_472),
            (7, 222, 368_896),
        ] {
            let airtime = Lora { spreading }.airtime(bytes);
            assert_eq!(airtime, Duration::from_micros(microseconds), "SF{spreading}, {bytes} bytes");
        }
    }

    #[test]
    fn airtime_of_ble_has_the_bytes_of_the_specification() {
        // The longest packet of the link layer takes 2,120 us at 1 Mbit/s: 251 bytes of L2CAP, with integrity code.
        assert_eq!(Ble.airtime(244), Duration::from_micros(2_120 + 150 + 80 + 150));
    }
}
