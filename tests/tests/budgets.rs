//! What an update costs on each core, against `budgets.toml`: a figure that grows by more than two percent
//! fails, and so does a bit that changes. `tests/boards` measures, then runs this; FEDSPAN_REGENERATE_BUDGETS=1
//! writes new budgets and the table of the README, for a change that is wanted.
#![cfg(feature = "emulation")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use serde_json::Value;
use toml_edit::DocumentMut;

/// Growth that is forgiven: rebuilding elsewhere moves counts by a few instructions.
const GROWTH: f64 = 1.02;

/// What identifies a measurement.
const KEYS: [&str; 6] = ["core", "opt_level", "d", "k", "m", "path"];
/// What is bounded. Cycles are there for [`ESTIMATED`] at "s".
const FIGURES: [&str; 5] = ["instructions", "verify", "emit", "stack", "cycles"];
/// What must not change, on any core, at any level.
const BITS: [&str; 3] = ["representation", "update", "head"];

const CORES: [&str; 6] = ["m4", "m7", "m33", "m3", "m0", "rv32imc"];
/// Cores of which a manual says what instructions take.
const ESTIMATED: [&str; 4] = ["m4", "m3", "m0", "rv32imc"];
const LEVELS: [&str; 3] = ["3", "3+s", "s"];
/// One of the levels is measured on the first core only.
const EVERYWHERE: usize = 2;
const SHAPES: [(u64, u64, u64); 3] = [(20, 2, 20), (64, 4, 32), (128, 8, 32)];

type Key = Vec<String>;
type Rows = BTreeMap<Key, BTreeMap<String, u64>>;
type Bits = BTreeMap<Key, BTreeMap<String, String>>;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn measured() -> (Rows, Bits) {
    let file = root().join("target/boards/measured.jsonl");
    let text = std::fs::read_to_string(&file).expect("tests/boards has measured");
    let (mut rows, mut bits) = (Rows::new(), Bits::new());
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let key: Key = KEYS.iter().map(|key| word(&line[key])).collect();
        let figures = FIGURES.iter().filter_map(|name| Some(((*name).to_owned(), line[name].as_u64()?)));
        assert!(rows.insert(key.clone(), figures.collect()).is_none(), "{key:?} twice");
        let own: BTreeMap<_, _> = BITS.iter().map(|name| ((*name).to_owned(), word(&line[name]))).collect();
        let known = bits.entry(key[2..].to_vec()).or_insert_with(|| own.clone());
        assert_eq!(*known, own, "{key:?} has other bits than another core");
    }
    (rows, bits)
}

fn budgeted() -> (Rows, Bits) {
    let text = include_str!("../budgets.toml");
    let document: DocumentMut = text.parse().expect("TOML");
    let (mut rows, mut bits) = (Rows::new(), Bits::new());
    let string = |item: &toml_edit::Value| {
        item.as_str().map_or_else(|| item.to_string().trim().to_owned(), str::to_owned)
    };
    for table in document["update"].as_array().expect("an array").iter().map(|v| v.as_inline_table().unwrap())
    {
        let key = KEYS.iter().map(|key| string(&table[*key])).collect();
        let figures = FIGURES
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), table.get(name)?.as_integer().unwrap() as u64)));
        rows.insert(key, figures.collect());
    }
    for table in document["bits"].as_array().expect("an array").iter().map(|v| v.as_inline_table().unwrap()) {
        let key = KEYS[2..].iter().map(|key| string(&table[*key])).collect();
        bits.insert(key, BITS.iter().map(|name| ((*name).to_owned(), string(&table[*name]))).collect());
    }
    (rows, bits)
}

fn file(rows: &Rows, bits: &Bits) -> String {
    let mut text = "# Written by FEDSPAN_REGENERATE_BUDGETS=1 tests/boards. Instructions of one update (linear FedRep, one output;\n\
                    # verify: the check of a received representation, emit: forming the gradient), bytes of stack below the caller.\n\
                    # opt_level \"3+s\": the firmware at 3, client and protocol crates at \"s\".\n"
        .to_owned();
    let value = |word: &String| if word.parse::<u64>().is_ok() { word.clone() } else { format!("{word:?}") };
    let head = |names: &[&str], key: &Key| {
        let pairs = names.iter().zip(key);
        // An optimisation level is a word, also when it is 3.
        let pair = |(name, word): (&&str, &String)| match *name {
            "opt_level" => format!("{name} = {word:?}"),
            _ => format!("{name} = {}", value(word)),
        };
        pairs.map(pair).collect::<Vec<_>>().join(", ")
    };
    text.push_str("update = [\n");
    for (key, figures) in rows {
        let figures: Vec<String> =
            FIGURES.iter().filter_map(|name| Some(format!("{name} = {}", figures.get(*name)?))).collect();
        let _ = writeln!(text, "    {{ {}, {} }},", head(&KEYS, key), figures.join(", "));
    }
    text.push_str("]\nbits = [\n");
    for (key, own) in bits {
        let own: Vec<String> = BITS.iter().map(|name| format!("{name} = {:?}", own[*name])).collect();
        let _ = writeln!(text, "    {{ {}, {} }},", head(&KEYS[2..], key), own.join(", "));
    }
    text.push_str("]\n");
    text
}

