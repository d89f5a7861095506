//! Where samples come from.
//!
//! A *replayable* source can be read twice in a round: a recording in flash or RAM. It implements
//! [`SampleSource`]. A sensor whose samples are seen once and dropped needs no source: each sample is
//! handed to the session as an event (see [`crate::session::Event::Sample`]), and nothing of length `m`
//! exists anywhere.

use fedspan_protocol::message::RoundId;

use crate::error::SourceError;
use crate::kernel::Four;

/// Samples that can be read more than once. How a label reaches the device (a button, a schedule, a
/// message over the same serial line) is the implementor's: see `examples/own_sensor.rs`.
pub trait SampleSource {
    /// Starts a pass over the samples of `id`. All passes of one round must give the same samples in the
    /// same order; another round may bring others.
    ///
    /// # Errors
    /// [`SourceError`] where the storage fails. The round is then declined.
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError>;

    /// Starts a pass over the samples that a training round's *head* is fitted on, if those are not all of
    /// them. A source that hands out a small part here (a few windows a class, drawn anew each round) trains
    /// a representation on which a head can be fitted from few samples.
    ///
    /// False, with nothing done, if they are all: [`Self::rewind`] is called instead, and what has been
    /// computed from a sample for the head is used again.
    ///
    /// # Errors
    /// As [`Self::rewind`].
    fn rewind_for_head(&mut self, _id: RoundId) -> Result<bool, SourceError> {
        Ok(false)
    }

    /// Sample `index` of the round that was last rewound to, where samples can be read in any order: stochastic gradient
    /// descent takes them in another order in each epoch. The same samples in the order of a pass; `None` beyond the last,
    /// and for all where only passes are possible.
    fn at(&mut self, _index: usize) -> Option<Samples<'_>> {
        None
    }

    /// The samples of the pass that was last begun from `index` on, at least one and at most `most`; `None` beyond the
    /// last, and for all where only passes are possible. One at a time unless the source says otherwise; how many
    /// come at once has no influence on the result.
    fn samples_from(&mut self, index: usize, _most: usize) -> Option<Samples<'_>> {
        self.at(index)
    }

    /// The next few samples, at least one; `None` at the end of the pass. How many come at once has no
    /// influence on the result, not even on its last bit.
    fn next(&mut self) -> Option<Samples<'_>>;
}

/// A few samples with their targets.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// Row-major, n x d.
    pub x: &'a [f32],
    /// n targets.
    pub targets: Targets<'a>,
}

/// What the head should answer.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a> {
    /// Regression: row-major, n x C.
    Values(&'a [f32]),
    /// Classification: n class numbers below C, fitted as one-hot vectors.
    Classes(&'a [u8]),
}

impl Targets<'_> {
    /// Value `output` of C of target `index`. `None` if there is none, or its class is C or more.
    pub(crate) fn value(&self, index: usize, output: usize, outputs: usize) -> Option<f32> {
        match *self {
            Self::Values(values) => values.get(index * outputs + output).copied(),
            Self::Classes(classes) => {
                let class =
                    classes.get(index).map(|&class| usize::from(class)).filter(|&class| class < outputs)?;
                Some(if class == output { 1.0 } else { 0.0 })
            }
        }
    }

    /// Writes target `index` into `y` (C values). False if there is none, or its class is C or more.
    #[must_use]
    pub(crate) fn write(&self, index: usize, y: &mut [f32]) -> bool {
        let outputs = y.len();
        y.iter_mut()
            .enumerate()
            .all(|(output, place)| self.value(index, output, outputs).map(|value| *place = value).is_some())
    }

    /// Writes targets `first..first + 4` into `y` (C fours). False if one is missing, or of an unknown class.
    #[must_use]
    pub(crate) fn write_four(&self, first: usize, y: &mut [Four]) -> bool {
        if let (Self::Values(values), [four]) = (self, &mut *y) {
            let next = values.get(first..).and_then(<[f32]>::first_chunk);
            return next.map(|values| *four = *values).is_some();
        }
        let outputs = y.len();
        y.as_flattened_mut().iter_mut().enumerate().all(|(place, y)| {
            self.value(first + place % 4, place / 4, outputs).map(|value| *y = value).is_some()
        })
    }
}

impl<'a> Samples<'a> {
    /// One of them alone, of `features` values and `outputs` targets where those are values.
    #[must_use]
    pub fn one(self, index: usize, features: usize, outputs: usize) -> Option<Samples<'a>> {
        self.slice(index, 1, features, outputs)
    }

    /// As [`Self::one`], those from `index` on: at most `most`, and at least one.
    #[must_use]
    pub fn slice(self, index: usize, most: usize, features: usize, outputs: usize) -> Option<Samples<'a>> {
        let last = self.x.len().checked_div(features)?;
        let end = index.checked_add(most)?.min(last);
        if index >= end {
            return None;
        }
        let x = self.x.get(index.checked_mul(features)?..end.checked_mul(features)?)?;
        let targets = match self.targets {
            Targets::Values(values) => {
                Targets::Values(values.get(index.checked_mul(outputs)?..end.checked_mul(outputs)?)?)
            }
            Targets::Classes(classes) => Targets::Classes(classes.get(index..end)?),
        };
        Some(Samples { x, targets })
    }
}

/// A replayable source over slices: samples that are in RAM, or linked into flash.
#[derive(Clone, Copy, Debug)]
pub struct Recording<'a> {
    x: &'a [f32],
    features: usize,
    outputs: usize,
    targets: Targets<'a>,
    done: bool,
}

impl<'a> Recording<'a> {
    /// Regression: `x` is n x `features`, `y` is n x `outputs`. Surplus values at the end are ignored.
    #[must_use]
    pub fn regression(x: &'a [f32], y: &'a [f32], features: usize, outputs: usize) -> Self {
        let n = x.len().checked_div(features).unwrap_or(0).min(y.len().checked_div(outputs).unwrap_or(0));
        Self {
            x: x.get(..n * features).unwrap_or_default(),
            features,
            outputs,
            targets: Targets::Values(y.get(..n * outputs).unwrap_or_default()),
            done: false,
        }
    }

    /// Classification: `x` is n x `features`, `classes` holds n class numbers.
    #[must_use]
    pub fn classification(x: &'a [f32], classes: &'a [u8], features: usize) -> Self {
        let n = x.len().checked_div(features).unwrap_or(0).min(classes.len());
        Self {
            x: x.get(..n * features).unwrap_or_default(),
            features,
            outputs: 1,
            targets: Targets::Classes(classes.get(..n).unwrap_or_default()),
            done: false,
        }
    }
}

impl SampleSource for Recording<'_> {
    fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
        self.done = self.x.is_empty();
        Ok(())
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        if self.done {
            return None;
        }
        self.done = true;
        Some(Samples { x: self.x, targets: self.targets })
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        self.samples_from(index, 1)
    }

    fn samples_from(&mut self, index: usize, most: usize) -> Option<Samples<'_>> {
        Samples { x: self.x, targets: self.targets }.slice(index, most, self.features, self.outputs)
    }
}

/// The source of a device that streams: it has nothing to replay.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRecording;

impl SampleSource for NoRecording {
    fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
        Err(SourceError::NotReplayable)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        None
    }
}
