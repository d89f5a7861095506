//! Tests that every test file is a module of its crate's test program. A file that is no module would never
//! run.

use std::path::Path;

use fedspan_xtask::prose::files::rust_files;

#[test]
fn every_test_file_belongs_to_a_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for member in [
        "protocol",
        "edge-client",
        "edge-client/capi",
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
            let Some(module) =
                name.strip_suffix(".rs").filter(|name| !["all", "emulation", "least"].contains(name))
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

#[test]
fn programs_that_are_not_tested_have_no_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut checked = 0;
    for manifest in ["tests/Cargo.toml", "tests/hostile/Cargo.toml", "tests/xtask/Cargo.toml"] {
        let text = std::fs::read_to_string(root.join(manifest)).unwrap();
        let document: toml_edit::DocumentMut = text.parse().unwrap();
        let untested =
            |target: &toml_edit::Table| target.get("test").is_some_and(|test| test.as_bool() == Some(false));
        let folder = root.join(manifest).parent().unwrap().to_owned();
        let mut files = Vec::new();
        for bin in document["bin"].as_array_of_tables().unwrap().iter().filter(|bin| untested(bin)) {
            files.push(folder.join(bin["path"].as_str().unwrap()));
        }
        if document.get("lib").and_then(|lib| lib.as_table()).is_some_and(untested) {
            files.extend(rust_files(&folder.join("src")).unwrap());
        }
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(!text.contains("#[test]"), "{}: its manifest says test = false", file.display());
            checked += 1;
        }
    }
    assert!(checked >= 10, "only {checked} files were checked");
}
