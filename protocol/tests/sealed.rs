//! Tests that damaged, spliced and hidden sealed frames never open: every flipped bit, pair and burst of the
//! sealed vectors, and frames in the tails of oversized frames. A frame that opens must have the sealed
//! content.

use crate::common;
use crate::common::exchange::{self, Sealed, run_handshake, seal_frame};
use crate::common::{Event, Random, feed};
use fedspan_protocol::frame::{Decoder, HEADER_ANSWER, HEADER_SEALED, HEADER_SHORT};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{ToServer, decode};
use hkdf::Hkdf;
use sha2::Sha256;

use fedspan_protocol::secure::{
    Channel, HANDSHAKE_INIT, HandshakeInit, NONCE, OpenError, answer_nonce, transcript,
};

/// Message of the intact frame after the damaged one.
const SENTINEL: &[u8] = b"sentinel";

/// Returns the sealed frames of the exchange, without the forged frame.
fn sealed_frames() -> impl Iterator<Item = Sealed> {
    exchange::sealed_vectors().into_iter().filter(|frame| frame.name != "sealed_forged")
}

/// Returns the channel that opens the frame, in its state before the first frame of the exchange.
fn receiver_of(name: &str) -> Channel {
    let (device, server, ..) = run_handshake();
    if matches!(name, "sealed_alive" | "sealed_update") { server } else { device }
}

#[test]
fn both_ends_open_the_exchange() {
    let vectors = exchange::sealed_vectors();
    let (mut device, mut server, ..) = run_handshake();
    // The forged frame comes before the acknowledgement, because it has the same counter.
    let order = [
        "sealed_answer",
        "sealed_alive",
        "sealed_round_open",
        "sealed_update",
        "sealed_forged",
        "sealed_ack",
    ];
    for name in order {
        let sealed = vectors.iter().find(|sealed| sealed.name == name).unwrap();
        let mut frame = cobs::decode_vec(&sealed.wire[..sealed.wire.len() - 1]).unwrap();
        let receiving =
            if matches!(name, "sealed_alive" | "sealed_update") { &mut server } else { &mut device };
        let before = format!("{receiving:?}");
        match receiving.open(&mut frame) {
            Ok(message) => assert_eq!(message, sealed.payload, "{name}"),
            Err(error) => {
                assert_eq!((name, error), ("sealed_forged", OpenError::Forged));
                assert_eq!(format!("{receiving:?}"), before);
                assert!(frame.iter().all(|byte| *byte == 0));
                continue;
            }
        }
        let mut repeated = cobs::decode_vec(&sealed.wire[..sealed.wire.len() - 1]).unwrap();
        assert_eq!(receiving.open(&mut repeated), Err(OpenError::Replayed), "{name}");
        assert!(repeated.iter().all(|byte| *byte == 0));
    }
    assert!(!format!("{device:?} {:?}", exchange::example_key()).contains("1f"), "keys are not printed");
}

/// Tests that the handshake initiation is the hello's body, and that both sides hash the same bytes.
#[test]
fn hello_contains_the_handshake_init() {
    let hello = sealed_frames().find(|frame| frame.name == "sealed_hello").unwrap();
    let (message, body) = decode::<ToServer>(&hello.payload).unwrap();
    assert!(matches!(message, ToServer::Hello(_)));
    assert_eq!(HandshakeInit::read(body), Some(exchange::handshake_init()));
    assert_eq!(transcript(&hello.payload), exchange::expected_keys()[0]);
    for length in (0..2 * HANDSHAKE_INIT).filter(|length| *length != HANDSHAKE_INIT) {
        assert_eq!(HandshakeInit::read(&vec![0; length]), None);
    }
}

/// Sealed frame that a test damages.
struct Bench {
    name: &'static str,
    payload: Vec<u8>,
    stream: Vec<u8>,
    frame: usize,
    receiver: Channel,
    decoder: Decoder<[u8; 1024]>,
    tried: u64,
    /// Number of damaged streams from which the COBS decoder still recovers the original frame.
    opened: u64,
}

