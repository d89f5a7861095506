//! Finder of English text in Rust source: doc items, help and error texts, log messages, names of tests,
//! comments.

use super::lexer::{Kind, Token, tokens};

/// Kinds of English text that are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Doc comment, or one section (`# Errors`) of it.
    Docs,
    /// Help text in an attribute of clap; help in doc comments counts as [`Class::Docs`].
    Help,
    /// Message of a log macro.
    Logs,
    /// Text of `#[error("...")]`.
    Errors,
    /// Name of a test function.
    Tests,
    /// Plain comment: consecutive `//` lines.
    Comments,
}

impl Class {
    /// All kinds, in the order of the table.
    pub const ALL: [Self; 6] =
        [Self::Docs, Self::Help, Self::Logs, Self::Errors, Self::Tests, Self::Comments];

    /// Returns the name in the baseline file and the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Docs => "docs",
            Self::Help => "help",
            Self::Logs => "logs",
            Self::Errors => "errors",
            Self::Tests => "tests",
            Self::Comments => "comments",
        }
    }
}

/// One piece of English text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Line of the beginning of the text, from 1.
    pub line: usize,
    /// Kind of the text.
    pub class: Class,
    /// Text as written, or the name of a test.
    pub text: String,
}

/// Macros whose message is written to a log.
const LOG_MACROS: [&str; 5] = ["trace", "debug", "info", "warn", "error"];
/// Attributes of clap that contain help texts.
const CLAP_ATTRIBUTES: [&str; 5] = ["arg", "clap", "command", "group", "value"];
/// Keys of clap's attributes whose values are help texts.
const HELP_KEYS: [&str; 8] = [
    "about",
    "long_about",
    "help",
    "long_help",
    "before_help",
    "after_help",
    "before_long_help",
    "after_long_help",
];

/// Finds every piece of English text in a file.
#[must_use]
pub fn items(source: &str) -> Vec<Item> {
    let tokens = tokens(source);
    let code: Vec<&Token> =
        tokens.iter().filter(|token| !matches!(token.kind, Kind::Doc { .. } | Kind::Comment(_))).collect();
    let mut items = comment_items(&tokens);
    items.extend(log_messages(&code));
    items.extend(attribute_items(&code));
    items.sort_by_key(|item| (item.line, item.class));
    items
}

/// Returns runs of comment lines, with each doc comment split at its headings.
fn comment_items(tokens: &[Token]) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    // Marker and last line of the run that the next line may continue.
    let mut run: Option<(Option<bool>, usize)> = None;
    for (index, token) in tokens.iter().enumerate() {
        let (marker, text) = match &token.kind {
            Kind::Doc { inner, text } => (Some(*inner), text),
            Kind::Comment(text) => (None, text),
            _ => {
                // Code between two comments ends the run; after code, a comment on the same line starts a new
                // run.
                run = None;
                continue;
            }
        };
        let behind_code = index > 0 && tokens[index - 1].line == token.line;
        let continued = run == Some((marker, token.line.wrapping_sub(1))) && !behind_code;
        match items.last_mut().filter(|_| continued) {
            Some(item) => {
                item.text.push('\n');
                item.text.push_str(text);
            }
            None => {
                let class = if marker.is_some() { Class::Docs } else { Class::Comments };
                items.push(Item { line: token.line, class, text: text.clone() });
            }
        }
        run = Some((marker, token.line + text.matches('\n').count()));
    }
    items.into_iter().flat_map(split_sections).collect()
}

/// Splits a doc item at its headings, outside of fenced code. A part without any text is omitted.
fn split_sections(item: Item) -> Vec<Item> {
    if item.class != Class::Docs {
        return if item.text.trim().is_empty() { Vec::new() } else { vec![item] };
    }
    let mut parts = vec![Item { text: String::new(), ..item.clone() }];
    let mut is_fenced = false;
    for (offset, line) in item.text.lines().enumerate() {
        let trimmed = line.trim_start();
        is_fenced ^= is_fence(trimmed);
        if !is_fenced && is_heading(trimmed) {
            parts.push(Item { line: item.line + offset + 1, class: item.class, text: String::new() });
            continue;
        }
        if let Some(part) = parts.last_mut() {
            if part.text.is_empty() && trimmed.is_empty() {
                part.line += 1;
                continue;
            }
            part.text.push_str(line);
            part.text.push('\n');
        }
    }
    parts.retain(|part| !part.text.trim().is_empty());
    parts
}

