//! What encryption costs on each core, against the list `sealing` in `budgets.toml`: a figure that grows by more than
//! two percent fails. `tests/boards` measures, then runs this; FEDSPAN_REGENERATE_BUDGETS=1 writes a new list and the
//! table of the boards' README, for a change that is wanted.
#![cfg(feature = "emulation")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use fedspan_tests::lists::{with_list, with_table};
use serde_json::Value;
use toml_edit::DocumentMut;

/// Growth that is forgiven: rebuilding elsewhere moves counts by a few instructions.
const GROWTH: f64 = 1.02;

/// What identifies a measurement.
const KEYS: [&str; 3] = ["core", "opt_level", "limit"];
/// What is bounded: bytes on the wire, instructions, bytes of stack, cycles (these for [`ESTIMATED`] at "s").
const FIGURES: [&str; 15] = [
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

/// Of the stack, what is there for encryption alone.
const STACK: [&str; 4] = ["stack_hello", "stack_keys", "stack_seal", "stack_open"];

const CORES: [&str; 6] = ["m4", "m7", "m33", "m3", "m0", "rv32imc"];
const ESTIMATED: [&str; 4] = ["m4", "m3", "m0", "rv32imc"];
const LIMITS: [&str; 2] = ["256", "1024"];

type Key = [String; KEYS.len()];
type Rows = BTreeMap<Key, BTreeMap<String, u64>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn measured() -> Rows {
    let mut rows = Rows::new();
    for line in read("target/boards/sealed.jsonl").lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let word = |name: &str| line[name].as_str().map_or_else(|| line[name].to_string(), str::to_owned);
        let key = KEYS.map(word);
        let figures = FIGURES.iter().filter_map(|name| Some(((*name).to_owned(), line[name].as_u64()?)));
        assert!(rows.insert(key.clone(), figures.collect()).is_none(), "{key:?} twice");
    }
    rows
}

/// A list of tables: of each the words under these names, and its numbers.
fn tables(name: &str) -> Vec<BTreeMap<String, String>> {
    let document: DocumentMut = read("tests/budgets.toml").parse().expect("TOML");
    let tables = document[name].as_array().expect("an array").iter();
    let words = |table: &toml_edit::Value| {
        let each = table.as_inline_table().expect("a table").iter().map(|(name, value)| {
            let word = value.as_str().map_or_else(|| value.to_string().trim().to_owned(), str::to_owned);
            (name.to_owned(), word)
        });
        each.collect()
    };
    tables.map(words).collect()
}

fn budgeted() -> Rows {
    let row = |table: BTreeMap<String, String>| {
        let figures = FIGURES
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), table.get(*name)?.parse().expect("a number"))));
        (KEYS.map(|name| table[name].clone()), figures.collect())
    };
    tables("sealing").into_iter().map(row).collect()
}

/// The list as it is in the file.
fn list(rows: &Rows) -> String {
    let mut text = String::new();
    for (key, figures) in rows {
        let words = KEYS.iter().zip(key).map(|(name, word)| format!("{name} = {word:?}"));
        let figures = FIGURES.iter().filter_map(|name| Some(format!("{name} = {}", figures.get(*name)?)));
        let _ = writeln!(text, "    {{ {} }},", words.chain(figures).collect::<Vec<_>>().join(", "));
    }
    text
}

/// Instructions and cycles of the update at (64, 4, 32), by the normal equations; instructions from the check of
/// the representation to the gradient.
fn update(core: &str) -> (u64, Option<u64>) {
    let own = |table: &BTreeMap<String, String>| {
        let is = |name: &str, word: &str| table[name] == word;
        is("core", core) && is("opt_level", "s") && is("d", "64") && is("path", "normal")
    };
    let table = tables("update").into_iter().find(own).expect("an update");
    let number = |name: &str| table.get(name).map(|word| word.parse::<u64>().expect("a number"));
    let all = ["instructions", "verify", "emit"].map(|name| number(name).expect("a figure"));
    (all.iter().sum(), number("cycles"))
}

