//! Fuzz target: the parser of key lists reads arbitrary text.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("key_lines"), |data: &[u8]| {
    fedspan_hostile::key_lines(data);
});
