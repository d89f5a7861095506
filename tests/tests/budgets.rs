//! Tests of the cost of an update on each core, compared with `budgets.toml`. They fail if a value grows by
//! more than 2 % or a bit of a result changes. `tests/boards` measures and then runs this test; with
//! FEDSPAN_REGENERATE_BUDGETS=1 it writes new budgets and the tables of the documents.
#![cfg(feature = "emulation")]

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::budget::{
    BOARDS, GeneratedTable, Key, List, Rows, builds, core_name, is_estimated, read_json_lines, regenerating,
    tables, value_text, write_list,
};
use serde_json::Value;

/// List of the costs of an update.
const LIST: List = List {
    name: "update",
    keys: &["core", "opt_level", "d", "k", "m", "path"],
    // `cycles` are estimated only for cores with a table of costs, at level "s".
    figures: &[
        "instructions",
        "verify",
        "emit",
        "singly",
        "gathered",
        "predict",
        "stretch",
        "stack",
        "cycles",
    ],
    numbers: &["d", "k", "m"],
};
/// Index of the first key that affects the result; the keys before it (core and level) do not.
const PROBLEM: usize = 2;
/// Names of the checksums of the results, which must be the same on every core and at every level.
const BITS: [&str; 3] = ["representation", "update", "head"];

/// Optimisation levels.
const LEVELS: [&str; 3] = ["3", "3+s", "s"];
/// Shapes (d, k, m) of the updates.
const SHAPES: [(u64, u64, u64); 4] = [(20, 2, 20), (57, 8, 35), (64, 4, 32), (128, 8, 32)];

/// Number of code paths: two problems in each arithmetic, and in f32 the ridge with the least leave-one-out
/// error.
const PATHS: usize = 5;

/// Checksums by problem and name.
type Bits = BTreeMap<Key, BTreeMap<String, String>>;

/// Returns the checksums of every problem. Fails if they differ between cores.
fn measured_bits(lines: &[Value]) -> Bits {
    let mut bits = Bits::new();
    for line in lines {
        let key = LIST.key(line);
        let checksums: BTreeMap<_, _> =
            BITS.iter().map(|name| ((*name).to_owned(), value_text(&line[*name]))).collect();
        let known = bits.entry(key[PROBLEM..].to_vec()).or_insert_with(|| checksums.clone());
        assert_eq!(*known, checksums, "{key:?} has other bits than another core");
    }
    bits
}

fn known_bits() -> Bits {
    let row = |table: BTreeMap<String, String>| {
        let words = |names: &[&str]| names.iter().map(|name| table[*name].clone()).collect::<Vec<_>>();
        (words(&LIST.keys[PROBLEM..]), BITS.map(str::to_owned).into_iter().zip(words(&BITS)).collect())
    };
    tables("bits").into_iter().map(row).collect()
}

fn write_bits(bits: &Bits) {
    let tables = bits.iter().map(|(key, checksums)| {
        let bits = BITS.iter().map(|name| format!("{name} = {:?}", checksums[*name]));
        LIST.format_assignments(&LIST.keys[PROBLEM..], key).chain(bits).collect()
    });
    write_list("bits", tables);
}

/// Formats a count in thousands, with one decimal below 100 000.
fn thousands(count: u64) -> String {
    match count {
        0..100_000 => format!("{:.1}", count as f64 / 1e3),
        100_000..1_000_000 => format!("{:.0}", count as f64 / 1e3),
        _ => format!("{:.0}", count as f64 / 1e3),
    }
}

/// Kinds of arithmetic: suffix of the table's row, and the code paths of the two problems.
const NUMERICS: [(&str, [&str; 2]); 2] = [("", ["normal", "triangular"]), (" in i16", ["i16", "i16-ill"])];

/// Number of outputs of the shape with features `d`; only one has more than one.
const fn outputs(d: u64) -> u64 {
    if d == 57 { 7 } else { 1 }
}

