//! Settings of a configuration that a program sets in code, without a file.

use toml_edit::{Array, Value};

use super::source::{Problem, Source};

/// Settings by dotted key, which replace a file. The reader checks them and supplies defaults as for a file.
#[derive(Clone, Debug, Default)]
pub struct Values(Vec<(String, Value)>);

impl Values {
    /// Adds or replaces the setting with the dotted key `key`.
    pub fn set(&mut self, key: &str, value: impl Into<SettingValue>) {
        let SettingValue(value) = value.into();
        match self.0.iter_mut().find(|(existing, _)| existing == key) {
            Some((_, old_value)) => *old_value = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Creates the source that the reader takes. `name` replaces the file name in error messages.
    ///
    /// # Errors
    /// [`Problem`] if a key is not a dotted key, or if a part of it is already set to a value that is no
    /// table.
    pub fn source(self, name: &str) -> Result<Source, Problem> {
        Source::from_values(name, self.0)
    }
}

/// Value of a setting in code: a boolean, a number, a string, or a list of these.
#[derive(Clone, Debug)]
pub struct SettingValue(Value);

impl From<bool> for SettingValue {
    fn from(flag: bool) -> Self {
        Self(flag.into())
    }
}

impl From<f64> for SettingValue {
    fn from(number: f64) -> Self {
        Self(number.into())
    }
}

impl From<&str> for SettingValue {
    fn from(word: &str) -> Self {
        Self(word.into())
    }
}

impl From<String> for SettingValue {
    fn from(word: String) -> Self {
        Self(word.into())
    }
}

macro_rules! integers {
    ($($Integer:ty),+) => {
        $(impl From<$Integer> for SettingValue {
            fn from(integer: $Integer) -> Self {
                // TOML has no integers beyond i64, and no key allows one. The digits are kept for the error
                // message.
                Self(i64::try_from(integer).map_or_else(|_| integer.to_string().into(), Value::from))
            }
        })+
    };
}

integers!(u8, u16, u32, u64, usize, i32, i64);

impl<T: Into<SettingValue>> From<Vec<T>> for SettingValue {
    fn from(values: Vec<T>) -> Self {
        Self(values.into_iter().map(|value| value.into().0).collect::<Array>().into())
    }
}

impl<T: Into<SettingValue>, const N: usize> From<[T; N]> for SettingValue {
    fn from(values: [T; N]) -> Self {
        Vec::from(values).into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn values_read_as_the_same_keys_of_a_file() {
        let mut values = Values::default();
        values.set("seed", 7);
        values.set("model.hidden", [32u16, 16]);
        values.set("model.kind", "cnn");
        values.set("model.kind", "mlp");
        values.set("algorithm.step_size", 0.1);
        let from_values = values.source("the program").unwrap();
        let text = "seed = 7\nmodel.hidden = [32, 16]\nmodel.kind = \"mlp\"\nalgorithm.step_size = 0.1\n";
        let file = Source::parse("file", text, &[]).unwrap();
        assert_eq!(from_values.given_keys(), file.given_keys());
        for source in [&from_values, &file] {
            let root = source.root();
            assert_eq!(root.integer("seed", None, 0..=9).unwrap(), 7);
            let model = root.section("model").unwrap();
            assert_eq!(model.string("kind", None, "").unwrap(), "mlp");
            let widths = model.list("hidden", "", toml_edit::Value::as_integer).unwrap();
            assert_eq!(widths, Some(vec![32, 16]));
            let step = root.section("algorithm").unwrap().number("step_size", None, 0.0..=1.0);
            assert_eq!(step.unwrap().to_bits(), 0.1_f64.to_bits());
        }
    }

    #[test]
    fn errors_name_the_key_and_the_value() {
        let problem = |key: &str, value: SettingValue| {
            let mut values = Values::default();
            values.set(key, value);
            let source = match values.source("the program") {
                Ok(source) => source,
                Err(problem) => return problem.to_string(),
            };
            let root = source.root();
            let model = root.section("model").unwrap();
            model.size("k", None, 1..=9).unwrap_err().to_string()
        };
        assert_eq!(problem("model.k", 12.into()), "model.k: found 12, allowed: an integer from 1 to 9");
        assert_eq!(
            problem("model.k", u64::MAX.into()),
            "model.k: found \"18446744073709551615\", allowed: an integer from 1 to 9"
        );
        assert_eq!(
            problem("model.k", f64::NAN.into()),
            "model.k: found nan, allowed: an integer from 1 to 9"
        );
        let missing = "the program: model.k is missing, allowed: an integer from 1 to 9";
        assert_eq!(problem("seed", 1.into()), missing);
        assert_eq!(problem("model..k", 1.into()), "the program: \"model..k\" is not a dotted key");
    }
}
