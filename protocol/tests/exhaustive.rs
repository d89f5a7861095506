//! Exhaustive tests over small domains: varints, headers, short streams, descriptors on a grid of edge
//! values, and all frame limits. These tests replace a model checker.

use crate::common;
use crate::common::{Event, cobs_frame, decode_stream, encode_message, plain_frame};
use fedspan_protocol::Error;
use fedspan_protocol::assembly::{Assembly, plan};
use fedspan_protocol::frame::{FrameError, HEADER_ANSWER, HEADER_CRC32C, HEADER_SEALED, HEADER_SHORT};
use fedspan_protocol::limits::{
    CHUNK_OVERHEAD, CHUNKS_MAX, FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, cobs_overhead, wire_capacity,
};
use fedspan_protocol::message::{Descriptors, RoundId, ToDevice, Welcome, decode};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

const ENCODINGS: [Encoding; 4] = [Encoding::F32, Encoding::F16, Encoding::I8, Encoding::I8TopK];

/// Decodes a varint of at most `bits` bits as SPEC.md defines it: seven bits per byte, the lowest first, with
/// the top bit set if more bytes follow. Returns the number and the remaining bytes. Returns `None` if the
/// bytes end too early or continue too long, or if the number is too large.
fn decode_varint(bytes: &[u8], bits: u32) -> Option<(u64, &[u8])> {
    let mut value = 0u128;
    for (index, byte) in bytes.iter().enumerate().take(bits.div_ceil(7) as usize) {
        value |= u128::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            let value = u64::try_from(value).ok()?;
            return (u128::from(value) < 1 << bits).then_some((value, &bytes[index + 1..]));
        }
    }
    None
}

/// Returns the expected result of decoding a message that consists of a tag and one number.
fn expected_number(bytes: &[u8], bits: u32) -> Result<u64, Error> {
    match decode_varint(bytes, bits) {
        Some((value, [])) => Ok(value),
        Some((_, rest)) => Err(Error::TrailingBytes { count: rest.len() }),
        None => Err(Error::Malformed),
    }
}

/// Decodes a `RetryAfter` and returns its number of 32 bits.
fn decode_retry_after(bytes: &[u8]) -> Result<u64, Error> {
    match decode::<ToDevice>(bytes)? {
        (ToDevice::RetryAfter { milliseconds }, _) => Ok(milliseconds.into()),
        other => panic!("{other:?}"),
    }
}

/// Decodes a `RoundClosed` of round 1 and returns its stage, a number of 16 bits.
fn decode_stage(bytes: &[u8]) -> Result<u64, Error> {
    match decode::<ToDevice>(bytes)? {
        (ToDevice::RoundClosed(RoundId { round: 1, stage }), _) => Ok(stage.into()),
        other => panic!("{other:?}"),
    }
}

/// Tests every sequence of up to three bytes, decoded as a `u32` and as a `u16`: 2 x 16,843,009 sequences.
#[test]
fn varints_of_up_to_three_bytes_decode_as_specified() {
    let tag = |message: &ToDevice| encode_message(message)[0];
    let retry_tag = tag(&ToDevice::RetryAfter { milliseconds: 0 });
    let closed_tag = tag(&ToDevice::RoundClosed(RoundId::default()));
    for length in 0..=3u32 {
        for bits in 0..1u32 << (8 * length) {
            let [a, b, c, _] = bits.to_le_bytes();
            let number = &[a, b, c][..length as usize];
            let bytes = [retry_tag, a, b, c];
            let end = 1 + length as usize;
            assert_eq!(decode_retry_after(&bytes[..end]), expected_number(number, 32), "{number:x?}");
            let message = [closed_tag, 1, a, b, c];
            assert_eq!(decode_stage(&message[..end + 1]), expected_number(number, 16), "{number:x?}");
        }
    }
}

