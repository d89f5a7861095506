//! Tests that C programs written from SPEC.md can read the golden vectors, and that the C code in SPEC.md
//! compiles and is correct.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles and runs a C file. The last line of its output must be `OK`.
fn compile_and_run(source: &Path) {
    let name = source.file_stem().unwrap();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let compiled = Command::new(&compiler)
        .args(["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1", "-ffp-contract=off", "-I"])
        .arg(vectors_folder())
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg("-lm")
        .output()
        .unwrap_or_else(|error| {
            panic!("no C compiler: cannot run `{compiler}` ({error}). Install one (README.md), or set CC.")
        });
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));

    let run = Command::new(&program).output().unwrap();
    let printed = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && printed.trim_end().ends_with("OK"),
        "{} printed: {printed}",
        source.display()
    );
}

/// Returns the folder of the golden vectors.
fn vectors_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

#[test]
fn check_c_reads_frames_and_messages() {
    compile_and_run(&vectors_folder().join("check.c"));
}

#[test]
fn check_sealed_c_opens_and_seals_the_exchange() {
    compile_and_run(&vectors_folder().join("check_sealed.c"));
}

#[test]
fn check_qr_c_has_the_same_bits() {
    compile_and_run(&vectors_folder().join("check_qr.c"));
}

/// Tests the C functions in SPEC.md with a `main` function that runs them over every vector.
#[test]
fn specification_code_reads_every_vector() {
    const MAIN: &str = r#"
int main(void) {
    static uint8_t plain[4096], wire[4200];
    static const uint64_t numbers[] = {0, 1, 127, 128, 16383, 16384, 65535, 4294967295u, ~(uint64_t)0};
    if (crc32c((const uint8_t *)"123456789", 9) != 0xE3069283) return 1;
    for (size_t v = 0; v < sizeof fedspan_vectors / sizeof *fedspan_vectors; v++) {
        int n = (int)fedspan_vectors[v].length;
        int len = uncobs(fedspan_vectors[v].bytes, n - 1, plain, sizeof plain);
        if (len < 5 || uncobs(fedspan_vectors[v].bytes, n - 1, plain, len) != len) return 2;
        if (uncobs(fedspan_vectors[v].bytes, n - 1, plain, len - 1) != -1) return 3;
        uncobs(fedspan_vectors[v].bytes, n - 1, plain, len);
        uint32_t crc = crc32c(plain, len - 4);
        for (int i = 0; i < 4; i++) if (plain[len - 4 + i] != (uint8_t)(crc >> 8 * i)) return 4;
        if (cobs(plain, len, wire) != n || memcmp(wire, fedspan_vectors[v].bytes, n) != 0) return 5;
    }
    for (int n = 1; n < 1100; n++) {
        for (int i = 0; i < n; i++) plain[i] = (uint8_t)(1 + i % 255);
        int len = cobs(plain, n, wire);
        if (len != n + (n + 253) / 254 + 1 || uncobs(wire, len - 1, plain, n) != n) return 6;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        uint64_t back;
        int n = put_varint(numbers[i], wire);
        if (get_varint(wire, n, 64, &back) != n || back != numbers[i]) return 7;
        if (get_varint(wire, n - 1, 64, &back) != -1) return 8;
        if ((get_varint(wire, n, 16, &back) == n) != (numbers[i] <= 0xFFFF)) return 9;
        if ((get_varint(wire, n, 32, &back) == n) != (numbers[i] <= 0xFFFFFFFF)) return 10;
    }
    (void)representation_i8_decoded;
    (void)representation_i8_orthonormal;
    (void)provision_record;
    (void)provision_with_noise;
    puts("OK");
    return 0;
}
"#;
    let specification = Path::new(env!("CARGO_MANIFEST_DIR")).join("SPEC.md");
    let text = std::fs::read_to_string(specification).unwrap();
    let code: String = text.split("```c\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("specification.c");
    let includes = "#include <stdio.h>\n#include <string.h>\n#include \"vectors.h\"\n";
    std::fs::write(&source, [includes, &code, MAIN].concat()).unwrap();
    compile_and_run(&source);
}
