//! Tests that `README.md` stays short and leads to every page.

use std::collections::BTreeSet;
use std::path::Path;

use super::documents::{Repository, links_in, normalise, read_file};

/// Largest number of words of `README.md`, code blocks and tables included.
const MOST_WORDS: usize = 1200;

/// Folders whose pages are part of the repository. Pages elsewhere are results of commands.
const FOLDERS: [&str; 5] = ["aggregator", "edge-client", "protocol", "sim", "tests"];

/// Returns true for pages about tests, which are for contributors.
fn is_about_tests(page: &str) -> bool {
    Path::new(page).components().any(|part| part.as_os_str() == "tests")
}

/// Returns the pages and folders of the repository that a page in its root folder links.
fn linked_by(page: &str) -> BTreeSet<String> {
    let text = read_file(page);
    let files = text.lines().flat_map(links_in).filter_map(|target| target.split('#').next());
    files.filter_map(|file| Some(normalise(Path::new(file))?.to_str()?.to_owned())).collect()
}

#[test]
fn readme_has_at_most_1200_words() {
    let count = read_file("README.md").split_whitespace().count();
    assert!(
        count <= MOST_WORDS,
        "README.md has {count} words, allowed: {MOST_WORDS}; move text to other pages"
    );
}

/// Tests that `README.md` links every page for users, and `CONTRIBUTING.md` every page about tests.
#[test]
fn index_links_every_page() {
    let repository = Repository::read();
    let (index, contributing) = (linked_by("README.md"), linked_by("CONTRIBUTING.md"));
    let is_page = |page: &&String| {
        **page != "README.md" && page.split_once('/').is_none_or(|(folder, _)| FOLDERS.contains(&folder))
    };
    let pages: Vec<&String> = repository.documents().filter(is_page).collect();
    assert!(pages.len() > 40, "too few pages: {pages:?}");
    let faults: Vec<String> = pages
        .into_iter()
        .filter_map(|page| match is_about_tests(page) {
            true => (!contributing.contains(page)).then(|| format!("CONTRIBUTING.md does not link {page}")),
            false => (!index.contains(page)).then(|| format!("README.md does not link {page}")),
        })
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Tests that `CITATION.cff` names the version and the licence of the workspace.
#[test]
fn citation_has_the_version_of_the_workspace() {
    let manifest: toml_edit::DocumentMut = read_file("Cargo.toml").parse().unwrap();
    let value = |key: &str| manifest["workspace"]["package"][key].as_str().unwrap().to_owned();
    let citation = read_file("CITATION.cff");
    let has_line = |line: &str| citation.lines().any(|other| other == line);
    assert!(has_line(&format!("version: {}", value("version"))), "{citation}");
    for licence in value("license").split(" OR ") {
        assert!(has_line(&format!("  - {licence}")), "{citation}");
    }
}