/// Tests numbers of 1 to 12 bytes, with every value of their last byte, as numbers of 32 and 64 bits.
#[test]
fn varints_at_their_maximum_length_decode_as_specified() {
    let welcome_tag = encode_message(&ToDevice::Welcome(Welcome { campaign: 0, idle_milliseconds: 0 }))[0];
    let retry_tag = encode_message(&ToDevice::RetryAfter { milliseconds: 0 })[0];
    for filler in [0x80, 0x81, 0xFF] {
        for length in 1..=12 {
            for last in 0..=u8::MAX {
                let mut number = vec![filler; length];
                number[length - 1] = last;
                let short = [&[retry_tag][..], &number].concat();
                assert_eq!(decode_retry_after(&short), expected_number(&number, 32), "{number:x?}");
                // The message has a number of 64 bits, followed by one of 32 bits.
                let two_numbers = [&number[..], &[0]].concat();
                let long = [&[welcome_tag][..], &two_numbers].concat();
                let fields = decode_varint(&two_numbers, 64).and_then(|(campaign, rest)| {
                    decode_varint(rest, 32).map(|(idle, rest)| (campaign, idle, rest))
                });
                let expected = match fields {
                    Some((campaign, idle, [])) => {
                        let idle_milliseconds = u32::try_from(idle).unwrap();
                        Ok(ToDevice::Welcome(Welcome { campaign, idle_milliseconds }))
                    }
                    Some((_, _, rest)) => Err(Error::TrailingBytes { count: rest.len() }),
                    None => Err(Error::Malformed),
                };
                assert_eq!(decode(&long).map(|(message, _)| message), expected, "{number:x?}");
            }
        }
    }
}

/// Tests every first byte of a frame with a correct check: only the CRC-32C header makes the frame a message,
/// and only sealed headers make it a sealed frame.
#[test]
fn only_known_headers_are_accepted() {
    let sealed = plain_frame(&[7, 1, 0]);
    for header in 0..=u8::MAX {
        let mut frame = sealed.clone();
        frame[0] = header;
        let end = frame.len() - 4;
        let check = common::crc32c(&frame[..end]).to_le_bytes();
        frame[end..].copy_from_slice(&check);
        let (events, counters) = decode_stream(64, &cobs_frame(&frame), &[64]);
        assert_eq!(events.len(), 1);
        let message = events[0] == Event::Message(vec![7, 1, 0]);
        assert_eq!(message, header == HEADER_CRC32C, "{header:#x}: {events:?}");
        let sealed = events[0] == Event::Sealed(frame);
        assert_eq!(
            sealed,
            matches!(header, HEADER_SEALED | HEADER_ANSWER | HEADER_SHORT),
            "{header:#x}: {events:?}"
        );
        assert_eq!((counters.accepted, counters.sealed), (u32::from(message), u32::from(sealed)));
        let dropped = matches!(events[0], Event::Dropped(FrameError::Header(other)) if other == header);
        assert_eq!((dropped, counters.header), (!message && !sealed, u32::from(dropped)), "{events:?}");
    }
}

/// Tests every stream of up to three bytes, and every stream of up to nine bytes among the values at which a
/// COBS decoder branches: no stream yields a message, and each sequence between delimiters is one discarded
/// frame.
#[test]
fn short_streams_yield_no_message() {
    let check_stream = |stream: &[u8]| {
        let sequences = stream.split(|byte| *byte == 0).rev().skip(1).filter(|s| !s.is_empty()).count();
        let (events, counters) = decode_stream(4, stream, &[2]);
        assert_eq!(events.len(), sequences, "{stream:x?}");
        assert!(events.iter().all(|event| matches!(event, Event::Dropped(_))), "{stream:x?}: {events:?}");
        let dropped = counters.oversize + counters.framing + counters.check + counters.header;
        assert_eq!((counters.accepted, dropped as usize), (0, sequences));
    };
    for length in 1..=2u32 {
        for bits in 0..1u32 << (8 * length) {
            check_stream(&bits.to_le_bytes()[..length as usize]);
        }
    }
    let symbols = [0u8, 1, 2, 3, 0xFF];
    for length in 3..=9u32 {
        for mut number in 0..5u32.pow(length) {
            let stream: Vec<u8> = (0..length)
                .map(|_| {
                    let symbol = symbols[number as usize % 5];
                    number /= 5;
                    symbol
                })
                .collect();
            check_stream(&stream);
        }
    }
}

