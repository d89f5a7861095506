//! Lexer for Rust source text that keeps comments and the contents of string literals.
//!
//! The lexer never fails: in text that no compiler would accept, a token may end early or at the end of the
//! file. It makes only the distinctions that the counter needs, so numbers and character literals are
//! skipped.

/// One piece of source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Line of the first character, from 1.
    pub line: usize,
    /// Kind and text.
    pub kind: Kind,
}

/// Kinds of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Identifier or keyword, without `r#`.
    Word(String),
    /// String literal with escapes replaced.
    Text(String),
    /// Any other single character of code.
    Sign(char),
    /// Doc comment: `///` and `/**` are outer, `//!` and `/*!` are inner.
    Doc {
        /// Whether the comment is `//!` or `/*!`.
        inner: bool,
        /// Text after the comment marker.
        text: String,
    },
    /// Plain comment, text after the marker.
    Comment(String),
}

/// Splits source text into tokens.
#[must_use]
pub fn tokens(source: &str) -> Vec<Token> {
    let mut lexer = Lexer { text: source.chars().collect(), position: 0, line: 1, tokens: Vec::new() };
    if source.starts_with("#!") && !source.starts_with("#![") {
        lexer.skip_line();
    }
    while lexer.read_token() {}
    lexer.tokens
}

