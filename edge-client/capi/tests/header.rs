//! Tests of the header: it is generated from the source, and its constants are those of the library. With
//! `FEDSPAN_REGENERATE_HEADER=1` the file is rewritten.

use std::path::Path;

use fedspan::{FEDSPAN_CLIENT_SIZE, fedspan_memory_size};

use crate::interface::settings;

/// Environment variable with which the header is rewritten.
const REGENERATE: &str = "FEDSPAN_REGENERATE_HEADER";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn header_is_generated_from_the_source() {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(folder()).with_config(config).generate().unwrap();
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();
    let file = folder().join("include/fedspan.h");
    if std::env::var_os(REGENERATE).is_some() {
        std::fs::write(&file, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap();
    assert!(
        committed == generated,
        "include/fedspan.h differs from the source; run again with {REGENERATE}=1"
    );
}

#[test]
fn constants_of_the_header_are_those_of_the_library() {
    let header = std::fs::read_to_string(folder().join("include/fedspan.h")).unwrap();
    let size = if size_of::<usize>() == 4 { "== 4 ? 1312" } else { ": 1600)" };
    assert!(header.contains(size) && size.contains(&FEDSPAN_CLIENT_SIZE.to_string()));
    // The macro is never less than the function, and at most 64 bytes more.
    for (features, width, outputs) in
        [(1, 1, 1), (20, 2, 1), (57, 8, 7), (128, 8, 1), (6, 4, 256), (65_535, 2, 1)]
    {
        for frame_limit in [0, 128, 254, 256, 1024, 16_384] {
            let mut config = settings(features, width, outputs);
            config.frame_limit = frame_limit;
            // SAFETY: settings.
            let exact = unsafe { fedspan_memory_size(&raw const config) };
            let [d, k, c, limit] =
                [features, width, outputs, if frame_limit == 0 { 256 } else { frame_limit }].map(usize::from);
            let of_macro = FEDSPAN_CLIENT_SIZE
                + 4 * (3 * k * c + d * (k + c) + k * (k + 1) + c)
                + 2 * limit
                + limit / 254
                + 32;
            assert!(
                (exact..exact + 64).contains(&of_macro),
                "{features} {width} {outputs} {frame_limit}: {exact} {of_macro}"
            );
        }
    }
}
