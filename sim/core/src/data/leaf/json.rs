//! Parser of a JSON file of LEAF, with the samples of some users.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::super::DataError;

/// Index of the field of a tweet that contains the text.
const TEXT: usize = 4;

/// Samples of one user: numeric rows or texts, with their labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// Rows of the numeric samples.
    pub rows: Vec<Vec<f32>>,
    /// Texts of the samples.
    pub texts: Vec<String>,
    /// Class of each sample.
    pub labels: Vec<u8>,
}

/// Users and their samples, by name.
pub type Users = BTreeMap<String, Samples>;

/// Parses the content of a file; `name` is its path for messages.
///
/// # Errors
/// [`DataError`] naming the file and the line and column, or the user and the index of the sample, if the
/// file is not JSON of this format or its fields contradict each other.
pub fn parse(bytes: &[u8], name: &str) -> Result<Users, DataError> {
    let data_error = |message: String| DataError::new(name, message);
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(data_error("expected a JSON object with users, num_samples and user_data".to_owned()));
    }
    let file: File = serde_json::from_slice(bytes).map_err(|error| data_error(error.to_string()))?;
    let mut users = Users::new();
    for (user, raw) in file.user_data.0 {
        let (xs, ys) = (raw.x.len(), raw.y.len());
        if xs != ys {
            return Err(data_error(format!(
                "user {user:?}: found {xs} samples in x and {ys} in y, expected equal numbers"
            )));
        }
        let mut samples = Samples::default();
        for (number, (x, Label(y))) in raw.x.into_iter().zip(raw.y).enumerate() {
            match x {
                Sample::Row(row) => samples.rows.push(row),
                Sample::Text(text) => samples.texts.push(text),
            }
            if !samples.rows.is_empty() && !samples.texts.is_empty() {
                return Err(data_error(format!(
                    "user {user:?}, sample {number}: found numbers and text, allowed: one kind"
                )));
            }
            samples.labels.push(y);
        }
        users.insert(user, samples);
    }
    if !file.num_samples.is_empty() && file.num_samples.len() != file.users.len() {
        let (users, counts) = (file.users.len(), file.num_samples.len());
        return Err(data_error(format!(
            "found {users} names in users and {counts} numbers in num_samples, expected equal numbers"
        )));
    }
    let mut listed = BTreeSet::new();
    for (number, user) in file.users.iter().enumerate() {
        let Some(samples) = users.get(user) else {
            return Err(data_error(format!("found user {user:?} in users but not in user_data")));
        };
        let label_count = samples.labels.len() as u64;
        if !listed.insert(user) {
            return Err(data_error(format!("found user {user:?} twice in users, allowed: once")));
        }
        if let Some(Count(announced)) = file.num_samples.get(number).filter(|count| count.0 != label_count) {
            return Err(data_error(format!(
                "user {user:?}: found {label_count} samples, expected {announced} as in num_samples"
            )));
        }
    }
    if let Some(user) = users.keys().find(|user| !listed.is_empty() && !listed.contains(user)) {
        return Err(data_error(format!("found user {user:?} in user_data but not in users")));
    }
    Ok(users)
}

/// Fields of the file that are read; other fields are ignored.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    num_samples: Vec<Count>,
    user_data: UserData,
}

/// Samples of one user as in the file: `x` and `y` must have equal lengths.
#[derive(Deserialize)]
struct Raw {
    x: Vec<Sample>,
    y: Vec<Label>,
}

/// Map of users that rejects duplicate names.
struct UserData(BTreeMap<String, Raw>);

impl<'de> Deserialize<'de> for UserData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = UserData;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("users with x and y")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UserData, A::Error> {
                let mut users = BTreeMap::new();
                while let Some((user, raw)) = map.next_entry::<String, Raw>()? {
                    if users.contains_key(&user) {
                        return Err(A::Error::custom(format!(
                            "found user {user:?} twice in user_data, allowed: once"
                        )));
                    }
                    users.insert(user, raw);
                }
                Ok(UserData(users))
            }
        }
        deserializer.deserialize_map(Map)
    }
}

/// Sample of a user: a list of numbers, or the text from the list of a tweet's fields.
enum Sample {
    Row(Vec<f32>),
    Text(String),
}

impl<'de> Deserialize<'de> for Sample {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Sample;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of numbers, or of the fields of a tweet")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sample, A::Error> {
                let mut row = Vec::new();
                let mut fields = 0usize;
                let mut text = None;
                while let Some(item) = list.next_element::<Item>()? {
                    match item {
                        Item::Number(value) if fields == 0 => row.push(value),
                        Item::Text(field) if row.is_empty() => {
                            if fields == TEXT {
                                text = Some(field);
                            }
                            fields += 1;
                        }
                        _ => {
                            return Err(A::Error::custom(
                                "found numbers and text in one sample, allowed: one kind",
                            ));
                        }
                    }
                }
                match text {
                    Some(text) => Ok(Sample::Text(text)),
                    None if fields > 0 => Err(A::Error::custom(format!(
                        "found {fields} fields, but the text of a tweet is field {TEXT}, counted from 0"
                    ))),
                    None if row.is_empty() => Err(A::Error::custom("found a sample without values")),
                    None => Ok(Sample::Row(row)),
                }
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// Element of a sample's list: a number or a text.
enum Item {
    Number(f32),
    Text(String),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a string")
            }

            #[allow(
                clippy::cast_possible_truncation,
                reason = "devices hold f32; what it cannot hold is refused"
            )]
            fn visit_f64<E: Error>(self, value: f64) -> Result<Item, E> {
                let rounded = value as f32;
                if rounded.is_finite() {
                    Ok(Item::Number(rounded))
                } else {
                    Err(E::custom(format!("found {value:e}, expected a number of at most {:?}", f32::MAX)))
                }
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Item, E> {
                Ok(Item::Number(value as f32))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Item, E> {
                Ok(Item::Number(value as f32))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
                Ok(Item::Text(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Class of a sample: a whole number from 0 to 255, in any JSON notation.
struct Label(u8);

impl<'de> Deserialize<'de> for Label {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Label;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a class, a whole number from 0 to 255")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Label, E> {
                let class = u8::try_from(value).map(Label);
                class.map_err(|_| E::custom(format!("found {value}, expected a class from 0 to 255")))
            }

            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a whole number up to 255"
            )]
            fn visit_f64<E: Error>(self, value: f64) -> Result<Label, E> {
                if (0.0..=255.0).contains(&value) && value.fract() == 0.0 {
                    Ok(Label(value as u8))
                } else {
                    Err(E::custom(format!("found {value:?}, expected a class, a whole number from 0 to 255")))
                }
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Label, E> {
                Err(E::custom(format!("found {value}, expected a class from 0 to 255")))
            }
        }
        deserializer.deserialize_any(Whole)
    }
}

/// Number of samples: a whole number, in any JSON notation.
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of samples, a whole number from 0")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Count, E> {
                Ok(Count(value))
            }

            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a whole number below 2^53"
            )]
            fn visit_f64<E: Error>(self, value: f64) -> Result<Count, E> {
                if (0.0..9_007_199_254_740_992.0).contains(&value) && value.fract() == 0.0 {
                    Ok(Count(value as u64))
                } else {
                    Err(E::custom(format!("found {value:?}, expected a whole number from 0")))
                }
            }
        }
        deserializer.deserialize_any(Whole)
    }
}
