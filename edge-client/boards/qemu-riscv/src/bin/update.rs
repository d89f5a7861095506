//! Program `update`: prints the cost of an update on this core, see `fedspan_emulated::measure`.

#![no_std]
#![no_main]

#[riscv_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::update::<qemu_riscv::Virt>()
}
