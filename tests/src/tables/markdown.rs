//! Parser and writer of Markdown tables. Tables are written in one canonical form.

/// A table; cells are trimmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Headings of the columns.
    pub columns: Vec<String>,
    /// Rows with as many cells as there are columns.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Formats the table in canonical form: one blank around each cell.
    #[must_use]
    pub fn text(&self) -> String {
        let rule = vec!["---".to_owned(); self.columns.len()];
        [&self.columns, &rule].into_iter().chain(&self.rows).map(|row| format_row(row)).collect()
    }
}

fn format_row(cells: &[String]) -> String {
    let cells = cells.iter().map(|cell| if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") });
    format!("|{}\n", cells.collect::<String>())
}

/// Splits a line into cells. A bar after a backslash is part of its cell.
fn split_cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_start_matches('|');
    let line = line.strip_suffix('|').unwrap_or(line);
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for character in line.chars() {
        match (character, cells.last_mut()) {
            ('|', _) if !escaped => cells.push(String::new()),
            (_, Some(cell)) => cell.push(character),
            (_, None) => {}
        }
        escaped = character == '\\' && !escaped;
    }
    cells.into_iter().map(|cell| cell.trim().to_owned()).collect()
}

fn is_row(line: &str) -> bool {
    line.starts_with('|')
}

/// Finds all tables of a text.
#[must_use]
pub fn tables(text: &str) -> Vec<Table> {
    let lines: Vec<&str> = text.lines().collect();
    let blocks = lines.chunk_by(|a, b| is_row(a) == is_row(b)).filter(|block| is_row(block[0]));
    let table = |block: &[&str]| {
        let mut rows = block.iter().map(|line| split_cells(line));
        let columns = rows.next().unwrap_or_default();
        // The second line is the delimiter row.
        Table { columns, rows: rows.skip(1).collect() }
    };
    blocks.map(table).collect()
}

/// Rewrites every table of a text in canonical form, and trims blank lines at both ends.
#[must_use]
pub fn tidy(text: &str) -> String {
    let tidied = text.lines().map(|text| if is_row(text) { tidy_row(text) } else { format!("{text}\n") });
    format!("{}\n", tidied.collect::<String>().trim())
}

fn tidy_row(text: &str) -> String {
    let cells = split_cells(text);
    let is_rule = cells.iter().all(|cell| cell.len() > 2 && cell.chars().all(|c| c == '-'));
    if is_rule { format_row(&vec!["---".to_owned(); cells.len()]) } else { format_row(&cells) }
}

#[cfg(test)]
mod tests {
    use super::{Table, tables, tidy};

    #[test]
    fn table_roundtrips_through_text() {
        let word = |text: &str| text.to_owned();
        let table = Table {
            columns: vec![word(""), word("a b")],
            rows: vec![vec![word("x \\| y"), word("")], vec![word("1"), word("0.5 (0.4 to 0.6)")]],
        };
        assert_eq!(tidy(&table.text()), table.text());
        assert_eq!(tables(&table.text()), [table]);
    }

    #[test]
    fn tables_are_found_between_other_lines_and_normalised() {
        let text = "First:\n\n| a   | b |\n| --- | - |\n| 1   |   |\n\nSecond:\n\n| c |\n| --- |\n| 2 |\nA note.\n\n";
        let parsed = tables(text);
        assert_eq!(parsed.len(), 2);
        assert_eq!(parsed[0].rows, [["1", ""]]);
        assert_eq!(
            (parsed[1].columns.as_slice(), parsed[1].rows.as_slice()),
            (&["c".to_owned()][..], &[vec!["2".to_owned()]][..])
        );
        let tidied = tidy("\n| a   | b |\n| --- | --- |\n| 1   |   |\n\n");
        assert_eq!(tidied, "| a | b |\n| --- | --- |\n| 1 | |\n");
    }
}
