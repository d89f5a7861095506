//! Projections that are kept from one pass to the next.

use crate::kernel::Four;

/// How many fours of projections are kept: 1 KB, 32 samples at a width of 8.
const KEPT: usize = 64;

/// The projections of the first samples of a pass, as many as there is room for. Samples are counted from
/// the start of the pass, four make a group, and each group has its slot: k fours. The last slot serves all
/// groups that have none of their own.
///
/// Computing a projection again gives the same bits, so no result depends on what is kept.
#[derive(Debug)]
pub struct Projected {
    slots: [Four; KEPT],
    /// The first samples, as many as this, are in their slots.
    samples: usize,
    /// They are a selection that the head is fitted on, not the first of all.
    selection: bool,
}

impl Projected {
    /// Nothing is kept yet.
    pub const fn new() -> Self {
        Self { slots: [[0.0; 4]; KEPT], samples: 0, selection: false }
    }

    /// A pass begins, over all samples or a selection: what is kept of the other is forgotten.
    pub fn begin(&mut self, selection: bool) {
        if self.selection != selection {
            self.samples = 0;
            self.selection = selection;
        }
    }

    /// The slot of sample `number`, and whether the projections of `count` samples from there are in it.
    /// `None` if there is not even one slot. Who finds nothing in it must fill it.
    pub fn slot(&mut self, number: usize, count: usize, k: usize) -> Option<(&mut [Four], bool)> {
        let last = KEPT.checked_div(k)?.checked_sub(1)?;
        let group = number / 4;
        let end = number + count;
        let known = end <= self.samples;
        if group > last {
            self.samples = self.samples.min(4 * last);
        } else if number == self.samples {
            self.samples = end;
        }
        let first = group.min(last) * k;
        Some((self.slots.get_mut(first..first + k)?, known))
    }
}
