//! Tests of frames in packets: every frame arrives whole for every length, order and repetition of packets; lost, forged and
//! mixed packets are counted and never make a frame of wrong bytes that its checksum would accept.

use fedspan_protocol::datagram::{FRAME_MAX, PACKET_MIN, PacketReader, PacketWriter, Reassembler, Splitter};
use fedspan_protocol::frame::crc32c;
use proptest::prelude::*;

/// Returns a frame of this length: header, content that depends on `seed`, checksum.
fn frame(length: usize, seed: u8) -> Vec<u8> {
    let content = (0..length - 5).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed));
    let mut frame: Vec<u8> = [0x10].into_iter().chain(content).collect();
    frame.extend(crc32c(&frame).to_le_bytes());
    frame
}

/// Returns the packets of a frame.
fn packets(splitter: &mut Splitter, frame: &[u8], longest: usize) -> Vec<Vec<u8>> {
    let (mut start, mut packets) = (0, Vec::new());
    while let Some(packet) = splitter.packet(start, frame.len()) {
        let mut bytes = vec![0; longest];
        let length = packet.write(frame, &mut bytes).unwrap();
        bytes.truncate(length);
        packets.push(bytes);
        start = packet.content.end;
    }
    splitter.next_frame();
    packets
}

/// Passes packets to a receiver and returns the frames whose checksum is right.
fn receive(receiver: &mut Reassembler<Vec<u8>>, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for packet in packets {
        if let Some(length) = receiver.receive(packet) {
            let frame = receiver.frame_mut(length).to_vec();
            let (content, check) = frame.split_last_chunk::<4>().unwrap();
            if crc32c(content).to_le_bytes() == *check {
                frames.push(frame);
            }
        }
    }
    frames
}

#[test]
fn a_short_frame_is_a_packet_of_its_own() {
    let mut splitter = Splitter::new(64);
    for length in 5..=64 {
        let frame = frame(length, 1);
        assert_eq!(packets(&mut splitter, &frame, 64), [frame]);
    }
    assert_eq!(packets(&mut splitter, &frame(65, 1), 64).len(), 2);
    // A frame that is too long for the format has no packets.
    assert_eq!(splitter.packet(0, FRAME_MAX + 1), None);
    assert_eq!(splitter.packet(0, 0), None);
}

proptest! {
    /// Frames arrive from packets of any length, in any order within a frame and with any repetitions.
    #[test]
    fn frames_arrive_in_any_order(
        lengths in prop::collection::vec(5usize..=FRAME_MAX, 1..6),
        longest in PACKET_MIN..260,
        seed in any::<u64>(),
    ) {
        let mut splitter = Splitter::new(longest);
        let mut receiver = Reassembler::new(vec![0; FRAME_MAX]);
        let mut state = seed;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for (number, length) in lengths.iter().enumerate() {
            let frame = frame(*length, number as u8);
            let sent = packets(&mut splitter, &frame, longest);
            prop_assert!(sent.iter().all(|packet| packet.len() <= longest));
            let mut order: Vec<Vec<u8>> = sent.clone();
            for last in (1..order.len()).rev() {
                order.swap(last, random(last + 1));
            }
            // Repetitions come before the frame is complete: afterwards they would begin a frame that never ends.
            let repeated = random(order.len());
            if repeated + 1 < order.len() {
                order.insert(repeated, order[repeated].clone());
            }
            prop_assert_eq!(receive(&mut receiver, &order), [frame]);
        }
        prop_assert_eq!(receiver.counters().malformed, 0);
        prop_assert_eq!(receiver.counters().frames as usize, lengths.len());
    }

    /// Tests that a lost packet loses only its own frame, and that a frame with a loss never arrives with wrong bytes.
    #[test]
    fn losses_cost_only_their_own_frame(
        lost in prop::collection::vec(any::<bool>(), 40),
        longest in PACKET_MIN..100,
    ) {
        let mut splitter = Splitter::new(longest);
        let mut receiver = Reassembler::new(vec![0; 512]);
        let mut lost = lost.into_iter().cycle();
        for number in 0..20u8 {
            let frame = frame(90 + 20 * usize::from(number), number);
            let sent = packets(&mut splitter, &frame, longest);
            let arrived: Vec<_> = sent.iter().filter(|_| !lost.next().unwrap()).cloned().collect();
            let received = receive(&mut receiver, &arrived);
            let expected: &[Vec<u8>] = if arrived.len() == sent.len() { &[frame] } else { &[] };
            prop_assert_eq!(received, expected);
        }
    }

    /// Packets of any bytes never panic, and what they complete fits the buffer.
    #[test]
    fn any_packets_are_harmless(sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..60)) {
        let mut receiver = Reassembler::new(vec![0; 200]);
        for packet in &sent {
            if let Some(length) = receiver.receive(packet) {
                prop_assert!(length <= 200 && receiver.frame_mut(length).len() == length);
            }
        }
        let counters = receiver.counters();
        prop_assert!(counters.malformed + counters.frames + counters.repeated_fragments + counters.incomplete <= 2 * sent.len() as u32);
    }
}