/// Position in the source text, and the tokens so far.
struct Lexer {
    text: Vec<char>,
    /// Index of the next character.
    position: usize,
    line: usize,
    tokens: Vec<Token>,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.position + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek(0)?;
        self.position += 1;
        if c == '\n' {
            self.line += 1;
        }
        Some(c)
    }

    fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.next();
        }
    }

    /// Reads up to the end of the line, without the line break.
    fn skip_line(&mut self) -> String {
        let mut text = String::new();
        while let Some(c) = self.peek(0)
            && c != '\n'
        {
            text.push(c);
            self.next();
        }
        text.trim_end_matches('\r').to_owned()
    }

    fn push(&mut self, line: usize, kind: Kind) {
        self.tokens.push(Token { line, kind });
    }

    /// Reads one token or one white space; returns false at the end of the text.
    fn read_token(&mut self) -> bool {
        let Some(c) = self.peek(0) else { return false };
        let line = self.line;
        match c {
            '/' if self.peek(1) == Some('/') => self.read_line_comment(line),
            '/' if self.peek(1) == Some('*') => self.read_block_comment(line),
            '"' => self.read_string(line),
            '\'' => self.skip_quote(),
            _ if c.is_alphabetic() || c == '_' => self.read_word(line),
            _ if c.is_ascii_digit() => self.skip_number(),
            _ if c.is_whitespace() => self.skip(1),
            _ => {
                self.skip(1);
                self.push(line, Kind::Sign(c));
            }
        }
        true
    }

    /// Reads a comment that ends with its line.
    fn read_line_comment(&mut self, line: usize) {
        self.skip(2);
        let text = self.skip_line();
        // A comment that begins with four slashes is a plain comment.
        let outer_doc = text.strip_prefix('/').filter(|doc_text| !doc_text.starts_with('/'));
        let kind = match (outer_doc, text.strip_prefix('!')) {
            (Some(doc), _) => Kind::Doc { inner: false, text: doc.to_owned() },
            (None, Some(doc)) => Kind::Doc { inner: true, text: doc.to_owned() },
            (None, None) => Kind::Comment(text),
        };
        self.push(line, kind);
    }

    /// Reads a block comment, which may contain others.
    fn read_block_comment(&mut self, line: usize) {
        self.skip(2);
        let mut text = String::new();
        let mut depth = 1;
        while let Some(c) = self.next() {
            match (c, self.peek(0)) {
                ('/', Some('*')) => {
                    depth += 1;
                    self.skip(1);
                }
                ('*', Some('/')) => {
                    depth -= 1;
                    self.skip(1);
                    if depth == 0 {
                        break;
                    }
                }
                _ => text.push(c),
            }
        }
        // Lines of a block comment often begin with a star.
        let plain = |text: &str| {
            text.lines().map(|line| line.trim_start().trim_start_matches('*')).collect::<Vec<_>>().join("\n")
        };
        let outer_doc =
            text.strip_prefix('*').filter(|doc_text| !doc_text.starts_with('*') && !doc_text.is_empty());
        let kind = match (outer_doc, text.strip_prefix('!')) {
            (Some(doc), _) => Kind::Doc { inner: false, text: plain(doc) },
            (None, Some(doc)) => Kind::Doc { inner: true, text: plain(doc) },
            (None, None) => Kind::Comment(plain(&text)),
        };
        self.push(line, kind);
    }

    /// Reads a literal that begins at the current quote.
    fn read_string(&mut self, line: usize) {
        self.skip(1);
        let mut text = String::new();
        while let Some(c) = self.next() {
            match c {
                '"' => break,
                '\\' => match self.next() {
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some('\n') => {
                        while self.peek(0).is_some_and(char::is_whitespace) {
                            self.skip(1);
                        }
                    }
                    // An unknown escape becomes a character that is not part of a word.
                    Some(other @ ('"' | '\\' | '\'')) => text.push(other),
                    _ => text.push('\u{fffd}'),
                },
                _ => text.push(c),
            }
        }
        self.push(line, Kind::Text(text));
    }

    /// Reads a raw literal from its first `#` or quote. Returns false if no literal begins there.
    fn read_raw_string(&mut self, line: usize) -> bool {
        let mut hashes = 0;
        while self.peek(hashes) == Some('#') {
            hashes += 1;
        }
        if self.peek(hashes) != Some('"') {
            return false;
        }
        self.skip(hashes + 1);
        let mut text = String::new();
        while let Some(c) = self.next() {
            if c == '"' && (0..hashes).all(|ahead| self.peek(ahead) == Some('#')) {
                self.skip(hashes);
                break;
            }
            text.push(c);
        }
        self.push(line, Kind::Text(text));
        true
    }

    /// Skips a character literal or a lifetime.
    fn skip_quote(&mut self) {
        self.skip(1);
        match (self.peek(0), self.peek(1)) {
            (Some('\\'), _) => {
                self.skip(2);
                while let Some(c) = self.next()
                    && c != '\''
                    && c != '\n'
                {}
            }
            (Some(_), Some('\'')) => self.skip(2),
            // The name of a lifetime is not a word of the code.
            _ => {
                while self.peek(0).is_some_and(|c| c.is_alphanumeric() || c == '_') {
                    self.skip(1);
                }
            }
        }
    }

    /// Reads a word, or a literal with a prefix.
    fn read_word(&mut self, line: usize) {
        let mut word = String::new();
        while let Some(c) = self.peek(0)
            && (c.is_alphanumeric() || c == '_')
        {
            word.push(c);
            self.next();
        }
        match (word.as_str(), self.peek(0)) {
            ("b" | "c", Some('"')) => self.read_string(line),
            ("b", Some('\'')) => self.skip_quote(),
            ("r" | "br" | "cr", Some('"' | '#')) if self.read_raw_string(line) => {}
            // This is the prefix of a raw identifier.
            ("r", Some('#')) => self.skip(1),
            _ => self.push(line, Kind::Word(word)),
        }
    }

    fn skip_number(&mut self) {
        while let Some(c) = self.peek(0)
            && (c.is_alphanumeric() || c == '_')
        {
            self.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(source: &str) -> Vec<Kind> {
        tokens(source).into_iter().map(|token| token.kind).collect()
    }

    fn texts(source: &str) -> Vec<String> {
        let text = |kind| match kind {
            Kind::Text(text) => Some(text),
            _ => None,
        };
        kinds(source).into_iter().filter_map(text).collect()
    }

    fn docs(source: &str) -> Vec<String> {
        let text = |kind| match kind {
            Kind::Doc { text, .. } => Some(text),
            _ => None,
        };
        kinds(source).into_iter().filter_map(text).collect()
    }

    #[test]
    fn comment_markers_inside_literals_are_text() {
        for source in [
            r#"let a = "/// What is not a doc";"#,
            r#"let a = "\"/// What";"#,
            "let a = r#\"x\" /// What\"#;",
            "let a = b\"// x\"; let b = c\"/* x\";",
            "let a = '\"'; let b = \"/// What\"; let c = '\\'';",
            "fn f<'a>(x: &'a str) -> &'a str { \"/// x\" }",
        ] {
            assert_eq!(docs(source), Vec::<String>::new(), "{source}");
            assert!(!kinds(source).iter().any(|kind| matches!(kind, Kind::Comment(_))), "{source}");
        }
    }

    #[test]
    fn quotes_inside_comments_open_no_literal() {
        let source = "/// A \"half\nfn f() {} // don't\nlet a = \"x\"; /* \" */ let b = \"y\";";
        assert_eq!(texts(source), ["x", "y"]);
        assert_eq!(docs(source), [" A \"half"]);
    }

    #[test]
    fn doc_markers_differ_from_plain_ones() {
        assert_eq!(
            docs("/// a\n//! b\n//// c\n// d\n/** e */\n/*! f */\n/*** g */\n/**/\n/* h */"),
            [" a", " b", "e ", "f "]
        );
    }

    #[test]
    fn block_comments_nest() {
        assert_eq!(
            kinds("/* a /* b */ c */ x"),
            [Kind::Comment("a  b  c ".to_owned()), Kind::Word("x".to_owned())]
        );
    }

    #[test]
    fn literals_are_unescaped_and_joined_over_line_ends() {
        assert_eq!(texts("\"one \\\n    two\\n\\\"three\\\"\""), ["one two\n\"three\""]);
        assert_eq!(texts(r####"r##"a"#b"##"####), ["a\"#b"]);
    }

    #[test]
    fn lifetimes_and_characters_end_where_they_should() {
        assert_eq!(texts("f::<'static>('x', '\\u{1F}', b'\\'', \"t\")"), ["t"]);
    }

    #[test]
    fn lines_are_counted_through_every_kind_of_token() {
        let source = "/* 1\n2 */\n\"3\n4\"\nr\"5\n6\"\n'\\n'\nword";
        let last = tokens(source).pop();
        assert_eq!(last, Some(Token { line: 8, kind: Kind::Word("word".to_owned()) }));
    }

    #[test]
    fn unfinished_text_ends_with_the_file() {
        for source in ["\"abc", "/* abc", "r#\"abc", "'", "'\\", "#!shebang", "r#", "b"] {
            let _ = tokens(source);
        }
    }
}