/// Returns whether a line begins or ends a block of code in a doc comment.
#[must_use]
pub fn is_fence(line: &str) -> bool {
    line.starts_with("```") || line.starts_with("~~~")
}

fn is_heading(line: &str) -> bool {
    let title = line.trim_start_matches('#');
    title.len() < line.len() && title.starts_with(' ')
}

/// Returns the messages of log macros: the first argument that is a string and not the value of a field.
fn log_messages(code: &[&Token]) -> Vec<Item> {
    let mut messages = Vec::new();
    for index in 0..code.len() {
        let Kind::Word(name) = &code[index].kind else { continue };
        let is_call = is_sign(code, index + 1, '!') && is_sign(code, index + 2, '(');
        if !LOG_MACROS.contains(&name.as_str()) || !is_call || !is_log_macro(code, index) {
            continue;
        }
        let mut depth = 0;
        let mut begins_argument = false;
        for token in &code[index + 2..] {
            match &token.kind {
                Kind::Sign('(' | '[' | '{') => {
                    depth += 1;
                    begins_argument = depth == 1;
                }
                Kind::Sign(')' | ']' | '}') => {
                    depth -= 1;
                    if depth == 0 {
                        break;
                    }
                    begins_argument = false;
                }
                Kind::Sign(',') => begins_argument = depth == 1,
                Kind::Text(text) if begins_argument => {
                    messages.push(Item { line: token.line, class: Class::Logs, text: text.clone() });
                    break;
                }
                _ => begins_argument = false,
            }
        }
    }
    messages
}

/// Returns whether the macro at `index` is a log macro: without a path, or from `tracing` or `log`.
fn is_log_macro(code: &[&Token], index: usize) -> bool {
    if index < 3 || !is_sign(code, index - 1, ':') || !is_sign(code, index - 2, ':') {
        return index == 0 || !is_sign(code, index - 1, '.');
    }
    matches!(&code[index - 3].kind, Kind::Word(path) if path == "tracing" || path == "log")
}

/// Returns texts inside attributes, and names of functions that follow `#[test]`.
fn attribute_items(code: &[&Token]) -> Vec<Item> {
    let mut items = Vec::new();
    let mut is_test_function = false;
    let mut index = 0;
    while index < code.len() {
        if is_sign(code, index, '#') && (is_sign(code, index + 1, '[') || is_sign(code, index + 2, '[')) {
            let end = attribute_end(code, index);
            let attribute = &code[index..end];
            is_test_function |= is_test(attribute);
            items.extend(attribute_texts(attribute));
            index = end;
            continue;
        }
        match &code[index].kind {
            Kind::Word(word) if word == "fn" => {
                if let Some(Token { line, kind: Kind::Word(name) }) = code.get(index + 1)
                    && is_test_function
                {
                    items.push(Item { line: *line, class: Class::Tests, text: name.clone() });
                }
                is_test_function = false;
            }
            Kind::Word(word)
                if ["pub", "crate", "async", "unsafe", "const", "extern"].contains(&word.as_str()) => {}
            Kind::Sign('(' | ')') | Kind::Text(_) => {}
            _ => is_test_function = false,
        }
        index += 1;
    }
    items
}

