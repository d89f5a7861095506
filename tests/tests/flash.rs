//! Tests of the flash and static RAM of firmware, compared with the list `flash` in `budgets.toml`. They fail
//! if a value grows by more than 2 %. `tests/firmware` measures and then runs this test; with
//! FEDSPAN_REGENERATE_BUDGETS=1 it writes a new list and the tables of the documents.
#![cfg(feature = "emulation")]

use std::fmt::Write;

use crate::budget::{BOARDS, GeneratedTable, List, Rows, read_json_lines, regenerating};

/// List of the sizes of firmware.
const LIST: List = List {
    name: "flash",
    keys: &["program", "target", "opt_level", "shape"],
    // Both sizes are in bytes.
    figures: &["flash", "ram"],
    numbers: &[],
};

/// Number of programs built for each board of real hardware.
const PROGRAMS: usize = 2;
/// Start of the labels of single features, and the label of the client from which their cost is measured.
const FEATURE: &str = "64-4-";
const BASE: &str = "64-4-encryption";

/// Formats the table of `FOOTPRINT.md`.
fn format_flash_table(sizes: &Rows) -> String {
    let mut text = String::from(
        "| core, opt-level | flash at (20, 2) | (64, 4) | (128, 8) | of that, the board | static RAM at (64, 4) |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    let look_up = |words: [&str; 4]| sizes.get(&words.map(str::to_owned)[..]);
    let bytes = |words, figure: &str| look_up(words).expect("measured")[figure];
    for (index, core) in BOARDS.cores.iter().enumerate() {
        let (name, target) = (&core.name, core.target.as_str());
        let board_flash = bytes(["least/null", target, "s", ""], "flash");
        for level in ["s", "3+s", "3"] {
            if level != "s" && index > 0 {
                continue;
            }
            let _ = write!(text, "| {name}, {level} |");
            for shape in ["20-2", "64-4", "128-8"] {
                let size = look_up(["least/client", target, level, shape]);
                let _ = write!(text, " {} |", size.map_or(String::new(), |size| size["flash"].to_string()));
            }
            let ram = bytes(["least/client", target, level, "64-4"], "ram");
            let _ = writeln!(text, " {board_flash} | {ram} |");
        }
    }
    text
}

/// Formats the table of flash and RAM of a network, for the README of the boards.
fn format_network_table(sizes: &Rows) -> String {
    let mut text = String::from("| core | flash | static RAM |\n| --- | --- | --- |\n");
    for core in &BOARDS.cores {
        let name = &core.name;
        let size = &sizes[&["least/network", core.target.as_str(), "s", "64-32-7"].map(str::to_owned)[..]];
        let _ = writeln!(text, "| {name} | {} | {} |", size["flash"], size["ram"]);
    }
    text
}

/// Formats the table of the cost of each feature, for the README of the boards.
fn format_feature_table(sizes: &Rows) -> String {
    let mut text = String::from(
        "| features | for | core | flash at (64, 4) | more | static RAM |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let look_up =
        |target: &str, label: &str| &sizes[&["least/client", target, "s", label].map(str::to_owned)[..]];
    for linked in BOARDS.linked.iter().filter(|linked| linked.purpose.is_some()) {
        let name =
            linked.label.strip_prefix(FEATURE).expect("a label of a feature").replace("-vsqrt", "`, `c-sqrt");
        let features = match name.as_str() {
            "plain" => "none".to_owned(),
            "vsqrt" => "`c-sqrt`".to_owned(),
            name => format!("`{name}`"),
        };
        let purpose = linked.purpose.as_deref().unwrap_or_default();
        let is_linked = |name: &String| linked.cores.as_ref().is_none_or(|cores| cores.contains(name));
        for core in BOARDS.cores.iter().filter(|core| is_linked(&core.name)) {
            let (base, size) = (look_up(&core.target, BASE), look_up(&core.target, &linked.label));
            let additional_flash = size["flash"] as i64 - base["flash"] as i64;
            let _ = writeln!(
                text,
                "| {features} | {purpose} | {} | {} | {additional_flash} | {} |",
                core.name, size["flash"], size["ram"]
            );
        }
    }
    text
}

/// Formats the table of the interface to C, for `FOOTPRINT.md`.
fn format_interface_table(sizes: &Rows) -> String {
    let mut text = String::from(
        "| core | sizes at compile time, in Rust | at run time, in Rust | at run time, through the interface to C | of which the interface |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    let flash = |program: &str, target: &str| {
        sizes.get(&[program, target, "s", BASE].map(str::to_owned)[..]).map(|size| size["flash"])
    };
    for core in &BOARDS.cores {
        let [client, in_rust, in_c] = ["client", "run_time_sizes", "interface"]
            .map(|program| flash(&format!("least/{program}"), &core.target));
        if let (Some(client), Some(in_rust), Some(in_c)) = (client, in_rust, in_c) {
            let _ = writeln!(text, "| {} | {client} | {in_rust} | {in_c} | {} |", core.name, in_c - in_rust);
        }
    }
    text
}

/// Generated table of features in the README of the boards.
const FEATURES_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/boards/README.md",
    begin: "<!-- feature flash: written by tests/tests/flash.rs -->\n",
    end: "<!-- end of feature flash -->\n",
};

/// Generated table of networks in the README of the boards.
const NETWORKS_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/boards/README.md",
    begin: "<!-- network flash: written by tests/tests/flash.rs -->\n",
    end: "<!-- end of network flash -->\n",
};

/// Generated table of flash in `FOOTPRINT.md`.
const FLASH_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/FOOTPRINT.md",
    begin: "<!-- flash: written by tests/tests/flash.rs -->\n",
    end: "<!-- end of flash -->\n",
};

/// Generated table of the interface to C in `FOOTPRINT.md`.
const INTERFACE_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/FOOTPRINT.md",
    begin: "<!-- interface: written by tests/tests/flash.rs -->\n",
    end: "<!-- end of interface -->\n",
};

#[test]
fn firmware_keeps_its_budget() {
    let sizes = LIST.measured(&read_json_lines("target/boards/sizes.jsonl"));
    let expected = BOARDS.hardware.len() * PROGRAMS + BOARDS.links().count();
    assert_eq!(sizes.len(), expected, "every board, core, level and shape");
    for (key, values) in &sizes {
        assert_eq!(values.len(), LIST.figures.len(), "{key:?} lacks a value");
    }
    if regenerating() {
        LIST.write(&sizes);
        FLASH_TABLE.write(&format_flash_table(&sizes));
        NETWORKS_TABLE.write(&format_network_table(&sizes));
        FEATURES_TABLE.write(&format_feature_table(&sizes));
        INTERFACE_TABLE.write(&format_interface_table(&sizes));
    } else {
        LIST.check(&sizes);
    }
}

#[test]
fn pages_show_the_budgets() {
    FLASH_TABLE.check(|| format_flash_table(&LIST.budgets()), "tests/firmware");
    NETWORKS_TABLE.check(|| format_network_table(&LIST.budgets()), "tests/firmware");
    FEATURES_TABLE.check(|| format_feature_table(&LIST.budgets()), "tests/firmware");
    INTERFACE_TABLE.check(|| format_interface_table(&LIST.budgets()), "tests/firmware");
}
