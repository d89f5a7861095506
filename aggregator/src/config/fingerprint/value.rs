//! Values of settings, as written in TOML.

use std::fmt;
use std::str::FromStr;

use toml_edit::Value;

/// TOML value, or text that is not valid TOML.
#[derive(Clone, Debug)]
pub(super) enum Setting {
    /// Boolean.
    Flag(bool),
    /// Integer.
    Integer(i64),
    /// Float.
    Number(f64),
    /// String.
    Word(String),
    /// Array.
    List(Vec<Setting>),
    /// Text that is not a value of `fleet.toml`.
    Other(String),
}

impl Setting {
    /// Parses a TOML value; any other text becomes [`Self::Other`].
    pub(super) fn parse(text: &str) -> Self {
        match Value::from_str(text) {
            Ok(value) => Self::from_toml(&value),
            Err(_) => Self::Other(text.to_owned()),
        }
    }

    /// Converts a value of a parsed TOML document.
    pub(super) fn from_toml(value: &Value) -> Self {
        match value {
            Value::Boolean(flag) => Self::Flag(*flag.value()),
            Value::Integer(integer) => Self::Integer(*integer.value()),
            Value::Float(number) => Self::Number(*number.value()),
            Value::String(word) => Self::Word(word.value().clone()),
            Value::Array(values) => Self::List(values.iter().map(Self::from_toml).collect()),
            other => Self::Other(other.clone().decorated("", "").to_string()),
        }
    }

    /// Converts an f32 to the f64 with the shortest decimal form that identifies the f32.
    pub(super) fn from_f32(value: f32) -> Self {
        // The formatted number always parses.
        Self::Number(value.to_string().parse().unwrap_or(f64::from(value)))
    }
}

/// Compares values by meaning: the integer 1 equals the float 1.0.
impl PartialEq for Setting {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Flag(a), Self::Flag(b)) => a == b,
            (Self::Integer(a), Self::Integer(b)) => a == b,
            (Self::Number(a), Self::Number(b)) => a == b,
            (Self::Integer(integer), Self::Number(number))
            | (Self::Number(number), Self::Integer(integer)) => is_equal(*integer, *number),
            (Self::Word(a), Self::Word(b)) | (Self::Other(a), Self::Other(b)) => a == b,
            (Self::List(a), Self::List(b)) => a == b,
            _ => false,
        }
    }
}

/// Returns true if an integer and a float are the same number. The comparison is exact even if no f64 equals
/// the integer.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "what is lost is compared")]
fn is_equal(integer: i64, number: f64) -> bool {
    integer as f64 == number && number as i64 == integer
}

/// Formats the value as in TOML.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{}", Value::from(*flag)),
            Self::Integer(integer) => write!(f, "{}", Value::from(*integer)),
            Self::Number(number) if *number == 0.0 || (1e-4..1e7).contains(&number.abs()) => {
                write!(f, "{}", Value::from(*number))
            }
            Self::Number(number) => write!(f, "{number:e}"),
            Self::Word(word) => write!(f, "{}", Value::from(word.as_str())),
            Self::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl From<bool> for Setting {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<&str> for Setting {
    fn from(word: &str) -> Self {
        Self::Word(word.to_owned())
    }
}

impl From<f64> for Setting {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<f32> for Setting {
    fn from(number: f32) -> Self {
        Self::from_f32(number)
    }
}

impl From<u64> for Setting {
    fn from(integer: u64) -> Self {
        // No key allows a larger value.
        Self::Integer(i64::try_from(integer).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Setting {
    fn from(integer: u32) -> Self {
        u64::from(integer).into()
    }
}

impl From<u16> for Setting {
    fn from(integer: u16) -> Self {
        u64::from(integer).into()
    }
}

impl From<usize> for Setting {
    fn from(integer: usize) -> Self {
        u64::try_from(integer).unwrap_or(u64::MAX).into()
    }
}

impl<T: Into<Setting>> From<Vec<T>> for Setting {
    fn from(values: Vec<T>) -> Self {
        Self::List(values.into_iter().map(Into::into).collect())
    }
}
