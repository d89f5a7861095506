//! Test of the table of networks in the boards' README: the sizes of the built-in scenarios whose networks
//! emulated boards train. With FEDSPAN_REGENERATE_BUDGETS=1 it writes the table.
#![cfg(feature = "emulation")]

use std::fmt::Write;

use fedspan_sim_core::emulate::{CORES, network_size};
use fedspan_sim_core::scenario::{BUILT_IN, Scenario};

use crate::budget::{GeneratedTable, regenerating};

/// Command that writes the table if FEDSPAN_REGENERATE_BUDGETS is set.
const PROGRAM: &str =
    "cargo test -p fedspan-tests --features emulation --test emulation readme_shows_the_networks";

const README_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/boards/README.md",
    begin: "<!-- networks: written by tests/tests/network_sizes.rs -->\n",
    end: "<!-- end of networks -->\n",
};

/// Formats the table of the README. Scenarios whose data are not bundled are left out.
fn format_table() -> String {
    let mut text = String::from(
        "| scenario | network | boards | parameters | RAM | flash |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let core = CORES[0];
    for (name, _, content) in BUILT_IN {
        let scenario = Scenario::parse(name, content, &[]).expect("a scenario");
        if scenario.model.network.is_none() || scenario.dataset(scenario.seed).is_err() {
            continue;
        }
        let size = network_size(&scenario, core).expect("a network that boards train");
        let (memory, flash) = (size.memory.div_ceil(1024), size.flash.div_ceil(1024));
        let layers = size.layers.trim_start_matches("a network of ");
        let layers = layers.split(", frozen").next().unwrap_or_default();
        let _ = writeln!(
            text,
            "| `{name}` | {layers} | {} | {} | {memory} KiB | {flash} KiB |",
            size.clients, size.parameters
        );
    }
    text
}

#[test]
fn readme_shows_the_networks_that_boards_train() {
    if regenerating() {
        README_TABLE.write(&format_table());
    } else {
        README_TABLE.check(format_table, PROGRAM);
    }
}