/// The README's table.
fn table(rows: &Rows) -> String {
    let mut text = String::from(
        "| core | update | sealed and opened, limit 256 | limit 1024 | handshake | cycles: update | limit 256 | limit \
         1024 | handshake | stack |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for core in CORES {
        let of = |limit: &str| &rows[&[core, "s", limit].map(str::to_owned)];
        let thousands = |n: u64| format!("{:.1}", n as f64 / 1e3);
        let sum = |names: [&str; 2], limit| {
            let each = names.map(|name| of(limit).get(name).copied());
            each[0].zip(each[1]).map(|(a, b)| a + b)
        };
        let name = match core {
            "m4" => "Cortex-M4F",
            "m7" => "Cortex-M7",
            "m33" => "Cortex-M33",
            "m3" => "Cortex-M3",
            "m0" => "Cortex-M0",
            _ => "RV32IMC",
        };
        let (instructions, cycles) = update(core);
        let mut cells = vec![name.to_owned(), thousands(instructions)];
        cells.extend(LIMITS.map(|limit| thousands(sum(["seal", "open"], limit).unwrap())));
        cells.push(thousands(of("256")["handshake"]));
        let estimated = [
            cycles.filter(|_| ESTIMATED.contains(&core)),
            sum(["cycles_seal", "cycles_open"], "256"),
            sum(["cycles_seal", "cycles_open"], "1024"),
            of("256").get("cycles_handshake").copied(),
        ];
        cells.extend(estimated.map(|cycles| cycles.map_or(String::new(), thousands)));
        let stack = STACK.map(|name| of("256")[name]);
        cells.push(format!("{} B", stack.into_iter().max().unwrap()));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

const README: &str = "edge-client/boards/README.md";
const BEGIN: &str = "<!-- sealing: written by tests/tests/sealing.rs -->\n";
const END: &str = "<!-- end of sealing -->\n";

fn regenerating() -> bool {
    std::env::var_os("FEDSPAN_REGENERATE_BUDGETS").is_some()
}

#[test]
fn encryption_costs_no_more_than_it_did() {
    let rows = measured();
    // Each core at two levels, one of them at a third.
    assert_eq!(rows.len(), (CORES.len() * 2 + 1) * LIMITS.len(), "every core, level and limit");
    for (key, figures) in &rows {
        let estimated = ESTIMATED.contains(&key[0].as_str()) && key[1] == "s";
        assert_eq!(figures.len(), FIGURES.len() - if estimated { 0 } else { 3 }, "{key:?} lacks a figure");
    }
    if regenerating() {
        let new = with_list(&read("tests/budgets.toml"), "sealing", &list(&rows)).expect("a list");
        std::fs::write(root().join("tests/budgets.toml"), new).expect("written");
        let new = with_table(&read(README), BEGIN, END, &table(&rows)).expect("its place");
        std::fs::write(root().join(README), new).expect("written");
        return;
    }
    let budgets = budgeted();
    let mut over = String::new();
    for (key, figures) in &rows {
        let budget = budgets.get(key).unwrap_or_else(|| panic!("{key:?} has no budget"));
        for (name, &figure) in figures {
            if figure as f64 > budget[name] as f64 * GROWTH {
                let _ = writeln!(over, "{} {name}: {figure}, budget {}", key.join(" "), budget[name]);
            }
        }
    }
    assert!(over.is_empty(), "over budget by more than 2 %:\n{over}");
}

#[test]
fn the_readme_shows_the_budgets() {
    // The other test is about to change them.
    if !regenerating() {
        let new = with_table(&read(README), BEGIN, END, &table(&budgeted())).expect("its place");
        assert!(read(README) == new, "FEDSPAN_REGENERATE_BUDGETS=1 tests/boards writes the table anew");
    }
}

/// What was promised for a Cortex-M4F: 160 bytes of handshake, 1.5 KB of RAM (248 bytes of it static, of which
/// `flash.rs` watches the growth).
#[test]
fn the_m4_keeps_to_its_budget() {
    // Another test is about to change it.
    if regenerating() {
        return;
    }
    for ([core, level, limit], figures) in budgeted() {
        assert!(figures["handshake_bytes"] <= 160, "{core} {level} {limit}: {figures:?}");
        let stack = STACK.map(|name| figures[name]);
        let most = stack.into_iter().max().unwrap();
        assert!(core != "m4" || level != "s" || most + 248 <= 1536, "{limit}: {most} bytes of stack");
    }
}
