//! Tables of results: rendering as text, Markdown and HTML, and formatting of numbers.

use std::fmt::Write;

/// Number of columns above which a table with fewer rows is transposed on a page.
const WIDE: usize = 5;

/// Table of results. The first column has the names of the rows; the other columns have numbers.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Table {
    /// Title above the table.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows, each with as many cells as there are columns.
    pub rows: Vec<Vec<String>>,
    /// Sentences below the table.
    pub notes: Vec<String>,
}

impl Table {
    /// Renders the table as text with aligned columns and a line feed at the end.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        if !self.title.is_empty() {
            out.push_str(&self.title);
            out.push('\n');
        }
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&self.columns]).filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let rule: usize = widths.iter().map(|w| w + 2).sum::<usize>();
        for (index, row) in [&self.columns].into_iter().chain(&self.rows).enumerate() {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = if column == 0 || !is_figure_column(self, column) {
                    write!(line, "  {cell:<width$}")
                } else {
                    write!(line, "  {cell:>width$}")
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
            if index == 0 {
                let _ = writeln!(out, "  {}", "-".repeat(rule.saturating_sub(2)));
            }
        }
        for note in &self.notes {
            out.push_str(&wrap(note, 2, 108));
        }
        out
    }

    /// Renders the table as Markdown, with the title above it and each note in a paragraph below.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        if !self.title.is_empty() {
            let _ = writeln!(out, "{}:\n", self.title);
        }
        let rule = vec!["---".to_owned(); self.columns.len()];
        for row in [&self.columns, &rule].into_iter().chain(&self.rows) {
            out.push_str(&markdown_row(row));
        }
        for note in &self.notes {
            let _ = write!(out, "\n{}", wrap(note, 0, 108));
        }
        out
    }

    /// Renders the table as HTML, with its notes. A table with many columns and fewer rows is transposed, as pages
    /// are long rather than wide.
    #[must_use]
    pub fn html(&self) -> String {
        if self.columns.len() > WIDE && self.columns.len() > self.rows.len() + 1 {
            return self.transposed().html();
        }
        let mut out = String::new();
        if !self.title.is_empty() {
            let _ = writeln!(out, "<h2>{}</h2>", escape(&self.title));
        }
        out.push_str("<div class=\"scroll\" tabindex=\"0\"><table>\n");
        for (index, row) in [&self.columns].into_iter().chain(&self.rows).enumerate() {
            out.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let tag = if index == 0 || column == 0 { "th" } else { "td" };
                let class =
                    if column > 0 && is_figure_column(self, column) { " class=\"figure\"" } else { "" };
                let _ = write!(out, "<{tag}{class}>{}</{tag}>", escape(cell));
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</table></div>\n");
        for note in &self.notes {
            let _ = writeln!(out, "<p>{}</p>", escape(note));
        }
        out
    }

    /// Table whose rows are the columns of this one.
    fn transposed(&self) -> Self {
        let column = |index: usize| -> Vec<String> {
            let cells = [&self.columns].into_iter().chain(&self.rows);
            cells.map(|row| row.get(index).cloned().unwrap_or_default()).collect()
        };
        Self {
            title: self.title.clone(),
            columns: column(0),
            rows: (1..self.columns.len()).map(column).collect(),
            notes: self.notes.clone(),
        }
    }
}

/// Renders a row of a Markdown table.
#[must_use]
pub fn markdown_row(cells: &[String]) -> String {
    let mut line = String::from("|");
    for cell in cells {
        if !cell.is_empty() {
            let _ = write!(line, " {}", cell.replace('|', "\\|"));
        }
        line.push_str(" |");
    }
    line.push('\n');
    line
}

/// True if a column contains numbers, which are right-aligned.
fn is_figure_column(table: &Table, column: usize) -> bool {
    let starts = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || "-–".contains(c));
    table.rows.iter().filter_map(|row| row.get(column)).all(starts)
}

/// Wraps a sentence into indented lines.
#[must_use]
pub fn wrap(text: &str, indent: usize, width: usize) -> String {
    let mut out = String::new();
    let mut line = " ".repeat(indent);
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > width && !line.trim().is_empty() {
            out.push_str(line.trim_end());
            out.push('\n');
            line = " ".repeat(indent);
        }
        line.push_str(word);
        line.push(' ');
    }
    out.push_str(line.trim_end());
    out.push('\n');
    out
}

/// Escapes text for HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats a metric by its name: accuracies with four decimals, other metrics with four significant digits.
#[must_use]
pub fn figure(name: &str, value: f64) -> String {
    if name.starts_with("accuracy") {
        format!("{value:.4}")
    } else if value != 0.0 && !(1e-3..1e4).contains(&value.abs()) {
        format!("{value:.3e}")
    } else {
        format!("{value:.4}")
    }
}

/// Formats a number of bytes with a unit, rounded.
#[must_use]
pub fn bytes(count: f64) -> String {
    if count >= 1e9 {
        format!("{:.2} GB", count / 1e9)
    } else if count >= 1e6 {
        format!("{:.2} MB", count / 1e6)
    } else if count >= 1e4 {
        format!("{:.1} kB", count / 1e3)
    } else {
        format!("{count:.0} B")
    }
}
