//! Fuzz target: the accumulator of updates sums arbitrary updates exactly, or refuses them.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("accumulator"), |data: &[u8]| {
    fedspan_hostile::accumulator(data);
});
