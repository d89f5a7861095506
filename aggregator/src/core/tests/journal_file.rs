//! Journal file next to the journal table.

use super::*;

/// Table and file number their lines alike.
#[test]
fn new_campaign_continues_the_journal() {
    let state = tempfile::tempdir().unwrap();
    (0..3).for_each(|_| drop(core(state.path())));
    std::fs::write(state.path().join(journal::FILE), "").unwrap();
    let fleet = Fleet::parse("fleet.toml", &text(state.path()).replace("rounds = 3", "rounds = 4")).unwrap();
    let (store, file) = (Store::open(state.path(), SysRng).unwrap(), Journal::open(state.path()).unwrap());
    drop(ServerCore::new(&fleet, store, 1, None, Some(file)).unwrap());
    is_sound(&fleet, 4);
}

fn is_sound(fleet: &Fleet, lines: usize) {
    let found = crate::check::check(fleet).unwrap().expect("a campaign");
    let says = format!("{}: {lines} lines, all of them", fleet.state.join(journal::FILE).display());
    assert!(found.faults.is_empty() && found.facts.contains(&says), "{found:?}");
}
