//! Pauses within long computations. A device that computes for seconds calls a function of the firmware after every few
//! thousand multiply-accumulates; the function feeds the watchdog, or lets a radio stack work.
//!
//! ```
//! use core::cell::Cell;
//!
//! use fedspan_client::pace::{Paced, Pacer};
//! use fedspan_client::{HeadSolve, Linear, Recording, Workspace};
//!
//! // On a board: `|| watchdog.borrow_mut().feed()`.
//! let pauses = Cell::new(0);
//! let pause = || pauses.set(pauses.get() + 1);
//! let pacer = Pacer::new(1_000, &pause);
//! let mut model = Linear::new(Paced::new(Workspace::<2, 1>::new(), &pacer));
//!
//! let (x, y) = ([[1.0, 2.0]; 1_000], [2.0; 1_000]);
//! let mut samples = Recording::regression(x.as_flattened(), &y, 2, 1);
//! model.set_representation(&[1.0, 0.0]).unwrap();
//! model.fit_head(HeadSolve::LeastSquares { ridge: 0.0 }, &mut samples).unwrap();
//! assert!(pauses.get() >= 2);
//! ```
//!
//! **Bound.** Between two pauses there are at most `quota` multiply-accumulates, or one indivisible piece of work if that is
//! larger. These pieces are, in multiply-accumulates:
//!
//! | computation | largest piece |
//! | --- | --- |
//! | check of `B` | 1024; `3 d` if it is sent as i8 |
//! | linear model in f32 | `4 k` for a feature of four samples, `2 k (k + 2 C)` for their sums, `18 (k + C)` or `k (k + C)` for a step of a solver |
//! | linear model in 16-bit fixed point | `d k` of integers for a sample |
//! | FedPower | `4 d` for the norms of four rows, then as in f32; with noise `2 d k` of integers for a row |
//! | power start | `2 d` |
//! | feature sums | 2 for a feature of a sample |
//! | residuals of the largest values | 32 for a block |
//! | network | 128 for a tile; the patches of a row of outputs, `3` times the filters of a layer, `120` times the cells of an LSTM |
//!
//! Divisions, roots and exponentials count as several. Copies, hashes and conversions of `B` and of samples, storage, encryption,
//! and the sample source do not count. Results are the same bits for any quota.
//!
//! **Quota.** A multiply-accumulate in f32 takes about 350 cycles on a Cortex-M0, and 5 on a Cortex-M4F. At 16 MHz a
//! quota of 1,000 then means a pause every 22 ms on the former.
//!
//! **Asynchronous firmware.** A pause does not return to the executor. Run the session in the executor of the lowest
//! priority and the radio in one that interrupts it, as for any long computation.

use core::cell::Cell;
use core::fmt;
use core::ops::Range;

use fedspan_protocol::message::Numeric;

#[cfg(feature = "i16")]
use crate::memory::Fixed;
use crate::memory::{Memory, Parts, PartsRef};
#[cfg(feature = "network")]
use crate::memory::{NetworkMemory, NetworkParts, NetworkShape};

/// Counter of work that calls a function whenever a quota is used up.
pub struct Pacer<'a> {
    quota: u32,
    /// Rest of the quota until the next pause.
    left: Cell<u32>,
    pause: &'a dyn Fn(),
}

impl<'a> Pacer<'a> {
    /// Creates a counter that calls `pause` after at most `quota` multiply-accumulates (0 counts as 1).
    #[must_use]
    pub fn new(quota: u32, pause: &'a dyn Fn()) -> Self {
        Self { quota: quota.max(1), left: Cell::new(quota), pause }
    }

    /// Announces work that follows; pauses first if it exceeds the rest of the quota.
    #[inline(never)]
    fn spend(&self, work: u32) {
        if work > self.left.get() {
            (self.pause)();
            self.left.set(self.quota);
        }
        self.left.set(self.left.get().saturating_sub(work));
    }
}

impl Pacer<'_> {
    /// Returns how many pieces of this work fit the quota, at least one.
    #[inline(never)]
    fn length(&self, work: usize) -> usize {
        usize::try_from(self.quota).unwrap_or(usize::MAX).checked_div(work).unwrap_or(usize::MAX).max(1)
    }
}

impl fmt::Debug for Pacer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pacer").field("quota", &self.quota).field("left", &self.left).finish_non_exhaustive()
    }
}

/// Reference to a [`Pacer`], or to none: a computation then never pauses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace<'a>(Option<&'a Pacer<'a>>);

impl<'a> Pace<'a> {
    /// No pauses.
    pub const NONE: Self = Self(None);

    /// Returns true if computations never pause.
    #[cfg(all(feature = "wide", feature = "power", not(target_os = "none")))]
    pub(crate) fn is_none(self) -> bool {
        self.0.is_none()
    }

    /// Announces `work` multiply-accumulates that follow.
    #[inline(always)]
    pub fn spend(self, work: usize) {
        if let Some(pacer) = self.0 {
            pacer.spend(u32::try_from(work).unwrap_or(u32::MAX));
        }
    }

    /// Calls `each` with ranges of `0..count` that fit the quota, if each number stands for `work` multiply-accumulates, and
    /// announces their work before the call. Without pauses there is one range.
    #[inline(always)]
    pub fn split(self, count: usize, work: usize, mut each: impl FnMut(Range<usize>)) {
        let Some(pacer) = self.0 else { return each(0..count) };
        let length = pacer.length(work);
        let mut start = 0;
        while start < count {
            let end = count.min(start.saturating_add(length));
            self.spend((end - start).saturating_mul(work));
            each(start..end);
            start = end;
        }
    }
}

impl<'a> From<&'a Pacer<'a>> for Pace<'a> {
    fn from(pacer: &'a Pacer<'a>) -> Self {
        Self(Some(pacer))
    }
}

/// Memory of a model whose computations pause: [`Memory`] or [`NetworkMemory`](crate::memory) together with a [`Pacer`].
#[derive(Clone, Debug)]
pub struct Paced<'a, M> {
    memory: M,
    pace: Pace<'a>,
}

impl<'a, M> Paced<'a, M> {
    /// Adds pauses to the computations of a model in `memory`.
    #[must_use]
    pub fn new(memory: M, pacer: &'a Pacer<'a>) -> Self {
        Self { memory, pace: pacer.into() }
    }
}

impl<M: Memory> Memory for Paced<'_, M> {
    fn parts(&mut self) -> Parts<'_> {
        Parts { pace: self.pace, ..self.memory.parts() }
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        PartsRef { pace: self.pace, ..self.memory.parts_ref() }
    }

    fn numeric(&self) -> Numeric {
        self.memory.numeric()
    }

    #[cfg(feature = "i16")]
    fn fixed(&mut self) -> Option<(Parts<'_>, Fixed<'_>)> {
        let pace = self.pace;
        self.memory.fixed().map(|(parts, fixed)| (Parts { pace, ..parts }, fixed))
    }
}

#[cfg(feature = "network")]
impl<M: NetworkMemory> NetworkMemory for Paced<'_, M> {
    fn parts(&mut self) -> NetworkParts<'_> {
        NetworkParts { pace: self.pace, ..self.memory.parts() }
    }

    fn shape(&self) -> NetworkShape {
        self.memory.shape()
    }

    fn parameters(&self) -> &[f32] {
        self.memory.parameters()
    }

    fn pace(&self) -> Pace<'_> {
        self.pace
    }

    #[cfg(feature = "adapter")]
    fn frozen(&self) -> crate::kernel::frozen::Frozen<'_> {
        self.memory.frozen()
    }
}
