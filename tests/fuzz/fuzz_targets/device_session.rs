//! Fuzz target: a device session handles arbitrary bytes from its link.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("device_session"), |data: &[u8]| {
    fedspan_hostile::device_session(data);
});
