//! Program `prior_client`: client of a smartwatch wearer whose heads have a prior that the fleet learns.
//! Settings: `fedspan_emulated::settings`.

#![no_std]
#![no_main]

#[cortex_m_rt::entry]
fn main() -> ! {
    fedspan_emulated::programs::prior_client::<qemu_mps2::Board>()
}
