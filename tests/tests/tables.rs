//! The tables of the documents: an edited cell is found, and written anew.

use std::path::Path;
use std::process::{Command, Output};

use fedspan_tests::tables::page::{Class, slots};
use fedspan_tests::tables::unmarked;

fn tables(arguments: &[&str], page: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tables")).args(arguments).arg(page).output().expect("runs")
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Of a page in a copy, so that no other test sees it: every cell that is edited fails the check, which names page, line, command and
/// both lines, and changes nothing; writing anew puts the cell right.
#[test]
fn the_check_fails_when_a_cell_is_edited() {
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
            let said = text(&found.stdout);
            assert_eq!(found.status.code(), Some(1), "{said}");
            assert!(said.contains(&format!("PRIVACY.md:{}: differs", slot.line)), "{said}");
            assert!(said.contains(&slot.commands()), "{said}");
            let lines = |sign: char| said.lines().filter(|line| line.starts_with(sign)).count();
            assert_eq!([lines('-'), lines('+')], [1, 1], "{said}");
            assert_eq!(std::fs::read_to_string(&page).unwrap(), wrong, "a check writes nothing");
            assert!(tables(&[], &page).status.success());
            assert_eq!(std::fs::read_to_string(&page).unwrap(), whole);
            edited += 1;
        }
    }
    assert!(edited > 10, "{edited}");
}

#[test]
fn a_figure_that_is_measured_is_never_compared() {
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
        text(&tables(&["--measured"], &page).stdout)
            .contains("PAGE.md:1: is put down by hand: by hand: a clock")
    );
}

#[test]
fn what_is_wrong_with_a_page_or_a_command_is_told_in_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("PAGE.md");
    let mark = "<!-- table: tests/tables --print sizes | rows nothing -->\n<!-- end of table -->\n";
    for (whole, told) in [
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
        assert!(text(&output.stderr).contains(told), "{}", text(&output.stderr));
    }
    for arguments in [&["--everything"][..], &["--measured", "--check"]] {
        assert_eq!(tables(arguments, &page).status.code(), Some(2));
    }
    assert_eq!(tables(&["--check"], Path::new("/nowhere/PAGE.md")).status.code(), Some(1));
}

/// Without a run: every mark of every page can be read, and no table of figures is without one.
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
    let listed = Command::new(env!("CARGO_BIN_EXE_tables")).arg("--list").output().expect("runs");
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    let without = unmarked("| a | b |\n| --- | --- |\n| x | 0.5 |\n");
    assert_eq!(without, [1]);
}
