//! Reader and editor of generated lists in `budgets.toml`, and editor of generated tables in Markdown files.

use std::collections::BTreeMap;

use toml_edit::DocumentMut;

/// Reads a list of inline tables of a TOML file. Each table is returned as a map from names to words.
///
/// # Errors
/// If the file is no TOML, or the list is missing or has other values than inline tables.
pub fn read_list(file: &str, name: &str) -> Result<Vec<BTreeMap<String, String>>, String> {
    let document: DocumentMut = file.parse().map_err(|error| format!("{error}"))?;
    let list =
        document.get(name).and_then(|list| list.as_array()).ok_or_else(|| format!("no list {name}"))?;
    let words = |table: &toml_edit::Value| {
        let table =
            table.as_inline_table().ok_or_else(|| format!("found {table} in {name}, allowed: tables"))?;
        let each = table.iter().map(|(name, value)| {
            let word = value.as_str().map_or_else(|| value.to_string().trim().to_owned(), str::to_owned);
            (name.to_owned(), word)
        });
        Ok(each.collect())
    };
    list.iter().map(words).collect()
}

/// Replaces the list `name = [..]` of a TOML file, or appends it.
///
/// # Errors
/// If the list has no end.
pub fn with_list(file: &str, name: &str, list: &str) -> Result<String, String> {
    let begin = format!("{name} = [\n");
    match file.split_once(&begin) {
        Some((before, after_begin)) => {
            let (_, after) = after_begin.split_once("]\n").ok_or_else(|| format!("{name} has no end"))?;
            Ok(format!("{before}{begin}{list}]\n{after}"))
        }
        None => Ok(format!("{file}{begin}{list}]\n")),
    }
}

/// Replaces the text between two marks.
///
/// # Errors
/// If a mark is missing.
pub fn with_table(text: &str, begin: &str, end: &str, table: &str) -> Result<String, String> {
    let missing = |mark: &str| format!("no '{}'", mark.trim());
    let (before, after_begin) = text.split_once(begin).ok_or_else(|| missing(begin))?;
    let (_, after) = after_begin.split_once(end).ok_or_else(|| missing(end))?;
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_and_table_are_replaced() {
        let file = "update = [\n]\nflash = [\n    { old },\n]\nbits = [\n]\n";
        let new = "update = [\n]\nflash = [\n    { new },\n]\nbits = [\n]\n";
        assert_eq!(with_list(file, "flash", "    { new },\n").as_deref(), Ok(new));
        assert_eq!(with_list("a", "b", "c\n").as_deref(), Ok("ab = [\nc\n]\n"));
        assert!(with_list("flash = [\n", "flash", "").is_err());
        assert_eq!(with_table("1<2>3", "<", ">", "4").as_deref(), Ok("1<4>3"));
        assert!(with_table("1<2", "<", ">", "4").is_err());
        let row = BTreeMap::from([("d".to_owned(), "20".to_owned()), ("core".to_owned(), "m0".to_owned())]);
        assert_eq!(read_list("a = [{ core = \"m0\", d = 20 }]", "a"), Ok(vec![row]));
        for file in ["a = [", "b = []", "a = 1", "a = [1]"] {
            assert!(read_list(file, "a").is_err(), "{file}");
        }
    }
}