impl Bench {
    /// Returns a bench for each sealed frame of the exchange.
    fn for_all_frames() -> impl Iterator<Item = Self> {
        sealed_frames().map(|Sealed { name, payload, wire, .. }| Self {
            name,
            payload,
            stream: [&wire[..], &[0], &common::frame_message(SENTINEL)].concat(),
            frame: wire.len(),
            receiver: receiver_of(name),
            decoder: Decoder::new([0; 1024]),
            tried: 0,
            opened: 0,
        })
    }

    /// Returns the number of bits that can be damaged.
    fn bits(&self) -> usize {
        self.frame * 8
    }

    /// Flips one bit.
    fn flip_bit(&mut self, bit: usize) {
        self.stream[bit / 8] ^= 1 << (bit % 8);
    }

    /// Checks that the stream decodes to the sentinel frame, preceded by at most the sealed content.
    fn check(&mut self) {
        let mut sentinels = 0;
        let mut opened = false;
        let name = self.name;
        let (channel, payload) = (&mut self.receiver, &self.payload);
        self.tried += 1;
        feed(&mut self.decoder, &self.stream, |event| match event {
            Event::Message(message) if message == SENTINEL => sentinels += 1,
            // The hello is not encrypted, so its message is the whole content.
            Event::Message(message) => {
                assert!(name == "sealed_hello" && message == *payload, "{name} became another message");
                opened = true;
            }
            Event::Sealed(mut frame) => match channel.open(&mut frame) {
                Ok(message) => {
                    assert!(message == *payload, "{name} opened to another message");
                    opened = true;
                }
                Err(_) => assert!(frame.iter().all(|byte| *byte == 0), "not zeroed"),
            },
            Event::Dropped(_) => {}
        });
        assert_eq!(sentinels, 1, "{name}: no resync");
        if opened {
            self.opened += 1;
            self.receiver = receiver_of(name);
        }
    }
}

#[test]
fn undamaged_frames_open() {
    for mut bench in Bench::for_all_frames() {
        bench.check();
        assert_eq!(bench.opened, 1, "{}", bench.name);
    }
}

#[test]
fn frames_with_flipped_bits_do_not_open() {
    for mut bench in Bench::for_all_frames() {
        for first in 0..bench.bits() {
            bench.flip_bit(first);
            bench.check();
            for second in first + 1..(first + 64).min(bench.bits()) {
                bench.flip_bit(second);
                bench.check();
                bench.flip_bit(second);
            }
            bench.flip_bit(first);
        }
        println!("{}: {} flips and pairs, {} of them undone by COBS", bench.name, bench.tried, bench.opened);
    }
}

/// Tests all bursts of up to 9 bits at every position, and three patterns of each longer burst at every
/// position.
#[test]
fn frames_with_bursts_up_to_32_bits_do_not_open() {
    let mut random = Random(1);
    for mut bench in Bench::for_all_frames() {
        let clean = bench.stream.clone();
        for first in 0..bench.bits() {
            for length in 1..=32.min(bench.bits() - first) {
                let inner = length.saturating_sub(2);
                let patterns = if length <= 9 { 1u64 << inner } else { 3 };
                for pattern in 0..patterns {
                    let middle = if length <= 9 { pattern } else { random.next() };
                    bench.flip_bit(first);
                    for bit in (0..inner).filter(|bit| middle >> bit & 1 == 1) {
                        bench.flip_bit(first + 1 + bit);
                    }
                    if length > 1 {
                        bench.flip_bit(first + length - 1);
                    }
                    bench.check();
                    bench.stream.copy_from_slice(&clean);
                }
            }
        }
        println!("{}: {} bursts, {} of them undone by COBS", bench.name, bench.tried, bench.opened);
    }
}

