//! Fuzz target for frames in packets: [`packets`] delivers packets of two honest senders in any order, damaged ones, and any bytes. A
//! second implementation, which keeps the fragments in a map, must return the same frames and count the same. A frame that is spliced from
//! fragments of both senders has a wrong checksum.

use std::collections::BTreeMap;

use fedspan_protocol::datagram::{
    FRAME_MAX, PACKET_MIN, PacketCounters, PacketReader, PacketWriter, Reassembler,
};

use crate::script::Script;
use crate::{Work, reference};

/// Reference implementation of the receiver, after `protocol/SPEC.md`.
#[derive(Default)]
struct Model {
    limit: usize,
    /// Frame that is collected.
    frame: Option<Unfinished>,
    counters: PacketCounters,
}

/// Number of a frame, its bytes by units of 16, and its end.
type Unfinished = (u8, BTreeMap<usize, Vec<u8>>, Option<usize>);

impl Model {
    fn receive(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let frame = match packet.first() {
            Some(first) if first >> 4 == 1 => {
                self.abandon();
                if packet.len() <= self.limit { Some(packet.to_vec()) } else { self.malformed() }
            }
            Some(first) if matches!(first >> 4, 2 | 3) => self.fragment(packet),
            _ => self.malformed(),
        };
        self.counters.frames += u32::from(frame.is_some());
        frame
    }

    fn fragment(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let (is_last, number) = (packet[0] >> 4 == 3, packet[0] & 15);
        if packet.len() < 3 || (!is_last && packet.len() % 16 != 2) {
            return self.malformed();
        }
        let (first, content) = (usize::from(packet[1]), &packet[2..]);
        let end = 16 * first + content.len();
        if end > FRAME_MAX.min(self.limit) {
            return self.malformed();
        }
        if self.frame.as_ref().is_none_or(|frame| frame.0 != number) {
            self.abandon();
            self.frame = Some((number, BTreeMap::new(), None));
        }
        let (_, units, known_end) = self.frame.as_mut().expect("a frame");
        let is_beyond = known_end.is_some_and(|known| end > known || (is_last && end != known));
        if is_beyond || (is_last && units.keys().any(|unit| 16 * unit >= end)) {
            return self.malformed();
        }
        let covered = first..first + content.len().div_ceil(16);
        if covered.clone().all(|unit| units.contains_key(&unit)) {
            self.counters.repeated_fragments += 1;
            return None;
        }
        units.extend(covered.zip(content.chunks(16)).map(|(unit, bytes)| (unit, bytes.to_vec())));
        if is_last {
            *known_end = Some(end);
        }
        let end = (*known_end)?;
        if units.len() < end.div_ceil(16) {
            return None;
        }
        let (_, units, _) = self.frame.take()?;
        Some(units.into_values().flatten().collect())
    }

    fn malformed(&mut self) -> Option<Vec<u8>> {
        self.counters.malformed += 1;
        None
    }

    fn abandon(&mut self) {
        self.counters.incomplete += u32::from(self.frame.take().is_some());
    }
}

/// Largest number of packets in one script.
const PACKETS: usize = 2000;

/// Splits an encoded frame into packets of at most `longest` bytes, as one of the senders does.
fn split(writer: &mut PacketWriter, encoded: &[u8], longest: usize) -> Vec<Vec<u8>> {
    let (mut rest, mut packet, mut packets) = (encoded, vec![0; longest], Vec::new());
    while !rest.is_empty() {
        let length = writer.write(&mut rest, &mut packet).expect("a whole frame");
        assert!(length <= longest);
        packets.push(packet[..length].to_vec());
    }
    packets
}

