//! Property tests of the frame layer: the encoder matches the `cobs` crate, the decoder inverts the encoder
//! for any split of the stream, buffer sizes are exact, and every error ends at the next delimiter and is
//! counted.

use crate::common;
use crate::common::{
    Event, Random, cobs_frame, decode_stream, encode_frame, feed, frame_message, plain_frame,
};
use fedspan_protocol::Error;
use fedspan_protocol::frame::{Decoder, FrameError, HEADER_CRC32C, crc32c, crc32c_f32, encode};
use fedspan_protocol::limits::{CHECK, HEADER, cobs_overhead, wire_capacity};
use fedspan_protocol::message::{RoundId, ToDevice, ToServer};
use proptest::prelude::*;

/// Returns the lengths near multiples of a COBS block's length.
fn near_block_edges() -> impl Iterator<Item = usize> {
    (0..=5usize).flat_map(|blocks| (blocks * 254).saturating_sub(12)..=blocks * 254 + 12)
}

/// Strategy for runs of zeros and of nonzero bytes, with lengths around that of a COBS block.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![3 => 0..20usize, 3 => 240..=260usize, 1 => 500..=520usize];
    let piece = (length, any::<u64>(), 0..4u8).prop_map(|(length, seed, kind)| {
        let mut random = Random(seed);
        let byte = |_| match kind {
            0 => 0,
            1 => random.next() as u8,
            _ => 1 + random.below(255) as u8,
        };
        (0..length).map(byte).collect::<Vec<u8>>()
    });
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn encoder_equals_the_cobs_crate(body in any_bytes()) {
        let message = [&[5u8][..], &body].concat();
        prop_assert_eq!(encode_frame(&ToServer::Alive, &body), frame_message(&message));
    }

    #[test]
    fn decoder_inverts_the_encoder_for_any_split(
        messages in prop::collection::vec(any_bytes(), 1..4),
        reads in prop::collection::vec(1..400usize, 1..8),
    ) {
        let limit = messages.iter().map(Vec::len).max().unwrap() + HEADER + CHECK;
        let stream: Vec<u8> = messages.iter().flat_map(|m| frame_message(m)).collect();
        let (events, counters) = decode_stream(limit, &stream, &reads);
        prop_assert_eq!(counters.accepted as usize, messages.len());
        prop_assert_eq!(events, messages.into_iter().map(Event::Message).collect::<Vec<_>>());
    }

    #[test]
    fn events_do_not_depend_on_the_split(
        stream in prop::collection::vec(prop_oneof![Just(0u8), 1..4u8, any::<u8>()], 0..600),
        reads in prop::collection::vec(1..60usize, 1..8),
        limit in 0..80usize,
    ) {
        prop_assert_eq!(decode_stream(limit, &stream, &reads), decode_stream(limit, &stream, &[usize::MAX]));
    }

    #[test]
    fn every_delimited_sequence_is_one_event_and_one_count(
        stream in prop::collection::vec(prop_oneof![Just(0u8), 1..4u8, any::<u8>()], 0..600),
        limit in 0..80usize,
    ) {
        let sequences = stream.split(|b| *b == 0).rev().skip(1).filter(|s| !s.is_empty()).count();
        let (events, c) = decode_stream(limit, &stream, &[7]);
        prop_assert_eq!(events.len(), sequences);
        let counts = [c.accepted, c.sealed, c.oversize, c.framing, c.check, c.header];
        prop_assert_eq!(counts.iter().sum::<u32>() as usize, sequences);
        let count = |f: fn(&Event) -> bool| events.iter().filter(|e| f(e)).count() as u32;
        prop_assert_eq!(c.accepted, count(|e| matches!(e, Event::Message(_))));
        prop_assert_eq!(c.sealed, count(|e| matches!(e, Event::Sealed(_))));
        prop_assert_eq!(c.oversize, count(|e| *e == Event::Dropped(FrameError::Oversize)));
        prop_assert_eq!(c.framing, count(|e| *e == Event::Dropped(FrameError::Framing)));
        prop_assert_eq!(c.check, count(|e| *e == Event::Dropped(FrameError::Check)));
        prop_assert_eq!(c.header, count(|e| matches!(e, Event::Dropped(FrameError::Header(_)))));
    }

    /// Tests that random bytes yield no message. The helper `events` also asserts that every call of `feed`
    /// consumes input.
    #[test]
    fn random_bytes_yield_no_message(
        garbage in prop::collection::vec(any::<u8>(), 0..3000),
        reads in prop::collection::vec(1..200usize, 1..4),
    ) {
        let (events, counters) = decode_stream(256, &garbage, &reads);
        prop_assert_eq!(counters.accepted, 0);
        prop_assert!(events.iter().all(|e| matches!(e, Event::Dropped(_) | Event::Sealed(_))));
    }

    #[test]
    fn frame_after_any_bytes_is_decoded(
        garbage in prop::collection::vec(any::<u8>(), 0..600),
        limit in 8..64usize,
    ) {
        let stream = [&garbage[..], &[0], &frame_message(b"sentinel"[..3].as_ref())].concat();
        let (events, _) = decode_stream(limit, &stream, &[11]);
        prop_assert_eq!(events.last(), Some(&Event::Message(b"sen".to_vec())));
    }
}

