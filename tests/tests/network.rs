//! What it costs to train a network on the cores that have a budget for it, against the list `network` in `budgets.toml`: a
//! figure that grows by more than two percent fails. `tests/boards` measures, then runs this;
//! FEDSPAN_REGENERATE_BUDGETS=1 writes a new list and the table of the boards' README, for a change that is wanted.
#![cfg(feature = "emulation")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod budget;

use std::fmt::Write;

use budget::{Key, List, Place, Rows, core_name, lines, regenerating};

const LIST: List = List {
    name: "network",
    keys: &["core", "opt_level", "d", "k", "m"],
    // Of a sample in an epoch of all layers, or of the head; bytes; cycles of an epoch of all layers, for m4.
    figures: &["instructions", "head", "stack", "workspace", "cycles"],
    numbers: &["d", "k", "m"],
};
const CORES: [&str; 2] = ["m4", "m0"];
/// Of the epochs.
const SAMPLES: u64 = 75;

fn key(core: &str) -> Key {
    [core, "s", "64", "32", &SAMPLES.to_string()].map(str::to_owned).to_vec()
}

/// The README's table.
fn table(rows: &Rows) -> String {
    let mut text = String::from(
        "| core | instructions of a sample | in an epoch of the head | cycles of a sample | stack | workspace |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for core in CORES {
        let row = &rows[&key(core)];
        let thousands = |n: u64| format!("{:.1}", n as f64 / 1e3);
        let cycles = row.get("cycles").map_or(String::new(), |cycles| thousands(cycles / SAMPLES));
        let cells = [thousands(row["instructions"]), thousands(row["head"]), cycles].join(" | ");
        let (stack, workspace) = (row["stack"], row["workspace"]);
        let _ = writeln!(text, "| {} | {cells} | {stack} B | {workspace} B |", core_name(core));
    }
    text
}

const PLACE: Place = Place {
    file: "edge-client/boards/README.md",
    begin: "<!-- network: written by tests/tests/network.rs -->\n",
    end: "<!-- end of network -->\n",
};

#[test]
fn training_costs_no_more_than_it_did() {
    let rows = LIST.measured(&lines("target/boards/trained.jsonl"));
    for (core, missing) in CORES.into_iter().zip([0, 1]) {
        assert_eq!(rows[&key(core)].len(), LIST.figures.len() - missing, "{core} lacks a figure");
    }
    assert_eq!(rows.len(), CORES.len(), "every core");
    if regenerating() {
        LIST.write(&rows);
        PLACE.write(&table(&rows));
    } else {
        LIST.check(&rows);
    }
}

#[test]
fn the_readme_shows_the_budgets() {
    PLACE.check(|| table(&LIST.budgeted()), "tests/boards");
}
