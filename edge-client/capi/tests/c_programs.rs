//! Tests of the files in C: the header's structures have the layout of the library, and all programs and packages compile without a
//! warning. The packages are compiled against declarations of what they call.

use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use fedspan::{
    fedspan_config, fedspan_counters, fedspan_platform, fedspan_samples, fedspan_state, fedspan_status,
    fedspan_timers,
};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs the compiler of C or C++ in the folder of the package.
fn compile(compiler: &str, words: &str) {
    let variable = if compiler == "cc" { "CC" } else { "CXX" };
    let compiler = std::env::var(variable).unwrap_or_else(|_| compiler.to_owned());
    let output = Command::new(&compiler)
        .current_dir(folder())
        .args(["-Wall", "-Wextra", "-Werror", "-Iinclude"])
        .args(words.split(' '))
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; the tests need a compiler of C and C++"));
    assert!(output.status.success(), "{words}:\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles a program from these words, runs it, and returns what it has printed.
fn run(name: &str, words: &str) -> String {
    let scratch = std::env::temp_dir().join(format!("fedspan-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let program = scratch.join(name);
    compile("cc", &format!("-std=c11 {words} -o {}", program.display()));
    let output = Command::new(&program).output().unwrap();
    std::fs::remove_dir_all(&scratch).unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn structures_have_the_layout_of_the_library() {
    let printed = run("layout", "tests/layout.c");
    let sizes = [
        ("fedspan_config", size_of::<fedspan_config>()),
        ("fedspan_config.device", offset_of!(fedspan_config, device)),
        ("fedspan_config.key", offset_of!(fedspan_config, key)),
        ("fedspan_config.key_epoch", offset_of!(fedspan_config, key_epoch)),
        ("fedspan_config.outputs", offset_of!(fedspan_config, outputs)),
        ("fedspan_config.frame_limit", offset_of!(fedspan_config, frame_limit)),
        ("fedspan_config.leave_when_fitted", offset_of!(fedspan_config, leave_when_fitted)),
        ("fedspan_config.cipher", offset_of!(fedspan_config, cipher)),
        ("fedspan_config.sleep_ms", offset_of!(fedspan_config, sleep_ms)),
        ("fedspan_config.sleep_wait_ms", offset_of!(fedspan_config, sleep_wait_ms)),
        ("fedspan_config.timers", offset_of!(fedspan_config, timers)),
        ("fedspan_config.pause_quota", offset_of!(fedspan_config, pause_quota)),
        ("fedspan_config.platform", offset_of!(fedspan_config, platform)),
        ("fedspan_platform", size_of::<fedspan_platform>()),
        ("fedspan_platform.random", offset_of!(fedspan_platform, random)),
        ("fedspan_platform.write", offset_of!(fedspan_platform, write)),
        ("fedspan_platform.pause", offset_of!(fedspan_platform, pause)),
        ("fedspan_timers", size_of::<fedspan_timers>()),
        ("fedspan_timers.write_ms", offset_of!(fedspan_timers, write_ms)),
        ("fedspan_samples", size_of::<fedspan_samples>()),
        ("fedspan_samples.count", offset_of!(fedspan_samples, count)),
        ("fedspan_counters", size_of::<fedspan_counters>()),
        ("fedspan_status", size_of::<fedspan_status>()),
        ("fedspan_state", size_of::<fedspan_state>()),
    ];
    let expected: String = sizes.iter().map(|(name, size)| format!("{name} {size}\n")).collect();
    assert_eq!(printed, expected);
}

#[test]
fn programs_and_packages_compile() {
    for standard in ["c99", "c11", "c17"] {
        compile("cc", &format!("-std={standard} -pedantic-errors -fsyntax-only tests/layout.c"));
    }
    compile("c++", "-std=c++11 -pedantic-errors -fsyntax-only -x c++ tests/layout.c");
    compile("cc", "-std=c11 -D_GNU_SOURCE -fsyntax-only examples/tcp_device.c");
    compile("cc", "-std=c11 -fsyntax-only -ffreestanding examples/board/main.c");
    compile("cc", "-std=c11 -fsyntax-only -Izephyr -Itests/declarations zephyr/fedspan_zephyr.c");
    compile("cc", "-std=c11 -fsyntax-only -Iesp-idf -Itests/declarations/esp esp-idf/fedspan_esp.c");
    let sketch = "-std=c++17 -fsyntax-only -Iarduino/src -Iinclude -Itests/declarations/arduino -x c++ arduino/examples/Train/Train.ino";
    compile("c++", sketch);
}

/// Tests that clients with storage of different names keep their items apart, and that the name without a choice is the same as ever. NVS
/// and settings are in memory.
#[test]
fn packages_store_the_items_of_each_client_under_its_name() {
    run("esp", "-Iesp-idf -Itests/declarations/esp tests/storage_esp.c esp-idf/fedspan_esp.c");
    run("zephyr", "-Izephyr -Itests/declarations tests/storage_zephyr.c zephyr/fedspan_zephyr.c");
}

/// The README says that the program for boards has 60 lines.
#[test]
fn program_for_boards_has_sixty_lines() {
    let text = std::fs::read_to_string(folder().join("examples/board/main.c")).unwrap();
    let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 60, "{lines} lines");
}
