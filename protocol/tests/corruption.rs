//! Damaged golden frames never become another message: bit flips, bursts and splices of the bytes
//! on the wire, COBS codes and delimiters included.
//!
//! In the message bytes CRC-32C makes this certain: its Hamming distance is 6 up to 655 bytes, and it
//! finds every burst of up to 32 bits. A flip in a COBS code moves bytes about and leaves one chance
//! in 2^32 a frame; the golden frames are therefore tried, one by one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::{Event, Random, feed, golden, seal};
use fedspan_protocol::frame::Decoder;

/// One golden frame on a bench where damage is done to it.
struct Bench {
    name: &'static str,
    original: Vec<u8>,
    /// The frame, a delimiter in case the frame's own was hit, and a whole frame after it.
    stream: Vec<u8>,
    frame: usize,
    decoder: Decoder<[u8; 1024]>,
}

const SENTINEL: &[u8] = b"sentinel";

impl Bench {
    fn all() -> impl Iterator<Item = Self> {
        golden::all().into_iter().map(|golden| {
            let frame = golden.frame();
            Self {
                name: golden.name,
                original: golden.payload(),
                stream: [&frame[..], &[0], &seal(SENTINEL)].concat(),
                frame: frame.len(),
                decoder: Decoder::new([0; 1024]),
            }
        })
    }

    fn bits(&self) -> usize {
        self.frame * 8
    }

    fn flip(&mut self, bit: usize) {
        self.stream[bit / 8] ^= 1 << (bit % 8);
    }

    /// The stream as it is now yields the sentinel, and before it at most the original.
    fn check(&mut self) {
        let (mut sentinels, name) = (0, self.name);
        let (decoder, original) = (&mut self.decoder, &self.original);
        feed(decoder, &self.stream, |event| {
            if let Event::Message(message) = event {
                if message == SENTINEL {
                    sentinels += 1;
                } else {
                    assert!(message == *original, "{name} became another message");
                }
            }
        });
        assert_eq!(sentinels, 1, "{name}: no resync");
    }
}

#[test]
fn undamaged_frames_are_read() {
    for mut bench in Bench::all() {
        bench.check();
        assert_eq!(bench.decoder.counters().accepted, 2, "{}", bench.name);
    }
}

#[test]
fn no_flipped_bit_and_no_pair_within_64_bits_yields_another_message() {
    for mut bench in Bench::all() {
        for first in 0..bench.bits() {
            bench.flip(first);
            bench.check();
            for second in first + 1..(first + 64).min(bench.bits()) {
                bench.flip(second);
                bench.check();
                bench.flip(second);
            }
            bench.flip(first);
        }
    }
}

/// All bursts of up to 9 bits at every place; of the longer ones three patterns at every place.
#[test]
fn no_burst_up_to_32_bits_yields_another_message() {
    let mut random = Random(1);
    for mut bench in Bench::all() {
        let clean = bench.stream.clone();
        for first in 0..bench.bits() {
            for length in 1..=32.min(bench.bits() - first) {
                let inner = length.saturating_sub(2);
                let patterns = if length <= 9 { 1u64 << inner } else { 3 };
                for pattern in 0..patterns {
                    let middle = if length <= 9 { pattern } else { random.next() };
                    bench.flip(first);
                    for bit in 0..inner {
                        if middle >> bit & 1 == 1 {
                            bench.flip(first + 1 + bit);
                        }
                    }
                    if length > 1 {
                        bench.flip(first + length - 1);
                    }
                    bench.check();
                    bench.stream.copy_from_slice(&clean);
                }
            }
        }
    }
}

/// The head of one frame and the tail of another: at equal distance from start or end, and anywhere.
#[test]
fn no_splice_of_two_frames_yields_a_message() {
    let frames: Vec<Vec<u8>> = golden::all().iter().map(golden::Golden::frame).collect();
    let mut random = Random(2);
    let mut decoder = Decoder::new([0; 1024]);
    for a in &frames {
        for b in &frames {
            let mut cuts: Vec<(usize, usize)> = Vec::new();
            for i in 1..a.len().min(b.len()) {
                cuts.push((i, i));
                cuts.push((a.len() - i, b.len() - i));
            }
            cuts.extend((0..100).map(|_| (1 + random.below(a.len() - 1), random.below(b.len()))));
            for (i, j) in cuts {
                let spliced = [&a[..i], &b[j..]].concat();
                if spliced != *a && spliced != *b {
                    feed(&mut decoder, &spliced, |event| {
                        assert!(matches!(event, Event::Dropped(_)), "{a:x?}[..{i}] {b:x?}[{j}..]");
                    });
                }
            }
        }
    }
}
