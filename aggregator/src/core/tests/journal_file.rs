//! Tests that the journal file and the journal table of the database agree.

use super::*;

/// A new campaign continues the numbers of the journal lines, both in the table and in the file.
#[test]
fn new_campaign_continues_the_journal() {
    let state = tempfile::tempdir().unwrap();
    (0..3).for_each(|_| drop(start_core(state.path())));
    std::fs::write(state.path().join(journal::FILE), "").unwrap();
    let fleet =
        Fleet::parse("fleet.toml", &configuration_text(state.path()).replace("rounds = 3", "rounds = 4"))
            .unwrap();
    let store = Store::open(state.path(), SysRng).unwrap();
    let file = Journal::open(state.path()).unwrap();
    drop(ServerCore::new(&fleet, store, 1, None, Some(file)).unwrap());
    assert_sound(&fleet, 4);
}

/// Asserts that the state directory is consistent and that the journal has this number of lines.
fn assert_sound(fleet: &Fleet, lines: usize) {
    let report = crate::check::check(fleet).unwrap().expect("a campaign");
    let journal_fact = format!("{}: {lines} lines, all of them", fleet.state.join(journal::FILE).display());
    assert!(report.faults.is_empty() && report.facts.contains(&journal_fact), "{report:?}");
}
