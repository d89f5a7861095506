//! Fuzz target: a device's flash stores read arbitrary flash contents, with a power cut at an arbitrary time.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("flash_image"), |data: &[u8]| {
    fedspan_hostile::flash_image(data);
});