#[test]
fn crc_equals_check_value_and_bitwise_definition() {
    assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    let mut random = Random(1);
    for length in 0..300 {
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        assert_eq!(crc32c(&bytes), common::crc32c(&bytes));
    }
    let values = random.matrix(20, 2);
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(crc32c_f32(&values), common::crc32c(&bytes));
}

#[test]
fn runs_around_a_block_length_equal_the_oracle() {
    let mut random = Random(2);
    for run in 240..=260 {
        for lead in 0..4 {
            for tail in [&[][..], &[0], &[0, 0], &[1], &[0, 1]] {
                let mut body = vec![0; lead];
                body.extend((0..run).map(|_| 1 + random.below(255) as u8));
                body.extend_from_slice(tail);
                let message = [&[5u8][..], &body].concat();
                assert_eq!(
                    encode_frame(&ToServer::Alive, &body),
                    frame_message(&message),
                    "{lead} {run} {tail:?}"
                );
            }
        }
    }
}

#[test]
fn wire_capacity_equals_the_longest_frame() {
    for length in near_block_edges().filter(|n| *n > 0) {
        assert_eq!(cobs_frame(&vec![1; length]).len(), wire_capacity(length), "{length}");
        assert_eq!(wire_capacity(length), length + cobs_overhead(length));
    }
}

#[test]
fn encode_needs_exactly_wire_capacity() {
    let message = ToDevice::RoundClosed(RoundId { round: 7, stage: 1 });
    let head = common::encode_message(&message);
    for body in near_block_edges() {
        for fill in [0, 1] {
            let plain = HEADER + head.len() + body + CHECK;
            let needed = wire_capacity(plain);
            let expected = frame_message(&[&head[..], &vec![fill; body]].concat());
            for capacity in (0..needed).rev().take(20).chain(0..20).filter(|capacity| *capacity < needed) {
                let refused = encode(&message, body, |b| b.fill(fill), &mut vec![0; capacity]);
                let Err(Error::BufferTooSmall { needed: reported_need, got: reported }) = refused else {
                    panic!("{body} bytes of body in a buffer of {capacity}: {refused:?}");
                };
                assert_eq!(reported, capacity);
                assert!(
                    capacity < reported_need && reported_need <= needed,
                    "{capacity} < {reported_need} <= {needed}"
                );
                if capacity >= wire_capacity(HEADER + head.len()) {
                    assert_eq!(
                        reported_need, needed,
                        "the reported length is not the one that the message needs"
                    );
                }
            }
            for capacity in needed..needed + 300 {
                let mut out = vec![0xAA; capacity];
                let n = encode(&message, body, |b| b.fill(fill), &mut out);
                assert_eq!(n, Ok(expected.len()), "{body} bytes of body in a buffer of {capacity}");
                assert_eq!(out[..expected.len()], expected);
            }
        }
    }
}

#[test]
fn encode_rejects_an_impossible_body_length() {
    let mut out = [0; 64];
    for body in [usize::MAX, usize::MAX - 1, usize::MAX - 64, usize::MAX / 2] {
        let refused = encode(&ToServer::Alive, body, |_| unreachable!(), &mut out);
        assert!(matches!(refused, Err(Error::BufferTooSmall { got: 64, .. })));
    }
}

#[test]
fn frame_limit_is_exact() {
    for length in 1..600 {
        let stream = frame_message(&vec![1; length]);
        let limit = HEADER + length + CHECK;
        let (at_limit, _) = decode_stream(limit, &stream, &[64]);
        assert_eq!(at_limit, [Event::Message(vec![1; length])]);
        let (over_limit, counters) = decode_stream(limit - 1, &stream, &[64]);
        assert_eq!(over_limit, [Event::Dropped(FrameError::Oversize)]);
        assert_eq!(counters.oversize, 1);
    }
}

