//! Tests of the program `tables`: it finds and repairs edited cells in the tables of the documents.

use std::path::Path;
use std::process::{Command, Output};

use fedspan_tests::tables::page::{Class, slots};
use fedspan_tests::tables::unmarked;

fn run_tables(arguments: &[&str], page: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tables")).args(arguments).arg(page).output().expect("tables starts")
}

fn utf8(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Tests edited cells in a copy of a page. For every edited cell `--check` must fail, must name page, line,
/// command and the two different lines, and must change nothing. A run without `--check` must restore the
/// cell.
#[test]
fn check_fails_for_every_edited_cell() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("PRIVACY.md");
    let text = std::fs::read_to_string(root().join("aggregator/PRIVACY.md")).unwrap();
    std::fs::write(&page, &text).unwrap();
    let unchanged = run_tables(&["--check"], &page);
    assert!(unchanged.status.success(), "{}{}", utf8(&unchanged.stdout), utf8(&unchanged.stderr));

    let mut edited = 0;
    for slot in slots(&text).unwrap() {
        assert_eq!(slot.class, Class::Quick);
        let table = &text[slot.range.clone()];
        for (offset, digit) in table.char_indices().filter(|(_, c)| c.is_ascii_digit()).step_by(7) {
            let other_digit = if digit == '9' { '8' } else { '9' };
            let position = slot.range.start + offset;
            let edited_text = format!("{}{other_digit}{}", &text[..position], &text[position + 1..]);
            std::fs::write(&page, &edited_text).unwrap();
            let result = run_tables(&["--check"], &page);
            let output = utf8(&result.stdout);
            assert_eq!(result.status.code(), Some(1), "{output}");
            assert!(output.contains(&format!("PRIVACY.md:{}: differs", slot.line)), "{output}");
            assert!(output.contains(&slot.commands()), "{output}");
            let count_lines = |sign: char| output.lines().filter(|line| line.starts_with(sign)).count();
            assert_eq!([count_lines('-'), count_lines('+')], [1, 1], "{output}");
            assert_eq!(std::fs::read_to_string(&page).unwrap(), edited_text, "--check changed the page");
            assert!(run_tables(&[], &page).status.success());
            assert_eq!(std::fs::read_to_string(&page).unwrap(), text);
            edited += 1;
        }
    }
    assert!(edited > 10, "{edited}");
}

#[test]
fn measured_table_is_never_compared() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("PAGE.md");
    let table = "| a | b |\n| --- | --- |\n| x | 0.5 |\n";
    let text =
        format!("<!-- table, measured 2026-01-31: by hand: a clock -->\n{table}<!-- end of table -->\n");
    std::fs::write(&page, &text).unwrap();
    for arguments in [&["--check"][..], &["--check", "--all"], &["--all"], &["--measured"]] {
        let output = run_tables(arguments, &page);
        assert!(output.status.success(), "{arguments:?}: {}", utf8(&output.stderr));
        assert_eq!(std::fs::read_to_string(&page).unwrap(), text);
    }
    assert!(
        utf8(&run_tables(&["--measured"], &page).stdout)
            .contains("PAGE.md:1: entered by hand: by hand: a clock")
    );
}

#[test]
fn broken_page_or_command_is_reported_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("PAGE.md");
    let mark = "<!-- table: tests/tables --print sizes | rows nothing -->\n<!-- end of table -->\n";
    for (text, message) in [
        (mark.to_owned(), "found no row \"nothing\", there are [\"(20, 2, 1)\""),
        (mark.replace(" | rows nothing", " | sorted"), "line 1: found \"sorted\", allowed"),
        (mark.replace("sizes | rows nothing", "colours"), "found no table \"colours\", there are"),
        (mark.replace("tests/tables", "rm"), "allowed: a command of fedspan-sim"),
        (
            "| a | b |\n| --- | --- |\n| x | 0.5 |\n".to_owned(),
            "PAGE.md:1: a table of figures without a mark",
        ),
    ] {
        std::fs::write(&page, &text).unwrap();
        let output = run_tables(&["--check"], &page);
        assert_eq!(output.status.code(), Some(1));
        assert!(utf8(&output.stderr).contains(message), "{}", utf8(&output.stderr));
    }
    for arguments in [&["--everything"][..], &["--measured", "--check"]] {
        assert_eq!(run_tables(arguments, &page).status.code(), Some(2));
    }
    assert_eq!(run_tables(&["--check"], Path::new("/nowhere/PAGE.md")).status.code(), Some(1));
}

/// Tests the marks without running a command: parses every mark of every page, and finds tables of figures
/// without a mark.
#[test]
fn every_table_of_figures_has_a_mark() {
    for page in [
        "README.md",
        "aggregator/POISON.md",
        "edge-client/FOOTPRINT.md",
        "edge-client/boards/README.md",
        "sim/CLAIMS.md",
        "sim/PERSONAL.md",
        "sim/PRIVATE.md",
    ] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        assert!(!slots(&text).unwrap_or_else(|error| panic!("{page}: {error}")).is_empty());
    }
    let listed = Command::new(env!("CARGO_BIN_EXE_tables")).arg("--list").output().expect("tables starts");
    assert!(listed.status.success(), "{}", utf8(&listed.stderr));
    let unmarked_lines = unmarked("| a | b |\n| --- | --- |\n| x | 0.5 |\n");
    assert_eq!(unmarked_lines, [1]);
}
