//! Parser of the recipes in marks. Each line of a recipe is a command, followed after bars by the steps that
//! select from its output:
//!
//! | step | what it does |
//! | --- | --- |
//! | `table N` | takes the Nth table of the output, in place of the first |
//! | `rows A; B as C` | takes rows by their first cells, in this order; `as` shows another name |
//! | `columns A; B as C` | takes columns by headings, in this order; keeps the first, which ` as C` renames |
//! | `prefix TEXT` | puts a text before the first cell of every row |
//! | `transposed` | makes columns of rows |

use super::markdown::Table;

/// A command, and the selection from its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Text of the line in the mark.
    pub text: String,
    /// Words of the command.
    pub command: Vec<String>,
    /// Selection steps, in order.
    pub steps: Vec<Step>,
}

/// A selection step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Takes the table of this number, from 1.
    Table(usize),
    /// Takes rows by their first cells: pairs of old and new name.
    Rows(Vec<[String; 2]>),
    /// Takes columns by their headings: pairs of old and new name.
    Columns(Vec<[String; 2]>),
    /// Puts a text before the first cell of every row.
    Prefix(String),
    /// Swaps rows and columns.
    Transposed,
}

impl Line {
    /// Parses a line of a mark.
    ///
    /// # Errors
    /// A sentence with the found text and the allowed texts.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(" | ");
        let command = split_words(parts.next().unwrap_or_default())?;
        if command.is_empty() {
            return Err(format!(
                "found {text:?}, allowed: a command, and after bars the selection from its output"
            ));
        }
        let steps = parts.map(parse_step).collect::<Result<_, String>>()?;
        Ok(Self { text: text.to_owned(), command, steps })
    }

    /// Selects a table from those that the command printed, and applies the selection steps.
    ///
    /// # Errors
    /// A sentence with the missing name and the existing ones.
    pub fn select(&self, tables: Vec<Table>) -> Result<Table, String> {
        let number = self.steps.iter().find_map(|step| match step {
            Step::Table(number) => Some(*number),
            _ => None,
        });
        let (number, count) = (number.unwrap_or(1), tables.len());
        let table = tables.into_iter().nth(number - 1);
        let mut table = table.ok_or_else(|| format!("found {count} tables, wanted number {number}"))?;
        for step in &self.steps {
            table = step.apply(table)?;
        }
        Ok(table)
    }
}

impl Step {
    /// Applies the step to a table.
    fn apply(&self, mut table: Table) -> Result<Table, String> {
        match self {
            Self::Table(_) => {}
            Self::Rows(names) => {
                let firsts: Vec<&str> =
                    table.rows.iter().map(|row| row.first().map_or("", String::as_str)).collect();
                let mut rows = Vec::new();
                for [name, shown] in names {
                    let mut row = table.rows[position("row", name, &firsts)?].clone();
                    if let Some(first) = row.first_mut() {
                        first.clone_from(shown);
                    }
                    rows.push(row);
                }
                table.rows = rows;
            }
            Self::Columns(names) => {
                let headings: Vec<&str> = table.columns.iter().map(String::as_str).collect();
                // An empty name denotes the first column.
                let index = |name: &String| match name.as_str() {
                    "" => Ok(0),
                    name => position("column", name, &headings),
                };
                let mut indices = names.iter().map(|[name, _]| index(name)).collect::<Result<Vec<_>, _>>()?;
                let mut shown: Vec<String> = names.iter().map(|[_, shown]| shown.clone()).collect();
                if indices.first() != Some(&0) {
                    indices.insert(0, 0);
                    shown.insert(0, table.columns.first().cloned().unwrap_or_default());
                }
                for row in &mut table.rows {
                    *row = indices.iter().map(|index| row.get(*index).cloned().unwrap_or_default()).collect();
                }
                table.columns = shown;
            }
            Self::Prefix(prefix) => {
                for first in table.rows.iter_mut().filter_map(|row| row.first_mut()) {
                    first.insert_str(0, prefix);
                }
            }
            Self::Transposed => {
                let all_rows: Vec<&Vec<String>> = [&table.columns].into_iter().chain(&table.rows).collect();
                let column = |index: usize| -> Vec<String> {
                    all_rows.iter().map(|row| row.get(index).cloned().unwrap_or_default()).collect()
                };
                let rows = (1..table.columns.len()).map(column).collect();
                table = Table { columns: column(0), rows };
            }
        }
        Ok(table)
    }
}