#[test]
fn doubled_delimiters_are_accepted_lost_ones_are_not() {
    let (a, b) = (frame_message(b"a"), frame_message(b"b"));
    let doubled = [&[0, 0][..], &a, &[0, 0, 0], &b, &[0]].concat();
    let (events, counters) = decode_stream(16, &doubled, &[1]);
    assert_eq!(events, [Event::Message(b"a".to_vec()), Event::Message(b"b".to_vec())]);
    assert_eq!((counters.accepted, counters.framing), (2, 0));

    let without_delimiter = [&a[..a.len() - 1], &b, &b].concat();
    let (events, counters) = decode_stream(16, &without_delimiter, &[1]);
    assert_eq!(events.len(), 2);
    assert!(matches!(events[0], Event::Dropped(_)));
    assert_eq!(events[1], Event::Message(b"b".to_vec()));
    assert_eq!(counters.accepted, 1);
}

#[test]
fn truncated_frame_is_dropped_once() {
    let (a, b) = (frame_message(b"some message with a few\0zeros\0"), frame_message(b"b"));
    for kept_bytes in 1..a.len() - 1 {
        for stream in [[&a[..kept_bytes], &[0], &b].concat(), [&a[kept_bytes..], &b].concat()] {
            let (events, counters) = decode_stream(64, &stream, &[5]);
            assert_eq!(events.len(), 2, "cut at {kept_bytes}");
            assert!(matches!(events[0], Event::Dropped(_)), "cut at {kept_bytes}");
            assert_eq!(events[1], Event::Message(b"b".to_vec()));
            assert_eq!(counters.accepted, 1);
        }
    }
}

#[test]
fn each_frame_error_occurs() {
    let with_header = |header: u8| {
        let mut frame = plain_frame(b"x");
        frame[0] = header;
        let end = frame.len() - CHECK;
        let check = common::crc32c(&frame[..end]).to_le_bytes();
        frame[end..].copy_from_slice(&check);
        cobs_frame(&frame)
    };
    let mut wrong_check = plain_frame(b"x");
    wrong_check[1] ^= 1;
    for (stream, error) in [
        (vec![3, 1, 0], FrameError::Framing),
        (cobs_frame(&[HEADER_CRC32C, 0, 0, 0]), FrameError::Framing),
        (cobs_frame(&wrong_check), FrameError::Check),
        // No kind of frame has these two headers.
        (with_header(0x14), FrameError::Header(0x14)),
        (with_header(0x20), FrameError::Header(0x20)),
        (frame_message(&[1; 64]), FrameError::Oversize),
    ] {
        assert_eq!(decode_stream(16, &stream, &[64]).0, [Event::Dropped(error)]);
    }
}

/// Tests the form of encoders that end a message of full blocks with an empty block: it decodes to the same
/// bytes.
#[test]
fn empty_block_after_a_full_one_is_accepted() {
    let message = (0u64..).find_map(|seed| {
        let mut random = Random(seed);
        let message: Vec<u8> = (0..254 - HEADER - CHECK).map(|_| 1 + random.below(255) as u8).collect();
        plain_frame(&message).iter().all(|b| *b != 0).then_some(message)
    });
    let message = message.unwrap();
    let short = frame_message(&message);
    assert_eq!(short.len(), 256);
    let long = [&short[..255], &[1, 0]].concat();
    for stream in [short, long] {
        assert_eq!(decode_stream(254, &stream, &[9]).0, [Event::Message(message.clone())]);
    }
}

#[test]
fn mid_frame_lasts_from_first_byte_to_delimiter() {
    let mut decoder = Decoder::new([0; 8]);
    for part in [&[0, 0][..], &frame_message(b"whole"), &frame_message(b"x"), &[7, 7, 0]] {
        for (index, byte) in part.iter().enumerate() {
            feed(&mut decoder, &[*byte], |_| {});
            assert_eq!(decoder.is_mid_frame(), *byte != 0, "byte {index} of {part:?}");
        }
    }
    feed(&mut decoder, &[3], |_| {});
    decoder.reset();
    assert!(!decoder.is_mid_frame());
}

#[test]
fn reset_discards_only_the_unfinished_frame() {
    let frame = frame_message(b"whole");
    for received in 1..frame.len() {
        let mut decoder = Decoder::new([0; 64]);
        feed(&mut decoder, &frame[..received], |_| {});
        let before = decoder.counters();
        decoder.reset();
        assert_eq!(decoder.counters(), before);
        let mut read = Vec::new();
        feed(&mut decoder, &frame, |event| read.push(event));
        assert_eq!(read, [Event::Message(b"whole".to_vec())]);
    }
}
