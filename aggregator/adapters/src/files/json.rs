//! JSON values of configurations. Maps keep the order of the file, duplicate keys are errors, and `16` equals
//! `16.0`.
//!
//! `serde_json::Value` is not suitable: it accepts duplicate keys, and its order of keys depends on the
//! feature `preserve_order`, which any crate of a build may enable.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Magnitude up to which f64 represents every whole number: 2^53.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Flag(bool),
    /// Whole number, including a number written as `16.0`.
    Whole(i128),
    /// Number that is not whole, or is written as a float above 2^53.
    Real(f64),
    /// String.
    Text(String),
    /// List.
    List(Vec<Self>),
    /// Map in the order of the file.
    Map(Vec<(String, Self)>),
}

impl Json {
    /// True for the values that mean "off" in PEFT: null, false, and an empty list or map.
    pub(super) fn is_off(&self) -> bool {
        match self {
            Self::Null | Self::Flag(false) => true,
            Self::List(values) => values.is_empty(),
            Self::Map(entries) => entries.is_empty(),
            _ => false,
        }
    }

    /// Copy with the keys of all maps in ascending order.
    pub(super) fn sorted(&self) -> Self {
        match self {
            Self::List(values) => Self::List(values.iter().map(Self::sorted).collect()),
            Self::Map(entries) => {
                let mut entries: Vec<_> =
                    entries.iter().map(|(key, value)| (key.clone(), value.sorted())).collect();
                entries.sort_by(|(first, _), (second, _)| first.cmp(second));
                Self::Map(entries)
            }
            other => other.clone(),
        }
    }

    /// Value as f64, if it is a number.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            #[allow(clippy::cast_precision_loss, reason = "alphas and ranks are small")]
            Self::Whole(number) => Some(*number as f64),
            Self::Real(number) => Some(*number),
            _ => None,
        }
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = |text: &str| serde_json::Value::from(text);
        match self {
            Self::Null => f.write_str("null"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Real(number) => write!(f, "{number}"),
            Self::Text(string) => write!(f, "{}", quote(string)),
            Self::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
            Self::Map(entries) => {
                f.write_str("{")?;
                for (index, (key, value)) in entries.iter().enumerate() {
                    write!(f, "{}{}:{value}", if index == 0 { "" } else { "," }, quote(key))?;
                }
                f.write_str("}")
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

/// Visitor that accepts any JSON value.
struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Json, E> {
        Ok(Json::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Whole(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Whole(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        #[allow(clippy::cast_possible_truncation, reason = "whole, and below 2^53")]
        let integer = number as i128;
        let is_whole = number.fract() == 0.0 && number.abs() <= WHOLE_MAX;
        Ok(if is_whole { Json::Whole(integer) } else { Json::Real(number) })
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Json, S::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            values.push(value);
        }
        Ok(Json::List(values))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Json, M::Error> {
        let mut entries = Vec::new();
        let mut keys = std::collections::HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !keys.insert(key.clone()) {
                return Err(M::Error::custom(format!("duplicate field `{}`", key.escape_debug())));
            }
            entries.push((key, map.next_value()?));
        }
        Ok(Json::Map(entries))
    }
}