/// Shapes of the table of updates, whose columns have no room for more.
const UPDATE_SHAPES: [(u64, u64, u64); 3] = [SHAPES[0], SHAPES[2], SHAPES[3]];

/// Formats the table of whole rounds of `FOOTPRINT.md`: check of `B`, update and gradient, from samples that come all at once /
/// one at a time and are collected / one at a time; and a prediction.
fn format_round_table(rows: &Rows) -> String {
    let mut text = String::from("| core |");
    for (d, k, m) in SHAPES {
        let _ = write!(text, " ({d}, {k}, {}, {m}) |", outputs(d));
    }
    let (d, k, _) = SHAPES[3];
    let _ = write!(text, " prediction at ({d}, {k}) |\n|");
    text.push_str(&" --- |".repeat(SHAPES.len() + 2));
    text.push('\n');
    let cores = BOARDS.emulated.iter().filter(|board| board.cycles).map(|board| board.name.as_str());
    for (core, (numeric, [path, _])) in
        cores.flat_map(|core| NUMERICS.iter().map(move |numeric| (core, numeric)))
    {
        let _ = write!(text, "| {}{numeric} |", core_name(core));
        let row = |(d, k, m): (u64, u64, u64)| &rows[&update_key(core, "s", (d, k, m), path)];
        for shape in SHAPES {
            let row = row(shape);
            let rest = row["verify"] + row["emit"];
            let [all, gathered, single] =
                ["instructions", "gathered", "singly"].map(|name| thousands(row[name] + rest));
            // Fixed point takes one sample at a time in any case.
            let _ = match numeric.is_empty() {
                true => write!(text, " {all} / {gathered} / {single} |"),
                false => write!(text, " {all} |"),
            };
        }
        let _ = writeln!(text, " {} |", thousands(row(SHAPES[3])["predict"]));
    }
    text
}

/// Returns the key of a measured update.
fn update_key(core: &str, level: &str, (d, k, m): (u64, u64, u64), path: &str) -> Key {
    let shape = [d, k, m].map(|n| n.to_string());
    [core, level].into_iter().map(str::to_owned).chain(shape).chain([path.to_owned()]).collect()
}

/// Formats the table of `FOOTPRINT.md`.
fn format_update_table(rows: &Rows) -> String {
    let mut text = String::from("| core, opt-level |");
    for (d, k, m) in UPDATE_SHAPES {
        let _ = write!(text, " ({d}, {k}, {m}) |");
    }
    text.push_str(
        " stack at (128, 8, 32) | cycles at (128, 8, 32) |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let cores = BOARDS.emulated.iter().map(|board| board.name.as_str());
    let lines = cores.flat_map(|core| NUMERICS.iter().map(move |numeric| (core, numeric)));
    for ((core, (numeric, paths)), level) in lines.flat_map(|line| LEVELS.map(|level| (line, level))) {
        if level != "s" && (core, *numeric) != ("m4", "") {
            continue;
        }
        let look_up = |shape, path: &str| &rows[&update_key(core, level, shape, path)];
        let name = core_name(core);
        let _ = write!(text, "| {name}{numeric}, {level} |");
        for shape in UPDATE_SHAPES {
            let [first, second] = paths
                .map(|path| thousands(look_up(shape, path)["instructions"] + look_up(shape, path)["emit"]));
            let _ = write!(text, " {first} / {second} |");
        }
        let stack = paths.map(|path| look_up(SHAPES[3], path)["stack"]).into_iter().max().unwrap_or(0);
        let cycles = paths.map(|path| look_up(SHAPES[3], path).get("cycles").copied());
        let cycles = match cycles {
            [Some(first), Some(second)] => format!("{} / {}", thousands(first), thousands(second)),
            _ => String::new(),
        };
        let _ = writeln!(text, " {stack} B | {cycles} |");
    }
    text
}

/// Formats the table of both kinds of arithmetic for the README of the boards: instructions of a whole round in
/// f32 and i16, and their ratio.
fn format_arithmetic_table(rows: &Rows) -> String {
    let mut text = String::from("| core |");
    for (d, k, m) in SHAPES {
        let _ = write!(text, " ({d}, {k}, {}, {m}): f32, i16 | |", outputs(d));
    }
    text.push_str("\n| --- |");
    text.push_str(&" --- | --- |".repeat(SHAPES.len()));
    text.push('\n');
    // The cores with estimated cycles include one core of each kind of arithmetic.
    for board in BOARDS.emulated.iter().filter(|board| board.cycles) {
        let core = board.name.as_str();
        let _ = write!(text, "| {} |", board.core);
        for shape in SHAPES {
            let look_up = |path: &str| {
                let row = &rows[&update_key(core, "s", shape, path)];
                row["verify"] + row["instructions"] + row["emit"]
            };
            let (float, fixed) = (look_up("normal"), look_up("i16"));
            let ratio = float as f64 / fixed as f64;
            let _ = write!(text, " {}, {} | {ratio:.1}x |", thousands(float), thousands(fixed));
        }
        text.push('\n');
    }
    text
}

/// Generated table in the README of the boards.
const ARITHMETICS_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/boards/README.md",
    begin: "<!-- arithmetics: written by tests/tests/budgets.rs -->\n",
    end: "<!-- end of arithmetics -->\n",
};

