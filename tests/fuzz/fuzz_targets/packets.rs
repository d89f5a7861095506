//! Fuzz target: frames in packets, in any order.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("packets"), |data: &[u8]| {
    fedspan_hostile::packets(data);
});
