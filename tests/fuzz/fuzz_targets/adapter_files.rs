//! Fuzz target: the readers of adapter files parse arbitrary bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("adapter_files"), |data: &[u8]| {
    fedspan_hostile::adapter_files(data);
});
