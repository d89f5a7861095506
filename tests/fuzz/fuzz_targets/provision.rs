//! Fuzz target: the parser of provisioning records reads arbitrary bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("provision"), |data: &[u8]| {
    fedspan_hostile::provision(data);
});
