//! Program `network`: prints the cost of training a network on this core, see `fedspan_emulated::network`.

#![no_std]
#![no_main]

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::network::<qemu_mps2::Board>()
}