/// Runs a script: the receiver's buffer and the packets' length, then packets.
pub fn packets(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let limit = [16 * script.index(), 300, FRAME_MAX][script.index() % 3];
    let longest = PACKET_MIN + script.index();
    let mut receiver = Reassembler::new(vec![0; limit]);
    let mut reader = PacketReader::new(vec![0; limit]);
    let mut model = Model { limit, ..Model::default() };
    let mut writers = [PacketWriter::new(longest); 2];
    let mut sent: Vec<Vec<u8>> = Vec::new();
    let mut work = Work::default();
    let mut deliver = |packet: &[u8]| {
        let expected = model.receive(packet);
        let found = receiver.receive(packet).map(|length| receiver.frame_mut(length).to_vec());
        assert_eq!(found, expected);
        assert_eq!(receiver.counters(), model.counters);
        // The reader returns the same frame, encoded.
        reader.receive(packet);
        let mut stream = vec![0; 2 * FRAME_MAX];
        let read = reader.read(&mut stream);
        let decoded =
            expected.as_ref().map(|_| reference::unstuff(&stream[..read.saturating_sub(1)]).expect("COBS"));
        assert_eq!(decoded, expected);
        assert_eq!(read > 0, expected.is_some());
        work.frames += 1;
        let dropped = model.counters.malformed + model.counters.repeated_fragments;
        work.refused = dropped.into();
        work.steps += 3;
        expected
    };
    while let Some(kind) = script.next() {
        match kind % 6 {
            // An honest frame, of which each packet is delivered unless a bit of the next byte says no.
            0 | 1 => {
                let (length, lost) = (
                    1 + usize::from(script.word()) % FRAME_MAX,
                    if kind % 6 == 0 { 0 } else { script.byte() },
                );
                let content = (1..length).map(|n| (n as u8).wrapping_mul(kind) & 0x3f);
                let frame: Vec<u8> = [0x10].into_iter().chain(content).collect();
                if sent.len() >= PACKETS {
                    continue;
                }
                let writer = &mut writers[usize::from(kind / 6 % 2)];
                for (index, packet) in
                    split(writer, &reference::stuff(&frame), longest).into_iter().enumerate()
                {
                    if lost >> (index % 8) & 1 == 0 {
                        deliver(&packet);
                    }
                    sent.push(packet);
                }
            }
            2 => {
                let length = script.index();
                deliver(script.take(length));
            }
            // A packet again, or late.
            3 => {
                let ago = script.index();
                if let Some(packet) = sent.iter().rev().nth(ago) {
                    deliver(packet);
                }
            }
            4 => {
                let ago = script.index();
                let mut packet = sent.iter().rev().nth(ago).cloned().unwrap_or_default();
                script.damage(&mut packet);
                deliver(&packet);
            }
            // A frame of each sender, with a checksum and often the same number. Two bits for each place in the frames say of which of them
            // the fragment is delivered: of none, of one, or of both.
            _ => {
                let length = usize::from(script.word()) % (FRAME_MAX - 5);
                let frames = [1u8, 2].map(|sender| {
                    let content: Vec<u8> =
                        (0..length).map(|n| (n as u8) ^ sender.wrapping_mul(kind)).collect();
                    reference::encode_plain(&content)
                });
                if sent.len() >= PACKETS {
                    continue;
                }
                let mut fragments = [Vec::new(), Vec::new()];
                for ((fragments, writer), frame) in fragments.iter_mut().zip(&mut writers).zip(&frames) {
                    *fragments = split(writer, frame, longest);
                }
                let mut choice = 0;
                for place in 0..fragments[0].len().max(fragments[1].len()) {
                    choice = if place % 4 == 0 { script.byte() } else { choice >> 2 };
                    for (sender, fragments) in fragments.iter().enumerate() {
                        let fragment = fragments.get(place).filter(|_| choice >> sender & 1 == 1);
                        let Some(frame) = fragment.and_then(|fragment| deliver(fragment)) else { continue };
                        let encoded = reference::stuff(&frame);
                        assert!(
                            frames.contains(&encoded)
                                || reference::open(&encoded[..encoded.len() - 1], usize::MAX).is_none(),
                            "the frame {frame:x?} is of neither sender"
                        );
                    }
                }
                sent.extend(fragments.into_iter().flatten());
            }
        }
    }
    work
}

/// Returns scripts with frames of all lengths, in order, with losses, late and repeated.
pub fn seeds() -> Vec<Vec<u8>> {
    (0..24u8)
        .map(|n| {
            let mut seed = vec![20 + n, n, 3 * n];
            for length in [5u16, 20, 17 * u16::from(n) + 1, 254, 300, 2000] {
                let [low, high] = length.to_le_bytes();
                seed.extend([6 * n, low, high, 1 + 6 * n, low, high, n, 3, 0, 3, 1, 3, n, 4, 1, 1, n, 0, 1]);
                // A frame of each sender: spliced in two ways, and both whole.
                seed.extend([5 + 6 * n, low, high]);
                seed.extend([0b0110_0110 ^ n; 16]);
                seed.extend([5 + 6 * n, low, high, 0xFF]);
            }
            seed.extend([2, 6, 0x20 + n % 16, 0, 1, 2, 3, 4, 2, 18, 0x20, n]);
            seed.extend([n; 16]);
            seed.extend([2, 5, 0x30, 0, 1, 2, 3]);
            seed
        })
        .collect()
}
