//! Program `seal`: prints the cost of encryption on this core, see `fedspan_emulated::sealing`.

#![no_std]
#![no_main]

#[riscv_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::seal::<qemu_riscv::Virt>()
}
