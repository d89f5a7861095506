//! Fuzz target: the decoder of messages to the server reads arbitrary bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("to_server"), |data: &[u8]| {
    fedspan_hostile::to_server(data);
});
