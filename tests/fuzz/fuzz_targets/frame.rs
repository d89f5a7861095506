#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("frame"), |data: &[u8]| {
    fedspan_hostile::frame(data);
});
