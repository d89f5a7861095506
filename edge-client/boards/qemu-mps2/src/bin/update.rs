//! Program `update`: prints the cost of an update on this core, see `fedspan_emulated::measure`.

#![no_std]
#![no_main]

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::update::<qemu_mps2::Board>()
}
