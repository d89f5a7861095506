//! Access to a register of a peripheral.

use core::marker::PhantomData;
use core::ptr;

/// A register with the width of `T`, which is `u32` or `u8`.
#[derive(Clone, Copy, Debug)]
pub struct Register<T>(usize, PhantomData<T>);

impl<T: Copy> Register<T> {
    /// Creates the register at `address`.
    ///
    /// # Safety
    /// There must be a register of this width at `address` for the lifetime of the program, and no value
    /// written to it may change memory that Rust accesses.
    #[must_use]
    pub const unsafe fn at(address: usize) -> Self {
        Self(address, PhantomData)
    }

    /// Reads the register.
    #[must_use]
    pub fn read(&self) -> T {
        // SAFETY: guaranteed by the caller of `at`.
        unsafe { ptr::with_exposed_provenance::<T>(self.0).read_volatile() }
    }

    /// Writes the register.
    pub fn write(&self, value: T) {
        // SAFETY: guaranteed by the caller of `at`.
        unsafe { ptr::with_exposed_provenance_mut::<T>(self.0).write_volatile(value) }
    }
}
