//! Tests that seeded bugs fit the sources: the code that each bug replaces occurs exactly once.

use std::path::Path;

use fedspan_xtask::mutants::Mutant;

/// Returns the number of mutants in a directory; fails if one of them cannot be inserted.
fn count_fitting_mutants(directory: &str) -> usize {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut count = 0;
    for entry in std::fs::read_dir(root.join(directory)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "mutant") {
            let mutant = Mutant::parse(&std::fs::read_to_string(&path).unwrap());
            let changed = mutant.and_then(|mutant| {
                assert!(!mutant.about.is_empty());
                mutant.apply(&root)
            });
            assert!(changed.is_ok(), "{}: {}", path.display(), changed.unwrap_err());
            count += 1;
        }
    }
    count
}

#[test]
fn disaster_mutants_fit_the_sources() {
    assert_eq!(count_fitting_mutants("tests/mutants"), 12);
}

#[test]
fn thread_mutants_fit_the_sources() {
    assert_eq!(count_fitting_mutants("tests/threads/bugs"), 12);
}
