//! Check of the nesting depth of a TOML text before it is parsed. The parser limits each kind of nesting
//! separately, and a combination of all kinds could still overflow the stack.

use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// Largest sum of nested key parts, tables and lists. Real files need far less.
pub(super) const DEPTH_MAX: usize = 32;

/// Offset of the first token that is nested deeper than [`DEPTH_MAX`]; `None` if there is none.
pub(super) fn too_deep(text: &str) -> Option<usize> {
    // Number of dots of the current key, for each open bracket.
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
        // Keys, tables and lists that are nested in each other add up.
        let mixed = |n: usize| format!("{}b = {{ {}c = [[2]] }}\n", "a.".repeat(n), "a.".repeat(n));
        assert_eq!(too_deep(&mixed(14)), None);
        assert!(too_deep(&mixed(15)).is_some());
        // Consecutive keys and list elements do not add up, and brackets in strings and comments do not
        // count.
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
