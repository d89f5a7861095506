//! Fuzz target: the server's half of a connection handles arbitrary bytes from a device.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fedspan_hostile::seed_fuzzer("host_connection"), |data: &[u8]| {
    fedspan_hostile::host_connection(data);
});
