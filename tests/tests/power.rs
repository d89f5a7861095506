//! Tests of the cost of a FedPower iteration on some cores, without and with noise, compared with the list
//! `power` in `budgets.toml`. They fail if a value grows by more than 2 %. `tests/boards` measures and then
//! runs this test; with FEDSPAN_REGENERATE_BUDGETS=1 it writes a new list and the table of the boards'
//! README.
#![cfg(feature = "emulation")]

use std::fmt::Write;

use crate::budget::{BOARDS, GeneratedTable, Key, List, Rows, core_name, read_json_lines, regenerating};
use crate::budgets::check_stretches;

/// List of the costs of a FedPower iteration.
const LIST: List = List {
    name: "power",
    keys: &["core", "opt_level", "d", "k", "m", "path"],
    // Only iterations with noise have the values `noise` and `seed`.
    figures: &["instructions", "verify", "noise", "seed", "stretch", "stack", "client", "cycles"],
    numbers: &["d", "k", "m"],
};
/// Iterations without and with noise.
const PATHS: [&str; 2] = ["plain", "private"];

/// Returns the cores and shapes (d, k, m) in the order of the table of boards.
fn measured() -> impl Iterator<Item = (&'static str, [u64; 3])> {
    let shape = |name: &str| {
        let sizes: Vec<u64> = name.split('-').map(|size| size.parse().expect("a size")).collect();
        sizes.try_into().expect("three sizes")
    };
    let boards = BOARDS.emulated.iter();
    boards.flat_map(move |board| board.power.iter().map(move |name| (board.name.as_str(), shape(name))))
}

fn row_key(core: &str, shape: [u64; 3], path: &str) -> Key {
    let words = [core.to_owned(), "s".to_owned()].into_iter().chain(shape.map(|n| n.to_string()));
    words.chain([path.to_owned()]).collect()
}

/// Formats the table of the README.
fn format_power_table(rows: &Rows) -> String {
    let mut text = String::from(
        "| core | (d, r, s) | without noise | with noise | of that: product | noise | seed | cycles without | with | stack \
         | static |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (core, shape) in measured() {
        let [plain, private] = PATHS.map(|path| &rows[&row_key(core, shape, path)]);
        let thousands = |n: u64| format!("{:.0}", n as f64 / 1e3);
        let product = private["instructions"] - private["noise"] - private["seed"];
        let instructions =
            [plain["instructions"], private["instructions"], product, private["noise"], private["seed"]];
        let [d, r, s] = shape;
        let cells = instructions.into_iter().chain([plain["cycles"], private["cycles"]]).map(thousands);
        let cells = cells.collect::<Vec<_>>().join(" | ");
        let (stack, memory) = (private["stack"], private["client"]);
        let _ =
            writeln!(text, "| {} | ({d}, {r}, {s}) | {cells} | {stack} B | {memory} B |", core_name(core));
    }
    text
}

const README_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/boards/README.md",
    begin: "<!-- power: written by tests/tests/power.rs -->\n",
    end: "<!-- end of power -->\n",
};

#[test]
fn iteration_keeps_its_budget() {
    let rows = LIST.measured(&read_json_lines("target/boards/powered.jsonl"));
    for (core, shape) in measured() {
        for (path, missing) in PATHS.into_iter().zip([2, 0]) {
            let key = row_key(core, shape, path);
            assert_eq!(rows[&key].len(), LIST.figures.len() - missing, "{key:?} lacks a value");
        }
    }
    assert_eq!(rows.len(), measured().count() * PATHS.len(), "every core, shape and path");
    if regenerating() {
        LIST.write(&rows);
        README_TABLE.write(&format_power_table(&rows));
    } else {
        LIST.check(&rows);
    }
    check_stretches(&rows);
}

#[test]
fn readme_shows_the_budgets() {
    README_TABLE.check(|| format_power_table(&LIST.budgets()), "tests/boards");
}
