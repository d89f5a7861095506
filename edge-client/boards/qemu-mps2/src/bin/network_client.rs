//! Program `network_client`: client of a device with a network in a campaign. Settings: `fedspan_emulated::settings`.

#![no_std]
#![no_main]

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::network_client::<qemu_mps2::Board>()
}