/// Returns the index after the bracket that closes an attribute.
fn attribute_end(code: &[&Token], start: usize) -> usize {
    let mut depth = 0;
    for (offset, token) in code[start..].iter().enumerate() {
        match token.kind {
            Kind::Sign('[') => depth += 1,
            Kind::Sign(']') => {
                depth -= 1;
                if depth == 0 {
                    return start + offset + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Returns the words of an attribute's path: `tokio`, `test` in `#[tokio::test(start_paused = true)]`.
fn attribute_path<'a>(attribute: &[&'a Token]) -> Vec<&'a str> {
    let mut words = Vec::new();
    for token in attribute {
        match &token.kind {
            Kind::Word(word) => words.push(word.as_str()),
            Kind::Sign('#' | '!' | '[' | ':') => {}
            _ => break,
        }
    }
    words
}

fn is_test(attribute: &[&Token]) -> bool {
    attribute_path(attribute).last() == Some(&"test")
}

/// Returns the error text or the help texts of an attribute.
fn attribute_texts(attribute: &[&Token]) -> Vec<Item> {
    let path = attribute_path(attribute);
    let item = |token: &Token, class| match &token.kind {
        Kind::Text(text) => Some(Item { line: token.line, class, text: text.clone() }),
        _ => None,
    };
    if path == ["error"] {
        // The tokens are `# [ error ( "..."`. `#[error(transparent)]` has no text.
        return attribute.get(4).and_then(|token| item(token, Class::Errors)).into_iter().collect();
    }
    if !path.first().is_some_and(|first| CLAP_ATTRIBUTES.contains(first)) {
        return Vec::new();
    }
    let is_help = |parts: &[&Token]| {
        matches!(&parts[0].kind, Kind::Word(key) if HELP_KEYS.contains(&key.as_str()))
            && parts[1].kind == Kind::Sign('=')
    };
    let texts =
        attribute.windows(3).filter(|parts| is_help(parts)).filter_map(|parts| item(parts[2], Class::Help));
    texts.collect()
}

fn is_sign(code: &[&Token], index: usize, wanted: char) -> bool {
    code.get(index).is_some_and(|token| token.kind == Kind::Sign(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items_of(source: &str, class: Class) -> Vec<(usize, String)> {
        let items_of_class = items(source).into_iter().filter(|item| item.class == class);
        items_of_class.map(|item| (item.line, item.text.trim().to_owned())).collect()
    }

    fn texts(source: &str, class: Class) -> Vec<String> {
        items_of(source, class).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn adjacent_doc_lines_are_one_item() {
        let source = "/// One.\n///\n/// Two.\nfn f() {}\n/// Three.\n\n/// Four.\n//! Five.\nfn g() {}";
        assert_eq!(texts(source, Class::Docs), ["One.\n\n Two.", "Three.", "Four.", "Five."]);
    }

    #[test]
    fn heading_begins_an_item_outside_fenced_code_only() {
        let source = "/// Reads.\n///\n/// # Errors\n///\n/// What it says.\n/// ```\n/// # use x;\n/// ```\nfn f() {}";
        assert_eq!(
            items_of(source, Class::Docs),
            [(1, "Reads.".to_owned()), (5, "What it says.\n ```\n # use x;\n ```".to_owned())]
        );
    }

    #[test]
    fn comments_behind_code_and_above_it_are_apart() {
        let source = "let a = 1; // One.\n// Two\n// goes on.\nlet b = 2; // Three.\nlet c = 3; // Four.";
        assert_eq!(texts(source, Class::Comments), ["One.\n Two\n goes on.", "Three.", "Four."]);
    }

    #[test]
    fn log_message_is_the_literal_that_is_no_field() {
        let source = r#"
            tracing::info!(path = "no", %error, "first {}", "no");
            warn!("second");
            error!(target: "no", name = f("no", "no"), "third");
            debug!(peer);
            bail::error!("no");
            log::trace!("fourth");
        "#;
        assert_eq!(texts(source, Class::Logs), ["first {}", "second", "third", "fourth"]);
    }

    #[test]
    fn error_texts_are_those_of_the_attribute_error() {
        let source = r#"
            #[error("one {0}")] #[error(transparent)] #[error("two", .x)]
            #[cfg(feature = "no")] #[expect(unused, reason = "no")]
            enum E { A }
        "#;
        assert_eq!(texts(source, Class::Errors), ["one {0}", "two"]);
        assert!(texts(source, Class::Help).is_empty());
    }

    #[test]
    fn help_texts_are_those_of_clap_attributes() {
        let source = r#"
            #[command(name = "no", about = "one", after_help = LATER)]
            struct A { #[arg(long, help = "two", value_name = "NO")] a: u8, #[other(help = "no")] b: u8 }
        "#;
        assert_eq!(texts(source, Class::Help), ["one", "two"]);
    }

    #[test]
    fn test_names_follow_test_attributes() {
        let source = r#"
            #[test] fn one() {}
            #[tokio::test(flavor = "no")] #[ignore = "no"] /// Doc.
            pub(crate) async fn two() {}
            #[cfg(test)] mod tests { fn no() {} }
            proptest! { #[test] fn three(x in 0..1) {} }
            fn no() { let test = [test]; }
            #[test_case] fn no() {}
            #[rustfmt::skip] fn no() {}
        "#;
        assert_eq!(texts(source, Class::Tests), ["one", "two", "three"]);
    }

    #[test]
    fn literals_hold_no_items() {
        let source = "let a = \"#[test] fn no() {} /// no\\n#[error(\\\"no\\\")] info!(\\\"no\\\")\";";
        assert_eq!(items(source), []);
    }
}
