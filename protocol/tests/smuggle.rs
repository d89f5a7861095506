//! Tests that no frame can hide in another: not in the tail of an oversized frame, and not after a lost,
//! doubled or cut delimiter, for any split of the stream into reads and every kind of frame that a decoder
//! accepts.

use crate::common::{Event, Random, feed, frame_message, golden};
use fedspan_protocol::frame::Decoder;

/// Frame limits that the tests cover exhaustively.
const LIMITS: [usize; 2] = [64, 128];

/// Kind of frame, with the function that frames a message.
struct Kind {
    name: &'static str,
    frame_message: fn(&[u8]) -> Vec<u8>,
}

const KINDS: [Kind; 1] = [Kind { name: "CRC-32C", frame_message }];

/// Message of the hidden frame.
const HIDDEN: &[u8] = &[6, 7, 1];
/// Message of the frame that must be decoded.
const SENTINEL: &[u8] = b"sentinel";

/// Returns nonzero bytes to place before the hidden frame: consecutive COBS blocks, a block that covers the
/// hidden frame, a block that ends just before it, and arbitrary bytes.
fn filler_bytes(offset: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut random = Random(offset as u64);
    let code = u8::try_from(offset).unwrap_or(0xFF);
    let noise: Vec<u8> = (0..offset).map(|_| 1 + random.below(255) as u8).collect();
    let mut ends_before = vec![0x02; offset];
    ends_before[0] = code;
    let mut valid = frame_message(&vec![1; offset.saturating_sub(6)]);
    // A whole frame without its delimiter, cut or extended to the length of the filler.
    valid.truncate(offset);
    valid.resize(offset, 0x03);
    [vec![0x01; offset], vec![0x02; offset], vec![0xFF; offset], ends_before, noise, valid].into_iter()
}

/// Decodes a stream in reads of one length. Returns the messages and the number of discarded frames.
fn decode_messages(limit: usize, stream: &[u8], read_length: usize) -> (Vec<Vec<u8>>, u32) {
    let mut decoder = Decoder::new(vec![0; limit]);
    let mut messages = Vec::new();
    let mut dropped = 0;
    for part in stream.chunks(read_length) {
        feed(&mut decoder, part, |event| match event {
            Event::Message(message) => messages.push(message),
            Event::Sealed(_) => panic!("nothing here is sealed"),
            Event::Dropped(_) => dropped += 1,
        });
    }
    (messages, dropped)
}

/// Tests an oversized frame whose tail contains a whole valid frame without the delimiter before it, at every
/// offset and for every read length up to twice the limit.
#[test]
fn oversized_frame_hides_no_frame() {
    let mut streams = 0;
    for Kind { name, frame_message } in KINDS {
        for limit in LIMITS {
            for offset in 1..=2 * limit {
                for filler in filler_bytes(offset) {
                    let stream = [&filler[..], &frame_message(HIDDEN), &frame_message(SENTINEL)].concat();
                    for read_length in 1..=2 * limit {
                        let (messages, dropped) = decode_messages(limit, &stream, read_length);
                        assert_eq!(
                            messages,
                            [SENTINEL],
                            "{name}: {limit}, offset {offset}, reads of {read_length}"
                        );
                        assert_eq!(dropped, 1, "one frame, one drop");
                        streams += 1;
                    }
                }
            }
        }
    }
    println!("{streams} streams, 0 hidden frames accepted");
}

/// Tests that only a delimiter begins a new frame after an oversized frame: a frame whose delimiter was lost
/// is discarded, doubled delimiters have no effect, and later frames are decoded.
#[test]
fn frames_resume_at_the_delimiter_after_an_oversized_frame() {
    for Kind { name, frame_message } in KINDS {
        let limit = 64;
        let hidden = frame_message(HIDDEN);
        for offset in limit - 16..=2 * limit {
            for filler in filler_bytes(offset) {
                for zeros in 1..4 {
                    let gap = vec![0; zeros];
                    let without_delimiter = &hidden[..hidden.len() - 1];
                    // Cases: the hidden frame's delimiter is lost; the frame is cut at any position; empty
                    // frames surround it.
                    let delimiter_lost =
                        [&gap, &filler[..], without_delimiter, &filler, &gap, &frame_message(SENTINEL)]
                            .concat();
                    let tails = (0..hidden.len() - 1).map(|start| {
                        [&filler[..], &hidden[start..], &gap, &frame_message(SENTINEL), &gap].concat()
                    });
                    for stream in tails.chain([delimiter_lost]) {
                        for read_length in [1, 2, 7, limit - 1, limit, limit + 1, 2 * limit] {
                            let (messages, _) = decode_messages(limit, &stream, read_length);
                            assert_eq!(
                                messages,
                                [SENTINEL],
                                "{name}: offset {offset}, reads of {read_length}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Tests two frames of which the first has no delimiter: neither is decoded, for any two golden messages, at
/// every split of the stream into two reads.
#[test]
fn frames_without_delimiter_between_are_not_decoded() {
    let goldens = golden::all_messages();
    for Kind { name, frame_message } in KINDS {
        for a in &goldens {
            for b in &goldens {
                let (mut stream, second) = (frame_message(&a.payload()), frame_message(&b.payload()));
                stream.pop();
                stream.extend(second);
                stream.extend(frame_message(SENTINEL));
                // Tries every split for short frames, and some splits for all frames.
                let step = (stream.len() / 24).max(1);
                for split in (1..stream.len()).step_by(step) {
                    let (mut decoder, mut messages) = (Decoder::new([0; 2048]), Vec::new());
                    for part in [&stream[..split], &stream[split..]] {
                        feed(&mut decoder, part, |event| {
                            if let Event::Message(message) = event {
                                messages.push(message);
                            }
                        });
                    }
                    assert_eq!(messages, [SENTINEL], "{name}: {} and {}, cut at {split}", a.name, b.name);
                }
            }
        }
    }
}
