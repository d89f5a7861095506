//! Tests of the program `tables`: it finds and repairs edited cells in the tables of the documents.

use std::path::Path;
use std::process::{Command, Output};

use fedspan_tests::tables::page::{Class, slots};
use fedspan_tests::tables::unmarked;

fn tables(arguments: &[&str], page: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tables")).args(arguments).arg(page).output().expect("tables starts")
}

fn text(output: &[u8]) -> String {
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
    let whole = std::fs::read_to_string(root().join("aggregator/PRIVACY.md")).unwrap();
    std::fs::write(&page, &whole).unwrap();
    let fine = tables(&["--check"], &page);
    assert!(fine.status.success(), "{}{}", text(&fine.stdout), text(&fine.stderr));

    let mut edited = 0;
    for slot in slots(&whole).unwrap() {
        assert_eq!(slot.class, Class::Quick);
        let table = &whole[slot.place.clone()];
        for (at, digit) in table.char_indices().filter(|(_, c)| c.is_ascii_digit()).step_by(7) {
            let other = if digit == '9' { '8' } else { '9' };
            let place = slot.place.start + at;
            let wrong = format!("{}{other}{}", &whole[..place], &whole[place + 1..]);
            std::fs::write(&page, &wrong).unwrap();
            let found = tables(&["--check"], &page);
            let output = text(&found.stdout);
            assert_eq!(found.status.code(), Some(1), "{output}");
            assert!(output.contains(&format!("PRIVACY.md:{}: differs", slot.line)), "{output}");
            assert!(output.contains(&slot.commands()), "{output}");
            let lines = |sign: char| output.lines().filter(|line| line.starts_with(sign)).count();
            assert_eq!([lines('-'), lines('+')], [1, 1], "{output}");
            assert_eq!(std::fs::read_to_string(&page).unwrap(), wrong, "--check changed the page");
            assert!(tables(&[], &page).status.success());
            assert_eq!(std::fs::read_to_string(&page).unwrap(), whole);
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
    let whole =
        format!("<!-- table, measured 2026-01-31: by hand: a clock -->\n{table}<!-- end of table -->\n");
    std::fs::write(&page, &whole).unwrap();
    for arguments in [&["--check"][..], &["--check", "--all"], &["--all"], &["--measured"]] {
        let output = tables(arguments, &page);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        assert_eq!(std::fs::read_to_string(&page).unwrap(), whole);
    }
    assert!(
        text(&tables(&["--measured"], &page).stdout).contains("PAGE.md:1: entered by hand: by hand: a clock")
    );
}

#[test]
fn broken_page_or_command_is_reported_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("PAGE.md");
    let mark = "<!-- table: tests/tables --print sizes | rows nothing -->\n<!-- end of table -->\n";
    for (whole, message) in [
        (mark.to_owned(), "found no row \"nothing\", there are [\"(20, 2, 1)\""),
        (mark.replace(" | rows nothing", " | sorted"), "line 1: found \"sorted\", allowed"),
        (mark.replace("sizes | rows nothing", "colours"), "found no table \"colours\", there are"),
        (mark.replace("tests/tables", "rm"), "allowed: a command of fedspan-sim"),
        (
            "| a | b |\n| --- | --- |\n| x | 0.5 |\n".to_owned(),
            "PAGE.md:1: a table of figures without a mark",
        ),
    ] {
        std::fs::write(&page, &whole).unwrap();
        let output = tables(&["--check"], &page);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
    for arguments in [&["--everything"][..], &["--measured", "--check"]] {
        assert_eq!(tables(arguments, &page).status.code(), Some(2));
    }
    assert_eq!(tables(&["--check"], Path::new("/nowhere/PAGE.md")).status.code(), Some(1));
}

/// Tests the marks without running a command: parses every mark of every page, and finds tables of figures
/// without a mark.
#[test]
fn every_table_of_figures_has_a_mark() {
    for page in [
        "README.md",
        "aggregator/POISON.md",
        "edge-client/boards/README.md",
        "sim/PERSONAL.md",
        "sim/PRIVATE.md",
    ] {
        let whole = std::fs::read_to_string(root().join(page)).unwrap();
        assert!(!slots(&whole).unwrap_or_else(|error| panic!("{page}: {error}")).is_empty());
    }
    let listed = Command::new(env!("CARGO_BIN_EXE_tables")).arg("--list").output().expect("tables starts");
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    let without = unmarked("| a | b |\n| --- | --- |\n| x | 0.5 |\n");
    assert_eq!(without, [1]);
}
