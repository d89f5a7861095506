//! Selection of the columns of a table by name, range and pattern.

use std::collections::HashMap;

/// Largest number of column names in a message.
const SHOWN: usize = 20;

/// Header of a file, indexed by column name.
#[derive(Debug)]
pub struct Header<'a> {
    names: &'a [&'a str],
    /// Position of each name, and the position of its second occurrence if the name is repeated.
    places: HashMap<&'a str, (usize, Option<usize>)>,
}

impl<'a> Header<'a> {
    /// Indexes the column names of a file.
    #[must_use]
    pub fn new(names: &'a [&'a str]) -> Self {
        let mut places: HashMap<&str, (usize, Option<usize>)> = HashMap::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            let (_, second_place) = places.entry(name).or_insert((index, Some(index)));
            // The first occurrence itself is not a repetition.
            *second_place = match *second_place {
                Some(first) if first == index => None,
                None => Some(index),
                known_place => known_place,
            };
        }
        Self { names, places }
    }

    /// Position of a column.
    ///
    /// # Errors
    /// A one-line message if the column is missing or occurs twice.
    pub fn find(&self, name: &str) -> Result<usize, String> {
        match self.places.get(name) {
            Some((index, None)) => Ok(*index),
            Some((first, Some(second))) => Err(format!(
                "found column {name:?} twice, as columns {} and {}; rename one of them",
                first + 1,
                second + 1
            )),
            None => Err(format!("found no column {name:?}, allowed: {}", self.list())),
        }
    }

    /// Positions of the selected columns, in the order of `entries`; columns of the same entry are in the
    /// order of the file. An entry is the name of a column, two names joined by `..` for a range of columns,
    /// or a pattern in which `*` matches any text and `?` matches any character. An entry that starts with
    /// `!` excludes columns. Ranges and patterns skip the columns `others` and columns without a name. A
    /// column that was already selected is skipped.
    ///
    /// # Errors
    /// A one-line message if an entry matches no column, or the name of a selected column occurs twice.
    pub fn select(&self, entries: &[String], others: &[&str]) -> Result<Vec<usize>, String> {
        let mut is_excluded = vec![false; self.names.len()];
        let mut chosen = Vec::new();
        let mut is_chosen = vec![false; self.names.len()];
        for excluded in entries.iter().filter_map(|entry| self.excluded(entry)) {
            for index in self.columns_of(excluded)?.0 {
                if let Some(is_excluded) = is_excluded.get_mut(index) {
                    *is_excluded = true;
                }
            }
        }
        for entry in entries.iter().filter(|entry| self.excluded(entry).is_none()) {
            let (places, several) = self.columns_of(entry)?;
            for index in places {
                let name = self.names.get(index).copied().unwrap_or_default();
                let implied_exclusion = several && (name.is_empty() || others.contains(&name));
                let already_chosen = is_chosen.get(index).copied().unwrap_or(true);
                if implied_exclusion || already_chosen || is_excluded.get(index).copied().unwrap_or(true) {
                    continue;
                }
                self.find(name)?;
                if let Some(is_chosen) = is_chosen.get_mut(index) {
                    *is_chosen = true;
                }
                chosen.push(index);
            }
        }
        if chosen.is_empty() {
            let (entries, further) = entries.split_at(entries.len().min(SHOWN));
            let further =
                if further.is_empty() { String::new() } else { format!(" and {} more", further.len()) };
            return Err(format!(
                "data.features = {entries:?}{further} selects no column; allowed: {}",
                self.list()
            ));
        }
        Ok(chosen)
    }

    /// Text after the `!` if the entry excludes columns.
    fn excluded<'e>(&self, entry: &'e str) -> Option<&'e str> {
        entry.strip_prefix('!').filter(|_| !self.places.contains_key(entry))
    }

    /// Positions of the columns that an entry matches, and true if the entry is a range or a pattern.
    fn columns_of(&self, entry: &str) -> Result<(Vec<usize>, bool), String> {
        if self.places.contains_key(entry) {
            return Ok((vec![self.find(entry)?], false));
        }
        if let Some((from, to)) =
            entry.split_once("..").filter(|(from, to)| !from.is_empty() && !to.is_empty())
            && self.places.contains_key(from.trim())
        {
            let (first, last) = (self.find(from.trim())?, self.find(to.trim())?);
            if first > last {
                return Err(format!(
                    "data.features {entry:?}: column {from:?} is number {}, after {to:?}, which is number {}; swap them",
                    first + 1,
                    last + 1
                ));
            }
            return Ok(((first..=last).collect(), true));
        }
        if !entry.contains(['*', '?']) {
            return self.find(entry).map(|index| (vec![index], false));
        }
        let pattern: Vec<char> = entry.chars().collect();
        let matches = |name: &str| matches_pattern(&pattern, &name.chars().collect::<Vec<char>>());
        let places: Vec<usize> =
            (0..).zip(self.names).filter(|(_, name)| matches(name)).map(|(index, _)| index).collect();
        if places.is_empty() {
            return Err(format!("data.features: no column matches {entry:?}, allowed: {}", self.list()));
        }
        Ok((places, true))
    }

    /// Joins the column names for a message. Of many names only the first [`SHOWN`] are listed.
    fn list(&self) -> String {
        let first = self.names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
        match self.names.len().checked_sub(SHOWN) {
            Some(hidden_count @ 1..) => format!("{first} and {hidden_count} more"),
            _ => first,
        }
    }
}