/// Tests the start of one frame followed by the end of another, where both are sealed with the same key.
#[test]
fn spliced_sealed_frames_do_not_open() {
    let frames: Vec<Sealed> = sealed_frames().collect();
    let mut random = Random(2);
    let mut splices = 0u32;
    for a in &frames {
        for b in &frames {
            let mut cuts: Vec<(usize, usize)> = (1..a.wire.len().min(b.wire.len())).map(|i| (i, i)).collect();
            cuts.extend((1..a.wire.len().min(b.wire.len())).map(|i| (a.wire.len() - i, b.wire.len() - i)));
            cuts.extend((0..300).map(|_| (1 + random.below(a.wire.len() - 1), random.below(b.wire.len()))));
            for (i, j) in cuts {
                let spliced = [&a.wire[..i], &b.wire[j..]].concat();
                if spliced == a.wire || spliced == b.wire {
                    continue;
                }
                splices += 1;
                let mut receivers = [receiver_of("sealed_alive"), receiver_of("sealed_ack")];
                feed(&mut Decoder::new([0; 1024]), &spliced, |event| match event {
                    Event::Sealed(frame) => {
                        let opened = receivers.iter_mut().any(|end| end.open(&mut frame.clone()).is_ok());
                        assert!(!opened, "{}[..{i}] {}[{j}..]", a.name, b.name);
                    }
                    Event::Message(_) => panic!("{}[..{i}] {}[{j}..]", a.name, b.name),
                    Event::Dropped(_) => {}
                });
            }
        }
    }
    println!("{splices} splices");
}

/// Tests an oversized frame whose tail contains a whole sealed frame without the delimiter before it, for
/// every length of the filler and every length of the reads. The frame after the next delimiter must be
/// decoded.
#[test]
fn oversized_frame_hides_no_sealed_frame() {
    const LIMIT: usize = 64;
    let mut streams = 0u32;
    for kind in 0..3u8 {
        let (mut device, ..) = run_handshake();
        let hidden = seal_frame(&mut device, &ToServer::Alive, &[]);
        let following = seal_frame(&mut device, &ToServer::Alive, &[]);
        for filler in LIMIT..3 * LIMIT {
            let mut stream = match kind {
                // Fillers: COBS blocks of one byte, each of which decodes to a zero; one long block that
                // covers the filler; random bytes.
                0 => vec![1; filler],
                1 => [vec![0xff], vec![0x11; filler - 1]].concat(),
                _ => {
                    let mut random = Random(filler as u64);
                    (0..filler).map(|_| 1 + random.below(255) as u8).collect()
                }
            };
            stream.extend_from_slice(&hidden);
            stream.extend_from_slice(&following);
            for read_length in 1..=2 * LIMIT {
                streams += 1;
                let (_, mut server, ..) = run_handshake();
                let mut decoder = Decoder::new([0; LIMIT]);
                let (mut opened, mut dropped) = (0, 0);
                for part in stream.chunks(read_length) {
                    feed(&mut decoder, part, |event| match event {
                        Event::Sealed(mut frame) => opened += u32::from(server.open(&mut frame).is_ok()),
                        Event::Dropped(_) => dropped += 1,
                        Event::Message(_) => {
                            panic!("kind {kind}, {filler} bytes before, reads of {read_length}")
                        }
                    });
                }
                assert_eq!(
                    (opened, dropped),
                    (1, 1),
                    "kind {kind}, {filler} bytes before, reads of {read_length}"
                );
            }
        }
    }
    println!("{streams} streams, 0 hidden frames accepted");
}

/// Tests that frames with a wrong length or header are not decrypted, and are zeroed like other rejected
/// frames.
#[test]
fn short_frames_and_other_headers_are_malformed() {
    let (mut device, mut server, _, answer) = run_handshake();
    let mut plain = cobs::decode_vec(&answer[..answer.len() - 1]).unwrap();
    assert_eq!(answer_nonce(&plain), Some(exchange::server_nonce()));
    for length in 0..1 + NONCE + 16 {
        let mut frame = plain[..length].to_vec();
        assert_eq!(device.open(&mut frame), Err(OpenError::Malformed), "{length}");
        assert!(frame.iter().all(|byte| *byte == 0));
    }
    let wire = seal_frame(&mut device, &ToServer::Alive, &[]);
    for header in
        (0..=255u8).filter(|header| !matches!(*header, HEADER_SEALED | HEADER_ANSWER | HEADER_SHORT))
    {
        let mut frame = cobs::decode_vec(&wire[..wire.len() - 1]).unwrap();
        frame[0] = header;
        assert_eq!(server.open(&mut frame), Err(OpenError::Malformed), "{header}");
    }
    // The answer is reflected to its sender, and sent twice to its receiver.
    assert_eq!(server.open(&mut plain.clone()), Err(OpenError::Forged));
    assert!(device.open(&mut plain.clone()).is_ok());
    assert_eq!(device.open(&mut plain), Err(OpenError::Replayed));
    // No message is empty, but the frame of an empty message would have a valid length.
    assert_eq!(server.open(&mut [HEADER_SEALED; 1 + 8 + 16]), Err(OpenError::Forged));
}

