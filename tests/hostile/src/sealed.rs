//! Fuzz target for the two ends of an encrypted connection. [`sealed`] delivers honest frames in any order,
//! damaged frames, frames of other senders, and noise. The counter window must agree with a second, simple
//! implementation.

use std::collections::BTreeSet;

use fedspan_protocol::frame::{HEADER_ANSWER, HEADER_SEALED, HEADER_SHORT};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::ToServer;
use fedspan_protocol::secure::{
    COUNTER, Channel, Key, NONCE, OpenError, SHORT_COUNTER, SHORT_TAG, Seals, TAG, WINDOW, Window,
};

use crate::script::Script;
use crate::{Work, reference};

/// Reference implementation of the counter window: the set of all accepted counters.
#[derive(Default)]
struct Model(BTreeSet<u64>);

impl Model {
    fn admits(&self, counter: u64) -> bool {
        let behind = self.0.last().is_some_and(|last| last.saturating_sub(counter) >= WINDOW);
        counter != u64::MAX && !behind && !self.0.contains(&counter)
    }

    /// Returns the counter with these low bits that is closest to the next one: from 2^15 behind it to 2^15 - 1 ahead.
    fn expand(&self, low: u16) -> u64 {
        let next = self.0.last().map_or(0, |last| last + 1);
        let first = next.saturating_sub(1 << 15);
        (first..first + (1 << 16)).find(|counter| *counter as u16 == low).expect("every low part occurs once")
    }
}

/// A frame of one of four senders: this connection's device, its server, a device with another key, or a
/// device with another nonce.
struct Frame {
    sender: usize,
    counter: u64,
    plain: Vec<u8>,
    body: Vec<u8>,
}

/// Channels under test, and the frames sealed so far.
struct Bench {
    senders: [Channel; 4],
    receiver: Channel,
    /// Second receiver of the same frames, which opens them with `try_open` (it keeps frames that do not
    /// open).
    twin: Channel,
    model: Model,
    frames: Vec<Frame>,
    /// Next counter of each sender.
    counters: [u64; 4],
    /// Form of the frames of the senders, and the forms that the receiver accepts.
    seals: (Seals, Seals),
    work: Work,
}

/// Largest number of frames in one script. The limit bounds the time of a short input.
const FRAMES: usize = 400;

/// Runs a script: seals frames, then delivers them in the order and number that the script states, damaged or
/// not.
pub fn sealed(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let key = |byte| Key::new(0, [byte; 32]);
    let (transcript, nonce) = ([script.byte(); 32], [script.byte(); NONCE]);
    let other_nonce = [!nonce[0]; NONCE];
    let sent = if nonce[0] & 1 == 1 { Seals::Short } else { Seals::Full };
    let accepted = if nonce[0] & 2 == 2 { Seals::Full } else { Seals::Either };
    let mut bench = Bench {
        senders: [
            Channel::device(&key(1), &transcript, &nonce),
            Channel::server(&key(1), &transcript, &nonce),
            Channel::device(&key(2), &transcript, &nonce),
            Channel::device(&key(1), &transcript, &other_nonce),
        ]
        .map(|channel| channel.with_seals(sent)),
        receiver: Channel::server(&key(1), &transcript, &nonce).with_seals(accepted),
        twin: Channel::server(&key(1), &transcript, &nonce).with_seals(accepted),
        model: Model::default(),
        frames: Vec::new(),
        counters: [0; 4],
        seals: (sent, accepted),
        work: Work::default(),
    };
    let (mut window, mut model) = (Window::default(), Model::default());
    while let Some(kind) = script.next() {
        match kind % 8 {
            0..=2 => {
                let length = script.index();
                bench.seal(usize::from(kind / 8) % 4, script.take(length));
                if kind % 8 > 0 {
                    bench.deliver(0, |_| {});
                }
            }
            3 => bench.deliver(script.index(), |_| {}),
            4 => {
                let ago = script.index();
                bench.deliver(ago, |frame| script.damage(frame));
            }
            5 => {
                let header = [HEADER_SEALED, HEADER_ANSWER, HEADER_SHORT, kind][usize::from(kind / 8 % 4)];
                let length = script.index();
                bench.open(&[&[header], script.take(length)].concat());
            }
            // Many frames, so that the window moves.
            6 => (0..script.byte()).for_each(|_| bench.seal(0, &[])),
            _ => {
                let mut number = [0; 8];
                let length = script.index() % 9;
                let bytes = script.take(length);
                number[..bytes.len()].copy_from_slice(bytes);
                // The counter is near the largest accepted one, or anywhere.
                let near = model.0.last().map_or(0, |last| last.wrapping_sub(100));
                let counter = u64::from_le_bytes(number).wrapping_add(if kind >= 128 { near } else { 0 });
                let (admits, before) = (window.admits(counter), window);
                assert_eq!(admits, model.admits(counter), "{counter} after {:?}", model.0);
                assert_eq!(window, before);
                window.accept(counter);
                if admits {
                    model.0.insert(counter);
                } else {
                    assert_eq!(window, before, "{counter} changed it");
                }
                assert!(!window.admits(counter));
                bench.work.steps += 1;
            }
        }
    }
    bench.work
}

