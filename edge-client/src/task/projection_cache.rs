//! Projections that are kept from one pass to the next.

use super::row_blocks;
use crate::kernel::Four;
use crate::memory::Shape;

/// How many fours of projections are kept: 1 KB, 32 samples at a width of 8.
pub const CACHE_FOURS: usize = 64;

/// The projections of the first samples of a pass, as many as there is room for, up to the first that cannot
/// be used. Samples are counted from the start of the pass, four make a group, and each group has its slot:
/// k fours. The last slot serves all groups that have none of their own.
///
/// Computing a projection again gives the same bits, so no result depends on what is kept.
#[derive(Debug)]
pub struct ProjectionCache {
    /// The slots, `spare` at the end.
    fours: [Four; CACHE_FOURS],
    /// Fours that are not for projections.
    spare: usize,
    /// The first samples, as many as this, are in their slots.
    samples: usize,
    /// At most this number of samples is kept.
    most: usize,
    /// They are a selection that the head is fitted on, not the first of all.
    selection: bool,
}

/// The projections of four samples.
#[derive(Debug)]
pub struct Slot<'a> {
    /// k fours.
    pub z: &'a mut [Four],
    /// The projections asked for are there, fit for use.
    pub known: bool,
    /// As [`ProjectionCache::spare`].
    pub spare: &'a mut [Four],
}

impl ProjectionCache {
    /// Nothing is kept yet.
    pub fn new(shape: Shape) -> Self {
        let spare = row_blocks::spare_fours(shape);
        Self { fours: [[0.0; 4]; CACHE_FOURS], spare, samples: 0, most: usize::MAX, selection: false }
    }

    /// A pass begins, over all samples or a selection: what is kept of the other is forgotten.
    pub fn begin(&mut self, selection: bool) {
        if self.selection != selection {
            self.samples = 0;
            self.most = usize::MAX;
            self.selection = selection;
        }
    }

    /// The slot of sample `number`. `count`: how many samples from there are asked for. `None` if there is not
    /// even one slot. Who finds nothing in it must fill it.
    pub fn slot(&mut self, number: usize, count: usize, k: usize) -> Option<Slot<'_>> {
        let last = (CACHE_FOURS - self.spare).checked_div(k)?.checked_sub(1)?;
        let group = number / 4;
        let end = number + count;
        let known = end <= self.samples;
        if group > last {
            self.samples = self.samples.min(4 * last);
        } else if number == self.samples {
            self.samples = end.min(self.most);
        }
        let first = group.min(last) * k;
        let (slots, spare) = self.fours.split_at_mut_checked(CACHE_FOURS - self.spare)?;
        Some(Slot { z: slots.get_mut(first..first + k)?, known, spare })
    }

    /// Room for a block of rows, in shapes that have no other.
    pub fn spare(&mut self) -> &mut [Four] {
        self.fours.get_mut(CACHE_FOURS - self.spare..).unwrap_or_default()
    }

    /// One of the samples from `number` on cannot be used: nothing is kept from there.
    pub fn end(&mut self, number: usize) {
        self.most = self.most.min(number);
        self.samples = self.samples.min(self.most);
    }
}
