//! Fuzz targets for the frame decoder: [`frame`] feeds raw bytes in one read, and [`accumulator`] feeds
//! frames and raw bytes in reads of any length. Both targets compare the events with a reference decoder.

use fedspan_protocol::frame::{Decoder, FeedResult, FrameCounters};

use crate::reference::Frame;
use crate::script::Script;
use crate::{Work, honest, reference};

/// Events of a decoder.
#[derive(Debug, Default, PartialEq, Eq)]
struct Events {
    /// One entry for each frame, in order; `None` for a dropped frame.
    frames: Vec<Option<Frame>>,
    /// Number of calls of [`Decoder::feed`].
    steps: u64,
}

/// Feeds one read to the decoder. Every call must consume input.
fn feed_read<B: AsRef<[u8]> + AsMut<[u8]>>(decoder: &mut Decoder<B>, mut read: &[u8], events: &mut Events) {
    loop {
        let before = read.len();
        events.steps += 1;
        match decoder.feed(&mut read) {
            FeedResult::NeedMore => {
                assert!(read.is_empty(), "NeedMore although input is left");
                return;
            }
            FeedResult::Message(message) => events.frames.push(Some(Frame::Checked(message.to_vec()))),
            FeedResult::Sealed(frame) => events.frames.push(Some(Frame::Sealed(frame.to_vec()))),
            FeedResult::Dropped(_) => events.frames.push(None),
        }
        assert!(read.len() < before, "an event consumed no input");
    }
}

/// Returns the numbers of accepted, sealed and dropped frames.
pub fn totals(counters: FrameCounters) -> [u64; 3] {
    let FrameCounters { accepted, oversize, framing, check, header, sealed } = counters;
    let dropped = [oversize, framing, check, header].into_iter().map(u64::from).sum();
    [accepted.into(), sealed.into(), dropped]
}

/// Maps a byte of the input to a frame limit.
fn frame_limit(byte: u8) -> usize {
    match byte {
        0..=251 => byte.into(),
        252 => 256,
        253 => 1024,
        254 => 2048,
        255 => 4096,
    }
}

/// Compares the decoder's events and counters with the reference.
fn check_against_reference(events: &Events, counters: FrameCounters, stream: &[u8], limit: usize) -> Work {
    let mut expected = reference::sequences(stream).map(|sequence| reference::read(sequence, limit));
    for frame in &events.frames {
        assert_eq!(Some(frame), expected.next().as_ref(), "the decoder and the reference differ");
    }
    assert_eq!(expected.next(), None, "a frame without an event");
    let [accepted, sealed, dropped] = totals(counters);
    let (mut counted, event_count) = ([0; 2], events.frames.len() as u64);
    for frame in events.frames.iter().flatten() {
        counted[usize::from(matches!(frame, Frame::Sealed(_)))] += 1;
    }
    assert_eq!(([accepted, sealed], accepted + sealed + dropped), (counted, event_count), "{counters:?}");
    Work { frames: events.frames.len() as u64, refused: dropped, steps: events.steps }
}

/// Runs one input: a byte for the frame limit, then a stream.
pub fn frame(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let limit = frame_limit(script.byte());
    let stream = script.rest();
    let (mut decoder, mut events) = (Decoder::new(vec![0; limit]), Events::default());
    feed_read(&mut decoder, stream, &mut events);
    assert!(events.steps <= events.frames.len() as u64 + 1);
    let unfinished = stream.last().is_some_and(|byte| *byte != 0);
    assert_eq!(decoder.is_mid_frame(), unfinished);
    let work = check_against_reference(&events, decoder.counters(), stream, limit);
    // The decoder resynchronises: after any stream it must read the next frame.
    if limit >= 5 + SENTINEL.len() {
        events.frames.clear();
        feed_read(&mut decoder, &[0], &mut events);
        events.frames.clear();
        feed_read(&mut decoder, &reference::encode_plain(SENTINEL), &mut events);
        assert_eq!(
            events.frames,
            [Some(Frame::Checked(SENTINEL.to_vec()))],
            "the decoder did not resynchronise"
        );
    }
    work
}

const SENTINEL: &[u8] = b"sentinel";

/// Runs one input: a byte for the frame limit, the number of read lengths, the lengths, then pieces of a
/// stream (raw bytes, frames, frames without delimiter, delimiters, damaged frames).
pub fn accumulator(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let limit = frame_limit(script.byte());
    let count = script.index();
    let lengths = script.take(count);
    let mut stream = Vec::new();
    while let Some(kind) = script.next() {
        let length = script.index();
        match kind % 5 {
            0 => stream.extend_from_slice(script.take(length)),
            1 => stream.extend(reference::encode_plain(script.take(length))),
            2 => {
                stream.extend(reference::encode_plain(script.take(length)));
                stream.pop();
            }
            3 => stream.resize(stream.len() + length % 4, 0),
            _ => {
                let mut frame = reference::encode_plain(script.take(length));
                script.damage(&mut frame);
                stream.extend(frame);
            }
        }
    }
    let (mut decoder, mut events_of_one_read) = (Decoder::new(vec![0; limit]), Events::default());
    feed_read(&mut decoder, &stream, &mut events_of_one_read);
    let work = check_against_reference(&events_of_one_read, decoder.counters(), &stream, limit);

    let (mut decoder, mut events_of_parts) = (Decoder::new(vec![0; limit]), Events::default());
    let (mut unread, mut reads) = (stream.as_slice(), 0);
    // A read may be empty, but not twice in a row.
    for length in lengths.iter().map(|length| usize::from(*length)).chain(std::iter::repeat(usize::MAX)) {
        let (read, tail) = unread.split_at(length.min(unread.len()));
        feed_read(&mut decoder, read, &mut events_of_parts);
        reads += 1;
        unread = tail;
        if unread.is_empty() {
            break;
        }
    }
    assert_eq!(
        events_of_parts.frames, events_of_one_read.frames,
        "the frames depend on the lengths of the reads"
    );
    assert!(events_of_parts.steps <= events_of_parts.frames.len() as u64 + reads);
    check_against_reference(&events_of_parts, decoder.counters(), &stream, limit);
    Work { frames: 2 * work.frames, refused: 2 * work.refused, steps: work.steps + events_of_parts.steps }
}

/// Returns seeds of [`frame`]: each golden frame with frame limits near its length, and groups of four
/// frames.
pub fn frame_seeds() -> Vec<Vec<u8>> {
    let frames = honest::golden_frames();
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for frame in &frames {
        let shortest = frame.len().min(251) as u8;
        for limit in [255, 252, shortest, shortest.saturating_sub(2), shortest.saturating_sub(3)] {
            seeds.push([&[limit][..], frame].concat());
        }
    }
    for group in frames.chunks(4) {
        seeds.push([&[128][..], &group.concat()].concat());
    }
    seeds
}

/// Returns seeds of [`accumulator`]: each golden message as every kind of piece, twice, in short reads.
pub fn accumulator_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (index, message) in honest::golden_messages().iter().enumerate() {
        let length = message.len().min(255);
        for kind in 0..5u8 {
            let piece = [&[kind, length as u8][..], &message[..length]].concat();
            let head = [128u8, 3, 1, 7, index as u8];
            seeds.push([&head[..], &piece, &[3, 1], &piece].concat());
        }
    }
    seeds
}
