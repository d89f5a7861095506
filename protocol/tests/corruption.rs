//! Tests that damaged golden frames never decode to another message. The damage consists of flipped bits,
//! pairs, bursts and splices, in the frame's bytes (header, message, check) and in the bytes on the wire,
//! including COBS codes and delimiters.
//!
//! For damage to the frame's bytes CRC-32C guarantees this: its Hamming distance is 6 up to 655 bytes, and it
//! detects every burst of up to 32 bits. A flipped bit in a COBS code moves bytes, and is not detected with a
//! probability of 2^-32 per frame; the tests therefore try every golden frame and print the number of damaged
//! frames.

use crate::common::{Event, Random, cobs_frame, feed, frame_message, golden, plain_frame};
use fedspan_protocol::frame::Decoder;

/// Golden frame that a test damages.
struct Bench {
    name: &'static str,
    layer: Layer,
    original: Vec<u8>,
    /// Bytes to damage: the frame before COBS encoding, or its bytes on the wire.
    frame: Vec<u8>,
    clean: Vec<u8>,
    /// Received stream: the frame, a delimiter in case the frame's delimiter is damaged, and an intact frame.
    stream: Vec<u8>,
    decoder: Decoder<[u8; 1024]>,
    tried: u64,
}

/// Layer that is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    /// Header, message and check, before COBS encoding: damage in a receiver's memory, or on a line with
    /// other framing.
    Plain,
    /// Bytes on the wire.
    Wire,
}

const LAYERS: [Layer; 2] = [Layer::Plain, Layer::Wire];
/// Message of the intact frame after the damaged one.
const SENTINEL: &[u8] = b"sentinel";

impl Bench {
    /// Returns a bench for each golden frame.
    fn for_all_frames(layer: Layer) -> impl Iterator<Item = Self> {
        let tail = [&[0], &frame_message(SENTINEL)[..]].concat();
        golden::all_messages().into_iter().map(move |golden| {
            let frame = match layer {
                Layer::Plain => plain_frame(&golden.payload()),
                Layer::Wire => golden.frame(),
            };
            let stream = match layer {
                Layer::Plain => Vec::new(),
                Layer::Wire => [&frame[..], &tail].concat(),
            };
            Self {
                name: golden.name,
                layer,
                original: golden.payload(),
                clean: frame.clone(),
                frame,
                stream,
                decoder: Decoder::new([0; 1024]),
                tried: 0,
            }
        })
    }

    /// Returns the number of bits that can be damaged.
    fn bits(&self) -> usize {
        self.frame.len() * 8
    }

    /// Flips one bit.
    fn flip_bit(&mut self, bit: usize) {
        self.frame[bit / 8] ^= 1 << (bit % 8);
    }

    /// Flips the bits of `pattern`, shifted to start at bit `first`, and checks the result.
    fn check_burst(&mut self, first: usize, pattern: u64) {
        let mut remaining = pattern;
        while remaining != 0 {
            self.flip_bit(first + remaining.trailing_zeros() as usize);
            remaining &= remaining - 1;
        }
        self.check();
        let end = (first + 64 - pattern.leading_zeros() as usize).div_ceil(8);
        self.frame[first / 8..end].copy_from_slice(&self.clean[first / 8..end]);
    }

    /// Checks that the stream decodes to the sentinel frame, preceded by at most the original message.
    fn check(&mut self) {
        self.tried += 1;
        match self.layer {
            Layer::Plain => {
                self.stream = cobs_frame(&self.frame);
                self.stream.extend(frame_message(SENTINEL));
            }
            Layer::Wire => self.stream[..self.frame.len()].copy_from_slice(&self.frame),
        }
        let (mut sentinels, name) = (0, self.name);
        let (decoder, original, layer) = (&mut self.decoder, &self.original, self.layer);
        feed(decoder, &self.stream, |event| {
            if let Event::Message(message) = event {
                if message == SENTINEL {
                    sentinels += 1;
                } else {
                    assert!(message == *original, "{name} became another message");
                    assert!(layer == Layer::Wire, "{name}: the same message with another check");
                }
            }
        });
        assert_eq!(sentinels, 1, "{name}: no resync");
    }
}