/// Generated table of instructions in `FOOTPRINT.md`.
const UPDATE_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/FOOTPRINT.md",
    begin: "<!-- budgets: written by tests/tests/budgets.rs -->\n",
    end: "<!-- end of budgets -->\n",
};

/// Generated table of whole rounds in `FOOTPRINT.md`.
const ROUND_TABLE: GeneratedTable = GeneratedTable {
    file: "edge-client/FOOTPRINT.md",
    begin: "<!-- rounds: written by tests/tests/budgets.rs -->\n",
    end: "<!-- end of rounds -->\n",
};

/// Most instructions that a Cortex-M0 may compute without a pause: 50 ms at 16 MHz, if an instruction takes two cycles. The
/// measured ones take about 1.6.
const STRETCH_MAX: u64 = 400_000;

/// Fails if a computation on a Cortex-M0 leaves no chance to feed a watchdog for longer than [`STRETCH_MAX`].
pub fn check_stretches(rows: &Rows) {
    let of_m0: Vec<_> = rows.iter().filter(|(key, _)| key[0] == "m0").collect();
    assert!(!of_m0.is_empty(), "no figure of a Cortex-M0");
    for (key, values) in of_m0 {
        assert!(
            values["stretch"] <= STRETCH_MAX,
            "{key:?}: {} instructions without a pause",
            values["stretch"]
        );
    }
}

#[test]
fn update_keeps_its_budget_and_its_bits() {
    let lines = read_json_lines("target/boards/measured.jsonl");
    let (rows, bits) = (LIST.measured(&lines), measured_bits(&lines));
    assert_eq!(rows.len(), builds() * SHAPES.len() * PATHS, "every core, level, shape and path");
    for (key, values) in &rows {
        let estimated = is_estimated(&key[0], &key[1]);
        assert_eq!(values.len(), LIST.figures.len() - usize::from(!estimated), "{key:?} lacks a value");
    }
    if regenerating() {
        LIST.write(&rows);
        write_bits(&bits);
        UPDATE_TABLE.write(&format_update_table(&rows));
        ARITHMETICS_TABLE.write(&format_arithmetic_table(&rows));
        ROUND_TABLE.write(&format_round_table(&rows));
    } else {
        assert_eq!(bits, known_bits(), "the result of the update has changed");
        LIST.check(&rows);
    }
    check_stretches(&rows);
}

#[test]
fn pages_show_the_budgets() {
    UPDATE_TABLE.check(|| format_update_table(&LIST.budgets()), "tests/boards");
    ARITHMETICS_TABLE.check(|| format_arithmetic_table(&LIST.budgets()), "tests/boards");
    ROUND_TABLE.check(|| format_round_table(&LIST.budgets()), "tests/boards");
}
