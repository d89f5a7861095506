//! Program `c_client`: a client in C with a table of samples in flash. Settings: `fedspan_emulated::settings`.

#![no_std]
#![no_main]

#[riscv_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::c_client::<qemu_riscv::Virt>()
}
