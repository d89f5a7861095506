//! Program `client`: client of a device with a table of samples in flash, in a campaign of shape (20, 2); the
//! demonstration's shape (58, 24) does not fit into 16 KiB. Settings: `fedspan_emulated::settings`.

#![no_std]
#![no_main]

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::client_with_table::<qemu_microbit::Board>()
}