/// Damages all golden frames on one layer, and returns the number of damaged frames.
fn run_on_all(damage_name: &str, layer: Layer, mut damage: impl FnMut(&mut Bench)) -> u64 {
    let tried = Bench::for_all_frames(layer)
        .map(|mut bench| {
            damage(&mut bench);
            bench.tried
        })
        .sum();
    println!("{damage_name}, {layer:?}: {tried} damaged frames, 0 accepted as another message");
    tried
}

#[test]
fn undamaged_frames_are_decoded() {
    for mut bench in Bench::for_all_frames(Layer::Wire) {
        bench.check();
        assert_eq!(bench.decoder.counters().accepted, 2, "{}", bench.name);
    }
}

#[test]
fn flipped_bits_and_pairs_yield_no_other_message() {
    for layer in LAYERS {
        let tried = run_on_all("bits and pairs", layer, |bench| {
            for first in 0..bench.bits() {
                bench.check_burst(first, 1);
                for second in first + 1..(first + 64).min(bench.bits()) {
                    bench.check_burst(first, 1 | 1 << (second - first));
                }
            }
        });
        assert!(tried > 1_400_000, "{tried}");
    }
}

/// Tries all bursts of up to `longest` bits.
fn try_every_burst(layer: Layer, longest: usize, selects: impl Fn(&Bench) -> bool) -> u64 {
    run_on_all(&format!("every burst of up to {longest} bits"), layer, |bench| {
        if !selects(bench) {
            return;
        }
        for first in 0..bench.bits() {
            for length in 1..=longest.min(bench.bits() - first) {
                let ends = 1u64 | 1 << (length - 1);
                for middle in 0..1u64 << length.saturating_sub(2) {
                    bench.check_burst(first, ends | middle << 1);
                }
            }
        }
    })
}

#[test]
fn bursts_up_to_12_bits_yield_no_other_message() {
    for layer in LAYERS {
        // Another test, which is ignored by default, covers the long frames: it takes half a minute.
        let tried = try_every_burst(layer, 12, |bench| bench.frame.len() <= 128);
        assert!(tried > 9_000_000, "{tried}");
        assert!(try_every_burst(layer, 9, |bench| bench.frame.len() > 128) > 1_000_000);
    }
}

#[test]
#[ignore = "minutes; for releases"]
fn bursts_up_to_12_bits_in_long_frames_yield_no_other_message() {
    for layer in LAYERS {
        try_every_burst(layer, 12, |bench| bench.frame.len() > 128);
    }
}

/// Tests random bursts of every length at every position, because there are too many longer bursts to try
/// all.
#[test]
fn bursts_up_to_32_bits_yield_no_other_message() {
    let mut random = Random(1);
    for layer in LAYERS {
        let tried = run_on_all("drawn bursts of 9 to 32 bits", layer, |bench| {
            for first in 0..bench.bits() {
                for length in 9..=32.min(bench.bits() - first) {
                    for _ in 0..2 {
                        let middle = random.next() & ((1 << (length - 2)) - 1);
                        bench.check_burst(first, 1 | 1 << (length - 1) | middle << 1);
                    }
                }
            }
        });
        assert!(tried > 1_000_000);
    }
}

/// Tests the start of one frame followed by the end of another: cut at the same distance from the start or
/// the end, and anywhere.
#[test]
fn spliced_frames_yield_no_message() {
    let frames: Vec<Vec<u8>> = golden::all_messages().iter().map(golden::Golden::frame).collect();
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
                        // A sealed frame does not count as accepted before a key has opened it.
                        let is_rejected = matches!(event, Event::Dropped(_) | Event::Sealed(_));
                        assert!(is_rejected, "{a:x?}[..{i}] {b:x?}[{j}..]");
                    });
                }
            }
        }
    }
}
