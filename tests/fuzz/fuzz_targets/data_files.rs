//! Fuzz target: the readers of tables, npz, idx and LEAF files parse arbitrary bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("data_files"), |data: &[u8]| {
    fedspan_hostile::data_files(data);
});
