//! What it costs to train networks on the cores that have a budget for it, against the list `network` in `budgets.toml`: a
//! figure that grows by more than two percent fails. `tests/boards` measures, then runs this;
//! FEDSPAN_REGENERATE_BUDGETS=1 writes a new list and the table of the boards' README, for a change that is wanted.
#![cfg(feature = "emulation")]

use std::fmt::Write;

use crate::budget::{Key, List, Place, Rows, core_name, lines, regenerating};

const LIST: List = List {
    name: "network",
    keys: &["core", "opt_level", "model", "d", "m"],
    // Of a sample in an epoch of all that learns, or of the last part; bytes; cycles of an epoch of all that learns.
    figures: &["instructions", "last", "stack", "workspace", "cycles"],
    numbers: &["d", "m"],
};
/// What is measured, in the order of the table; whether cycles are, too.
const MEASURED: [(&str, &str, bool); 7] = [
    ("64-32-7", "m4", true),
    ("64-32-7", "m0", false),
    ("64-64 rank 4", "m4", true),
    ("64-64 rank 4", "m0", false),
    ("16x4, 8 filters, 16-7", "m4", false),
    ("16x4, 8 filters, 16-7", "m0", false),
    ("16x4, 16 cells, 7", "m4", false),
];
/// Of the epochs.
const SAMPLES: u64 = 75;

fn key(model: &str, core: &str) -> Key {
    [core, "s", model, "64", &SAMPLES.to_string()].map(str::to_owned).to_vec()
}

/// The README's table.
fn table(rows: &Rows) -> String {
    let mut text = String::from(
        "| network | core | instructions of a sample | in an epoch of the last part | cycles of a sample | stack | workspace |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (model, core, _) in MEASURED {
        let row = &rows[&key(model, core)];
        let thousands = |n: u64| format!("{:.1}", n as f64 / 1e3);
        let cycles = row.get("cycles").map_or(String::new(), |cycles| thousands(cycles / SAMPLES));
        let cells = [thousands(row["instructions"]), thousands(row["last"]), cycles].join(" | ");
        let (stack, workspace) = (row["stack"], row["workspace"]);
        let _ = writeln!(text, "| {model} | {} | {cells} | {stack} B | {workspace} B |", core_name(core));
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
    for (model, core, cycles) in MEASURED {
        let figures = LIST.figures.len() - usize::from(!cycles);
        assert_eq!(rows[&key(model, core)].len(), figures, "{model} on {core} lacks a figure");
    }
    assert_eq!(rows.len(), MEASURED.len(), "every network on every core");
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
