//! Tests of the cost of encryption on each core, compared with the list `sealing` in `budgets.toml`. They
//! fail if a value grows by more than 2 %. `tests/boards` measures and then runs this test; with
//! FEDSPAN_REGENERATE_BUDGETS=1 it writes a new list and the table of the boards' README.
#![cfg(feature = "emulation")]

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::budget::{
    BOARDS, GeneratedTable, List, Rows, builds, is_estimated, read_json_lines, regenerating, tables,
};

/// List of the costs of encryption.
const LIST: List =
    List { name: "sealing", keys: &["core", "opt_level", "limit"], figures: &VALUES, numbers: &[] };
/// Names of the values: bytes on the wire, instructions, bytes of stack, and cycles (only for cores with a
/// table of costs, at level "s").
const VALUES: [&str; 15] = [
    "handshake_bytes",
    "up",
    "seal",
    "encode",
    "open",
    "check",
    "handshake",
    "stack_hello",
    "stack_keys",
    "stack_seal",
    "stack_open",
    "stack_encode",
    "cycles_seal",
    "cycles_open",
    "cycles_handshake",
];

/// Names of the values for the stack of encryption alone.
const STACK_VALUES: [&str; 4] = ["stack_hello", "stack_keys", "stack_seal", "stack_open"];

/// Frame limits in bytes.
const LIMITS: [&str; 2] = ["256", "1024"];

/// Returns instructions and cycles of the update at (64, 4, 32) by the normal equations, from the check of
/// the representation to the gradient.
fn update_cost(core: &str) -> (u64, Option<u64>) {
    let is_update = |table: &BTreeMap<String, String>| {
        let has = |name: &str, word: &str| table[name] == word;
        has("core", core) && has("opt_level", "s") && has("d", "64") && has("path", "normal")
    };
    let table = tables("update").into_iter().find(is_update).expect("an update");
    let number = |name: &str| table.get(name).map(|word| word.parse::<u64>().expect("a number"));
    let instructions =
        ["instructions", "verify", "emit"].map(|name| number(name).expect("no value in the list"));
    (instructions.iter().sum(), number("cycles"))
}

/// Formats the table of the README.
fn format_encryption_table(rows: &Rows) -> String {
    let mut text = String::from(
        "| core | update | sealed and opened, limit 256 | limit 1024 | handshake | cycles: update | limit 256 | limit \
         1024 | handshake | stack |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for board in &BOARDS.emulated {
        let core = board.name.as_str();
        let look_up = |limit: &str| &rows[&[core, "s", limit].map(str::to_owned)[..]];
        let thousands = |n: u64| format!("{:.1}", n as f64 / 1e3);
        let sum = |names: [&str; 2], limit| {
            let values = names.map(|name| look_up(limit).get(name).copied());
            values[0].zip(values[1]).map(|(a, b)| a + b)
        };
        let (instructions, cycles) = update_cost(core);
        let mut cells = vec![board.core.clone(), thousands(instructions)];
        cells.extend(LIMITS.map(|limit| thousands(sum(["seal", "open"], limit).unwrap())));
        cells.push(thousands(look_up("256")["handshake"]));
        let estimated = [
            cycles.filter(|_| is_estimated(core, "s")),
            sum(["cycles_seal", "cycles_open"], "256"),
            sum(["cycles_seal", "cycles_open"], "1024"),
            look_up("256").get("cycles_handshake").copied(),
        ];
        cells.extend(estimated.map(|cycles| cycles.map_or(String::new(), thousands)));
        let stack = STACK_VALUES.map(|name| look_up("256")[name]);
        cells.push(format!("{} B", stack.into_iter().max().unwrap()));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

const README_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/boards/README.md",
    begin: "<!-- sealing: written by tests/tests/sealing.rs -->\n",
    end: "<!-- end of sealing -->\n",
};

#[test]
fn encryption_keeps_its_budget() {
    let rows = LIST.measured(&read_json_lines("target/boards/sealed.jsonl"));
    assert_eq!(rows.len(), builds() * LIMITS.len(), "every core, level and limit");
    for (key, values) in &rows {
        let estimated = is_estimated(&key[0], &key[1]);
        assert_eq!(values.len(), VALUES.len() - if estimated { 0 } else { 3 }, "{key:?} lacks a value");
    }
    if regenerating() {
        LIST.write(&rows);
        README_TABLE.write(&format_encryption_table(&rows));
    } else {
        LIST.check(&rows);
    }
}

#[test]
fn readme_shows_the_budgets() {
    README_TABLE.check(|| format_encryption_table(&LIST.budgets()), "tests/boards");
}

/// Tests the promise for a Cortex-M4F: 160 bytes of handshake, 1.5 KB of RAM (including 248 bytes of static
/// RAM, which `flash.rs` checks).
#[test]
fn cortex_m4_keeps_its_promise() {
    // Another test changes the budgets meanwhile.
    if regenerating() {
        return;
    }
    for (key, values) in LIST.budgets() {
        let [core, level, limit] = &key[..] else { panic!("{key:?}") };
        assert!(values["handshake_bytes"] <= 160, "{core} {level} {limit}: {values:?}");
        let stack = STACK_VALUES.map(|name| values[name]);
        let max_stack = stack.into_iter().max().unwrap();
        assert!(
            core != "m4" || level != "s" || max_stack + 248 <= 1536,
            "{limit}: {max_stack} bytes of stack"
        );
    }
}
