//! Flash and static RAM of firmware, compared with the list `flash` in `budgets.toml`: fails if a figure
//! grows by more than 2 %. `tests/firmware` measures and then runs this test; with
//! FEDSPAN_REGENERATE_BUDGETS=1 it writes a new list and the tables of the documents.
#![cfg(feature = "emulation")]

use std::fmt::Write;

use crate::budget::{GeneratedTable, List, Rows, lines, regenerating};

const LIST: List = List {
    name: "flash",
    keys: &["program", "target", "opt_level", "shape"],
    // In bytes.
    figures: &["flash", "ram"],
    numbers: &[],
};

/// Real boards; `null` and `client` are built for them.
const BOARDS: [&str; 4] = ["esp32c3", "nrf52840-dk", "rp2040-pico", "stm32f411-nucleo"];
/// Cores for which the client is linked without a board.
const CORES: [(&str, &str); 4] = [
    ("Cortex-M4F", "thumbv7em-none-eabihf"),
    ("Cortex-M3", "thumbv7m-none-eabi"),
    ("Cortex-M0", "thumbv6m-none-eabi"),
    ("RV32IMC", "riscv32imc-unknown-none-elf"),
];
/// Levels and shapes.
const VARIANTS: [(&str, &str); 7] = [
    ("s", "20-2"),
    ("s", "64-4"),
    ("s", "128-8"),
    ("3", "20-2"),
    ("3", "64-4"),
    ("3", "128-8"),
    ("3+s", "64-4"),
];

/// Optional features of the client, measured on [`FEATURED`] cores.
const FEATURES: [(&str, &str); 2] = [
    ("ridge-choice", "the ridge of final heads: leave-one-out, and scores for the fleet"),
    ("scale", "samples scaled as they are read, and sums for the fleet's scale"),
];
/// Indices in [`CORES`].
const FEATURED: [usize; 2] = [0, 2];

/// Table of the README.
fn table(sizes: &Rows) -> String {
    let mut text = String::from(
        "| core, opt-level | flash at (20, 2) | (64, 4) | (128, 8) | of that, the board | static RAM at (64, 4) |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    let of = |words: [&str; 4]| sizes.get(&words.map(str::to_owned)[..]);
    let bytes = |words, figure: &str| of(words).expect("measured")[figure];
    for (name, target) in CORES {
        let board = bytes(["least/null", target, "s", ""], "flash");
        for level in ["s", "3+s", "3"] {
            if level != "s" && target != CORES[0].1 {
                continue;
            }
            let _ = write!(text, "| {name}, {level} |");
            for shape in ["20-2", "64-4", "128-8"] {
                let own = of(["least/client", target, level, shape]);
                let _ = write!(text, " {} |", own.map_or(String::new(), |own| own["flash"].to_string()));
            }
            let ram = bytes(["least/client", target, level, "64-4"], "ram");
            let _ = writeln!(text, " {board} | {ram} |");
        }
    }
    text
}

/// Flash and RAM of a network, for the README of the boards.
fn networks(sizes: &Rows) -> String {
    let mut text = String::from("| core | flash | static RAM |\n| --- | --- | --- |\n");
    for (name, target) in CORES {
        let own = &sizes[&["least/network", target, "s", "64-32-7"].map(str::to_owned)[..]];
        let _ = writeln!(text, "| {name} | {} | {} |", own["flash"], own["ram"]);
    }
    text
}

/// Cost of each feature, for the README of the boards.
fn features(sizes: &Rows) -> String {
    let mut text = String::from(
        "| feature | for | core | flash at (64, 4) | more | static RAM |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let of = |target: &str, shape: &str| &sizes[&["least/client", target, "s", shape].map(str::to_owned)[..]];
    for (feature, purpose) in [("none of them", "")].iter().chain(&FEATURES) {
        for (name, target) in FEATURED.map(|core| CORES[core]) {
            let least = of(target, "64-4");
            let own = if purpose.is_empty() { least } else { of(target, &format!("64-4-{feature}")) };
            let label = if purpose.is_empty() { (*feature).to_owned() } else { format!("`{feature}`") };
            let more = own["flash"] as i64 - least["flash"] as i64;
            let _ = writeln!(
                text,
                "| {label} | {purpose} | {name} | {} | {more} | {} |",
                own["flash"], own["ram"]
            );
        }
    }
    text
}

const FEATURES_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/boards/README.md",
    begin: "<!-- feature flash: written by tests/tests/flash.rs -->\n",
    end: "<!-- end of feature flash -->\n",
};

const NETWORKS_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/boards/README.md",
    begin: "<!-- network flash: written by tests/tests/flash.rs -->\n",
    end: "<!-- end of network flash -->\n",
};

const README_TABLE: GeneratedTable = GeneratedTable {
    file: "README.md",
    begin: "<!-- flash: written by tests/tests/flash.rs -->\n",
    end: "<!-- end of flash -->\n",
};

#[test]
fn firmware_keeps_its_budget() {
    let sizes = LIST.measured(&lines("target/boards/sizes.jsonl"));
    let boards = BOARDS.len() * 2;
    // Programs of each core: nothing, noise alone, client with noise, client with a network, the client's
    // variants and features; and the smallest core's client in 16-bit fixed point.
    assert_eq!(
        sizes.len(),
        boards + CORES.len() * (4 + VARIANTS.len()) + FEATURED.len() * FEATURES.len() + 1,
        "every board, core, level and shape"
    );
    for (key, figures) in &sizes {
        assert_eq!(figures.len(), LIST.figures.len(), "{key:?} lacks a figure");
    }
    if regenerating() {
        LIST.write(&sizes);
        README_TABLE.write(&table(&sizes));
        NETWORKS_TABLE.write(&networks(&sizes));
        FEATURES_TABLE.write(&features(&sizes));
    } else {
        LIST.check(&sizes);
    }
}

#[test]
fn readmes_show_the_budgets() {
    README_TABLE.check(|| table(&LIST.budgets()), "tests/firmware");
    NETWORKS_TABLE.check(|| networks(&LIST.budgets()), "tests/firmware");
    FEATURES_TABLE.check(|| features(&LIST.budgets()), "tests/firmware");
}
