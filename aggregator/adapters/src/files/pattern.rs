//! `rank_pattern` and `alpha_pattern`: names of modules, or regular expressions of them, and a value for each.
//!
//! A key is matched as PEFT does: `(.*\.)?(KEY)$` from the beginning of a module's name, and the first key that matches counts.
//! Expressions are read by `regex-lite`, which takes time in proportion to a name's length whatever the expression is.

use regex_lite::{Regex, RegexBuilder};

/// Most keys that are no plain names; with these bounds the longest configuration takes seconds.
const EXPRESSIONS_MAX: usize = 64;

/// Bytes that one of them may take.
const EXPRESSION_BYTES: usize = 1 << 14;

/// One key.
#[derive(Clone, Debug)]
enum Key {
    /// A name, or the end of one.
    Plain(Plain),
    /// An expression.
    Expression(Regex),
    /// An expression of a kind that is not read here.
    Unread(String),
}

/// A name whose points stand for any character, unless they are escaped.
#[derive(Clone, Debug)]
struct Plain {
    /// Characters; none where any fits.
    letters: Vec<Option<char>>,
    /// Whether it is all of a module's name.
    is_whole: bool,
}

impl Plain {
    /// Reads a key, if it has nothing of expressions but points, `\.`, and `^` and `$` at its ends.
    fn read(key: &str) -> Option<Self> {
        let (key, is_whole) = key.strip_prefix('^').map_or((key, false), |rest| (rest, true));
        let mut rest = key.strip_suffix('$').unwrap_or(key).chars();
        let mut letters = Vec::new();
        while let Some(letter) = rest.next() {
            letters.push(match letter {
                '.' => None,
                '\\' => Some(rest.next().filter(|letter| *letter == '.')?),
                letter if letter.is_ascii_alphanumeric() || letter == '_' || letter == '-' => Some(letter),
                _ => return None,
            });
        }
        (!letters.is_empty()).then_some(Self { letters, is_whole })
    }

    fn matches(&self, name: &str) -> bool {
        let mut rest = name.chars().rev();
        let fits = |own: &Option<char>, letter: char| own.map_or(letter != '\n', |own| own == letter);
        self.letters.iter().rev().all(|own| rest.next().is_some_and(|letter| fits(own, letter)))
            && rest.next().is_none_or(|before| before == '.' && !self.is_whole)
    }
}

/// Keys and their values, in the order of the file.
#[derive(Clone, Debug)]
pub(super) struct Patterns(Vec<(Key, f64)>);

impl Patterns {
    /// Reads the keys. Expressions beyond the first 64 are not read.
    pub(super) fn new<'a>(entries: impl Iterator<Item = (&'a str, f64)>) -> Self {
        let mut expressions = 0;
        let mut read = |key: &str| {
            if let Some(plain) = Plain::read(key) {
                return Key::Plain(plain);
            }
            expressions += 1;
            let text = format!(r"^(?:(.*\.)?({key})$)");
            let built = (expressions <= EXPRESSIONS_MAX)
                .then(|| RegexBuilder::new(&text).size_limit(EXPRESSION_BYTES).build().ok());
            built.flatten().map_or_else(|| Key::Unread(key.to_owned()), Key::Expression)
        };
        Self(entries.map(|(key, value)| (read(key), value)).collect())
    }

    /// The value for a module, if a key matches its name.
    ///
    /// # Errors
    /// A key before that one that cannot be read.
    pub(super) fn find(&self, name: &str) -> Result<Option<f64>, &str> {
        for (key, value) in &self.0 {
            let matches = match key {
                Key::Plain(key) => key.matches(name),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{EXPRESSIONS_MAX, Patterns};

    /// Python's `re.match(rf"(.*\.)?({key})$", name)` says the same.
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
            (r"self_attn\.q_proj", true),
            (r"self\.attn\.q_proj", false),
            (r"^model\.layers\.10\.self_attn\.q_proj$", true),
            (r"^self_attn\.q_proj$", false),
            (
                r"layers\.(0|1|2|3|4|5|6|7|8|9|10|11|12|13|14|15)\.(self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj",
                true,
            ),
            (r"model\.layers\.[0-9]+\.self_attn\.(?P<which>[qkv])_proj", true),
            ("", false),
            ("x) | (q_proj", false),
        ] {
            let patterns = Patterns::new([(key, 7.0)].into_iter());
            assert_eq!(patterns.find(name), Ok(matches.then_some(7.0)), "{key}");
        }
    }

    #[test]
    fn the_first_key_that_matches_counts() {
        let find = |keys: &[(&str, f64)]| {
            Patterns::new(keys.iter().copied()).find("a.q_proj").map_err(str::to_owned)
        };
        assert_eq!(find(&[("q_proj", 1.0), ("a.q_proj", 2.0)]), Ok(Some(1.0)));
        assert_eq!(find(&[("a.q_proj", 2.0), ("q_proj", 1.0)]), Ok(Some(2.0)));
        assert_eq!(find(&[("q_proj", 1.0), ("(?!x)", 2.0)]), Ok(Some(1.0)));
        assert_eq!(find(&[("(?!x)", 2.0), ("q_proj", 1.0)]), Err("(?!x)".to_owned()));
        assert_eq!(find(&[("(", 2.0)]), Err("(".to_owned()));
    }

    #[test]
    fn expressions_are_few_and_short() {
        let many: Vec<String> = (0..=EXPRESSIONS_MAX).map(|index| format!("a{index}|b{index}")).collect();
        let patterns = Patterns::new(many.iter().map(|key| (key.as_str(), 1.0)));
        assert_eq!(patterns.find("b63"), Ok(Some(1.0)));
        assert_eq!(patterns.find("b64"), Err("a64|b64"));
        let bomb = Patterns::new([("(((a{99}){99}){99}){99}", 1.0)].into_iter());
        assert!(bomb.find("a").is_err());
    }
}
