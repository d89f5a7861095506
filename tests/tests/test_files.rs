//! Tests that every test file is a module of its crate's test program. A file that is no module would never
//! run.

use std::path::Path;

#[test]
fn every_test_file_belongs_to_a_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for member in [
        "protocol",
        "edge-client",
        "aggregator",
        "aggregator/adapters",
        "aggregator/engine",
        "sim",
        "sim/core",
        "tests",
    ] {
        let folder = root.join(member).join("tests");
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let programs = [text("all.rs"), text("emulation.rs")].concat();
        assert!(!programs.is_empty(), "{member}: no program");
        for entry in std::fs::read_dir(&folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let Some(module) = name.strip_suffix(".rs").filter(|name| !["all", "emulation"].contains(name))
            else {
                continue;
            };
            assert!(
                programs.lines().any(|line| line == format!("mod {module};")),
                "{member}/tests/{name} is in no program; add \"mod {module};\" to {member}/tests/all.rs"
            );
        }
    }
}
