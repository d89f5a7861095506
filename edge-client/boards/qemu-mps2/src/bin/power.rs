//! Program `power`: prints the cost of a FedPower iteration on this core, see `fedspan_emulated::power`.

#![no_std]
#![no_main]

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::power::<qemu_mps2::Board>()
}
