//! Nesting depth of a TOML text, checked before it is parsed: the parser bounds each kind of nesting by
//! itself, and all of them together could overflow the stack.

use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// Largest sum of key parts, tables and lists nested in each other; real files need far less.
pub(super) const DEPTH_MAX: usize = 32;

/// Offset at which a text is nested deeper than [`DEPTH_MAX`], if it is.
pub(super) fn too_deep(text: &str) -> Option<usize> {
    // Dots of the current key, within each open bracket.
    let mut dots: Vec<usize> = vec![0];
    let mut depth = 0_usize;
    for token in Source::new(text).lex() {
        match token.kind() {
            TokenKind::Dot => {
                depth += 1;
                dots.iter_mut().next_back().into_iter().for_each(|dots| *dots += 1);
            }
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => {
                depth += 1;
                dots.push(0);
            }
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket if dots.len() > 1 => {
                depth -= 1 + dots.pop().unwrap_or(0);
            }
            TokenKind::Comma | TokenKind::Newline => {
                depth -= dots.last_mut().map_or(0, std::mem::take);
            }
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Some(token.span().start());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{DEPTH_MAX, too_deep};

    #[test]
    fn depth_counts_keys_tables_and_lists() {
        let deep = |n: usize| format!("{}b = 1\n", "a.".repeat(n));
        assert_eq!(
            (too_deep(&deep(DEPTH_MAX)), too_deep(&deep(DEPTH_MAX + 1))),
            (None, Some(2 * DEPTH_MAX + 1))
        );
        let list = |n: usize| format!("a = {}1{}\n", "[".repeat(n), "]".repeat(n));
        assert_eq!((too_deep(&list(DEPTH_MAX)), too_deep(&list(DEPTH_MAX + 1))), (None, Some(4 + DEPTH_MAX)));
        // Nested in each other.
        let mixed = |n: usize| format!("{}b = {{ {}c = [[2]] }}\n", "a.".repeat(n), "a.".repeat(n));
        assert_eq!(too_deep(&mixed(14)), None);
        assert!(too_deep(&mixed(15)).is_some());
        // One after the other, and in texts that are no keys.
        let flat = format!(
            "{}[t]\nnumbers = [{}]\nword = \"{}\" # {}\n",
            deep(30).repeat(50),
            "1.5, ".repeat(99),
            "[".repeat(99),
            "[".repeat(99)
        );
        assert_eq!(too_deep(&flat), None);
        assert_eq!(too_deep(&"]".repeat(99)), None);
    }
}
