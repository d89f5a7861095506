//! Loading of scenarios that are given as command line arguments.

use std::collections::BTreeMap;
use std::path::Path;

use fedspan_engine::config::{nearest, read_file, shortened};

use super::CommandError;
use fedspan_sim_core::scenario::{BUILT_IN, Scenario};

/// Reads a built-in scenario or a scenario file.
pub fn scenario(name: &str, changes: &[String]) -> Result<Scenario, CommandError> {
    let text = match Scenario::built_in(name) {
        Some(text) => text.to_owned(),
        None if !Path::new(name).exists() && !looks_like_a_file(name) => {
            return Err(CommandError::Usage(unknown(name)));
        }
        None => read_file(Path::new(name)).map_err(|problem| CommandError::Usage(problem.to_string()))?,
    };
    Scenario::parse(name, &text, changes).map_err(|problem| CommandError::Usage(problem.to_string()))
}

/// True if an unknown name is probably a path.
fn looks_like_a_file(name: &str) -> bool {
    name.ends_with(".toml") || name.contains(['/', '\\'])
}

/// Error message for a name that is neither a built-in scenario nor a file.
pub fn unknown(name: &str) -> String {
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, _, _)| *name).collect();
    let hint =
        nearest(name, &names).map_or(String::new(), |suggestion| format!(" (did you mean {suggestion:?}?)"));
    let name = shortened(name, 120);
    format!("no scenario or file is called {name:?}{hint}; built-in: {}", names.join(", "))
}

/// Keys and values of changes. Quotes around a text are left out.
pub fn settings(changes: &[String]) -> BTreeMap<String, String> {
    let setting = |change: &String| {
        let (key, value) = change.split_once('=')?;
        let value = value.trim();
        let plain = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        Some((key.trim().to_owned(), plain.unwrap_or(value).to_owned()))
    };
    changes.iter().filter_map(setting).collect()
}

/// Splits `NAME,KEY=VALUE,...` into the name and the changes. A comma is part of a value if it is inside
/// brackets, braces or quotes, or if no key and `=` follow it.
pub fn with_changes(argument: &str) -> (String, Vec<String>) {
    let starts_change = |part: &str| {
        part.split_once('=').is_some_and(|(key, _)| {
            let key = key.trim();
            !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
        })
    };
    let mut parts: Vec<String> = Vec::new();
    for part in argument.split(',') {
        match parts.last_mut() {
            Some(last) if is_open(last) || !starts_change(part) => {
                last.push(',');
                last.push_str(part);
            }
            _ => parts.push(part.to_owned()),
        }
    }
    let mut parts = parts.into_iter();
    (parts.next().unwrap_or_default(), parts.collect())
}

/// Splits a list of values at commas, except those inside brackets, braces or quotes.
pub fn split_values(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in text.split(',') {
        match parts.last_mut().filter(|last| is_open(&format!("={last}"))) {
            Some(last) => {
                last.push(',');
                last.push_str(part);
            }
            None => parts.push(part.to_owned()),
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

/// True if a change contains an unclosed inline table, list or string.
fn is_open(part: &str) -> bool {
    let (mut depth, mut quoted) = (0, None);
    for c in part.split_once('=').map_or("", |(_, value)| value).chars() {
        match (quoted, c) {
            (None, '"' | '\'') => quoted = Some(c),
            (Some(quote), _) if quote == c => quoted = None,
            (None, '{' | '[') => depth += 1,
            (None, '}' | ']') => depth -= 1,
            _ => {}
        }
    }
    depth > 0 || quoted.is_some()
}

#[cfg(test)]
mod tests {
    use super::{split_values, with_changes};

    #[test]
    fn commas_inside_values_do_not_separate() {
        for (argument, changes) in [
            ("a,k=1,l=2", &["k=1", "l=2"][..]),
            ("a,p={ q = 1, r = 2 },l=2", &["p={ q = 1, r = 2 }", "l=2"]),
            ("a,p={ q = [1, 2], r = { s = 1, t = 2 } }", &["p={ q = [1, 2], r = { s = 1, t = 2 } }"]),
            ("a,p=\"x, y=1\",q='},z=2'", &["p=\"x, y=1\"", "q='},z=2'"]),
            ("a,k=1,5", &["k=1,5"]),
        ] {
            let (name, parsed) = with_changes(argument);
            assert_eq!((name.as_str(), parsed), ("a", changes.iter().map(|c| (*c).to_owned()).collect()));
        }
        assert_eq!(
            split_values("1, [2,3],\"a,b\",{ x = [1, 2] }"),
            ["1", "[2,3]", "\"a,b\"", "{ x = [1, 2] }"]
        );
        assert_eq!(split_values("auto"), ["auto"]);
        assert_eq!(with_changes("my, file,k=1"), ("my, file".to_owned(), vec!["k=1".to_owned()]));
    }
}
