#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("flash_image"), |data: &[u8]| {
    fedspan_hostile::flash_image(data);
});