/// True if an entry is the name of a single column.
#[must_use]
pub fn is_plain(entry: &str) -> bool {
    !entry.starts_with('!') && !entry.contains(['*', '?']) && !entry.contains("..")
}

/// True if a pattern matches the whole text. The time is proportional to the product of the two lengths.
fn matches_pattern(pattern: &[char], text: &[char]) -> bool {
    let (mut pattern_index, mut text_index) = (0, 0);
    // Position of the last star in the pattern, and position in the text up to which the star matches.
    let mut star: Option<(usize, usize)> = None;
    while text_index < text.len() {
        match pattern.get(pattern_index) {
            Some('*') => {
                star = Some((pattern_index, text_index));
                pattern_index += 1;
            }
            Some(c) if *c == '?' || text.get(text_index) == Some(c) => {
                pattern_index += 1;
                text_index += 1;
            }
            _ => match star {
                Some((star_index, matched)) => {
                    star = Some((star_index, matched + 1));
                    pattern_index = star_index + 1;
                    text_index = matched + 1;
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(pattern_index).all(|c| *c == '*')
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const HEADER: [&str; 9] = ["", "who", "acc_x", "acc_y", "gyr_x", "t", "y", "!odd", "a*b"];

    fn names(entries: &[&str]) -> Result<Vec<&'static str>, String> {
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        let places = Header::new(&HEADER).select(&entries, &["who", "y"])?;
        Ok(places.into_iter().map(|place| HEADER[place]).collect())
    }

    #[test]
    fn entries_select_columns_in_file_order() {
        for (entries, expected) in [
            (&["*"][..], &["acc_x", "acc_y", "gyr_x", "t", "!odd", "a*b"][..]),
            (&["acc_*"], &["acc_x", "acc_y"]),
            (&["*_x"], &["acc_x", "gyr_x"]),
            (&["gyr_x", "acc_*"], &["gyr_x", "acc_x", "acc_y"]),
            (&["acc_x..t"], &["acc_x", "acc_y", "gyr_x", "t"]),
            (&["acc_y..!odd"], &["acc_y", "gyr_x", "t", "!odd"]),
            (&["*", "!t", "!acc*"], &["gyr_x", "!odd", "a*b"]),
            (&["!t", "*"], &["acc_x", "acc_y", "gyr_x", "!odd", "a*b"]),
            (&["a*b"], &["a*b"]),
            (&["!odd"], &["!odd"]),
            (&["?cc_?"], &["acc_x", "acc_y"]),
            (&["acc_x", "*"], &["acc_x", "acc_y", "gyr_x", "t", "!odd", "a*b"]),
        ] {
            assert_eq!(names(entries).unwrap(), expected, "{entries:?}");
        }
    }

    #[test]
    fn entry_without_columns_is_an_error() {
        for (entries, message) in [
            (&["mag_*"][..], "no column matches \"mag_*\""),
            (&["acc_z"], "no column \"acc_z\""),
            (&["t..acc_x"], "swap them"),
            (&["acc_x..nowhere"], "no column \"nowhere\""),
            (&["*", "!nowhere"], "no column \"nowhere\""),
            (&["t", "!t"], "selects no column"),
        ] {
            let message_text = names(entries).unwrap_err();
            assert!(message_text.contains(message), "{entries:?}: {message_text}");
        }
    }

    #[test]
    fn pattern_with_many_stars_matches_quickly() {
        let pattern: Vec<char> = "*a".repeat(1000).chars().collect();
        assert!(!matches_pattern(&pattern, &['a'; 900]));
        assert!(matches_pattern(&pattern, &['a'; 1000]));
    }
}
