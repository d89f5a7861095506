//! Tests of the cost of training a network on some cores, compared with the list `network` in `budgets.toml`.
//! They fail if a value grows by more than 2 %. `tests/boards` measures and then runs this test; with
//! FEDSPAN_REGENERATE_BUDGETS=1 it writes a new list and the table of the boards' README.
#![cfg(feature = "emulation")]

use std::fmt::Write;

use crate::budget::{BOARDS, GeneratedTable, Key, List, Rows, core_name, read_json_lines, regenerating};
use crate::budgets::check_stretches;

/// List of the costs of training a network.
const LIST: List = List {
    name: "network",
    keys: &["core", "opt_level", "model", "d", "m"],
    // `instructions` and `last` are counts per sample, in an epoch that trains all parameters or only the
    // last part; `stack` and `workspace` are in bytes; `cycles` is the number for an epoch that trains all
    // parameters.
    figures: &["instructions", "last", "stretch", "stack", "workspace", "cycles"],
    numbers: &["d", "m"],
};
/// Features of the firmware, the networks measured with them, and the samples of an epoch, in the order of the table.
const MODELS: [(&str, &str, u64); 4] = [
    ("network", "64-32-7", 75),
    ("adapter", "64-64 rank 4", 75),
    ("convolution", "16x4, 8 filters, 16-7", 75),
    ("recurrent", "16x4, 16 cells, 7", 25),
];

/// Returns the networks, their samples, the cores that run them, and whether cycles are estimated.
fn measured() -> impl Iterator<Item = (&'static str, u64, &'static str, bool)> {
    MODELS.into_iter().flat_map(|(feature, model, samples)| {
        let boards =
            BOARDS.emulated.iter().filter(move |board| board.networks.iter().any(|known| known == feature));
        boards.map(move |board| {
            (model, samples, board.name.as_str(), board.network_cycles.iter().any(|known| known == feature))
        })
    })
}

fn row_key(model: &str, samples: u64, core: &str) -> Key {
    [core, "s", model, "64", &samples.to_string()].map(str::to_owned).to_vec()
}

/// Formats the table of the README.
fn format_network_table(rows: &Rows) -> String {
    let mut text = String::from(
        "| network | core | instructions of a sample | in an epoch of the last part | cycles of a sample | stack | workspace |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (model, samples, core, _) in measured() {
        let row = &rows[&row_key(model, samples, core)];
        let thousands = |n: u64| format!("{:.1}", n as f64 / 1e3);
        let cycles = row.get("cycles").map_or(String::new(), |cycles| thousands(cycles / samples));
        let cells = [thousands(row["instructions"]), thousands(row["last"]), cycles].join(" | ");
        let (stack, workspace) = (row["stack"], row["workspace"]);
        let _ = writeln!(text, "| {model} | {} | {cells} | {stack} B | {workspace} B |", core_name(core));
    }
    text
}

const README_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/boards/README.md",
    begin: "<!-- network: written by tests/tests/network.rs -->\n",
    end: "<!-- end of network -->\n",
};

#[test]
fn training_keeps_its_budget() {
    let rows = LIST.measured(&read_json_lines("target/boards/trained.jsonl"));
    for (model, samples, core, cycles) in measured() {
        let expected = LIST.figures.len() - usize::from(!cycles);
        assert_eq!(rows[&row_key(model, samples, core)].len(), expected, "{model} on {core} lacks a value");
    }
    assert_eq!(rows.len(), measured().count(), "every network on every core");
    if regenerating() {
        LIST.write(&rows);
        README_TABLE.write(&format_network_table(&rows));
    } else {
        LIST.check(&rows);
    }
    check_stretches(&rows);
}

#[test]
fn readme_shows_the_budgets() {
    README_TABLE.check(|| format_network_table(&LIST.budgets()), "tests/boards");
}
