//! Sample sources: access to the device's training data.
//!
//! A *replayable* source can be read several times in a round, such as a recording in flash or RAM; it
//! implements [`SampleSource`]. A sensor whose samples are used once and dropped needs no source: the
//! firmware passes each sample to the session as an event ([`crate::session::Event::Sample`]), and no buffer
//! grows with the number of samples.

use fedspan_protocol::message::RoundId;

use crate::error::SourceError;
use crate::kernel::Four;

/// Source of samples that can be read more than once. The implementation decides how a sample gets its label
/// (a button, a schedule, a message over the same serial line); see `examples/own_sensor.rs`.
pub trait SampleSource {
    /// Starts a pass over the samples of round `id`. All passes of one round must return the same samples in
    /// the same order; another round may have other samples.
    ///
    /// # Errors
    /// [`SourceError`] if the storage fails. The device then declines the round.
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError>;

    /// Starts a pass over the samples on which the *head* is fitted in a training round, if the source
    /// distinguishes them from all samples. A source that returns a small selection here (a few windows per
    /// class, drawn for each round) trains a representation on which a head can be fitted from few samples.
    ///
    /// Returns false and does nothing if the head is fitted on all samples. The caller then uses
    /// [`Self::rewind`], and reuses values computed for the head.
    ///
    /// # Errors
    /// [`SourceError`] for the reasons of [`Self::rewind`].
    fn rewind_for_head(&mut self, _id: RoundId) -> Result<bool, SourceError> {
        Ok(false)
    }

    /// Returns sample `index` of the last rewound round, in the order of a pass, if the source allows random
    /// access, which stochastic gradient descent needs. Returns `None` beyond the last sample, and always if
    /// the source allows passes only.
    fn at(&mut self, _index: usize) -> Option<Samples<'_>> {
        None
    }

    /// Returns samples of the last started pass from `index` on, at least one and at most `max`. Returns
    /// `None` beyond the last sample, and always if the source allows passes only. The default implementation
    /// returns one sample; the number of samples per call does not change the result.
    fn samples_from(&mut self, index: usize, _max: usize) -> Option<Samples<'_>> {
        self.at(index)
    }

    /// Returns the next samples of the pass, at least one; `None` at the end. Results are bit-identical for
    /// any number of samples per call.
    fn next(&mut self) -> Option<Samples<'_>>;
}

impl<S: SampleSource + ?Sized> SampleSource for &mut S {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        (**self).rewind(id)
    }

    fn rewind_for_head(&mut self, id: RoundId) -> Result<bool, SourceError> {
        (**self).rewind_for_head(id)
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        (**self).at(index)
    }

    fn samples_from(&mut self, index: usize, max: usize) -> Option<Samples<'_>> {
        (**self).samples_from(index, max)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        (**self).next()
    }
}

/// One or several samples with their targets.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// Features, row-major, n x d.
    pub x: &'a [f32],
    /// Targets of the n samples.
    pub targets: Targets<'a>,
}

/// Targets to which the head is fitted.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a> {
    /// Regression targets: row-major, n x C.
    Values(&'a [f32]),
    /// Class numbers: n values below C, fitted as one-hot vectors.
    Classes(&'a [u8]),
}

impl Targets<'_> {
    /// Returns value `output` (of C values) of target `index`. Returns `None` if there is no such target, or
    /// its class is C or more.
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

    /// Writes target `index` into `y` (C values). Returns false if there is no such target, or its class is C
    /// or more.
    #[must_use]
    pub(crate) fn write(&self, index: usize, y: &mut [f32]) -> bool {
        let outputs = y.len();
        y.iter_mut()
            .enumerate()
            .all(|(output, target)| self.value(index, output, outputs).map(|value| *target = value).is_some())
    }

    /// Writes targets `first..first + count` into the first lanes of `y` (C fours; `count` is at most four). Returns false if
    /// one is missing or its class is C or more.
    #[must_use]
    pub(crate) fn write_group(&self, first: usize, count: usize, y: &mut [Four]) -> bool {
        if let (Self::Values(values), [four], 4) = (self, &mut *y, count) {
            let next = values.get(first..).and_then(<[f32]>::first_chunk);
            return next.map(|values| *four = *values).is_some();
        }
        let outputs = y.len();
        y.iter_mut().enumerate().all(|(output, four)| {
            four.iter_mut()
                .take(count)
                .enumerate()
                .all(|(lane, y)| self.value(first + lane, output, outputs).map(|value| *y = value).is_some())
        })
    }
}

impl<'a> Samples<'a> {
    /// Returns sample `index` alone. `features` is the length of a sample, `outputs` the length of a
    /// regression target.
    #[must_use]
    pub fn one(self, index: usize, features: usize, outputs: usize) -> Option<Samples<'a>> {
        self.slice(index, 1, features, outputs)
    }

    /// Returns the samples from `index` on, at least one and at most `max`.
    #[must_use]
    pub fn slice(self, index: usize, max: usize, features: usize, outputs: usize) -> Option<Samples<'a>> {
        let last = self.x.len().checked_div(features)?;
        let end = index.checked_add(max)?.min(last);
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

/// Replayable source over slices: samples in RAM, or linked into the firmware in flash.
#[derive(Clone, Copy, Debug)]
pub struct Recording<'a> {
    x: &'a [f32],
    features: usize,
    outputs: usize,
    targets: Targets<'a>,
    /// True if the current pass has returned all samples.
    done: bool,
}

impl<'a> Recording<'a> {
    /// Creates a source for regression: `x` is n x `features`, `y` is n x `outputs`. Surplus values at the
    /// end are ignored.
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

    /// Creates a source for classification: `x` is n x `features`, `classes` holds n class numbers.
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

    fn samples_from(&mut self, index: usize, max: usize) -> Option<Samples<'_>> {
        Samples { x: self.x, targets: self.targets }.slice(index, max, self.features, self.outputs)
    }
}

/// Source of a streaming device, which has no samples to replay.
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
