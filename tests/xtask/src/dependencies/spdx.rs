//! Parser of licence expressions (SPDX): names joined by `OR`, `AND` and `WITH`, with brackets. A slash is an
//! old form of `OR`.

use std::collections::BTreeSet;

/// Returns whether a crate may be used: true if the allowed names satisfy the expression.
///
/// # Errors
/// A message if the text is not an expression.
pub fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, position: 0, allowed };
    let satisfied = parser.evaluate_any_of()?;
    match parser.peek() {
        None => Ok(satisfied),
        Some(word) => Err(format!("found {word:?} in {expression:?} where it should end")),
    }
}

/// Parser that evaluates an expression.
struct Parser<'a> {
    words: &'a [&'a str],
    /// Index of the next word.
    position: usize,
    allowed: &'a BTreeSet<String>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.position).copied()
    }

    /// Consumes a word if it is the next one.
    fn consume(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        self.position += usize::from(is_next);
        is_next
    }

    /// Evaluates terms that are joined by `OR`.
    fn evaluate_any_of(&mut self) -> Result<bool, String> {
        let mut satisfied = self.evaluate_all_of()?;
        while self.consume("OR") {
            satisfied |= self.evaluate_all_of()?;
        }
        Ok(satisfied)
    }

    /// Evaluates terms that are joined by `AND`, which binds more closely than `OR`.
    fn evaluate_all_of(&mut self) -> Result<bool, String> {
        let mut satisfied = self.evaluate_term()?;
        while self.consume("AND") {
            satisfied &= self.evaluate_term()?;
        }
        Ok(satisfied)
    }

    /// Evaluates a name, possibly with an exception, or an expression in brackets.
    fn evaluate_term(&mut self) -> Result<bool, String> {
        if self.consume("(") {
            let satisfied = self.evaluate_any_of()?;
            return if self.consume(")") { Ok(satisfied) } else { Err("a bracket is not closed".to_owned()) };
        }
        let name = self.peek().filter(|word| !["OR", "AND", "WITH", ")"].contains(word));
        let name = name.ok_or_else(|| "the name of a licence is missing".to_owned())?;
        self.position += 1;
        if !self.consume("WITH") {
            return Ok(self.allowed.contains(name));
        }
        let exception = self.peek().ok_or_else(|| "the name of an exception is missing".to_owned())?;
        self.position += 1;
        // An exception grants further rights, so the licence alone is sufficient.
        Ok(self.allowed.contains(name) || self.allowed.contains(&format!("{name} WITH {exception}")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn allowed(expression: &str) -> Result<bool, String> {
        is_allowed(expression, &["MIT", "Apache-2.0", "Zlib"].map(str::to_owned).into())
    }

    #[test]
    fn one_of_several_is_enough_and_all_of_several_are_needed() {
        for expression in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/GPL-3.0",
            "MIT / GPL-3.0",
            "MIT AND Zlib",
            "(GPL-3.0 OR MIT) AND Zlib",
            "GPL-3.0 AND X OR MIT",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(allowed(expression).unwrap(), "{expression}");
        }
        for expression in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR Zlib) AND X",
            "GPL-2.0 WITH Classpath-exception-2.0",
            "mit",
        ] {
            assert!(!allowed(expression).unwrap(), "{expression}");
        }
    }

    #[test]
    fn other_texts_are_errors() {
        for expression in ["", "MIT OR", "(MIT", "MIT)", "MIT Zlib", "WITH MIT", "MIT WITH"] {
            assert!(allowed(expression).is_err(), "{expression}");
        }
    }
}
