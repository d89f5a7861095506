//! What firmware takes of flash and static RAM, against the list `flash` in `budgets.toml`: a figure that grows by more
//! than two percent fails. `tests/firmware` measures, then runs this; FEDSPAN_REGENERATE_BUDGETS=1 writes a new list
//! and the table of the README, for a change that is wanted.
#![cfg(feature = "emulation")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use fedspan_tests::lists::{with_list, with_table};
use serde_json::Value;
use toml_edit::DocumentMut;

/// Growth that is forgiven: rebuilding elsewhere moves sizes by a few bytes.
const GROWTH: f64 = 1.02;

/// What identifies a firmware.
const KEYS: [&str; 4] = ["program", "target", "opt_level", "shape"];
/// What is bounded, in bytes.
const FIGURES: [&str; 2] = ["flash", "ram"];

/// Real boards, of which null and client are built.
const BOARDS: [&str; 4] = ["esp32c3", "nrf52840-dk", "rp2040-pico", "stm32f411-nucleo"];
/// The whole client without a board is linked for these.
const CORES: [(&str, &str); 4] = [
    ("Cortex-M4F", "thumbv7em-none-eabihf"),
    ("Cortex-M3", "thumbv7m-none-eabi"),
    ("Cortex-M0", "thumbv6m-none-eabi"),
    ("RV32IMC", "riscv32imc-unknown-none-elf"),
];
/// At these levels and shapes.
const VARIANTS: [(&str, &str); 7] = [
    ("s", "20-2"),
    ("s", "64-4"),
    ("s", "128-8"),
    ("3", "20-2"),
    ("3", "64-4"),
    ("3", "128-8"),
    ("3+s", "64-4"),
];

type Key = [String; KEYS.len()];
type Sizes = BTreeMap<Key, [u64; FIGURES.len()]>;

fn key(words: [&str; KEYS.len()]) -> Key {
    words.map(str::to_owned)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn measured() -> Sizes {
    let mut sizes = Sizes::new();
    for line in read("target/boards/sizes.jsonl").lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let own = KEYS.map(|name| line[name].as_str().expect("a word").to_owned());
        let figures = FIGURES.map(|name| line[name].as_u64().expect("bytes"));
        assert!(sizes.insert(own.clone(), figures).is_none(), "{own:?} twice");
    }
    sizes
}

fn budgeted() -> Sizes {
    let document: DocumentMut = read("tests/budgets.toml").parse().expect("TOML");
    let tables = document["flash"].as_array().expect("an array").iter();
    tables
        .map(|table| {
            let table = table.as_inline_table().expect("a table");
            let own = KEYS.map(|name| table[name].as_str().expect("a word").to_owned());
            let figures = FIGURES.map(|name| table[name].as_integer().unwrap().try_into().unwrap());
            (own, figures)
        })
        .collect()
}

/// The list as it is in the file.
fn list(sizes: &Sizes) -> String {
    let mut text = String::new();
    for (own, figures) in sizes {
        let words = KEYS.iter().zip(own).map(|(name, word)| format!("{name} = {word:?}"));
        let figures = FIGURES.iter().zip(figures).map(|(name, bytes)| format!("{name} = {bytes}"));
        let _ = writeln!(text, "    {{ {} }},", words.chain(figures).collect::<Vec<_>>().join(", "));
    }
    text
}

/// The README's table.
fn table(sizes: &Sizes) -> String {
    let mut text = String::from(
        "| core, opt-level | flash at (20, 2) | (64, 4) | (128, 8) | of that, the board | static RAM at (64, 4) |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    let bytes = |words| sizes[&key(words)];
    for (name, target) in CORES {
        let [board, _] = bytes(["least/null", target, "s", ""]);
        for level in ["s", "3+s", "3"] {
            if level != "s" && target != CORES[0].1 {
                continue;
            }
            let _ = write!(text, "| {name}, {level} |");
            for shape in ["20-2", "64-4", "128-8"] {
                let flash = sizes.get(&key(["least/client", target, level, shape]));
                let _ = write!(text, " {} |", flash.map_or(String::new(), |[flash, _]| flash.to_string()));
            }
            let [_, ram] = bytes(["least/client", target, level, "64-4"]);
            let _ = writeln!(text, " {board} | {ram} |");
        }
    }
    text
}

const BEGIN: &str = "<!-- flash: written by tests/tests/flash.rs -->\n";
const END: &str = "<!-- end of flash -->\n";

/// The README with this table.
fn readme(table: &str) -> String {
    with_table(&read("README.md"), BEGIN, END, table).expect("its place")
}

fn regenerating() -> bool {
    std::env::var_os("FEDSPAN_REGENERATE_BUDGETS").is_some()
}

#[test]
fn no_firmware_takes_more_than_it_did() {
    let sizes = measured();
    let boards = BOARDS.len() * 2;
    // The last one is the smallest core's in 16-bit fixed point.
    assert_eq!(
        sizes.len(),
        boards + CORES.len() * (1 + VARIANTS.len()) + 1,
        "every board, core, level and shape"
    );
    if regenerating() {
        let file = with_list(&read("tests/budgets.toml"), "flash", &list(&sizes)).expect("a list");
        std::fs::write(root().join("tests/budgets.toml"), file).expect("written");
        std::fs::write(root().join("README.md"), readme(&table(&sizes))).expect("written");
        return;
    }
    let budgets = budgeted();
    let mut over = String::new();
    for (own, figures) in &sizes {
        let budget = budgets.get(own).unwrap_or_else(|| panic!("{own:?} has no budget"));
        for ((name, &figure), &most) in FIGURES.iter().zip(figures).zip(budget) {
            if figure as f64 > most as f64 * GROWTH {
                let _ = writeln!(over, "{} {name}: {figure}, budget {most}", own.join(" "));
            }
        }
    }
    assert!(over.is_empty(), "over budget by more than 2 %:\n{over}");
}

#[test]
fn the_readme_shows_the_budgets() {
    // The other test is about to change them.
    if !regenerating() {
        assert!(
            read("README.md") == readme(&table(&budgeted())),
            "FEDSPAN_REGENERATE_BUDGETS=1 tests/firmware"
        );
    }
}
