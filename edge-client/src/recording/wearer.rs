//! Sample source over a recording: returns the same windows in the same order as the simulator's client of
//! the same wearer (`sim/core/src/data`). No buffer grows with the number of windows, except an optional
//! cache of features.

use fedspan_protocol::message::RoundId;

use super::draw::{draw_per_class, round_index};
use super::{CLASSES_MAX, DRAW_MAX, Recording};
use crate::error::SourceError;
use crate::features::FEATURES;
use crate::source::{SampleSource, Samples, Targets};

/// Short list of window numbers.
#[derive(Clone, Copy, Debug)]
struct WindowList {
    /// Window numbers; only the first `len` are valid.
    numbers: [u16; CLASSES_MAX * DRAW_MAX],
    len: usize,
}

impl WindowList {
    /// Empty list.
    const NONE: Self = Self { numbers: [0; CLASSES_MAX * DRAW_MAX], len: 0 };

    /// Draws `count` windows of each class.
    fn draw(recording: &Recording<'_>, count: u16, index: u64) -> Self {
        let mut list = Self::NONE;
        draw_per_class(recording, count.into(), index, |number| {
            if let Some(target) = list.numbers.get_mut(list.len) {
                *target = number;
                list.len += 1;
            }
        });
        list
    }

    /// Returns the window number at `index`; `None` beyond the end of the list.
    fn get(&self, index: usize) -> Option<usize> {
        self.numbers.get(index).filter(|_| index < self.len).copied().map(usize::from)
    }
}

/// Set of windows that a pass covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// All training windows.
    All,
    /// Labelled windows.
    Labelled,
    /// Windows on which the round's head is fitted.
    Head,
}

/// Sample source over the recording of one wearer.
#[derive(Debug)]
pub struct WearerSource<'a> {
    recording: Recording<'a>,
    /// Features of all training windows, by number, if there is enough memory.
    cache: Option<&'a [[f32; FEATURES]]>,
    /// Labelled windows; unused if all windows are labelled.
    labelled: WindowList,
    /// Windows on which this round's head is fitted.
    head: WindowList,
    /// Round for which `head` was drawn.
    round: Option<RoundId>,
    /// Set of windows of the current pass.
    pass: Pass,
    /// Index of the next window in the pass.
    next: usize,
    x: [f32; FEATURES],
    class: [u8; 1],
}

impl<'a> WearerSource<'a> {
    /// Creates a source over `recording`. If `room` is large enough, the features of all training windows are
    /// computed into it once.
    #[must_use]
    pub fn new(recording: Recording<'a>, buffer: &'a mut [[f32; FEATURES]]) -> Self {
        let header = recording.header();
        let labelled = match header.labelled_per_class {
            0 => WindowList::NONE,
            count => WindowList::draw(&recording, count, header.wearer),
        };
        let cache = match buffer.get_mut(..recording.training_windows()) {
            Some(buffer) => {
                for (number, features) in buffer.iter_mut().enumerate() {
                    if let Some(window) = recording.training(number) {
                        recording.features(&window, features);
                    }
                }
                Some(&*buffer)
            }
            None => None,
        };
        Self {
            recording,
            cache,
            labelled,
            head: WindowList::NONE,
            round: None,
            pass: Pass::All,
            next: 0,
            x: [0.0; FEATURES],
            class: [0],
        }
    }

    /// Returns true if the features are cached in RAM.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.cache.is_some()
    }

    /// Returns the number of windows in a training pass.
    #[must_use]
    pub fn windows(&self) -> usize {
        match self.recording.header().labelled_per_class {
            0 => self.recording.training_windows(),
            _ => self.labelled.len,
        }
    }
}

impl SampleSource for WearerSource<'_> {
    fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
        self.pass = if self.recording.header().labelled_per_class == 0 { Pass::All } else { Pass::Labelled };
        self.next = 0;
        Ok(())
    }

    fn rewind_for_head(&mut self, id: RoundId) -> Result<bool, SourceError> {
        self.rewind(id)?;
        let header = self.recording.header();
        // A wearer with only a few labelled windows fits the head on all of them.
        if header.head_per_class > 0 && self.pass == Pass::All {
            if self.round != Some(id) {
                let index = round_index(header.wearer, id.round);
                self.head = WindowList::draw(&self.recording, header.head_per_class, index);
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
