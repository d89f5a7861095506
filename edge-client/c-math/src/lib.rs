//! C's `sqrtf`, for firmware whose core has an instruction for it (`VSQRT` of a Cortex-M4F, M7 or M33).
//!
//! The firmware links the function: from a C library, or its board crate defines it. This definition takes one instruction and
//! replaces 0.5 kB of software:
//!
//! ```ignore
//! // The argument and the result are in s0 (targets with "hf").
//! core::arch::global_asm!(
//!     ".fpu fpv4-sp-d16",
//!     ".section .text.sqrtf,\"ax\",%progbits",
//!     ".global sqrtf",
//!     ".type sqrtf, %function",
//!     ".thumb_func",
//!     "sqrtf:",
//!     "vsqrt.f32 s0, s0",
//!     "bx lr",
//!     ".size sqrtf, . - sqrtf",
//! );
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