/// Tests that a sealed frame is 20 bytes longer than a frame with a checksum, before COBS encoding, and that
/// its buffer size is exact too.
#[test]
fn sealed_frame_fits_the_promised_buffer() {
    let mut random = Random(3);
    for body in (0..40).chain(220..300).chain([1000, 4000]) {
        let (mut device, mut server, ..) = run_handshake();
        let body: Vec<u8> = (0..body).map(|_| random.next() as u8).collect();
        let plain = 1 + 8 + 1 + body.len() + 16;
        let mut exact = vec![0; wire_capacity(plain)];
        let fill = |buffer: &mut [u8]| buffer.copy_from_slice(&body);
        let sent = device.seal(&ToServer::Alive, body.len(), fill, &mut exact).unwrap();
        let mut frame = cobs::decode_vec(&exact[..sent - 1]).unwrap();
        assert_eq!(frame.len(), plain);
        assert_eq!(server.open(&mut frame).unwrap(), [&[5][..], &body].concat());
        let fill = |buffer: &mut [u8]| buffer.copy_from_slice(&body);
        let short = exact.len() - 1;
        assert!(device.seal(&ToServer::Alive, body.len(), fill, &mut exact[..short]).is_err());
        // The failed frame was encrypted, so its counter is used and the next frame has the next counter.
        let fill = |buffer: &mut [u8]| buffer.copy_from_slice(&body);
        let sent = device.seal(&ToServer::Alive, body.len(), fill, &mut exact).unwrap();
        let mut frame = cobs::decode_vec(&exact[..sent - 1]).unwrap();
        assert_eq!(frame[1..9], 2u64.to_le_bytes());
        assert!(server.open(&mut frame).is_ok());
    }
}

/// Tests that the tag of a beacon is HKDF of the key towards the device, computed with the crate of the primitive, and the one in
/// SPEC.md, and that the other end alone accepts it.
#[test]
fn tag_of_a_beacon_is_derived_from_the_key_to_the_device() {
    let [_, up, down] = exchange::expected_keys();
    let opening = crate::common::golden::all_messages();
    let beacon = opening.iter().find(|golden| golden.name == "to_device_round_open_i8").unwrap().payload();
    let expected = |key: &[u8; 32]| {
        let mut tag = [0; 8];
        Hkdf::<Sha256>::new(None, key)
            .expand(&[b"fedspan beacon 1", &beacon[..]].concat(), &mut tag)
            .unwrap();
        tag
    };
    let (device, server, ..) = run_handshake();
    let tag = server.beacon_tag(&beacon);
    assert_eq!(tag, expected(&down));
    assert_eq!(device.beacon_tag(&beacon), expected(&up));
    assert!(device.verifies_beacon(&beacon, tag) && !server.verifies_beacon(&beacon, tag));
    let hex: Vec<String> = tag.iter().map(|byte| format!("{byte:02x}")).collect();
    let specification = include_str!("../SPEC.md");
    assert!(specification.contains(&hex.join(" ")), "SPEC.md does not have the tag {}", hex.join(" "));
    for index in 0..8 * beacon.len() {
        let mut changed = beacon.clone();
        changed[index / 8] ^= 1 << (index % 8);
        assert!(!device.verifies_beacon(&changed, tag));
    }
    for bit in 0..64 {
        let mut other = tag;
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(!device.verifies_beacon(&beacon, other));
    }
}
