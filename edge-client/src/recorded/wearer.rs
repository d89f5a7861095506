//! A recording as the samples of a device: the same windows in the same order as the simulator's client of
//! the same wearer has them (`sim/core/src/data`), and nothing of length m but the features that a board with the
//! room may keep.

use fedspan_protocol::message::RoundId;

use super::draw::{per_class, round_index};
use super::{CLASSES_MAX, DRAW_MAX, Recording};
use crate::error::SourceError;
use crate::features::FEATURES;
use crate::source::{SampleSource, Samples, Targets};

/// A few windows, by number.
#[derive(Clone, Copy, Debug)]
struct Few {
    numbers: [u16; CLASSES_MAX * DRAW_MAX],
    len: usize,
}

impl Few {
    const NONE: Self = Self { numbers: [0; CLASSES_MAX * DRAW_MAX], len: 0 };

    fn draw(recording: &Recording<'_>, count: u16, index: u64) -> Self {
        let mut few = Self::NONE;
        per_class(recording, count.into(), index, |number| {
            if let Some(place) = few.numbers.get_mut(few.len) {
                *place = number;
                few.len += 1;
            }
        });
        few
    }

    fn get(&self, index: usize) -> Option<usize> {
        self.numbers.get(index).filter(|_| index < self.len).copied().map(usize::from)
    }
}

/// Which windows a pass runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    All,
    Labelled,
    Head,
}

/// The source of one wearer.
#[derive(Debug)]
pub struct Wearer<'a> {
    recording: Recording<'a>,
    /// Features of all training windows, by number, where there is room for them.
    cache: Option<&'a [[f32; FEATURES]]>,
    /// Those that are labelled, where not all are.
    labelled: Few,
    /// Those that this round's head is fitted on.
    head: Few,
    round: Option<RoundId>,
    pass: Pass,
    next: usize,
    x: [f32; FEATURES],
    class: [u8; 1],
}

impl<'a> Wearer<'a> {
    /// The source; `room` receives the features of all training windows if it is large enough.
    #[must_use]
    pub fn new(recording: Recording<'a>, room: &'a mut [[f32; FEATURES]]) -> Self {
        let header = recording.header();
        let labelled = match header.labelled_per_class {
            0 => Few::NONE,
            count => Few::draw(&recording, count, header.wearer),
        };
        let cache = match room.get_mut(..recording.training_windows()) {
            Some(room) => {
                for (number, place) in room.iter_mut().enumerate() {
                    if let Some(window) = recording.training(number) {
                        recording.features(&window, place);
                    }
                }
                Some(&*room)
            }
            None => None,
        };
        Self {
            recording,
            cache,
            labelled,
            head: Few::NONE,
            round: None,
            pass: Pass::All,
            next: 0,
            x: [0.0; FEATURES],
            class: [0],
        }
    }

    /// Features are kept in RAM.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.cache.is_some()
    }

    /// Windows that train.
    #[must_use]
    pub fn windows(&self) -> usize {
        match self.recording.header().labelled_per_class {
            0 => self.recording.training_windows(),
            _ => self.labelled.len,
        }
    }
}

impl SampleSource for Wearer<'_> {
    fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
        self.pass = if self.recording.header().labelled_per_class == 0 { Pass::All } else { Pass::Labelled };
        self.next = 0;
        Ok(())
    }

    fn rewind_for_head(&mut self, id: RoundId) -> Result<bool, SourceError> {
        self.rewind(id)?;
        let header = self.recording.header();
        // Who has labelled a few windows fits on all of those.
        if header.head_per_class > 0 && self.pass == Pass::All {
            if self.round != Some(id) {
                let index = round_index(header.wearer, id.round);
                self.head = Few::draw(&self.recording, header.head_per_class, index);
                self.round = Some(id);
            }
            self.pass = Pass::Head;
        }
        Ok(self.pass == Pass::Head)
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        let number = match self.pass {
            Pass::All => index,
            Pass::Labelled => self.labelled.get(index)?,
            Pass::Head => self.head.get(index)?,
        };
        let window = self.recording.training(number)?;
        self.class = [window.class];
        let x = match self.cache.and_then(|cache| cache.get(number)) {
            Some(x) => x,
            None => {
                self.recording.features(&window, &mut self.x);
                &self.x
            }
        };
        Some(Samples { x, targets: Targets::Classes(&self.class) })
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        let index = self.next;
        self.next = index.saturating_add(1);
        self.at(index)
    }
}
