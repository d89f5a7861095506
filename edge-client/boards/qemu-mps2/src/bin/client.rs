//! Program `client`: client of a smartwatch wearer in a campaign. Settings: `fedspan_emulated::settings`.

#![no_std]
#![no_main]

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::client::<qemu_mps2::Board>()
}