/// Thousands with one decimal below a hundred of them.
fn thousands(count: u64) -> String {
    match count {
        0..100_000 => format!("{:.1}", count as f64 / 1e3),
        100_000..1_000_000 => format!("{:.0}", count as f64 / 1e3),
        _ => format!("{:.0}", count as f64 / 1e3),
    }
}

/// Paths of the two problems in each arithmetic, with what a line of the table is called.
const NUMERICS: [(&str, [&str; 2]); 2] = [("", ["normal", "triangular"]), (" in i16", ["i16", "i16-ill"])];

/// The README's table.
fn table(rows: &Rows) -> String {
    let mut text = String::from("| core, opt-level |");
    for (d, k, m) in SHAPES {
        let _ = write!(text, " ({d}, {k}, {m}) |");
    }
    text.push_str(
        " stack at (128, 8, 32) | cycles at (128, 8, 32) |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let lines = CORES.iter().flat_map(|core| NUMERICS.iter().map(move |numeric| (core, numeric)));
    for ((core, (numeric, paths)), level) in lines.flat_map(|line| LEVELS.map(|level| (line, level))) {
        if level != "s" && (*core, *numeric) != ("m4", "") {
            continue;
        }
        let of = |(d, k, m): (u64, u64, u64), path: &str| {
            let shape = [d, k, m].map(|n| n.to_string());
            let key: Key =
                [*core, level].into_iter().map(str::to_owned).chain(shape).chain([path.to_owned()]).collect();
            &rows[&key]
        };
        let name = match *core {
            "m4" => "Cortex-M4F",
            "m7" => "Cortex-M7",
            "m33" => "Cortex-M33",
            "m3" => "Cortex-M3",
            "m0" => "Cortex-M0",
            _ => "RV32IMC",
        };
        let _ = write!(text, "| {name}{numeric}, {level} |");
        for shape in SHAPES {
            let [first, second] =
                paths.map(|path| thousands(of(shape, path)["instructions"] + of(shape, path)["emit"]));
            let _ = write!(text, " {first} / {second} |");
        }
        let stack = paths.map(|path| of(SHAPES[2], path)["stack"]).into_iter().max().unwrap_or(0);
        let cycles = paths.map(|path| of(SHAPES[2], path).get("cycles").copied());
        let cycles = match cycles {
            [Some(first), Some(second)] => format!("{} / {}", thousands(first), thousands(second)),
            _ => String::new(),
        };
        let _ = writeln!(text, " {stack} B | {cycles} |");
    }
    text
}

const BEGIN: &str = "<!-- budgets: written by tests/tests/budgets.rs -->\n";
const END: &str = "<!-- end of budgets -->\n";

fn readme(table: &str) -> (PathBuf, String, String) {
    let path = root().join("README.md");
    let old = std::fs::read_to_string(&path).expect("a README");
    let (before, rest) = old.split_once(BEGIN).expect("the table's place");
    let (_, after) = rest.split_once(END).expect("the table's end");
    let new = format!("{before}{BEGIN}{table}{END}{after}");
    (path, old, new)
}

#[test]
fn no_update_costs_more_than_it_did_and_no_bit_has_changed() {
    let (rows, bits) = measured();
    assert_eq!(
        rows.len(),
        (CORES.len() * EVERYWHERE + 1) * SHAPES.len() * 4,
        "every core, level, shape and path"
    );
    for (key, figures) in &rows {
        let estimated = ESTIMATED.contains(&key[0].as_str()) && key[1] == "s";
        assert_eq!(figures.len(), FIGURES.len() - usize::from(!estimated), "{key:?} lacks a figure");
    }
    if std::env::var_os("FEDSPAN_REGENERATE_BUDGETS").is_some() {
        // What `flash.rs` holds behind it stays.
        let old = include_str!("../budgets.toml");
        let flash = old.find("flash = [").and_then(|at| old.get(at..)).unwrap_or_default();
        std::fs::write(root().join("tests/budgets.toml"), file(&rows, &bits) + flash).expect("written");
        let (path, _, new) = readme(&table(&rows));
        std::fs::write(path, new).expect("written");
        return;
    }
    let (budgets, golden) = budgeted();
    assert_eq!(bits, golden, "the update computes something else");
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
    // The budgets of this program are the old ones then.
    if std::env::var_os("FEDSPAN_REGENERATE_BUDGETS").is_some() {
        return;
    }
    let (_, old, new) = readme(&table(&budgeted().0));
    assert!(old == new, "FEDSPAN_REGENERATE_BUDGETS=1 tests/boards writes the table anew");
}
