//! Program without a client on the minimal board: echoes each byte. Its size is the baseline for the other
//! programs.

#![no_std]
#![no_main]

use embedded_io::{Read, Write};
use least::Line;

#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    let mut byte = [0];
    loop {
        let Ok(read) = Line.read(&mut byte);
        let Ok(_) = Line.write(byte.get(..read).unwrap_or_default());
    }
}
