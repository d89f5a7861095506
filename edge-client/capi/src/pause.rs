//! Pauses: a function of the firmware is called within computations. Without the feature `pauses` there are none.

use core::mem::MaybeUninit;

use ::fedspan_client::memory::SliceMemory;
use ::fedspan_client::pace::{Paced, Pacer};

use crate::platform::Platform;

/// Memory of a model.
pub type ModelMemory = Paced<'static, SliceMemory<'static>>;

/// Quota of settings that name none.
const DEFAULT_QUOTA: u32 = 1_000;

/// State of the pauses, in the memory of a client.
#[derive(Debug)]
pub struct Pauses {
    pacer: MaybeUninit<Pacer<'static>>,
    /// Function that pauses: its content is a [`Platform`].
    function: MaybeUninit<Platform>,
}

impl Pauses {
    /// Adds pauses to the computations in `memory`.
    ///
    /// # Safety
    /// `place` has the size and the alignment of its content, is used for nothing else, and lives as long as `memory` and `platform`.
    pub(crate) unsafe fn add(
        place: *mut Self,
        platform: Platform,
        quota: u32,
        memory: SliceMemory<'static>,
    ) -> ModelMemory {
        // SAFETY: the caller guarantees the place.
        unsafe {
            let pause = write_function(&raw mut (*place).function, move || platform.pause());
            let quota = match quota {
                _ if !platform.has_pause() => u32::MAX,
                0 => DEFAULT_QUOTA,
                quota => quota,
            };
            let pacer = (&raw mut (*place).pacer).cast::<Pacer<'static>>();
            pacer.write(Pacer::new(quota, pause));
            Paced::new(memory, &*pacer)
        }
    }
}

/// Writes a function with its content to a place.
///
/// # Safety
/// The place lives as long as the result, and is used for nothing else.
unsafe fn write_function<F: Fn() + 'static>(place: *mut MaybeUninit<Platform>, function: F) -> &'static F {
    const { assert!(size_of::<F>() == size_of::<Platform>() && align_of::<F>() == align_of::<Platform>()) };
    let place = place.cast::<F>();
    // SAFETY: the caller guarantees the place, whose size and alignment are checked above.
    unsafe {
        place.write(function);
        &*place
    }
}