impl Bench {
    /// Seals a frame of one of the senders and keeps it for delivery.
    fn seal(&mut self, sender: usize, body: &[u8]) {
        let counter = self.counters[sender];
        if self.frames.len() == FRAMES {
            return;
        }
        self.counters[sender] += 1;
        let mut wire = vec![0; wire_capacity(64 + body.len())];
        let fill = |buffer: &mut [u8]| buffer.copy_from_slice(body);
        let sent = self.senders[sender].seal(&ToServer::Alive, body.len(), fill, &mut wire).expect("room");
        let plain = reference::unstuff(&wire[..sent - 1]).expect("a frame");
        let (counter_len, tag_len) =
            if self.seals.0 == Seals::Short { (SHORT_COUNTER, SHORT_TAG) } else { (COUNTER, TAG) };
        assert_eq!(plain.len(), 1 + counter_len + 1 + body.len() + tag_len);
        self.frames.push(Frame { sender, counter, plain, body: body.to_vec() });
    }

    fn deliver(&mut self, ago: usize, damage: impl FnOnce(&mut [u8])) {
        let frame = self.frames.iter().rev().nth(ago).map(|frame| frame.plain.clone());
        let mut frame = frame.unwrap_or_default();
        damage(&mut frame);
        self.open(&frame);
    }

    /// Compares the results of `open` and `try_open`, and the bytes that remain in the frame, with the model.
    fn open(&mut self, bytes: &[u8]) {
        let before = format!("{:?}", self.receiver);
        let expected = self.expected(bytes);
        let mut copy = bytes.to_vec();
        match self.twin.try_open(&mut copy) {
            Ok(range) => assert_eq!(Ok(&copy[range]), expected.as_deref()),
            Err(error) => {
                assert_eq!(Err(&error), expected.as_deref());
                assert_eq!(copy, bytes, "try_open changed the frame");
                assert_eq!(format!("{:?}", self.twin), before);
            }
        }
        let mut copy = bytes.to_vec();
        let opened = self.receiver.open(&mut copy).map(<[u8]>::to_vec);
        assert_eq!(opened, expected);
        assert_eq!(format!("{:?}", self.receiver), format!("{:?}", self.twin));
        if opened.is_err() {
            assert!(copy.iter().all(|byte| *byte == 0), "the rejected frame was not zeroed");
            assert_eq!(format!("{:?}", self.receiver), before);
        }
        self.work.frames += 1;
        self.work.refused += u64::from(opened.is_err());
        self.work.steps += 2;
    }

    /// Returns the result that SPEC.md requires; the checks are of shape, then counter, then tag.
    fn expected(&mut self, bytes: &[u8]) -> Result<Vec<u8>, OpenError> {
        let (head, counter, tag) = match bytes.split_first() {
            Some((&HEADER_SEALED, after_header)) => {
                let counter = after_header.first_chunk().ok_or(OpenError::Malformed)?;
                (1 + COUNTER, u64::from_le_bytes(*counter), TAG)
            }
            Some((&HEADER_SHORT, after_header)) => {
                let low = after_header.first_chunk().ok_or(OpenError::Malformed)?;
                (1 + SHORT_COUNTER, self.model.expand(u16::from_le_bytes(*low)), SHORT_TAG)
            }
            Some((&HEADER_ANSWER, _)) => (1 + NONCE, 0, TAG),
            _ => return Err(OpenError::Malformed),
        };
        if bytes.len() < head + tag {
            return Err(OpenError::Malformed);
        }
        if tag == SHORT_TAG && self.seals.1 == Seals::Full {
            return Err(OpenError::Forged);
        }
        if !self.model.admits(counter) {
            return Err(OpenError::Replayed);
        }
        let honest = self.frames.iter().find(|frame| frame.sender == 0 && frame.plain == bytes);
        let frame = honest.ok_or(OpenError::Forged)?;
        assert_eq!(frame.counter, counter, "a counter that did not increase by one");
        self.model.0.insert(counter);
        // The message tag of `Alive`, then its body.
        Ok([&[5], &frame.body[..]].concat())
    }
}

/// Returns scripts with frames in order, in any order, twice, damaged and too late, and with windows near the
/// largest counters.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for setting in 0..8u8 {
        let mut seed = vec![setting, 7 * setting];
        for sender in 0..4u8 {
            seed.extend([
                1 + 8 * sender,
                3,
                1,
                2,
                3,
                8 * sender,
                2,
                0,
                0,
                3,
                0,
                3,
                1,
                3,
                2,
                4,
                0,
                1,
                9,
                0,
                1,
            ]);
        }
        seed.extend([5, 40]);
        seed.extend([setting; 40]);
        seed.extend([6, 70 + setting, 3, 0, 3, 62, 3, 63, 3, 64, 3, 65, 3, 64, 4, 30, 1, setting, 0, 0x80]);
        seeds.push(seed);
        let mut seed = vec![setting, 0];
        for counter in [0u64, 1, 63, 64, 65, 66, 2, 200, 137, 136, u64::MAX - 1, u64::MAX, u64::MAX - 64] {
            seed.extend([7, 8]);
            seed.extend(counter.wrapping_add(setting.into()).to_le_bytes());
            seed.extend([0x87, 1, 99 + setting, 0x87, 1, 36 + setting, 0x87, 1, 37 + setting]);
        }
        seeds.push(seed);
        seeds.push(vec![
            setting,
            1,
            5 + 8 * (setting % 3),
            30,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            1,
            2,
            3,
            2,
            1,
            7,
            3,
            0,
        ]);
    }
    seeds
}
