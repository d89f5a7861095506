//! Tests that no test depends on the speed of the machine: tests must wait for conditions and assert
//! behaviour, since a machine may be arbitrarily slow.

use std::collections::BTreeMap;
use std::path::Path;

use fedspan_xtask::prose::files::{rust_files, source};

/// Calls that make the outcome of a test depend on the machine's speed, unless the clock is virtual.
const CALLS: [&str; 3] = ["sleep(", "sleep_until(", ".elapsed()"];

/// Files that contain such calls, with the number of lines and the reason.
const ALLOWED: [(&str, usize, &str); 11] = [
    ("aggregator/src/server/peer/tests.rs", 10, "tokio's paused clock"),
    (
        "aggregator/tests/builder.rs",
        2,
        "the test asks for the server's status again and again until it is the expected one",
    ),
    (
        "aggregator/tests/limits.rs",
        1,
        "hostile peers pause before they reconnect; the test waits for none of them",
    ),
    ("aggregator/tests/read_snapshot.rs", 3, "durations are printed for aggregator/STORE.md, not asserted"),
    (
        "aggregator/tests/server.rs",
        1,
        "devices pause before they reconnect; the test waits for their messages",
    ),
    ("sim/tests/record.rs", 1, "the test waits for the recorder's output, as long as it takes"),
    ("tests/hostile/src/bulk.rs", 3, "the program `hostile` measures each input"),
    ("tests/hostile/src/main.rs", 1, "the program `hostile` prints the time of a run"),
    (
        "tests/tests/datagrams.rs",
        4,
        "the clocks of devices pass with the server's; the tests wait for the end of campaigns and for answers",
    ),
    (
        "tests/tests/serial_lines.rs",
        4,
        "tokio's paused clock, or the retry time that the client's session asks for",
    ),
    ("tests/tests/shell.rs", 6, "turmoil's virtual clock"),
];

#[test]
fn tests_do_not_depend_on_wall_clock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut calls_of_file = BTreeMap::new();
    for file in rust_files(root).unwrap() {
        let path = file.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        // Other programs and libraries in `tests` measure times, and `xtask` runs other programs.
        let is_test =
            path.contains("/tests/") || path.ends_with("/tests.rs") || path.starts_with("tests/hostile/");
        if !is_test || path.ends_with("wall_clock.rs") {
            continue;
        }
        let text = source(&file).unwrap().unwrap_or_default();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let count = lines.filter(|line| CALLS.iter().any(|call| line.contains(call))).count();
        if count > 0 {
            calls_of_file.insert(path, count);
        }
    }
    let allowed: BTreeMap<String, usize> =
        ALLOWED.iter().map(|&(path, count, _)| (path.to_owned(), count)).collect();
    assert_eq!(
        calls_of_file, allowed,
        "wait for a condition or use a virtual clock; if neither is possible, change the list with the reason"
    );
}
