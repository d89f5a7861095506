//! Program `seal`: prints the cost of encryption on this core, see `fedspan_emulated::sealing`.

#![no_std]
#![no_main]

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::seal::<qemu_microbit::Board>()
}
