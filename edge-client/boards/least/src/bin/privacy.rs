//! Privacy noise alone. No panic is reachable, with any entropy and any parameters.

#![no_std]
#![no_main]

use core::convert::Infallible;
use core::slice::from_mut;

use embedded_io::Read;
use fedspan_client::privacy::{EntropySource, MinEntropy, Variance, draw_seed, noise};
use least::{Line, report};

/// Entropy read from the serial line.
struct Source;

impl EntropySource for Source {
    type Error = Infallible;

    fn read(&mut self, samples: &mut [u8]) -> Result<(), Infallible> {
        for sample in samples {
            let Ok(_) = Line.read(from_mut(sample));
        }
        Ok(())
    }
}

fn number() -> u64 {
    let mut bytes = [0; 8];
    let Ok(()) = Source.read(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    loop {
        if let Ok(variance) = Variance::new(number(), number())
            && let Ok(claim) = MinEntropy::new(number().to_le_bytes()[0])
            && let Ok(seed) = draw_seed(&mut Source, claim)
        {
            let [a, b, c, d, ..] = noise(&seed, number(), &variance).to_le_bytes();
            report(f32::from_le_bytes([a, b, c, d]));
        }
    }
}
