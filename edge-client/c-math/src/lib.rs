//! C's `sqrtf`, for firmware whose core has an instruction for it (`VSQRT` of a Cortex-M4F, M7 or M33): it replaces 0.5 kB of software.
//!
//! The firmware links the function. A C library has it, or the board crate defines it by the instruction:
//!
//! ```ignore
//! fedspan_c_math::vsqrt!();
//! ```
//!
//! The result must be correctly rounded, as IEEE 754 requires: devices and server compute the same bits.

#![no_std]

#[allow(unsafe_code, reason = "a function of C without conditions")]
mod c {
    // SAFETY: C's `sqrtf` takes and returns a number, and has no conditions.
    unsafe extern "C" {
        pub safe fn sqrtf(x: f32) -> f32;
    }
}

/// Returns the square root of `x`, correctly rounded.
#[must_use]
#[inline]
pub fn sqrtf(x: f32) -> f32 {
    c::sqrtf(x)
}

/// Defines C's `sqrtf` by the instruction of a core whose target has hardware floating point ("hf"): argument and result are in s0.
#[macro_export]
macro_rules! vsqrt {
    () => {
        ::core::arch::global_asm!(
            ".fpu fpv4-sp-d16",
            ".section .text.sqrtf,\"ax\",%progbits",
            ".global sqrtf",
            ".type sqrtf, %function",
            ".thumb_func",
            "sqrtf:",
            "vsqrt.f32 s0, s0",
            "bx lr",
            ".size sqrtf, . - sqrtf",
        );
    };
}
