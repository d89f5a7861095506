//! Fuzz target: the decoder of messages to devices reads arbitrary bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("to_device"), |data: &[u8]| {
    fedspan_hostile::to_device(data);
});
