//! Rules for one piece of English text: its first word, banned words anywhere, placeholders in log messages.

use std::collections::BTreeSet;

use super::items::{Class, Item, is_fence};

/// Lists of words, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Words that may not begin any item.
    pub first: BTreeSet<String>,
    /// Further words that may not begin the name of a test.
    pub first_of_tests: BTreeSet<String>,
    /// Words that may not occur anywhere.
    pub anywhere: BTreeSet<String>,
}

impl Words {
    /// Returns the reason why an item breaks the rules, or `None`. An item counts at most once.
    #[must_use]
    pub fn offence(&self, item: &Item) -> Option<String> {
        let text = english_text(item);
        if let Some(first) = first_word(&text)
            && (self.first.contains(&first)
                || item.class == Class::Tests && self.first_of_tests.contains(&first))
        {
            return Some(format!("begins with '{first}'"));
        }
        if let Some(word) = words_of(&text).find(|word| self.anywhere.contains(word)) {
            return Some(format!("contains '{word}'"));
        }
        if item.class == Class::Logs && item.text != without_placeholders(&item.text) {
            return Some("has a placeholder where a field belongs".to_owned());
        }
        None
    }
}

/// Replacement character for code, which is neither a word nor white space.
const CODE: char = '\u{fffc}';

/// Returns the English text of an item: without code, addresses of links, placeholders and underscores.
fn english_text(item: &Item) -> String {
    match item.class {
        Class::Docs | Class::Comments => without_addresses(&without_code(&item.text)),
        Class::Help => without_code(&item.text),
        Class::Logs | Class::Errors => without_placeholders(&item.text),
        Class::Tests => item.text.replace('_', " "),
    }
}

/// Removes fenced blocks, and replaces spans between equal numbers of backticks.
fn without_code(text: &str) -> String {
    let mut is_fenced = false;
    let prose_lines = text.lines().filter(|line| {
        let is_mark = is_fence(line.trim_start());
        is_fenced ^= is_mark;
        !is_mark && !is_fenced
    });
    let text = prose_lines.collect::<Vec<_>>().join("\n");
    let mut output = String::new();
    let mut remaining = text.as_str();
    while let Some(start) = remaining.find('`') {
        output.push_str(&remaining[..start]);
        let opened = &remaining[start..];
        let ticks = opened.len() - opened.trim_start_matches('`').len();
        let inside = &opened[ticks..];
        match closing_ticks(inside, ticks) {
            Some(end) => {
                output.push(CODE);
                remaining = &inside[end..];
            }
            None => remaining = inside,
        }
    }
    output.push_str(remaining);
    output
}

/// Returns the index after the first run of exactly `ticks` backticks.
fn closing_ticks(text: &str, ticks: usize) -> Option<usize> {
    let mut position = 0;
    while let Some(start) = text[position..].find('`') {
        let run = text[position + start..].len() - text[position + start..].trim_start_matches('`').len();
        position += start + run;
        if run == ticks {
            return Some(position);
        }
    }
    None
}

/// Removes `(...)` after `]`, and words that contain `://`.
fn without_addresses(text: &str) -> String {
    let mut output = String::new();
    let mut remaining = text;
    while let Some(start) = remaining.find("](") {
        output.push_str(&remaining[..=start]);
        let address = &remaining[start + 1..];
        remaining = address.find(')').map_or("", |end| &address[end + 1..]);
    }
    output.push_str(remaining);
    let line =
        |line: &str| line.split(' ').filter(|word| !word.contains("://")).collect::<Vec<_>>().join(" ");
    output.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Replaces `{...}` of format strings; `{{` and `}}` are braces.
fn without_placeholders(text: &str) -> String {
    let mut output = String::new();
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '{' | '}' if characters.peek() == Some(&c) => {
                characters.next();
                output.push(c);
                output.push(c);
            }
            '{' => {
                output.push(CODE);
                for inside in characters.by_ref() {
                    if inside == '}' {
                        break;
                    }
                }
            }
            _ => output.push(c),
        }
    }
    output
}

/// Returns the words in lower case. The part of a word after an apostrophe is omitted (`what's` is `what`).
fn words_of(text: &str) -> impl Iterator<Item = String> {
    let pieces = text.split(|c: char| !(c.is_alphanumeric() || c == '\'' || c == '’' || c == '_'));
    let word = |piece: &str| piece.split(['\'', '’']).next().unwrap_or_default().to_lowercase();
    pieces.map(word).filter(|word| !word.is_empty())
}

/// Returns the first word, unless code precedes it.
fn first_word(text: &str) -> Option<String> {
    let start = text.find(|c: char| c.is_alphanumeric() || c == CODE)?;
    if text[start..].starts_with(CODE) {
        return None;
    }
    words_of(&text[start..]).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word_lists() -> Words {
        let set = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        Words {
            first: set(&["what", "its"]),
            first_of_tests: set(&["so"]),
            anywhere: set(&["nobody", "anew"]),
        }
    }

    fn offends(class: Class, text: &str) -> bool {
        word_lists().offence(&Item { line: 1, class, text: text.to_owned() }).is_some()
    }

    #[test]
    fn first_words_count_behind_any_signs() {
        for text in
            ["What is sent.", " What", "*What* is", "(its own)", "\"What\"", "What's sent.", "[What]: x"]
        {
            assert!(offends(Class::Docs, text), "{text}");
        }
        for text in ["Whatever", "Sum of what", "`What` is a type.", "[`Its`] x", "What_is", "", "-"] {
            assert!(!offends(Class::Docs, text), "{text}");
        }
    }

    #[test]
    fn banned_words_count_anywhere_and_whole() {
        for text in ["Sent to nobody.", "Written Anew, twice.", "a\nnobody"] {
            assert!(offends(Class::Docs, text), "{text}");
            assert!(offends(Class::Comments, text), "{text}");
        }
        for text in ["renewed", "`nobody`", "a ``b ` nobody`` c", "[x](nobody.md)", "https://x/nobody y"] {
            assert!(!offends(Class::Docs, text), "{text}");
        }
    }

    #[test]
    fn fenced_code_is_no_english() {
        assert!(!offends(Class::Docs, "Example:\n```\n// nobody\n```\nEnd."));
        assert!(offends(Class::Docs, "Example:\n```\nx\n```\nnobody"));
        assert!(!offends(Class::Docs, "```\nlet a = 1;\n```"));
    }

    #[test]
    fn backtick_without_a_partner_hides_nothing() {
        assert!(offends(Class::Docs, "A ` and nobody"));
    }

    #[test]
    fn test_names_are_words_between_underscores() {
        assert!(offends(Class::Tests, "what_is_sent"));
        assert!(offends(Class::Tests, "so_it_is"));
        assert!(offends(Class::Tests, "key_is_told_to_nobody"));
        assert!(!offends(Class::Tests, "solver_sums_what_it_reads"));
        assert!(!offends(Class::Docs, "So it is"));
    }

    #[test]
    fn placeholders_are_no_words_and_no_log_message_has_them() {
        assert!(!offends(Class::Errors, "{what} is out of range"));
        assert!(!offends(Class::Errors, "found {nobody}, {{x}}"));
        assert!(!offends(Class::Errors, "{0} what"));
        assert!(offends(Class::Errors, "what {0} says"));
        assert!(offends(Class::Logs, "round {n} closed"));
        assert!(!offends(Class::Logs, "round closed"));
        assert!(!offends(Class::Logs, "braces {{}}"));
    }
}
