//! Receiver's half: collects the fragments of a frame.

use core::ops::Range;

use super::{FRAME_MAX, LAST, NUMBER, UNIT, UNITS};

/// Numbers of packets, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounters {
    /// Number of times that a frame was complete. A frame that the network repeats counts each time, because only the
    /// session recognises it.
    pub frames: u32,
    /// Number of fragments that had arrived before, of a frame that was incomplete.
    pub repeated_fragments: u32,
    /// Number of packets that are neither a frame nor a fragment, or whose frame is too long for the receiver.
    pub malformed: u32,
    /// Number of frames of which a part was missing when the next frame began.
    pub incomplete: u32,
}

/// Receiver's half: collects the fragments of one frame at a time in a buffer of the caller.
#[derive(Debug)]
pub struct Reassembler<B> {
    buffer: B,
    /// Number of the frame that is being collected.
    number: Option<u8>,
    /// Bitmap of the units that have arrived.
    units: [u32; UNITS / 32],
    /// Length of the frame, once its last fragment has arrived.
    length: Option<usize>,
    counters: PacketCounters,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Reassembler<B> {
    /// Creates a receiver of frames that are at most as long as `buffer`.
    pub fn new(buffer: B) -> Self {
        Self {
            buffer,
            number: None,
            units: [0; UNITS / 32],
            length: None,
            counters: PacketCounters::default(),
        }
    }

    /// Returns the counters since creation.
    #[must_use]
    pub fn counters(&self) -> PacketCounters {
        self.counters
    }

    /// Returns true while a frame is incomplete.
    #[must_use]
    pub fn is_mid_frame(&self) -> bool {
        self.number.is_some()
    }

    /// Forgets an incomplete frame, for a new link.
    pub fn reset(&mut self) {
        self.number = None;
    }

    /// Returns the length of the frame that this packet completes; its bytes are then at the start of [`Self::frame_mut`].
    pub fn receive(&mut self, packet: &[u8]) -> Option<usize> {
        let frame = match packet.first() {
            Some(0x10..=0x1f) => self.take_whole(packet),
            Some(0x20..=0x3f) => self.take_fragment(packet),
            _ => Err(()),
        };
        match frame {
            Ok(length) => {
                self.counters.frames = self.counters.frames.saturating_add(length.is_some().into());
                length
            }
            Err(()) => {
                self.counters.malformed = self.counters.malformed.saturating_add(1);
                None
            }
        }
    }

    /// Returns the bytes of the last complete frame, with `length` from [`Self::receive`].
    pub fn frame_mut(&mut self, length: usize) -> &mut [u8] {
        self.buffer.as_mut().get_mut(..length).unwrap_or_default()
    }

    fn take_whole(&mut self, packet: &[u8]) -> Result<Option<usize>, ()> {
        self.abandon();
        let target = self.buffer.as_mut().get_mut(..packet.len()).ok_or(())?;
        target.iter_mut().zip(packet).for_each(|(target, byte)| *target = *byte);
        Ok(Some(packet.len()))
    }

    fn take_fragment(&mut self, packet: &[u8]) -> Result<Option<usize>, ()> {
        let [first, offset, content @ ..] = packet else { return Err(()) };
        let (is_last, number) = (first & LAST == LAST, first & NUMBER);
        let start = usize::from(*offset) * UNIT;
        let end = start + content.len();
        let has_units = is_last || content.len().is_multiple_of(UNIT);
        if content.is_empty() || !has_units || end > FRAME_MAX || end > self.buffer.as_ref().len() {
            return Err(());
        }
        if self.number != Some(number) {
            self.abandon();
            (self.number, self.units, self.length) = (Some(number), [0; UNITS / 32], None);
        }
        let units = usize::from(*offset)..end.div_ceil(UNIT);
        // A fragment beyond the end, or a second end, belongs to another frame with the same number.
        let is_beyond = self.length.is_some_and(|length| end > length || is_last && end != length);
        if is_beyond || is_last && self.has_any(units.end..UNITS) {
            return Err(());
        }
        if units.clone().all(|unit| self.has(unit)) {
            self.counters.repeated_fragments = self.counters.repeated_fragments.saturating_add(1);
            return Ok(None);
        }
        let target = self.buffer.as_mut().get_mut(start..end).ok_or(())?;
        target.iter_mut().zip(content).for_each(|(target, byte)| *target = *byte);
        for unit in units {
            if let Some(word) = self.units.get_mut(unit / 32) {
                *word |= 1 << (unit % 32);
            }
        }
        if is_last {
            self.length = Some(end);
        }
        let length = self.length.filter(|length| (0..length.div_ceil(UNIT)).all(|unit| self.has(unit)));
        if length.is_some() {
            self.number = None;
        }
        Ok(length)
    }

    /// Counts the frame that is being collected as incomplete.
    fn abandon(&mut self) {
        if self.number.take().is_some() {
            self.counters.incomplete = self.counters.incomplete.saturating_add(1);
        }
    }

    fn has(&self, unit: usize) -> bool {
        self.units.get(unit / 32).is_some_and(|word| word >> (unit % 32) & 1 == 1)
    }

    fn has_any(&self, mut units: Range<usize>) -> bool {
        units.any(|unit| self.has(unit))
    }
}