fn position(kind: &str, name: &str, known: &[&str]) -> Result<usize, String> {
    let index = known.iter().position(|existing| *existing == name);
    index.ok_or_else(|| format!("found no {kind} {name:?}, there are {known:?}"))
}

/// Parses one selection step.
fn parse_step(text: &str) -> Result<Step, String> {
    let text = text.trim();
    let (word, argument) = text.split_once(' ').unwrap_or((text, ""));
    let names = || {
        argument.split(';').map(|part| {
            let part = part.trim();
            // With blanks at both ends, "as C" and "as" split into an empty name, which denotes the first
            // column.
            match format!(" {part} ").split_once(" as ") {
                Some((name, shown)) => [name, shown].map(|word| word.trim().to_owned()),
                None => [part.to_owned(), part.to_owned()],
            }
        })
    };
    match (word, argument) {
        ("table", number) => match number.parse() {
            Ok(number) if number > 0 => Ok(Step::Table(number)),
            _ => Err(format!("table: found {number:?}, allowed: a number from 1")),
        },
        ("rows", _) => Ok(Step::Rows(names().collect())),
        ("columns", _) => Ok(Step::Columns(names().collect())),
        ("prefix", text) => Ok(Step::Prefix(text.trim_matches('"').to_owned())),
        ("transposed", "") => Ok(Step::Transposed),
        _ => Err(format!("found {text:?}, allowed: table N, rows, columns, prefix, transposed")),
    }
}

/// Splits a command into words. Quotes of either kind keep blanks.
fn split_words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut in_word = false;
    for character in text.chars() {
        match (quote, character) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => (quote, in_word) = (Some(character), true),
            (None, c) if c.is_whitespace() => {
                if std::mem::take(&mut in_word) {
                    words.push(std::mem::take(&mut word));
                }
            }
            (_, c) => {
                word.push(c);
                in_word = true;
            }
        }
    }
    if quote.is_some() {
        return Err(format!("found {text:?}with an unclosed quote"));
    }
    if in_word {
        words.push(word);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{Line, split_words};
    use crate::tables::markdown::tables;

    const OUTPUT: &str =
        "| setting | noise | end |\n| --- | --- | --- |\n| a | 1 | 0.5 |\n| b | 2 | 0.25 |\n";

    fn select_from_output(steps: &str) -> Result<String, String> {
        let line = Line::parse(&format!("fedspan-sim power{steps}"))?;
        line.select(tables(OUTPUT)).map(|table| table.text())
    }

    #[test]
    fn quotes_keep_blanks_as_in_a_shell() {
        let split = split_words("run 'participation={ policy = \"full\" }' --set a=\"x y\" ''").unwrap();
        assert_eq!(split, ["run", "participation={ policy = \"full\" }", "--set", "a=x y", ""]);
        assert!(split_words("run 'a").is_err());
    }

    #[test]
    fn steps_select_rename_and_transpose() {
        assert_eq!(select_from_output("").unwrap(), OUTPUT);
        let rows = select_from_output(" | rows b as B; a | columns end as last").unwrap();
        assert_eq!(rows, "| setting | last |\n| --- | --- |\n| B | 0.25 |\n| a | 0.5 |\n");
        let named = select_from_output(" | columns as ; noise | prefix \"x, \"").unwrap();
        assert_eq!(named, "| | noise |\n| --- | --- |\n| x, a | 1 |\n| x, b | 2 |\n");
        let transposed = select_from_output(" | columns end | transposed").unwrap();
        assert_eq!(transposed, "| setting | a | b |\n| --- | --- | --- |\n| end | 0.5 | 0.25 |\n");
    }

    #[test]
    fn missing_name_is_reported_with_existing_names() {
        assert_eq!(
            select_from_output(" | rows c").unwrap_err(),
            "found no row \"c\", there are [\"a\", \"b\"]"
        );
        assert!(select_from_output(" | columns beginning").unwrap_err().contains("\"noise\""));
        assert_eq!(select_from_output(" | table 2").unwrap_err(), "found 1 tables, wanted number 2");
        assert!(
            select_from_output(" | table 0").is_err()
                && select_from_output(" | sorted").is_err()
                && Line::parse("").is_err()
        );
    }
}
