//! Fuzz target: the decoder of frames reads arbitrary bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("frame"), |data: &[u8]| {
    fedspan_hostile::frame(data);
});
