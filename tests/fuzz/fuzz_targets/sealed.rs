//! Fuzz target: the secure channel opens arbitrary sealed frames.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("sealed"), |data: &[u8]| {
    fedspan_hostile::sealed(data);
});
