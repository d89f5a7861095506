//! Tests that a table has the same data, bit for bit, in every format that programs write, and that an
//! invalid cell is reported with its line and column in every format.

use crate::common::table::{Cell, Encoding, Grid, Packing, Writing};
use crate::common::{
    assert_contains_all, empty_directory, exit_code, random_numbers, run_program, stderr_text,
};
use fedspan_sim_core::data::table::{self, Columns, Table, Target};
use proptest::prelude::*;
use serde_json::Value;

/// Names of the clients.
const CLIENTS: [&str; 5] = ["10", "11", "12", "13", "14"];
/// Names of the classes, which contain delimiters, quotes and non-ASCII characters.
const CLASSES: [&str; 4] = ["a|b \"c\"", "größe", "run,slow", "walk; fast"];
/// Names of the features, which contain delimiters, quotes, a line break and non-ASCII characters.
const FEATURES: [&str; 6] = ["acc, x", "say \"hi\"", "größe", "two\nlines", "flag", "count"];

/// Table of five clients with twelve rows each. Every value is a multiple of 1/16, so that no format rounds
/// it.
fn grid() -> Grid {
    let values = random_numbers(60 * 6, 7);
    let text = |text: &str| Cell::Text(text.to_owned());
    let header = FEATURES.iter().copied().chain(["who", "kind", "y", "note"]).map(str::to_owned).collect();
    let rows = values.chunks_exact(6).enumerate().map(|(row, values)| {
        let round_to_sixteenths = |value: f64| (value * 1600.0).round() / 16.0;
        let mut cells: Vec<Cell> =
            values[..4].iter().map(|value| Cell::Number(round_to_sixteenths(*value))).collect();
        cells.push(Cell::Truth(values[4] > 0.0));
        cells.push(Cell::Number((values[5] * 50.0).round()));
        cells.push(text(CLIENTS[row % 5]));
        // Class and target depend on the features.
        let sum = values[0] - values[1] + values[2];
        cells.push(text(CLASSES[usize::from(sum > 0.0) + 2 * usize::from(values[3] > 0.0)]));
        cells.push(Cell::Number(round_to_sixteenths(sum)));
        cells.push(text(if row % 7 == 0 { "" } else { "said, \"so\";\r\nand\nmore\t|" }));
        cells
    });
    Grid { header, rows: rows.collect() }
}

/// Columns of the table, with classes or values as targets.
fn columns(classification: bool) -> Columns {
    Columns {
        client: Some("who".to_owned()),
        target: if classification { "kind" } else { "y" }.to_owned(),
        features: FEATURES.map(str::to_owned).to_vec(),
        classification,
        delimiter: None,
        decimal: None,
        not_missing: Vec::new(),
    }
}

fn parse(bytes: &[u8], columns: &Columns) -> Result<Table, String> {
    table::parse(bytes, "t.csv", columns).map_err(|error| error.to_string())
}

/// Table whose numbers are represented by their bits.
#[derive(Debug, PartialEq)]
struct Bits {
    features: Vec<u64>,
    targets: Vec<u64>,
    /// Index of the client of each row, and index of the class of each row.
    codes: [Vec<u32>; 2],
    /// Names of clients, classes and features.
    names: [Vec<String>; 3],
}

/// Converts a table to bits.
fn bits(table: &Table) -> Bits {
    let bits_of = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<u64>>();
    let (values, classes, names) = match &table.target {
        Target::Values(values) => (bits_of(values), Vec::new(), Vec::new()),
        Target::Classes(classes) => (Vec::new(), classes.codes.clone(), classes.names.clone()),
    };
    let clients = table.clients.clone().unwrap();
    Bits {
        features: bits_of(&table.x),
        targets: values,
        codes: [clients.codes, classes],
        names: [clients.names, names, table.features.clone()],
    }
}

