//! Program `update_i16`: prints the cost of an update in 16-bit fixed point on this core, see
//! `fedspan_emulated::measure`.

#![no_std]
#![no_main]

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::update_i16::<qemu_mps2::Board>()
}
