//! A register of a peripheral.

use core::marker::PhantomData;
use core::ptr;

/// A register of the width of `T`: `u32`, or `u8`.
#[derive(Clone, Copy, Debug)]
pub struct Register<T>(usize, PhantomData<T>);

impl<T: Copy> Register<T> {
    /// # Safety
    /// At `address` there must be a register of this width for as long as the program runs, and no value that is
    /// written to it may change memory that Rust knows of.
    #[must_use]
    pub const unsafe fn at(address: usize) -> Self {
        Self(address, PhantomData)
    }

    /// Reads it.
    #[must_use]
    pub fn read(&self) -> T {
        // SAFETY: promised to `at`.
        unsafe { ptr::with_exposed_provenance::<T>(self.0).read_volatile() }
    }

    /// Writes it.
    pub fn write(&self, value: T) {
        // SAFETY: promised to `at`.
        unsafe { ptr::with_exposed_provenance_mut::<T>(self.0).write_volatile(value) }
    }
}