/// Calls `each` for every combination of the variants of a format and returns the number of combinations.
fn for_each_writing(mut each: impl FnMut(Writing)) -> usize {
    let mut count = 0;
    for encoding in [Encoding::Utf8, Encoding::Utf8Mark, Encoding::Utf16Little, Encoding::Utf16Big] {
        for delimiter in [',', ';', '\t', '|'] {
            for decimal in ['.', ','] {
                for quotes in [false, true] {
                    for end in ["\n", "\r\n", "\r"] {
                        for packing in [Packing::Plain, Packing::Gzip, Packing::GzipTwice] {
                            for (index, blanks) in
                                [("", ""), ("", "  "), (" ", ""), (" ", " ")].into_iter().enumerate()
                            {
                                let truths =
                                    [["False", "True"], ["false", "true"], ["FALSE", "TRUE"]][count % 3];
                                let ended = index % 2 == 0;
                                let writing = Writing {
                                    encoding,
                                    delimiter,
                                    decimal,
                                    quotes,
                                    end,
                                    packing,
                                    blanks,
                                    truths,
                                    ended,
                                };
                                each(writing);
                                count += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    count
}

#[test]
fn table_formats_give_equal_data() {
    let grid = grid();
    for classification in [true, false] {
        let columns = columns(classification);
        let plain = bits(&parse(&Writing::PLAIN.write(&grid), &columns).unwrap());
        let format_count = for_each_writing(|writing| {
            let table = parse(&writing.write(&grid), &columns);
            let table = table.unwrap_or_else(|reported| panic!("{writing:?}: {reported}"));
            assert!(table.warnings.is_empty(), "{writing:?}: {:?}", table.warnings);
            assert_eq!(bits(&table), plain, "{writing:?}");
        });
        assert_eq!(format_count, 4 * 4 * 2 * 2 * 3 * 3 * 4);
    }
}

/// Numeric client and class names may be spelled differently in different rows, for example 10 and 10.0.
#[test]
fn number_spellings_give_one_name() {
    let mut grid = grid();
    for (row, cells) in grid.rows.iter_mut().enumerate() {
        cells[7] = Cell::Text(["1", "2", "3.5"][row % 3].to_owned());
    }
    let columns = columns(true);
    let plain = parse(&Writing::PLAIN.write(&grid), &columns).unwrap();
    for delimiter in [',', ';', '\t', '|'] {
        for decimal in ['.', ','] {
            // True if the features have decimals, from which the reader infers the decimal mark.
            for has_decimals in [true, false] {
                let mut grid = grid.clone();
                let mut plain = plain.clone();
                for (row, cells) in grid.rows.iter_mut().enumerate() {
                    if !has_decimals {
                        for (value, cell) in plain.x[row * 6..].iter_mut().zip(cells.iter_mut()).take(4) {
                            *value = (*value * 16.0).round();
                            *cell = Cell::Number(*value);
                        }
                    }
                    if row < 5 {
                        continue;
                    }
                    for cell in &mut cells[6..8] {
                        let Cell::Text(text) = cell else { panic!("{cell:?}") };
                        let with_decimal_mark = |text: String| text.replace('.', &decimal.to_string());
                        *text = match row % 6 {
                            0 => with_decimal_mark(format!(
                                "{text}{}",
                                if text.contains('.') { "0" } else { ".0" }
                            )),
                            1 => with_decimal_mark(format!("0{text}")),
                            2 => with_decimal_mark(format!("+{text}")),
                            3 => with_decimal_mark(format!("{text}e0")),
                            4 => with_decimal_mark(format!(
                                "{text}{}",
                                if text.contains('.') { "00" } else { "." }
                            )),
                            _ => with_decimal_mark(text.clone()),
                        };
                    }
                }
                let writing = Writing { delimiter, decimal, ..Writing::PLAIN };
                let is_mark_known = has_decimals || decimal == '.' || delimiter == ';';
                let table = parse(&writing.write(&grid), &columns).unwrap();
                let reported = format!("{writing:?}, {has_decimals}: {:?}", table.warnings);
                if is_mark_known {
                    assert_eq!(bits(&table), bits(&plain), "{reported}");
                    assert_eq!(table.warnings.len(), 2, "{reported}");
                }
            }
        }
    }
}

/// Line number of a row in an editor, if cells contain line breaks.
fn line_of(grid: &Grid, row: usize) -> usize {
    let lines = |text: &str| text.replace("\r\n", "\n").replace('\r', "\n").matches('\n').count();
    let cell = |cell: &Cell| if let Cell::Text(text) = cell { lines(text) } else { 0 };
    let header: usize = grid.header.iter().map(|name| lines(name)).sum();
    let preceding_cells: usize =
        grid.rows[..row].iter().map(|row| 1 + row.iter().map(cell).sum::<usize>()).sum();
    2 + header + preceding_cells
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The message for an invalid cell at any position, in any format, contains its line, its column and its
    /// content.
    #[test]
    fn bad_cell_is_reported_with_line_and_column(
        row in 0usize..60,
        column_case in 0usize..6,
        invalid_index in 0usize..9,
        end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        encoding in prop::sample::select(vec![Encoding::Utf8, Encoding::Utf8Mark, Encoding::Utf16Little]),
        delimiter in prop::sample::select(vec![',', ';', '\t', '|']),
        quotes: bool,
    ) {
        let mut grid = grid();
        let (column_index, column, invalid_cells) = [
            (0, "acc, x", ["", "NA", "nan", "-inf", "1e39", "x", "0x10", "1 000", "?"]),
            (5, "count", ["", "NULL", "NaN", "inf", "-4e38", "1.2.3", "--1", "1_000", "?"]),
            (6, "who", ["", "NA", "nan", "null", "None", "<NA>", "#N/A", "NaN", "?"]),
            (7, "kind", ["", "NA", "nan", "null", "None", "<NA>", "#N/A", "NULL", "?"]),
            (3, "two\\nlines", ["", "NA", "nan", "-inf", "1e39", "x", "1.5.5", "1'000", "?"]),
            (4, "flag", ["", "NA", "yes", "no", "1e39", "t", "y", "1.5", "?"]),
        ][column_case];
        let invalid_cell = invalid_cells[invalid_index];
        grid.rows[row][column_index] = Cell::Text(invalid_cell.to_owned());
        let bytes = Writing { end, encoding, delimiter, quotes, ..Writing::PLAIN }.write(&grid);
        let reported = parse(&bytes, &columns(true)).unwrap_err();
        // A column of truth values whose first value is a number is read as numeric, so the error is reported
        // for the next line.
        let is_parsed_number = invalid_cell == "1.5" && row == 0;
        let line = line_of(&grid, if is_parsed_number { 1 } else { row });
        prop_assert!(reported.starts_with(&format!("t.csv: line {line}, column {column}: ")), "{reported}");
        let names_cell = invalid_cell.is_empty() || reported.contains(&format!("{invalid_cell:?}"));
        prop_assert!(is_parsed_number || names_cell, "{reported}");
        prop_assert_eq!(reported.lines().count(), 1, "{}", reported);
    }
}

/// Summaries of runs on tables in three formats are equal, bit for bit.
#[test]
fn table_formats_give_equal_summaries() {
    let folder = empty_directory("table-variants");
    let grid = grid();
    let scenario = "[data]\nkind = \"csv\"\npath = \"t.csv\"\nclient = \"who\"\ntarget = \"kind\"\ntask = \"classes\"\n\
                    features = [\"*\", \"!note\", \"!y\"]\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 0.25\n";
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
    let mut summaries = Vec::new();
    for writing in [
        Writing::PLAIN,
        Writing {
            delimiter: ';',
            decimal: ',',
            encoding: Encoding::Utf16Little,
            end: "\r\n",
            ..Writing::PLAIN
        },
        Writing { delimiter: '\t', quotes: true, end: "\r", packing: Packing::Gzip, ..Writing::PLAIN },
    ] {
        std::fs::write(folder.join("t.csv"), writing.write(&grid)).unwrap();
        let output = run_program(&folder, &["run", "my.toml", "--format", "json"]);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let mut summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        for field in ["timing", "data"] {
            summary.as_object_mut().unwrap().remove(field);
        }
        summaries.push(summary);
    }
    assert_eq!(summaries[0]["clients"], 5);
    assert_eq!(summaries[0], summaries[1]);
    assert_eq!(summaries[0], summaries[2]);
}

/// Unsupported formats are refused with messages that name the format.
#[test]
fn unread_formats_are_named() {
    let plain = |text: &str| parse(text.as_bytes(), &columns(true)).unwrap_err();
    assert_contains_all(&plain(""), &["empty", "column names"]);
    assert_contains_all(&plain("\n\r\n \n"), &["empty"]);
    assert_contains_all(
        &plain("who:kind:x\n1:2:3\n"),
        &["no column \"who\"", "','", "';'", "data.delimiter"],
    );
    assert_contains_all(&plain("who kind x\n1 2 3\n"), &["no column \"who\"", "data.delimiter"]);
    let header = "\"acc, x\",\"say \"\"hi\"\"\",größe,\"two\nlines\",flag,count,who,kind";
    assert_contains_all(&plain(&format!("{header}\n")), &["no rows"]);
    for (rows, reported) in [
        ("1,2,3,4,true,6,a\n", ["line 3", "7 columns, expected 8 as in the header"]),
        ("1,2,3,4,true,6,a,b,\n", ["line 3", "9 columns, expected 8 as in the header"]),
        ("1,2,3,4,true,6,a,b\n\n \n\r\n1,2\n", ["line 7", "2 columns"]),
        ("1,2,3,4,true,6,a,\"b\n", ["line 3", "quote"]),
    ] {
        assert_contains_all(&plain(&format!("{header}\n{rows}")), &reported);
        assert_contains_all(
            &plain(&format!("{header}\r{}", rows.replace("\r\n", "\r").replace('\n', "\r"))),
            &reported,
        );
    }
    for (magic, format) in [
        (&b"\xfd7zXZ\x00"[..], "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"7z\xbc\xaf\x27\x1c", "7z"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"PK\x03\x04", "workbook"),
    ] {
        assert_contains_all(&parse(magic, &columns(true)).unwrap_err(), &["not a CSV file", format]);
        assert_contains_all(
            &parse(&Writing { packing: Packing::Gzip, ..Writing::PLAIN }.compress(magic), &columns(true))
                .unwrap_err(),
            &[format],
        );
    }
    let gzip = Writing { packing: Packing::Gzip, ..Writing::PLAIN };
    assert_contains_all(
        &parse(&gzip.compress(&gzip.compress(b"who")), &columns(true)).unwrap_err(),
        &["gzip", "twice"],
    );
}

/// Different spellings of a number are merged into one name with a warning. Without different spellings there
/// is no warning.
#[test]
fn merged_names_are_reported() {
    let folder = empty_directory("table-variants-reported");
    let scenario = "[data]\nkind = \"csv\"\npath = \"t.csv\"\nclient = \"who\"\ntarget = \"kind\"\ntask = \"classes\"\n\
                    features = [\"count\", \"flag\"]\n[model]\nk = 2\n[algorithm]\nname = \"local-only\"\n";
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
    for merged in [false, true] {
        let mut grid = grid();
        if merged {
            grid.rows[20][6] = Cell::Text("10.0".to_owned());
        }
        std::fs::write(folder.join("t.csv"), Writing::PLAIN.write(&grid)).unwrap();
        let output = run_program(&folder, &["run", "my.toml", "--format", "json"]);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["clients"], 5);
        let reported = "client \"10\" is also written \"10.0\"";
        assert_eq!(stderr_text(&output).contains(reported), merged, "{}", stderr_text(&output));
        assert_eq!(summary["warnings"].to_string().contains("is also written"), merged, "{summary}");
    }
}