/// Tests every combination of sides, chunk lengths and encodings at the edges: an accepted descriptor has at
/// most [`CHUNKS_MAX`] chunks, which tile its elements and fit a frame.
#[test]
fn accepted_descriptors_tile_their_elements() {
    let sides = [
        0u16, 1, 2, 3, 31, 32, 33, 63, 64, 127, 128, 255, 256, 257, 511, 512, 1023, 1024, 2047, 2048, 4095,
        4096, 8192, 32_767, 32_768, 65_534, 65_535,
    ];
    let (mut accepted, mut refused) = (0, 0);
    for encoding in ENCODINGS {
        for rows in sides {
            for cols in sides {
                for chunk in sides {
                    let tensor = TensorDescriptor { role: Role::Gradient, encoding, rows, cols, chunk };
                    let tensors: Descriptors = std::iter::once(tensor).collect();
                    let valid = tensor.validate();
                    assert_eq!(Assembly::new(&tensors).is_ok(), valid.is_ok());
                    if valid.is_err() {
                        refused += 1;
                        continue;
                    }
                    accepted += 1;
                    let mut next = 0;
                    for index in 0..tensor.chunks() {
                        let range = tensor.chunk_range(index).unwrap();
                        assert_eq!(range.start, next);
                        assert!(encoding.byte_len(range.len()) <= FRAME_LIMIT_MAX);
                        next = range.end;
                    }
                    assert!(tensor.chunks() <= CHUNKS_MAX, "{tensor:?}");
                    let expected_end = if chunk == 0 { 0 } else { tensor.elements() };
                    assert_eq!(next, expected_end, "{tensor:?}");
                    assert!(chunk != 0 || tensor.byte_len() <= FRAME_LIMIT_MAX);
                }
            }
        }
    }
    println!("{accepted} descriptors accepted, {refused} refused");
    assert!(accepted > 1000 && refused > 1000);
}

/// Tests every frame limit that a hello can contain.
#[test]
fn every_frame_limit_can_be_planned() {
    let shapes = [(1u16, 1u16), (20, 2), (64, 4), (128, 8), (784, 10), (65_535, 1)];
    for limit in 0..=usize::from(u16::MAX) {
        assert_eq!(wire_capacity(limit), limit + cobs_overhead(limit));
        assert!(limit == 0 || wire_capacity(limit) > wire_capacity(limit - 1));
        for encoding in ENCODINGS {
            let elements = encoding.chunk_elements(limit);
            assert!(elements == 0 || CHUNK_OVERHEAD + encoding.byte_len(elements) <= limit, "{limit}");
            assert!(elements.is_multiple_of(encoding.granularity()));
            assert!(limit < FRAME_LIMIT_MIN || elements > 0);
        }
        // Planning takes longer, so only some limits above the largest frame limit are tested.
        if limit > FRAME_LIMIT_MAX && !limit.is_multiple_of(97) {
            continue;
        }
        for (rows, cols) in shapes {
            for encoding in ENCODINGS {
                let tensor = TensorDescriptor::inline(Role::Representation, encoding, rows, cols);
                let mut tensors: Descriptors = std::iter::once(tensor).collect();
                if plan(&mut tensors, limit).is_err() {
                    continue;
                }
                let longest = match usize::from(tensors[0].chunk) {
                    0 => tensor.byte_len(),
                    chunk => encoding.byte_len(chunk.min(tensor.elements())),
                };
                assert!(CHUNK_OVERHEAD + longest <= limit, "{tensors:?} in {limit}");
            }
        }
    }
}
