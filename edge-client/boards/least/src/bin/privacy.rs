//! Program that only draws privacy noise, on the minimal board. No panic is reachable, for any entropy and
//! any parameters.

#![no_std]
#![no_main]

use fedspan_client::privacy::{EntropySource, MinEntropy, Variance, draw_seed, noise};
use least::{Entropy, report};

/// Returns an arbitrary number, read from the serial line.
fn read_number() -> u64 {
    let mut bytes = [0; 8];
    let Ok(()) = Entropy.read(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    loop {
        if let Ok(variance) = Variance::new(read_number(), read_number())
            && let Ok(claim) = MinEntropy::new(read_number().to_le_bytes()[0])
            && let Ok(seed) = draw_seed(&mut Entropy, claim)
        {
            let [a, b, c, d, ..] = noise(&seed, read_number(), &variance).to_le_bytes();
            report(f32::from_le_bytes([a, b, c, d]));
        }
    }
}
