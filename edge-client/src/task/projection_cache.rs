//! Cache of projected samples that the passes of a round share.

use crate::kernel::Four;

/// Size of the cache in fours: 1 KB, enough for 32 samples at a width of 8.
pub const CACHE_FOURS: usize = 64;

/// Projections of the first samples of a pass, as many as fit, up to the first unusable sample. Samples are
/// numbered from the start of the pass; four samples form a group, and each group has a slot of k fours. The
/// last slot is shared by all groups without a slot.
///
/// Recomputing a projection gives the same bits, so the cache does not affect results.
#[derive(Debug)]
pub struct ProjectionCache {
    /// Slots, with the spare fours at the end.
    fours: [Four; CACHE_FOURS],
    /// Number of fours that are reserved for other uses.
    spare: usize,
    /// Number of samples whose projections are in the cache.
    samples: usize,
    /// Maximum number of samples in the cache.
    max_samples: usize,
    /// True if the cached samples are a selection for fitting the head, not the first of all samples.
    selection: bool,
}

/// Slot with the projections of four samples.
#[derive(Debug)]
pub struct Slot<'a> {
    /// Projections, k fours.
    pub z: &'a mut [Four],
    /// True if the requested projections are in the slot.
    pub known: bool,
    /// Memory of [`ProjectionCache::spare`].
    pub spare: &'a mut [Four],
}

impl ProjectionCache {
    /// Creates an empty cache. `spare` fours at its end are reserved for a block of rows.
    pub fn new(spare: usize) -> Self {
        Self { fours: [[0.0; 4]; CACHE_FOURS], spare, samples: 0, max_samples: usize::MAX, selection: false }
    }

    /// Starts a pass over all samples or over a selection. Discards projections of the other kind of pass.
    pub fn begin(&mut self, selection: bool) {
        if self.selection != selection {
            self.samples = 0;
            self.max_samples = usize::MAX;
            self.selection = selection;
        }
    }

    /// Returns true if the cache contains the projection of sample `number`.
    pub fn contains(&self, number: usize) -> bool {
        number < self.samples
    }

    /// Returns the slot of `count` samples from sample `number` on. Returns `None` if the cache has no slot
    /// at all. If the projections are not known, the caller must fill the slot.
    pub fn slot(&mut self, number: usize, count: usize, k: usize) -> Option<Slot<'_>> {
        let last = (CACHE_FOURS - self.spare).checked_div(k)?.checked_sub(1)?;
        let group = number / 4;
        let end = number + count;
        let known = end <= self.samples;
        if group > last {
            self.samples = self.samples.min(4 * last);
        } else if number == self.samples {
            self.samples = end.min(self.max_samples);
        }
        let first = group.min(last) * k;
        let (slots, spare) = self.fours.split_at_mut_checked(CACHE_FOURS - self.spare)?;
        Some(Slot { z: slots.get_mut(first..first + k)?, known, spare })
    }

    /// Returns memory for a block of rows, for shapes whose other buffers are too small.
    pub fn spare(&mut self) -> &mut [Four] {
        self.fours.get_mut(CACHE_FOURS - self.spare..).unwrap_or_default()
    }

    /// Excludes samples from `number` on from the cache, because one of them is unusable.
    pub fn end(&mut self, number: usize) {
        self.max_samples = self.max_samples.min(number);
        self.samples = self.samples.min(self.max_samples);
    }
}