#[test]
fn malformed_packets_are_counted() {
    let mut receiver = Reassembler::new(vec![0; 64]);
    let unit = [7u8; 16];
    let fragment = |first: u8, offset: u8, content: &[u8]| [&[first, offset], content].concat();
    for packet in [
        vec![],
        vec![0x40, 1],
        vec![0x20],
        vec![0x20, 0],
        fragment(0x20, 0, &unit[..15]),
        fragment(0x30, 4, &unit),
        fragment(0x20, 255, &unit),
        vec![0x10; 65],
    ] {
        let before = receiver.counters().malformed;
        assert_eq!(receiver.receive(&packet), None, "{packet:?}");
        assert_eq!(receiver.counters().malformed, before + 1, "{packet:?}");
    }
    // Bytes after the end, and a second end, are of another frame with the same number.
    assert_eq!(receiver.receive(&fragment(0x31, 1, &unit[..3])), None);
    for packet in [fragment(0x21, 2, &unit), fragment(0x31, 1, &unit[..4]), fragment(0x31, 0, &unit)] {
        let before = receiver.counters().malformed;
        assert_eq!(receiver.receive(&packet), None);
        assert_eq!(receiver.counters().malformed, before + 1);
    }
    assert!(receiver.is_mid_frame());
    assert_eq!(receiver.receive(&fragment(0x21, 0, &unit)), Some(19));
    assert!(!receiver.is_mid_frame());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Tests that a stream of frames passes through packets unchanged, with every pattern of zeros, also when packets could not be sent
    /// at first.
    #[test]
    fn encoded_frames_pass_through_packets(
        frames in prop::collection::vec((5usize..1500, 0u8..4, any::<u8>()), 1..4),
        longest in PACKET_MIN..300,
        read_size in 1usize..70,
        busy in any::<u64>(),
    ) {
        let (mut writer, mut reader) = (PacketWriter::new(longest), PacketReader::new(vec![0; FRAME_MAX]));
        for (n, (length, zeros, seed)) in frames.into_iter().enumerate() {
            let content: Vec<u8> = (0..length - 1)
                .map(|n| match zeros {
                    0 => 1 + n as u8 % 255,
                    1 => 0,
                    2 => u8::from(n % 254 != 253),
                    _ => (n as u8).wrapping_mul(seed),
                })
                .collect();
            let frame = [&[0x10][..], &content].concat();
            let mut encoded = cobs::encode_vec(&frame);
            encoded.push(0);
            let mut rest = encoded.as_slice();
            let (mut received, mut packet) = (Vec::new(), vec![0; longest]);
            let mut tries = 0u32;
            while !rest.is_empty() {
                let (mut next, mut next_rest) = (writer, rest);
                let sent = next.write(&mut next_rest, &mut packet).unwrap();
                tries += 1;
                if busy >> (tries % 64) & 1 == 1 && tries < 200 {
                    continue;
                }
                (writer, rest) = (next, next_rest);
                prop_assert!(sent <= longest);
                reader.receive(&packet[..sent]);
                prop_assert_eq!(reader.has_frame(), rest.is_empty());
                let mut bytes = vec![0; read_size];
                loop {
                    let read = reader.read(&mut bytes);
                    received.extend_from_slice(&bytes[..read]);
                    if read == 0 {
                        break;
                    }
                }
            }
            prop_assert_eq!(received, encoded);
            prop_assert_eq!(reader.counters().frames, n as u32 + 1);
        }
    }

    /// Tests that a writer takes no packet from malformed bytes that it could not decode, and never panics.
    #[test]
    fn writer_survives_any_bytes(bytes in prop::collection::vec(0u8..6, 0..60), longest in 0usize..80) {
        let mut writer = PacketWriter::new(longest);
        let (mut rest, mut packet) = (bytes.as_slice(), vec![0; longest]);
        while writer.write(&mut rest, &mut packet).is_some() {}
        writer.reset();
    }

    /// Tests that a reader returns frames with one delimiter, at their end, from any packets.
    #[test]
    fn reader_survives_any_packets(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..30)) {
        let mut reader = PacketReader::new(vec![0; 64]);
        for packet in packets {
            reader.receive(&packet);
            let mut bytes = [0; 200];
            let read = reader.read(&mut bytes);
            let delimiters = bytes[..read].iter().filter(|byte| **byte == 0).count();
            prop_assert_eq!(delimiters, usize::from(read > 0));
        }
    }
}

#[test]
fn frames_that_are_too_long_are_not_sent() {
    let mut encoded = cobs::encode_vec(&vec![1; FRAME_MAX + 1]);
    encoded.push(0);
    let mut packet = [0; 200];
    assert_eq!(PacketWriter::new(200).write(&mut encoded.as_slice(), &mut packet), None);
    let mut encoded = cobs::encode_vec(&vec![1; FRAME_MAX]);
    encoded.push(0);
    assert!(PacketWriter::new(200).write(&mut encoded.as_slice(), &mut packet).is_some());
    // Without a delimiter, and without bytes.
    assert_eq!(PacketWriter::new(200).write(&mut &[2, 7][..], &mut packet), None);
    assert_eq!(PacketWriter::new(200).write(&mut &[][..], &mut packet), None);
    // A buffer that is shorter than the packets.
    assert_eq!(PacketWriter::new(200).write(&mut &[3, 7, 7, 0][..], &mut packet[..1]), None);
}
