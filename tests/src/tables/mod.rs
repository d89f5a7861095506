//! Generator of the tables in the documents. Each table is between two marks, and the first mark names the
//! command that prints the table.
//!
//! ```text
//! <!-- table: fedspan-sim theory rolora | table 1 -->
//! | iterations | median | ...
//! <!-- end of table -->
//! ```
//!
//! [`page`] finds the marks, [`recipe`] parses them, [`programs`] runs the commands, [`markdown`] selects
//! from their output, and [`own`] creates the tables that no command prints.

pub mod date;
pub mod markdown;
pub mod own;
pub mod page;
pub mod programs;
pub mod recipe;

use markdown::Table;
use page::Slot;
use programs::Programs;
use recipe::Line;

/// Produces the text that belongs between the marks of a table.
///
/// # Errors
/// A sentence if a command failed, or if its output lacks a selected row or column.
pub fn produce_table(slot: &Slot, programs: &mut Programs) -> Result<String, String> {
    let table = run_recipes(slot, programs)?;
    // A missing value (NaN) is an error, so that it cannot get into a page unnoticed. The first cell of a
    // row is a name.
    let has_nan = |line: &str| line.split('|').skip(2).any(|cell| cell.contains("NaN"));
    match table.lines().find(|line| has_nan(line)) {
        Some(line) => Err(format!("found NaN, allowed: numbers: {line}")),
        None => Ok(table),
    }
}

/// Runs the commands of a table and joins the rows of their tables.
fn run_recipes(slot: &Slot, programs: &mut Programs) -> Result<String, String> {
    // The output of a single command without a selection is taken as printed, with the headings between its
    // tables.
    if let [line] = slot.lines.as_slice()
        && line.steps.is_empty()
    {
        return programs.printed(&line.command).map(|text| markdown::tidy(&text));
    }
    let mut joined: Option<Table> = None;
    for line in &slot.lines {
        let table = run_line(line, programs)?;
        match &mut joined {
            None => joined = Some(table),
            Some(joined) if joined.columns.len() == table.columns.len() => joined.rows.extend(table.rows),
            Some(joined) => {
                let (columns, expected) = (table.columns.len(), joined.columns.len());
                return Err(format!("{}: {columns} columns, the lines before have {expected}", line.text));
            }
        }
    }
    joined.map(|table| table.text()).ok_or_else(|| "the mark names no command".to_owned())
}

fn run_line(line: &Line, programs: &mut Programs) -> Result<Table, String> {
    let tables = markdown::tables(&programs.printed(&line.command)?);
    line.select(tables).map_err(|error| format!("{}: {error}", line.text))
}

/// Returns the lines that only one of two texts contains: first those of the page, marked `-`, then those of
/// the command, marked `+`.
#[must_use]
pub fn diff(page: &str, printed: &str) -> String {
    let missing = |from: &str, other: &str, sign: char| {
        let lines = from.lines().filter(|line| !other.lines().any(|known| known == *line));
        lines.map(|line| format!("{sign} {line}\n")).collect::<String>()
    };
    let lines = missing(page, printed, '-') + &missing(printed, page, '+');
    if lines.is_empty() { "the same lines in another order, or blank lines\n".to_owned() } else { lines }
}

/// Returns the line numbers of tables of measured values without a mark. Such a table has a decimal number in
/// at least a third of its cells.
#[must_use]
pub fn unmarked(page: &str) -> Vec<usize> {
    let mut line_numbers = Vec::new();
    let (mut is_marked, mut first_line) = (false, 0);
    let mut table_text = String::new();
    for (number, line) in (1..).zip(page.lines().chain([""])) {
        if line.starts_with('|') {
            if table_text.is_empty() {
                first_line = number;
            }
            table_text += line;
            table_text.push('\n');
            continue;
        }
        if !is_marked && markdown::tables(&table_text).iter().any(has_decimals) {
            line_numbers.push(first_line);
        }
        table_text.clear();
        // Other marks name the program that writes the table, for example: <!-- budgets: written by
        // tests/tests/budgets.rs -->
        if line.starts_with("<!-- ") {
            is_marked = line.starts_with("<!-- table") || line.contains(": written by ");
        }
    }
    line_numbers
}

/// Returns true if at least a third of the table's cells are decimal numbers.
fn has_decimals(table: &Table) -> bool {
    let is_decimal = |cell: &str| {
        let digits = cell.trim_start_matches(['*', '-', '<']);
        let (integer_part, decimals) = digits.split_once('.').unwrap_or(("", ""));
        !integer_part.is_empty()
            && integer_part.bytes().all(|byte| byte.is_ascii_digit())
            && decimals.starts_with(|c: char| c.is_ascii_digit())
    };
    let cells = || table.rows.iter().flat_map(|row| row.iter().skip(1)).filter(|cell| !cell.is_empty());
    let decimal_count = cells().filter(|cell| is_decimal(cell)).count();
    decimal_count > 0 && 3 * decimal_count >= cells().count()
}

#[cfg(test)]
mod tests {
    use super::{diff, unmarked};

    #[test]
    fn diff_shows_edited_cell_as_two_lines() {
        assert_eq!(diff("| a |\n| 1 |\n", "| a |\n| 2 |\n"), "- | 1 |\n+ | 2 |\n");
        assert!(diff("| a |\n| b |\n", "| b |\n| a |\n").contains("order"));
    }

    #[test]
    fn unmarked_finds_figures_but_not_words() {
        let table = "| a | b |\n| --- | --- |\n| x | 0.5 (0.4) |\n";
        assert_eq!(unmarked(&format!("Text.\n\n{table}")), [3]);
        for fine in [
            format!("<!-- table: fedspan-sim power -->\n{table}<!-- end of table -->\n"),
            format!("<!-- budgets: written by tests/tests/budgets.rs -->\n{table}<!-- end of budgets -->\n"),
            table.replace("0.5", "version 0.5"),
            table.replace("0.5 (0.4)", "section 5.1"),
        ] {
            assert_eq!(unmarked(&fine), [0; 0], "{fine}");
        }
        assert_eq!(unmarked(&format!("<!-- table: a -->\n{table}<!-- end of table -->\n{table}")), [6]);
    }
}
