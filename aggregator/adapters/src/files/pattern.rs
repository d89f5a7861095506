//! Matcher of `rank_pattern` and `alpha_pattern`: maps from module names or regular expressions to values.
//!
//! Keys match as in PEFT: the expression `(.*\.)?(KEY)$` is matched from the beginning of a module's name,
//! and the first matching key applies. Regular expressions are evaluated by `regex-lite`, in a time that is
//! linear in the length of the name.

use regex_lite::{Regex, RegexBuilder};

/// Largest number of keys that are regular expressions. With this limit and [`EXPRESSION_BYTES`], the largest
/// configuration is processed in seconds.
const EXPRESSIONS_MAX: usize = 64;

/// Largest memory of one compiled expression, in bytes.
const EXPRESSION_BYTES: usize = 1 << 14;

/// Compiled key of a pattern.
#[derive(Clone, Debug)]
enum Key {
    /// Module name, or the end of a module name.
    Plain(PlainName),
    /// Regular expression.
    Expression(Regex),
    /// Regular expression that `regex-lite` does not support, or that exceeds the limits.
    Unsupported(String),
}

/// Name in which a dot stands for any character unless it is escaped.
#[derive(Clone, Debug)]
struct PlainName {
    /// Characters of the name; `None` matches any character except a line break.
    letters: Vec<Option<char>>,
    /// True if the key must be the whole name of a module (`^`).
    is_whole: bool,
}

impl PlainName {
    /// Parses a key whose only regular syntax is dots, `\.`, a leading `^` and a trailing `$`. Returns `None`
    /// for other keys.
    fn parse(key: &str) -> Option<Self> {
        let (key, is_whole) = key.strip_prefix('^').map_or((key, false), |name| (name, true));
        let mut remaining = key.strip_suffix('$').unwrap_or(key).chars();
        let mut letters = Vec::new();
        while let Some(letter) = remaining.next() {
            letters.push(match letter {
                '.' => None,
                '\\' => Some(remaining.next().filter(|letter| *letter == '.')?),
                letter if letter.is_ascii_alphanumeric() || letter == '_' || letter == '-' => Some(letter),
                _ => return None,
            });
        }
        (!letters.is_empty()).then_some(Self { letters, is_whole })
    }

    /// True if the key matches the name of a module.
    fn matches(&self, name: &str) -> bool {
        let mut remaining = name.chars().rev();
        let matches_letter = |expected: &Option<char>, letter: char| {
            expected.map_or(letter != '\n', |expected| expected == letter)
        };
        self.letters
            .iter()
            .rev()
            .all(|expected| remaining.next().is_some_and(|letter| matches_letter(expected, letter)))
            && remaining.next().is_none_or(|preceding| preceding == '.' && !self.is_whole)
    }
}

/// Keys with their values, in the order of the file.
#[derive(Clone, Debug)]
pub(super) struct Patterns(Vec<(Key, f64)>);

impl Patterns {
    /// Compiles the keys. Regular expressions after the first [`EXPRESSIONS_MAX`] count as unsupported.
    pub(super) fn new<'a>(entries: impl Iterator<Item = (&'a str, f64)>) -> Self {
        let mut expressions = 0;
        let mut compile = |key: &str| {
            if let Some(name) = PlainName::parse(key) {
                return Key::Plain(name);
            }
            expressions += 1;
            let anchored = format!(r"^(?:(.*\.)?({key})$)");
            let compiled = (expressions <= EXPRESSIONS_MAX)
                .then(|| RegexBuilder::new(&anchored).size_limit(EXPRESSION_BYTES).build().ok());
            compiled.flatten().map_or_else(|| Key::Unsupported(key.to_owned()), Key::Expression)
        };
        Self(entries.map(|(key, value)| (compile(key), value)).collect())
    }

    /// Value of the first key that matches a module's name.
    ///
    /// # Errors
    /// An unsupported key before the first matching key, because the unsupported key might match too.
    pub(super) fn find(&self, name: &str) -> Result<Option<f64>, &str> {
        for (key, value) in &self.0 {
            let matches = match key {
                Key::Plain(key) => key.matches(name),
                Key::Expression(expression) => expression.is_match(name),
                Key::Unsupported(key) => return Err(key),
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

    /// The expected values are the results of Python's `re.match(rf"(.*\.)?({key})$", name)`.
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
    fn first_matching_key_counts() {
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
    fn expressions_are_bounded_in_number_and_size() {
        let many: Vec<String> = (0..=EXPRESSIONS_MAX).map(|index| format!("a{index}|b{index}")).collect();
        let patterns = Patterns::new(many.iter().map(|key| (key.as_str(), 1.0)));
        assert_eq!(patterns.find("b63"), Ok(Some(1.0)));
        assert_eq!(patterns.find("b64"), Err("a64|b64"));
        let bomb = Patterns::new([("(((a{99}){99}){99}){99}", 1.0)].into_iter());
        assert!(bomb.find("a").is_err());
    }
}
