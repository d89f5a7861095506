//! `rank_pattern` and `alpha_pattern`: names of modules, or regular expressions of them, and a value for each.
//!
//! A key is matched as PEFT does: `(.*\.)?(KEY)$` from the beginning of a module's name, and the first key that matches counts.
//! Expressions are read by `regex-lite`, which takes time in proportion to a name's length whatever the expression is.

use regex_lite::{Regex, RegexBuilder};

/// Most keys that are no plain names.
const EXPRESSIONS_MAX: usize = 256;

/// Bytes that one of them may take.
const EXPRESSION_BYTES: usize = 1 << 16;

/// One key.
#[derive(Clone, Debug)]
enum Key {
    /// A name, or the end of one; its points stand for any character, as they do in an expression.
    Plain(Vec<char>),
    /// An expression.
    Expression(Regex),
    /// An expression of a kind that is not read here.
    Unread(String),
}

/// Keys and their values, in the order of the file.
#[derive(Clone, Debug)]
pub(super) struct Patterns(Vec<(Key, f64)>);

impl Patterns {
    /// Reads the keys; or says how many expressions there are if they are too many.
    pub(super) fn new<'a>(entries: impl Iterator<Item = (&'a str, f64)>) -> Result<Self, usize> {
        let plain = |key: &str| {
            !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        };
        let entries: Vec<(&str, f64)> = entries.collect();
        let expressions = entries.iter().filter(|(key, _)| !plain(key)).count();
        if expressions > EXPRESSIONS_MAX {
            return Err(expressions);
        }
        let read = |key: &str| {
            if plain(key) {
                return Key::Plain(key.chars().collect());
            }
            let built =
                RegexBuilder::new(&format!(r"^(?:(.*\.)?({key})$)")).size_limit(EXPRESSION_BYTES).build();
            built.map_or_else(|_| Key::Unread(key.to_owned()), Key::Expression)
        };
        Ok(Self(entries.into_iter().map(|(key, value)| (read(key), value)).collect()))
    }

    /// The value for a module, if a key matches its name.
    ///
    /// # Errors
    /// A key before that one that cannot be read.
    pub(super) fn find(&self, name: &str) -> Result<Option<f64>, &str> {
        for (key, value) in &self.0 {
            let matches = match key {
                Key::Plain(key) => ends_with(name, key),
                Key::Expression(expression) => expression.is_match(name),
                Key::Unread(key) => return Err(key),
            };
            if matches {
                return Ok(Some(*value));
            }
        }
        Ok(None)
    }
}

/// Whether a name is this, or ends with a point and this.
fn ends_with(name: &str, key: &[char]) -> bool {
    let mut letters = name.chars().rev();
    let same = |key: &char, letter: char| *key == letter || *key == '.' && letter != '\n';
    key.iter().rev().all(|key| letters.next().is_some_and(|letter| same(key, letter)))
        && letters.next().is_none_or(|before| before == '.')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{EXPRESSIONS_MAX, Patterns};

    /// What Python's `re.match(rf"(.*\.)?({key})$", name)` says.
    #[test]
    fn keys_match_as_in_peft() {
        let name = "model.layers.10.self_attn.q_proj";
        for (key, matches) in [
            ("q_proj", true),
            ("proj", false),
            ("self_attn.q_proj", true),
            ("attn.q_proj", false),
            ("self_attn.q", false),
            ("model.layers.10.self_attn.q_proj", true),
            ("self_attn_q_proj", false),
            ("self.attn.q_proj", true),
            ("^q_proj", false),
            ("^model.layers.10.self_attn.q_proj", true),
            ("q_proj$", true),
            (r"layers\.10\.self_attn\.q_proj", true),
            (r"layers\.1\.self_attn\.q_proj", false),
            (r".*\.10\..*q_proj", true),
            (r"layers\.\d+\.self_attn\.(q|v)_proj", true),
            ("q_proj|v_proj", true),
            ("v_proj|k_proj", false),
            ("[qv]_proj", true),
            ("", false),
            ("x) | (q_proj", false),
        ] {
            let patterns = Patterns::new([(key, 7.0)].into_iter()).unwrap();
            assert_eq!(patterns.find(name), Ok(matches.then_some(7.0)), "{key}");
        }
    }

    #[test]
    fn the_first_key_that_matches_counts() {
        let find = |keys: &[(&str, f64)]| {
            Patterns::new(keys.iter().copied()).unwrap().find("a.q_proj").map_err(str::to_owned)
        };
        assert_eq!(find(&[("q_proj", 1.0), ("a.q_proj", 2.0)]), Ok(Some(1.0)));
        assert_eq!(find(&[("a.q_proj", 2.0), ("q_proj", 1.0)]), Ok(Some(2.0)));
        assert_eq!(find(&[("q_proj", 1.0), ("(?!x)", 2.0)]), Ok(Some(1.0)));
        assert_eq!(find(&[("(?!x)", 2.0), ("q_proj", 1.0)]), Err("(?!x)".to_owned()));
        assert_eq!(find(&[("(", 2.0)]), Err("(".to_owned()));
    }

    #[test]
    fn expressions_are_few_and_short() {
        let many: Vec<String> = (0..=EXPRESSIONS_MAX).map(|index| format!("a{index}|b")).collect();
        assert_eq!(Patterns::new(many.iter().map(|key| (key.as_str(), 1.0))).unwrap_err(), many.len());
        let bomb = Patterns::new([("(((a{99}){99}){99}){99}", 1.0)].into_iter()).unwrap();
        assert!(bomb.find("a").is_err());
    }
}
