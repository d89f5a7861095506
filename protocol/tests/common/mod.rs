//! Test helpers: framing that is independent of the crate under test, recorded events of a decoder, and a
//! small random generator.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

pub mod exchange;
pub mod golden;
pub mod strategies;

use fedspan_protocol::frame::{self, Decoder, FeedResult, FrameCounters, FrameError, HEADER_CRC32C};
use fedspan_protocol::limits::{CHECK, HEADER, wire_capacity};
use fedspan_protocol::message::Message;
use serde::Serialize;

/// Encodes a message without its body.
pub fn encode_message<M: Serialize>(message: &M) -> Vec<u8> {
    postcard::to_slice(message, &mut [0; 256]).unwrap().to_vec()
}

/// Frames a message and its body with `frame::encode`.
pub fn encode_frame<M: Message>(message: &M, body: &[u8]) -> Vec<u8> {
    let plain = HEADER + encode_message(message).len() + body.len() + CHECK;
    let mut out = vec![0xAA; wire_capacity(plain)];
    let n = frame::encode(message, body.len(), |b| b.copy_from_slice(body), &mut out).unwrap();
    out.truncate(n);
    out
}

/// Computes the CRC-32C bit by bit, from the parameters in SPEC.md.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg()))
    })
}

/// Returns header, message and check: a frame before COBS encoding.
pub fn plain_frame(message: &[u8]) -> Vec<u8> {
    let mut plain = vec![HEADER_CRC32C];
    plain.extend_from_slice(message);
    plain.extend_from_slice(&crc32c(&plain).to_le_bytes());
    plain
}

/// Encodes a frame with the `cobs` crate and appends the delimiter.
pub fn cobs_frame(plain: &[u8]) -> Vec<u8> {
    let mut wire = vec![0; cobs::max_encoding_length(plain.len()) + 2];
    let n = cobs::encode(plain, &mut wire);
    wire.truncate(n);
    wire.push(0);
    wire
}

/// Frames message bytes without the crate under test.
pub fn frame_message(message: &[u8]) -> Vec<u8> {
    cobs_frame(&plain_frame(message))
}

/// Event of a decoder, with owned bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Message(Vec<u8>),
    Sealed(Vec<u8>),
    Dropped(FrameError),
}

/// Feeds the bytes of one read to a decoder, and passes every event to `sink`. Each call of `feed` must
/// consume input.
pub fn feed<B: AsRef<[u8]> + AsMut<[u8]>>(
    decoder: &mut Decoder<B>,
    mut read: &[u8],
    mut sink: impl FnMut(Event),
) {
    loop {
        let length_before = read.len();
        match decoder.feed(&mut read) {
            FeedResult::NeedMore => {
                assert!(read.is_empty(), "NeedMore was returned before the input was consumed");
                return;
            }
            FeedResult::Message(m) => sink(Event::Message(m.to_vec())),
            FeedResult::Sealed(frame) => sink(Event::Sealed(frame.to_vec())),
            FeedResult::Dropped(error) => sink(Event::Dropped(error)),
        }
        assert!(read.len() < length_before, "the decoder consumed no byte");
    }
}

/// Decodes a stream in reads of the given lengths, repeated cyclically. Returns the events and the final
/// counters.
pub fn decode_stream(limit: usize, stream: &[u8], reads: &[usize]) -> (Vec<Event>, FrameCounters) {
    let mut decoder = Decoder::new(vec![0; limit]);
    let mut events = Vec::new();
    let mut remaining = stream;
    for &length in reads.iter().cycle() {
        let (read, tail) = remaining.split_at(length.clamp(1, remaining.len().max(1)).min(remaining.len()));
        feed(&mut decoder, read, |event| events.push(event));
        remaining = tail;
        if remaining.is_empty() {
            break;
        }
    }
    (events, decoder.counters())
}

/// SplitMix64 generator, so that test data are the same on every machine.
pub struct Random(pub u64);

impl Random {
    /// Returns 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns an integer below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Returns a uniform multiple of 2^-23 in -1..1, which is exact in f32.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// Returns a matrix of random elements, row-major.
    pub fn matrix(&mut self, rows: usize, cols: usize) -> Vec<f32> {
        (0..rows * cols).map(|_| self.unit()).collect()
    }
}
