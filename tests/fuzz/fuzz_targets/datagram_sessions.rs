//! Fuzz target: sessions over packets, on a disturbed channel.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("datagram_sessions"), |data: &[u8]| {
    fedspan_hostile::datagram_sessions(data);
});
