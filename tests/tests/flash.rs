//! What firmware takes of flash and static RAM, against the list `flash` in `budgets.toml`: a figure that grows by more
//! than two percent fails. `tests/firmware` measures, then runs this; FEDSPAN_REGENERATE_BUDGETS=1 writes a new list
//! and the table of the README, for a change that is wanted.
#![cfg(feature = "emulation")]

use std::fmt::Write;

use crate::budget::{List, Place, Rows, lines, regenerating};

const LIST: List = List {
    name: "flash",
    keys: &["program", "target", "opt_level", "shape"],
    // In bytes.
    figures: &["flash", "ram"],
    numbers: &[],
};

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

/// Features of the client that a linear model can do without, with these cores and no others.
const FEATURES: [(&str, &str); 2] = [
    ("ridge-choice", "the ridge of final heads: leave-one-out, and scores for the fleet"),
    ("scale", "samples scaled as they are read, and sums for the fleet's scale"),
];
/// Of [`CORES`], those whose features are measured.
const FEATURED: [usize; 2] = [0, 2];

/// The README's table.
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

/// The table of what a network takes, in the README of the boards.
fn networks(sizes: &Rows) -> String {
    let mut text = String::from("| core | flash | static RAM |\n| --- | --- | --- |\n");
    for (name, target) in CORES {
        let own = &sizes[&["least/network", target, "s", "64-32-7"].map(str::to_owned)[..]];
        let _ = writeln!(text, "| {name} | {} | {} |", own["flash"], own["ram"]);
    }
    text
}

/// The table of what features add, in the README of the boards.
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

const FEATURES_PLACE: Place = Place {
    file: "edge-client/boards/README.md",
    begin: "<!-- feature flash: written by tests/tests/flash.rs -->\n",
    end: "<!-- end of feature flash -->\n",
};

const NETWORKS: Place = Place {
    file: "edge-client/boards/README.md",
    begin: "<!-- network flash: written by tests/tests/flash.rs -->\n",
    end: "<!-- end of network flash -->\n",
};

const PLACE: Place = Place {
    file: "README.md",
    begin: "<!-- flash: written by tests/tests/flash.rs -->\n",
    end: "<!-- end of flash -->\n",
};

#[test]
fn no_firmware_takes_more_than_it_did() {
    let sizes = LIST.measured(&lines("target/boards/sizes.jsonl"));
    let boards = BOARDS.len() * 2;
    // Nothing, noise alone, the client with it, the client with a network, and the client; with a feature; the last one is the
    // smallest core's in 16-bit fixed point.
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
        PLACE.write(&table(&sizes));
        NETWORKS.write(&networks(&sizes));
        FEATURES_PLACE.write(&features(&sizes));
    } else {
        LIST.check(&sizes);
    }
}

#[test]
fn the_readmes_show_the_budgets() {
    PLACE.check(|| table(&LIST.budgeted()), "tests/firmware");
    NETWORKS.check(|| networks(&LIST.budgeted()), "tests/firmware");
    FEATURES_PLACE.check(|| features(&LIST.budgeted()), "tests/firmware");
}
